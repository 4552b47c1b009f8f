/* The blocks of our own matrix product: pack a part of B and rows of A into strips, run tiles over them. */
#ifndef LOOM_KERNELS_PRODUCT_H
#define LOOM_KERNELS_PRODUCT_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tile.h"

/* k and columns of the packed part of B (2 MiB, in the last cache), rows of the packed part of A (in the second). */
enum { K_BLOCK = 256, COLUMN_BLOCK = 2048, ROW_BLOCK = 10 * TILE_ROWS, PACKED_A = ROW_BLOCK * K_BLOCK + 16, COLUMNS_AHEAD = 8 * LANES };

typedef struct block_product {
    const loom_gemm_args *a;
    const float *a_matrix, *b_matrix;
    float *c_matrix;
    int64_t lda, ldb, ldc;
    int64_t k_from, k_count, n_from, n_count;
    int64_t column_groups, strips_per_group; /* of tasks that share a packed B */
    float *packed_b, *packed_a;              /* packed_a: one a thread */
} block_product;

/* Strip s of B: [k_count][TILE_COLS]; nobody reads beyond the last column. */
static inline void pack_b_strips(const void *context, int64_t from, int64_t to)
{
    const block_product *p = context;

    for (int64_t s = from; s < to; s++) {
        float *strip = p->packed_b + s * p->k_count * TILE_COLS;
        int64_t column = p->n_from + s * TILE_COLS, left = p->n_from + p->n_count - column;
        int64_t cols = left < TILE_COLS ? left : TILE_COLS;

        if (p->a->transpose_b)
            transpose_panel(strip, TILE_COLS, p->b_matrix + column * p->ldb + p->k_from, p->ldb, cols, p->k_count, 1, COLUMNS_AHEAD);
        else
            copy_panel(strip, TILE_COLS, p->b_matrix + p->k_from * p->ldb + column, p->ldb, p->k_count, cols, 1);
    }
}

/* Rows of A as strips [k_count][TILE_ROWS], vector by vector: a store reaches into the place of the next k, which is written after it. A
 * last strip of fewer rows leaves the rest of its lines undefined. */
static inline void pack_a_strip(float *packed, const float *a, int64_t lda, int64_t rows, int64_t k_count, bool transposed)
{
    if (transposed)
        for (int64_t k = 0; k < k_count; k++) {
            __builtin_prefetch(a + (k + ROWS_AHEAD) * lda);
            vf_store(packed + k * TILE_ROWS, vf_get(a + k * lda, (int)rows < LANES ? (int)rows : LANES));
        }
    else
        transpose_lanes(packed, TILE_ROWS, a, lda, rows, k_count, 1, COLUMNS_AHEAD);
}

static inline void pack_a(const block_product *p, int64_t row, int64_t rows, float *packed)
{
    bool transposed = p->a->transpose_a;
    const float *a = p->a_matrix + (transposed ? p->k_from * p->lda + row : row * p->lda + p->k_from);

    for (int64_t s = 0; s < rows; s += TILE_ROWS, packed += p->k_count * TILE_ROWS)
        pack_a_strip(packed, a + s * (transposed ? 1 : p->lda), p->lda, rows - s < TILE_ROWS ? rows - s : TILE_ROWS, p->k_count,
                     transposed);
}

/* The bias goes into C before the first part of k is added to it. */
static inline void start_with_bias(float *c, int64_t ldc, const float *bias, int64_t rows, int64_t cols, bool accumulate)
{
    for (int64_t i = 0; i < rows; i++, c += ldc)
        for (int64_t j = 0; j < cols; j++)
            c[j] = accumulate ? c[j] + bias[j] : bias[j];
}

static inline void strip_product(const block_product *p, const float *packed_a, int64_t row, int64_t rows, int64_t strip)
{
    int64_t column = p->n_from + strip * TILE_COLS, left = p->n_from + p->n_count - column, cols = left < TILE_COLS ? left : TILE_COLS;
    bool first = p->k_from == 0;
    tile_operands o = {
        .a_row = 1,
        .a_step = TILE_ROWS,
        .b = p->packed_b + strip * p->k_count * TILE_COLS,
        .ldb = TILE_COLS,
        .ldc = p->ldc,
        .k = p->k_count,
        .add = !first || p->a->accumulate || p->a->bias_N,
    };

    if (first && p->a->bias_N)
        start_with_bias(p->c_matrix + row * p->ldc + column, p->ldc, p->a->bias_N + column, rows, cols, p->a->accumulate);
    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        o.a = packed_a + i * p->k_count;
        o.c = p->c_matrix + (row + i) * p->ldc + column;
        tile_product(o, rows - i < TILE_ROWS ? rows - i : TILE_ROWS, cols);
    }
}

/* Parts of k alike, none above K_BLOCK: a short last one would cost as much traffic to C as a whole one. */
static inline int64_t k_block_of(int64_t k)
{
    int64_t blocks = (k + K_BLOCK - 1) / K_BLOCK;

    return blocks ? (k + blocks - 1) / blocks : 0;
}

#endif
