/* What kernels share: indices, vectors of four, sums over a warp and a block. All sums have an order that the shapes alone decide. */
#ifndef LOOM_KERNELS_CUDA_DEVICE_CUH
#define LOOM_KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/launch.h"

static constexpr unsigned LOOM_WARP = 32, LOOM_ALL_LANES = 0xffffffffu;
static constexpr int64_t LOOM_GRID_Y = 65535; /* blocks in y at most */

#define LOOM_DEVICE static __device__ __forceinline__

/* --- on the host --- */

static inline int64_t or_tight(int64_t stride, int64_t tight)
{
    return stride ? stride : tight;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline unsigned at_most(int64_t count, int64_t limit)
{
    return static_cast<unsigned>(count < limit ? count : limit);
}

/* Whether a pointer can be read in vectors of four floats. NULL can. */
static inline bool aligned16(const void *p)
{
    return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

/* Whether rows this far apart can, too. */
static inline bool quads(const void *p, int64_t stride)
{
    return aligned16(p) && stride % 4 == 0;
}

/* Blocks of a kernel whose threads walk over `items` in steps of the grid: enough to fill the device, no more than there is work for. */
static inline unsigned stride_blocks(const loom_gpu *gpu, int64_t items, int64_t items_a_block)
{
    int64_t blocks = ceil_div(items, items_a_block), most = static_cast<int64_t>(gpu->multiprocessors) * 16;

    return at_most(blocks > 0 ? blocks : 1, most);
}

/* --- vectors of four --- */

LOOM_DEVICE float4 load4(const float *p)
{
    return *reinterpret_cast<const float4 *>(p);
}

LOOM_DEVICE void store4(float *p, float4 v)
{
    *reinterpret_cast<float4 *>(p) = v;
}

LOOM_DEVICE float4 operator+(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

LOOM_DEVICE float4 operator*(float4 a, float b)
{
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}

/* Elements [i, i + 4) of a row of `count`, or those of them that are there; the rest is `other`. */
LOOM_DEVICE float4 load_some(const float *row, int64_t i, int64_t count, bool whole_quads, float other)
{
    if (whole_quads && i + 4 <= count)
        return load4(row + i);
    return make_float4(i < count ? row[i] : other, i + 1 < count ? row[i + 1] : other, i + 2 < count ? row[i + 2] : other,
                       i + 3 < count ? row[i + 3] : other);
}

LOOM_DEVICE void store_some(float *row, int64_t i, int64_t count, bool whole_quads, float4 v)
{
    if (whole_quads && i + 4 <= count) {
        store4(row + i, v);
        return;
    }
    if (i < count)
        row[i] = v.x;
    if (i + 1 < count)
        row[i + 1] = v.y;
    if (i + 2 < count)
        row[i + 2] = v.z;
    if (i + 3 < count)
        row[i + 3] = v.w;
}

/* --- not a number --- */

LOOM_DEVICE bool is_nan(float x)
{
    return x != x;
}

LOOM_DEVICE float minus_infinity()
{
    return __uint_as_float(0xff800000u);
}

LOOM_DEVICE float not_a_number()
{
    return __uint_as_float(0x7fc00000u);
}

/* --- over a warp; every lane gets the result --- */

template <class T> LOOM_DEVICE T warp_sum(T x)
{
    for (int other = 16; other > 0; other /= 2)
        x += __shfl_xor_sync(LOOM_ALL_LANES, x, other);
    return x;
}

/* Ignores what is not a number. */
LOOM_DEVICE float warp_max(float x)
{
    for (int other = 16; other > 0; other /= 2)
        x = fmaxf(x, __shfl_xor_sync(LOOM_ALL_LANES, x, other));
    return x;
}

/* --- over a block of whole warps; every thread gets the result. Has to be reached by all of them. --- */

struct block_slots {
    double slot[32];
};

/* Puts each warp's x into the slots, where every thread may read it then. */
template <class T> LOOM_DEVICE void block_share(T x, block_slots &shared)
{
    __syncthreads(); /* whoever still reads the slots of the call before */
    if (threadIdx.x % LOOM_WARP == 0)
        shared.slot[threadIdx.x / LOOM_WARP] = x;
    __syncthreads();
}

template <class T> LOOM_DEVICE T block_sum(T x, block_slots &shared)
{
    unsigned warps = blockDim.x / LOOM_WARP;

    block_share(warp_sum(x), shared);
    x = 0;
    for (unsigned w = 0; w < warps; w++)
        x += static_cast<T>(shared.slot[w]);
    return x;
}

LOOM_DEVICE float block_max(float x, block_slots &shared)
{
    unsigned warps = blockDim.x / LOOM_WARP;

    block_share(warp_max(x), shared);
    x = minus_infinity();
    for (unsigned w = 0; w < warps; w++)
        x = fmaxf(x, static_cast<float>(shared.slot[w]));
    return x;
}

#endif
