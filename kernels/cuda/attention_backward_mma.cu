/* Attention backward on tensor cores: as attention_backward.cu. Scores and their gradients never leave the registers: where keys are owned the tile
 * is S', rows of keys, so that it is the left factor of what is added to dk and dv. */
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_mma.cuh"

/* Rows that come by: few, so that gradients of 16 rows of 128 floats twice fit in the registers beside them. */
enum { PASSING = 32 };

template <int DK> struct backward_tiles {
    float own[2][MMA_ROWS * padded_row<DK>::floats], passing[2][PASSING * padded_row<DK>::floats]; /* q and do, or k and v */
};

/* P and dS of a query and a key from their scores. */
LOOM_DEVICE void score(bool visible, float scale, const query_facts &facts, float &p, float &ds)
{
    float share = visible ? expf(p * scale - facts.lse) : 0;

    ds = visible ? share * (ds - facts.delta) : 0;
    p = share;
}

template <int DK> __global__ void __launch_bounds__(MMA_THREADS) key_gradient_mma_kernel(const backward_args k)
{
    typedef backward_tiles<DK> all_tiles;
    LOOM_SHARED_BYTES(all_tiles, tiles);
    const loom_attention_args &a = k.t.a;
    int64_t b = blockIdx.z, g = blockIdx.y, group = a.heads / a.kv_heads, first = blockIdx.x * static_cast<int64_t>(MMA_ROWS);
    int64_t row = first + warp_row() + mma_g();
    const mask_side queries = queries_of(a, b), keys = keys_of(a, b);
    const mask_rule rule = {a.mask.causal, a.mask.window};
    const token_range k_range = range_of(keys, first, MMA_ROWS);
    const token_tag tag[2] = {tag_of(keys, row), tag_of(keys, row + 8)};
    mma_c dk[DK / 8] = {}, dv[DK / 8] = {}, p[PASSING / 8], ds[PASSING / 8];

    load_rows_tf32<MMA_ROWS, DK>(tiles->own[0], rows_of(a.k_BSGK, k.t.k_at, b, g, a.head_dim, a.k_seq), first, a.head_dim);
    load_rows_tf32<MMA_ROWS, DK>(tiles->own[1], rows_of(a.v_BSGK, k.t.v_at, b, g, a.head_dim, a.k_seq), first, a.head_dim);
    for (int64_t query = 0; query < a.q_seq; query += PASSING) {
        sight seen = sight_of(rule, keys.documents != nullptr, range_of(queries, query, PASSING), k_range);

        for (int64_t h = g * group; seen != SEES_NONE && h < (g + 1) * group; h++) {
            __syncthreads(); /* the queries before these are through */
            load_rows_tf32<PASSING, DK>(tiles->passing[0], rows_of(a.q_BSHK, k.t.q_at, b, h, a.head_dim, a.q_seq), query, a.head_dim);
            load_rows_tf32<PASSING, DK>(tiles->passing[1], rows_of(k.a.do_BSHK, k.do_at, b, h, a.head_dim, a.q_seq), query, a.head_dim);
            __syncthreads();
            dot_rows_mma<PASSING / 8, DK>(tiles->own[0], tiles->passing[0], a.head_dim, p);
            dot_rows_mma<PASSING / 8, DK>(tiles->own[1], tiles->passing[1], a.head_dim, ds);
            LOOM_UNROLL /* so that scores stay in registers */
            for (int n = 0; n < PASSING / 8; n++)
                LOOM_UNROLL
                for (int i = 0; i < 4; i++) {
                    const query_facts facts = facts_of(k, queries, b, h, query + 8 * n + 2 * mma_q() + i % 2);
                    bool visible = row + 8 * (i / 2) < a.k_seq && (seen == SEES_ALL || sees(rule, facts.tag, tag[i / 2]));
                    score(visible, k.t.scale, facts, p[n].x[i], ds[n].x[i]);
                }
            add_weighted_mma<PASSING / 8, DK>(p, tiles->passing[1], a.head_dim, dv);
            add_weighted_mma<PASSING / 8, DK>(ds, tiles->passing[0], a.head_dim, dk);
        }
    }
    store_rows_mma<DK>(k.a.dk_BSGK + b * k.dk_at.sequence + g * a.head_dim, k.dk_at.token, first, a.k_seq, a.head_dim, k.a.accumulate_dkv, k.t.scale,
                       k.t.scale, dk);
    store_rows_mma<DK>(k.a.dv_BSGK + b * k.dv_at.sequence + g * a.head_dim, k.dv_at.token, first, a.k_seq, a.head_dim, k.a.accumulate_dkv, 1, 1, dv);
}

template <int DK> __global__ void __launch_bounds__(MMA_THREADS) query_gradient_mma_kernel(const backward_args k)
{
    typedef backward_tiles<DK> all_tiles;
    LOOM_SHARED_BYTES(all_tiles, tiles);
    const loom_attention_args &a = k.t.a;
    int64_t b = blockIdx.z, h = blockIdx.y, g = h / (a.heads / a.kv_heads), first = (gridDim.x - 1 - blockIdx.x) * static_cast<int64_t>(MMA_ROWS);
    int64_t row = first + warp_row() + mma_g();
    const mask_side queries = queries_of(a, b), keys = keys_of(a, b);
    const mask_rule rule = {a.mask.causal, a.mask.window};
    const token_range q_range = range_of(queries, first, MMA_ROWS);
    const query_facts facts[2] = {facts_of(k, queries, b, h, row), facts_of(k, queries, b, h, row + 8)};
    mma_c dq[DK / 8] = {}, p[PASSING / 8], ds[PASSING / 8];

    load_rows_tf32<MMA_ROWS, DK>(tiles->own[0], rows_of(a.q_BSHK, k.t.q_at, b, h, a.head_dim, a.q_seq), first, a.head_dim);
    load_rows_tf32<MMA_ROWS, DK>(tiles->own[1], rows_of(k.a.do_BSHK, k.do_at, b, h, a.head_dim, a.q_seq), first, a.head_dim);
    for (int64_t key = 0; key < a.k_seq; key += PASSING) {
        sight seen = sight_of(rule, keys.documents != nullptr, q_range, range_of(keys, key, PASSING));

        if (seen == SEES_NONE)
            continue;
        __syncthreads(); /* the keys before these are through */
        load_rows_tf32<PASSING, DK>(tiles->passing[0], rows_of(a.k_BSGK, k.t.k_at, b, g, a.head_dim, a.k_seq), key, a.head_dim);
        load_rows_tf32<PASSING, DK>(tiles->passing[1], rows_of(a.v_BSGK, k.t.v_at, b, g, a.head_dim, a.k_seq), key, a.head_dim);
        __syncthreads();
        dot_rows_mma<PASSING / 8, DK>(tiles->own[0], tiles->passing[0], a.head_dim, p);
        dot_rows_mma<PASSING / 8, DK>(tiles->own[1], tiles->passing[1], a.head_dim, ds);
        LOOM_UNROLL
        for (int n = 0; n < PASSING / 8; n++)
            LOOM_UNROLL
            for (int i = 0; i < 4; i++) {
                int64_t column = key + 8 * n + 2 * mma_q() + i % 2;
                bool visible = column < a.k_seq && (seen == SEES_ALL || sees(rule, facts[i / 2].tag, tag_of(keys, column)));
                score(visible, k.t.scale, facts[i / 2], p[n].x[i], ds[n].x[i]);
            }
        add_weighted_mma<PASSING / 8, DK>(ds, tiles->passing[0], a.head_dim, dq);
    }
    store_rows_mma<DK>(k.a.dq_BSHK + b * k.dq_at.sequence + h * a.head_dim, k.dq_at.token, first, a.q_seq, a.head_dim, k.a.accumulate_dq, k.t.scale,
                       k.t.scale, dq);
}

template <int DK> static int gradients(const loom_gpu *gpu, const backward_args &k)
{
    const loom_attention_args &a = k.t.a;
    unsigned key_blocks = static_cast<unsigned>(ceil_div(a.k_seq, MMA_ROWS)), query_blocks = static_cast<unsigned>(ceil_div(a.q_seq, MMA_ROWS));
    unsigned batch = static_cast<unsigned>(a.batch), heads = static_cast<unsigned>(a.heads), kv_heads = static_cast<unsigned>(a.kv_heads);

    if (key_blocks > 0)
        LOOM_GPU_TRY(loom_launch(gpu, key_gradient_mma_kernel<DK>, dim3(key_blocks, kv_heads, batch), dim3(MMA_THREADS), sizeof(backward_tiles<DK>), k));
    if (query_blocks > 0)
        LOOM_GPU_TRY(loom_launch(gpu, query_gradient_mma_kernel<DK>, dim3(query_blocks, heads, batch), dim3(MMA_THREADS), sizeof(backward_tiles<DK>), k));
    return 0;
}

template <int DK> static constexpr tile_form<backward_args> gradient_form = {DK, sizeof(backward_tiles<DK>), gradients<DK>};
static constexpr tile_form<backward_args> gradient_forms[] = {gradient_form<64>, gradient_form<128>};
static_assert(fit_every_device(gradient_forms), "tiles for 99 KiB");

int loom_gpu_attention_backward_mma(const loom_gpu *gpu, const backward_args &k)
{
    return launch_form(gpu, "attention_backward", gradient_forms, k.t.a.head_dim, k);
}
