/* The CUDA kernels, compiled for the host, as one more maker. */
#ifndef TEST_KERNELS_SHIM_MAKER_H
#define TEST_KERNELS_SHIM_MAKER_H

#include "kernels/cuda.h"

/* LOOM_E_UNSUPPORTED in a build without them. `device` is a CPU. `seed` orders the threads of a block. `choice`: whose products, and in what; cuBLASLt is its
 * double. */
loom_status open_shim(loom_device *device, uint64_t seed, loom_cuda_choice choice, loom_kernels **kernels);
void close_shim(loom_kernels *kernels);
/* The only one of `makers` (harness.h, whose close_makers() closes it): on the host, or on a device where LOOM_TEST_MAKERS says so; `seed` is for the host. */
void open_one_cuda_maker(uint64_t seed, loom_cuda_choice choice, const char *name);

/* What fails in the double of cuBLASLt (its functions' names, or one of them "with GELU"); NULL: nothing. */
extern const char *double_failing;

#endif
