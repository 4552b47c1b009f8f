/* From tokens to the rows of their experts and back: a counting sort, and rows gathered or summed by index. */
#include "kernels/cpu/isa.h"

loom_status ISA(sort_assignments)(loom_cpu *cpu, const loom_sort_assignments_args *a)
{
    int32_t *next;
    void *workspace;
    loom_status status = loom_cpu_workspace(cpu, (size_t)(a->experts + 1) * sizeof *next, &workspace);

    if (status < 0)
        return status;
    next = workspace;
    memset(a->offset_E1, 0, (size_t)(a->experts + 1) * sizeof *a->offset_E1);
    for (int64_t i = 0; i < a->assignments; i++) {
        int64_t expert = a->expert_A[i] - a->first;
        if (expert >= 0 && expert < a->experts)
            a->offset_E1[expert + 1]++;
    }
    for (int64_t e = 0; e < a->experts; e++)
        a->offset_E1[e + 1] += a->offset_E1[e];
    memcpy(next, a->offset_E1, (size_t)a->experts * sizeof *next);
    for (int64_t i = 0; i < a->assignments; i++) {
        int64_t expert = a->expert_A[i] - a->first;
        bool here = expert >= 0 && expert < a->experts;

        a->position_A[i] = here ? next[expert]++ : -1;
        if (here)
            a->order_R[a->position_A[i]] = (int32_t)i;
    }
    for (int64_t i = a->offset_E1[a->experts]; i < a->assignments; i++)
        a->order_R[i] = -1;
    return LOOM_OK;
}

LOOM_INLINE void scaled_step(float *y, const float *x, vf factor, int64_t i, int n)
{
    vf_put(y + i, vf_get(x + i, n) * factor, n);
}

static void gather(const void *context, int64_t from, int64_t to)
{
    const loom_gather_rows_args *a = context;
    int64_t divide = or_tight(a->divide, 1);

    for (int64_t i = from; i < to; i++) {
        int32_t row = a->row_R[i];
        float *y = a->y_RD + i * a->hidden;

        if (row < 0)
            memset(y, 0, (size_t)a->hidden * sizeof *y);
        else if (a->weight_A)
            EACH_LANES(0, a->hidden, scaled_step, y, a->x_TD + row / divide * a->hidden, vf_set(a->weight_A[row]));
        else
            memcpy(y, a->x_TD + row / divide * a->hidden, (size_t)a->hidden * sizeof *y);
    }
}

loom_status ISA(gather_rows)(loom_cpu *cpu, const loom_gather_rows_args *a)
{
    loom_parallel_spans(cpu->threads, a->rows, row_grain(a->hidden), gather, a);
    return LOOM_OK;
}

/* All of a token's rows at once, so that y is written once. */
LOOM_INLINE void combine_step(const loom_combine_rows_args *a, int64_t t, int64_t i, int n)
{
    float *y = a->y_TD + t * a->hidden + i;
    vf sum = a->accumulate ? vf_get(y, n) : vf_set(0);

    for (int64_t j = t * a->top_k; j < (t + 1) * a->top_k; j++)
        if (a->position_TK[j] >= 0)
            sum = vf_fma(vf_get(a->x_RD + a->position_TK[j] * a->hidden + i, n), vf_set(a->weight_TK ? a->weight_TK[j] : 1), sum);
    vf_put(y, sum, n);
}

static void combine_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_combine_rows_args *a = context;

    for (int64_t t = from; t < to; t++)
        EACH_LANES(0, a->hidden, combine_step, a, t);
}

loom_status ISA(combine_rows)(loom_cpu *cpu, const loom_combine_rows_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->hidden * (a->top_k + 1)), combine_tokens, a);
    return LOOM_OK;
}

LOOM_INLINE void dot_step(vf *sum, const float *x, const float *y, int64_t i, int n)
{
    *sum = vf_fma(vf_get(x + i, n), vf_get(y + i, n), *sum);
}

static void weights_backward_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_combine_weights_backward_args *a = context;

    for (int64_t j = from * a->top_k; j < to * a->top_k; j++) {
        vf sum = {0};

        if (a->position_TK[j] >= 0)
            EACH_LANES(0, a->hidden, dot_step, &sum, a->dy_TD + j / a->top_k * a->hidden, a->x_RD + a->position_TK[j] * a->hidden);
        a->dweight_TK[j] = vf_sum(sum);
    }
}

loom_status ISA(combine_weights_backward)(loom_cpu *cpu, const loom_combine_weights_backward_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->hidden * (a->top_k + 1)), weights_backward_tokens, a);
    return LOOM_OK;
}
