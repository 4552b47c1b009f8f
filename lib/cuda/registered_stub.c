/* Stands in for registered.c where the build found no NCCL. */
#include "cuda/registered.h"

loom_status loom_cuda_registered_alloc(loom_device *device, size_t bytes, void **memory)
{
    (void)device, (void)bytes;
    *memory = NULL;
    return LOOM_OK;
}

bool loom_cuda_registered_free(loom_device *device, void *memory)
{
    (void)device, (void)memory;
    return false;
}

void loom_cuda_registered_visit(loom_device *device, bool closing)
{
    (void)device, (void)closing;
}
