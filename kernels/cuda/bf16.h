/* Matrices as bf16, made on the device right before they are multiplied. */
#ifndef LOOM_KERNELS_CUDA_BF16_H
#define LOOM_KERNELS_CUDA_BF16_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct loom_bf16_rows {
    const float *x; /* [matrices, rows, cols], rows ld and matrices stride apart */
    int64_t matrices, rows, cols, ld, stride;
    uint16_t *y; /* [matrices, rows, y_ld], aligned to 16; what is behind a row's columns becomes 0 */
    int64_t y_ld; /* a multiple of 8 */
} loom_bf16_rows;

int loom_gpu_bf16_rows(const loom_gpu *gpu, const loom_bf16_rows *r);

#ifdef __cplusplus
}
#endif
#endif
