/* CUDA devices, as far as the library itself knows them: the module's back end takes over once it is loaded. */
#include "device/cuda_module.h"

static loom_status cuda_open(loom_device *device, const loom_device_config *config)
{
    loom_status status = loom_cuda_module_load(&device->cuda);

    if (status < 0)
        return loom_fail(status, "CUDA device %d: %s", config->index, loom_last_error());
    device->backend = device->cuda->backend;
    return device->backend->open(device, config);
}

static void cuda_close(loom_device *device)
{
    (void)device; /* the module was not loaded, so nothing was opened */
}

const loom_backend loom_backend_cuda = {.name = "cuda", .open = cuda_open, .close = cuda_close};
