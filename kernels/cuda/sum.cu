/* Sums in a stated order: of many numbers in f64, to the bit as the CPU does it; and of the rows of a matrix. */
#include "kernels/cuda/columns.cuh"

/* --- of many numbers. Every block of SUM_BLOCK elements is summed by itself in SUM_LANES running sums, then the blocks in order. --- */

enum { SUM_BLOCK = 16384, SUM_LANES = 16, SUM_THREADS = 128, SUMS = SUM_THREADS / SUM_LANES, AHEAD = 8 };

struct partial_args {
    double *partial;
    const float *x;
    int64_t count, blocks;
    bool square;
};

LOOM_DEVICE double term(float x, bool square)
{
    return square ? static_cast<double>(x) * x : static_cast<double>(x);
}

/* SUM_LANES threads a block of elements. Loads run ahead of the additions that wait for them. */
__global__ void __launch_bounds__(SUM_THREADS) partial_sums_kernel(const partial_args a)
{
    int64_t block = static_cast<int64_t>(blockIdx.x) * SUMS + threadIdx.x / SUM_LANES;
    unsigned lane = threadIdx.x % SUM_LANES, first_lane = threadIdx.x % LOOM_WARP / SUM_LANES * SUM_LANES;
    int64_t from = block * SUM_BLOCK, left = a.count - from, count = left < 0 ? 0 : left < SUM_BLOCK ? left : int64_t(SUM_BLOCK);
    int64_t steps = count / SUM_LANES, i = 0;
    double own = 0, sum = 0;

    for (; i + AHEAD <= steps; i += AHEAD) {
        float x[AHEAD];
        for (int k = 0; k < AHEAD; k++)
            x[k] = a.x[from + (i + k) * SUM_LANES + lane];
        for (int k = 0; k < AHEAD; k++)
            own += term(x[k], a.square);
    }
    for (; i < steps; i++)
        own += term(a.x[from + i * SUM_LANES + lane], a.square);
    for (unsigned l = 0; l < SUM_LANES; l++)
        sum += __shfl_sync(LOOM_ALL_LANES, own, first_lane + l);
    if (lane == 0 && block < a.blocks) {
        for (int64_t j = steps * SUM_LANES; j < count; j++)
            sum += term(a.x[from + j], a.square);
        a.partial[block] = sum;
    }
}

struct total_args {
    double *sum;
    const double *partial;
    int64_t blocks;
    bool accumulate;
};

/* One warp: every lane fetches a partial, all add all of them in order. */
__global__ void __launch_bounds__(LOOM_WARP) total_kernel(const total_args a)
{
    double sum = 0;

    for (int64_t from = 0; from < a.blocks; from += LOOM_WARP) {
        int64_t left = a.blocks - from;
        double own = threadIdx.x < left ? a.partial[from + threadIdx.x] : 0;

        for (unsigned lane = 0; lane < LOOM_WARP; lane++) {
            double next = __shfl_sync(LOOM_ALL_LANES, own, lane);
            sum += lane < left ? next : 0.0;
        }
    }
    if (threadIdx.x == 0)
        *a.sum = a.accumulate ? *a.sum + sum : sum;
}

static int sum_all(loom_gpu *gpu, const loom_sum_args *a, bool square)
{
    int64_t blocks = ceil_div(a->count, SUM_BLOCK);
    double *partial = static_cast<double *>(gpu->scratch(gpu, static_cast<size_t>(blocks) * sizeof(double)));

    if (!partial && blocks > 0)
        return LOOM_GPU_FAILED;
    if (blocks > 0)
        LOOM_GPU_TRY(loom_launch(gpu, partial_sums_kernel, dim3(static_cast<unsigned>(ceil_div(blocks, SUMS))), dim3(SUM_THREADS), 0,
                                 (partial_args{partial, a->x, a->count, blocks, square})));
    return loom_launch(gpu, total_kernel, dim3(1), dim3(LOOM_WARP), 0, (total_args{a->sum, partial, blocks, a->accumulate}));
}

int loom_gpu_sum(loom_gpu *gpu, const loom_sum_args *a)
{
    return sum_all(gpu, a, false);
}

int loom_gpu_sum_squares(loom_gpu *gpu, const loom_sum_args *a)
{
    return sum_all(gpu, a, true);
}

/* --- of rows --- */

enum { TILE_ROWS = 128, TILE_COLUMNS = 32, LOADERS = 8, COLUMN_THREADS = TILE_COLUMNS * LOADERS, TILE_LOADS = TILE_ROWS / LOADERS };

struct column_tile {
    float at[TILE_ROWS][TILE_COLUMNS];
};

LOOM_DEVICE void load_column_tile(const loom_column_sums &a, int64_t first, int64_t last, int64_t column, float *loaded)
{
    for (int k = 0; k < TILE_LOADS; k++) {
        int64_t row = first + threadIdx.y + k * LOADERS;
        bool here = row < last && column < a.cols;

        loaded[k] = here ? a.x[row * a.ld + column] * (a.row_factor ? a.row_factor[row] : 1.0f) : 0.0f;
    }
}

/* All warps fetch a tile of rows while one adds up the tile before, row by row: the additions are a chain, the loads are not. */
__global__ void __launch_bounds__(COLUMN_THREADS) column_sums_kernel(const loom_column_sums a)
{
    LOOM_SHARED(column_tile, tile);
    int64_t column = static_cast<int64_t>(blockIdx.x) * TILE_COLUMNS + threadIdx.x;

    for (int64_t s = blockIdx.y; s < a.segments; s += gridDim.y) {
        int64_t first = s * a.segment, last = first + a.segment < a.rows ? first + a.segment : a.rows;
        float loaded[TILE_LOADS], total = threadIdx.y == 0 && column < a.cols && a.accumulate ? a.total[s * a.cols + column] : 0;

        load_column_tile(a, first, last, column, loaded);
        for (; first < last; first += TILE_ROWS) {
            __syncthreads();
            for (int k = 0; k < TILE_LOADS; k++)
                tile.at[threadIdx.y + k * LOADERS][threadIdx.x] = loaded[k];
            __syncthreads();
            load_column_tile(a, first + TILE_ROWS, last, column, loaded);
            for (int64_t r = 0; threadIdx.y == 0 && r < TILE_ROWS && first + r < last; r++)
                total += tile.at[r][threadIdx.x];
        }
        if (threadIdx.y == 0 && column < a.cols)
            a.total[s * a.cols + column] = total;
    }
}

int loom_gpu_column_sums(const loom_gpu *gpu, loom_column_sums a)
{
    if (a.segments == 0)
        a.segment = a.rows, a.segments = 1;
    a.ld = or_tight(a.ld, a.cols);
    if (a.cols == 0 || (a.rows == 0 && a.accumulate))
        return 0;
    return loom_launch(gpu, column_sums_kernel, dim3(static_cast<unsigned>(ceil_div(a.cols, TILE_COLUMNS)), at_most(a.segments, LOOM_GRID_Y)),
                       dim3(TILE_COLUMNS, LOADERS), 0, a);
}

int loom_gpu_bias_backward(loom_gpu *gpu, const loom_bias_backward_args *a)
{
    loom_column_sums sums = {};

    sums.total = a->dbias_N, sums.x = a->dy_TN, sums.rows = a->tokens, sums.cols = a->width, sums.ld = a->ld_dy, sums.accumulate = true;
    return loom_gpu_column_sums(gpu, sums);
}
