/* Attention forward on tensor cores: as attention.cu, with scores in registers from the product with the keys to the product with the values. */
#include "kernels/cuda/attention_mma.cuh"

template <int DK, int KEYS> struct mma_tiles {
    float q[MMA_ROWS * padded_row<DK>::floats], k[KEYS * padded_row<DK>::floats], v[KEYS * padded_row<DK>::floats];
};

/* Over the four lanes of a row. */
LOOM_DEVICE float quarter_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(LOOM_ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(LOOM_ALL_LANES, x, 2));
}

LOOM_DEVICE float quarter_sum(float x)
{
    x += __shfl_xor_sync(LOOM_ALL_LANES, x, 1);
    return x + __shfl_xor_sync(LOOM_ALL_LANES, x, 2);
}

/* Elements `at` and at + 1 of every s[n] are a row's. They become exp(score - largest so far); returns by what the rest shrinks. */
template <int N> LOOM_DEVICE float softmax_row_mma(mma_c (&s)[N], int at, float &largest, float &sum)
{
    float old = largest, part = 0, shrink;

    LOOM_UNROLL /* here and below: so that scores stay in registers */
    for (int n = 0; n < N; n++)
        largest = fmaxf(largest, fmaxf(s[n].x[at], s[n].x[at + 1]));
    largest = quarter_max(largest);
    float base = largest == minus_infinity() ? 0.0f : largest;
    LOOM_UNROLL
    for (int n = 0; n < N; n++)
        LOOM_UNROLL
        for (int i = at; i < at + 2; i++) {
            s[n].x[i] = expf(s[n].x[i] - base);
            part += s[n].x[i];
        }
    shrink = expf(old - base);
    sum = fmaf(sum, shrink, quarter_sum(part));
    return shrink;
}

template <int DK, int KEYS> __global__ void __launch_bounds__(MMA_THREADS) attention_mma_kernel(const attention_kernel_args t)
{
    typedef mma_tiles<DK, KEYS> all_tiles;
    LOOM_SHARED_BYTES(all_tiles, tiles);
    const loom_attention_args &a = t.a;
    int64_t b = blockIdx.z, h = blockIdx.y, g = h / (a.heads / a.kv_heads);
    int64_t first = (gridDim.x - 1 - blockIdx.x) * static_cast<int64_t>(MMA_ROWS), row = first + warp_row() + mma_g();
    const head_rows k = rows_of(a.k_BSGK, t.k_at, b, g, a.head_dim, a.k_seq), v = rows_of(a.v_BSGK, t.v_at, b, g, a.head_dim, a.k_seq);
    const mask_side queries = queries_of(a, b), keys = keys_of(a, b);
    const mask_rule rule = {a.mask.causal, a.mask.window};
    const token_range q_range = range_of(queries, first, MMA_ROWS);
    const token_tag tag[2] = {tag_of(queries, row), tag_of(queries, row + 8)};
    float largest[2] = {minus_infinity(), minus_infinity()}, total[2] = {0, 0};
    mma_c sum[DK / 8] = {}, s[KEYS / 8];

    load_rows_tf32<MMA_ROWS, DK>(tiles->q, rows_of(a.q_BSHK, t.q_at, b, h, a.head_dim, a.q_seq), first, a.head_dim);
    for (int64_t key = 0; key < a.k_seq; key += KEYS) {
        sight seen = sight_of(rule, keys.documents != nullptr, q_range, range_of(keys, key, KEYS));

        if (seen == SEES_NONE)
            continue;
        __syncthreads(); /* the keys before these are through */
        load_rows_tf32<KEYS, DK>(tiles->k, k, key, a.head_dim);
        load_rows_tf32<KEYS, DK>(tiles->v, v, key, a.head_dim);
        __syncthreads();
        dot_rows_mma<KEYS / 8, DK>(tiles->q, tiles->k, a.head_dim, s);
        LOOM_UNROLL
        for (int n = 0; n < KEYS / 8; n++)
            LOOM_UNROLL
            for (int i = 0; i < 4; i++) {
                int64_t column = key + 8 * n + 2 * mma_q() + i % 2;
                bool visible = column < a.k_seq && (seen == SEES_ALL || sees(rule, tag[i / 2], tag_of(keys, column)));
                s[n].x[i] = visible ? s[n].x[i] * t.scale : minus_infinity();
            }
        float low = softmax_row_mma(s, 0, largest[0], total[0]), high = softmax_row_mma(s, 2, largest[1], total[1]);
        LOOM_UNROLL
        for (int n = 0; n < DK / 8; n++)
            LOOM_UNROLL
            for (int i = 0; i < 4; i++)
                sum[n].x[i] *= i < 2 ? low : high;
        add_weighted_mma<KEYS / 8, DK>(s, tiles->v, a.head_dim, sum);
    }
    for (int i = 0; i < 2; i++)
        if (mma_q() == 0 && row + 8 * i < a.q_seq)
            a.lse_BHS[(b * a.heads + h) * a.q_seq + row + 8 * i] = largest[i] + logf(total[i]);
    store_rows_mma<DK>(a.o_BSHK + b * t.o_at.sequence + h * a.head_dim, t.o_at.token, first, a.q_seq, a.head_dim, false,
                       total[0] == 0 ? 0 : 1.0f / total[0], total[1] == 0 ? 0 : 1.0f / total[1], sum);
}

template <int DK, int KEYS> static int forward(const loom_gpu *gpu, const attention_kernel_args &t)
{
    const loom_attention_args &a = t.a;

    return loom_launch(gpu, (attention_mma_kernel<DK, KEYS>),
                       dim3(static_cast<unsigned>(ceil_div(a.q_seq, MMA_ROWS)), static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch)),
                       dim3(MMA_THREADS), sizeof(mma_tiles<DK, KEYS>), t);
}

template <int DK, int KEYS> static constexpr tile_form<attention_kernel_args> forward_form = {DK, sizeof(mma_tiles<DK, KEYS>), forward<DK, KEYS>};
static constexpr tile_form<attention_kernel_args> forward_forms[] = {forward_form<64, 64>, forward_form<128, 64>, forward_form<256, 32>, forward_form<256, 16>};
static_assert(fit_every_device(forward_forms), "tiles for 99 KiB");

int loom_gpu_attention_mma(const loom_gpu *gpu, const attention_kernel_args &t)
{
    return launch_form(gpu, "attention", forward_forms, t.a.head_dim, t);
}
