/* Tokens on their way to their experts and back.
 *
 * Rows leave sorted by expert, so those for one ep rank lie together. They arrive by source rank; with etp, the ranks that share the experts
 * then give each other what they got, so that each has all rows for its columns. Sorted by local expert they are ready for the products. The
 * way back is the same in reverse, with the parts of the sum that the etp ranks computed added in rank order. */
#include "ep/ep.h"

#include "core/try.h"

#include <stdlib.h>

bool loom_ep_alone(const loom_ep *ep)
{
    return ep->ep_size == 1 && ep->etp_size == 1;
}

/* Rows of one local expert need no sorting. */
static bool arrives_sorted(const loom_moe_record *r)
{
    return r->experts_here == 1;
}

static loom_status comm_after_compute(loom_ep *ep)
{
    loom_status status = loom_event_record(ep->computed, ep->compute);

    return status < 0 ? status : loom_stream_wait_event(ep->comm, ep->computed);
}

static loom_status compute_after_comm(loom_ep *ep)
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

/* How many choices of this rank each expert has: the distances of their first rows. */
static loom_status read_counts(loom_ep *ep, loom_moe_record *r)
{
    size_t experts = (size_t)r->experts;
    loom_status status;

    if (loom_device_get_kind(ep->device) == LOOM_DRY) {
        assume_balance(r);
        return LOOM_OK;
    }
    LOOM_TRY(loom_stream_copy(ep->compute, r->host_offsets, r->offsets_E, (experts + 1) * sizeof *r->host_offsets));
    LOOM_TRY(loom_stream_wait(ep->compute));
    r->choices = r->host_offsets[experts];
    for (size_t e = 0; e < experts; e++)
        r->host_counts[e] = r->host_offsets[e + 1] - r->host_offsets[e];
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

    LOOM_TRY(comm_after_compute(ep));
    LOOM_TRY(loom_all_to_all(ep->ep, r->counts_E, mine, (size_t)r->experts_here, LOOM_I32, ep->comm));
    LOOM_TRY(loom_all_gather(ep->etp, mine, r->tables, experts, LOOM_I32, ep->comm));
    if (loom_device_get_kind(ep->device) == LOOM_DRY)
        return LOOM_OK;
    LOOM_TRY(loom_stream_copy(ep->comm, r->host_tables, r->tables, experts * (size_t)ep->etp_size * sizeof *r->host_tables));
    return loom_stream_wait(ep->comm);

fail:
    return status;
}

static void offsets_of(const size_t *counts, int size, size_t *offsets)
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
    offsets_of(r->sent, ep->ep_size, r->sent_at);
    offsets_of(r->received, ep->ep_size, r->received_at);
    offsets_of(r->of_etp, ep->etp_size, r->of_etp_at);
    r->rows = 0;
    for (int64_t e = 0; e < here; e++) {
        r->expert_rows[e] = 0;
        for (int64_t source = 0; source < (int64_t)ep->ep_size * ep->etp_size; source++)
            r->expert_rows[e] += r->host_tables[source * here + e];
        r->rows += r->expert_rows[e];
    }
}

/* --- places -------------------------------------------------------------------------------------------------------------------------- */

/* Rows lie by (source, local expert); their places among rows by (local expert, source), and who comes to each place. */
static void fill_places(const loom_moe_record *r, int32_t *next, int32_t *places, int32_t *sources)
{
    int64_t blocks = (int64_t)r->ep->ep_size * r->ep->etp_size * r->experts_here;
    int32_t begin = 0, row = 0;

    for (int64_t e = 0; e < r->experts_here; e++) {
        next[e] = begin;
        begin += (int32_t)r->expert_rows[e];
    }
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

static int64_t arrived_rows(const loom_ep *ep, const loom_moe_record *r)
{
    return (int64_t)r->of_etp[loom_comm_rank(ep->etp)];
}

static loom_status reserve_rows(loom_ep *ep, loom_moe_record *r)
{
    loom_ep_buffer *const buffer[LOOM_ROWS_BUFFERS] = {
        [LOOM_ROWS_X] = &r->x,                   [LOOM_ROWS_WIDE] = &r->wide,         [LOOM_ROWS_ACTIVE] = &r->active,
        [LOOM_ROWS_PLACES] = &r->places,         [LOOM_ROWS_OF_EXPERT] = &ep->of_expert, [LOOM_ROWS_LEAVING] = &ep->leaving,
        [LOOM_ROWS_ARRIVED] = &ep->arrived,      [LOOM_ROWS_GATHERED] = &ep->gathered, [LOOM_ROWS_PARTIAL] = &ep->partial};
    int64_t count[LOOM_ROWS_BUFFERS];
    loom_status status;

    loom_rows_counts(&r->shape, r->choices, arrived_rows(ep, r), r->rows, count);
    for (int i = 0; i < LOOM_ROWS_BUFFERS; i++)
        if ((status = loom_ep_reserve(ep, buffer[i], count[i], r->balanced[i])) < 0)
            return status;
    return LOOM_OK;
}

loom_status loom_ep_plan(loom_ep *ep, loom_moe_record *r)
{
    loom_kernels *k = ep->kernels;
    loom_status status;

    LOOM_TRY(k->sort_assignments(k,
                                 &(loom_sort_assignments_args){.order_R = r->order_R,
                                                               .position_A = r->rows_TK,
                                                               .offset_E1 = r->offsets_E,
                                                               .expert_A = r->ids_TK,
                                                               .assignments = r->tokens * r->top_k,
                                                               .experts = r->experts},
                                 ep->compute));
    LOOM_TRY(read_counts(ep, r));
    LOOM_TRY(exchange_counts(ep, r));
    read_tables(ep, r);
    LOOM_TRY(reserve_rows(ep, r));
    return make_places(ep, r);

fail:
    return status;
}

/* --- rows ------------------------------------------------------------------------------------------------------------------------------ */

/* One side of an exchange: rows for or from each rank, and where they begin. */
typedef struct rows_of_ranks {
    const size_t *count, *at;
} rows_of_ranks;

/* Rows of `hidden` instead of elements. */
static loom_status move_rows(loom_comm *comm, int64_t hidden, const float *from, rows_of_ranks send, float *to, rows_of_ranks receive,
                             loom_stream *stream)
{
    int size = loom_comm_size(comm);
    size_t *scaled = malloc(4 * (size_t)size * sizeof *scaled);
    loom_status status;

    if (!scaled)
        return loom_fail(LOOM_E_MEMORY, "no memory for the counts of %d ranks", size);
    for (int i = 0; i < size; i++) {
        scaled[i] = send.count[i] * (size_t)hidden;
        scaled[size + i] = send.at[i] * (size_t)hidden;
        scaled[2 * size + i] = receive.count[i] * (size_t)hidden;
        scaled[3 * size + i] = receive.at[i] * (size_t)hidden;
    }
    status = loom_all_to_all_v(comm, from, scaled, scaled + size, to, scaled + 2 * size, scaled + 3 * size, LOOM_F32, stream);
    free(scaled);
    return status;
}

/* The same `rows` for every rank of etp: from one place (gathering), or to places one behind the other. */
static loom_status over_etp(loom_ep *ep, const loom_moe_record *r, bool gather, const float *from, float *to)
{
    size_t rows = (size_t)arrived_rows(ep, r);
    size_t *same = malloc(2 * (size_t)ep->etp_size * sizeof *same);
    rows_of_ranks own = {same, same ? same + ep->etp_size : NULL}, all = {r->of_etp, r->of_etp_at};
    loom_status status;

    if (!same)
        return loom_fail(LOOM_E_MEMORY, "no memory for the counts of %d ranks", ep->etp_size);
    for (int i = 0; i < ep->etp_size; i++) {
        same[i] = rows;
        same[ep->etp_size + i] = gather ? 0 : (size_t)i * rows;
    }
    status = gather ? move_rows(ep->etp, r->hidden, from, own, to, all, ep->comm) : move_rows(ep->etp, r->hidden, from, all, to, own, ep->comm);
    free(same);
    return status;
}

/* Where rows lie by source rank, those of all etp ranks. */
static float *by_source(const loom_ep *ep)
{
    return ep->etp_size > 1 ? ep->gathered.data : ep->arrived.data;
}

loom_status loom_ep_send_out(loom_ep *ep, loom_moe_record *r, float *to_RD)
{
    float *landing = arrives_sorted(r) ? to_RD : by_source(ep), *first = ep->etp_size > 1 ? ep->arrived.data : landing;
    loom_status status;

    if (loom_ep_alone(ep))
        return LOOM_OK;
    LOOM_TRY(comm_after_compute(ep));
    LOOM_TRY(move_rows(ep->ep, r->hidden, ep->leaving.data, (rows_of_ranks){r->sent, r->sent_at}, first,
                       (rows_of_ranks){r->received, r->received_at}, ep->comm));
    if (ep->etp_size > 1)
        LOOM_TRY(over_etp(ep, r, true, first, landing));
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_ep_take_in(loom_ep *ep, loom_moe_record *r, float *to_RD)
{
    loom_status status;

    if (loom_ep_alone(ep))
        return LOOM_OK;
    LOOM_TRY(compute_after_comm(ep));
    return arrives_sorted(r) ? LOOM_OK : reorder(ep, r, by_source(ep), places_of(r) + r->rows, to_RD);

fail:
    return status;
}

/* arrived = the parts of every etp rank, added in rank order. */
static loom_status sum_parts(loom_ep *ep, const loom_moe_record *r)
{
    loom_kernels *k = ep->kernels;
    int64_t count = arrived_rows(ep, r) * r->hidden;
    const float *sum = ep->partial.data;
    loom_status status;

    for (int part = 1; part < ep->etp_size; part++) {
        LOOM_TRY(k->add(k, &(loom_add_args){.y = ep->arrived.data, .a = sum, .b = ep->partial.data + part * count, .count = count}, ep->compute));
        sum = ep->arrived.data;
    }
    return LOOM_OK;

fail:
    return status;
}

static loom_status sum_over_etp(loom_ep *ep, loom_moe_record *r, const float *from)
{
    loom_status status;

    LOOM_TRY(comm_after_compute(ep));
    LOOM_TRY(over_etp(ep, r, false, from, ep->partial.data));
    LOOM_TRY(compute_after_comm(ep));
    return sum_parts(ep, r);

fail:
    return status;
}

loom_status loom_ep_send_back(loom_ep *ep, loom_moe_record *r, const float *from_RD, float *to)
{
    loom_status status;

    if (loom_ep_alone(ep))
        return LOOM_OK;
    if (!arrives_sorted(r)) {
        LOOM_TRY(reorder(ep, r, from_RD, places_of(r), by_source(ep)));
        from_RD = by_source(ep);
    }
    if (ep->etp_size > 1) {
        LOOM_TRY(sum_over_etp(ep, r, from_RD));
        from_RD = ep->arrived.data;
    }
    LOOM_TRY(comm_after_compute(ep));
    return move_rows(ep->ep, r->hidden, from_RD, (rows_of_ranks){r->received, r->received_at}, to, (rows_of_ranks){r->sent, r->sent_at}, ep->comm);

fail:
    return status;
}

loom_status loom_ep_wait_back(loom_ep *ep)
{
    return loom_ep_alone(ep) ? LOOM_OK : compute_after_comm(ep);
}
