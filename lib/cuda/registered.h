/* Memory that NCCL may reach without copying it aside first: blocks of ncclMemAlloc() and the communicators that know them. Without NCCL: registered_stub.c. */
#ifndef LOOM_CUDA_REGISTERED_H
#define LOOM_CUDA_REGISTERED_H

#include <rankloom/device.h>

/* A zeroed block, or NULL in *memory where NCCL gives none: then any memory does. */
loom_status loom_cuda_registered_alloc(loom_device *device, size_t bytes, void **memory);
/* False: not one of these. It goes when all that was queued on any stream is through, and is told to its communicators then. */
bool loom_cuda_registered_free(loom_device *device, void *memory);
/* Blocks that were freed and may go by now. `closing`: waits for them. */
void loom_cuda_registered_visit(loom_device *device, bool closing);

#endif
