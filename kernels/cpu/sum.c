/* Sums of many numbers in f64. Every block of BLOCK elements is summed by itself in SUM_LANES running sums, then the blocks in order: the
 * result depends neither on the threads nor on the instruction set. */
#include "kernels/cpu/isa.h"

enum { BLOCK = 16384, SUM_LANES = 16 };

typedef double wide __attribute__((vector_size(SUM_LANES * 8)));
typedef float narrow __attribute__((vector_size(SUM_LANES * 4), aligned(4), may_alias));

typedef struct sum_blocks {
    const float *x;
    int64_t count;
    double *partial;
    bool square;
} sum_blocks;

LOOM_INLINE double block_sum(const float *x, int64_t count, bool square)
{
    wide sums = {0};
    double sum = 0;
    int64_t i = 0;

    for (; i + SUM_LANES <= count; i += SUM_LANES) {
        wide v = __builtin_convertvector(*(const narrow *)(x + i), wide);

        sums += square ? v * v : v;
    }
    for (int lane = 0; lane < SUM_LANES; lane++)
        sum += sums[lane];
    for (; i < count; i++)
        sum += square ? (double)x[i] * x[i] : x[i];
    return sum;
}

static void sum_block(const void *context, int64_t from, int64_t to)
{
    const sum_blocks *s = context;

    for (int64_t b = from; b < to; b++) {
        int64_t left = s->count - b * BLOCK, count = left < BLOCK ? left : BLOCK;
        const float *x = s->x + b * BLOCK;

        s->partial[b] = s->square ? block_sum(x, count, true) : block_sum(x, count, false);
    }
}

static loom_status sum_all(loom_cpu *cpu, const loom_sum_args *a, bool square)
{
    int64_t blocks = (a->count + BLOCK - 1) / BLOCK;
    double sum = 0;
    void *workspace;
    loom_status status = loom_cpu_workspace(cpu, (size_t)blocks * sizeof(double), &workspace);

    if (status < 0)
        return status;
    sum_blocks s = {.x = a->x, .count = a->count, .partial = workspace, .square = square};

    loom_parallel_spans(cpu->threads, blocks, 1, sum_block, &s);
    for (int64_t b = 0; b < blocks; b++)
        sum += s.partial[b];
    *a->sum = a->accumulate ? *a->sum + sum : sum;
    return LOOM_OK;
}

loom_status ISA(sum)(loom_cpu *cpu, const loom_sum_args *a)
{
    return sum_all(cpu, a, false);
}

loom_status ISA(sum_squares)(loom_cpu *cpu, const loom_sum_args *a)
{
    return sum_all(cpu, a, true);
}
