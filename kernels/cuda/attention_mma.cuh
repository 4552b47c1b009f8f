/* What attention on tensor cores shares. A block has four warps, a warp 16 rows of the tile of scores; those stay in its registers. Tiles in shared
 * memory are rounded to tf32 as they are loaded. */
#ifndef LOOM_KERNELS_CUDA_ATTENTION_MMA_CUH
#define LOOM_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum { MMA_WARPS = 4, MMA_THREADS = 32 * MMA_WARPS, MMA_ROWS = 16 * MMA_WARPS };

/* This warp's first row of the block's. */
LOOM_DEVICE int warp_row()
{
    return static_cast<int>(threadIdx.x / LOOM_WARP * 16);
}

template <int ROWS, int DK> LOOM_DEVICE void load_rows_tf32(float *tile, const head_rows &rows, int64_t first, int64_t head_dim)
{
    load_rows<ROWS, DK, MMA_THREADS, to_tf32>(tile, rows, first, head_dim);
}

/* s[n] = the warp's 16 rows of `a` times rows 8 n .. 8 n + 7 of `b`. */
template <int N, int DK> LOOM_DEVICE void dot_rows_mma(const float *a, const float *b, int64_t head_dim, mma_c (&s)[N])
{
    constexpr int row = padded_row<DK>::floats;
    const float *theirs = b + mma_g() * row + mma_q();

    LOOM_UNROLL
    for (int n = 0; n < N; n++)
        s[n] = {{0, 0, 0, 0}};
    for (int d = 0; d < head_dim; d += 8) {
        mma_a mine = mma_rows(a + warp_row() * row, row, d);

        LOOM_UNROLL
        for (int n = 0; n < N; n++)
            mma(s[n], mine, theirs[8 * n * row + d], theirs[8 * n * row + d + 4]);
    }
}

/* sum[n] += w (16 x 8 N) times rows of `b`, columns 8 n .. 8 n + 7. */
template <int N, int DK> LOOM_DEVICE void add_weighted_mma(const mma_c (&w)[N], const float *b, int64_t head_dim, mma_c (&sum)[DK / 8])
{
    constexpr int row = padded_row<DK>::floats;

    LOOM_UNROLL
    for (int k = 0; k < N; k++) {
        const mma_a weights = mma_again(w[k]);
        const float *theirs = b + (8 * k + 2 * mma_q()) * row + mma_g();

        LOOM_UNROLL
        for (int n = 0; n < DK / 8; n++)
            if (8 * n < head_dim)
                mma(sum[n], weights, theirs[8 * n], theirs[row + 8 * n]);
    }
}

/* The warp's 16 rows, from `first` on, times `factor` of rows g and g + 8. */
template <int DK>
LOOM_DEVICE void store_rows_mma(float *at, int64_t token, int64_t first, int64_t count, int64_t head_dim, bool accumulate, float low, float high,
                                const mma_c (&sum)[DK / 8])
{
    LOOM_UNROLL
    for (int i = 0; i < 4; i++) {
        int64_t row = first + warp_row() + mma_g() + (i < 2 ? 0 : 8);
        float *to = at + row * token + 2 * mma_q() + i % 2;

        LOOM_UNROLL
        for (int n = 0; n < DK / 8; n++)
            if (row < count && 8 * n + 2 * mma_q() + i % 2 < head_dim) {
                float v = sum[n].x[i] * (i < 2 ? low : high);
                to[8 * n] = accumulate ? to[8 * n] + v : v;
            }
    }
}

#endif
