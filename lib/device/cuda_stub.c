/* Stands in for cuda.c where the build has no CUDA. */
#include "device/backend.h"

static loom_status no_cuda(loom_device *device, const loom_device_config *config)
{
    (void)device;
    return loom_fail(LOOM_E_UNSUPPORTED, "CUDA device %d: this build has no CUDA; it needs nvcc and -Dcuda=enabled", config->index);
}

static void close_nothing(loom_device *device)
{
    (void)device;
}

const loom_backend loom_backend_cuda = {.name = "cuda", .open = no_cuda, .close = close_nothing};
