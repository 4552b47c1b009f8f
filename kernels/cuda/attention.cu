/* Attention forward in f32, blocked, and the merge of two partial results. A block has BQ queries of one head; BK keys come by at a time, and a
 * running maximum and sum per query (the online softmax) stand for those already seen. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cudnn.h"

#include <rankloom/status.h>

/* Running maximum and sum of a query. The 16 threads of its row hold the same. */
template <int R> struct softmax_state {
    float largest[R], sum[R];
};

LOOM_DEVICE float row_max(float x)
{
    for (int other = SIDE / 2; other > 0; other /= 2)
        x = fmaxf(x, __shfl_xor_sync(LOOM_ALL_LANES, x, other));
    return x;
}

LOOM_DEVICE float row_sum(float x)
{
    for (int other = SIDE / 2; other > 0; other /= 2)
        x += __shfl_xor_sync(LOOM_ALL_LANES, x, other);
    return x;
}

/* Scores become exp(score - largest so far), into `weights`; returns by what the sums and outputs from before shrink. */
template <int C> LOOM_DEVICE void softmax_row(float (&s)[C], float &largest, float &sum, float *weights, float *shrink)
{
    float old = largest, part = 0;

    for (int j = 0; j < C; j++)
        largest = fmaxf(largest, s[j]);
    largest = row_max(largest);
    /* a query that has seen nothing yet has -inf: exp(-inf - 0) is 0, exp(-inf - -inf) is not a number */
    float base = largest == minus_infinity() ? 0.0f : largest;
    for (int j = 0; j < C; j++) {
        float e = expf(s[j] - base);
        weights[thread_x() + SIDE * j] = e;
        part += e;
    }
    *shrink = expf(old - base);
    sum = fmaf(sum, *shrink, row_sum(part));
}

template <int DK, int BQ, int BK> struct forward_tiles {
    float q[BQ * padded_row<DK>::floats], kv[BK * padded_row<DK>::floats], weights[BQ * (BK + 4)];
};

template <int DK, int BQ, int BK> __global__ void __launch_bounds__(ATTENTION_THREADS) attention_kernel(const attention_kernel_args t)
{
    constexpr int R = BQ / SIDE, C = BK / SIDE, ROW = BK + 4;
    typedef forward_tiles<DK, BQ, BK> all_tiles;
    LOOM_SHARED_BYTES(all_tiles, tiles);
    const loom_attention_args &a = t.a;
    int64_t b = blockIdx.z, h = blockIdx.y, g = h / (a.heads / a.kv_heads);
    int64_t first = (gridDim.x - 1 - blockIdx.x) * static_cast<int64_t>(BQ); /* the last queries first: under a causal mask they take longest */
    const head_rows k = rows_of(a.k_BSGK, t.k_at, b, g, a.head_dim, a.k_seq), v = rows_of(a.v_BSGK, t.v_at, b, g, a.head_dim, a.k_seq);
    const mask_side queries = queries_of(a, b), keys = keys_of(a, b);
    const mask_rule rule = {a.mask.causal, a.mask.window};
    const token_range q_range = range_of(queries, first, BQ);
    float *weights = tiles->weights + thread_y() * R * ROW;
    float sum[R][DK / SIDE] = {}, s[R][C], shrink[R];
    softmax_state<R> state;
    token_tag q_tag[R];

    for (int i = 0; i < R; i++) {
        state.largest[i] = minus_infinity(), state.sum[i] = 0;
        q_tag[i] = tag_of(queries, first + thread_y() * R + i);
    }
    load_rows<BQ, DK>(tiles->q, rows_of(a.q_BSHK, t.q_at, b, h, a.head_dim, a.q_seq), first, a.head_dim);
    for (int64_t key = 0; key < a.k_seq; key += BK) {
        sight seen = sight_of(rule, keys.documents != nullptr, q_range, range_of(keys, key, BK));

        if (seen == SEES_NONE)
            continue;
        __syncthreads(); /* v of the tile before is through */
        load_rows<BK, DK>(tiles->kv, k, key, a.head_dim);
        __syncthreads();
        dot_rows<R, C, DK>(tiles->q, tiles->kv, a.head_dim, s);
        for (int j = 0; j < C; j++) {
            int64_t column = key + thread_x() + SIDE * j;
            token_tag k_tag = tag_of(keys, column);
            for (int i = 0; i < R; i++)
                s[i][j] = column < a.k_seq && (seen == SEES_ALL || sees(rule, q_tag[i], k_tag)) ? s[i][j] * t.scale : minus_infinity();
        }
        for (int i = 0; i < R; i++)
            softmax_row(s[i], state.largest[i], state.sum[i], weights + i * ROW, &shrink[i]);
        for (int i = 0; i < R; i++)
            for (int d = 0; d < DK / SIDE; d++)
                sum[i][d] *= shrink[i];
        __syncthreads(); /* k is through, the weights are there */
        load_rows<BK, DK>(tiles->kv, v, key, a.head_dim);
        __syncthreads();
        for (int j = 0; j < BK; j++)
            add_weighted<R, DK>(weights, 1, ROW, tiles->kv, j, sum);
    }
    for (int i = 0; i < R; i++) {
        int64_t row = first + thread_y() * R + i;
        float share = state.sum[i] == 0 ? 0 : 1.0f / state.sum[i]; /* no key seen: 0 */

        for (int d = 0; d < DK / SIDE; d++)
            sum[i][d] *= share;
        if (thread_x() == 0 && row < a.q_seq)
            a.lse_BHS[(b * a.heads + h) * a.q_seq + row] = state.largest[i] + logf(state.sum[i]);
    }
    store_rows<R, DK>(a.o_BSHK + b * t.o_at.sequence + h * a.head_dim, t.o_at.token, first, a.q_seq, a.head_dim, t.o_at.quads, false, 1, sum);
}

int loom_gpu_refuse_head(const char *operation, int64_t head_dim)
{
    loom_fail(LOOM_E_UNSUPPORTED, "%s: head_dim=%lld; the CUDA kernels take heads of up to %d", operation, static_cast<long long>(head_dim),
              ATTENTION_HEAD_MAX);
    return LOOM_GPU_REFUSED;
}

int loom_gpu_refuse_tiles(const char *operation, int64_t head_dim, size_t needed, size_t shared_max)
{
    loom_fail(LOOM_E_UNSUPPORTED, "%s: head_dim=%lld takes %zu bytes of shared memory a block, and this device has at most %zu", operation,
              static_cast<long long>(head_dim), needed, shared_max);
    return LOOM_GPU_REFUSED;
}

template <int DK, int BQ, int BK> static int forward(const loom_gpu *gpu, const attention_kernel_args &t)
{
    const loom_attention_args &a = t.a;

    return loom_launch(gpu, (attention_kernel<DK, BQ, BK>),
                       dim3(static_cast<unsigned>(ceil_div(a.q_seq, BQ)), static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch)),
                       dim3(ATTENTION_THREADS), sizeof(forward_tiles<DK, BQ, BK>), t);
}

template <int DK, int BQ, int BK> static constexpr tile_form<attention_kernel_args> forward_form = {DK, sizeof(forward_tiles<DK, BQ, BK>), forward<DK, BQ, BK>};
static constexpr tile_form<attention_kernel_args> forward_forms[] = {forward_form<64, 64, 64>, forward_form<128, 64, 64>, forward_form<256, 64, 64>,
                                                                     forward_form<256, 32, 32>};
static_assert(fit_every_device(forward_forms), "tiles for 99 KiB");

int loom_gpu_own_attention(loom_gpu *gpu, const loom_attention_args *a)
{
    const attention_kernel_args t = attention_args_of(a);

    if (a->head_dim > ATTENTION_HEAD_MAX)
        return loom_gpu_refuse_head("attention", a->head_dim);
    if (gpu->math != LOOM_GPU_F32)
        return loom_gpu_attention_mma(gpu, t);
    return launch_form(gpu, "attention", forward_forms, a->head_dim, t);
}

int loom_gpu_attention(loom_gpu *gpu, const loom_attention_args *a)
{
    bool done = false;

    if (a->batch == 0 || a->heads == 0 || a->q_seq == 0 || a->head_dim == 0)
        return 0;
    if (gpu->dnn)
        LOOM_GPU_TRY(loom_cudnn_attention(gpu, a, &done));
    return done ? 0 : loom_gpu_own_attention(gpu, a);
}

/* --- merge --- */

enum { MERGE_THREADS = 256 };

struct merge_args {
    loom_attention_merge_args a;
    attention_strides o_at, o2_at;
};

/* A warp a row. */
__global__ void __launch_bounds__(MERGE_THREADS) merge_kernel(const merge_args m)
{
    const loom_attention_merge_args &a = m.a;
    int64_t rows = a.batch * a.heads * a.seq, step = static_cast<int64_t>(gridDim.x) * (MERGE_THREADS / LOOM_WARP), lane = threadIdx.x % LOOM_WARP;
    bool whole_quads = m.o_at.quads && m.o2_at.quads;

    for (int64_t row = static_cast<int64_t>(blockIdx.x) * (MERGE_THREADS / LOOM_WARP) + threadIdx.x / LOOM_WARP; row < rows; row += step) {
        int64_t i = row % a.seq, h = row / a.seq % a.heads, b = row / a.seq / a.heads;
        float lse = a.lse_BHS[row], lse2 = a.lse2_BHS[row], largest = lse > lse2 ? lse : lse2;
        float *o = a.o_BSHK + b * m.o_at.sequence + i * m.o_at.token + h * a.head_dim;
        const float *o2 = a.o2_BSHK + b * m.o2_at.sequence + i * m.o2_at.token + h * a.head_dim;

        if (lse2 == minus_infinity())
            continue; /* the second saw no key; if the first saw none either, o is 0 and stays so */
        float merged = largest + logf(expf(lse - largest) + expf(lse2 - largest)), share = expf(lse - merged), share2 = expf(lse2 - merged);
        for (int64_t d = 4 * lane; d < a.head_dim; d += 4 * LOOM_WARP)
            store_some(o, d, a.head_dim, whole_quads,
                       load_some(o, d, a.head_dim, whole_quads, 0) * share + load_some(o2, d, a.head_dim, whole_quads, 0) * share2);
        __syncwarp(); /* all lanes have read lse */
        if (lane == 0)
            a.lse_BHS[row] = merged;
    }
}

int loom_gpu_attention_merge(loom_gpu *gpu, const loom_attention_merge_args *a)
{
    int64_t rows = a->batch * a->heads * a->seq;
    const merge_args m = {*a, strides_of(a->o_BSHK, a->o_at, a->heads, a->head_dim, a->seq),
                          strides_of(a->o2_BSHK, a->o2_at, a->heads, a->head_dim, a->seq)};

    if (rows == 0)
        return 0;
    return loom_launch(gpu, merge_kernel, dim3(stride_blocks(gpu, rows, MERGE_THREADS / LOOM_WARP)), dim3(MERGE_THREADS), 0, m);
}
