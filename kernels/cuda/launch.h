/* How an operation starts a kernel. The same source is compiled twice: by nvcc for the device, and as C++ for the host, where a kernel is an
 * ordinary function that shim/ runs block by block on the stream that stands in for CUDA's.
 *
 *     static loom_status launch_fill(float *y, float value, int64_t count, cudaStream_t stream)
 *     {
 *         return LOOM_LAUNCH(fill_kernel, blocks, THREADS, 0, stream, y, value, count);
 *     }
 *
 * The arguments after the stream are copied, as a launch copies them. LOOM_LAUNCH is a loom_status; a grid of no blocks is LOOM_OK and nothing. */
#ifndef LOOM_KERNELS_CUDA_LAUNCH_H
#define LOOM_KERNELS_CUDA_LAUNCH_H

#include <rankloom/status.h>

#if defined(__CUDACC__)
#include <cuda_runtime.h>

static inline loom_status loom_cuda_launched(const char *kernel)
{
    cudaError_t code = cudaGetLastError();

    if (code == cudaSuccess)
        return LOOM_OK;
    return loom_fail(LOOM_E_IO, "launching %s: %s (%s)", kernel, cudaGetErrorString(code), cudaGetErrorName(code));
}

#define LOOM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                                        \
    (kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__), loom_cuda_launched(#kernel))

#else /* the host shim: shim/ defines LOOM_LAUNCH, and hands each launch to the stream by this */
#ifdef __cplusplus
extern "C" {
#endif
struct CUstream_st;
/* Work of `stream`, in its order: run(context), then free_context(context) whatever happened. The double of the runtime (test/cuda) and the
 * shim's own stand-alone test each define it. Returns a cudaError_t. */
int loom_shim_enqueue(struct CUstream_st *stream, void (*run)(void *context), void *context, void (*free_context)(void *context));
#ifdef __cplusplus
}
#endif
#endif

#endif
