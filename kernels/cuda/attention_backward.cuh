/* Attention backward: what its kernels take, and what they know of a query. */
#ifndef LOOM_KERNELS_CUDA_ATTENTION_BACKWARD_CUH
#define LOOM_KERNELS_CUDA_ATTENTION_BACKWARD_CUH

#include "kernels/cuda/attention.cuh"

struct backward_args {
    attention_kernel_args t;
    loom_attention_backward_args a;
    attention_strides do_at, dq_at, dk_at, dv_at;
    float *delta_BHS;
};

struct query_facts {
    token_tag tag;
    float lse, delta; /* lse +inf where it saw nothing: exp(s - inf) makes its row of P zero */
};

LOOM_DEVICE query_facts facts_of(const backward_args &k, const mask_side &queries, int64_t b, int64_t h, int64_t row)
{
    const loom_attention_args &a = k.t.a;
    int64_t at = (b * a.heads + h) * a.q_seq + row;
    float infinity = -minus_infinity(), lse = row < a.q_seq ? a.lse_BHS[at] : infinity;

    return {tag_of(queries, row), lse == minus_infinity() ? infinity : lse, row < a.q_seq ? k.delta_BHS[at] : 0};
}

enum { ATTENTION_BACKWARD_MMA_MAX = 128 }; /* a head's size; the gradients of larger ones do not fit in registers */

int loom_gpu_attention_backward_mma(const loom_gpu *gpu, const backward_args &k); /* attention_backward_mma.cu; delta is there */

#endif
