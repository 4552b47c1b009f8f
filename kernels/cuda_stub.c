/* This build has no CUDA kernels. */
#include "kernels/cuda.h"

loom_status loom_cuda_open(loom_device *device, loom_kernels **kernels)
{
    (void)device, (void)kernels;
    return loom_fail(LOOM_E_UNSUPPORTED, "kernels: this build has none for CUDA; configure with -Dcuda=enabled, or use a CPU device");
}

void loom_cuda_close(loom_kernels *kernels)
{
    (void)kernels; /* never opened, so always NULL */
}
