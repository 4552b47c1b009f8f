/* The kernels of a dry device: arguments are checked as everywhere, nothing is read or written. */
#include "kernels/check.h"
#include "kernels/dry.h"

#include <stdlib.h>

#define LOOM_DRY_KERNEL(name, args)                                                                                                        \
    static loom_status dry_##name(loom_kernels *kernels, const args *a, loom_stream *stream)                                               \
    {                                                                                                                                      \
        (void)kernels, (void)stream;                                                                                                       \
        return loom_check_##name(a);                                                                                                       \
    }
LOOM_KERNEL_LIST(LOOM_DRY_KERNEL)

loom_status loom_dry_open(loom_device *device, loom_kernels **kernels)
{
    loom_kernels *k = malloc(sizeof *k);

    if (!k)
        return loom_fail(LOOM_E_MEMORY, "kernels: no memory for the table itself");
    *k = (loom_kernels){.isa = "dry",
                        .gemm_library = "dry",
                        .device = device,
#define LOOM_DRY_ENTRY(name, args) .name = dry_##name,
                        LOOM_KERNEL_LIST(LOOM_DRY_ENTRY)
#undef LOOM_DRY_ENTRY
    };
    *kernels = k;
    return LOOM_OK;
}

void loom_dry_close(loom_kernels *kernels)
{
    free(kernels);
}
