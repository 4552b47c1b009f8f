/* Stands in for cudnn.c where the toolkit has no cudnn.h: attention is our own. */
#include "kernels/cuda/cudnn.h"

loom_status loom_cudnn_open(bool insist, void **dnn)
{
    *dnn = NULL;
    return insist ? loom_fail(LOOM_E_UNSUPPORTED, "kernels: RANKLOOM_CUDA_ATTENTION=cudnn, and this build has no cuDNN: cudnn.h was not there") : LOOM_OK;
}

void loom_cudnn_close(void *dnn)
{
    (void)dnn;
}

int loom_cudnn_attention(loom_gpu *gpu, const loom_attention_args *a, bool *done)
{
    (void)gpu, (void)a;
    *done = false;
    return 0;
}

int loom_cudnn_attention_backward(loom_gpu *gpu, const loom_attention_backward_args *a, bool *done)
{
    (void)gpu, (void)a;
    *done = false;
    return 0;
}
