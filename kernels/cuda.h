/* The kernels of a CUDA device. They are part of the CUDA module (device/cuda_module.h); the library checks arguments and passes on. */
#ifndef LOOM_KERNELS_CUDA_H
#define LOOM_KERNELS_CUDA_H

#include <rankloom/kernels.h>

loom_status loom_cuda_open(loom_device *device, const loom_kernels_config *config, loom_kernels **kernels);
void loom_cuda_close(loom_kernels *kernels);

struct CUstream_st; /* what a cudaStream_t points at */

/* How the module is to multiply. */
typedef enum loom_gpu_math {
    LOOM_GPU_F32,  /* as the CPU does */
    LOOM_GPU_TF32, /* tensor cores; 10 bits of mantissa are multiplied, sums are f32 */
    LOOM_GPU_BF16, /* tensor cores; 7 bits; cuBLASLt gets large factors as bf16 copies, and rounds others on their way */
    LOOM_GPU_FP8,  /* tensor cores; e4m3 with a scale a matrix where cuBLASLt multiplies and all sizes are multiples of 16, else as tf32 */
} loom_gpu_math;

/* Whose attention where factors are rounded to bf16; else it is ours. */
typedef enum loom_gpu_attention_maker {
    LOOM_GPU_ATTENTION_AUTO,
    LOOM_GPU_ATTENTION_OWN,
    LOOM_GPU_ATTENTION_CUDNN, /* for all that it takes; it has to be there */
} loom_gpu_attention_maker;

typedef struct loom_cuda_choice {
    bool own_gemm; /* not cuBLASLt */
    loom_gpu_math math;
    bool always_narrow; /* for tests: bf16 copies of small factors, too */
    loom_gpu_attention_maker attention;
} loom_cuda_choice;

/* What the module keeps for one loom_kernels: cuBLASLt handle, workspace, tables of heuristics. Defined in kernels/cuda. */
typedef struct loom_cuda_kernels loom_cuda_kernels;

/* The module's functions. Arguments were found right before; pointers in them are the device's; the device is current in this thread. An
 * operation only enqueues: no allocation once it has met its shapes, and no waiting. */
typedef struct loom_cuda_operations {
    /* memory from loom_alloc(device, …, LOOM_MEM_WORKSPACE) */
    loom_status (*open)(loom_device *device, const loom_cuda_choice *choice, loom_cuda_kernels **state);
    void (*close)(loom_cuda_kernels *state); /* accepts NULL */
#define LOOM_CUDA_OPERATION(name, args) loom_status (*name)(loom_cuda_kernels * state, const args *a, struct CUstream_st *stream);
    LOOM_KERNEL_LIST(LOOM_CUDA_OPERATION)
#undef LOOM_CUDA_OPERATION
} loom_cuda_operations;

#endif
