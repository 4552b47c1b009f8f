#include "shim_maker.h"

#include "kernels/check.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/shim/alone.h"
#include "kernels/run.h"

#include <stdlib.h>

typedef struct shim {
    loom_kernels table; /* first */
    loom_cuda_kernels *state;
    uint64_t seed;
} shim;

void loom_shim_set_seed(uint64_t seed);

#define SHIM_KERNEL(name, args)                                                                                                            \
    static loom_status shim_##name(loom_kernels *kernels, const args *a, loom_stream *stream)                                              \
    {                                                                                                                                      \
        shim *s = (shim *)kernels;                                                                                                         \
        loom_status status = loom_check_##name(a);                                                                                         \
                                                                                                                                           \
        if (status < 0 || (status = loom_kernel_begin(stream)) < 0)                                                                        \
            return status;                                                                                                                 \
        loom_shim_set_seed(s->seed);                                                                                                       \
        return loom_cuda_operations_table.name(s->state, a, NULL);                                                                         \
    }
LOOM_KERNEL_LIST(SHIM_KERNEL)

loom_status open_shim(loom_device *device, uint64_t seed, loom_cuda_choice choice, loom_kernels **kernels)
{
    shim *s = calloc(1, sizeof *s);
    const char *shared = getenv("LOOM_DOUBLE_SHARED"); /* as the double of the runtime has it (double.h) */
    loom_status status;

    if (!s)
        return loom_fail(LOOM_E_MEMORY, "no memory for the table");
    if (shared)
        loom_shim_shared_max = atoi(shared);
    s->table = (loom_kernels){.isa = "cuda-shim",
                              .gemm_library = choice.own_gemm ? "own" : "cublaslt",
                              .device = device,
#define SHIM_ENTRY(name, args) .name = shim_##name,
                              LOOM_KERNEL_LIST(SHIM_ENTRY)
#undef SHIM_ENTRY
    };
    s->seed = seed;
    status = loom_cuda_operations_table.open(device, &choice, &s->state);
    if (status < 0) {
        free(s);
        return status;
    }
    *kernels = &s->table;
    return LOOM_OK;
}

void close_shim(loom_kernels *kernels)
{
    shim *s = (shim *)kernels;

    loom_cuda_operations_table.close(s->state);
    free(s);
}
