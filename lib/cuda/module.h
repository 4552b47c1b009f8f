/* The inside of the CUDA module. Here and in kernels/cuda, and nowhere else, CUDA's and NCCL's headers are seen. */
#ifndef LOOM_CUDA_MODULE_H
#define LOOM_CUDA_MODULE_H

#include "device/cuda_module.h"

extern const loom_backend loom_cuda_backend;
loom_status loom_cuda_enter(const loom_device *device);

/* They nest, by thread (ranges.c, or its stub). */
void loom_cuda_range_begin(const char *name);
void loom_cuda_range_end(void);

/* False: another copy of the library in this process uses the module already. */
bool loom_cuda_set_host(const loom_cuda_host *host);

#endif
