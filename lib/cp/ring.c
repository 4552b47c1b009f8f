/* Blocks by ring. Step j has the keys and values of the rank j places before; while they are used they are already on their way to the next. */
#include "cp/cp.h"

#include "core/try.h"

enum { TAG_KV, TAG_DKV };

static int neighbour(const loom_cp *cp, int places)
{
    return (cp->outer_rank + places + cp->n_outer) % cp->n_outer;
}

/* The block that is here in step j. */
static int block_of_step(const loom_cp *cp, int j)
{
    return neighbour(cp, -j);
}

/* Everybody hands a block on. Starts when what `compute` has now is done: the block is whole, and nobody reads the place of the next any more. */
static loom_status hop(loom_cp *cp, const float *send, float *recv, uint64_t tag, loom_event *arrived)
{
    size_t count = (size_t)loom_cp_kv_count(cp);
    loom_status status;

    LOOM_TRY(loom_event_record(cp->computed, cp->compute));
    LOOM_TRY(loom_stream_wait_event(cp->hops, cp->computed));
    LOOM_TRY(loom_group_begin(cp->outer));
    status = loom_send(cp->outer, send, count, LOOM_F32, neighbour(cp, 1), tag, cp->hops);
    if (status == LOOM_OK)
        status = loom_recv(cp->outer, recv, count, LOOM_F32, neighbour(cp, -1), tag, cp->hops);
    loom_status ended = loom_group_end(cp->outer, cp->hops); /* a group that was begun ends, whatever went wrong inside */
    LOOM_TRY(status < 0 ? status : ended);
    return loom_event_record(arrived, cp->hops);

fail:
    return status;
}

static loom_status hop_kv(loom_cp *cp, int j)
{
    return j + 1 < cp->n_outer ? hop(cp, cp->kv[j % 2], cp->kv[(j + 1) % 2], TAG_KV, cp->kv_arrived) : LOOM_OK;
}

/* --- forward ------------------------------------------------------------------------------------------------------------------------------- */

static loom_status merge(loom_cp *cp, const loom_attention_args *a)
{
    return cp->kernels->attention_merge(cp->kernels,
                                        &(loom_attention_merge_args){.o_BSHK = a->o_BSHK,
                                                                     .lse_BHS = a->lse_BHS,
                                                                     .o2_BSHK = cp->o_part,
                                                                     .lse2_BHS = cp->lse_part,
                                                                     .o_at = a->o_at,
                                                                     .batch = a->batch,
                                                                     .heads = a->heads,
                                                                     .seq = a->q_seq,
                                                                     .head_dim = a->head_dim},
                                        cp->compute);
}

static loom_status step(loom_cp *cp, const loom_attention_args *args, int j)
{
    loom_attention_args part = loom_cp_with_keys(cp, args, cp->kv[j % 2], block_of_step(cp, j));
    loom_status status;

    part.o_BSHK = cp->o_part;
    part.lse_BHS = cp->lse_part;
    part.o_at = (loom_bshk){0};
    LOOM_TRY(loom_stream_wait_event(cp->compute, cp->kv_arrived));
    LOOM_TRY(hop_kv(cp, j));
    LOOM_TRY(cp->kernels->attention(cp->kernels, &part, cp->compute));
    return merge(cp, args);

fail:
    return status;
}

loom_status loom_cp_ring(loom_cp *cp, const loom_attention_args *args)
{
    loom_attention_args own = loom_cp_with_own_keys(cp, args);
    loom_status status;

    LOOM_TRY(loom_cp_pack_kv(cp, args, cp->kv[0]));
    LOOM_TRY(hop_kv(cp, 0));
    LOOM_TRY(cp->kernels->attention(cp->kernels, &own, cp->compute));
    for (int j = 1; j < cp->n_outer; j++)
        LOOM_TRY(step(cp, args, j));
    return LOOM_OK;

fail:
    return status;
}

/* --- backward ------------------------------------------------------------------------------------------------------------------------------ */

/* Gradients of a foreign block: this rank's part is computed while the sum of those before it is on its way here. */
static loom_status step_backward(loom_cp *cp, const loom_attention_backward_args *args, int j)
{
    loom_attention_backward_args part = *args;
    float *sum = cp->dkv[j % 2], *mine = j == 1 ? sum : cp->dkv_part; /* the first to see a block begins its sum */
    int64_t count = loom_cp_kv_count(cp);
    loom_status status;

    part.forward = loom_cp_with_keys(cp, &args->forward, cp->kv[j % 2], block_of_step(cp, j));
    part.dk_BSGK = mine;
    part.dv_BSGK = mine + args->forward.kv_heads * args->forward.head_dim;
    part.dk_at = part.dv_at = (loom_bshk){.token = loom_cp_kv_row(cp)};
    part.accumulate_dq = true;
    part.accumulate_dkv = false;
    LOOM_TRY(loom_stream_wait_event(cp->compute, cp->kv_arrived));
    LOOM_TRY(hop_kv(cp, j));
    LOOM_TRY(cp->kernels->attention_backward(cp->kernels, &part, cp->compute));
    if (j > 1) {
        LOOM_TRY(loom_stream_wait_event(cp->compute, cp->dkv_arrived));
        LOOM_TRY(cp->kernels->add(cp->kernels, &(loom_add_args){.y = sum, .a = sum, .b = mine, .count = count}, cp->compute));
    }
    return hop(cp, sum, cp->dkv[(j + 1) % 2], TAG_DKV, cp->dkv_arrived);

fail:
    return status;
}

loom_status loom_cp_ring_backward(loom_cp *cp, const loom_attention_backward_args *args)
{
    loom_attention_backward_args own = *args;
    loom_status status;

    own.forward = loom_cp_with_own_keys(cp, &args->forward);
    LOOM_TRY(loom_cp_pack_kv(cp, &args->forward, cp->kv[0]));
    LOOM_TRY(hop_kv(cp, 0));
    LOOM_TRY(cp->kernels->attention_backward(cp->kernels, &own, cp->compute));
    for (int j = 1; j < cp->n_outer; j++)
        LOOM_TRY(step_backward(cp, args, j));
    LOOM_TRY(loom_stream_wait_event(cp->compute, cp->dkv_arrived));
    return loom_cp_unpack_dkv(cp, args, cp->dkv[cp->n_outer % 2], true); /* home again */

fail:
    return status;
}
