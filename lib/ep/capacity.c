/* The drop rule. An expert has room for ceil(capacity_factor * tokens * top_k / experts) choices of each sequence, and serves them in the order of
 * the sequence, a token's best choice first: what finds no room is dropped. Which ones, no layout changes; and since only earlier tokens can take a
 * token's place, nothing looks ahead. Choices are a few bytes a token, so every rank that has a part of a sequence gets those of all. */
#include "ep/ep.h"

#include "core/try.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of an expert, for a sequence. */
static int64_t room_of_expert(const loom_ep *ep, const loom_moe *moe)
{
    double share = ep->config.capacity_factor * (double)(ep->shape.whole * moe->top_k) / (double)moe->experts;

    return (int64_t)ceil(share - 1e-9 * share); /* 1.1 x 10 of which are 11, not 12 */
}

static int64_t most_tokens(const loom_ep *ep)
{
    int64_t rows = ep->shape.sequences * ep->shape.seq, tp = loom_comm_size(ep->mesh->axis[LOOM_AXIS_TP]);

    return (rows + tp - 1) / tp;
}

static loom_range rows_of_tp_rank(const loom_ep *ep, int rank)
{
    return loom_cut(ep->shape.sequences * ep->shape.seq, loom_comm_size(ep->mesh->axis[LOOM_AXIS_TP]), rank);
}

int64_t loom_ep_choices_count(const loom_ep *ep, int64_t top_k)
{
    int tp = loom_comm_size(ep->mesh->axis[LOOM_AXIS_TP]), cp = loom_comm_size(ep->mesh->axis[LOOM_AXIS_CP]);

    return (int64_t)cp * tp * most_tokens(ep) * top_k;
}

/* ids of this rank -> all [cp][tp][most tokens, top_k] of the micro-batch, on the host. */
static loom_status gather_choices(loom_ep *ep, loom_moe_record *r)
{
    loom_comm *tp = ep->mesh->axis[LOOM_AXIS_TP], *cp = ep->mesh->axis[LOOM_AXIS_CP];
    size_t own = (size_t)(most_tokens(ep) * r->top_k), of_cp = own * (size_t)loom_comm_size(tp), all = of_cp * (size_t)loom_comm_size(cp);
    int32_t *part = r->all_choices + (size_t)loom_comm_rank(cp) * of_cp, *mine = part + (size_t)loom_comm_rank(tp) * own;
    loom_status status;

    LOOM_TRY(loom_stream_copy(ep->compute, mine, r->ids_TK, (size_t)(r->tokens * r->top_k) * sizeof *mine));
    LOOM_TRY(loom_all_gather(tp, mine, part, own, LOOM_I32, ep->compute));
    LOOM_TRY(loom_all_gather(cp, part, r->all_choices, of_cp, LOOM_I32, ep->compute));
    LOOM_TRY(loom_stream_copy(ep->compute, r->host_choices, r->all_choices, all * sizeof *r->host_choices));
    return loom_stream_wait(ep->compute);

fail:
    return status;
}

/* Where the choices of row `row` of cp rank `cp` are. */
static int32_t *choices_of_row(const loom_ep *ep, const loom_moe_record *r, int cp, int64_t row)
{
    int tp = loom_comm_size(ep->mesh->axis[LOOM_AXIS_TP]), rank = 0;

    while (row >= rows_of_tp_rank(ep, rank).end)
        rank++;
    return r->host_choices + (((int64_t)cp * tp + rank) * most_tokens(ep) + row - rows_of_tp_rank(ep, rank).begin) * r->top_k;
}

/* -1 in place of what finds no room in one sequence. */
static void serve_sequence(const loom_ep *ep, loom_moe_record *r, int64_t sequence, int64_t *room)
{
    const loom_ep_shape *shape = &ep->shape;

    for (int64_t p = 0; p < shape->whole; p++) {
        int64_t place = ep->place_of_position[p];
        int32_t *choice = choices_of_row(ep, r, (int)(place / shape->seq), sequence * shape->seq + place % shape->seq);

        for (int64_t j = 0; j < r->top_k; j++)
            if (choice[j] >= 0 && room[choice[j]]-- <= 0)
                choice[j] = -1;
    }
}

static void serve(const loom_ep *ep, const loom_moe *moe, loom_moe_record *r)
{
    int64_t room[LOOM_ROUTER_EXPERTS_MAX], each = room_of_expert(ep, moe);

    for (int64_t b = 0; b < ep->shape.sequences; b++) {
        for (int64_t e = 0; e < moe->experts; e++)
            room[e] = each;
        serve_sequence(ep, r, b, room);
    }
}

/* What this rank's tokens chose, before anything is dropped. */
static void count_choices(loom_moe_record *r, const int32_t *chosen)
{
    memset(r->chosen, 0, (size_t)r->experts * sizeof *r->chosen);
    for (int64_t i = 0; i < r->tokens * r->top_k; i++)
        if (chosen[i] >= 0)
            r->chosen[chosen[i]]++;
}

loom_status loom_ep_drop(loom_ep *ep, const loom_moe *moe, loom_moe_record *r)
{
    int tp_rank = loom_comm_rank(ep->mesh->axis[LOOM_AXIS_TP]), cp_rank = loom_comm_rank(ep->mesh->axis[LOOM_AXIS_CP]);
    loom_range own = rows_of_tp_rank(ep, tp_rank);
    const int32_t *mine;
    loom_status status;

    if (r->tokens != own.end - own.begin || r->first != own.begin)
        return loom_fail(LOOM_E_INVALID, "experts: %lld tokens from number %lld; with a capacity factor tp rank %d routes %lld from %lld of the "
                         "%lld x %lld that loom_ep_reshape() said", (long long)r->tokens, (long long)r->first, tp_rank,
                         (long long)(own.end - own.begin), (long long)own.begin, (long long)ep->shape.sequences, (long long)ep->shape.seq);
    LOOM_TRY(gather_choices(ep, r));
    if (loom_device_get_kind(ep->device) == LOOM_DRY)
        return LOOM_OK;
    mine = r->tokens ? choices_of_row(ep, r, cp_rank, own.begin) : r->host_choices;
    count_choices(r, mine);
    serve(ep, moe, r);
    LOOM_TRY(loom_stream_copy(ep->compute, r->kept_TK, mine, (size_t)(r->tokens * r->top_k) * sizeof *mine));
    return loom_stream_wait(ep->compute);

fail:
    return status;
}
