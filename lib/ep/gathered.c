/* The all-gather dispatcher: every rank of the group gets all tokens with their choices, computes what is for its experts, and gives each token's
 * owner its part of the weighted sum; the parts are added in rank order. A token travels once to each rank, whatever it chose: more than the
 * all-to-all sends where a token has fewer choices than there are ranks, less where it has more, and always the same. Over etp as over ep: first
 * one, then the other. */
#include "ep/ep.h"

#include "core/try.h"

bool loom_ep_gathers(const loom_ep *ep)
{
    return ep->config.dispatcher == LOOM_EP_ALLGATHER && !loom_ep_alone(ep);
}

static int64_t all_tokens(const loom_ep *ep, const loom_moe_record *r)
{
    return (int64_t)(r->of_etp_at[ep->etp_size - 1] + r->of_etp[ep->etp_size - 1]);
}

static const int32_t *ids_of(const loom_moe_record *r)
{
    return (const int32_t *)(const void *)r->all_ids.data;
}

/* The choice of each row, and the row of each choice or -1. */
static int32_t *order_of(const loom_moe_record *r)
{
    return (int32_t *)(void *)r->places.data;
}

static int32_t *positions_of(const loom_ep *ep, const loom_moe_record *r)
{
    return order_of(r) + all_tokens(ep, r) * r->top_k;
}

/* --- there --------------------------------------------------------------------------------------------------------------------------------------- */

/* Rows of this rank -> rows of all; `between` holds those of the ep group where etp has several ranks. */
static loom_status gather(loom_ep *ep, const loom_moe_record *r, loom_dtype dtype, int64_t width, const void *from, void *between, void *to)
{
    loom_status status;

    LOOM_TRY(loom_ep_gather(ep, ep->ep, dtype, width, from, (loom_ep_rows){r->received, r->received_at}, ep->etp_size > 1 ? between : to));
    if (ep->etp_size > 1)
        LOOM_TRY(loom_ep_gather(ep, ep->etp, dtype, width, between, (loom_ep_rows){r->of_etp, r->of_etp_at}, to));
    return LOOM_OK;

fail:
    return status;
}

static loom_status gather_hidden(loom_ep *ep, const loom_moe_record *r, const float *from)
{
    loom_status status = loom_ep_comm_after_compute(ep);

    return status < 0 ? status : gather(ep, r, LOOM_F32, r->hidden, from, ep->arrived.data, loom_ep_by_source(ep));
}

/* --- back ---------------------------------------------------------------------------------------------------------------------------------------- */

/* Sends each owner this rank's part of its rows; they land side by side in ep->partial. */
static loom_status start_home(loom_ep *ep, const loom_moe_record *r, int64_t width, const float *from)
{
    loom_status status;

    if (ep->etp_size > 1) {
        LOOM_TRY(loom_ep_comm_after_compute(ep));
        LOOM_TRY(loom_ep_scatter(ep, ep->etp, width, from, (loom_ep_rows){r->of_etp, r->of_etp_at}, ep->partial.data));
        LOOM_TRY(loom_ep_compute_after_comm(ep));
        LOOM_TRY(loom_ep_sum_parts(ep, ep->etp_size, loom_ep_arrived_rows(ep, r) * width, ep->arrived.data));
        from = ep->arrived.data;
    }
    LOOM_TRY(loom_ep_comm_after_compute(ep));
    return loom_ep_scatter(ep, ep->ep, width, from, (loom_ep_rows){r->received, r->received_at}, ep->partial.data);

fail:
    return status;
}

/* to [tokens, width] = (or +=) the sum of the parts. */
static loom_status finish_home(loom_ep *ep, const loom_moe_record *r, int64_t width, float *to, bool accumulate)
{
    int64_t count = r->tokens * width;
    loom_status status;

    LOOM_TRY(loom_ep_compute_after_comm(ep));
    LOOM_TRY(loom_ep_sum_parts(ep, ep->ep_size, count, ep->partial.data));
    return ep->kernels->copy(ep->kernels, &(loom_copy_args){.y = to, .x = ep->partial.data, .rows = 1, .cols = count, .accumulate = accumulate},
                             ep->compute);

fail:
    return status;
}

/* --- who has what -------------------------------------------------------------------------------------------------------------------------------- */

/* How many tokens each rank of ep has, and each rank of etp with its ep group. */
static loom_status exchange_tokens(loom_ep *ep, loom_moe_record *r)
{
    int32_t own = (int32_t)r->tokens, *mine = r->tables + loom_comm_rank(ep->etp) * ep->ep_size;
    size_t all = (size_t)ep->ep_size * (size_t)ep->etp_size;
    loom_status status;

    LOOM_TRY(loom_stream_copy(ep->compute, r->counts_E, &own, sizeof own));
    LOOM_TRY(loom_stream_wait(ep->compute));
    LOOM_TRY(loom_ep_comm_after_compute(ep));
    LOOM_TRY(loom_all_gather(ep->ep, r->counts_E, mine, 1, LOOM_I32, ep->comm));
    LOOM_TRY(loom_all_gather(ep->etp, mine, r->tables, (size_t)ep->ep_size, LOOM_I32, ep->comm));
    if (loom_device_get_kind(ep->device) == LOOM_DRY) {
        for (size_t i = 0; i < all; i++)
            r->host_tables[i] = own;
        return LOOM_OK;
    }
    LOOM_TRY(loom_stream_copy(ep->comm, r->host_tables, r->tables, all * sizeof *r->host_tables));
    return loom_stream_wait(ep->comm);

fail:
    return status;
}

static void read_tokens(const loom_ep *ep, loom_moe_record *r)
{
    const int32_t *of_ep = r->host_tables + loom_comm_rank(ep->etp) * ep->ep_size;

    for (int i = 0; i < ep->ep_size; i++) {
        r->sent[i] = (size_t)r->tokens;
        r->received[i] = (size_t)of_ep[i];
    }
    for (int i = 0; i < ep->etp_size; i++) {
        r->of_etp[i] = 0;
        for (int j = 0; j < ep->ep_size; j++)
            r->of_etp[i] += (size_t)r->host_tables[i * ep->ep_size + j];
    }
    loom_ep_offsets(r->received, ep->ep_size, r->received_at);
    loom_ep_offsets(r->of_etp, ep->etp_size, r->of_etp_at);
}

/* With room to grow. */
static loom_status reserve(loom_ep *ep, loom_ep_buffer *buffer, int64_t count)
{
    return loom_ep_reserve(ep, buffer, count, count + count / 8);
}

static loom_status reserve_tokens(loom_ep *ep, loom_moe_record *r)
{
    int64_t all = all_tokens(ep, r), arrived = loom_ep_arrived_rows(ep, r), width = r->hidden > r->top_k ? r->hidden : r->top_k;
    int64_t parts = r->tokens * ep->ep_size > arrived * ep->etp_size || ep->etp_size == 1 ? r->tokens * ep->ep_size : arrived * ep->etp_size;
    loom_status status;

    LOOM_TRY(reserve(ep, &r->all_ids, all * r->top_k));
    LOOM_TRY(reserve(ep, &r->all_weights, all * r->top_k));
    LOOM_TRY(reserve(ep, &r->places, 2 * all * r->top_k));
    LOOM_TRY(reserve(ep, &ep->leaving, all * r->top_k));
    LOOM_TRY(reserve(ep, &ep->arrived, arrived * width));
    if (ep->etp_size > 1)
        LOOM_TRY(reserve(ep, &ep->gathered, all * width));
    return reserve(ep, &ep->partial, parts * width);

fail:
    return status;
}

static loom_status reserve_rows(loom_ep *ep, loom_moe_record *r)
{
    loom_status status;

    LOOM_TRY(reserve(ep, &r->x, r->rows * r->hidden));
    LOOM_TRY(reserve(ep, &r->wide, r->rows * 2 * r->ffn));
    LOOM_TRY(reserve(ep, &r->active, r->rows * r->ffn));
    LOOM_TRY(reserve(ep, &r->out, r->rows * r->hidden));
    return reserve(ep, &ep->of_expert, r->rows * loom_expert_scratch(&r->shape));

fail:
    return status;
}

/* Which choices of all tokens are for experts that are here. */
static loom_status sort_choices(loom_ep *ep, loom_moe_record *r)
{
    int64_t choices = all_tokens(ep, r) * r->top_k;
    loom_status status;

    LOOM_TRY(ep->kernels->sort_assignments(ep->kernels,
                                           &(loom_sort_assignments_args){.order_R = order_of(r),
                                                                         .position_A = positions_of(ep, r),
                                                                         .offset_E1 = r->rows_E1,
                                                                         .expert_A = ids_of(r),
                                                                         .assignments = choices,
                                                                         .first = loom_comm_rank(ep->ep) * r->experts_here,
                                                                         .experts = r->experts_here},
                                           ep->compute));
    if (loom_device_get_kind(ep->device) == LOOM_DRY) {
        r->rows = choices / ep->ep_size; /* a rehearsal's tokens choose evenly */
        return LOOM_OK;
    }
    LOOM_TRY(loom_stream_copy(ep->compute, r->host_rows_E1, r->rows_E1, (size_t)(r->experts_here + 1) * sizeof *r->rows_E1));
    LOOM_TRY(loom_stream_wait(ep->compute));
    r->rows = r->host_rows_E1[r->experts_here];
    return LOOM_OK;

fail:
    return status;
}

static loom_status plan(loom_ep *ep, loom_moe_record *r)
{
    loom_status status;

    LOOM_TRY(exchange_tokens(ep, r));
    read_tokens(ep, r);
    LOOM_TRY(reserve_tokens(ep, r));
    LOOM_TRY(loom_ep_comm_after_compute(ep));
    LOOM_TRY(gather(ep, r, LOOM_I32, r->top_k, r->kept_TK, ep->leaving.data, r->all_ids.data));
    LOOM_TRY(gather(ep, r, LOOM_F32, r->top_k, r->weights_TK, ep->leaving.data, r->all_weights.data));
    LOOM_TRY(loom_ep_compute_after_comm(ep));
    LOOM_TRY(sort_choices(ep, r));
    return reserve_rows(ep, r);

fail:
    return status;
}

/* --- the layer ----------------------------------------------------------------------------------------------------------------------------------- */

/* A row for each choice that is for here, of the gathered tokens. */
static loom_status to_rows(loom_ep *ep, const loom_moe_record *r, const float *weights, float *rows)
{
    return ep->kernels->gather_rows(ep->kernels,
                                    &(loom_gather_rows_args){.y_RD = rows,
                                                             .x_TD = loom_ep_by_source(ep),
                                                             .weight_A = weights,
                                                             .row_R = order_of(r),
                                                             .rows = r->rows,
                                                             .hidden = r->hidden,
                                                             .divide = r->top_k},
                                    ep->compute);
}

/* Rows become each token's sum, in the place where the tokens were, and go home. */
static loom_status from_rows(loom_ep *ep, const loom_moe_record *r, const float *rows, const float *weights)
{
    loom_status status = ep->kernels->combine_rows(ep->kernels,
                                                   &(loom_combine_rows_args){.y_TD = loom_ep_by_source(ep),
                                                                             .x_RD = rows,
                                                                             .weight_TK = weights,
                                                                             .position_TK = positions_of(ep, r),
                                                                             .tokens = all_tokens(ep, r),
                                                                             .hidden = r->hidden,
                                                                             .top_k = r->top_k},
                                                   ep->compute);

    return status < 0 ? status : start_home(ep, r, r->hidden, loom_ep_by_source(ep));
}

loom_status loom_ep_gathered_dispatch(loom_ep *ep, loom_moe_record *r, const float *x)
{
    loom_status status = plan(ep, r);

    return status < 0 ? status : gather_hidden(ep, r, x);
}

loom_status loom_ep_gathered_compute(loom_moe_layer *layer, loom_moe_record *r)
{
    loom_ep *ep = layer->ep;
    loom_status status;

    LOOM_TRY(loom_ep_compute_after_comm(ep));
    LOOM_TRY(to_rows(ep, r, NULL, r->x.data));
    LOOM_TRY(loom_ep_experts(layer, r, r->out.data));
    return from_rows(ep, r, r->out.data, r->all_weights.data);

fail:
    return status;
}

loom_status loom_ep_gathered_combine(loom_ep *ep, const loom_moe_record *r, float *y, bool accumulate)
{
    return finish_home(ep, r, r->hidden, y, accumulate);
}

/* What a weight does to the loss is known where the expert's result is. */
loom_status loom_ep_gathered_dispatch_backward(loom_ep *ep, loom_moe_record *r, const float *dy)
{
    float *dweights = ep->leaving.data;
    loom_status status;

    LOOM_TRY(gather_hidden(ep, r, dy));
    LOOM_TRY(loom_ep_compute_after_comm(ep));
    LOOM_TRY(ep->kernels->combine_weights_backward(ep->kernels,
                                                   &(loom_combine_weights_backward_args){.dweight_TK = dweights,
                                                                                         .dy_TD = loom_ep_by_source(ep),
                                                                                         .x_RD = r->out.data,
                                                                                         .position_TK = positions_of(ep, r),
                                                                                         .tokens = all_tokens(ep, r),
                                                                                         .top_k = r->top_k,
                                                                                         .hidden = r->hidden},
                                                   ep->compute));
    LOOM_TRY(start_home(ep, r, r->top_k, dweights));
    return finish_home(ep, r, r->top_k, r->dweights_TK, false);

fail:
    return status;
}

loom_status loom_ep_gathered_compute_backward(loom_moe_layer *layer, loom_moe_record *r)
{
    loom_ep *ep = layer->ep;
    loom_status status;

    LOOM_TRY(to_rows(ep, r, r->all_weights.data, loom_ep_gradient(ep, r)));
    LOOM_TRY(loom_ep_experts_backward(layer, r));
    return from_rows(ep, r, ep->of_expert.data, NULL);

fail:
    return status;
}
