/* The kernels that belong to a kind of device. */
#include <rankloom/kernels.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda.h"
#include "kernels/dry.h"

loom_status loom_kernels_open(loom_device *device, const loom_kernels_config *config, loom_kernels **kernels)
{
    switch (loom_device_get_kind(device)) {
    case LOOM_CPU:
        return loom_cpu_open(device, config ? config : &(loom_kernels_config){0}, kernels);
    case LOOM_CUDA:
        return loom_cuda_open(device, config ? config : &(loom_kernels_config){0}, kernels);
    case LOOM_DRY:
        return loom_dry_open(device, kernels);
    }
    return loom_fail(LOOM_E_INVALID, "kernels: the device is of no known kind");
}

void loom_kernels_close(loom_kernels *kernels)
{
    if (!kernels)
        return;
    switch (loom_device_get_kind(kernels->device)) {
    case LOOM_CPU:
        loom_cpu_close(kernels);
        break;
    case LOOM_CUDA:
        loom_cuda_close(kernels);
        break;
    case LOOM_DRY:
        loom_dry_close(kernels);
        break;
    }
}
