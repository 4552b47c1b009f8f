/* Softmax cross-entropy over a whole or a split vocabulary, and argmax. A row of logits is walked while it is in the cache. */
#include "kernels/cpu/isa.h"

/* Columns whose exponentials are summed in f32 before they join the row's f64 sum. */
enum { SUM_COLUMNS = 2048 };

LOOM_INLINE void largest_step(vf *largest, const float *x, int64_t i, int n)
{
    vf v = vf_get(x + i, n);

    if (n < LANES)
        v = vf_select(vi_ramp() < vi_set(n), v, *largest);
    *largest = vf_max(v, *largest);
}

/* Ignores what is not a number: it shows in the sum. */
LOOM_INLINE float row_largest(const float *x, int64_t cols)
{
    vf largest = vf_set(-INFINITY);

    EACH_LANES(0, cols, largest_step, &largest, x);
    return vf_largest(largest);
}

LOOM_INLINE void exponential_step(vf *sum, const float *x, vf largest, int64_t i, int n)
{
    vf e = vf_exp(vf_get(x + i, n) - largest);

    if (n < LANES)
        e = vf_select(vi_ramp() < vi_set(n), e, vf_set(0));
    *sum += e;
}

LOOM_INLINE double row_sum(const float *x, int64_t cols, float largest)
{
    double total = 0;

    for (int64_t from = 0; from < cols; from += SUM_COLUMNS) {
        int64_t to = from + SUM_COLUMNS < cols ? from + SUM_COLUMNS : cols;
        vf sum = {0};

        EACH_LANES(from, to, exponential_step, &sum, x, vf_set(largest));
        total += vf_sum(sum);
    }
    return total;
}

LOOM_INLINE void gradient_step(float *x, vf largest, vf factor, int64_t i, int n)
{
    vf_put(x + i, vf_exp(vf_get(x + i, n) - largest) * factor, n);
}

/* `column` of the target, outside [0, cols) if another shard has it. */
LOOM_INLINE void row_gradient(float *x, int64_t cols, int64_t ld, int64_t column, float largest, double sum, float weight)
{
    EACH_LANES(0, cols, gradient_step, x, vf_set(largest), vf_set((float)(weight / sum)));
    if (column >= 0 && column < cols)
        x[column] -= weight;
    memset(x + cols, 0, (size_t)(ld - cols) * sizeof *x);
}

static void local_rows(const void *context, int64_t from, int64_t to)
{
    const loom_xent_local_args *a = context;
    int64_t ld = or_tight(a->ld, a->cols);

    for (int64_t t = from; t < to; t++) {
        const float *x = a->logits_TV + t * ld;
        int64_t column = a->targets_T[t] - a->first;
        bool here = a->targets_T[t] != LOOM_IGNORE_INDEX && column >= 0 && column < a->cols;

        a->max_T[t] = row_largest(x, a->cols);
        a->sum_T[t] = (float)row_sum(x, a->cols, a->max_T[t]);
        a->target_T[t] = here ? x[column] : 0;
    }
}

loom_status ISA(xent_local)(loom_cpu *cpu, const loom_xent_local_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->cols * 4), local_rows, a);
    return LOOM_OK;
}

static void rebase_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_xent_rebase_args *a = context;

    for (int64_t t = from; t < to; t++)
        if (a->local_max_T[t] != a->global_max_T[t])
            a->sum_T[t] *= expf(a->local_max_T[t] - a->global_max_T[t]);
}

loom_status ISA(xent_rebase)(loom_cpu *cpu, const loom_xent_rebase_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, GRAIN_ELEMENTS / 16, rebase_tokens, a);
    return LOOM_OK;
}

static void gradient_rows(const void *context, int64_t from, int64_t to)
{
    const loom_xent_gradient_args *a = context;
    int64_t ld = or_tight(a->ld, a->cols);

    for (int64_t t = from; t < to; t++) {
        bool ignored = a->targets_T[t] == LOOM_IGNORE_INDEX;
        float *x = a->logits_TV ? a->logits_TV + t * ld : NULL;

        if (a->loss_T)
            a->loss_T[t] = ignored ? 0 : (float)(log(a->sum_T[t]) + ((double)a->max_T[t] - a->target_T[t]));
        if (x && ignored)
            memset(x, 0, (size_t)ld * sizeof *x);
        else if (x)
            row_gradient(x, a->cols, ld, a->targets_T[t] - a->first, a->max_T[t], a->sum_T[t], a->weight_T ? a->weight_T[t] : 1);
    }
}

loom_status ISA(xent_gradient)(loom_cpu *cpu, const loom_xent_gradient_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain((a->logits_TV ? a->cols : 1) * 4), gradient_rows, a);
    return LOOM_OK;
}

static void whole_rows(const void *context, int64_t from, int64_t to)
{
    const loom_xent_args *a = context;
    int64_t ld = or_tight(a->ld, a->cols);

    for (int64_t t = from; t < to; t++) {
        float *x = a->logits_TV + t * ld;

        if (a->targets_T[t] == LOOM_IGNORE_INDEX) {
            if (a->loss_T)
                a->loss_T[t] = 0;
            if (!a->forward_only)
                memset(x, 0, (size_t)ld * sizeof *x);
            continue;
        }
        float largest = row_largest(x, a->cols);
        double sum = row_sum(x, a->cols, largest);
        bool here =
            a->targets_T[t] >= 0 && a->targets_T[t] < a->cols; /* a target outside the vocabulary shows as a loss that is no number */

        if (a->loss_T)
            a->loss_T[t] = here ? (float)(log(sum) + ((double)largest - x[a->targets_T[t]])) : NAN;
        if (!a->forward_only)
            row_gradient(x, a->cols, ld, a->targets_T[t], largest, sum, a->weight_T ? a->weight_T[t] : 1);
    }
}

loom_status ISA(xent)(loom_cpu *cpu, const loom_xent_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->cols * 8), whole_rows, a);
    return LOOM_OK;
}

static void argmax_rows(const void *context, int64_t from, int64_t to)
{
    const loom_argmax_args *a = context;
    int64_t ld = or_tight(a->ld, a->cols);

    for (int64_t t = from; t < to; t++) {
        const float *x = a->x_TV + t * ld;
        float value = row_largest(x, a->cols);
        int64_t i = 0;

        while (i < a->cols && x[i] != value && !isnan(x[i]))
            i++;
        a->index_T[t] = i < a->cols ? (int32_t)i : -1;
        if (a->value_T)
            a->value_T[t] = i < a->cols ? x[i] : value;
    }
}

loom_status ISA(argmax)(loom_cpu *cpu, const loom_argmax_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->cols), argmax_rows, a);
    return LOOM_OK;
}
