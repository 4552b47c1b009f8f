/* What the launchers want to know of the CUDA runtime. */
#include "kernels/cuda/cublaslt.h"

#include <cuda_runtime_api.h>

int loom_gpu_multiprocessors(void)
{
    int device = 0, count = 0;

    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        count < 1)
        return 100; /* only how many blocks a kernel gets depends on it, never a result */
    return count;
}

const char *loom_gpu_error_text(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}
