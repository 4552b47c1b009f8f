/* Bias, addition, scaling, filling and copying: bound by memory, so each reads and writes once. */
#include "kernels/cpu/isa.h"

LOOM_INLINE void add_step(float *y, const float *a, const float *b, int64_t i, int n)
{
    vf_put(y + i, vf_get(a + i, n) + vf_get(b + i, n), n);
}

static void bias_rows(const void *context, int64_t from, int64_t to)
{
    const loom_bias_args *a = context;
    int64_t ld = or_tight(a->ldy, a->width);

    for (int64_t t = from; t < to; t++)
        EACH_LANES(0, a->width, add_step, a->y_TN + t * ld, a->y_TN + t * ld, a->bias_N);
}

loom_status ISA(bias)(loom_cpu *cpu, const loom_bias_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->width), bias_rows, a);
    return LOOM_OK;
}

/* Four rows a turn, added one after the other: the order of plain row by row, with a quarter of the traffic to dbias. */
LOOM_INLINE void column_step(float *sum, const float *rows, int64_t ld, int count, int64_t i, int n)
{
    vf s = vf_get(sum + i, n);

    for (int r = 0; r < count; r++)
        s += vf_get(rows + r * ld + i, n);
    vf_put(sum + i, s, n);
}

static void bias_backward_columns(const void *context, int64_t from, int64_t to)
{
    const loom_bias_backward_args *a = context;
    int64_t ld = or_tight(a->ld_dy, a->width), t = 0;

    for (; t + 4 <= a->tokens; t += 4)
        EACH_LANES(from, to, column_step, a->dbias_N, a->dy_TN + t * ld, ld, 4);
    for (; t < a->tokens; t++)
        EACH_LANES(from, to, column_step, a->dbias_N, a->dy_TN + t * ld, ld, 1);
}

loom_status ISA(bias_backward)(loom_cpu *cpu, const loom_bias_backward_args *a)
{
    int64_t grain = row_grain(a->tokens);

    loom_parallel_spans(cpu->threads, a->width, grain > 64 ? (grain + 15) / 16 * 16 : 64, bias_backward_columns, a);
    return LOOM_OK;
}

static void add_span(const void *context, int64_t from, int64_t to)
{
    const loom_add_args *a = context;

    EACH_LANES(from, to, add_step, a->y, a->a, a->b);
}

loom_status ISA(add)(loom_cpu *cpu, const loom_add_args *a)
{
    loom_parallel_spans(cpu->threads, a->count, GRAIN_ELEMENTS, add_span, a);
    return LOOM_OK;
}

LOOM_INLINE void axpy_step(float *y, const float *x, float alpha, int64_t i, int n)
{
    vf_put(y + i, vf_fma(vf_set(alpha), vf_get(x + i, n), vf_get(y + i, n)), n);
}

static void axpy_span(const void *context, int64_t from, int64_t to)
{
    const loom_axpy_args *a = context;

    EACH_LANES(from, to, axpy_step, a->y, a->x, a->alpha);
}

loom_status ISA(axpy)(loom_cpu *cpu, const loom_axpy_args *a)
{
    loom_parallel_spans(cpu->threads, a->count, GRAIN_ELEMENTS, axpy_span, a);
    return LOOM_OK;
}

LOOM_INLINE void scale_step(float *y, const float *x, float alpha, int64_t i, int n)
{
    vf_put(y + i, vf_get(x + i, n) * alpha, n);
}

static void scale_span(const void *context, int64_t from, int64_t to)
{
    const loom_scale_args *a = context;
    float alpha = a->alpha_at ? *a->alpha_at : a->alpha;

    EACH_LANES(from, to, scale_step, a->y, a->x, alpha);
}

loom_status ISA(scale)(loom_cpu *cpu, const loom_scale_args *a)
{
    loom_parallel_spans(cpu->threads, a->count, GRAIN_ELEMENTS, scale_span, a);
    return LOOM_OK;
}

LOOM_INLINE void fill_step(float *y, vf value, int64_t i, int n)
{
    vf_put(y + i, value, n);
}

static void fill_span(const void *context, int64_t from, int64_t to)
{
    const loom_fill_args *a = context;

    EACH_LANES(from, to, fill_step, a->y, vf_set(a->value));
}

loom_status ISA(fill)(loom_cpu *cpu, const loom_fill_args *a)
{
    loom_parallel_spans(cpu->threads, a->count, GRAIN_ELEMENTS, fill_span, a);
    return LOOM_OK;
}

static void copy_rows(const void *context, int64_t from, int64_t to)
{
    const loom_copy_args *a = context;
    int64_t y_row = or_tight(a->y_row, a->cols), x_row = or_tight(a->x_row, a->cols);
    int64_t y_plane = or_tight(a->y_plane, a->rows * y_row), x_plane = or_tight(a->x_plane, a->rows * x_row);

    for (int64_t i = from; i < to; i++) {
        float *y = a->y + i / a->rows * y_plane + i % a->rows * y_row;
        const float *x = a->x + i / a->rows * x_plane + i % a->rows * x_row;

        if (a->accumulate)
            EACH_LANES(0, a->cols, add_step, y, y, x);
        else
            memcpy(y, x, (size_t)a->cols * sizeof *y);
    }
}

loom_status ISA(copy)(loom_cpu *cpu, const loom_copy_args *a)
{
    loom_parallel_spans(cpu->threads, or_tight(a->planes, 1) * a->rows, row_grain(a->cols), copy_rows, a);
    return LOOM_OK;
}
