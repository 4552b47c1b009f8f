/* Casts to fp8 with a scale a matrix: one pass for its largest number, one that scales, rounds and, where the product wants it, transposes. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.h"

enum { THREADS = 256, CHUNK = 16, TILE = 64, CHUNKS = TILE / CHUNK };
static_assert(int(LOOM_FP8_PARTIALS) == int(THREADS), "a thread reads one part of the maximum");

static constexpr float E4M3_MOST = 448;
/* A matrix with no larger number counts as zeros: below, its scale would be no normal f32 any more (from 1.2e-38 on), at last 0, and 0 / 0 is not a number. */
static constexpr float SCALED_LEAST = 1e-35f;

/* Sixteen codes, read and written at once. */
struct alignas(16) codes16 {
    uint8_t at[CHUNK];
};

/* To nearest even; what is too large becomes the largest, so that the rounding of a scale makes no NaN. */
LOOM_DEVICE uint8_t e4m3_of(float x)
{
    unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return static_cast<uint8_t>(sign | 0x7fu);
    if (magnitude > 0x43e00000u) /* 448 */
        return static_cast<uint8_t>(sign | 0x7eu);
    if (magnitude < 0x3c800000u) /* 2^-6: below it steps are 2^-9, which adding 2^23 rounds to */
        return static_cast<uint8_t>(sign | (__float_as_uint(__uint_as_float(magnitude) * 512.0f + 8388608.0f) & 0xfu));
    return static_cast<uint8_t>(sign | (((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3)));
}

__global__ void __launch_bounds__(THREADS) largest_kernel(const loom_fp8_factor f)
{
    LOOM_SHARED(block_slots, slots);
    float own = 0;

    for (int64_t row = blockIdx.x; row < f.rows; row += gridDim.x)
        for (int64_t column = threadIdx.x; column < f.cols; column += THREADS)
            own = fmaxf(own, fabsf(f.x[row * f.ld + column])); /* a NaN is no maximum, and becomes a NaN of the product by itself */
    own = block_max(own, slots);
    if (threadIdx.x == 0)
        f.partial[blockIdx.x] = own;
}

/* The scale, from the parts of the maximum; every block works it out for itself, one writes it. */
LOOM_DEVICE float find_scale(const loom_fp8_factor &f, unsigned parts, bool writes, block_slots &slots)
{
    float most = block_max(threadIdx.x < parts ? f.partial[threadIdx.x] : 0.0f, slots), scale = most >= SCALED_LEAST ? most / E4M3_MOST : 1.0f;

    if (writes && threadIdx.x == 0)
        *f.scale = scale;
    return scale;
}

struct encode_args {
    loom_fp8_factor f;
    unsigned parts; /* of the maximum */
};

__global__ void __launch_bounds__(THREADS) encode_kernel(const encode_args a)
{
    LOOM_SHARED(block_slots, slots);
    const loom_fp8_factor &f = a.f;
    float scale = find_scale(f, a.parts, blockIdx.x == 0, slots);
    int64_t across = f.cols / CHUNK, chunks = f.rows * across, step = static_cast<int64_t>(gridDim.x) * THREADS;

    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < chunks; i += step) {
        const float *x = f.x + i / across * f.ld + i % across * CHUNK;
        codes16 codes;

        for (int k = 0; k < CHUNK; k++)
            codes.at[k] = e4m3_of(x[k] / scale);
        *reinterpret_cast<codes16 *>(f.codes + i * CHUNK) = codes;
    }
}

struct code_tile {
    alignas(16) uint8_t at[TILE][TILE + CHUNK]; /* [column][row]; rows apart by an odd number of 16 bytes */
};

LOOM_DEVICE void load_tile(const loom_fp8_factor &f, int64_t row, int64_t column, float scale, code_tile &tile)
{
    int64_t c = threadIdx.x % TILE;

    for (int64_t r = threadIdx.x / TILE; r < TILE; r += THREADS / TILE)
        if (row + r < f.rows && column + c < f.cols)
            tile.at[c][r] = e4m3_of(f.x[(row + r) * f.ld + column + c] / scale);
}

LOOM_DEVICE void store_tile(const loom_fp8_factor &f, int64_t row, int64_t column, const code_tile &tile)
{
    int64_t c = threadIdx.x / CHUNKS, r = threadIdx.x % CHUNKS * CHUNK;

    if (row + r < f.rows && column + c < f.cols) /* rows are a multiple of a chunk */
        *reinterpret_cast<codes16 *>(f.codes + (column + c) * f.rows + row + r) = *reinterpret_cast<const codes16 *>(&tile.at[c][r]);
}

__global__ void __launch_bounds__(THREADS) encode_transposed_kernel(const encode_args a)
{
    LOOM_SHARED(block_slots, slots);
    LOOM_SHARED(code_tile, tile);
    float scale = find_scale(a.f, a.parts, blockIdx.x == 0 && blockIdx.y == 0, slots);
    int64_t column = static_cast<int64_t>(blockIdx.x) * TILE;

    for (int64_t row = static_cast<int64_t>(blockIdx.y) * TILE; row < a.f.rows; row += static_cast<int64_t>(gridDim.y) * TILE) {
        __syncthreads(); /* the tile before this one is stored */
        load_tile(a.f, row, column, scale, tile);
        __syncthreads();
        store_tile(a.f, row, column, tile);
    }
}
static_assert(TILE * CHUNKS == THREADS, "a thread stores one chunk of a tile");

int loom_gpu_fp8_encode(const loom_gpu *gpu, const loom_fp8_factor *f)
{
    unsigned parts = at_most(f->rows, LOOM_FP8_PARTIALS);
    const encode_args a = {*f, parts};

    LOOM_GPU_TRY(loom_launch(gpu, largest_kernel, dim3(parts), dim3(THREADS), 0, *f));
    if (!f->transpose)
        return loom_launch(gpu, encode_kernel, dim3(stride_blocks(gpu, f->rows * f->cols, THREADS * CHUNK)), dim3(THREADS), 0, a);
    return loom_launch(gpu, encode_transposed_kernel, dim3(static_cast<unsigned>(ceil_div(f->cols, TILE)), at_most(ceil_div(f->rows, TILE), LOOM_GRID_Y)),
                       dim3(THREADS), 0, a);
}
