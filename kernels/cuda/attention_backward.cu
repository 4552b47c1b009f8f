/* Attention backward from o and lse in f32, without atomics: one kernel owns keys and walks over queries, one owns queries and walks over
 * keys. With P = exp(S - lse) and delta = sum(do o): dv = P' do,  dP = do v',  dS = P (dP - delta),  dq = scale dS k,  dk = scale dS' q. */
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/cudnn.h"

/* --- delta --- */

/* A warp a row. */
__global__ void __launch_bounds__(ATTENTION_THREADS) delta_kernel(const backward_args k)
{
    const loom_attention_args &a = k.t.a;
    int64_t rows = a.batch * a.heads * a.q_seq, step = static_cast<int64_t>(gridDim.x) * (ATTENTION_THREADS / LOOM_WARP), lane = threadIdx.x % LOOM_WARP;
    bool whole_quads = k.t.o_at.quads && k.do_at.quads;

    for (int64_t row = static_cast<int64_t>(blockIdx.x) * (ATTENTION_THREADS / LOOM_WARP) + threadIdx.x / LOOM_WARP; row < rows; row += step) {
        int64_t i = row % a.q_seq, h = row / a.q_seq % a.heads, b = row / a.q_seq / a.heads;
        const float *o = a.o_BSHK + b * k.t.o_at.sequence + i * k.t.o_at.token + h * a.head_dim;
        const float *d_o = k.a.do_BSHK + b * k.do_at.sequence + i * k.do_at.token + h * a.head_dim;
        float sum = 0;

        for (int64_t d = 4 * lane; d < a.head_dim; d += 4 * LOOM_WARP) {
            float4 u = load_some(o, d, a.head_dim, whole_quads, 0), v = load_some(d_o, d, a.head_dim, whole_quads, 0);
            sum += (u.x * v.x + u.y * v.y) + (u.z * v.z + u.w * v.w);
        }
        sum = warp_sum(sum);
        if (lane == 0)
            k.delta_BHS[row] = sum;
    }
}

/* --- the scores of a tile, in both kernels --- */

/* Query by row y R + i, key by column x + 16 j. */
template <int R, int C> struct tile_scores {
    float p[R][C], ds[R][C];
};

/* P and dS where the query sees the key, else 0. Tiles of q, k, do and v are in shared memory. */
template <int R, int C, int DK>
LOOM_DEVICE void score_tile(const backward_args &k, const float *q, const float *keys, const float *d_o, const float *v, const query_facts *facts,
                            const mask_side &key_side, int64_t first_key, sight seen, tile_scores<R, C> &s)
{
    const loom_attention_args &a = k.t.a;
    const mask_rule rule = {a.mask.causal, a.mask.window};

    dot_rows<R, C, DK>(q, keys, a.head_dim, s.p);
    dot_rows<R, C, DK>(d_o, v, a.head_dim, s.ds);
    for (int j = 0; j < C; j++) {
        int64_t column = first_key + thread_x() + SIDE * j;
        token_tag k_tag = tag_of(key_side, column);

        for (int i = 0; i < R; i++) {
            bool seen_here = column < a.k_seq && (seen == SEES_ALL || sees(rule, facts[i].tag, k_tag));
            float p = expf(s.p[i][j] * k.t.scale - facts[i].lse);

            s.ds[i][j] = seen_here ? p * (s.ds[i][j] - facts[i].delta) : 0;
            s.p[i][j] = seen_here ? p : 0;
        }
    }
}

/* Into shared memory, rows of queries. */
template <int R, int C> LOOM_DEVICE void put_scores(float *to, int row_floats, const float (&s)[R][C])
{
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++)
            to[(thread_y() * R + i) * row_floats + thread_x() + SIDE * j] = s[i][j];
}

/* --- dk and dv: a block has BK keys of one key/value head, and walks over the queries of all its heads --- */

template <int DK, int BQ, int BK> struct key_tiles {
    float k[BK * padded_row<DK>::floats], v[BK * padded_row<DK>::floats], q[BQ * padded_row<DK>::floats], d_o[BQ * padded_row<DK>::floats];
    float p[BQ * (BK + 4)], ds[BQ * (BK + 4)];
};

template <int DK, int BQ, int BK> __global__ void __launch_bounds__(ATTENTION_THREADS) key_gradient_kernel(const backward_args k)
{
    constexpr int R = BQ / SIDE, C = BK / SIDE, ROW = BK + 4;
    typedef key_tiles<DK, BQ, BK> all_tiles;
    LOOM_SHARED_BYTES(all_tiles, tiles);
    const loom_attention_args &a = k.t.a;
    int64_t b = blockIdx.z, g = blockIdx.y, group = a.heads / a.kv_heads, first = blockIdx.x * static_cast<int64_t>(BK);
    const mask_side queries = queries_of(a, b), keys = keys_of(a, b);
    const mask_rule rule = {a.mask.causal, a.mask.window};
    const token_range k_range = range_of(keys, first, BK);
    float dk[C][DK / SIDE] = {}, dv[C][DK / SIDE] = {};
    query_facts facts[R];
    tile_scores<R, C> s;

    load_rows<BK, DK>(tiles->k, rows_of(a.k_BSGK, k.t.k_at, b, g, a.head_dim, a.k_seq), first, a.head_dim);
    load_rows<BK, DK>(tiles->v, rows_of(a.v_BSGK, k.t.v_at, b, g, a.head_dim, a.k_seq), first, a.head_dim);
    for (int64_t query = 0; query < a.q_seq; query += BQ) {
        sight seen = sight_of(rule, keys.documents != nullptr, range_of(queries, query, BQ), k_range);

        for (int64_t h = g * group; seen != SEES_NONE && h < (g + 1) * group; h++) {
            __syncthreads(); /* the queries before these are through */
            load_rows<BQ, DK>(tiles->q, rows_of(a.q_BSHK, k.t.q_at, b, h, a.head_dim, a.q_seq), query, a.head_dim);
            load_rows<BQ, DK>(tiles->d_o, rows_of(k.a.do_BSHK, k.do_at, b, h, a.head_dim, a.q_seq), query, a.head_dim);
            for (int i = 0; i < R; i++)
                facts[i] = facts_of(k, queries, b, h, query + thread_y() * R + i);
            __syncthreads();
            score_tile<R, C, DK>(k, tiles->q, tiles->k, tiles->d_o, tiles->v, facts, keys, first, seen, s);
            put_scores(tiles->p, ROW, s.p);
            put_scores(tiles->ds, ROW, s.ds);
            __syncthreads();
            for (int i = 0; i < BQ; i++) {
                add_weighted<C, DK>(tiles->p + thread_y() * C, ROW, 1, tiles->d_o, i, dv);
                add_weighted<C, DK>(tiles->ds + thread_y() * C, ROW, 1, tiles->q, i, dk);
            }
        }
    }
    store_rows<C, DK>(k.a.dk_BSGK + b * k.dk_at.sequence + g * a.head_dim, k.dk_at.token, first, a.k_seq, a.head_dim, k.dk_at.quads, k.a.accumulate_dkv,
                      k.t.scale, dk);
    store_rows<C, DK>(k.a.dv_BSGK + b * k.dv_at.sequence + g * a.head_dim, k.dv_at.token, first, a.k_seq, a.head_dim, k.dv_at.quads, k.a.accumulate_dkv, 1,
                      dv);
}

/* --- dq: a block has BQ queries of one head, and walks over the keys --- */

template <int DK, int BQ, int BK> struct query_tiles {
    float q[BQ * padded_row<DK>::floats], d_o[BQ * padded_row<DK>::floats], k[BK * padded_row<DK>::floats], v[BK * padded_row<DK>::floats];
    float ds[BQ * (BK + 4)];
};

template <int DK, int BQ, int BK> __global__ void __launch_bounds__(ATTENTION_THREADS) query_gradient_kernel(const backward_args k)
{
    constexpr int R = BQ / SIDE, C = BK / SIDE, ROW = BK + 4;
    typedef query_tiles<DK, BQ, BK> all_tiles;
    LOOM_SHARED_BYTES(all_tiles, tiles);
    const loom_attention_args &a = k.t.a;
    int64_t b = blockIdx.z, h = blockIdx.y, g = h / (a.heads / a.kv_heads), first = (gridDim.x - 1 - blockIdx.x) * static_cast<int64_t>(BQ);
    const mask_side queries = queries_of(a, b), keys = keys_of(a, b);
    const mask_rule rule = {a.mask.causal, a.mask.window};
    const token_range q_range = range_of(queries, first, BQ);
    float dq[R][DK / SIDE] = {};
    query_facts facts[R];
    tile_scores<R, C> s;

    load_rows<BQ, DK>(tiles->q, rows_of(a.q_BSHK, k.t.q_at, b, h, a.head_dim, a.q_seq), first, a.head_dim);
    load_rows<BQ, DK>(tiles->d_o, rows_of(k.a.do_BSHK, k.do_at, b, h, a.head_dim, a.q_seq), first, a.head_dim);
    for (int i = 0; i < R; i++)
        facts[i] = facts_of(k, queries, b, h, first + thread_y() * R + i);
    for (int64_t key = 0; key < a.k_seq; key += BK) {
        sight seen = sight_of(rule, keys.documents != nullptr, q_range, range_of(keys, key, BK));

        if (seen == SEES_NONE)
            continue;
        __syncthreads(); /* the keys before these are through */
        load_rows<BK, DK>(tiles->k, rows_of(a.k_BSGK, k.t.k_at, b, g, a.head_dim, a.k_seq), key, a.head_dim);
        load_rows<BK, DK>(tiles->v, rows_of(a.v_BSGK, k.t.v_at, b, g, a.head_dim, a.k_seq), key, a.head_dim);
        __syncthreads();
        score_tile<R, C, DK>(k, tiles->q, tiles->k, tiles->d_o, tiles->v, facts, keys, key, seen, s);
        put_scores(tiles->ds, ROW, s.ds);
        __syncwarp(); /* a row's scores are its own half warp's */
        for (int j = 0; j < BK; j++)
            add_weighted<R, DK>(tiles->ds + thread_y() * R * ROW, 1, ROW, tiles->k, j, dq);
    }
    store_rows<R, DK>(k.a.dq_BSHK + b * k.dq_at.sequence + h * a.head_dim, k.dq_at.token, first, a.q_seq, a.head_dim, k.dq_at.quads, k.a.accumulate_dq,
                      k.t.scale, dq);
}

/* --- launching --- */

template <int DK, int BQ, int BK> static int key_gradients(const loom_gpu *gpu, const backward_args &k)
{
    const loom_attention_args &a = k.t.a;

    if (a.k_seq == 0)
        return 0;
    return loom_launch(gpu, (key_gradient_kernel<DK, BQ, BK>),
                       dim3(static_cast<unsigned>(ceil_div(a.k_seq, BK)), static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.batch)),
                       dim3(ATTENTION_THREADS), sizeof(key_tiles<DK, BQ, BK>), k);
}

template <int DK, int BQ, int BK> static int query_gradients(const loom_gpu *gpu, const backward_args &k)
{
    const loom_attention_args &a = k.t.a;

    if (a.q_seq == 0)
        return 0;
    return loom_launch(gpu, (query_gradient_kernel<DK, BQ, BK>),
                       dim3(static_cast<unsigned>(ceil_div(a.q_seq, BQ)), static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch)),
                       dim3(ATTENTION_THREADS), sizeof(query_tiles<DK, BQ, BK>), k);
}

template <int DK, int BQ, int BK> static constexpr tile_form<backward_args> key_form = {DK, sizeof(key_tiles<DK, BQ, BK>), key_gradients<DK, BQ, BK>};
static constexpr tile_form<backward_args> key_forms[] = {key_form<64, 64, 64>,   key_form<64, 32, 64>,  key_form<128, 32, 64>,
                                                         key_form<128, 32, 32>, key_form<256, 32, 32>, key_form<256, 16, 16>};
static_assert(fit_every_device(key_forms), "tiles for 99 KiB");

template <int DK, int BQ, int BK>
static constexpr tile_form<backward_args> query_form = {DK, sizeof(query_tiles<DK, BQ, BK>), query_gradients<DK, BQ, BK>};
static constexpr tile_form<backward_args> query_forms[] = {query_form<64, 64, 64>, query_form<128, 64, 32>, query_form<128, 32, 32>, query_form<256, 32, 32>,
                                                           query_form<256, 16, 16>};
static_assert(fit_every_device(query_forms), "tiles for 99 KiB");

int loom_gpu_own_attention_backward(loom_gpu *gpu, const loom_attention_backward_args *a)
{
    const loom_attention_args *f = &a->forward;
    int64_t rows = f->batch * f->heads * f->q_seq, K = f->head_dim;
    backward_args k = {attention_args_of(f), *a, strides_of(a->do_BSHK, a->do_at, f->heads, K, f->q_seq), strides_of(a->dq_BSHK, a->dq_at, f->heads, K, f->q_seq),
                       strides_of(a->dk_BSGK, a->dk_at, f->kv_heads, K, f->k_seq), strides_of(a->dv_BSGK, a->dv_at, f->kv_heads, K, f->k_seq), nullptr};

    if (K > ATTENTION_HEAD_MAX)
        return loom_gpu_refuse_head("attention_backward", K);
    if (rows > 0) {
        k.delta_BHS = static_cast<float *>(gpu->scratch(gpu, static_cast<size_t>(rows) * sizeof(float)));
        if (!k.delta_BHS)
            return LOOM_GPU_FAILED;
        LOOM_GPU_TRY(loom_launch(gpu, delta_kernel, dim3(stride_blocks(gpu, rows, ATTENTION_THREADS / LOOM_WARP)), dim3(ATTENTION_THREADS), 0, k));
    }
    if (gpu->math != LOOM_GPU_F32 && K <= ATTENTION_BACKWARD_MMA_MAX)
        return loom_gpu_attention_backward_mma(gpu, k);
    LOOM_GPU_TRY(launch_form(gpu, "attention_backward", key_forms, K, k));
    return launch_form(gpu, "attention_backward", query_forms, K, k);
}

int loom_gpu_attention_backward(loom_gpu *gpu, const loom_attention_backward_args *a)
{
    const loom_attention_args *f = &a->forward;
    bool done = false;

    if (f->batch == 0 || f->heads == 0 || f->head_dim == 0)
        return 0;
    if (gpu->dnn && f->q_seq > 0)
        LOOM_GPU_TRY(loom_cudnn_attention_backward(gpu, a, &done));
    return done ? 0 : loom_gpu_own_attention_backward(gpu, a);
}
