/* The all-to-all of heads against tokens. Inside, a row is [q heads, k heads, v heads] of this rank's share; tokens are those of all ranks of
 * `inner`, in rank order. With fewer kv heads than ranks, neighbours get a copy of the one they share, and their gradients are added at home. */
#include "cp/cp.h"

#include "core/try.h"

/* Widths of what one rank gets of a row, in floats. */
static int64_t q_width(const loom_cp *cp)
{
    return cp->group_heads * cp->opened.head_dim;
}

static int64_t kv_width(const loom_cp *cp)
{
    return cp->group_kv_heads * cp->opened.head_dim;
}

static int64_t row_width(const loom_cp *cp)
{
    return q_width(cp) + 2 * kv_width(cp);
}

static int64_t tokens(const loom_cp *cp)
{
    return cp->batch * cp->local_seq;
}

/* First float in a row of kv heads of what rank r of inner reads. */
static int64_t kv_first(const loom_cp *cp, int r)
{
    return r * cp->opened.kv_heads / cp->n_inner * cp->opened.head_dim;
}

/* Whether r is the first of those that share a kv head. */
static bool first_sharer(const loom_cp *cp, int r)
{
    return r == 0 || kv_first(cp, r) != kv_first(cp, r - 1);
}

static int64_t stride(loom_bshk at, int64_t width)
{
    return at.token ? at.token : width;
}

/* --- there ----------------------------------------------------------------------------------------------------------------------------------- */

/* `sent` [rank of inner][tokens, width] -> `to` [batch, group_seq, width]. */
static loom_status travel_in(loom_cp *cp, int64_t width, float *to)
{
    float *land = cp->batch > 1 ? cp->landed : to; /* a single sequence comes in as it is wanted */
    loom_status status;

    LOOM_TRY(loom_all_to_all(cp->inner, cp->sent, land, (size_t)(tokens(cp) * width), LOOM_F32, cp->compute));
    if (land != to)
        LOOM_TRY(loom_cp_swap(cp, to, land, cp->n_inner, cp->batch, cp->local_seq * width));
    return LOOM_OK;

fail:
    return status;
}

static loom_status pack_qkv(loom_cp *cp, const loom_attention_args *a)
{
    int64_t qw = q_width(cp), kw = kv_width(cp), row = row_width(cp), n = tokens(cp);
    loom_status status;

    for (int r = 0; r < cp->n_inner; r++) {
        float *to = cp->sent + r * n * row;

        LOOM_TRY(loom_cp_copy_rows(cp, to, row, a->q_BSHK + r * qw, stride(a->q_at, a->heads * a->head_dim), qw, n, false));
        LOOM_TRY(loom_cp_copy_rows(cp, to + qw, row, a->k_BSGK + kv_first(cp, r), stride(a->k_at, a->kv_heads * a->head_dim), kw, n, false));
        LOOM_TRY(loom_cp_copy_rows(cp, to + qw + kw, row, a->v_BSGK + kv_first(cp, r), stride(a->v_at, a->kv_heads * a->head_dim), kw, n, false));
    }
    return LOOM_OK;

fail:
    return status;
}

/* The attention between the exchanges: q, k, v and o lie in `saved`. */
static loom_attention_args inside_of(const loom_cp *cp, const loom_attention_args *args, float *saved)
{
    loom_attention_args a = *args;

    a.q_BSHK = saved;
    a.k_BSGK = saved + q_width(cp);
    a.v_BSGK = a.k_BSGK + kv_width(cp);
    a.q_at = a.k_at = a.v_at = (loom_bshk){.token = row_width(cp)};
    a.o_BSHK = saved + cp->batch * cp->group_seq * row_width(cp);
    a.o_at = (loom_bshk){0};
    a.q_seq = a.k_seq = cp->group_seq;
    a.heads = cp->group_heads;
    a.kv_heads = cp->group_kv_heads;
    if (a.mask.q_documents_BS)
        a.mask.q_documents_BS = cp->documents + cp->outer_rank * cp->batch * cp->group_seq;
    return a;
}

loom_status loom_cp_exchange_in(loom_cp *cp, const loom_attention_args *args, float *saved, loom_attention_args *inside)
{
    loom_status status;

    *inside = inside_of(cp, args, saved);
    LOOM_TRY(pack_qkv(cp, args));
    return travel_in(cp, row_width(cp), saved);

fail:
    return status;
}

/* --- back ------------------------------------------------------------------------------------------------------------------------------------ */

/* `from` [batch, group_seq, width] -> `landed` [rank of inner][tokens, width]. `spare` has room for as much; it may not be `from`. */
static loom_status travel_out(loom_cp *cp, const float *from, float *spare, int64_t width)
{
    const float *send = from;
    loom_status status;

    if (cp->batch > 1) {
        LOOM_TRY(loom_cp_swap(cp, spare, from, cp->batch, cp->n_inner, cp->local_seq * width));
        send = spare;
    }
    return loom_all_to_all(cp->inner, send, cp->landed, (size_t)(tokens(cp) * width), LOOM_F32, cp->compute);

fail:
    return status;
}

/* Heads of rank r of inner, for this rank's tokens, into their columns. */
static loom_status unpack_heads(loom_cp *cp, float *to, int64_t to_row, int64_t from_row, bool accumulate)
{
    loom_status status;

    for (int r = 0; r < cp->n_inner; r++)
        LOOM_TRY(loom_cp_copy_rows(cp, to + r * q_width(cp), to_row, cp->landed + r * tokens(cp) * from_row, from_row, q_width(cp), tokens(cp), accumulate));
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_cp_exchange_out(loom_cp *cp, const loom_attention_args *args, const loom_attention_args *inside)
{
    loom_status status;

    LOOM_TRY(travel_out(cp, inside->o_BSHK, cp->sent, q_width(cp)));
    return unpack_heads(cp, args->o_BSHK, stride(args->o_at, args->heads * args->head_dim), q_width(cp), false);

fail:
    return status;
}

/* --- gradients ------------------------------------------------------------------------------------------------------------------------------- */

loom_status loom_cp_exchange_backward_in(loom_cp *cp, const loom_attention_backward_args *args, float *saved, loom_attention_backward_args *inside)
{
    const loom_attention_args *f = &args->forward;
    int64_t qw = q_width(cp), row = row_width(cp);
    loom_status status;

    for (int r = 0; r < cp->n_inner; r++)
        LOOM_TRY(loom_cp_copy_rows(cp, cp->sent + r * tokens(cp) * qw, qw, args->do_BSHK + r * qw, stride(args->do_at, f->heads * f->head_dim), qw,
                                   tokens(cp), false));
    LOOM_TRY(travel_in(cp, qw, cp->worked));
    *inside = (loom_attention_backward_args){.forward = inside_of(cp, f, saved),
                                             .do_BSHK = cp->worked,
                                             .dq_BSHK = cp->sent, /* what lay there has been taken */
                                             .dk_BSGK = cp->sent + qw,
                                             .dv_BSGK = cp->sent + qw + kv_width(cp),
                                             .dq_at = {.token = row},
                                             .dk_at = {.token = row},
                                             .dv_at = {.token = row}};
    return LOOM_OK;

fail:
    return status;
}

static loom_status unpack_kv(loom_cp *cp, float *to, int64_t to_row, int64_t from_first, bool accumulate)
{
    int64_t row = row_width(cp);
    loom_status status;

    for (int r = 0; r < cp->n_inner; r++)
        LOOM_TRY(loom_cp_copy_rows(cp, to + kv_first(cp, r), to_row, cp->landed + r * tokens(cp) * row + from_first, row, kv_width(cp), tokens(cp),
                                   accumulate || !first_sharer(cp, r)));
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_cp_exchange_backward_out(loom_cp *cp, const loom_attention_backward_args *args, const loom_attention_backward_args *inside)
{
    const loom_attention_args *f = &args->forward;
    int64_t kv_row = f->kv_heads * f->head_dim;
    loom_status status;

    LOOM_TRY(travel_out(cp, inside->dq_BSHK, cp->worked, row_width(cp)));
    LOOM_TRY(unpack_heads(cp, args->dq_BSHK, stride(args->dq_at, f->heads * f->head_dim), row_width(cp), args->accumulate_dq));
    LOOM_TRY(unpack_kv(cp, args->dk_BSGK, stride(args->dk_at, kv_row), q_width(cp), args->accumulate_dkv));
    return unpack_kv(cp, args->dv_BSGK, stride(args->dv_at, kv_row), q_width(cp) + kv_width(cp), args->accumulate_dkv);

fail:
    return status;
}
