/* The table that the CUDA module hands out. */
#include "kernels/cuda/operations.h"

const loom_cuda_operations loom_cuda_operations_table = {.open = loom_cuda_kernels_open,
                                                         .close = loom_cuda_kernels_close,
#define LOOM_CUDA_ROW(name, args) .name = loom_cuda_##name,
                                                         LOOM_KERNEL_LIST(LOOM_CUDA_ROW)
#undef LOOM_CUDA_ROW
};
