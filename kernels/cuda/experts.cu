/* From tokens to the rows of their experts and back: sorting, gathering, and sums of a token's rows. */
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sort.cuh"

enum { THREADS = 256 };

struct assign_args {
    loom_sort_assignments_args a;
    loom_sorted sorted;
};

/* Order and position are each other's inverse; offsets are found in the sorted keys. */
__global__ void __launch_bounds__(THREADS) assign_kernel(const assign_args k)
{
    const loom_sort_assignments_args &a = k.a;
    int64_t first = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, step = static_cast<int64_t>(gridDim.x) * THREADS;

    for (int64_t row = first; row < a.assignments; row += step) {
        int32_t index = k.sorted.index[row];
        bool here = k.sorted.key[row] < a.experts;

        a.order_R[row] = here ? index : -1;
        a.position_A[index] = here ? static_cast<int32_t>(row) : -1;
    }
    for (int64_t e = first; e <= a.experts; e += step)
        a.offset_E1[e] = static_cast<int32_t>(first_not_below(k.sorted.key, a.assignments, e));
}

int loom_gpu_sort_assignments(loom_gpu *gpu, const loom_sort_assignments_args *a)
{
    assign_args k = {*a, {nullptr, nullptr}};

    if (a->assignments > 0) {
        void *scratch = gpu->scratch(gpu, loom_gpu_sort_bytes(a->assignments));
        if (!scratch)
            return LOOM_GPU_FAILED;
        LOOM_GPU_TRY(loom_gpu_sort(gpu, loom_sort_values{a->expert_A, a->assignments, a->first, a->experts}, scratch, &k.sorted));
    }
    return loom_launch(gpu, assign_kernel, dim3(stride_blocks(gpu, a->assignments + a->experts, THREADS)), dim3(THREADS), 0, k);
}

struct gather_op {
    float *y;
    const float *x, *weight;
    const int32_t *row;
    int64_t hidden, divide;
    __device__ void row_quad(int64_t r, int64_t i, int64_t cols, bool q) const
    {
        int32_t from = row[r];
        float4 v = from < 0 ? make_float4(0, 0, 0, 0) : load_some(x + from / divide * hidden, i, cols, q, 0);

        store_some(y + r * hidden, i, cols, q, from >= 0 && weight ? v * weight[from] : v);
    }
};

int loom_gpu_gather_rows(loom_gpu *gpu, const loom_gather_rows_args *a)
{
    const gather_op op = {a->y_RD, a->x_TD, a->weight_A, a->row_R, a->hidden, or_tight(a->divide, 1)};

    return each_row(gpu, a->rows, a->hidden, quads(op.y, op.hidden) && aligned16(op.x), op);
}

struct combine_op {
    float *y;
    const float *x, *weight;
    const int32_t *position;
    int64_t hidden, top_k;
    bool accumulate;
    __device__ void row_quad(int64_t t, int64_t i, int64_t cols, bool q) const
    {
        float4 sum = accumulate ? load_some(y + t * hidden, i, cols, q, 0) : make_float4(0, 0, 0, 0);

        for (int64_t j = t * top_k; j < (t + 1) * top_k; j++)
            if (position[j] >= 0)
                sum = sum + load_some(x + position[j] * hidden, i, cols, q, 0) * (weight ? weight[j] : 1.0f);
        store_some(y + t * hidden, i, cols, q, sum);
    }
};

int loom_gpu_combine_rows(loom_gpu *gpu, const loom_combine_rows_args *a)
{
    const combine_op op = {a->y_TD, a->x_RD, a->weight_TK, a->position_TK, a->hidden, a->top_k, a->accumulate};

    return each_row(gpu, a->tokens, a->hidden, quads(op.y, op.hidden) && aligned16(op.x), op);
}

struct dot_args {
    loom_combine_weights_backward_args a;
    int64_t assignments;
    bool quads;
};

/* A warp an assignment. */
__global__ void __launch_bounds__(THREADS) dot_kernel(const dot_args k)
{
    const loom_combine_weights_backward_args &a = k.a;
    int64_t step = static_cast<int64_t>(gridDim.x) * (THREADS / LOOM_WARP), lane = threadIdx.x % LOOM_WARP;

    for (int64_t j = static_cast<int64_t>(blockIdx.x) * (THREADS / LOOM_WARP) + threadIdx.x / LOOM_WARP; j < k.assignments; j += step) {
        float sum = 0;

        for (int64_t i = 4 * lane; a.position_TK[j] >= 0 && i < a.hidden; i += 4 * LOOM_WARP) {
            float4 x = load_some(a.x_RD + a.position_TK[j] * a.hidden, i, a.hidden, k.quads, 0);
            float4 dy = load_some(a.dy_TD + j / a.top_k * a.hidden, i, a.hidden, k.quads, 0);
            sum += (x.x * dy.x + x.y * dy.y) + (x.z * dy.z + x.w * dy.w);
        }
        sum = warp_sum(sum);
        if (lane == 0)
            a.dweight_TK[j] = sum;
    }
}

int loom_gpu_combine_weights_backward(loom_gpu *gpu, const loom_combine_weights_backward_args *a)
{
    const dot_args k = {*a, a->tokens * a->top_k, quads(a->x_RD, a->hidden) && aligned16(a->dy_TD)};

    if (k.assignments == 0)
        return 0;
    return loom_launch(gpu, dot_kernel, dim3(stride_blocks(gpu, k.assignments, THREADS / LOOM_WARP)), dim3(THREADS), 0, k);
}
