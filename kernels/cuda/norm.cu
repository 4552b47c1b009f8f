/* RMSNorm and LayerNorm: an RMSNorm is a LayerNorm whose mean is taken to be 0. A block has a row; its threads keep what they read of it in
 * shared memory, each its own columns, so that the row comes from memory once. */
#include "kernels/cuda/columns.cuh"

struct norm_args {
    float *y, *mean, *rstd, *sum;
    const float *x, *weight, *bias, *add;
    int64_t hidden;
    float eps;
    bool quads, kept; /* kept: the row fits in shared memory */
};

/* Threads of a row's block: two quads each, as far as that goes. */
static unsigned row_threads(int64_t hidden)
{
    unsigned threads = LOOM_WARP;

    while (threads < 1024 && 8 * static_cast<int64_t>(threads) < hidden)
        threads *= 2;
    return threads;
}

LOOM_DEVICE float sum4(float4 v)
{
    return (v.x + v.y) + (v.z + v.w);
}

/* Squared distances from the mean of the elements that are there. */
LOOM_DEVICE float squares4(float4 v, float mean, int64_t i, int64_t hidden)
{
    float a = v.x - mean, b = i + 1 < hidden ? v.y - mean : 0, c = i + 2 < hidden ? v.z - mean : 0, d = i + 3 < hidden ? v.w - mean : 0;

    return fmaf(a, a, b * b) + fmaf(c, c, d * d);
}

template <bool centred> __global__ void __launch_bounds__(1024) norm_kernel(const norm_args a)
{
    LOOM_SHARED_BYTES(float, kept);
    LOOM_SHARED(block_slots, slots);
    int64_t t = blockIdx.x, hidden = a.hidden, step = 4 * static_cast<int64_t>(blockDim.x), first = 4 * static_cast<int64_t>(threadIdx.x);
    const float *x = a.x + t * hidden, *row = a.kept ? kept : a.add ? a.sum + t * hidden : x;
    float total = 0, mean = 0, squares = 0;

    for (int64_t i = first; i < hidden; i += step) {
        float4 v = load_some(x, i, hidden, a.quads, 0);
        if (a.add) {
            v = v + load_some(a.add + t * hidden, i, hidden, a.quads, 0);
            store_some(a.sum + t * hidden, i, hidden, a.quads, v);
        }
        if (a.kept)
            store4(kept + i, v); /* padded to whole quads */
        total += centred ? sum4(v) : squares4(v, 0, i, hidden);
    }
    total = block_sum(total, slots);
    squares = total;
    if (centred) {
        mean = total / static_cast<float>(hidden);
        squares = 0;
        for (int64_t i = first; i < hidden; i += step)
            squares += squares4(a.kept ? load4(row + i) : load_some(row, i, hidden, a.quads, 0), mean, i, hidden);
        squares = block_sum(squares, slots);
    }
    float rstd = 1.0f / sqrtf(squares / static_cast<float>(hidden) + a.eps);

    for (int64_t i = first; i < hidden; i += step) {
        float4 v = a.kept ? load4(row + i) : load_some(row, i, hidden, a.quads, 0), w = load_some(a.weight, i, hidden, a.quads, 0);
        float4 b = a.bias ? load_some(a.bias, i, hidden, a.quads, 0) : make_float4(0, 0, 0, 0);
        float4 y = make_float4((v.x - mean) * rstd * w.x, (v.y - mean) * rstd * w.y, (v.z - mean) * rstd * w.z, (v.w - mean) * rstd * w.w);
        store_some(a.y + t * hidden, i, hidden, a.quads, a.bias ? y + b : y);
    }
    if (threadIdx.x == 0 && a.mean)
        a.mean[t] = mean;
    if (threadIdx.x == 0 && a.rstd)
        a.rstd[t] = rstd;
}

static int norm(const loom_gpu *gpu, norm_args a, int64_t tokens, bool centred)
{
    size_t row_bytes = static_cast<size_t>(ceil_div(a.hidden, 4)) * sizeof(float4);

    if (tokens == 0 || a.hidden == 0)
        return 0;
    a.quads = a.hidden % 4 == 0 && aligned16(a.y) && aligned16(a.x) && aligned16(a.weight) && aligned16(a.bias) && aligned16(a.add) && aligned16(a.sum);
    a.kept = row_bytes <= 40 * 1024; /* with the slots it fits where nothing has to be asked for */
    return loom_launch(gpu, (centred ? norm_kernel<true> : norm_kernel<false>), dim3(static_cast<unsigned>(tokens)),
                       dim3(row_threads(a.hidden)), a.kept ? row_bytes : 0, a);
}

int loom_gpu_rmsnorm(loom_gpu *gpu, const loom_rmsnorm_args *a)
{
    norm_args n = {};

    n.y = a->y_TD, n.rstd = a->rstd_T, n.sum = a->sum_TD, n.x = a->x_TD, n.weight = a->weight_D, n.add = a->add_TD;
    n.hidden = a->hidden, n.eps = a->eps;
    return norm(gpu, n, a->tokens, false);
}

int loom_gpu_layernorm(loom_gpu *gpu, const loom_layernorm_args *a)
{
    norm_args n = {};

    n.y = a->y_TD, n.mean = a->mean_T, n.rstd = a->rstd_T, n.sum = a->sum_TD, n.x = a->x_TD, n.weight = a->weight_D, n.bias = a->bias_D;
    n.add = a->add_TD, n.hidden = a->hidden, n.eps = a->eps;
    return norm(gpu, n, a->tokens, true);
}

/* --- backward: with n = (x - mean) rstd and g = dy weight,
 *   dx = rstd (g - mean(g) - n mean(g n)), without mean(g) for RMSNorm;  dweight += sum dy n;  dbias += sum dy.
 * A block has BLOCK_ROWS rows and leaves their part of dweight and dbias in scratch memory; the parts are then added in order. */
enum { BLOCK_ROWS = 16 };

struct norm_backward_args {
    float *dx, *dweight, *dbias; /* dweight and dbias: [blocks, hidden], or NULL */
    const float *dy, *x, *weight, *mean, *rstd;
    int64_t tokens, hidden;
    bool accumulate, quads;
};

LOOM_DEVICE float4 normal4(float4 x, float mean, float rstd)
{
    return make_float4((x.x - mean) * rstd, (x.y - mean) * rstd, (x.z - mean) * rstd, (x.w - mean) * rstd);
}

LOOM_DEVICE float4 times4(float4 a, float4 b)
{
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

template <bool centred> __global__ void __launch_bounds__(1024) norm_backward_kernel(const norm_backward_args a)
{
    LOOM_SHARED(block_slots, slots);
    int64_t hidden = a.hidden, step = 4 * static_cast<int64_t>(blockDim.x), first = 4 * static_cast<int64_t>(threadIdx.x);
    int64_t from = static_cast<int64_t>(blockIdx.x) * BLOCK_ROWS, to = from + BLOCK_ROWS < a.tokens ? from + BLOCK_ROWS : a.tokens;
    float *dweight = a.dweight ? a.dweight + blockIdx.x * hidden : nullptr, *dbias = a.dbias ? a.dbias + blockIdx.x * hidden : nullptr;
    const float4 zero = make_float4(0, 0, 0, 0);

    for (int64_t t = from; t < to; t++) {
        const float *dy = a.dy + t * hidden, *x = a.x + t * hidden;
        float mean = centred ? a.mean[t] : 0, rstd = a.rstd[t], sum_g = 0, sum_gn = 0;

        for (int64_t i = first; i < hidden; i += step) {
            float4 d = load_some(dy, i, hidden, a.quads, 0), n = normal4(load_some(x, i, hidden, a.quads, 0), mean, rstd);
            float4 g = times4(d, load_some(a.weight, i, hidden, a.quads, 0));

            sum_g += sum4(g); /* elements beyond the row have dy = 0 */
            sum_gn += sum4(times4(g, n));
            if (dweight)
                store_some(dweight, i, hidden, a.quads, times4(d, n) + (t > from ? load_some(dweight, i, hidden, a.quads, 0) : zero));
            if (dbias)
                store_some(dbias, i, hidden, a.quads, d + (t > from ? load_some(dbias, i, hidden, a.quads, 0) : zero));
        }
        if (!a.dx)
            continue;
        float mean_g = centred ? block_sum(sum_g, slots) / static_cast<float>(hidden) : 0;
        float mean_gn = block_sum(sum_gn, slots) / static_cast<float>(hidden);

        for (int64_t i = first; i < hidden; i += step) {
            float4 n = normal4(load_some(x, i, hidden, a.quads, 0), mean, rstd);
            float4 g = times4(load_some(dy, i, hidden, a.quads, 0), load_some(a.weight, i, hidden, a.quads, 0));
            float4 d = make_float4(rstd * (g.x - mean_g - n.x * mean_gn), rstd * (g.y - mean_g - n.y * mean_gn),
                                   rstd * (g.z - mean_g - n.z * mean_gn), rstd * (g.w - mean_g - n.w * mean_gn));
            float *dx = a.dx + t * hidden;

            store_some(dx, i, hidden, a.quads, a.accumulate ? load_some(dx, i, hidden, a.quads, 0) + d : d);
        }
    }
}

static int add_parts(const loom_gpu *gpu, float *total, const float *parts, int64_t blocks, int64_t hidden)
{
    loom_column_sums sums = {};

    sums.total = total, sums.x = parts, sums.rows = blocks, sums.cols = hidden, sums.accumulate = true;
    return total ? loom_gpu_column_sums(gpu, sums) : 0;
}

static int norm_backward(loom_gpu *gpu, norm_backward_args a, bool centred)
{
    int64_t blocks = ceil_div(a.tokens, BLOCK_ROWS), size = blocks * ceil_div(a.hidden, 4) * 4;
    float *dweight = a.dweight, *dbias = a.dbias, *parts = nullptr;

    if (a.tokens == 0 || a.hidden == 0)
        return 0;
    if (dweight || dbias) {
        parts = static_cast<float *>(gpu->scratch(gpu, static_cast<size_t>(2 * size) * sizeof(float)));
        if (!parts)
            return LOOM_GPU_FAILED;
    }
    a.dweight = dweight ? parts : nullptr;
    a.dbias = dbias ? parts + size : nullptr;
    a.quads = a.hidden % 4 == 0 && aligned16(a.dx) && aligned16(a.dy) && aligned16(a.x) && aligned16(a.weight);
    LOOM_GPU_TRY(loom_launch(gpu, (centred ? norm_backward_kernel<true> : norm_backward_kernel<false>), dim3(static_cast<unsigned>(blocks)),
                             dim3(row_threads(a.hidden)), 0, a));
    LOOM_GPU_TRY(add_parts(gpu, dweight, a.dweight, blocks, a.hidden));
    return add_parts(gpu, dbias, a.dbias, blocks, a.hidden);
}

int loom_gpu_rmsnorm_backward(loom_gpu *gpu, const loom_rmsnorm_backward_args *a)
{
    norm_backward_args n = {};

    n.dx = a->dx_TD, n.dweight = a->dweight_D, n.dy = a->dy_TD, n.x = a->x_TD, n.weight = a->weight_D, n.rstd = a->rstd_T;
    n.tokens = a->tokens, n.hidden = a->hidden, n.accumulate = a->accumulate;
    return norm_backward(gpu, n, false);
}

int loom_gpu_layernorm_backward(loom_gpu *gpu, const loom_layernorm_backward_args *a)
{
    norm_backward_args n = {};

    n.dx = a->dx_TD, n.dweight = a->dweight_D, n.dbias = a->dbias_D, n.dy = a->dy_TD, n.x = a->x_TD, n.weight = a->weight_D;
    n.mean = a->mean_T, n.rstd = a->rstd_T, n.tokens = a->tokens, n.hidden = a->hidden, n.accumulate = a->accumulate;
    return norm_backward(gpu, n, true);
}
