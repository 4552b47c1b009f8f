/* The layer: router, experts, weighted sum; forward and backward. */
#include "ep/ep.h"

#include "core/try.h"

/* Whose tokens make up one micro-batch besides this rank's own. */
enum { SHARERS = 2 };
static loom_comm *sharer(const loom_ep *ep, int i)
{
    return ep->mesh->axis[i == 0 ? LOOM_AXIS_TP : LOOM_AXIS_CP];
}

loom_range loom_moe_own_tokens(const loom_ep *ep, int64_t tokens)
{
    loom_comm *tp = ep->mesh->axis[LOOM_AXIS_TP];

    return ep->mesh->layout.sequence_parallel ? (loom_range){0, tokens} : loom_cut(tokens, loom_comm_size(tp), loom_comm_rank(tp));
}

/* --- forward ----------------------------------------------------------------------------------------------------------------------- */

static loom_status route(loom_moe_layer *layer, loom_moe_record *r, const float *x)
{
    loom_ep *ep = layer->ep;
    loom_kernels *k = ep->kernels;
    const loom_moe *moe = layer->moe;
    loom_status status;

    LOOM_TRY(k->gemm(k,
                     &(loom_gemm_args){.c_MN = r->logits_TE,
                                       .a_MK = x,
                                       .b_KN = layer->router.value,
                                       .m = r->tokens,
                                       .n = moe->experts,
                                       .k = layer->hidden,
                                       .transpose_b = true},
                     ep->compute));
    return k->router(k,
                     &(loom_router_args){.score_TE = r->scores_TE,
                                         .weight_TK = r->weights_TK,
                                         .lse_T = moe->z_coefficient != 0 ? r->lse_T : NULL,
                                         .expert_TK = r->ids_TK,
                                         .logit_TE = r->logits_TE,
                                         .bias_E = moe->selection_bias ? layer->bias.value : NULL,
                                         .tokens = r->tokens,
                                         .first = r->first,
                                         .seq = ep->shape.seq,
                                         .counted = ep->counted,
                                         .rule = layer->rule},
                     ep->compute);

fail:
    return status;
}

/* A row for each choice, sorted by expert: the token's, times the choice's weight where there are weights. */
static loom_status to_rows(loom_moe_layer *layer, const loom_moe_record *r, const float *x_TD, const float *weights, float *rows)
{
    loom_ep *ep = layer->ep;

    return ep->kernels->gather_rows(ep->kernels,
                                    &(loom_gather_rows_args){.y_RD = rows,
                                                             .x_TD = x_TD,
                                                             .weight_A = weights,
                                                             .row_R = r->order_R,
                                                             .rows = r->choices,
                                                             .hidden = layer->hidden,
                                                             .divide = r->top_k},
                                    ep->compute);
}

loom_status loom_moe_dispatch(loom_moe_layer *layer, loom_moe_record *r, const float *x, int64_t tokens, int64_t first)
{
    loom_ep *ep = layer->ep;
    loom_status status;

    if (tokens < 0 || tokens > r->capacity || first < 0)
        return loom_fail(LOOM_E_INVALID, "experts: %lld tokens from number %lld; the record was made for at most %lld", (long long)tokens,
                         (long long)first, (long long)r->capacity);
    r->tokens = tokens;
    r->first = first;
    LOOM_TRY(route(layer, r, x));
    if (ep->config.capacity_factor > 0)
        LOOM_TRY(loom_ep_drop(ep, layer->moe, r));
    LOOM_TRY(loom_ep_count(ep, r));
    if (loom_ep_gathers(ep))
        return loom_ep_gathered_dispatch(ep, r, x);
    LOOM_TRY(loom_ep_plan(ep, r));
    LOOM_TRY(to_rows(layer, r, x, NULL, loom_ep_alone(ep) ? r->x.data : ep->leaving.data));
    return loom_ep_send_out(ep, r, r->x.data);

fail:
    return status;
}

loom_status loom_moe_compute(loom_moe_layer *layer, loom_moe_record *r)
{
    loom_ep *ep = layer->ep;
    float *out = loom_ep_alone(ep) ? r->returned_RD : ep->of_expert.data;
    loom_status status;

    if (loom_ep_gathers(ep))
        return loom_ep_gathered_compute(layer, r);
    LOOM_TRY(loom_ep_take_in(ep, r, r->x.data));
    LOOM_TRY(loom_ep_experts(layer, r, out));
    return loom_ep_send_back(ep, r, out, r->returned_RD);

fail:
    return status;
}

static loom_status combine(loom_moe_layer *layer, const loom_moe_record *r, const float *rows, const float *weights, float *y, bool accumulate)
{
    loom_ep *ep = layer->ep;
    loom_status status;

    if (loom_ep_gathers(ep))
        return loom_ep_gathered_combine(ep, r, y, accumulate);
    status = loom_ep_wait_back(ep);
    if (status < 0)
        return status;
    return ep->kernels->combine_rows(ep->kernels,
                                     &(loom_combine_rows_args){.y_TD = y,
                                                               .x_RD = rows,
                                                               .weight_TK = weights,
                                                               .position_TK = r->rows_TK,
                                                               .tokens = r->tokens,
                                                               .hidden = layer->hidden,
                                                               .top_k = r->top_k,
                                                               .accumulate = accumulate},
                                     ep->compute);
}

loom_status loom_moe_combine(loom_moe_layer *layer, loom_moe_record *r, float *y, bool accumulate)
{
    return combine(layer, r, r->returned_RD, r->weights_TK, y, accumulate);
}

/* --- balance ------------------------------------------------------------------------------------------------------------------------ */

static bool per_sequence(const loom_moe_layer *layer)
{
    return layer->moe->balance == LOOM_BALANCE_SEQUENCE;
}

/* Tokens of a unit of the balance loss (a sequence, or the micro-batch) as this cp rank holds it, and all of them. */
static int64_t unit_tokens(const loom_moe_layer *layer)
{
    const loom_ep_shape *shape = &layer->ep->shape;

    return per_sequence(layer) ? shape->seq : shape->sequences * shape->seq;
}

static int64_t whole_unit(const loom_moe_layer *layer, const loom_moe_record *r)
{
    return layer->ep->whole_tokens / r->units;
}

/* Balance and z-loss are means, losses are sums over tokens, divided by the count of those whose loss counts: a micro-batch weighs as many. */
static double weight_of_micro_batch(const loom_ep *ep)
{
    return ep->losses > 0 ? ep->losses : (double)ep->whole_tokens;
}

static double balance_scale(const loom_moe_layer *layer)
{
    return layer->moe->balance_coefficient * weight_of_micro_batch(layer->ep);
}

/* This rank's tokens of unit `unit`: [begin, end) of those it routes. */
static loom_range tokens_of_unit(const loom_moe_layer *layer, const loom_moe_record *r, int64_t unit)
{
    int64_t begin = unit * unit_tokens(layer) - r->first, end = begin + unit_tokens(layer);

    if (!per_sequence(layer))
        return (loom_range){0, r->tokens};
    begin = begin < 0 ? 0 : begin > r->tokens ? r->tokens : begin;
    end = end < begin ? begin : end > r->tokens ? r->tokens : end;
    return (loom_range){begin, end};
}

static loom_status count_unit(loom_moe_layer *layer, loom_moe_record *r, int64_t unit)
{
    loom_range own = tokens_of_unit(layer, r, unit);
    loom_kernels *k = layer->ep->kernels;

    return k->router_count(k,
                           &(loom_router_count_args){.assigned_NE = r->stats + unit * r->experts,
                                                     .score_sum_NE = r->stats + (r->units + unit) * r->experts,
                                                     .expert_TK = r->ids_TK + own.begin * r->top_k,
                                                     .score_TE = r->scores_TE + own.begin * r->experts,
                                                     .tokens = own.end - own.begin,
                                                     .experts = r->experts,
                                                     .top_k = r->top_k,
                                                     .share = per_sequence(layer)},
                           layer->ep->compute);
}

/* The counts decide the gradient of every token of the unit, so they are summed over all ranks that have some of them. */
static loom_status weigh_balance(loom_moe_layer *layer, loom_moe_record *r)
{
    loom_ep *ep = layer->ep;
    loom_kernels *k = ep->kernels;
    size_t count = 2 * (size_t)(r->units * r->experts);
    loom_status status;

    for (int64_t unit = 0; unit < r->units; unit++)
        LOOM_TRY(count_unit(layer, r, unit));
    for (int i = 0; i < SHARERS; i++)
        if (loom_comm_size(sharer(ep, i)) > 1)
            LOOM_TRY(loom_all_reduce(sharer(ep, i), r->stats, r->stats, count, LOOM_F32, LOOM_SUM, ep->compute));
    return k->router_balance(k,
                             &(loom_router_balance_args){.loss = r->balance,
                                                         .slope_NE = r->slopes,
                                                         .assigned_NE = r->stats,
                                                         .score_sum_NE = r->stats + r->units * r->experts,
                                                         .segments = r->units,
                                                         .experts = r->experts,
                                                         .top_k = r->top_k,
                                                         .tokens = whole_unit(layer, r),
                                                         .coefficient = balance_scale(layer)},
                             ep->compute);

fail:
    return status;
}

loom_status loom_moe_balance(loom_moe_layer *layer, const loom_moe_record *r, double *value)
{
    loom_status status;

    *value = 0;
    if (!loom_moe_has_balance(layer->moe))
        return LOOM_OK;
    LOOM_TRY(loom_stream_copy(layer->ep->compute, value, r->balance, sizeof *value));
    LOOM_TRY(loom_stream_wait(layer->ep->compute));
    *value /= balance_scale(layer);
    return LOOM_OK;

fail:
    return status;
}

/* --- backward ----------------------------------------------------------------------------------------------------------------------- */

/* Of z_coefficient * mean of lse^2, in a sum over tokens. */
static double z_slope(const loom_ep *ep, const loom_moe *moe)
{
    return 2 * moe->z_coefficient * weight_of_micro_batch(ep) / (double)ep->whole_tokens;
}

static loom_status unit_backward(loom_moe_layer *layer, loom_moe_record *r, int64_t unit)
{
    loom_range own = tokens_of_unit(layer, r, unit);
    int64_t scores = own.begin * r->experts, choices = own.begin * r->top_k;
    loom_kernels *k = layer->ep->kernels;

    return k->router_backward(k,
                              &(loom_router_backward_args){.dlogit_TE = r->dlogits_TE + scores,
                                                           .dweight_TK = r->dweights_TK + choices,
                                                           .score_TE = r->scores_TE + scores,
                                                           .expert_TK = r->ids_TK + choices,
                                                           .slope_NE = loom_moe_has_balance(layer->moe) ? r->slopes + unit * r->experts : NULL,
                                                           .logit_TE = r->logits_TE + scores,
                                                           .lse_T = r->lse_T + own.begin,
                                                           .tokens = own.end - own.begin,
                                                           .share = per_sequence(layer),
                                                           .z_slope = (float)z_slope(layer->ep, layer->moe),
                                                           .rule = layer->rule},
                              layer->ep->compute);
}

static loom_status route_backward(loom_moe_layer *layer, loom_moe_record *r, const float *x)
{
    loom_ep *ep = layer->ep;
    loom_kernels *k = ep->kernels;
    loom_status status;

    if (loom_moe_has_balance(layer->moe))
        LOOM_TRY(weigh_balance(layer, r));
    for (int64_t unit = 0; unit < r->units; unit++)
        LOOM_TRY(unit_backward(layer, r, unit));
    return k->gemm(k,
                   &(loom_gemm_args){.c_MN = layer->router.gradient,
                                     .a_MK = r->dlogits_TE,
                                     .b_KN = x,
                                     .m = r->experts,
                                     .n = layer->hidden,
                                     .k = r->tokens,
                                     .transpose_a = true,
                                     .accumulate = true},
                   ep->compute);

fail:
    return status;
}

/* What the load of the step is made of; counted in backward, which runs once for each micro-batch whatever is recomputed. */
static void add_load(loom_moe_layer *layer, const loom_moe_record *r)
{
    double *counted = layer->ep->counted_choices, *dropped = counted + layer->ep->layers * r->experts;

    if (!counted)
        return;
    *dropped -= (double)r->choices;
    for (int64_t e = 0; e < r->experts; e++) {
        counted[layer->index * r->experts + e] += (double)r->chosen[e];
        *dropped += (double)r->chosen[e];
    }
}

static loom_status send_gradients(loom_moe_layer *layer, loom_moe_record *r, const float *dy)
{
    loom_ep *ep = layer->ep;
    loom_kernels *k = ep->kernels;
    loom_status status;

    if (loom_ep_gathers(ep))
        return loom_ep_gathered_dispatch_backward(ep, r, dy);
    LOOM_TRY(to_rows(layer, r, dy, r->weights_TK, loom_ep_alone(ep) ? loom_ep_gradient(ep, r) : ep->leaving.data));
    LOOM_TRY(loom_ep_send_out(ep, r, loom_ep_gradient(ep, r)));
    return k->combine_weights_backward(k,
                                       &(loom_combine_weights_backward_args){.dweight_TK = r->dweights_TK,
                                                                             .dy_TD = dy,
                                                                             .x_RD = r->returned_RD,
                                                                             .position_TK = r->rows_TK,
                                                                             .tokens = r->tokens,
                                                                             .top_k = r->top_k,
                                                                             .hidden = layer->hidden},
                                       ep->compute);

fail:
    return status;
}

loom_status loom_moe_dispatch_backward(loom_moe_layer *layer, loom_moe_record *r, const float *x, const float *dy)
{
    loom_status status = send_gradients(layer, r, dy);

    if (status < 0)
        return status;
    add_load(layer, r);
    return route_backward(layer, r, x);
}

/* Gradients go the way of the tokens, and come back the way of the results. */
loom_status loom_moe_compute_backward(loom_moe_layer *layer, loom_moe_record *r)
{
    loom_ep *ep = layer->ep;
    loom_status status;

    if (loom_ep_gathers(ep))
        return loom_ep_gathered_compute_backward(layer, r);
    LOOM_TRY(loom_ep_take_in(ep, r, loom_ep_gradient(ep, r)));
    LOOM_TRY(loom_ep_experts_backward(layer, r));
    return loom_ep_send_back(ep, r, ep->of_expert.data, ep->leaving.data);

fail:
    return status;
}

loom_status loom_moe_combine_backward(loom_moe_layer *layer, loom_moe_record *r, float *dx, bool accumulate)
{
    loom_ep *ep = layer->ep;
    loom_status status;

    LOOM_TRY(combine(layer, r, loom_ep_alone(ep) ? ep->of_expert.data : ep->leaving.data, NULL, dx, accumulate));
    return ep->kernels->gemm(ep->kernels,
                             &(loom_gemm_args){.c_MN = dx,
                                               .a_MK = r->dlogits_TE,
                                               .b_KN = layer->router.value,
                                               .m = r->tokens,
                                               .n = layer->hidden,
                                               .k = layer->moe->experts,
                                               .accumulate = true},
                             ep->compute);

fail:
    return status;
}

loom_status loom_moe_backward_weight(loom_moe_layer *layer, loom_moe_record *r)
{
    if (!layer->ep->config.split_backward)
        return loom_fail(LOOM_E_INVALID, "loom_moe_backward_weight() without split_backward: loom_moe_compute_backward() made these gradients already");
    return loom_ep_experts_backward_weight(layer, r);
}
