/* Tokens on their way to their experts and back.
 *
 * Rows leave sorted by expert, so those for one ep rank lie together. They arrive by source rank; with etp, the ranks that share the experts
 * then give each other what they got, so that each has all rows for its columns. Sorted by local expert they are ready for the products. The
 * way back is the same in reverse, with the parts of the sum that the etp ranks computed added in rank order. */
#include "ep/ep.h"

#include "core/try.h"

#include <stdlib.h>
#include <string.h>

bool loom_ep_alone(const loom_ep *ep)
{
    return ep->ep_size == 1 && ep->etp_size == 1;
}

/* Rows of one local expert need no sorting. */
static bool arrives_sorted(const loom_moe_record *r)
{
    return r->experts_here == 1;
}

loom_status loom_ep_comm_after_compute(loom_ep *ep)
{
    loom_status status = loom_event_record(ep->computed, ep->compute);

    return status < 0 ? status : loom_stream_wait_event(ep->comm, ep->computed);
}

loom_status loom_ep_compute_after_comm(loom_ep *ep)
{
    loom_status status = loom_event_record(ep->communicated, ep->comm);

    return status < 0 ? status : loom_stream_wait_event(ep->compute, ep->communicated);
}

/* --- counts -------------------------------------------------------------------------------------------------------------------------- */

/* A rehearsal has no tokens: every expert gets the same. */
static void assume_balance(loom_moe_record *r)
{
    for (int64_t e = 0; e < r->experts; e++) {
        loom_range share = loom_cut(r->tokens * r->top_k, (int)r->experts, (int)e);

        r->host_counts[e] = (int32_t)(share.end - share.begin);
    }
    r->choices = r->tokens * r->top_k;
    for (int64_t i = 0; i < r->experts * r->ep->etp_size; i++)
        r->host_tables[i] = r->host_counts[loom_comm_rank(r->ep->ep) * r->experts_here + i % r->experts_here];
}

/* Where nothing was dropped. */
static void all_chosen(loom_moe_record *r)
{
    for (int64_t e = 0; e < r->experts; e++)
        r->chosen[e] = r->host_counts[e];
}

/* How many choices of this rank each expert has: the distances of their first rows. */
static loom_status read_counts(loom_ep *ep, loom_moe_record *r)
{
    size_t experts = (size_t)r->experts;
    loom_status status;

    if (loom_device_get_kind(ep->device) == LOOM_DRY) {
        assume_balance(r);
        all_chosen(r);
        return LOOM_OK;
    }
    LOOM_TRY(loom_stream_copy(ep->compute, r->host_offsets, r->offsets_E, (experts + 1) * sizeof *r->host_offsets));
    LOOM_TRY(loom_stream_wait(ep->compute));
    r->choices = r->host_offsets[experts];
    for (size_t e = 0; e < experts; e++)
        r->host_counts[e] = r->host_offsets[e + 1] - r->host_offsets[e];
    if (r->kept_TK == r->ids_TK)
        all_chosen(r);
    return loom_stream_copy(ep->compute, r->counts_E, r->host_counts, experts * sizeof *r->host_counts);

fail:
    return status;
}

/* counts [ep][local expert] -> tables [etp][ep][local expert] of what comes to this rank and to its etp peers. */
static loom_status exchange_counts(loom_ep *ep, loom_moe_record *r)
{
    int32_t *mine = r->tables + loom_comm_rank(ep->etp) * r->experts;
    size_t experts = (size_t)r->experts;
    loom_status status;

    LOOM_TRY(loom_ep_comm_after_compute(ep));
    LOOM_TRY(loom_all_to_all(ep->ep, r->counts_E, mine, (size_t)r->experts_here, LOOM_I32, ep->comm));
    LOOM_TRY(loom_all_gather(ep->etp, mine, r->tables, experts, LOOM_I32, ep->comm));
    if (loom_device_get_kind(ep->device) == LOOM_DRY)
        return LOOM_OK;
    LOOM_TRY(loom_stream_copy(ep->comm, r->host_tables, r->tables, experts * (size_t)ep->etp_size * sizeof *r->host_tables));
    return loom_stream_wait(ep->comm);

fail:
    return status;
}

void loom_ep_offsets(const size_t *counts, int size, size_t *offsets)
{
    size_t at = 0;

    for (int i = 0; i < size; i++) {
        offsets[i] = at;
        at += counts[i];
    }
}

static size_t sum_of(const int32_t *counts, int64_t count)
{
    size_t sum = 0;

    for (int64_t i = 0; i < count; i++)
        sum += (size_t)counts[i];
    return sum;
}

static void read_tables(loom_ep *ep, loom_moe_record *r)
{
    int64_t here = r->experts_here;

    for (int rank = 0; rank < ep->ep_size; rank++) {
        r->sent[rank] = sum_of(r->host_counts + rank * here, here);
        r->received[rank] = sum_of(r->host_tables + loom_comm_rank(ep->etp) * r->experts + rank * here, here);
    }
    for (int rank = 0; rank < ep->etp_size; rank++)
        r->of_etp[rank] = sum_of(r->host_tables + rank * r->experts, r->experts);
    loom_ep_offsets(r->sent, ep->ep_size, r->sent_at);
    loom_ep_offsets(r->received, ep->ep_size, r->received_at);
    loom_ep_offsets(r->of_etp, ep->etp_size, r->of_etp_at);
    for (int64_t e = 0; e < here; e++) {
        r->host_rows_E1[e + 1] = r->host_rows_E1[e];
        for (int64_t source = 0; source < (int64_t)ep->ep_size * ep->etp_size; source++)
            r->host_rows_E1[e + 1] += r->host_tables[source * here + e];
    }
    r->rows = r->host_rows_E1[here];
}

/* --- places -------------------------------------------------------------------------------------------------------------------------- */

/* Rows lie by (source, local expert); their places among rows by (local expert, source), and who comes to each place. */
static void fill_places(const loom_moe_record *r, int32_t *next, int32_t *places, int32_t *sources)
{
    int64_t blocks = (int64_t)r->ep->ep_size * r->ep->etp_size * r->experts_here;
    int32_t row = 0;

    memcpy(next, r->host_rows_E1, (size_t)r->experts_here * sizeof *next);
    for (int64_t block = 0; block < blocks; block++)
        for (int32_t i = 0; i < r->host_tables[block]; i++, row++) {
            places[row] = next[block % r->experts_here]++;
            sources[places[row]] = row;
        }
}

static loom_status make_places(loom_ep *ep, loom_moe_record *r)
{
    int32_t *host;
    loom_status status;

    if (loom_ep_alone(ep) || arrives_sorted(r))
        return LOOM_OK;
    host = malloc((size_t)(2 * r->rows + r->experts_here) * sizeof *host);
    if (!host)
        return loom_fail(LOOM_E_MEMORY, "no memory to sort %lld rows by expert", (long long)r->rows);
    fill_places(r, host + 2 * r->rows, host, host + r->rows);
    status = loom_stream_copy(ep->compute, r->places.data, host, 2 * (size_t)r->rows * sizeof *host);
    if (status == LOOM_OK)
        status = loom_stream_wait(ep->compute);
    free(host);
    return status;
}

/* to[i] = from[rows[i]] for all rows that are here. */
static loom_status reorder(loom_ep *ep, const loom_moe_record *r, const float *from, const int32_t *rows, float *to)
{
    return ep->kernels->gather_rows(
        ep->kernels, &(loom_gather_rows_args){.y_RD = to, .x_TD = from, .row_R = rows, .rows = r->rows, .hidden = r->hidden}, ep->compute);
}

static const int32_t *places_of(const loom_moe_record *r)
{
    return (const int32_t *)(const void *)r->places.data;
}

int64_t loom_ep_arrived_rows(const loom_ep *ep, const loom_moe_record *r)
{
    return (int64_t)r->of_etp[loom_comm_rank(ep->etp)];
}

static loom_status reserve_rows(loom_ep *ep, loom_moe_record *r)
{
    loom_ep_buffer *const buffer[LOOM_ROWS_BUFFERS] = {
        [LOOM_ROWS_X] = &r->x,           [LOOM_ROWS_WIDE] = &r->wide,           [LOOM_ROWS_ACTIVE] = &r->active,
        [LOOM_ROWS_OUT] = &r->out,       [LOOM_ROWS_PLACES] = &r->places,       [LOOM_ROWS_OF_EXPERT] = &ep->of_expert,
        [LOOM_ROWS_LEAVING] = &ep->leaving, [LOOM_ROWS_ARRIVED] = &ep->arrived, [LOOM_ROWS_GATHERED] = &ep->gathered,
        [LOOM_ROWS_PARTIAL] = &ep->partial};
    int64_t count[LOOM_ROWS_BUFFERS];
    loom_status status;

    loom_rows_counts(&r->shape, r->choices, loom_ep_arrived_rows(ep, r), r->rows, count);
    for (int i = 0; i < LOOM_ROWS_BUFFERS; i++)
        if ((status = loom_ep_reserve(ep, buffer[i], count[i], r->balanced[i])) < 0)
            return status;
    return LOOM_OK;
}

loom_status loom_ep_count(loom_ep *ep, loom_moe_record *r)
{
    loom_kernels *k = ep->kernels;
    loom_status status;

    LOOM_TRY(k->sort_assignments(k,
                                 &(loom_sort_assignments_args){.order_R = r->order_R,
                                                               .position_A = r->rows_TK,
                                                               .offset_E1 = r->offsets_E,
                                                               .expert_A = r->kept_TK,
                                                               .assignments = r->tokens * r->top_k,
                                                               .experts = r->experts},
                                 ep->compute));
    return read_counts(ep, r);

fail:
    return status;
}

loom_status loom_ep_plan(loom_ep *ep, loom_moe_record *r)
{
    loom_status status;

    LOOM_TRY(exchange_counts(ep, r));
    read_tables(ep, r);
    LOOM_TRY(loom_stream_copy(ep->compute, r->rows_E1, r->host_rows_E1, (size_t)(r->experts_here + 1) * sizeof *r->rows_E1));
    LOOM_TRY(reserve_rows(ep, r));
    return make_places(ep, r);

fail:
    return status;
}

/* --- rows ------------------------------------------------------------------------------------------------------------------------------ */

/* Rows of `width` elements instead of elements. */
static loom_status move_rows(loom_comm *comm, loom_dtype dtype, int64_t width, const void *from, loom_ep_rows send, void *to, loom_ep_rows receive,
                             loom_stream *stream)
{
    int size = loom_comm_size(comm);
    size_t *scaled = malloc(4 * (size_t)size * sizeof *scaled);
    loom_status status;

    if (!scaled)
        return loom_fail(LOOM_E_MEMORY, "no memory for the counts of %d ranks", size);
    for (int i = 0; i < size; i++) {
        scaled[i] = send.count[i] * (size_t)width;
        scaled[size + i] = send.at[i] * (size_t)width;
        scaled[2 * size + i] = receive.count[i] * (size_t)width;
        scaled[3 * size + i] = receive.at[i] * (size_t)width;
    }
    status = loom_all_to_all_v(comm, from, scaled, scaled + size, to, scaled + 2 * size, scaled + 3 * size, dtype, stream);
    free(scaled);
    return status;
}

/* This rank's share of `all`, `step` of it further for each rank: its rows once for all, or parts of them side by side. The caller frees own->count. */
static loom_status own_rows(loom_comm *comm, loom_ep_rows all, int step, loom_ep_rows *own)
{
    size_t size = (size_t)loom_comm_size(comm), *same = malloc(2 * size * sizeof *same), rows = all.count[loom_comm_rank(comm)];

    *own = (loom_ep_rows){0};
    if (!same)
        return loom_fail(LOOM_E_MEMORY, "no memory for the counts of %zu ranks", size);
    for (size_t i = 0; i < size; i++) {
        same[i] = rows;
        same[size + i] = i * (size_t)step * rows;
    }
    *own = (loom_ep_rows){same, same + size};
    return LOOM_OK;
}

loom_status loom_ep_gather(loom_ep *ep, loom_comm *comm, loom_dtype dtype, int64_t width, const void *from, loom_ep_rows all, void *to)
{
    loom_ep_rows own;
    loom_status status = own_rows(comm, all, 0, &own);

    if (status < 0)
        return status;
    status = move_rows(comm, dtype, width, from, own, to, all, ep->comm);
    free((void *)own.count);
    return status;
}

loom_status loom_ep_scatter(loom_ep *ep, loom_comm *comm, int64_t width, const float *from, loom_ep_rows all, float *to)
{
    loom_ep_rows own;
    loom_status status = own_rows(comm, all, 1, &own);

    if (status < 0)
        return status;
    status = move_rows(comm, LOOM_F32, width, from, all, to, own, ep->comm);
    free((void *)own.count);
    return status;
}

loom_status loom_ep_sum_parts(loom_ep *ep, int parts, int64_t count, float *to)
{
    loom_kernels *k = ep->kernels;
    const float *sum = ep->partial.data;
    loom_status status;

    for (int part = 1; part < parts; part++) {
        LOOM_TRY(k->add(k, &(loom_add_args){.y = to, .a = sum, .b = ep->partial.data + part * count, .count = count}, ep->compute));
        sum = to;
    }
    return LOOM_OK;

fail:
    return status;
}

/* Where rows lie by source rank, those of all etp ranks. */
float *loom_ep_by_source(const loom_ep *ep)
{
    return ep->etp_size > 1 ? ep->gathered.data : ep->arrived.data;
}

loom_status loom_ep_send_out(loom_ep *ep, loom_moe_record *r, float *to_RD)
{
    float *landing = arrives_sorted(r) ? to_RD : loom_ep_by_source(ep), *first = ep->etp_size > 1 ? ep->arrived.data : landing;
    loom_status status;

    if (loom_ep_alone(ep))
        return LOOM_OK;
    LOOM_TRY(loom_ep_comm_after_compute(ep));
    LOOM_TRY(move_rows(ep->ep, LOOM_F32, r->hidden, ep->leaving.data, (loom_ep_rows){r->sent, r->sent_at}, first,
                       (loom_ep_rows){r->received, r->received_at}, ep->comm));
    if (ep->etp_size > 1)
        LOOM_TRY(loom_ep_gather(ep, ep->etp, LOOM_F32, r->hidden, first, (loom_ep_rows){r->of_etp, r->of_etp_at}, landing));
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_ep_take_in(loom_ep *ep, loom_moe_record *r, float *to_RD)
{
    loom_status status;

    if (loom_ep_alone(ep))
        return LOOM_OK;
    LOOM_TRY(loom_ep_compute_after_comm(ep));
    return arrives_sorted(r) ? LOOM_OK : reorder(ep, r, loom_ep_by_source(ep), places_of(r) + r->rows, to_RD);

fail:
    return status;
}

static loom_status sum_over_etp(loom_ep *ep, loom_moe_record *r, const float *from)
{
    loom_status status;

    LOOM_TRY(loom_ep_comm_after_compute(ep));
    LOOM_TRY(loom_ep_scatter(ep, ep->etp, r->hidden, from, (loom_ep_rows){r->of_etp, r->of_etp_at}, ep->partial.data));
    LOOM_TRY(loom_ep_compute_after_comm(ep));
    return loom_ep_sum_parts(ep, ep->etp_size, loom_ep_arrived_rows(ep, r) * r->hidden, ep->arrived.data);

fail:
    return status;
}

loom_status loom_ep_send_back(loom_ep *ep, loom_moe_record *r, const float *from_RD, float *to)
{
    loom_status status;

    if (loom_ep_alone(ep))
        return LOOM_OK;
    if (!arrives_sorted(r)) {
        LOOM_TRY(reorder(ep, r, from_RD, places_of(r), loom_ep_by_source(ep)));
        from_RD = loom_ep_by_source(ep);
    }
    if (ep->etp_size > 1) {
        LOOM_TRY(sum_over_etp(ep, r, from_RD));
        from_RD = ep->arrived.data;
    }
    LOOM_TRY(loom_ep_comm_after_compute(ep));
    return move_rows(ep->ep, LOOM_F32, r->hidden, from_RD, (loom_ep_rows){r->received, r->received_at}, to, (loom_ep_rows){r->sent, r->sent_at}, ep->comm);

fail:
    return status;
}

loom_status loom_ep_wait_back(loom_ep *ep)
{
    return loom_ep_alone(ep) ? LOOM_OK : loom_ep_compute_after_comm(ep);
}
