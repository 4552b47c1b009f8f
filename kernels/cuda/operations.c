/* The table that the CUDA module hands out. An operation that kernels/cuda lacks is NULL in it, and the library says so when it is asked for. */
#include "kernels/cuda/operations.h"

#pragma weak loom_cuda_kernels_open
#pragma weak loom_cuda_kernels_close
#define LOOM_CUDA_WEAK(name, args)                                                                                                         \
    __attribute__((weak)) loom_status loom_cuda_##name(loom_cuda_kernels *state, const args *arguments, struct CUstream_st *stream);
LOOM_KERNEL_LIST(LOOM_CUDA_WEAK)

const loom_cuda_operations loom_cuda_operations_table = {
    .open = loom_cuda_kernels_open,
    .close = loom_cuda_kernels_close,
#define LOOM_CUDA_ROW(name, args) .name = loom_cuda_##name,
    LOOM_KERNEL_LIST(LOOM_CUDA_ROW)
#undef LOOM_CUDA_ROW
};
