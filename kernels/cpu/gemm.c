/* Our own matrix product: blocks of B and A are packed into strips, tiles run over them. Used where no library is there, and wherever bits must
 * not depend on how rows or columns were split: an element of C is the same chain of additions whatever M and N are around it. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tile.h"

/* k and columns of the packed part of B (2 MiB, in the last cache), rows of the packed part of A (in the second). */
enum { K_BLOCK = 256, COLUMN_BLOCK = 2048, ROW_BLOCK = 10 * TILE_ROWS, PACKED_A = ROW_BLOCK * K_BLOCK + 16 };

typedef struct block_product {
    const loom_gemm_args *a;
    const float *a_matrix, *b_matrix;
    float *c_matrix;
    int64_t lda, ldb, ldc;
    int64_t k_from, k_count, n_from, n_count;
    int64_t column_groups, strips_per_group; /* a task: one row block times one group of strips of B */
    float *packed_b, *packed_a;              /* packed_a: one a thread */
} block_product;

/* Strip s of B: [k_count][TILE_COLS]; nobody reads beyond the last column. */
static void pack_b_strips(const void *context, int64_t from, int64_t to)
{
    const block_product *p = context;

    for (int64_t s = from; s < to; s++) {
        float *strip = p->packed_b + s * p->k_count * TILE_COLS;
        int64_t column = p->n_from + s * TILE_COLS, left = p->n_from + p->n_count - column;
        int64_t cols = left < TILE_COLS ? left : TILE_COLS;

        if (p->a->transpose_b)
            transpose_panel(strip, TILE_COLS, p->b_matrix + column * p->ldb + p->k_from, p->ldb, cols, p->k_count, 1);
        else
            copy_panel(strip, TILE_COLS, p->b_matrix + p->k_from * p->ldb + column, p->ldb, p->k_count, cols, 1);
    }
}

/* Rows of A as strips [k_count][TILE_ROWS], vector by vector: a store reaches into the place of the next k, which is written after it. A last strip
 * of fewer rows leaves the rest of its lines undefined. */
static void pack_a_strip(float *packed, const float *a, int64_t lda, int64_t rows, int64_t k_count, bool transposed)
{
    if (transposed)
        for (int64_t k = 0; k < k_count; k++)
            vf_store(packed + k * TILE_ROWS, vf_get(a + k * lda, (int)rows < LANES ? (int)rows : LANES));
    else
        transpose_lanes(packed, TILE_ROWS, a, lda, rows, k_count, 1);
}

static void pack_a(const block_product *p, int64_t row, int64_t rows, float *packed)
{
    bool transposed = p->a->transpose_a;
    const float *a = p->a_matrix + (transposed ? p->k_from * p->lda + row : row * p->lda + p->k_from);

    for (int64_t s = 0; s < rows; s += TILE_ROWS, packed += p->k_count * TILE_ROWS)
        pack_a_strip(packed, a + s * (transposed ? 1 : p->lda), p->lda, rows - s < TILE_ROWS ? rows - s : TILE_ROWS, p->k_count, transposed);
}

static void strip_product(const block_product *p, const float *packed_a, int64_t row, int64_t rows, int64_t strip)
{
    int64_t column = p->n_from + strip * TILE_COLS, left = p->n_from + p->n_count - column;
    bool first = p->k_from == 0;
    tile_operands o = {
        .a_row = 1,
        .a_step = TILE_ROWS,
        .b = p->packed_b + strip * p->k_count * TILE_COLS,
        .ldb = TILE_COLS,
        .ldc = p->ldc,
        .k = p->k_count,
        .bias = first && p->a->bias_N ? p->a->bias_N + column : NULL,
        .add = !first || p->a->accumulate,
    };

    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        o.a = packed_a + i * p->k_count;
        o.c = p->c_matrix + (row + i) * p->ldc + column;
        tile_product(o, rows - i < TILE_ROWS ? rows - i : TILE_ROWS, left < TILE_COLS ? left : TILE_COLS);
    }
}

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

loom_status ISA(gemm)(loom_cpu *cpu, const loom_gemm_args *a)
{
    const int64_t k_blocks = (a->k + K_BLOCK - 1) / K_BLOCK, k_block = k_blocks ? (a->k + k_blocks - 1) / k_blocks : 0; /* alike: no short last one */
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
    return LOOM_OK;
}
