/* Attention as graphs of cuDNN's operations, forward and backward. */
#ifndef LOOM_KERNELS_CUDA_CUDNN_GRAPH_H
#define LOOM_KERNELS_CUDA_CUDNN_GRAPH_H

#include "kernels/cuda/cudnn_library.h"

#include <stdint.h>

/* All that a graph depends on. Compared as bytes, so it has no holes. */
typedef struct loom_cudnn_shape {
    int64_t batch, heads, kv_heads, q_seq, k_seq, head_dim;
    int64_t causal, backward;
} loom_cudnn_shape;

/* Tensors with memory, by the numbers that the graphs know them by. q, k, v, o and their gradients: bf16 [B, S, heads, K], tight. */
enum loom_cudnn_tensor {
    LOOM_CUDNN_Q = 1,
    LOOM_CUDNN_K,
    LOOM_CUDNN_V,
    LOOM_CUDNN_O,
    LOOM_CUDNN_LSE,    /* f32 [B, H, S] */
    LOOM_CUDNN_SCALE,  /* one f32 of the host */
    LOOM_CUDNN_HIDDEN, /* one f32 of the host: -inf, the score of what a query does not see; causal only */
    LOOM_CUDNN_DO,     /* backward only, from here on */
    LOOM_CUDNN_DQ,
    LOOM_CUDNN_DK,
    LOOM_CUDNN_DV,
    LOOM_CUDNN_DELTA,  /* f32 [B, H, S]: scratch */
    LOOM_CUDNN_ONE,    /* one f32 of the host: 1 */
    LOOM_CUDNN_TENSORS /* how many, and one */
};

enum { LOOM_CUDNN_DESCRIPTORS_MAX = 128 };

/* A graph and the plan to execute it. Descriptors live as long as the plan. */
typedef struct loom_cudnn_plan {
    loom_cudnn_shape shape;
    cudnnBackendDescriptor_t made[LOOM_CUDNN_DESCRIPTORS_MAX];
    int n_made;
    cudnnBackendDescriptor_t execution; /* one of them; NULL: cuDNN has no engine for it whose sums have one order, and that makes do with workspace_max */
    int64_t workspace_bytes, workspace_max;
} loom_cudnn_plan;

/* plan->shape and workspace_max are filled in, all else is zero. CUDNN_STATUS_SUCCESS also where there is no engine. Close it whatever happened: what is closed has
 * no execution. */
cudnnStatus_t loom_cudnn_plan_make(const loom_cudnn_library *cudnn, cudnnHandle_t handle, loom_cudnn_plan *plan);
void loom_cudnn_plan_close(const loom_cudnn_library *cudnn, loom_cudnn_plan *plan);

#endif
