/* Rotary positions: the table, and the rotation of half-split pairs. */
#include "kernels/cpu/isa.h"

static void table_rows(const void *context, int64_t from, int64_t to)
{
    const loom_rope_table_args *a = context;
    int64_t half = a->head_dim / 2;

    for (int64_t r = from; r < to; r++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)(a->start + r) * pow(a->theta, -2.0 * (double)i / (double)a->head_dim);

            a->cos_PK[r * half + i] = (float)cos(angle);
            a->sin_PK[r * half + i] = (float)sin(angle);
        }
}

loom_status ISA(rope_table)(loom_cpu *cpu, const loom_rope_table_args *a)
{
    loom_parallel_spans(cpu->threads, a->positions, row_grain(a->head_dim * 32), table_rows, a);
    return LOOM_OK;
}

LOOM_INLINE void rotate_step(float *y, const float *x, const float *cosine, const float *sine, int64_t half, vf sign, int64_t i, int n)
{
    vf low = vf_get(x + i, n), high = vf_get(x + half + i, n);
    vf c = vf_get(cosine + i, n), s = vf_get(sine + i, n) * sign;

    vf_put(y + i, low * c - high * s, n);
    vf_put(y + half + i, high * c + low * s, n);
}

static void rope_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_rope_args *a = context;
    int64_t half = a->head_dim / 2, seq = or_tight(a->seq, a->tokens);
    int64_t y_head = or_tight(a->y_head, a->head_dim), x_head = or_tight(a->x_head, a->head_dim);
    int64_t y_token = or_tight(a->y_token, a->heads * a->head_dim), x_token = or_tight(a->x_token, a->heads * a->head_dim);
    vf sign = vf_set(a->inverse ? -1.0f : 1.0f);

    for (int64_t t = from; t < to; t++) {
        int64_t row = a->rows_T ? a->rows_T[t] : a->start + t % seq;

        for (int64_t h = 0; h < a->heads; h++)
            EACH_LANES(0, half, rotate_step, a->y_THK + t * y_token + h * y_head, a->x_THK + t * x_token + h * x_head,
                       a->cos_PK + row * half, a->sin_PK + row * half, half, sign);
    }
}

loom_status ISA(rope)(loom_cpu *cpu, const loom_rope_args *a)
{
    loom_status status = loom_cpu_check_rows("rope", a->rows_T, a->tokens, a->positions);

    if (status < 0)
        return status;
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->heads * a->head_dim), rope_tokens, a);
    return LOOM_OK;
}
