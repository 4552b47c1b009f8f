/* Every operation of the table once more, as the function of the CUDA module that enqueues it. Bodies are in state.c, and call the launchers
 * (gpu.h); operations.c makes the table that the module hands out. */
#ifndef LOOM_KERNELS_CUDA_OPERATIONS_H
#define LOOM_KERNELS_CUDA_OPERATIONS_H

#include "kernels/cuda.h"
LOOM_BEGIN

extern const loom_cuda_operations loom_cuda_operations_table;

loom_status loom_cuda_kernels_open(loom_device *device, const loom_cuda_choice *choice, loom_cuda_kernels **state);
void loom_cuda_kernels_close(loom_cuda_kernels *state);

#define LOOM_CUDA_FUNCTION(name, args)                                                                                                     \
    loom_status loom_cuda_##name(loom_cuda_kernels *state, const args *arguments, struct CUstream_st *stream);
LOOM_KERNEL_LIST(LOOM_CUDA_FUNCTION)
#undef LOOM_CUDA_FUNCTION

LOOM_END
#endif
