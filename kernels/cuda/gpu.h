/* The launchers: what stands between an operation of the module (state.c) and its kernels. No CUDA header is needed to call them, so the
 * same calls serve the kernels that nvcc compiled and those that were compiled for the host (shim/). Arguments were found right before. */
#ifndef LOOM_KERNELS_CUDA_GPU_H
#define LOOM_KERNELS_CUDA_GPU_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct loom_gpu loom_gpu;
struct loom_gpu {
    void *stream;        /* cudaStream_t of the call at hand */
    int multiprocessors; /* of the device: how many blocks fill it */
    size_t shared_max;   /* bytes of shared memory that a block may have if it asks */
    loom_gpu_math math;
    bool always_narrow; /* factors are copied in fewer bits even where that costs more than it gains */
    void *lt;  /* cuBLASLt and its cached plans (cublaslt.h); NULL: our own product */
    void *dnn; /* cuDNN, for attention (cudnn.h); NULL: our own */
    /* Memory of the device that the next call on this stream may take back, aligned to 256. NULL: there is none, and loom_last_error() says
     * how much was wanted. Never waits: what the stream may still read stays. */
    void *(*scratch)(loom_gpu *gpu, size_t bytes);
};

/* What shared_max is at least: on the GPUs of CC 8.6, 8.9 and 12; data centers' have more, an A100 163 KiB. */
enum { LOOM_GPU_SHARED_LEAST = 99 * 1024 };

/* What a piece of scratch takes when another is to begin behind it. */
static inline size_t loom_gpu_scratch_bytes(int64_t bytes)
{
    return ((size_t)bytes + 255) / 256 * 256;
}

/* What a launcher returns. 0: enqueued. The two negative ones: loom_last_error() has the words, of LOOM_E_MEMORY and LOOM_E_UNSUPPORTED.
 * Else a cudaError_t, or beyond LOOM_GPU_CUBLAS a cublasStatus_t. */
enum { LOOM_GPU_FAILED = -1, LOOM_GPU_REFUSED = -2, LOOM_GPU_CUBLAS = 100000 };

#define LOOM_GPU_DECLARE(name, args) int loom_gpu_##name(loom_gpu *gpu, const args *a);
LOOM_KERNEL_LIST(LOOM_GPU_DECLARE)
#undef LOOM_GPU_DECLARE

#ifdef __cplusplus
}
#endif
#endif
