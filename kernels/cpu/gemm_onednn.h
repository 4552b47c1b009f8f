/* What the two generations of oneDNN's C interface have in common: primitives kept by shape. */
#ifndef LOOM_KERNELS_GEMM_ONEDNN_H
#define LOOM_KERNELS_GEMM_ONEDNN_H

#include "kernels/cpu/cpu.h"

#include <dnnl.h>

/* All that a primitive was made for, with every stride spelled out. Compared byte by byte: no padding, filled whole. */
typedef struct matmul_shape {
    int64_t m, n, k, batch;
    int64_t a_row, a_col, b_row, b_col, c_row; /* strides of op(A), op(B) and C */
    int64_t stride_a, stride_b, stride_c;
    int64_t bias, accumulate, threads;
} matmul_shape;

/* Whether the rows of B are contiguous, so that the packing implementation is the faster one. */
static inline bool loom_matmul_prefers_packing(const matmul_shape *s)
{
    return s->b_col == 1;
}

typedef struct matmul {
    matmul_shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, c, scratchpad;
    size_t scratchpad_bytes;
} matmul;

/* Makes the primitive and its memory objects for shape; they are the caller's, also after a failure. One of the two files defines it. */
dnnl_status_t loom_matmul_make(dnnl_engine_t engine, matmul *made);

#endif
