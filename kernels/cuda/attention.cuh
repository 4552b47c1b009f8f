/* What attention forward and backward share: tiles of rows in shared memory, products of two of them, and which keys a query sees. */
#ifndef LOOM_KERNELS_CUDA_ATTENTION_CUH
#define LOOM_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/device.cuh"

/* A block is 16 x 16 threads: thread (y, x) has some rows of the tile of scores by y, and some columns by x. The 16 threads of a row are half a
 * warp. */
enum { SIDE = 16, ATTENTION_THREADS = SIDE * SIDE, ATTENTION_HEAD_MAX = 256 };

LOOM_DEVICE int thread_x()
{
    return static_cast<int>(threadIdx.x % SIDE);
}

LOOM_DEVICE int thread_y()
{
    return static_cast<int>(threadIdx.x / SIDE);
}

/* Rows of DK floats, padded so that sixteen rows' vectors lie in different banks. */
template <int DK> struct padded_row {
    static constexpr int floats = DK + 4;
};

/* Rows of one head: `at` is its row 0, `token` the distance of the next. */
struct head_rows {
    const float *at;
    int64_t token, count;
    bool quads;
};

LOOM_DEVICE float4 as_it_is(float4 v)
{
    return v;
}

/* ROWS rows from `first` on into shared memory, by THREADS threads; what is beyond the rows or the head is 0. */
template <int ROWS, int DK, int THREADS = ATTENTION_THREADS, float4 (*CONVERT)(float4) = as_it_is>
LOOM_DEVICE void load_rows(float *tile, const head_rows &rows, int64_t first, int64_t head_dim)
{
    for (int i = threadIdx.x; i < ROWS * (DK / 4); i += THREADS) {
        int row = i / (DK / 4), d = i % (DK / 4) * 4;
        float4 v = make_float4(0, 0, 0, 0);

        if (first + row < rows.count && d < head_dim)
            v = load_some(rows.at + (first + row) * rows.token, d, head_dim, rows.quads, 0);
        store4(tile + row * padded_row<DK>::floats + d, CONVERT(v));
    }
}

/* s[i][j] = row y R + i of `a` times row x + 16 j of `b`. */
template <int R, int C, int DK> LOOM_DEVICE void dot_rows(const float *a, const float *b, int64_t head_dim, float (&s)[R][C])
{
    constexpr int row = padded_row<DK>::floats;
    const float *mine = a + thread_y() * R * row, *theirs = b + thread_x() * row;

    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++)
            s[i][j] = 0;
    for (int d = 0; d < head_dim; d += 4) {
        float4 u[R], v[C];

        LOOM_UNROLL
        for (int i = 0; i < R; i++)
            u[i] = load4(mine + i * row + d);
        LOOM_UNROLL
        for (int j = 0; j < C; j++)
            v[j] = load4(theirs + j * SIDE * row + d);
        LOOM_UNROLL
        for (int i = 0; i < R; i++)
            LOOM_UNROLL
            for (int j = 0; j < C; j++)
                s[i][j] = fmaf(u[i].x, v[j].x, fmaf(u[i].y, v[j].y, fmaf(u[i].z, v[j].z, fmaf(u[i].w, v[j].w, s[i][j]))));
    }
}

/* sum[i][4 n + c] += weight of row (y R + i) and `at` times element 4 x + 64 n + c of row `at` of `b`; weights are w[at * step + i]. */
template <int R, int DK> LOOM_DEVICE void add_weighted(const float *w, int step, int stride, const float *b, int at, float (&sum)[R][DK / SIDE])
{
    const float *row = b + at * padded_row<DK>::floats + thread_x() * 4;
    float weight[R];

    LOOM_UNROLL
    for (int i = 0; i < R; i++)
        weight[i] = w[at * step + i * stride];
    LOOM_UNROLL
    for (int n = 0; n < DK / 64; n++) {
        float4 v = load4(row + 64 * n);

        LOOM_UNROLL
        for (int i = 0; i < R; i++) {
            sum[i][4 * n] = fmaf(weight[i], v.x, sum[i][4 * n]);
            sum[i][4 * n + 1] = fmaf(weight[i], v.y, sum[i][4 * n + 1]);
            sum[i][4 * n + 2] = fmaf(weight[i], v.z, sum[i][4 * n + 2]);
            sum[i][4 * n + 3] = fmaf(weight[i], v.w, sum[i][4 * n + 3]);
        }
    }
}

/* Rows y R + i of a result, times `factor`, added to what is there or not. */
template <int R, int DK>
LOOM_DEVICE void store_rows(float *at, int64_t token, int64_t first, int64_t count, int64_t head_dim, bool whole_quads, bool accumulate, float factor,
                            const float (&sum)[R][DK / SIDE])
{
    LOOM_UNROLL
    for (int i = 0; i < R; i++) {
        int64_t row = first + thread_y() * R + i;
        float *to = at + row * token;

        LOOM_UNROLL
        for (int n = 0; n < DK / 64; n++) {
            int64_t d = 4 * thread_x() + 64 * n;
            const float *s = &sum[i][4 * n];
            float4 v = make_float4(s[0] * factor, s[1] * factor, s[2] * factor, s[3] * factor);

            if (row >= count || d >= head_dim)
                continue;
            store_some(to, d, head_dim, whole_quads, accumulate ? load_some(to, d, head_dim, whole_quads, 0) + v : v);
        }
    }
}

/* --- who sees whom --- */

/* Tokens of one side of the mask, of one sequence. */
struct mask_side {
    const int32_t *positions, *documents; /* NULL: start + index; none */
    int64_t start, count;
};

LOOM_DEVICE int32_t position_of(const mask_side &m, int64_t i)
{
    return m.positions ? m.positions[i] : static_cast<int32_t>(m.start + i);
}

/* Ranges of position and document over some tokens. */
struct token_range {
    int32_t first, last, document_first, document_last;
};

LOOM_DEVICE int32_t lower(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

LOOM_DEVICE int32_t higher(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Of tokens [from, from + n), of which there is at least one. Every warp finds it for itself, so nobody waits for anybody. */
LOOM_DEVICE token_range range_of(const mask_side &m, int64_t from, int n)
{
    token_range r = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    int64_t last = from + n < m.count ? from + n : m.count;

    if (!m.positions && !m.documents)
        return {static_cast<int32_t>(m.start + from), static_cast<int32_t>(m.start + last - 1), 0, 0};
    for (int64_t i = from + threadIdx.x % LOOM_WARP; i < last; i += LOOM_WARP) {
        int32_t position = position_of(m, i), document = m.documents ? m.documents[i] : 0;
        r.first = lower(r.first, position), r.last = higher(r.last, position);
        r.document_first = lower(r.document_first, document), r.document_last = higher(r.document_last, document);
    }
    for (int other = 16; other > 0; other /= 2) {
        r.first = lower(r.first, __shfl_xor_sync(LOOM_ALL_LANES, r.first, other));
        r.last = higher(r.last, __shfl_xor_sync(LOOM_ALL_LANES, r.last, other));
        r.document_first = lower(r.document_first, __shfl_xor_sync(LOOM_ALL_LANES, r.document_first, other));
        r.document_last = higher(r.document_last, __shfl_xor_sync(LOOM_ALL_LANES, r.document_last, other));
    }
    return r;
}

struct mask_rule {
    bool causal;
    int64_t window; /* 0: none */
};

enum sight { SEES_NONE, SEES_SOME, SEES_ALL };

/* Whether these queries see none, some or all of these keys. "Some" may turn out to be none or all: it only means that one has to look. */
LOOM_DEVICE sight sight_of(const mask_rule &rule, bool documents, const token_range &q, const token_range &k)
{
    bool all = !rule.causal || k.last <= q.first;

    if (rule.causal && k.first > q.last)
        return SEES_NONE;
    if (rule.window > 0) {
        if (static_cast<int64_t>(k.last) <= q.first - rule.window)
            return SEES_NONE;
        all = all && static_cast<int64_t>(k.first) > q.last - rule.window;
    }
    if (documents) {
        if (k.document_first > q.document_last || k.document_last < q.document_first)
            return SEES_NONE;
        all = all && q.document_first == q.document_last && k.document_first == k.document_last;
    }
    return all ? SEES_ALL : SEES_SOME;
}

/* One token as the mask knows it. */
struct token_tag {
    int32_t position, document;
};

LOOM_DEVICE token_tag tag_of(const mask_side &m, int64_t i)
{
    if (i >= m.count)
        return {0, 0};
    return {position_of(m, i), m.documents ? m.documents[i] : 0};
}

LOOM_DEVICE bool sees(const mask_rule &rule, token_tag q, token_tag k)
{
    return (!rule.causal || k.position <= q.position) && (rule.window == 0 || static_cast<int64_t>(k.position) > q.position - rule.window) &&
           k.document == q.document;
}

/* --- arguments with everything filled in --- */

struct attention_strides {
    int64_t token, sequence;
    bool quads;
};

static inline attention_strides strides_of(const float *p, loom_bshk at, int64_t heads, int64_t head_dim, int64_t seq)
{
    int64_t token = or_tight(at.token, heads * head_dim), sequence = or_tight(at.sequence, seq * token);

    return {token, sequence, head_dim % 4 == 0 && quads(p, token) && sequence % 4 == 0};
}

struct attention_kernel_args {
    loom_attention_args a;
    attention_strides q_at, k_at, v_at, o_at;
    float scale;
};

static inline attention_kernel_args attention_args_of(const loom_attention_args *a)
{
    return {*a,
            strides_of(a->q_BSHK, a->q_at, a->heads, a->head_dim, a->q_seq),
            strides_of(a->k_BSGK, a->k_at, a->kv_heads, a->head_dim, a->k_seq),
            strides_of(a->v_BSGK, a->v_at, a->kv_heads, a->head_dim, a->k_seq),
            strides_of(a->o_BSHK, a->o_at, a->heads, a->head_dim, a->q_seq),
            a->scale != 0 ? a->scale : 1.0f / sqrtf(static_cast<float>(a->head_dim))};
}

LOOM_DEVICE head_rows rows_of(const float *p, const attention_strides &at, int64_t b, int64_t head, int64_t head_dim, int64_t count)
{
    return {p + b * at.sequence + head * head_dim, at.token, count, at.quads};
}

LOOM_DEVICE mask_side queries_of(const loom_attention_args &a, int64_t b)
{
    return {a.mask.q_positions_S, a.mask.q_documents_BS ? a.mask.q_documents_BS + b * a.q_seq : nullptr, a.mask.q_start, a.q_seq};
}

LOOM_DEVICE mask_side keys_of(const loom_attention_args &a, int64_t b)
{
    return {a.mask.k_positions_S, a.mask.k_documents_BS ? a.mask.k_documents_BS + b * a.k_seq : nullptr, a.mask.k_start, a.k_seq};
}

int loom_gpu_attention_mma(const loom_gpu *gpu, const attention_kernel_args &t); /* attention_mma.cu */

/* Both: attention.cu. Heads larger than the largest tile would need another kernel, as would a device with less shared memory than the smallest tiles take. */
int loom_gpu_refuse_head(const char *operation, int64_t head_dim);
int loom_gpu_refuse_tiles(const char *operation, int64_t head_dim, size_t needed, size_t shared_max);

/* --- tiles as large as the device's shared memory allows --- */

/* A kernel with tiles of one size, for heads of up to head_max. */
template <class ARGS> struct tile_form {
    int64_t head_max;
    size_t shared_bytes;
    int (*launch)(const loom_gpu *gpu, const ARGS &args);
};

/* Whether there is a form for each size of heads that every device has the shared memory for. */
template <class ARGS, size_t N> constexpr bool fit_every_device(const tile_form<ARGS> (&forms)[N])
{
    for (const tile_form<ARGS> &f : forms) {
        bool fits = false;

        for (const tile_form<ARGS> &other : forms)
            fits = fits || (other.head_max == f.head_max && other.shared_bytes <= LOOM_GPU_SHARED_LEAST);
        if (!fits)
            return false;
    }
    return true;
}

/* Forms go from small heads to large ones, and from large tiles, which read less, to small ones: the first that fits is launched. */
template <class ARGS, size_t N>
static int launch_form(const loom_gpu *gpu, const char *operation, const tile_form<ARGS> (&forms)[N], int64_t head_dim, const ARGS &args)
{
    size_t needed = forms[N - 1].shared_bytes;

    for (const tile_form<ARGS> &f : forms)
        if (head_dim <= f.head_max) {
            if (f.shared_bytes <= gpu->shared_max)
                return f.launch(gpu, args);
            needed = f.shared_bytes < needed ? f.shared_bytes : needed;
        }
    return loom_gpu_refuse_tiles(operation, head_dim, needed, gpu->shared_max);
}

#endif
