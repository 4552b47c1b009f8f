/* An attention over all ranks: exchange in, blocks, exchange out. Also what the blocks have in common: rows and masks. */
#include "cp/cp.h"

#include "core/try.h"

/* --- rows -------------------------------------------------------------------------------------------------------------------------------- */

loom_status loom_cp_copy_rows(loom_cp *cp, float *to, int64_t to_row, const float *from, int64_t from_row, int64_t cols, int64_t count, bool accumulate)
{
    return cp->kernels->copy(
        cp->kernels,
        &(loom_copy_args){.y = to, .x = from, .rows = count, .cols = cols, .y_row = to_row, .x_row = from_row, .accumulate = accumulate}, cp->compute);
}

loom_status loom_cp_swap(loom_cp *cp, float *to, const float *from, int64_t parts, int64_t batch, int64_t n)
{
    return cp->kernels->copy(
        cp->kernels,
        &(loom_copy_args){.y = to, .x = from, .planes = parts, .rows = batch, .cols = n, .y_plane = n, .y_row = parts * n, .x_plane = batch * n, .x_row = n},
        cp->compute);
}

static int64_t row_of(loom_bshk at, int64_t heads, int64_t head_dim)
{
    return at.token ? at.token : heads * head_dim;
}

loom_status loom_cp_pack_kv(loom_cp *cp, const loom_attention_args *a, float *kv)
{
    int64_t width = a->kv_heads * a->head_dim, tokens = a->batch * a->k_seq;
    int64_t k_row = row_of(a->k_at, a->kv_heads, a->head_dim), v_row = row_of(a->v_at, a->kv_heads, a->head_dim);
    loom_status status;

    if (a->v_BSGK == a->k_BSGK + width && k_row == v_row) /* a fused q,k,v buffer has them so */
        return loom_cp_copy_rows(cp, kv, 2 * width, a->k_BSGK, k_row, 2 * width, tokens, false);
    LOOM_TRY(loom_cp_copy_rows(cp, kv, 2 * width, a->k_BSGK, k_row, width, tokens, false));
    return loom_cp_copy_rows(cp, kv + width, 2 * width, a->v_BSGK, v_row, width, tokens, false);

fail:
    return status;
}

loom_status loom_cp_unpack_dkv(loom_cp *cp, const loom_attention_backward_args *args, const float *dkv, bool accumulate)
{
    const loom_attention_args *f = &args->forward;
    int64_t width = f->kv_heads * f->head_dim, tokens = f->batch * f->k_seq;
    loom_status status;

    LOOM_TRY(loom_cp_copy_rows(cp, args->dk_BSGK, row_of(args->dk_at, f->kv_heads, f->head_dim), dkv, 2 * width, width, tokens, accumulate));
    return loom_cp_copy_rows(cp, args->dv_BSGK, row_of(args->dv_at, f->kv_heads, f->head_dim), dkv + width, 2 * width, width, tokens, accumulate);

fail:
    return status;
}

/* --- masks ------------------------------------------------------------------------------------------------------------------------------- */

static const int32_t *documents_of(const loom_cp *cp, int block)
{
    return cp->documents + block * cp->batch * cp->group_seq;
}

loom_attention_args loom_cp_with_own_keys(const loom_cp *cp, const loom_attention_args *args)
{
    loom_attention_args a = *args;

    a.mask.q_positions_S = a.mask.k_positions_S = cp->positions_S + cp->outer_rank * cp->group_seq;
    a.mask.k_documents_BS = a.mask.q_documents_BS;
    return a;
}

loom_attention_args loom_cp_with_keys(const loom_cp *cp, const loom_attention_args *args, const float *kv, int block)
{
    loom_attention_args a = loom_cp_with_own_keys(cp, args);

    a.k_BSGK = kv;
    a.v_BSGK = kv + a.kv_heads * a.head_dim;
    a.k_at = a.v_at = (loom_bshk){.token = loom_cp_kv_row(cp)};
    a.mask.k_positions_S = cp->positions_S + block * cp->group_seq;
    if (a.mask.q_documents_BS)
        a.mask.k_documents_BS = documents_of(cp, block);
    return a;
}

/* The ids of all tokens, laid out as the blocks of keys are: [block][batch, tokens of the block]. A few bytes a token: every call gathers them. */
static loom_status gather_documents(loom_cp *cp, const int32_t *ids)
{
    int in_block = cp->opened.kind == LOOM_CP_ALLGATHER ? cp->size : cp->n_inner;
    int64_t n = cp->local_seq;
    loom_status status;

    LOOM_TRY(loom_all_gather(cp->all, ids, cp->batch > 1 ? cp->document_parts : cp->documents, (size_t)(cp->batch * n), LOOM_I32, cp->compute));
    for (int r = 0; r < cp->size && cp->batch > 1; r++) {
        int block = r / in_block, part = r % in_block;

        for (int64_t b = 0; b < cp->batch; b++)
            LOOM_TRY(loom_stream_copy(cp->compute, cp->documents + ((block * cp->batch + b) * in_block + part) * n,
                                      cp->document_parts + (r * cp->batch + b) * n, (size_t)n * sizeof *ids));
    }
    return LOOM_OK;

fail:
    return status;
}

/* --- misuse ------------------------------------------------------------------------------------------------------------------------------ */

static bool gapless(loom_bshk at, int64_t heads, int64_t head_dim, int64_t seq)
{
    return at.sequence == 0 || at.sequence == seq * row_of(at, heads, head_dim);
}

static loom_status check(const loom_cp *cp, const loom_attention_args *a, const float *saved)
{
    const loom_cp_config *c = &cp->opened;
    const loom_attention_mask *m = &a->mask;

    if (a->batch != cp->batch || a->q_seq != cp->local_seq || a->k_seq != cp->local_seq)
        return loom_fail(LOOM_E_INVALID, "cp attention: %lld sequences with %lld queries and %lld keys here; cp is set for %lld of %lld each",
                         (long long)a->batch, (long long)a->q_seq, (long long)a->k_seq, (long long)cp->batch, (long long)cp->local_seq);
    if (a->heads != c->heads || a->kv_heads != c->kv_heads || a->head_dim != c->head_dim)
        return loom_fail(LOOM_E_INVALID, "cp attention: %lld heads over %lld of %lld; cp was opened for %lld over %lld of %lld", (long long)a->heads,
                         (long long)a->kv_heads, (long long)a->head_dim, (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim);
    if (m->q_positions_S || m->k_positions_S || m->q_start || m->k_start || m->k_documents_BS)
        return loom_fail(LOOM_E_INVALID, "cp attention: positions and the documents of keys stay unset; they are global, and known here");
    if (m->q_documents_BS && !c->documents)
        return loom_fail(LOOM_E_INVALID, "cp attention: documents are given, and cp was opened without room for them (loom_cp_config.documents)");
    if (cp->n_inner > 1 && !saved)
        return loom_fail(LOOM_E_INVALID, "cp attention: %s keeps %lld floats from forward to backward; saved is NULL", loom_cp_kind_name(c->kind),
                         (long long)loom_cp_saved(cp));
    if (!gapless(a->q_at, a->heads, a->head_dim, a->q_seq) || !gapless(a->k_at, a->kv_heads, a->head_dim, a->k_seq) ||
        !gapless(a->v_at, a->kv_heads, a->head_dim, a->k_seq) || !gapless(a->o_at, a->heads, a->head_dim, a->q_seq))
        return loom_fail(LOOM_E_INVALID, "cp attention: sequences have to follow each other: leave their distance 0");
    return LOOM_OK;
}

static loom_status check_backward(const loom_cp *cp, const loom_attention_backward_args *a, const float *saved)
{
    const loom_attention_args *f = &a->forward;
    loom_status status = check(cp, f, saved);

    if (status < 0)
        return status;
    if (!gapless(a->do_at, f->heads, f->head_dim, f->q_seq) || !gapless(a->dq_at, f->heads, f->head_dim, f->q_seq) ||
        !gapless(a->dk_at, f->kv_heads, f->head_dim, f->k_seq) || !gapless(a->dv_at, f->kv_heads, f->head_dim, f->k_seq))
        return loom_fail(LOOM_E_INVALID, "cp attention backward: sequences have to follow each other: leave their distance 0");
    return LOOM_OK;
}

/* --- the two layers ---------------------------------------------------------------------------------------------------------------------- */

static loom_status blocks(loom_cp *cp, const loom_attention_args *args)
{
    loom_attention_args own;

    if (cp->n_outer > 1)
        return cp->opened.kind == LOOM_CP_ALLGATHER ? loom_cp_gathered(cp, args) : loom_cp_ring(cp, args);
    own = loom_cp_with_own_keys(cp, args);
    return cp->kernels->attention(cp->kernels, &own, cp->compute);
}

static loom_status blocks_backward(loom_cp *cp, const loom_attention_backward_args *args)
{
    loom_attention_backward_args own = *args;

    if (cp->n_outer > 1)
        return cp->opened.kind == LOOM_CP_ALLGATHER ? loom_cp_gathered_backward(cp, args) : loom_cp_ring_backward(cp, args);
    own.forward = loom_cp_with_own_keys(cp, &args->forward);
    return cp->kernels->attention_backward(cp->kernels, &own, cp->compute);
}

loom_status loom_cp_attention(loom_cp *cp, const loom_attention_args *args, float *saved)
{
    loom_attention_args inside;
    loom_status status;

    LOOM_TRY(check(cp, args, saved));
    if (cp->size > 1 && args->mask.q_documents_BS)
        LOOM_TRY(gather_documents(cp, args->mask.q_documents_BS));
    if (cp->n_inner == 1)
        return blocks(cp, args);
    LOOM_TRY(loom_cp_exchange_in(cp, args, saved, &inside));
    LOOM_TRY(blocks(cp, &inside));
    return loom_cp_exchange_out(cp, args, &inside);

fail:
    return status;
}

loom_status loom_cp_attention_backward(loom_cp *cp, const loom_attention_backward_args *args, float *saved)
{
    loom_attention_backward_args inside;
    loom_status status;

    LOOM_TRY(check_backward(cp, args, saved));
    if (cp->size > 1 && args->forward.mask.q_documents_BS)
        LOOM_TRY(gather_documents(cp, args->forward.mask.q_documents_BS));
    if (cp->n_inner == 1)
        return blocks_backward(cp, args);
    LOOM_TRY(loom_cp_exchange_backward_in(cp, args, saved, &inside));
    LOOM_TRY(blocks_backward(cp, &inside));
    return loom_cp_exchange_backward_out(cp, args, &inside);

fail:
    return status;
}
