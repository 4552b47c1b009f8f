/* Token and position embeddings: rows of a table, and the sum of gradients into them. */
#include "kernels/cpu/isa.h"

LOOM_INLINE void add_step(float *y, const float *x, int64_t i, int n)
{
    vf_put(y + i, vf_get(y + i, n) + vf_get(x + i, n), n);
}

static void embedding_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_embedding_args *a = context;

    for (int64_t t = from; t < to; t++) {
        int64_t row = a->ids_T[t] - a->first;
        bool here = row >= 0 && row < a->rows;
        float *y = a->y_TD + t * a->hidden;

        if (here && a->accumulate)
            EACH_LANES(0, a->hidden, add_step, y, a->table_VD + row * a->hidden);
        else if (here)
            memcpy(y, a->table_VD + row * a->hidden, (size_t)a->hidden * sizeof *y);
        else if (!a->accumulate)
            memset(y, 0, (size_t)a->hidden * sizeof *y);
    }
}

loom_status ISA(embedding)(loom_cpu *cpu, const loom_embedding_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->hidden), embedding_tokens, a);
    return LOOM_OK;
}

/* Each thread has columns of its own and walks all tokens, so equal ids add up in token order however many threads there are. */
static void embedding_backward_columns(const void *context, int64_t from, int64_t to)
{
    const loom_embedding_backward_args *a = context;

    for (int64_t t = 0; t < a->tokens; t++) {
        int64_t row = a->ids_T[t] - a->first;

        if (row >= 0 && row < a->rows)
            EACH_LANES(from, to, add_step, a->dtable_VD + row * a->hidden, a->dy_TD + t * a->hidden);
    }
}

loom_status ISA(embedding_backward)(loom_cpu *cpu, const loom_embedding_backward_args *a)
{
    loom_parallel_spans(cpu->threads, a->hidden, 64, embedding_backward_columns, a);
    return LOOM_OK;
}

static void position_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_position_args *a = context;
    int64_t seq = or_tight(a->seq, a->tokens);

    for (int64_t t = from; t < to; t++) {
        int64_t row = a->rows_T ? a->rows_T[t] : a->start + t % seq;

        EACH_LANES(0, a->hidden, add_step, a->y_TD + t * a->hidden, a->table_PD + row * a->hidden);
    }
}

loom_status ISA(position)(loom_cpu *cpu, const loom_position_args *a)
{
    loom_status status = loom_cpu_check_rows("position", a->rows_T, a->tokens, a->positions);

    if (status < 0)
        return status;
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->hidden), position_tokens, a);
    return LOOM_OK;
}

static void position_backward_columns(const void *context, int64_t from, int64_t to)
{
    const loom_position_backward_args *a = context;
    int64_t seq = or_tight(a->seq, a->tokens);

    for (int64_t t = 0; t < a->tokens; t++) {
        int64_t row = a->rows_T ? a->rows_T[t] : a->start + t % seq;

        EACH_LANES(from, to, add_step, a->dtable_PD + row * a->hidden, a->dy_TD + t * a->hidden);
    }
}

loom_status ISA(position_backward)(loom_cpu *cpu, const loom_position_backward_args *a)
{
    loom_status status = loom_cpu_check_rows("position_backward", a->rows_T, a->tokens, a->positions);

    if (status < 0)
        return status;
    loom_parallel_spans(cpu->threads, a->hidden, 64, position_backward_columns, a);
    return LOOM_OK;
}
