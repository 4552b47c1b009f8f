/* The table of a CUDA device: each operation is checked here as on every device, and enqueued by the module. */
#include "kernels/cuda.h"

#include <stdlib.h>

#include "device/cuda_module.h"
#include "device/stream.h"
#include "kernels/check.h"

typedef struct cuda_table {
    loom_kernels table; /* first: the caller sees this */
    const loom_cuda_operations *operations;
    loom_cuda_kernels *state;
} cuda_table;

static loom_status check_stream(const loom_kernels *kernels, const loom_stream *stream, const char *operation)
{
    if (stream->device != kernels->device)
        return loom_fail(LOOM_E_INVALID, "%s: the stream belongs to another device than the kernels", operation);
    return kernels->device->cuda->enter(kernels->device);
}

#define CUDA_KERNEL(name, args)                                                                                                            \
    static loom_status cuda_##name(loom_kernels *kernels, const args *a, loom_stream *stream)                                              \
    {                                                                                                                                      \
        const cuda_table *t = (const cuda_table *)kernels;                                                                                 \
        loom_status status = loom_check_##name(a);                                                                                         \
                                                                                                                                           \
        if (status < 0 || (status = check_stream(kernels, stream, #name)) < 0)                                                             \
            return status;                                                                                                                 \
        if (!t->operations->name)                                                                                                          \
            return loom_fail(LOOM_E_UNSUPPORTED, #name ": the CUDA module has no such kernel yet");                                        \
        return t->operations->name(t->state, a, stream->backend);                                                                          \
    }
LOOM_KERNEL_LIST(CUDA_KERNEL)

loom_status loom_cuda_open(loom_device *device, loom_kernels **kernels)
{
    cuda_table *t;
    loom_status status;

    if (!device->cuda->kernels->open)
        return loom_fail(LOOM_E_UNSUPPORTED, "kernels: the CUDA module has none yet");
    t = malloc(sizeof *t);
    if (!t)
        return loom_fail(LOOM_E_MEMORY, "kernels: no memory for the table itself");
    *t = (cuda_table){.table = {.isa = "cuda",
                                .gemm_library = "cublaslt",
                                .device = device,
#define CUDA_ENTRY(name, args) .name = cuda_##name,
                                LOOM_KERNEL_LIST(CUDA_ENTRY)
#undef CUDA_ENTRY
                      },
                      .operations = device->cuda->kernels};
    if ((status = device->cuda->enter(device)) < 0 || (status = t->operations->open(device, &t->state)) < 0) {
        free(t);
        return status;
    }
    *kernels = &t->table;
    return LOOM_OK;
}

void loom_cuda_close(loom_kernels *kernels)
{
    cuda_table *t = (cuda_table *)kernels;

    if (kernels->device->cuda->enter(kernels->device) >= 0)
        t->operations->close(t->state);
    free(t);
}
