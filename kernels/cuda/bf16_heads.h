/* Tensors of heads as tight bf16 and back, for libraries that take no f32. */
#ifndef LOOM_KERNELS_CUDA_BF16_HEADS_H
#define LOOM_KERNELS_CUDA_BF16_HEADS_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Batch x seq rows of `width` f32, a multiple of 8, at `at`, beside bf16 rows that are tight and begin at 16 bytes. */
typedef struct loom_bf16_heads {
    float *wide;
    uint16_t *narrow;
    loom_bshk at; /* 0: tight */
    int64_t batch, seq, width;
} loom_bf16_heads;

int loom_gpu_narrow(const loom_gpu *gpu, const loom_bf16_heads *r);                  /* wide -> narrow, to nearest even */
int loom_gpu_widen(const loom_gpu *gpu, const loom_bf16_heads *r, bool accumulate);  /* narrow -> wide, or added to it */

#ifdef __cplusplus
}
#endif
#endif
