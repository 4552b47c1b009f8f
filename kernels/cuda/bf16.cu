/* Rows of f32 as bf16, eight numbers a thread at a time. */
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/bf16.h"

enum { THREADS = 256, CHUNK = 8 };

struct alignas(16) halves8 {
    unsigned short at[CHUNK];
};

struct bf16_args {
    loom_bf16_rows r;
    bool quads;
};

__global__ void __launch_bounds__(THREADS) bf16_rows_kernel(const bf16_args a)
{
    const loom_bf16_rows &r = a.r;
    int64_t across = r.y_ld / CHUNK, chunks = r.matrices * r.rows * across, step = static_cast<int64_t>(gridDim.x) * THREADS;

    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < chunks; i += step) {
        int64_t row = i / across, column = i % across * CHUNK;
        const float *x = r.x + row / r.rows * r.stride + row % r.rows * r.ld;
        float4 low = load_some(x, column, r.cols, a.quads, 0), high = load_some(x, column + 4, r.cols, a.quads, 0);
        halves8 y = {bf16_of(low.x),  bf16_of(low.y),  bf16_of(low.z),  bf16_of(low.w),
                     bf16_of(high.x), bf16_of(high.y), bf16_of(high.z), bf16_of(high.w)};

        *reinterpret_cast<halves8 *>(r.y + i * CHUNK) = y;
    }
}

int loom_gpu_bf16_rows(const loom_gpu *gpu, const loom_bf16_rows *r)
{
    const bf16_args a = {*r, quads(r->x, r->ld) && (r->matrices == 1 || r->stride % 4 == 0)};
    int64_t chunks = r->matrices * r->rows * (r->y_ld / CHUNK);

    return loom_launch(gpu, bf16_rows_kernel, dim3(stride_blocks(gpu, chunks, THREADS)), dim3(THREADS), 0, a);
}
