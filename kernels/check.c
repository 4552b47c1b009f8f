/* The rules that arguments must keep, in the words of the caller: the operation, what was given, and what would be right. */
#include "kernels/check.h"

#include "core/try.h"

#include <inttypes.h>

static loom_status need_sizes(const char *operation, const char *names, const int64_t *sizes, int count)
{
    for (int i = 0; i < count; i++)
        if (sizes[i] < 0)
            return loom_fail(LOOM_E_INVALID, "%s: a size is negative: number %d of (%s) is %" PRId64, operation, i + 1, names, sizes[i]);
    return LOOM_OK;
}
#define SIZES(operation, names, ...)                                                                                                       \
    LOOM_TRY(need_sizes(operation, names, (const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))))

/* Every buffer is there, unless nothing would be read or written. */
static loom_status need_buffers(const char *operation, const char *names, bool anything, const void *const *buffers, int count)
{
    for (int i = 0; anything && i < count; i++)
        if (!buffers[i])
            return loom_fail(LOOM_E_INVALID, "%s: a buffer is NULL: number %d of (%s)", operation, i + 1, names);
    return LOOM_OK;
}
#define BUFFERS(operation, names, anything, ...)                                                                                           \
    LOOM_TRY(need_buffers(operation, names, anything, (const void *const[]){__VA_ARGS__},                                                  \
                          (int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(const void *))))

static loom_status need_stride(const char *operation, const char *name, int64_t stride, int64_t least)
{
    if (stride != 0 && stride < least)
        return loom_fail(LOOM_E_INVALID, "%s: %s=%" PRId64 " is shorter than a row of %" PRId64 "; 0 means tight", operation, name, stride,
                         least);
    return LOOM_OK;
}
#define STRIDE(operation, name, stride, least) LOOM_TRY(need_stride(operation, name, stride, least))

/* Rows start, start + 1, … of a table of `rows`, `seq` of them at most. */
static loom_status need_rows(const char *operation, int64_t start, int64_t seq, int64_t tokens, int64_t rows)
{
    int64_t used = seq > 0 && seq < tokens ? seq : tokens;

    if (start < 0 || (used > 0 && start + used > rows))
        return loom_fail(LOOM_E_INVALID, "%s: rows %" PRId64 " to %" PRId64 " are wanted of a table of %" PRId64, operation, start,
                         start + used - 1, rows);
    return LOOM_OK;
}

static loom_status need_eps(const char *operation, double eps)
{
    if (!(eps >= 0))
        return loom_fail(LOOM_E_INVALID, "%s: eps=%g; it is 0 or more", operation, eps);
    return LOOM_OK;
}

static loom_status check_gemm_gelu(const loom_gemm_args *a)
{
    if (a->gelu_MN && a->gelu_input_MN)
        return loom_fail(LOOM_E_INVALID, "gemm: gelu_MN and gelu_input_MN are both given; a product is one of forward or of backward");
    if (a->gelu_input_MN && (a->bias_N || a->accumulate))
        return loom_fail(LOOM_E_INVALID, "gemm: gelu_input_MN goes with neither bias_N nor accumulate: all of C would be multiplied by the slope");
    if (a->c_MN && (a->gelu_MN == a->c_MN || a->gelu_input_MN == a->c_MN))
        return loom_fail(LOOM_E_INVALID, "gemm: %s is c_MN itself; it has to be another matrix", a->gelu_MN ? "gelu_MN" : "gelu_input_MN");
    return LOOM_OK;
}

loom_status loom_check_gemm(const loom_gemm_args *a)
{
    loom_status status;

    SIZES("gemm", "m, n, k, batch", a->m, a->n, a->k, a->batch);
    BUFFERS("gemm", "c_MN", a->m && a->n, a->c_MN);
    BUFFERS("gemm", "a_MK, b_KN", a->m && a->n && a->k, a->a_MK, a->b_KN);
    STRIDE("gemm", "lda", a->lda, a->transpose_a ? a->m : a->k);
    STRIDE("gemm", "ldb", a->ldb, a->transpose_b ? a->k : a->n);
    STRIDE("gemm", "ldc", a->ldc, a->n);
    if (a->batch > 1 && a->stride_c < (a->ldc ? a->ldc : a->n) * (a->m - 1) + a->n)
        return loom_fail(LOOM_E_INVALID,
                         "gemm: stride_c=%" PRId64 " would let the %" PRId64 " results overlap; each is %" PRId64 " x %" PRId64,
                         a->stride_c, a->batch, a->m, a->n);
    return check_gemm_gelu(a);
fail:
    return status;
}

static loom_status check_bshk(const char *operation, const char *name, loom_bshk at, int64_t heads, int64_t head_dim)
{
    if (at.token != 0 && at.token < heads * head_dim)
        return loom_fail(LOOM_E_INVALID, "%s: %s.token=%" PRId64 " is shorter than %" PRId64 " heads of %" PRId64 "; 0 means tight",
                         operation, name, at.token, heads, head_dim);
    if (at.sequence < 0)
        return loom_fail(LOOM_E_INVALID, "%s: %s.sequence=%" PRId64 " is negative", operation, name, at.sequence);
    return LOOM_OK;
}

static loom_status check_attention(const char *operation, const loom_attention_args *a)
{
    const loom_attention_mask *m = &a->mask;
    bool queries = a->batch && a->heads && a->q_seq && a->head_dim;
    loom_status status;

    SIZES(operation, "batch, heads, kv_heads, q_seq, k_seq, head_dim", a->batch, a->heads, a->kv_heads, a->q_seq, a->k_seq, a->head_dim);
    if (a->heads > 0 && (a->kv_heads == 0 || a->heads % a->kv_heads != 0))
        return loom_fail(LOOM_E_INVALID, "%s: %" PRId64 " key/value heads do not divide %" PRId64 " heads", operation, a->kv_heads,
                         a->heads);
    BUFFERS(operation, "o_BSHK, lse_BHS, q_BSHK", queries, a->o_BSHK, a->lse_BHS, a->q_BSHK);
    BUFFERS(operation, "k_BSGK, v_BSGK", queries && a->k_seq, a->k_BSGK, a->v_BSGK);
    LOOM_TRY(check_bshk(operation, "q_at", a->q_at, a->heads, a->head_dim));
    LOOM_TRY(check_bshk(operation, "o_at", a->o_at, a->heads, a->head_dim));
    LOOM_TRY(check_bshk(operation, "k_at", a->k_at, a->kv_heads, a->head_dim));
    LOOM_TRY(check_bshk(operation, "v_at", a->v_at, a->kv_heads, a->head_dim));
    if (m->window < 0 || m->window > INT32_MAX)
        return loom_fail(LOOM_E_INVALID, "%s: window=%" PRId64 "; it is 0 (none) to %d", operation, m->window, INT32_MAX);
    if (m->q_start < 0 || m->k_start < 0 || m->q_start + a->q_seq > INT32_MAX || m->k_start + a->k_seq > INT32_MAX)
        return loom_fail(LOOM_E_INVALID, "%s: positions from q_start=%" PRId64 ", k_start=%" PRId64 " on leave 0 to %d", operation,
                         m->q_start, m->k_start, INT32_MAX);
    if (!m->q_documents_BS != !m->k_documents_BS)
        return loom_fail(LOOM_E_INVALID, "%s: documents are given for %s only; both or none", operation,
                         m->q_documents_BS ? "queries" : "keys");
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_attention(const loom_attention_args *a)
{
    return check_attention("attention", a);
}

loom_status loom_check_attention_backward(const loom_attention_backward_args *a)
{
    const loom_attention_args *f = &a->forward;
    bool queries = f->batch && f->heads && f->q_seq && f->head_dim;
    loom_status status;

    LOOM_TRY(check_attention("attention_backward", f));
    BUFFERS("attention_backward", "do_BSHK, dq_BSHK", queries, a->do_BSHK, a->dq_BSHK);
    BUFFERS("attention_backward", "dk_BSGK, dv_BSGK", queries && f->k_seq, a->dk_BSGK, a->dv_BSGK);
    LOOM_TRY(check_bshk("attention_backward", "do_at", a->do_at, f->heads, f->head_dim));
    LOOM_TRY(check_bshk("attention_backward", "dq_at", a->dq_at, f->heads, f->head_dim));
    LOOM_TRY(check_bshk("attention_backward", "dk_at", a->dk_at, f->kv_heads, f->head_dim));
    LOOM_TRY(check_bshk("attention_backward", "dv_at", a->dv_at, f->kv_heads, f->head_dim));
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_attention_merge(const loom_attention_merge_args *a)
{
    loom_status status;

    SIZES("attention_merge", "batch, heads, seq, head_dim", a->batch, a->heads, a->seq, a->head_dim);
    BUFFERS("attention_merge", "o_BSHK, lse_BHS, o2_BSHK, lse2_BHS", a->batch && a->heads && a->seq, a->o_BSHK, a->lse_BHS, a->o2_BSHK,
            a->lse2_BHS);
    LOOM_TRY(check_bshk("attention_merge", "o_at", a->o_at, a->heads, a->head_dim));
    LOOM_TRY(check_bshk("attention_merge", "o2_at", a->o2_at, a->heads, a->head_dim));
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_rmsnorm(const loom_rmsnorm_args *a)
{
    loom_status status;

    SIZES("rmsnorm", "tokens, hidden", a->tokens, a->hidden);
    BUFFERS("rmsnorm", "y_TD, x_TD, weight_D", a->tokens && a->hidden, a->y_TD, a->x_TD, a->weight_D);
    BUFFERS("rmsnorm with add", "sum_TD", a->add_TD && a->tokens && a->hidden, a->sum_TD);
    return need_eps("rmsnorm", a->eps);
fail:
    return status;
}

loom_status loom_check_rmsnorm_backward(const loom_rmsnorm_backward_args *a)
{
    loom_status status;

    SIZES("rmsnorm_backward", "tokens, hidden", a->tokens, a->hidden);
    BUFFERS("rmsnorm_backward", "dy_TD, x_TD, weight_D, rstd_T", a->tokens && a->hidden, a->dy_TD, a->x_TD, a->weight_D, a->rstd_T);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_layernorm(const loom_layernorm_args *a)
{
    loom_status status;

    SIZES("layernorm", "tokens, hidden", a->tokens, a->hidden);
    BUFFERS("layernorm", "y_TD, x_TD, weight_D", a->tokens && a->hidden, a->y_TD, a->x_TD, a->weight_D);
    BUFFERS("layernorm with add", "sum_TD", a->add_TD && a->tokens && a->hidden, a->sum_TD);
    return need_eps("layernorm", a->eps);
fail:
    return status;
}

loom_status loom_check_layernorm_backward(const loom_layernorm_backward_args *a)
{
    loom_status status;

    SIZES("layernorm_backward", "tokens, hidden", a->tokens, a->hidden);
    BUFFERS("layernorm_backward", "dy_TD, x_TD, weight_D, mean_T, rstd_T", a->tokens && a->hidden, a->dy_TD, a->x_TD, a->weight_D,
            a->mean_T, a->rstd_T);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_rope_table(const loom_rope_table_args *a)
{
    loom_status status;

    SIZES("rope_table", "positions, head_dim, start", a->positions, a->head_dim, a->start);
    BUFFERS("rope_table", "cos_PK, sin_PK", a->positions && a->head_dim, a->cos_PK, a->sin_PK);
    if (a->head_dim % 2 != 0)
        return loom_fail(LOOM_E_INVALID, "rope_table: head_dim=%" PRId64 " is odd; pairs need an even one", a->head_dim);
    if (!(a->theta > 0))
        return loom_fail(LOOM_E_INVALID, "rope_table: theta=%g; it is above 0, 10000 as a rule", a->theta);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_rope(const loom_rope_args *a)
{
    loom_status status;

    SIZES("rope", "tokens, heads, head_dim, positions, seq", a->tokens, a->heads, a->head_dim, a->positions, a->seq);
    BUFFERS("rope", "y_THK, x_THK, cos_PK, sin_PK", a->tokens && a->heads && a->head_dim, a->y_THK, a->x_THK, a->cos_PK, a->sin_PK);
    if (a->head_dim % 2 != 0)
        return loom_fail(LOOM_E_INVALID, "rope: head_dim=%" PRId64 " is odd; pairs need an even one", a->head_dim);
    STRIDE("rope", "y_head", a->y_head, a->head_dim);
    STRIDE("rope", "x_head", a->x_head, a->head_dim);
    STRIDE("rope", "y_token", a->y_token, a->heads * (a->y_head ? a->y_head : a->head_dim) - (a->y_head ? a->y_head - a->head_dim : 0));
    STRIDE("rope", "x_token", a->x_token, a->heads * (a->x_head ? a->x_head : a->head_dim) - (a->x_head ? a->x_head - a->head_dim : 0));
    return a->rows_T ? LOOM_OK : need_rows("rope", a->start, a->seq, a->tokens, a->positions);
fail:
    return status;
}

loom_status loom_check_gelu(const loom_gelu_args *a)
{
    loom_status status;

    SIZES("gelu", "count", a->count);
    BUFFERS("gelu", "y, x", a->count, a->y, a->x);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_gelu_backward(const loom_gelu_backward_args *a)
{
    loom_status status;

    SIZES("gelu_backward", "count", a->count);
    BUFFERS("gelu_backward", "dx, dy, x", a->count, a->dx, a->dy, a->x);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_swiglu(const loom_swiglu_args *a)
{
    loom_status status;

    SIZES("swiglu", "tokens, width", a->tokens, a->width);
    BUFFERS("swiglu", "y_TF, gate_TF, up_TF", a->tokens && a->width, a->y_TF, a->gate_TF, a->up_TF);
    STRIDE("swiglu", "ldy", a->ldy, a->width);
    STRIDE("swiglu", "ld_gate", a->ld_gate, a->width);
    STRIDE("swiglu", "ld_up", a->ld_up, a->width);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_swiglu_backward(const loom_swiglu_backward_args *a)
{
    loom_status status;

    SIZES("swiglu_backward", "tokens, width", a->tokens, a->width);
    BUFFERS("swiglu_backward", "dgate_TF, dup_TF, dy_TF, gate_TF, up_TF", a->tokens && a->width, a->dgate_TF, a->dup_TF, a->dy_TF,
            a->gate_TF, a->up_TF);
    STRIDE("swiglu_backward", "ld_dgate", a->ld_dgate, a->width);
    STRIDE("swiglu_backward", "ld_dup", a->ld_dup, a->width);
    STRIDE("swiglu_backward", "ld_dy", a->ld_dy, a->width);
    STRIDE("swiglu_backward", "ld_gate", a->ld_gate, a->width);
    STRIDE("swiglu_backward", "ld_up", a->ld_up, a->width);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_bias(const loom_bias_args *a)
{
    loom_status status;

    SIZES("bias", "tokens, width", a->tokens, a->width);
    BUFFERS("bias", "y_TN, bias_N", a->tokens && a->width, a->y_TN, a->bias_N);
    STRIDE("bias", "ldy", a->ldy, a->width);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_bias_backward(const loom_bias_backward_args *a)
{
    loom_status status;

    SIZES("bias_backward", "tokens, width", a->tokens, a->width);
    BUFFERS("bias_backward", "dbias_N, dy_TN", a->tokens && a->width, a->dbias_N, a->dy_TN);
    STRIDE("bias_backward", "ld_dy", a->ld_dy, a->width);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_add(const loom_add_args *a)
{
    loom_status status;

    SIZES("add", "count", a->count);
    BUFFERS("add", "y, a, b", a->count, a->y, a->a, a->b);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_axpy(const loom_axpy_args *a)
{
    loom_status status;

    SIZES("axpy", "count", a->count);
    BUFFERS("axpy", "y, x", a->count, a->y, a->x);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_scale(const loom_scale_args *a)
{
    loom_status status;

    SIZES("scale", "count", a->count);
    BUFFERS("scale", "y, x", a->count, a->y, a->x);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_fill(const loom_fill_args *a)
{
    loom_status status;

    SIZES("fill", "count", a->count);
    BUFFERS("fill", "y", a->count, a->y);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_copy(const loom_copy_args *a)
{
    loom_status status;

    SIZES("copy", "planes, rows, cols, y_plane, x_plane", a->planes, a->rows, a->cols, a->y_plane, a->x_plane);
    BUFFERS("copy", "y, x", a->rows && a->cols, a->y, a->x);
    STRIDE("copy", "y_row", a->y_row, a->cols);
    STRIDE("copy", "x_row", a->x_row, a->cols);
    return LOOM_OK;
fail:
    return status;
}

static bool is_half(loom_dtype dtype)
{
    return dtype == LOOM_BF16 || dtype == LOOM_F16;
}

loom_status loom_check_cast(const loom_cast_args *a)
{
    loom_status status;
    bool same = a->x_dtype == a->y_dtype && (a->x_dtype == LOOM_F32 || is_half(a->x_dtype));

    SIZES("cast", "count", a->count);
    BUFFERS("cast", "y, x", a->count, a->y, a->x);
    if (!same && !(a->x_dtype == LOOM_F32 && is_half(a->y_dtype)) && !(is_half(a->x_dtype) && a->y_dtype == LOOM_F32))
        return loom_fail(LOOM_E_INVALID, "cast: from %s to %s; f32 to and from bf16 and f16 are there", loom_dtype_name(a->x_dtype),
                         loom_dtype_name(a->y_dtype));
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_sum(const loom_sum_args *a)
{
    loom_status status;

    SIZES("sum", "count", a->count);
    BUFFERS("sum", "sum", true, a->sum);
    BUFFERS("sum", "sum, x", a->count, a->sum, a->x);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_sum_squares(const loom_sum_args *a)
{
    return loom_check_sum(a);
}

loom_status loom_check_embedding(const loom_embedding_args *a)
{
    loom_status status;

    SIZES("embedding", "tokens, hidden, first, rows", a->tokens, a->hidden, a->first, a->rows);
    BUFFERS("embedding", "y_TD, ids_T", a->tokens && a->hidden, a->y_TD, a->ids_T);
    BUFFERS("embedding", "table_VD", a->tokens && a->hidden && a->rows, a->table_VD);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_embedding_backward(const loom_embedding_backward_args *a)
{
    loom_status status;

    SIZES("embedding_backward", "tokens, hidden, first, rows", a->tokens, a->hidden, a->first, a->rows);
    BUFFERS("embedding_backward", "dy_TD, ids_T, dtable_VD", a->tokens && a->hidden && a->rows, a->dy_TD, a->ids_T, a->dtable_VD);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_position(const loom_position_args *a)
{
    loom_status status;

    SIZES("position", "tokens, hidden, positions, seq", a->tokens, a->hidden, a->positions, a->seq);
    BUFFERS("position", "y_TD, table_PD", a->tokens && a->hidden, a->y_TD, a->table_PD);
    return a->rows_T ? LOOM_OK : need_rows("position", a->start, a->seq, a->tokens, a->positions);
fail:
    return status;
}

loom_status loom_check_position_backward(const loom_position_backward_args *a)
{
    loom_status status;

    SIZES("position_backward", "tokens, hidden, positions, seq", a->tokens, a->hidden, a->positions, a->seq);
    BUFFERS("position_backward", "dtable_PD, dy_TD", a->tokens && a->hidden, a->dtable_PD, a->dy_TD);
    return a->rows_T ? LOOM_OK : need_rows("position_backward", a->start, a->seq, a->tokens, a->positions);
fail:
    return status;
}

loom_status loom_check_xent_local(const loom_xent_local_args *a)
{
    loom_status status;

    SIZES("xent_local", "tokens, cols, first", a->tokens, a->cols, a->first);
    BUFFERS("xent_local", "max_T, sum_T, target_T, targets_T", a->tokens, a->max_T, a->sum_T, a->target_T, a->targets_T);
    BUFFERS("xent_local", "logits_TV", a->tokens && a->cols, a->logits_TV);
    STRIDE("xent_local", "ld", a->ld, a->cols);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_xent_rebase(const loom_xent_rebase_args *a)
{
    loom_status status;

    SIZES("xent_rebase", "tokens", a->tokens);
    BUFFERS("xent_rebase", "sum_T, local_max_T, global_max_T", a->tokens, a->sum_T, a->local_max_T, a->global_max_T);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_xent_gradient(const loom_xent_gradient_args *a)
{
    loom_status status;

    SIZES("xent_gradient", "tokens, cols, first", a->tokens, a->cols, a->first);
    BUFFERS("xent_gradient", "max_T, sum_T, targets_T", a->tokens, a->max_T, a->sum_T, a->targets_T);
    BUFFERS("xent_gradient with loss", "target_T", a->tokens && a->loss_T, a->target_T);
    STRIDE("xent_gradient", "ld", a->ld, a->cols);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_xent(const loom_xent_args *a)
{
    loom_status status;

    SIZES("xent", "tokens, cols", a->tokens, a->cols);
    BUFFERS("xent", "logits_TV, targets_T", a->tokens && a->cols, a->logits_TV, a->targets_T);
    STRIDE("xent", "ld", a->ld, a->cols);
    if (a->tokens > 0 && a->cols == 0)
        return loom_fail(LOOM_E_INVALID, "xent: a vocabulary of 0 has no target");
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_argmax(const loom_argmax_args *a)
{
    loom_status status;

    SIZES("argmax", "tokens, cols", a->tokens, a->cols);
    BUFFERS("argmax", "index_T", a->tokens, a->index_T);
    BUFFERS("argmax", "x_TV", a->tokens && a->cols, a->x_TV);
    STRIDE("argmax", "ld", a->ld, a->cols);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_clip(const loom_clip_args *a)
{
    loom_status status;

    BUFFERS("clip", "scale, squares", 1, a->scale, a->squares);
    if (!(a->divisor > 0) || !(a->clip >= 0))
        return loom_fail(LOOM_E_INVALID, "clip: divisor %g and clip %g; the divisor is above 0, and clip at least 0", a->divisor, a->clip);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_adamw(const loom_adamw_args *a)
{
    loom_status status;

    SIZES("adamw", "count", a->count);
    BUFFERS("adamw", "p, m, v, gradient", a->count, a->p, a->m, a->v, a->gradient);
    if (!(a->correction1 > 0) || !(a->correction2 > 0))
        return loom_fail(LOOM_E_INVALID, "adamw: corrections %g and %g; they are 1 - beta^step, above 0 from step 1 on", a->correction1,
                         a->correction2);
    return need_eps("adamw", a->eps);
fail:
    return status;
}

/* --- mixture of experts --- */

static loom_status check_rule(const char *operation, const loom_router_rule *r)
{
    loom_status status;

    SIZES(operation, "experts, top_k, groups, groups_kept", r->experts, r->top_k, r->groups, r->groups_kept);
    if (r->experts < 1 || r->experts > LOOM_ROUTER_EXPERTS_MAX)
        return loom_fail(LOOM_E_INVALID, "%s: experts=%" PRId64 "; 1 to %d", operation, r->experts, LOOM_ROUTER_EXPERTS_MAX);
    if (r->top_k < 1 || r->top_k > r->experts || r->top_k > LOOM_ROUTER_CHOICES_MAX)
        return loom_fail(LOOM_E_INVALID, "%s: top_k=%" PRId64 " of %" PRId64 " experts; 1 to %" PRId64, operation, r->top_k, r->experts,
                         r->experts < LOOM_ROUTER_CHOICES_MAX ? r->experts : LOOM_ROUTER_CHOICES_MAX);
    if (r->groups > 1 && r->experts % r->groups != 0)
        return loom_fail(LOOM_E_INVALID, "%s: %" PRId64 " groups do not divide %" PRId64 " experts", operation, r->groups, r->experts);
    if (r->groups > 1 && (r->groups_kept < 1 || r->groups_kept > r->groups || r->groups_kept * (r->experts / r->groups) < r->top_k))
        return loom_fail(LOOM_E_INVALID,
                         "%s: %" PRId64 " of %" PRId64 " groups kept, of %" PRId64 " experts each, leave no %" PRId64 " to choose",
                         operation, r->groups_kept, r->groups, r->experts / r->groups, r->top_k);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_router(const loom_router_args *a)
{
    loom_status status;

    LOOM_TRY(check_rule("router", &a->rule));
    SIZES("router", "tokens, first, seq, counted", a->tokens, a->first, a->seq, a->counted);
    BUFFERS("router", "score_TE, weight_TK, expert_TK, logit_TE", a->tokens, a->score_TE, a->weight_TK, a->expert_TK, a->logit_TE);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_router_count(const loom_router_count_args *a)
{
    loom_status status;

    SIZES("router_count", "tokens, experts, top_k, segment", a->tokens, a->experts, a->top_k, a->segment);
    BUFFERS("router_count", "assigned_NE", a->experts, a->assigned_NE);
    BUFFERS("router_count", "expert_TK", a->tokens && a->top_k, a->expert_TK);
    BUFFERS("router_count with scores", "score_sum_NE", a->score_TE && a->experts, a->score_sum_NE);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_router_balance(const loom_router_balance_args *a)
{
    loom_status status;

    SIZES("router_balance", "segments, experts, top_k, tokens", a->segments, a->experts, a->top_k, a->tokens);
    BUFFERS("router_balance", "assigned_NE, score_sum_NE", a->segments && a->experts, a->assigned_NE, a->score_sum_NE);
    if (a->segments > 0 && (a->top_k < 1 || a->tokens < 1))
        return loom_fail(LOOM_E_INVALID, "router_balance: top_k=%" PRId64 ", tokens=%" PRId64 "; both are 1 or more", a->top_k, a->tokens);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_router_backward(const loom_router_backward_args *a)
{
    loom_status status;

    LOOM_TRY(check_rule("router_backward", &a->rule));
    SIZES("router_backward", "tokens, segment", a->tokens, a->segment);
    BUFFERS("router_backward", "dlogit_TE, score_TE", a->tokens, a->dlogit_TE, a->score_TE);
    BUFFERS("router_backward with dweight", "expert_TK", a->tokens && a->dweight_TK, a->expert_TK);
    BUFFERS("router_backward with z_slope", "logit_TE, lse_T", a->tokens && a->z_slope != 0, a->logit_TE, a->lse_T);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_sort_assignments(const loom_sort_assignments_args *a)
{
    loom_status status;

    SIZES("sort_assignments", "assignments, first, experts", a->assignments, a->first, a->experts);
    BUFFERS("sort_assignments", "offset_E1", true, a->offset_E1);
    BUFFERS("sort_assignments", "order_R, position_A, expert_A", a->assignments, a->order_R, a->position_A, a->expert_A);
    if (a->assignments > INT32_MAX)
        return loom_fail(LOOM_E_INVALID, "sort_assignments: %" PRId64 " assignments; their numbers are 32 bits, so %d at most",
                         a->assignments, INT32_MAX);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_gather_rows(const loom_gather_rows_args *a)
{
    loom_status status;

    SIZES("gather_rows", "rows, hidden, divide", a->rows, a->hidden, a->divide);
    BUFFERS("gather_rows", "y_RD, row_R", a->rows && a->hidden, a->y_RD, a->row_R);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_combine_rows(const loom_combine_rows_args *a)
{
    loom_status status;

    SIZES("combine_rows", "tokens, top_k, hidden", a->tokens, a->top_k, a->hidden);
    BUFFERS("combine_rows", "y_TD", a->tokens && a->hidden, a->y_TD);
    BUFFERS("combine_rows", "position_TK", a->tokens && a->hidden && a->top_k, a->position_TK);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_combine_weights_backward(const loom_combine_weights_backward_args *a)
{
    loom_status status;

    SIZES("combine_weights_backward", "tokens, top_k, hidden", a->tokens, a->top_k, a->hidden);
    BUFFERS("combine_weights_backward", "dweight_TK, position_TK", a->tokens && a->top_k, a->dweight_TK, a->position_TK);
    BUFFERS("combine_weights_backward", "dy_TD", a->tokens && a->top_k && a->hidden, a->dy_TD);
    return LOOM_OK;
fail:
    return status;
}

loom_status loom_check_grouped_gemm(const loom_grouped_gemm_args *a)
{
    loom_status status;

    SIZES("grouped_gemm", "groups, m, n, k", a->groups, a->m, a->n, a->k);
    BUFFERS("grouped_gemm", "offset_G1", a->groups, a->offset_G1);
    STRIDE("grouped_gemm", "lda", a->lda, a->ragged_k ? a->m : a->k);
    STRIDE("grouped_gemm", "ldb", a->ldb, a->transpose_b ? a->k : a->n);
    STRIDE("grouped_gemm", "ldc", a->ldc, a->n);
    if (a->ragged_k && a->transpose_b)
        return loom_fail(LOOM_E_INVALID, "grouped_gemm: transpose_b has no meaning with ragged_k, where B is rows of tokens");
    if (a->ragged_k && a->groups > 1 && a->stride_c < (a->ldc ? a->ldc : a->n) * (a->m - 1) + a->n)
        return loom_fail(LOOM_E_INVALID,
                         "grouped_gemm: stride_c=%" PRId64 " would let the %" PRId64 " results overlap; each is %" PRId64 " x %" PRId64,
                         a->stride_c, a->groups, a->m, a->n);
    return LOOM_OK;
fail:
    return status;
}
