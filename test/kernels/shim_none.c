/* This build has no C++ compiler, so no CUDA kernels on the host. */
#include "shim_maker.h"

loom_status open_shim(loom_device *device, uint64_t seed, loom_cuda_choice choice, loom_kernels **kernels)
{
    (void)device, (void)seed, (void)choice, (void)kernels;
    return loom_fail(LOOM_E_UNSUPPORTED, "this build has no CUDA kernels for the host");
}

void close_shim(loom_kernels *kernels)
{
    (void)kernels;
}
