/* What cuBLASLt multiplies in place of a call's matrices: copies in fewer bits, made on the device right before the product. */
#ifndef LOOM_KERNELS_CUDA_FACTORS_H
#define LOOM_KERNELS_CUDA_FACTORS_H

#include "kernels/cuda/gpu.h"

typedef struct loom_lt_factors {
    const void *a, *b;
    const float *scale_a, *scale_b; /* on the device; NULL: 1 */
    void *workspace;                /* of the product */
} loom_lt_factors;

/* Calls have their strides filled in, and batch at least 1. */
bool loom_lt_takes_fp8(const loom_gpu *gpu, const loom_gemm_args *a);
bool loom_lt_takes_bf16(const loom_gpu *gpu, const loom_gemm_args *a);

/* From one row to the next of a bf16 matrix of so many columns. */
int64_t loom_lt_bf16_stride(int64_t cols);

/* Scratch for the product, for the copies, and these enqueued. In fp8 both are tight, with k along their rows; in bf16 they lie as the call's do. */
int loom_lt_fp8_factors(loom_gpu *gpu, const loom_gemm_args *a, size_t workspace_bytes, loom_lt_factors *f);
int loom_lt_bf16_factors(loom_gpu *gpu, const loom_gemm_args *a, size_t workspace_bytes, loom_lt_factors *f);

#endif
