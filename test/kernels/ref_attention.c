#include "ref.h"

#include <math.h>
#include <stdlib.h>

static bool sees(const loom_attention_args *a, int64_t b, int64_t i, int64_t j)
{
    const loom_attention_mask *m = &a->mask;
    int64_t q = m->q_positions_S ? m->q_positions_S[i] : m->q_start + i, k = m->k_positions_S ? m->k_positions_S[j] : m->k_start + j;

    return !(m->causal && k > q) && !(m->window > 0 && k <= q - m->window) &&
           !(m->q_documents_BS && m->q_documents_BS[b * a->q_seq + i] != m->k_documents_BS[b * a->k_seq + j]);
}

/* Where row (b, s, h) of a tensor with these strides begins. */
static int64_t row_of(loom_bshk at, int64_t b, int64_t s, int64_t h, int64_t heads, int64_t seq, int64_t head_dim)
{
    int64_t token = at.token ? at.token : heads * head_dim;

    return b * (at.sequence ? at.sequence : seq * token) + s * token + h * head_dim;
}

static double score(const loom_attention_args *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const float *q = a->q_BSHK + row_of(a->q_at, b, i, h, a->heads, a->q_seq, a->head_dim);
    const float *k = a->k_BSGK + row_of(a->k_at, b, j, h / (a->heads / a->kv_heads), a->kv_heads, a->k_seq, a->head_dim);
    double sum = 0;

    for (int64_t d = 0; d < a->head_dim; d++)
        sum += (double)q[d] * k[d];
    return sum * (a->scale != 0 ? a->scale : 1 / sqrt((double)a->head_dim));
}

/* Probabilities of one query over all keys; returns its log-sum-exp. */
static double softmax_row(const loom_attention_args *a, int64_t b, int64_t h, int64_t i, double *p)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t j = 0; j < a->k_seq; j++) {
        p[j] = sees(a, b, i, j) ? score(a, b, h, i, j) : -INFINITY;
        largest = p[j] > largest || isnan(p[j]) ? p[j] : largest;
    }
    for (int64_t j = 0; j < a->k_seq; j++)
        sum += p[j] == -INFINITY ? 0 : exp(p[j] - largest);
    for (int64_t j = 0; j < a->k_seq; j++)
        p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - largest) / sum;
    return largest + log(sum);
}

void ref_attention(const loom_attention_args *a, double *o, double *lse)
{
    double *p = malloc((size_t)(a->k_seq + 1) * sizeof *p);

    for (int64_t row = 0; row < a->batch * a->heads * a->q_seq; row++) {
        int64_t b = row / (a->heads * a->q_seq), h = row / a->q_seq % a->heads, i = row % a->q_seq;
        double *out = o + ((b * a->q_seq + i) * a->heads + h) * a->head_dim;

        lse[row] = softmax_row(a, b, h, i, p);
        for (int64_t j = 0; j < a->k_seq; j++)
            for (int64_t d = 0; p[j] != 0 && d < a->head_dim; d++)
                out[d] += p[j] * a->v_BSGK[row_of(a->v_at, b, j, h / (a->heads / a->kv_heads), a->kv_heads, a->k_seq, a->head_dim) + d];
    }
    free(p);
}

void ref_attention_backward(const loom_attention_args *a, const float *dout, double *dq, double *dk, double *dv)
{
    double *p = malloc((size_t)(a->k_seq + 1) * sizeof *p), *dp = malloc((size_t)(a->k_seq + 1) * sizeof *dp);
    double scale = a->scale != 0 ? a->scale : 1 / sqrt((double)a->head_dim);
    int64_t size = a->head_dim;

    for (int64_t row = 0; row < a->batch * a->heads * a->q_seq; row++) {
        int64_t b = row / (a->heads * a->q_seq), h = row / a->q_seq % a->heads, i = row % a->q_seq, g = h / (a->heads / a->kv_heads);
        const float *q = a->q_BSHK + row_of(a->q_at, b, i, h, a->heads, a->q_seq, size);
        const float *dy = dout + ((b * a->q_seq + i) * a->heads + h) * size;
        double delta = 0;

        softmax_row(a, b, h, i, p);
        for (int64_t j = 0; j < a->k_seq; j++) {
            const float *v = a->v_BSGK + row_of(a->v_at, b, j, g, a->kv_heads, a->k_seq, size);
            dp[j] = 0;
            for (int64_t d = 0; d < size; d++)
                dp[j] += (double)dy[d] * v[d];
            delta += p[j] * dp[j];
        }
        for (int64_t j = 0; j < a->k_seq; j++) {
            const float *k = a->k_BSGK + row_of(a->k_at, b, j, g, a->kv_heads, a->k_seq, size);
            double ds = p[j] * (dp[j] - delta) * scale;
            int64_t kv = ((b * a->k_seq + j) * a->kv_heads + g) * size;
            for (int64_t d = 0; d < size; d++) {
                dq[((b * a->q_seq + i) * a->heads + h) * size + d] += ds * k[d];
                dk[kv + d] += ds * q[d];
                dv[kv + d] += p[j] * dy[d];
            }
        }
    }
    free(p);
    free(dp);
}
