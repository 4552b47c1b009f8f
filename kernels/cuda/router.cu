/* The router of a mixture of experts: scores, choice, balance, and the gradient through all of it. A warp has a token; its lanes share out
 * the experts: expert i is lane i % 32's. */
#include "kernels/cuda/columns.cuh"

enum { WARPS = 4, ROUTER_THREADS = 32 * WARPS };

/* 1, or what makes the token's scores sum to 1; they are all 0 where a token chose nothing. Sums over experts add each lane's own first, then
 * the lanes: an order that the count of experts alone decides. */
LOOM_DEVICE float share_of(const float *score, int64_t experts, bool share, unsigned lane)
{
    float sum = 0;

    for (int64_t i = lane; share && i < experts; i += LOOM_WARP)
        sum += score[i];
    sum = warp_sum(sum);
    return share && sum != 0 ? 1.0f / sum : 1.0f;
}

/* --- forward --- */

/* Scores of the row, and log sum exp of its logits where a softmax or the z-loss wants it. */
LOOM_DEVICE void token_scores(const loom_router_args &a, const float *logit, float *score, float *lse, unsigned lane)
{
    int64_t experts = a.rule.experts;
    float largest = minus_infinity(), sum = 0;

    if (!a.rule.sigmoid || lse) {
        for (int64_t i = lane; i < experts; i += LOOM_WARP)
            largest = fmaxf(largest, logit[i]);
        largest = warp_max(largest);
        for (int64_t i = lane; i < experts; i += LOOM_WARP) {
            score[i] = expf(logit[i] - largest);
            sum += score[i];
        }
        sum = warp_sum(sum);
        if (lse && lane == 0)
            *lse = largest + logf(sum);
    }
    for (int64_t i = lane; i < experts; i += LOOM_WARP)
        score[i] = a.rule.sigmoid ? 1.0f / (1.0f + expf(-logit[i])) : score[i] * (1.0f / sum);
}

/* What is chosen by: the index of the largest, the lowest of equals. Not a number is below everything, so that also with such scores every
 * choice is another expert. */
LOOM_DEVICE int64_t best_of(float value, int64_t index)
{
    for (int other = 16; other > 0; other /= 2) {
        float v = __shfl_xor_sync(LOOM_ALL_LANES, value, other);
        int64_t i = __shfl_xor_sync(LOOM_ALL_LANES, index, other);
        bool mine = !is_nan(value), theirs = !is_nan(v);

        if (i >= 0 && (index < 0 || (theirs && !mine) || (theirs == mine && (v > value || ((v == value || !mine) && i < index)))))
            value = v, index = i;
    }
    return index;
}

/* The sum of a group's two best, or of its one: a lane computes a group. */
LOOM_DEVICE float group_merit(const float *choice, int64_t size)
{
    float best = minus_infinity(), second = minus_infinity();

    for (int64_t i = 0; i < size; i++)
        if (choice[i] > best)
            second = best, best = choice[i];
        else if (choice[i] > second)
            second = choice[i];
    return size > 1 ? best + second : best;
}

/* Leaves the groups_kept best groups in `choice`; the others' experts can no more be chosen. */
LOOM_DEVICE void keep_groups(const loom_router_rule &rule, float *choice, float *merit, unsigned lane)
{
    int64_t size = rule.experts / rule.groups;
    unsigned kept = 0; /* bit n: this lane's group lane + 32 n */

    for (int64_t g = lane; g < rule.groups; g += LOOM_WARP)
        merit[g] = group_merit(choice + g * size, size);
    for (int64_t n = 0; n < rule.groups_kept; n++) {
        float value = not_a_number();
        int64_t best = -1;

        for (int64_t g = lane; g < rule.groups; g += LOOM_WARP)
            if (!(kept >> g / LOOM_WARP & 1) && (best < 0 || merit[g] > value || (is_nan(value) && !is_nan(merit[g]))))
                best = g, value = merit[g];
        best = best_of(value, best);
        if (best % LOOM_WARP == lane)
            kept |= 1u << best / LOOM_WARP;
    }
    __syncwarp(); /* merits of other lanes' groups were read from `choice` before it changes */
    for (int64_t g = lane; g < rule.groups; g += LOOM_WARP)
        for (int64_t i = g * size; !(kept >> g / LOOM_WARP & 1) && i < (g + 1) * size; i++)
            choice[i] = minus_infinity();
    __syncwarp();
}

struct router_shared {
    float choice[WARPS][LOOM_ROUTER_EXPERTS_MAX], merit[WARPS][LOOM_ROUTER_EXPERTS_MAX];
    int32_t expert[WARPS][LOOM_ROUTER_CHOICES_MAX];
};

LOOM_DEVICE void choose(const loom_router_args &a, const float *choice, int32_t *expert, unsigned lane)
{
    unsigned taken = 0;

    for (int64_t j = 0; j < a.rule.top_k; j++) {
        float value = not_a_number();
        int64_t best = -1;

        for (int64_t i = lane; i < a.rule.experts; i += LOOM_WARP)
            if (!(taken >> i / LOOM_WARP & 1) && (best < 0 || choice[i] > value || (is_nan(value) && !is_nan(choice[i]))))
                best = i, value = choice[i];
        best = best_of(value, best);
        if (best % LOOM_WARP == lane)
            taken |= 1u << best / LOOM_WARP;
        if (lane == 0)
            expert[j] = static_cast<int32_t>(best);
    }
    __syncwarp();
}

/* Weights in order of the choices, by every lane for itself. */
LOOM_DEVICE void write_choice(const loom_router_args &a, int64_t t, const float *score, const int32_t *expert, unsigned lane)
{
    float sum = 0, factor = a.rule.route_scale != 0 ? a.rule.route_scale : 1;

    for (int64_t j = 0; a.rule.normalise && j < a.rule.top_k; j++)
        sum += score[expert[j]];
    if (a.rule.normalise)
        factor /= sum + 1e-20f; /* sigmoids may all be 0 */
    for (int64_t j = lane; j < a.rule.top_k; j += LOOM_WARP) {
        a.expert_TK[t * a.rule.top_k + j] = expert[j];
        a.weight_TK[t * a.rule.top_k + j] = score[expert[j]] * factor;
    }
}

LOOM_DEVICE bool is_padding(const loom_router_args &a, int64_t t)
{
    return a.seq > 0 && (a.first + t) % a.seq >= a.counted;
}

LOOM_DEVICE void choose_nothing(const loom_router_args &a, int64_t t, unsigned lane)
{
    for (int64_t i = lane; i < a.rule.experts; i += LOOM_WARP)
        a.score_TE[t * a.rule.experts + i] = 0;
    for (int64_t j = lane; j < a.rule.top_k; j += LOOM_WARP) {
        a.weight_TK[t * a.rule.top_k + j] = 0;
        a.expert_TK[t * a.rule.top_k + j] = -1;
    }
    if (a.lse_T && lane == 0)
        a.lse_T[t] = 0;
}

__global__ void __launch_bounds__(ROUTER_THREADS) router_kernel(const loom_router_args a)
{
    LOOM_SHARED(router_shared, shared);
    unsigned lane = threadIdx.x % LOOM_WARP, warp = threadIdx.x / LOOM_WARP;
    int64_t experts = a.rule.experts, step = static_cast<int64_t>(gridDim.x) * WARPS;
    float *choice = shared.choice[warp];
    int32_t *expert = shared.expert[warp];

    for (int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + warp; t < a.tokens; t += step) {
        float *score = a.score_TE + t * experts;

        if (is_padding(a, t)) {
            choose_nothing(a, t, lane);
            continue;
        }
        token_scores(a, a.logit_TE + t * experts, score, a.lse_T ? a.lse_T + t : nullptr, lane);
        for (int64_t i = lane; i < experts; i += LOOM_WARP)
            choice[i] = score[i] + (a.bias_E ? a.bias_E[i] : 0);
        __syncwarp(); /* scores and choices of all lanes are written */
        if (a.rule.groups > 1)
            keep_groups(a.rule, choice, shared.merit[warp], lane);
        choose(a, choice, expert, lane);
        write_choice(a, t, score, expert, lane);
        __syncwarp(); /* before the next token takes `choice` and `expert` */
    }
}

int loom_gpu_router(loom_gpu *gpu, const loom_router_args *a)
{
    if (a->tokens == 0)
        return 0;
    return loom_launch(gpu, router_kernel, dim3(stride_blocks(gpu, a->tokens, WARPS)), dim3(ROUTER_THREADS), 0, *a);
}

/* --- balance --- */

struct count_args {
    loom_router_count_args a;
    int64_t segment, segments;
};

struct count_slots {
    int32_t warp[WARPS];
};

/* A block for each expert of each segment. */
__global__ void __launch_bounds__(ROUTER_THREADS) router_count_kernel(const count_args k)
{
    LOOM_SHARED(count_slots, slots);
    const loom_router_count_args &a = k.a;
    int64_t expert = blockIdx.x;

    for (int64_t s = blockIdx.y; s < k.segments; s += gridDim.y) {
        int64_t from = s * k.segment * a.top_k, to = (s + 1) * k.segment * a.top_k, all = a.tokens * a.top_k;
        int32_t count = 0;

        for (int64_t i = from + threadIdx.x; i < to && i < all; i += ROUTER_THREADS)
            count += a.expert_TK[i] == expert;
        count = warp_sum(count);
        __syncthreads();
        if (threadIdx.x % LOOM_WARP == 0)
            slots.warp[threadIdx.x / LOOM_WARP] = count;
        __syncthreads();
        if (threadIdx.x == 0)
            a.assigned_NE[s * a.experts + expert] = static_cast<float>(slots.warp[0] + slots.warp[1] + slots.warp[2] + slots.warp[3]);
    }
}

struct share_args {
    float *share;
    const float *score;
    int64_t tokens, experts;
};

__global__ void __launch_bounds__(ROUTER_THREADS) share_kernel(const share_args a)
{
    unsigned lane = threadIdx.x % LOOM_WARP;
    int64_t step = static_cast<int64_t>(gridDim.x) * WARPS;

    for (int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / LOOM_WARP; t < a.tokens; t += step) {
        float share = share_of(a.score + t * a.experts, a.experts, true, lane);
        if (lane == 0)
            a.share[t] = share;
    }
}

static int score_sums(loom_gpu *gpu, const loom_router_count_args *a, int64_t segment, int64_t segments)
{
    loom_column_sums sums = {};

    sums.total = a->score_sum_NE, sums.x = a->score_TE, sums.rows = a->tokens, sums.cols = a->experts;
    sums.segment = segment, sums.segments = segments;
    if (a->share && a->tokens > 0) {
        float *share = static_cast<float *>(gpu->scratch(gpu, static_cast<size_t>(a->tokens) * sizeof(float)));
        if (!share)
            return LOOM_GPU_FAILED;
        LOOM_GPU_TRY(loom_launch(gpu, share_kernel, dim3(stride_blocks(gpu, a->tokens, WARPS)), dim3(ROUTER_THREADS), 0,
                                 (share_args{share, a->score_TE, a->tokens, a->experts})));
        sums.row_factor = share;
    }
    return loom_gpu_column_sums(gpu, sums);
}

int loom_gpu_router_count(loom_gpu *gpu, const loom_router_count_args *a)
{
    int64_t segment = or_tight(a->segment, a->tokens), segments = segment ? ceil_div(a->tokens, segment) : 1;

    if (a->experts == 0 || segments == 0)
        return 0;
    LOOM_GPU_TRY(loom_launch(gpu, router_count_kernel, dim3(static_cast<unsigned>(a->experts), at_most(segments, LOOM_GRID_Y)), dim3(ROUTER_THREADS), 0,
                             (count_args{*a, segment, segments})));
    return a->score_TE ? score_sums(gpu, a, segment, segments) : 0;
}

enum { BALANCE_THREADS = 256 };

/* One block: each thread has every BALANCE_THREADS-th expert of the list, then the threads are added. */
__global__ void __launch_bounds__(BALANCE_THREADS) router_balance_kernel(const loom_router_balance_args a)
{
    LOOM_SHARED(block_slots, slots);
    double per_segment = a.segments ? a.coefficient / static_cast<double>(a.segments) * static_cast<double>(a.experts) / static_cast<double>(a.top_k) : 0;
    double tokens = static_cast<double>(a.tokens), loss = 0;

    for (int64_t i = threadIdx.x; i < a.segments * a.experts; i += BALANCE_THREADS) {
        double slope = per_segment * a.assigned_NE[i] / tokens / tokens;
        loss += slope * a.score_sum_NE[i];
        if (a.slope_NE)
            a.slope_NE[i] = static_cast<float>(slope);
    }
    loss = block_sum(loss, slots);
    if (threadIdx.x == 0 && a.loss)
        *a.loss = loss;
}

int loom_gpu_router_balance(loom_gpu *gpu, const loom_router_balance_args *a)
{
    return loom_launch(gpu, router_balance_kernel, dim3(1), dim3(BALANCE_THREADS), 0, *a);
}

/* --- backward --- */

struct dscore_shared {
    float dscore[WARPS][LOOM_ROUTER_EXPERTS_MAX];
};

/* dscore from the gradient of the weights: w_j = factor s_j, or factor s_j / sum of the chosen s. Each lane adds to its own experts. */
LOOM_DEVICE void weights_backward(const loom_router_rule &rule, const float *score, const int32_t *expert, const float *dweight, float *dscore,
                                  unsigned lane)
{
    float factor = rule.route_scale != 0 ? rule.route_scale : 1, sum = 0, dot = 0;

    for (int64_t j = 0; rule.normalise && j < rule.top_k; j++) {
        sum += score[expert[j]];
        dot += dweight[j] * score[expert[j]];
    }
    if (rule.normalise) {
        factor /= sum + 1e-20f;
        dot /= sum + 1e-20f;
    }
    for (int64_t j = 0; j < rule.top_k; j++)
        if (expert[j] % LOOM_WARP == lane)
            dscore[expert[j]] += factor * (dweight[j] - dot);
}

/* The balance loss sees scores, or scores divided by the token's sum. */
LOOM_DEVICE void balance_backward(const loom_router_backward_args &a, const float *score, const float *slope, float *dscore, unsigned lane)
{
    float share = share_of(score, a.rule.experts, a.share, lane), dot = 0;

    for (int64_t i = lane; a.share && i < a.rule.experts; i += LOOM_WARP)
        dot += slope[i] * score[i] * share;
    dot = warp_sum(dot);
    for (int64_t i = lane; i < a.rule.experts; i += LOOM_WARP)
        dscore[i] += share * (slope[i] - dot);
}

__global__ void __launch_bounds__(ROUTER_THREADS) router_backward_kernel(const loom_router_backward_args a)
{
    LOOM_SHARED(dscore_shared, shared);
    unsigned lane = threadIdx.x % LOOM_WARP, warp = threadIdx.x / LOOM_WARP;
    int64_t experts = a.rule.experts, top_k = a.rule.top_k, step = static_cast<int64_t>(gridDim.x) * WARPS;
    float *dscore = shared.dscore[warp]; /* no lane touches another's experts */

    for (int64_t t = static_cast<int64_t>(blockIdx.x) * WARPS + warp; t < a.tokens; t += step) {
        const float *score = a.score_TE + t * experts;
        float dot = 0;

        if (a.expert_TK && a.expert_TK[t * top_k] < 0) {
            for (int64_t i = lane; i < experts; i += LOOM_WARP)
                a.dlogit_TE[t * experts + i] = 0;
            continue;
        }
        for (int64_t i = lane; i < experts; i += LOOM_WARP)
            dscore[i] = 0;
        if (a.dweight_TK)
            weights_backward(a.rule, score, a.expert_TK + t * top_k, a.dweight_TK + t * top_k, dscore, lane);
        if (a.slope_NE)
            balance_backward(a, score, a.slope_NE + t / (a.segment ? a.segment : a.tokens) * experts, dscore, lane);
        for (int64_t i = lane; !a.rule.sigmoid && i < experts; i += LOOM_WARP)
            dot += score[i] * dscore[i];
        dot = warp_sum(dot);
        for (int64_t i = lane; i < experts; i += LOOM_WARP) {
            float d = score[i] * (a.rule.sigmoid ? dscore[i] * (1 - score[i]) : dscore[i] - dot);
            if (a.z_slope != 0)
                d += a.z_slope * a.lse_T[t] * expf(a.logit_TE[t * experts + i] - a.lse_T[t]);
            a.dlogit_TE[t * experts + i] = d;
        }
    }
}

int loom_gpu_router_backward(loom_gpu *gpu, const loom_router_backward_args *a)
{
    if (a->tokens == 0)
        return 0;
    return loom_launch(gpu, router_backward_kernel, dim3(stride_blocks(gpu, a->tokens, WARPS)), dim3(ROUTER_THREADS), 0, *a);
}
