/* Factors of products as fp8, made on the device right before they are multiplied. */
#ifndef LOOM_KERNELS_CUDA_FP8_H
#define LOOM_KERNELS_CUDA_FP8_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LOOM_FP8_PARTIALS = 256 };

/* A matrix as e4m3 with one scale: its largest number becomes the type's largest, 448, and code times scale is the number again. Activations, weights and
 * gradients alike: with a scale of its own for each matrix, gradients need e4m3's third bit of mantissa more than the range of e5m2. */
typedef struct loom_fp8_factor {
    const float *x; /* [rows, cols], rows ld apart */
    int64_t rows, cols, ld;
    bool transpose;   /* codes are [cols, rows] */
    uint8_t *codes;   /* tight, aligned to 16; both sizes are multiples of 16 */
    float *scale;     /* written */
    float *partial;   /* scratch, [LOOM_FP8_PARTIALS] */
} loom_fp8_factor;

int loom_gpu_fp8_encode(const loom_gpu *gpu, const loom_fp8_factor *f);

#ifdef __cplusplus
}
#endif
#endif
