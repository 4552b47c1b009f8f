/* Attention by cuDNN: bf16 where that is what factors are rounded to, and only what its kernels take. All of it is a stub in a build without cuDNN's header. */
#ifndef LOOM_KERNELS_CUDA_CUDNN_H
#define LOOM_KERNELS_CUDA_CUDNN_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One handle's state, for one thread at a time. The library is opened when something is there for it, at once with `insist`: LOOM_E_UNSUPPORTED where it is
 * not there or too old. *dnn NULL: a build without it. */
loom_status loom_cudnn_open(bool insist, void **dnn);
void loom_cudnn_close(void *dnn); /* accepts NULL */

/* gpu->dnn is there; nothing is empty. *done false: it takes no such thing, and nothing was enqueued. Else it was by cuDNN or by the functions below. */
int loom_cudnn_attention(loom_gpu *gpu, const loom_attention_args *a, bool *done);
int loom_cudnn_attention_backward(loom_gpu *gpu, const loom_attention_backward_args *a, bool *done);

int loom_gpu_own_attention(loom_gpu *gpu, const loom_attention_args *a);
int loom_gpu_own_attention_backward(loom_gpu *gpu, const loom_attention_backward_args *a);

#ifdef __cplusplus
}
#endif
#endif
