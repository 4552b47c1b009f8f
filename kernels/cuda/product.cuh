/* A tile of a matrix product: what gemm and grouped_gemm share. In f32 an element of C is one chain of fused additions over k in order, whatever M
 * and N are around it; on tensor cores it is a chain of their sums over eight. */
#ifndef LOOM_KERNELS_CUDA_PRODUCT_CUH
#define LOOM_KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/mma.cuh"

enum { TILE = 128, TILE_K = 16, PRODUCT_THREADS = 256, TILE_ROW = TILE + 8 }; /* rows padded so that what a warp reads lies in different banks */

/* An operand as its rows (those of op(A), or the columns of op(B)) by k. */
struct product_operand {
    const float *at;
    int64_t ld, rows, k;
    bool quads; /* at and ld allow vectors of four */
};

struct product {
    product_operand a, b;
    float *c;
    const float *bias; /* NULL: none */
    int64_t ldc;
    bool accumulate, quads; /* of c, bias and what GELU has */
    float *gelu;             /* gelu(c), too; NULL: not wanted */
    const float *gelu_input; /* times gelu' of this; NULL: as it is */
};

struct alignas(16) product_tiles { /* read and written in vectors of four */
    float a[2][TILE_K][TILE_ROW], b[2][TILE_K][TILE_ROW];
};

/* Four elements of a tile for each of two turns: neighbours in memory. `along_k`: k is what is contiguous. */
template <bool along_k> LOOM_DEVICE void place_of(int turn, int *row, int *k)
{
    int i = threadIdx.x + turn * PRODUCT_THREADS;

    *row = along_k ? i / (TILE_K / 4) : i % (TILE / 4) * 4;
    *k = along_k ? i % (TILE_K / 4) * 4 : i / (TILE / 4);
}

template <bool along_k> LOOM_DEVICE void fetch(const product_operand &o, int64_t first_row, int64_t first_k, float4 *got)
{
    for (int turn = 0; turn < 2; turn++) {
        int row, k;
        place_of<along_k>(turn, &row, &k);
        int64_t r = first_row + row, kk = first_k + k;

        got[turn] = make_float4(0, 0, 0, 0);
        if (along_k && r < o.rows)
            got[turn] = load_some(o.at + r * o.ld, kk, o.k, o.quads, 0);
        if (!along_k && kk < o.k)
            got[turn] = load_some(o.at + kk * o.ld, r, o.rows, o.quads, 0);
    }
}

template <bool along_k, bool rounded> LOOM_DEVICE void put(float (*tile)[TILE_ROW], const float4 *fetched)
{
    float4 got[2] = {fetched[0], fetched[1]};

    if (rounded)
        got[0] = to_tf32(got[0]), got[1] = to_tf32(got[1]);
    for (int turn = 0; turn < 2; turn++) {
        int row, k;
        place_of<along_k>(turn, &row, &k);

        if (!along_k) {
            store4(&tile[k][row], got[turn]);
            continue;
        }
        tile[k][row] = got[turn].x;
        tile[k + 1][row] = got[turn].y;
        tile[k + 2][row] = got[turn].z;
        tile[k + 3][row] = got[turn].w;
    }
}

/* A thread's 8 x 8 elements: four quarters, so that a warp reads neighbouring vectors of shared memory. */
LOOM_DEVICE void multiply(const float (*a)[TILE_ROW], const float (*b)[TILE_ROW], float (*sum)[8])
{
    int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;

        LOOM_UNROLL
    for (int k = 0; k < TILE_K; k++) {
        float4 a_low = load4(&a[k][row]), a_high = load4(&a[k][row + TILE / 2]);
        float4 b_low = load4(&b[k][column]), b_high = load4(&b[k][column + TILE / 2]);
        float x[8] = {a_low.x, a_low.y, a_low.z, a_low.w, a_high.x, a_high.y, a_high.z, a_high.w};
        float y[8] = {b_low.x, b_low.y, b_low.z, b_low.w, b_high.x, b_high.y, b_high.z, b_high.w};

        LOOM_UNROLL
        for (int i = 0; i < 8; i++)
        LOOM_UNROLL
            for (int j = 0; j < 8; j++)
                sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
    }
}

LOOM_DEVICE float4 times_slope(float4 dy, float4 x)
{
    const gelu_slope_times f;

    return make_float4(f(dy.x, x.x), f(dy.y, x.y), f(dy.z, x.z), f(dy.w, x.w));
}

LOOM_DEVICE float4 gelu_of_quad(float4 x)
{
    const gelu_of f;

    return make_float4(f(x.x), f(x.y), f(x.z), f(x.w));
}

/* Four sums of a row, or those that are columns of C, where they belong. */
LOOM_DEVICE void write_quad(const product &p, int64_t row, int64_t column, float4 v)
{
    int64_t at = row * p.ldc, columns = p.b.rows;

    if (p.bias)
        v = v + load_some(p.bias, column, columns, p.quads, 0);
    if (p.accumulate)
        v = load_some(p.c + at, column, columns, p.quads, 0) + v;
    if (p.gelu_input)
        v = times_slope(v, load_some(p.gelu_input + at, column, columns, p.quads, 0));
    store_some(p.c + at, column, columns, p.quads, v);
    if (p.gelu)
        store_some(p.gelu + at, column, columns, p.quads, gelu_of_quad(v));
}

LOOM_DEVICE void write_tile(const product &p, int64_t first_row, int64_t first_column, const float (*sum)[8])
{
    LOOM_UNROLL /* so that the sums stay in registers */
    for (int i = 0; i < 8; i++) {
        int64_t row = first_row + threadIdx.x / 16 * 4 + i % 4 + i / 4 * (TILE / 2);

        LOOM_UNROLL
        for (int half = 0; half < 2; half++) {
            int64_t column = first_column + threadIdx.x % 16 * 4 + half * (TILE / 2);
            const float *s = sum[i] + 4 * half;

            if (row < p.a.rows)
                write_quad(p, row, column, make_float4(s[0], s[1], s[2], s[3]));
        }
    }
}

/* --- on tensor cores: a warp has 64 x 32 of the tile --- */

enum { WARP_ROWS = 64, WARP_COLUMNS = 32, WARPS_ACROSS = TILE / WARP_COLUMNS };

LOOM_DEVICE int warp_first_row()
{
    return static_cast<int>(threadIdx.x / LOOM_WARP / WARPS_ACROSS * WARP_ROWS);
}

LOOM_DEVICE int warp_first_column()
{
    return static_cast<int>(threadIdx.x / LOOM_WARP % WARPS_ACROSS * WARP_COLUMNS);
}

LOOM_DEVICE void multiply_mma(const float (*a)[TILE_ROW], const float (*b)[TILE_ROW], mma_c (*sum)[WARP_COLUMNS / 8])
{
    LOOM_UNROLL
    for (int k = 0; k < TILE_K; k += 8) {
        const float *a_low = &a[k + mma_q()][warp_first_row() + mma_g()], *a_high = a_low + 4 * TILE_ROW;
        const float *b_low = &b[k + mma_q()][warp_first_column() + mma_g()], *b_high = b_low + 4 * TILE_ROW;

        LOOM_UNROLL
        for (int m = 0; m < WARP_ROWS / 16; m++) {
            const mma_a left = {{a_low[16 * m], a_low[16 * m + 8], a_high[16 * m], a_high[16 * m + 8]}};
            LOOM_UNROLL
            for (int n = 0; n < WARP_COLUMNS / 8; n++)
                mma(sum[m][n], left, b_low[8 * n], b_high[8 * n]);
        }
    }
}

LOOM_DEVICE void write_tile_mma(const product &p, int64_t first_row, int64_t first_column, const mma_c (*sum)[WARP_COLUMNS / 8])
{
    LOOM_UNROLL
    for (int m = 0; m < WARP_ROWS / 16; m++)
        LOOM_UNROLL
        for (int n = 0; n < WARP_COLUMNS / 8; n++)
            LOOM_UNROLL
            for (int i = 0; i < 4; i++) {
                int64_t row = first_row + warp_first_row() + 16 * m + mma_g() + i / 2 * 8;
                int64_t column = first_column + warp_first_column() + 8 * n + 2 * mma_q() + i % 2;

                if (row >= p.a.rows || column >= p.b.rows)
                    continue;
                int64_t at = row * p.ldc + column;
                float v = sum[m][n].x[i] + (p.bias ? p.bias[column] : 0);

                if (p.accumulate)
                    v = p.c[at] + v;
                if (p.gelu_input)
                    v = gelu_slope_times()(v, p.gelu_input[at]);
                p.c[at] = v;
                if (p.gelu)
                    p.gelu[at] = gelu_of()(v);
            }
}

/* What a thread sums, in f32 or on tensor cores. */
template <bool tensor_cores> struct product_sum {
    float sum[8][8] = {};
    __device__ void multiply_tiles(const float (*a)[TILE_ROW], const float (*b)[TILE_ROW])
    {
        multiply(a, b, sum);
    }
    __device__ void write(const product &p, int64_t first_row, int64_t first_column) const
    {
        write_tile(p, first_row, first_column, sum);
    }
};

template <> struct product_sum<true> {
    mma_c sum[WARP_ROWS / 16][WARP_COLUMNS / 8] = {};
    __device__ void multiply_tiles(const float (*a)[TILE_ROW], const float (*b)[TILE_ROW])
    {
        multiply_mma(a, b, sum);
    }
    __device__ void write(const product &p, int64_t first_row, int64_t first_column) const
    {
        write_tile_mma(p, first_row, first_column, sum);
    }
};

/* The tile at (first_row, first_column) of C. All threads of the block; while they multiply one slice of k the next is on its way. */
template <bool a_along_k, bool b_along_k, bool tensor_cores>
LOOM_DEVICE void product_tile(const product &p, int64_t first_row, int64_t first_column, product_tiles &tiles)
{
    product_sum<tensor_cores> sum;
    float4 a[2], b[2];

    fetch<a_along_k>(p.a, first_row, 0, a);
    fetch<b_along_k>(p.b, first_column, 0, b);
    for (int64_t k = 0, turn = 0; k < p.a.k; k += TILE_K, turn ^= 1) {
        put<a_along_k, tensor_cores>(tiles.a[turn], a);
        put<b_along_k, tensor_cores>(tiles.b[turn], b);
        __syncthreads(); /* the other pair of tiles was read before the last one of these, so one barrier a turn is enough */
        if (k + TILE_K < p.a.k) {
            fetch<a_along_k>(p.a, first_row, k + TILE_K, a);
            fetch<b_along_k>(p.b, first_column, k + TILE_K, b);
        }
        sum.multiply_tiles(tiles.a[turn], tiles.b[turn]);
    }
    sum.write(p, first_row, first_column);
}

#endif
