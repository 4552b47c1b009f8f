/* Sums over the rows of a matrix, one a column, added in row order: total += x[0] + x[1] + … exactly so. */
#ifndef LOOM_KERNELS_CUDA_COLUMNS_CUH
#define LOOM_KERNELS_CUDA_COLUMNS_CUH

#include "kernels/cuda/device.cuh"

typedef struct loom_column_sums {
    float *total; /* [segments, cols] */
    const float *x;
    const float *row_factor; /* of each row of x; NULL: 1 */
    int64_t rows, cols, ld;
    int64_t segment, segments; /* rows of a segment, each summed by itself; the last may be shorter. 0, 0: one of all rows */
    bool accumulate;
} loom_column_sums;

int loom_gpu_column_sums(const loom_gpu *gpu, loom_column_sums a); /* sum.cu */

#endif
