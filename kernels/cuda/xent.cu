/* Softmax cross-entropy over a whole or a split vocabulary, and argmax. A block has a row of logits. Maximum and sum of exponentials come
 * out of one pass: every thread keeps both for what it has seen. */
#include "kernels/cuda/device.cuh"

/* Sum of exp(x - largest) over some columns. Nothing seen: -inf and 0. */
struct softmax_part {
    float largest, sum;
};

/* What the sum is relative to: exp(-inf - 0) is 0, exp(-inf - -inf) is not a number. */
LOOM_DEVICE float base_of(float largest)
{
    return largest == minus_infinity() ? 0.0f : largest;
}

LOOM_DEVICE void see(softmax_part &p, float x)
{
    if (x > p.largest) {
        p.sum = p.sum * expf(p.largest - x) + 1.0f;
        p.largest = x;
    } else {
        p.sum += expf(x - base_of(p.largest)); /* not a number goes here, too, and stays in the sum */
    }
}

/* The whole row's, in every thread. */
LOOM_DEVICE softmax_part row_softmax(const float *x, int64_t cols, bool whole_quads, block_slots &slots)
{
    softmax_part own = {minus_infinity(), 0};
    int64_t step = 4 * static_cast<int64_t>(blockDim.x);

    for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < cols; i += step) {
        float4 v = load_some(x, i, cols, whole_quads, minus_infinity()); /* those beyond add exp(-inf) */
        see(own, v.x);
        see(own, v.y);
        see(own, v.z);
        see(own, v.w);
    }
    float largest = block_max(own.largest, slots);
    double sum = block_sum(static_cast<double>(own.sum * expf(own.largest - base_of(largest))), slots);
    return {largest, static_cast<float>(sum)};
}

/* (exp(x - largest) / sum - [is target]) * weight into x; padding becomes 0. */
LOOM_DEVICE void row_gradient(float *x, int64_t cols, int64_t ld, bool whole_quads, int64_t target, softmax_part p, float weight)
{
    float factor = weight / p.sum, base = p.largest;
    int64_t step = 4 * static_cast<int64_t>(blockDim.x);

    for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < ld; i += step) {
        float4 v = load_some(x, i, cols, whole_quads, 0);
        v = make_float4(expf(v.x - base) * factor, expf(v.y - base) * factor, expf(v.z - base) * factor, expf(v.w - base) * factor);
        v.x = i >= cols ? 0 : i == target ? v.x - weight : v.x;
        v.y = i + 1 >= cols ? 0 : i + 1 == target ? v.y - weight : v.y;
        v.z = i + 2 >= cols ? 0 : i + 2 == target ? v.z - weight : v.z;
        v.w = i + 3 >= cols ? 0 : i + 3 == target ? v.w - weight : v.w;
        store_some(x, i, ld, whole_quads, v);
    }
}

LOOM_DEVICE void clear_row(float *x, int64_t ld, bool whole_quads)
{
    for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < ld; i += 4 * static_cast<int64_t>(blockDim.x))
        store_some(x, i, ld, whole_quads, make_float4(0, 0, 0, 0));
}

static unsigned xent_threads(int64_t cols)
{
    unsigned threads = LOOM_WARP;

    while (threads < 512 && 16 * static_cast<int64_t>(threads) < cols)
        threads *= 2;
    return threads;
}

/* --- split --- */

struct xent_local_kernel_args {
    loom_xent_local_args a;
    int64_t ld;
    bool quads;
};

__global__ void __launch_bounds__(512) xent_local_kernel(const xent_local_kernel_args k)
{
    LOOM_SHARED(block_slots, slots);
    const loom_xent_local_args &a = k.a;
    int64_t t = blockIdx.x, column = a.targets_T[t] - a.first;
    bool here = a.targets_T[t] != LOOM_IGNORE_INDEX && column >= 0 && column < a.cols;
    const float *x = a.logits_TV + t * k.ld;
    softmax_part p = row_softmax(x, a.cols, k.quads, slots);

    if (threadIdx.x == 0) {
        a.max_T[t] = p.largest;
        a.sum_T[t] = p.sum;
        a.target_T[t] = here ? x[column] : 0;
    }
}

int loom_gpu_xent_local(loom_gpu *gpu, const loom_xent_local_args *a)
{
    xent_local_kernel_args k = {*a, or_tight(a->ld, a->cols), false};

    if (a->tokens == 0)
        return 0;
    k.quads = quads(a->logits_TV, k.ld);
    return loom_launch(gpu, xent_local_kernel, dim3(static_cast<unsigned>(a->tokens)), dim3(xent_threads(a->cols)), 0, k);
}

__global__ void __launch_bounds__(256) xent_rebase_kernel(const loom_xent_rebase_args a)
{
    int64_t t = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;

    if (t < a.tokens && a.local_max_T[t] != a.global_max_T[t])
        a.sum_T[t] *= expf(a.local_max_T[t] - a.global_max_T[t]);
}

int loom_gpu_xent_rebase(loom_gpu *gpu, const loom_xent_rebase_args *a)
{
    if (a->tokens == 0)
        return 0;
    return loom_launch(gpu, xent_rebase_kernel, dim3(static_cast<unsigned>(ceil_div(a->tokens, 256))), dim3(256), 0, *a);
}

struct xent_gradient_kernel_args {
    loom_xent_gradient_args a;
    int64_t ld;
    bool quads;
};

__global__ void __launch_bounds__(512) xent_gradient_kernel(const xent_gradient_kernel_args k)
{
    const loom_xent_gradient_args &a = k.a;
    int64_t t = blockIdx.x;
    bool ignored = a.targets_T[t] == LOOM_IGNORE_INDEX;
    float *x = a.logits_TV ? a.logits_TV + t * k.ld : nullptr;

    if (a.loss_T && threadIdx.x == 0)
        a.loss_T[t] = ignored ? 0 : static_cast<float>(log(static_cast<double>(a.sum_T[t])) + (static_cast<double>(a.max_T[t]) - a.target_T[t]));
    if (x && ignored)
        clear_row(x, k.ld, k.quads);
    else if (x)
        row_gradient(x, a.cols, k.ld, k.quads, a.targets_T[t] - a.first, {a.max_T[t], a.sum_T[t]}, a.weight_T ? a.weight_T[t] : 1);
}

int loom_gpu_xent_gradient(loom_gpu *gpu, const loom_xent_gradient_args *a)
{
    xent_gradient_kernel_args k = {*a, or_tight(a->ld, a->cols), false};

    if (a->tokens == 0)
        return 0;
    k.quads = quads(a->logits_TV, k.ld);
    return loom_launch(gpu, xent_gradient_kernel, dim3(static_cast<unsigned>(a->tokens)), dim3(xent_threads(a->logits_TV ? k.ld : 1)), 0, k);
}

/* --- whole --- */

struct xent_kernel_args {
    loom_xent_args a;
    int64_t ld;
    bool quads;
};

/* A target outside the vocabulary shows as a loss that is no number. */
__global__ void __launch_bounds__(512) xent_kernel(const xent_kernel_args k)
{
    LOOM_SHARED(block_slots, slots);
    const loom_xent_args &a = k.a;
    int64_t t = blockIdx.x, target = a.targets_T[t];
    float *x = a.logits_TV + t * k.ld;

    if (target == LOOM_IGNORE_INDEX) {
        if (threadIdx.x == 0 && a.loss_T)
            a.loss_T[t] = 0;
        if (!a.forward_only)
            clear_row(x, k.ld, k.quads);
        return;
    }
    float at_target = target >= 0 && target < a.cols ? x[target] : not_a_number(); /* before anyone writes: the barriers of the sum lie between */
    softmax_part p = row_softmax(x, a.cols, k.quads, slots);

    if (threadIdx.x == 0 && a.loss_T)
        a.loss_T[t] = static_cast<float>(log(static_cast<double>(p.sum)) + (static_cast<double>(p.largest) - at_target));
    if (!a.forward_only)
        row_gradient(x, a.cols, k.ld, k.quads, target, p, a.weight_T ? a.weight_T[t] : 1);
}

int loom_gpu_xent(loom_gpu *gpu, const loom_xent_args *a)
{
    xent_kernel_args k = {*a, or_tight(a->ld, a->cols), false};

    if (a->tokens == 0)
        return 0;
    k.quads = quads(a->logits_TV, k.ld);
    return loom_launch(gpu, xent_kernel, dim3(static_cast<unsigned>(a->tokens)), dim3(xent_threads(k.ld)), 0, k);
}

/* --- argmax --- */

struct candidate {
    float value;
    int32_t index; /* -1: none */
};

/* The larger, and of equals the lower index; not a number beats all numbers, so that it shows. */
LOOM_DEVICE candidate better(candidate a, candidate b)
{
    bool a_nan = is_nan(a.value), b_nan = is_nan(b.value);

    if (a.index < 0 || b.index < 0)
        return a.index < 0 ? b : a;
    if (a_nan != b_nan)
        return a_nan ? a : b;
    if (!a_nan && a.value != b.value)
        return a.value > b.value ? a : b;
    return a.index < b.index ? a : b;
}

struct argmax_kernel_args {
    loom_argmax_args a;
    int64_t ld;
};

struct candidate_slots {
    candidate slot[16];
};

__global__ void __launch_bounds__(512) argmax_kernel(const argmax_kernel_args k)
{
    LOOM_SHARED(candidate_slots, slots);
    const loom_argmax_args &a = k.a;
    int64_t t = blockIdx.x;
    candidate best = {minus_infinity(), -1};

    for (int64_t i = threadIdx.x; i < a.cols; i += blockDim.x)
        best = better(best, {a.x_TV[t * k.ld + i], static_cast<int32_t>(i)});
    for (int other = 16; other > 0; other /= 2) {
        candidate theirs;
        theirs.value = __shfl_xor_sync(LOOM_ALL_LANES, best.value, other);
        theirs.index = __shfl_xor_sync(LOOM_ALL_LANES, best.index, other);
        best = better(best, theirs);
    }
    if (threadIdx.x % LOOM_WARP == 0)
        slots.slot[threadIdx.x / LOOM_WARP] = best;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (unsigned w = 1; w < blockDim.x / LOOM_WARP; w++)
        best = better(best, slots.slot[w]);
    a.index_T[t] = best.index;
    if (a.value_T)
        a.value_T[t] = best.value;
}

int loom_gpu_argmax(loom_gpu *gpu, const loom_argmax_args *a)
{
    const argmax_kernel_args k = {*a, or_tight(a->ld, a->cols)};

    if (a->tokens == 0)
        return 0;
    return loom_launch(gpu, argmax_kernel, dim3(static_cast<unsigned>(a->tokens)), dim3(xent_threads(a->cols)), 0, k);
}
