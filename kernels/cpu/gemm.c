/* Our own matrix product: blocks of B and A are packed into strips, tiles run over them. Used where no library is there, and wherever bits
 * must not depend on how rows or columns were split: an element of C is the same chain of additions whatever M and N are around it. */
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/product.h"

/* A task: one row block times one group of strips of B. */
static void block_task(const void *context, int64_t task, int thread)
{
    const block_product *p = context;
    int64_t row = task / p->column_groups * ROW_BLOCK, left = p->a->m - row, rows = left < ROW_BLOCK ? left : ROW_BLOCK;
    int64_t strips = (p->n_count + TILE_COLS - 1) / TILE_COLS, from = task % p->column_groups * p->strips_per_group;
    int64_t to = from + p->strips_per_group < strips ? from + p->strips_per_group : strips;
    float *packed_a = p->packed_a + (int64_t)thread * PACKED_A;

    pack_a(p, row, rows, packed_a);
    for (int64_t s = from; s < to; s++)
        strip_product(p, packed_a, row, rows, s);
}

/* Enough tasks that the threads end together, as few as that allows, since each packs its rows of A again. */
static void divide(block_product *p, int threads)
{
    int64_t row_blocks = (p->a->m + ROW_BLOCK - 1) / ROW_BLOCK, strips = (p->n_count + TILE_COLS - 1) / TILE_COLS;
    int64_t groups = threads == 1 ? 1 : (4 * threads + row_blocks - 1) / row_blocks;

    if (groups > strips)
        groups = strips;
    p->strips_per_group = (strips + groups - 1) / groups;
    p->column_groups = (strips + p->strips_per_group - 1) / p->strips_per_group;
    loom_parallel_spans(threads, strips, 4, pack_b_strips, p);
    loom_parallel_tasks(threads, row_blocks * p->column_groups, block_task, p);
}

/* k = 0: nothing to multiply, but C still becomes 0 or gets its bias. */
static void empty_sum(const loom_gemm_args *a, float *c, int64_t ldc)
{
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->n; j++)
            c[i * ldc + j] = (a->accumulate ? c[i * ldc + j] : 0) + (a->bias_N ? a->bias_N[j] : 0);
}

/* Rows of all matrices of the batch, one after the other. */
static void gelu_rows(const void *context, int64_t from, int64_t to)
{
    const loom_gemm_args *a = context;

    for (int64_t i = from; i < to; i++) {
        int64_t at = i / a->m * a->stride_c + i % a->m * or_tight(a->ldc, a->n);

        if (a->gelu_MN)
            EACH_LANES(0, a->n, gelu_lanes, a->gelu_MN + at, a->c_MN + at);
        else
            EACH_LANES(0, a->n, gelu_slope_lanes, a->c_MN + at, a->c_MN + at, a->gelu_input_MN + at);
    }
}

/* A pass of its own over C: on tiles that were in a cache yet it took longer, measured in three ways. The other matrix comes from memory or goes
 * there, and does so fastest along whole rows; next to the tiles it drives out the packed factors. */
void ISA(gemm_gelu)(loom_cpu *cpu, const loom_gemm_args *a)
{
    if (a->gelu_MN || a->gelu_input_MN)
        loom_parallel_spans(cpu->threads, or_tight(a->batch, 1) * a->m, row_grain(a->n * 4), gelu_rows, a);
}

loom_status ISA(gemm)(loom_cpu *cpu, const loom_gemm_args *a)
{
    const int64_t k_block = k_block_of(a->k);
    int64_t packed_b = K_BLOCK * (a->n < COLUMN_BLOCK ? (a->n + TILE_COLS - 1) / TILE_COLS * TILE_COLS : COLUMN_BLOCK);
    void *workspace;
    loom_status status = loom_cpu_workspace(cpu, (size_t)(packed_b + cpu->threads * PACKED_A) * sizeof(float), &workspace);

    if (status < 0 || a->m == 0 || a->n == 0)
        return status;
    block_product p = {
        .a = a,
        .lda = or_tight(a->lda, a->transpose_a ? a->m : a->k),
        .ldb = or_tight(a->ldb, a->transpose_b ? a->k : a->n),
        .ldc = or_tight(a->ldc, a->n),
        .packed_b = workspace,
        .packed_a = (float *)workspace + packed_b,
    };
    for (int64_t i = 0; i < or_tight(a->batch, 1); i++) {
        p.a_matrix = a->a_MK + i * a->stride_a;
        p.b_matrix = a->b_KN + i * a->stride_b;
        p.c_matrix = a->c_MN + i * a->stride_c;
        if (a->k == 0)
            empty_sum(a, p.c_matrix, p.ldc);
        for (p.n_from = 0; p.n_from < a->n; p.n_from += COLUMN_BLOCK)
            for (p.k_from = 0; p.k_from < a->k; p.k_from += p.k_count) {
                p.n_count = a->n - p.n_from < COLUMN_BLOCK ? a->n - p.n_from : COLUMN_BLOCK;
                p.k_count = a->k - p.k_from < k_block ? a->k - p.k_from : k_block;
                divide(&p, cpu->threads);
            }
    }
    ISA(gemm_gelu)(cpu, a);
    return LOOM_OK;
}
