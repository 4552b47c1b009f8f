/* Blocks by gathering all keys and values, and summing their gradients back to where they belong. Memory grows with the whole sequence, in return
 * for one large kernel and one large message. */
#include "cp/cp.h"

#include "core/try.h"

/* All keys, sequence after sequence, each in rank order: positions say where they belong. */
static loom_status gather(loom_cp *cp, const loom_attention_args *args, loom_attention_args *whole)
{
    size_t count = (size_t)loom_cp_kv_count(cp);
    loom_status status;

    LOOM_TRY(loom_cp_pack_kv(cp, args, cp->kv_mine));
    LOOM_TRY(loom_all_gather(cp->all, cp->kv_mine, cp->kv_landed, count, LOOM_F32, cp->compute));
    if (cp->kv_all != cp->kv_landed)
        LOOM_TRY(loom_cp_swap(cp, cp->kv_all, cp->kv_landed, cp->size, cp->batch, cp->local_seq * loom_cp_kv_row(cp)));
    *whole = loom_cp_with_keys(cp, args, cp->kv_all, 0);
    whole->k_seq = cp->seq;
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_cp_gathered(loom_cp *cp, const loom_attention_args *args)
{
    loom_attention_args whole;
    loom_status status = gather(cp, args, &whole);

    return status < 0 ? status : cp->kernels->attention(cp->kernels, &whole, cp->compute);
}

loom_status loom_cp_gathered_backward(loom_cp *cp, const loom_attention_backward_args *args)
{
    loom_attention_backward_args whole = *args;
    float *parts = cp->dkv_all;
    loom_status status;

    LOOM_TRY(gather(cp, &args->forward, &whole.forward));
    whole.dk_BSGK = cp->dkv_all;
    whole.dv_BSGK = cp->dkv_all + args->forward.kv_heads * args->forward.head_dim;
    whole.dk_at = whole.dv_at = (loom_bshk){.token = loom_cp_kv_row(cp)};
    whole.accumulate_dkv = false;
    LOOM_TRY(cp->kernels->attention_backward(cp->kernels, &whole, cp->compute));
    if (cp->kv_all != cp->kv_landed) {
        parts = cp->kv_landed;
        LOOM_TRY(loom_cp_swap(cp, parts, cp->dkv_all, cp->batch, cp->size, cp->local_seq * loom_cp_kv_row(cp)));
    }
    LOOM_TRY(loom_reduce_scatter(cp->all, parts, cp->kv_mine, (size_t)loom_cp_kv_count(cp), LOOM_F32, LOOM_SUM, cp->compute));
    return loom_cp_unpack_dkv(cp, args, cp->kv_mine, args->accumulate_dkv);

fail:
    return status;
}
