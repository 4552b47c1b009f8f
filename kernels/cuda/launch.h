/* How a kernel is started: every kernel takes one struct by value, and this is the only place that starts one. Compiled by nvcc it is a
 * launch; compiled for the host the shim runs the blocks. */
#ifndef LOOM_KERNELS_CUDA_LAUNCH_H
#define LOOM_KERNELS_CUDA_LAUNCH_H

#include "kernels/cuda/gpu.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

/* Memory that the threads of a block share, uninitialised. */
#define LOOM_SHARED(type, name) __shared__ type name
/* The shared memory whose size the launch says, as an array. */
#define LOOM_SHARED_BYTES(type, name)                                                                                                      \
    extern __shared__ float4 loom_shared_bytes[];                                                                                          \
    type *name = reinterpret_cast<type *>(loom_shared_bytes)

#define LOOM_UNROLL _Pragma("unroll")

/* Shared memory beyond this has to be asked for; the attribute is the function's, so that asking again changes nothing. */
enum { LOOM_SHARED_FREELY = 48 * 1024 };

template <class P> int loom_launch(const loom_gpu *gpu, void (*kernel)(P), dim3 grid, dim3 block, size_t shared_bytes, P p)
{
    void *arguments[] = {&p};

    if (shared_bytes > LOOM_SHARED_FREELY) {
        cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(shared_bytes));
        if (error != cudaSuccess)
            return error;
    }
    return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, arguments, shared_bytes,
                            static_cast<cudaStream_t>(gpu->stream));
}
#else
#include "kernels/cuda/shim/shim.h"
#endif

#define LOOM_GPU_TRY(call)                                                                                                                 \
    do {                                                                                                                                   \
        int loom_gpu_status_ = (call);                                                                                                     \
        if (loom_gpu_status_ != 0)                                                                                                         \
            return loom_gpu_status_;                                                                                                       \
    } while (0)

#endif
