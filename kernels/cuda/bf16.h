/* Matrices as bf16 and back, on the device: for libraries that multiply bf16 and take no f32. */
#ifndef LOOM_KERNELS_CUDA_BF16_H
#define LOOM_KERNELS_CUDA_BF16_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* matrices x rows of `cols` f32, rows ld and matrices stride apart, beside bf16 rows, all narrow_ld apart. */
typedef struct loom_bf16_rows {
    float *wide;      /* only read by narrow */
    uint16_t *narrow; /* aligned to 16 */
    int64_t matrices, rows, cols, ld, stride;
    int64_t narrow_ld; /* a multiple of 8 */
} loom_bf16_rows;

int loom_gpu_narrow(const loom_gpu *gpu, const loom_bf16_rows *r);                 /* to nearest even; what is behind a row's columns becomes 0 */
int loom_gpu_widen(const loom_gpu *gpu, const loom_bf16_rows *r, bool accumulate); /* or added to what is there */

#ifdef __cplusplus
}
#endif
#endif
