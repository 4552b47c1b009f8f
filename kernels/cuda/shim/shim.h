/* CUDA C++ enough to compile our kernels for the host. A block's threads are fibers of the calling thread: they switch at barriers and at
 * warp operations, in an order that a seed decides, so that what must not depend on the order is seen to.
 *
 * What it finds: reading or writing out of bounds of global and shared memory (each block's shared memory is an allocation of its own, of
 * exactly the size, filled with NaN) under the address sanitizer; races between threads of a block and between blocks under the thread
 * sanitizer, which is told of every barrier; barriers that not all threads reach, and threads that wait at different ones.
 * What it does not: memory bandwidth, bank conflicts, occupancy, alignment of vector accesses (UBSan does see those), more than one block
 * at a time, the hardware's own approximations. */
#ifndef LOOM_KERNELS_CUDA_SHIM_H
#define LOOM_KERNELS_CUDA_SHIM_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/gpu.h"

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};

/* --- what runs blocks --- */

typedef void loom_shim_kernel(const void *arguments);

/* Runs every block of a grid in this thread, now. Several threads may do so at once. */
void loom_shim_run(dim3 grid, dim3 block, size_t shared_bytes, loom_shim_kernel *kernel, const void *arguments);

/* Defined by whoever stands in for the CUDA runtime: run(work) in the order of `stream`, then release(work) whatever happened. Returns a
 * cudaError_t. */
extern "C" int loom_shim_enqueue(struct CUstream_st *stream, void (*run)(void *work), void *work, void (*release)(void *work));

/* Orders the threads of the blocks that this host thread runs. 0: by number. */
extern "C" void loom_shim_set_seed(uint64_t seed);

int loom_shim_launch(void *stream, dim3 grid, dim3 block, size_t shared_bytes, loom_shim_kernel *kernel, const void *arguments,
                     size_t arguments_bytes);

/* --- what a kernel sees --- */

struct loom_shim_place {
    dim3 thread, block, block_size, grid_size;
};
/* Of the fiber that runs: the same for as long as it lives, hence "const". */
const loom_shim_place &loom_shim_here() __attribute__((const));

void loom_shim_barrier(int line);
void loom_shim_warp_barrier(int line);
void *loom_shim_static_shared(const void *key, size_t bytes, size_t alignment); /* the block's memory for the variable `key` */
void *loom_shim_dynamic_shared();
/* Every lane gives `bytes` (LOOM_SHIM_LANE_BYTES at most); returns all 32 contributions, that many apart, until the lane's next but one exchange. */
enum { LOOM_SHIM_LANE_BYTES = 32 };
const unsigned char *loom_shim_exchange(const void *value, size_t bytes, int line);
int loom_shim_lane();

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define LOOM_UNROLL
#define __launch_bounds__(...)
#define __restrict__ __restrict

#define threadIdx (loom_shim_here().thread)
#define blockIdx (loom_shim_here().block)
#define blockDim (loom_shim_here().block_size)
#define gridDim (loom_shim_here().grid_size)

#define LOOM_SHARED(type, name)                                                                                                            \
    static const char loom_key_##name = 0;                                                                                                 \
    type &name = *static_cast<type *>(loom_shim_static_shared(&loom_key_##name, sizeof(type), alignof(type)))
#define LOOM_SHARED_BYTES(type, name) type *name = static_cast<type *>(loom_shim_dynamic_shared())

#define __syncthreads() loom_shim_barrier(__LINE__)
#define __syncwarp() loom_shim_warp_barrier(__LINE__)

template <class T> inline T loom_shim_from_lane(T value, int lane, int line)
{
    T got;
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    std::memcpy(&got, loom_shim_exchange(&value, sizeof value, line) + LOOM_SHIM_LANE_BYTES * (lane & 31), sizeof got);
    return got;
}
/* The mask is every lane: our kernels use warp operations with whole warps only, and the shim insists on it. */
#define __shfl_sync(mask, value, lane) loom_shim_from_lane(value, lane, __LINE__)
#define __shfl_xor_sync(mask, value, other) loom_shim_from_lane(value, loom_shim_lane() ^ (other), __LINE__)
#define __shfl_up_sync(mask, value, by) loom_shim_from_lane(value, loom_shim_lane() >= (int)(by) ? loom_shim_lane() - (int)(by) : loom_shim_lane(), __LINE__)
#define __shfl_down_sync(mask, value, by)                                                                                                  \
    loom_shim_from_lane(value, loom_shim_lane() + (int)(by) < 32 ? loom_shim_lane() + (int)(by) : loom_shim_lane(), __LINE__)

inline unsigned loom_shim_ballot(bool vote, int line)
{
    unsigned char mine = vote;
    const unsigned char *all = loom_shim_exchange(&mine, 1, line);
    unsigned mask = 0;
    for (int lane = 0; lane < 32; lane++)
        mask |= (unsigned)(all[LOOM_SHIM_LANE_BYTES * lane] != 0) << lane;
    return mask;
}
#define __ballot_sync(mask, vote) loom_shim_ballot(vote, __LINE__)
#define __any_sync(mask, vote) (loom_shim_ballot(vote, __LINE__) != 0)

inline unsigned loom_shim_match(unsigned value, int line)
{
    const unsigned char *all = loom_shim_exchange(&value, sizeof value, line);
    unsigned mask = 0, other;
    for (int lane = 0; lane < 32; lane++) {
        std::memcpy(&other, all + LOOM_SHIM_LANE_BYTES * lane, sizeof other);
        mask |= (unsigned)(other == value) << lane;
    }
    return mask;
}
#define __match_any_sync(mask, value) loom_shim_match(value, __LINE__)

/* mma.m16n8k8 in tf32: the warp's A and B are put together from the lanes' shares, and each lane computes its four elements of C. Bits that tf32 does
 * not have are ignored, as the hardware does; in what order it adds is not known, here it is one rounding of the whole sum. */
void loom_shim_mma_tf32(float *c, const float *a, float b0, float b1);

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits)
{
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}

/* --- launching --- */

template <class P> struct loom_shim_call {
    void (*kernel)(P);
    P p;
    static void run(const void *self)
    {
        const loom_shim_call *call = static_cast<const loom_shim_call *>(self);
        call->kernel(call->p);
    }
};

template <class P> int loom_launch(const loom_gpu *gpu, void (*kernel)(P), dim3 grid, dim3 block, size_t shared_bytes, P p)
{
    const loom_shim_call<P> call = {kernel, p};

    return loom_shim_launch(gpu->stream, grid, block, shared_bytes, loom_shim_call<P>::run, &call, sizeof call);
}

#endif
