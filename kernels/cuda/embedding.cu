/* Token and position embeddings: rows of a table, and the sum of gradients into them, in token order and without atomics: tokens are sorted
 * by row, and whoever has the first token of a row adds all of that row's. */
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sort.cuh"

struct embedding_op {
    float *y;
    const float *table;
    const int32_t *ids;
    int64_t hidden, first, rows;
    bool accumulate;
    __device__ void row_quad(int64_t t, int64_t i, int64_t cols, bool q) const
    {
        int64_t row = ids[t] - first;
        bool here = row >= 0 && row < rows;
        float4 v = here ? load_some(table + row * hidden, i, cols, q, 0) : make_float4(0, 0, 0, 0);

        if (accumulate && !here)
            return;
        store_some(y + t * hidden, i, cols, q, accumulate ? load_some(y + t * hidden, i, cols, q, 0) + v : v);
    }
};

int loom_gpu_embedding(loom_gpu *gpu, const loom_embedding_args *a)
{
    const embedding_op op = {a->y_TD, a->table_VD, a->ids_T, a->hidden, a->first, a->rows, a->accumulate};

    return each_row(gpu, a->tokens, a->hidden, quads(op.y, op.hidden) && aligned16(op.table), op);
}

struct position_op {
    float *y;
    const float *table;
    const int32_t *rows;
    int64_t hidden, positions, start, seq;
    __device__ void row_quad(int64_t t, int64_t i, int64_t cols, bool q) const
    {
        int64_t row = rows ? rows[t] : start + t % seq;
        float none = not_a_number(); /* a row that the table has not: shown, since nobody here can refuse it */
        float4 v = row >= 0 && row < positions ? load_some(table + row * hidden, i, cols, q, 0) : make_float4(none, none, none, none);

        store_some(y + t * hidden, i, cols, q, load_some(y + t * hidden, i, cols, q, 0) + v);
    }
};

int loom_gpu_position(loom_gpu *gpu, const loom_position_args *a)
{
    const position_op op = {a->y_TD, a->table_PD, a->rows_T, a->hidden, a->positions, a->start, or_tight(a->seq, a->tokens)};

    return each_row(gpu, a->tokens, a->hidden, quads(op.y, op.hidden) && aligned16(op.table), op);
}

/* --- gradients --- */

enum { RUN_THREADS = 64, RUN_AHEAD = 8 };

struct run_args {
    float *dtable;
    const float *dy;
    loom_sorted sorted;
    int64_t count, hidden, rows;
    bool quads;
};

/* How many of the tokens from `at` on, RUN_AHEAD at most, belong to `row`; their numbers. */
LOOM_DEVICE int next_tokens(const run_args &a, int64_t at, int32_t row, int32_t *token)
{
    int n = 0;

    for (int k = 0; k < RUN_AHEAD; k++) {
        bool here = at + k < a.count && a.sorted.key[at + k] == row;
        token[k] = here ? a.sorted.index[at + k] : 0;
        n += here;
    }
    return n;
}

/* A block for every sorted token; those that are not the first of their row have nothing to do. Rows of dy are fetched ahead of the
 * additions, which are a chain. */
__global__ void __launch_bounds__(RUN_THREADS) add_runs_kernel(const run_args a)
{
    int64_t at = blockIdx.x, column = 4 * (static_cast<int64_t>(blockIdx.y) * RUN_THREADS + threadIdx.x);
    int32_t row = a.sorted.key[at], token[RUN_AHEAD];
    int n = RUN_AHEAD;

    if (row >= a.rows || (at > 0 && a.sorted.key[at - 1] == row) || column >= a.hidden)
        return;
    float *to = a.dtable + row * a.hidden;
    float4 sum = load_some(to, column, a.hidden, a.quads, 0), next[RUN_AHEAD];

    for (; n == RUN_AHEAD; at += RUN_AHEAD) {
        n = next_tokens(a, at, row, token);
        for (int k = 0; k < RUN_AHEAD; k++)
            if (k < n)
                next[k] = load_some(a.dy + token[k] * a.hidden, column, a.hidden, a.quads, 0);
        for (int k = 0; k < RUN_AHEAD; k++)
            if (k < n)
                sum = sum + next[k];
    }
    store_some(to, column, a.hidden, a.quads, sum);
}

static int add_by_row(loom_gpu *gpu, float *dtable, const float *dy, int64_t hidden, loom_sort_values rows)
{
    loom_sorted sorted;
    void *scratch;

    if (rows.count == 0 || hidden == 0 || rows.bound == 0)
        return 0;
    scratch = gpu->scratch(gpu, loom_gpu_sort_bytes(rows.count));
    if (!scratch)
        return LOOM_GPU_FAILED;
    LOOM_GPU_TRY(loom_gpu_sort(gpu, rows, scratch, &sorted));
    const run_args a = {dtable, dy, sorted, rows.count, hidden, rows.bound, quads(dtable, hidden) && aligned16(dy)};
    return loom_launch(gpu, add_runs_kernel, dim3(static_cast<unsigned>(rows.count), static_cast<unsigned>(ceil_div(hidden, 4 * RUN_THREADS))),
                       dim3(RUN_THREADS), 0, a);
}

int loom_gpu_embedding_backward(loom_gpu *gpu, const loom_embedding_backward_args *a)
{
    return add_by_row(gpu, a->dtable_VD, a->dy_TD, a->hidden, loom_sort_values{a->ids_T, a->tokens, a->first, a->rows});
}

/* Token t has row start + t % seq, so the tokens of a row are known without a sort. */
struct cycle_op {
    float *dtable;
    const float *dy;
    int64_t hidden, start, seq, tokens;
    __device__ void row_quad(int64_t r, int64_t i, int64_t cols, bool q) const
    {
        float *to = dtable + (start + r) * hidden;
        float4 sum = load_some(to, i, cols, q, 0);

        for (int64_t t = r; t < tokens; t += seq)
            sum = sum + load_some(dy + t * hidden, i, cols, q, 0);
        store_some(to, i, cols, q, sum);
    }
};

int loom_gpu_position_backward(loom_gpu *gpu, const loom_position_backward_args *a)
{
    int64_t seq = or_tight(a->seq, a->tokens);
    const cycle_op op = {a->dtable_PD, a->dy_TD, a->hidden, a->start, seq, a->tokens};

    if (a->rows_T)
        return add_by_row(gpu, a->dtable_PD, a->dy_TD, a->hidden, loom_sort_values{a->rows_T, a->tokens, 0, a->positions});
    return each_row(gpu, seq < a->tokens ? seq : a->tokens, a->hidden, quads(op.dtable, op.hidden) && aligned16(op.dy), op);
}
