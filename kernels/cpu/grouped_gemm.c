/* Products of ragged groups of rows, as experts need them. Every group is cut into pieces of at most PIECE_ROWS x PIECE_COLUMNS of its
 * result; a piece is one task, packed and multiplied by one thread, so that groups of any size share the threads evenly. */
#include "kernels/cpu/product.h"

enum { PIECE_ROWS = 4 * ROW_BLOCK, PIECE_COLUMNS = 256 };

typedef struct grouped {
    const loom_grouped_gemm_args *a;
    int32_t *first_piece; /* [groups + 1] */
    int64_t column_pieces;
    float *scratch; /* packed B and A of each thread */
    int64_t scratch_floats;
} grouped;

static int64_t rows_of_group(const loom_grouped_gemm_args *a, int64_t group)
{
    return a->offset_G1[group + 1] - a->offset_G1[group];
}

/* Which group a piece belongs to: the last whose first piece is not beyond it. */
static int64_t group_of_piece(const grouped *g, int64_t piece)
{
    int64_t low = 0, high = g->a->groups;

    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (g->first_piece[middle] <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void clear_piece(const block_product *p, int64_t row, int64_t rows)
{
    for (int64_t i = row; i < row + rows && !p->a->accumulate; i++)
        memset(p->c_matrix + i * p->ldc + p->n_from, 0, (size_t)p->n_count * sizeof(float));
}

static void multiply_piece(block_product *p, int64_t row, int64_t rows)
{
    int64_t strips = (p->n_count + TILE_COLS - 1) / TILE_COLS, k_block = k_block_of(p->a->k);

    if (p->a->k == 0)
        clear_piece(p, row, rows);
    for (p->k_from = 0; p->k_from < p->a->k; p->k_from += p->k_count) {
        p->k_count = p->a->k - p->k_from < k_block ? p->a->k - p->k_from : k_block;
        pack_b_strips(p, 0, strips);
        for (int64_t i = row; i < row + rows; i += ROW_BLOCK) {
            int64_t high = row + rows - i < ROW_BLOCK ? row + rows - i : ROW_BLOCK;

            pack_a(p, i, high, p->packed_a);
            for (int64_t s = 0; s < strips; s++)
                strip_product(p, p->packed_a, i, high, s);
        }
    }
}

static void piece_task(const void *context, int64_t task, int thread)
{
    const grouped *g = context;
    int64_t group = group_of_piece(g, task), piece = task - g->first_piece[group];
    const loom_gemm_args a = loom_cpu_product_of_group(g->a, group);
    int64_t row = piece / g->column_pieces * PIECE_ROWS, column = piece % g->column_pieces * PIECE_COLUMNS;
    block_product p = {
        .a = &a,
        .a_matrix = a.a_MK,
        .b_matrix = a.b_KN,
        .c_matrix = a.c_MN,
        .lda = a.lda,
        .ldb = a.ldb,
        .ldc = a.ldc,
        .n_from = column,
        .n_count = a.n - column < PIECE_COLUMNS ? a.n - column : PIECE_COLUMNS,
        .packed_b = g->scratch + thread * g->scratch_floats,
        .packed_a = g->scratch + thread * g->scratch_floats + K_BLOCK * PIECE_COLUMNS,
    };

    multiply_piece(&p, row, a.m - row < PIECE_ROWS ? a.m - row : PIECE_ROWS);
}

loom_status ISA(grouped_gemm)(loom_cpu *cpu, const loom_grouped_gemm_args *a)
{
    grouped g = {.a = a, .column_pieces = (a->n + PIECE_COLUMNS - 1) / PIECE_COLUMNS, .scratch_floats = K_BLOCK * PIECE_COLUMNS + PACKED_A};
    size_t scratch_bytes = (size_t)(cpu->threads * g.scratch_floats) * sizeof(float);
    void *workspace;
    loom_status status = loom_cpu_workspace(cpu, scratch_bytes + (size_t)(a->groups + 1) * sizeof(int32_t), &workspace);

    if (status < 0)
        return status;
    g.scratch = workspace;
    g.first_piece = (int32_t *)((char *)workspace + scratch_bytes);
    g.first_piece[0] = 0;
    for (int64_t i = 0; i < a->groups; i++) {
        int64_t rows = a->ragged_k ? a->m : rows_of_group(a, i);
        g.first_piece[i + 1] = g.first_piece[i] + (int32_t)((rows + PIECE_ROWS - 1) / PIECE_ROWS * g.column_pieces);
    }
    loom_parallel_tasks(cpu->threads, g.first_piece[a->groups], piece_task, &g);
    return LOOM_OK;
}
