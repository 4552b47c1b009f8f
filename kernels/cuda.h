/* The kernels of a CUDA device: kernels/cuda, or a stub that says so. */
#ifndef LOOM_KERNELS_CUDA_H
#define LOOM_KERNELS_CUDA_H

#include <rankloom/kernels.h>

loom_status loom_cuda_open(loom_device *device, loom_kernels **kernels);
void loom_cuda_close(loom_kernels *kernels);

#endif
