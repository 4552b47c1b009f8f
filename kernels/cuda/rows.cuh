/* Operations on matrices whose rows lie any distance apart. */
#ifndef LOOM_KERNELS_CUDA_ROWS_CUH
#define LOOM_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/device.cuh"

enum { ROW_THREADS = 256 };

/* A block column walks over rows in y; a thread has four neighbouring columns. An operation has row_quad(row, column, columns, quads). */
template <class Op> struct rows_args {
    Op op;
    int64_t rows, cols;
    bool quads;
};

template <class Op> __global__ void __launch_bounds__(ROW_THREADS) rows_kernel(const rows_args<Op> a)
{
    int64_t column = 4 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
    int64_t first = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y, step = static_cast<int64_t>(gridDim.y) * blockDim.y;

    if (column >= a.cols)
        return;
    for (int64_t row = first; row < a.rows; row += step)
        a.op.row_quad(row, column, a.cols, a.quads);
}

template <class Op> static int each_row(const loom_gpu *gpu, int64_t rows, int64_t cols, bool whole_quads, Op op)
{
    const rows_args<Op> a = {op, rows, cols, whole_quads};
    unsigned wide = 32; /* threads along a row: as few as cover it, so that narrow rows still fill a block */

    if (rows == 0 || cols == 0)
        return 0;
    while (wide < ROW_THREADS && 4 * static_cast<int64_t>(wide) < cols)
        wide *= 2;
    dim3 block(wide, ROW_THREADS / wide), grid(static_cast<unsigned>(ceil_div(cols, 4 * wide)), at_most(ceil_div(rows, block.y), LOOM_GRID_Y));
    return loom_launch(gpu, rows_kernel<Op>, grid, block, 0, a);
}

#endif
