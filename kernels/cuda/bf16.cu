/* Rows of f32 as bf16, eight numbers a thread at a time, and back. */
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/bf16.h"
#include "kernels/cuda/rows.cuh"

enum { THREADS = 256, CHUNK = 8 };

struct alignas(16) halves8 {
    unsigned short at[CHUNK];
};

struct bf16_args {
    loom_bf16_rows r;
    bool quads;
};

/* Row `row` of all matrices. */
LOOM_DEVICE float *wide_row(const loom_bf16_rows &r, int64_t row)
{
    return r.wide + row / r.rows * r.stride + row % r.rows * r.ld;
}

__global__ void __launch_bounds__(THREADS) narrow_kernel(const bf16_args a)
{
    const loom_bf16_rows &r = a.r;
    int64_t across = r.narrow_ld / CHUNK, chunks = r.matrices * r.rows * across, step = static_cast<int64_t>(gridDim.x) * THREADS;

    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < chunks; i += step) {
        const float *x = wide_row(r, i / across);
        int64_t column = i % across * CHUNK;
        float4 low = load_some(x, column, r.cols, a.quads, 0), high = load_some(x, column + 4, r.cols, a.quads, 0);
        halves8 y = {bf16_of(low.x),  bf16_of(low.y),  bf16_of(low.z),  bf16_of(low.w),
                     bf16_of(high.x), bf16_of(high.y), bf16_of(high.z), bf16_of(high.w)};

        *reinterpret_cast<halves8 *>(r.narrow + i * CHUNK) = y;
    }
}

static bool whole_quads(const loom_bf16_rows *r)
{
    return quads(r->wide, r->ld) && (r->matrices == 1 || r->stride % 4 == 0);
}

int loom_gpu_narrow(const loom_gpu *gpu, const loom_bf16_rows *r)
{
    const bf16_args a = {*r, whole_quads(r)};
    int64_t chunks = r->matrices * r->rows * (r->narrow_ld / CHUNK);

    return loom_launch(gpu, narrow_kernel, dim3(stride_blocks(gpu, chunks, THREADS)), dim3(THREADS), 0, a);
}

struct widened_rows {
    loom_bf16_rows r;
    bool accumulate;
    __device__ void row_quad(int64_t row, int64_t i, int64_t cols, bool q) const
    {
        uint2 bits = *reinterpret_cast<const uint2 *>(r.narrow + row * r.narrow_ld + i);
        float4 v = make_float4(of_bf16(static_cast<unsigned short>(bits.x)), of_bf16(static_cast<unsigned short>(bits.x >> 16)),
                               of_bf16(static_cast<unsigned short>(bits.y)), of_bf16(static_cast<unsigned short>(bits.y >> 16)));
        float *y = wide_row(r, row);
        store_some(y, i, cols, q, accumulate ? load_some(y, i, cols, q, 0) + v : v);
    }
};

int loom_gpu_widen(const loom_gpu *gpu, const loom_bf16_rows *r, bool accumulate)
{
    return each_row(gpu, r->matrices * r->rows, r->cols, whole_quads(r), widened_rows{*r, accumulate});
}
