/* Attention backward from o and lse, blocked. A task is one key/value head of one sequence and a range of its keys, which it takes span by
 * span: a span's k, v, dk and dv stay in the second cache while all queries pass, block by block. With P = exp(S - lse)
 * and delta = sum(do o):
 *   dv = P' do,  dP = do v',  dS = P (dP - delta),  dq = scale dS k,  dk = scale dS' q. */
#include "kernels/cpu/block.h"

enum { KEYS = 64, SPAN_BLOCKS = 8, SPAN = SPAN_BLOCKS * KEYS, PANELS = 2 * 16 / LANES, QUERIES = PANELS * PANEL };

typedef struct backward {
    const loom_attention_backward_args *a;
    const loom_attention_args *f;
    loom_bshk q_at, k_at, v_at, o_at, do_at, dq_at, dk_at, dv_at;
    int64_t key_blocks, chunks, width;
    float scale;
    float *delta;    /* [B, H, S] */
    float *dq_parts; /* [chunks - 1][B, S, H, K]: dq of all chunks but the first, which writes to its place */
    char *scratch;
    size_t scratch_bytes;
} backward;

/* Natural rows are padded to `width`; transposed copies are [K][QUERIES]. Scores and their gradients are transposed too:
 * [KEYS][QUERIES]. */
typedef struct scratch {
    float *k, *v, *dk, *dv; /* of the span: [SPAN][width]; k is scaled */
    int32_t k_position[SPAN];
    token_tags k_tags[SPAN_BLOCKS];
    float *q, *dout, *q_transposed, *do_transposed, *dq; /* of a block of queries */
    int32_t q_position[QUERIES], q_document[QUERIES];
    float lse[QUERIES], delta[QUERIES];
    token_tags q_tags[PANELS];
    float *p, *ds; /* of the two together */
} scratch;

static size_t scratch_size(int64_t head_dim, int64_t width)
{
    size_t floats = (size_t)(4 * SPAN * width + 3 * QUERIES * width + 2 * QUERIES * head_dim + 2 * KEYS * QUERIES);

    return (sizeof(scratch) + 63) / 64 * 64 + floats * sizeof(float);
}

static scratch *scratch_of(const backward *t, int thread)
{
    char *base = t->scratch + (size_t)thread * t->scratch_bytes;
    scratch *s = (scratch *)base;

    s->k = (float *)(base + (sizeof(scratch) + 63) / 64 * 64);
    s->v = s->k + SPAN * t->width;
    s->dk = s->v + SPAN * t->width;
    s->dv = s->dk + SPAN * t->width;
    s->q = s->dv + SPAN * t->width;
    s->dout = s->q + QUERIES * t->width;
    s->dq = s->dout + QUERIES * t->width;
    s->p = s->dq + QUERIES * t->width;
    s->ds = s->p + KEYS * QUERIES;
    s->q_transposed = s->ds + KEYS * QUERIES;
    s->do_transposed = s->q_transposed + QUERIES * t->f->head_dim;
    return s;
}

LOOM_INLINE void dot_step(vf *sum, const float *x, const float *y, int64_t i, int n)
{
    *sum = vf_fma(vf_get(x + i, n), vf_get(y + i, n), *sum);
}

static void delta_tokens(const void *context, int64_t from, int64_t to)
{
    const backward *t = context;
    const loom_attention_args *f = t->f;

    for (int64_t token = from; token < to; token++)
        for (int64_t h = 0; h < f->heads; h++) {
            int64_t b = token / f->q_seq, i = token % f->q_seq;
            vf sum = {0};

            EACH_LANES(0, f->head_dim, dot_step, &sum, f->o_BSHK + b * t->o_at.sequence + i * t->o_at.token + h * f->head_dim,
                       t->a->do_BSHK + b * t->do_at.sequence + i * t->do_at.token + h * f->head_dim);
            t->delta[(b * f->heads + h) * f->q_seq + i] = vf_sum(sum);
        }
}

/* Queries [first, first + count) of head h: rows, transposed rows, lse and delta, tags of each panel. */
static void load_queries(const backward *t, scratch *s, int64_t b, int64_t h, int64_t first, int64_t count)
{
    const loom_attention_args *f = t->f;
    const float *q = f->q_BSHK + b * t->q_at.sequence + first * t->q_at.token + h * f->head_dim;
    const float *dout = t->a->do_BSHK + b * t->do_at.sequence + first * t->do_at.token + h * f->head_dim;
    int64_t row = (b * f->heads + h) * f->q_seq + first;

    copy_panel(s->q, t->width, q, t->q_at.token, count, f->head_dim, 1);
    copy_panel(s->dout, t->width, dout, t->do_at.token, count, f->head_dim, 1);
    transpose_panel(s->q_transposed, QUERIES, q, t->q_at.token, count, f->head_dim, 1, 0);
    transpose_panel(s->do_transposed, QUERIES, dout, t->do_at.token, count, f->head_dim, 1, 0);
    for (int64_t i = 0; i < QUERIES; i++) {
        float lse = i < count ? f->lse_BHS[row + i] : -INFINITY;

        s->lse[i] = lse == -INFINITY ? INFINITY : lse; /* saw no key: exp(s - inf) makes its row of P zero */
        s->delta[i] = i < count ? t->delta[row + i] : 0;
    }
}

/* Tags of the queries' panels. */
static void tag_queries(const backward *t, scratch *s, int64_t b, int64_t first, int64_t count)
{
    const loom_attention_mask *mask = &t->f->mask;

    memset(s->q_position, 0, sizeof s->q_position);
    memset(s->q_document, 0, sizeof s->q_document);
    copy_positions(s->q_position, mask->q_positions_S, mask->q_start, first, count);
    if (mask->q_documents_BS)
        memcpy(s->q_document, mask->q_documents_BS + b * t->f->q_seq + first, (size_t)count * sizeof(int32_t));
    for (int p = 0; p < PANELS; p++) {
        int64_t left = count - p * PANEL, lanes = left < 0 ? 0 : left < PANEL ? left : PANEL;

        s->q_tags[p] = tags_of(s->q_position + p * PANEL, mask->q_documents_BS ? s->q_document + p * PANEL : NULL, lanes);
    }
}

/* Whether any of these queries may see any key of block `block`. */
static bool block_is_wanted(const backward *t, const scratch *s, int block, int64_t queries)
{
    for (int p = 0; p * PANEL < queries; p++)
        if (sight_of(&t->f->mask, &s->q_tags[p], &s->k_tags[block]) != SEES_NONE)
            return true;
    return false;
}

LOOM_INLINE void score_lanes(scratch *s, int lane, int64_t keys)
{
    vf lse = vf_load(s->lse + lane), delta = vf_load(s->delta + lane);

    for (int64_t j = 0; j < keys; j++) {
        float *p = s->p + j * QUERIES + lane, *ds = s->ds + j * QUERIES + lane;
        vf share = vf_exp(vf_load(p) - lse);

        vf_store(p, share);
        vf_store(ds, share * (vf_load(ds) - delta));
    }
}

/* P and dS of one panel against the block's keys; zeros where it cannot see. Returns how many leading keys it may see. */
static int64_t panel_scores(const backward *t, scratch *s, int block, int panel, int64_t keys)
{
    const loom_attention_mask *mask = &t->f->mask;
    const token_tags *q = &s->q_tags[panel], *k = &s->k_tags[block];
    sight sees = sight_of(mask, q, k);
    int64_t reach = sees == SEES_NONE ? 0 : sees == SEES_ALL ? keys : keys_in_reach(mask, q, k, keys);
    float *p = s->p + panel * PANEL, *ds = s->ds + panel * PANEL;
    tile_operands o = {.a_row = t->width, .a_step = 1, .ldb = QUERIES, .ldc = QUERIES, .k = t->f->head_dim};

    o.a = s->k + block * KEYS * t->width, o.b = s->q_transposed + panel * PANEL, o.c = p;
    tile_product(o, reach, PANEL);
    o.a = s->v + block * KEYS * t->width, o.b = s->do_transposed + panel * PANEL, o.c = ds;
    tile_product(o, reach, PANEL);
    for (int lane = 0; lane < PANEL; lane += LANES) {
        if (sees == SEES_SOME)
            mask_lanes(mask, q, k, lane, p + lane, QUERIES, reach);
        score_lanes(s, panel * PANEL + lane, reach);
    }
    for (int64_t j = reach; j < keys; j++) {
        memset(p + j * QUERIES, 0, PANEL * sizeof(float));
        memset(ds + j * QUERIES, 0, PANEL * sizeof(float));
    }
    return reach;
}

/* dv += P' do and dk += dS' q for keys [from, to) of the block, over the queries from `first` on: those before see none of them. */
static void key_products(const backward *t, scratch *s, int block, int64_t from, int64_t to, int64_t first, int64_t queries)
{
    int64_t row = (block * KEYS + from) * t->width;
    tile_operands o = {.a_row = QUERIES, .a_step = 1, .ldb = t->width, .ldc = t->width, .k = queries - first, .add = true};

    o.a = s->p + from * QUERIES + first, o.b = s->dout + first * t->width, o.c = s->dv + row;
    tile_product(o, to - from, t->width);
    o.a = s->ds + from * QUERIES + first, o.b = s->q + first * t->width, o.c = s->dk + row;
    tile_product(o, to - from, t->width);
}

/* A block of queries against a block of keys. `add`: dq holds something already. */
static void block_products(const backward *t, scratch *s, int block, int64_t queries, int64_t keys, bool add)
{
    int64_t reach[PANELS], done = 0; /* done: keys whose dk and dv have been served, those that the panels so far may see */
    tile_operands o = {.a_row = 1, .a_step = QUERIES, .b = s->k + block * KEYS * t->width, .ldb = t->width, .ldc = t->width, .add = add};

    for (int p = 0; p * PANEL < queries; p++) {
        reach[p] = o.k = panel_scores(t, s, block, p, keys);
        o.a = s->ds + p * PANEL, o.c = s->dq + p * PANEL * t->width;
        tile_product(o, PANEL, t->width);
    }
    for (int p = 0; p * PANEL < queries; p++)
        if (reach[p] > done) {
            key_products(t, s, block, done, reach[p], p * PANEL, queries);
            done = reach[p];
        }
}

static void store_rows(float *to, int64_t ld, const float *from, int64_t width, int64_t rows, int64_t cols, float scale, bool add)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += LANES) {
            int n = cols - j < LANES ? (int)(cols - j) : LANES;
            vf x = vf_load(from + i * width + j) * scale;

            vf_put(to + i * ld + j, add ? vf_get(to + i * ld + j, n) + x : x, n);
        }
}

/* Where this chunk adds dq of (b, h), and how far its rows are apart. */
static float *dq_place(const backward *t, int64_t chunk, int64_t b, int64_t h, int64_t *ld)
{
    const loom_attention_args *f = t->f;
    int64_t row = f->heads * f->head_dim;

    *ld = chunk ? row : t->dq_at.token;
    return chunk ? t->dq_parts + ((chunk - 1) * f->batch + b) * f->q_seq * row + h * f->head_dim
                 : t->a->dq_BSHK + b * t->dq_at.sequence + h * f->head_dim;
}

/* Copies k and v of keys [first, first + keys) and clears dk and dv. */
static void open_span(const backward *t, scratch *s, int64_t b, int64_t g, int64_t first, int64_t keys)
{
    const loom_attention_args *f = t->f;
    const int32_t *documents = f->mask.k_documents_BS ? f->mask.k_documents_BS + b * f->k_seq + first : NULL;
    size_t bytes = (size_t)(keys * t->width) * sizeof(float);

    copy_positions(s->k_position, f->mask.k_positions_S, f->mask.k_start, first, keys);
    for (int64_t block = 0; block * KEYS < keys; block++) {
        int64_t from = block * KEYS, count = keys - from < KEYS ? keys - from : KEYS;
        s->k_tags[block] = tags_of(s->k_position + from, documents ? documents + from : NULL, count);
    }
    copy_panel(s->k, t->width, f->k_BSGK + b * t->k_at.sequence + first * t->k_at.token + g * f->head_dim, t->k_at.token, keys, f->head_dim,
               t->scale);
    copy_panel(s->v, t->width, f->v_BSGK + b * t->v_at.sequence + first * t->v_at.token + g * f->head_dim, t->v_at.token, keys, f->head_dim,
               1);
    memset(s->dk, 0, bytes);
    memset(s->dv, 0, bytes);
}

static void close_span(const backward *t, scratch *s, int64_t b, int64_t g, int64_t first, int64_t keys)
{
    const loom_attention_backward_args *a = t->a;
    int64_t size = t->f->head_dim;

    store_rows(a->dk_BSGK + b * t->dk_at.sequence + first * t->dk_at.token + g * size, t->dk_at.token, s->dk, t->width, keys, size,
               t->scale, a->accumulate_dkv);
    store_rows(a->dv_BSGK + b * t->dv_at.sequence + first * t->dv_at.token + g * size, t->dv_at.token, s->dv, t->width, keys, size, 1,
               a->accumulate_dkv);
}

/* Queries [first, first + count) of head h against the span. Leaves dq, and says whether they see anything of it. */
static bool queries_against_span(const backward *t, scratch *s, int64_t b, int64_t h, int64_t first, int64_t count, int64_t keys)
{
    bool any = false;

    for (int block = 0; block * KEYS < keys; block++) {
        if (!block_is_wanted(t, s, block, count))
            continue;
        if (!any)
            load_queries(t, s, b, h, first, count);
        block_products(t, s, block, count, keys - block * KEYS < KEYS ? keys - block * KEYS : KEYS, any);
        any = true;
    }
    if (!any)
        memset(s->dq, 0, (size_t)(QUERIES * t->width) * sizeof(float));
    return any;
}

/* The chunk's first span writes dq, the others add to it. */
static void span_of_keys(const backward *t, scratch *s, int64_t chunk, int64_t b, int64_t g, int64_t first, int64_t keys, bool first_span)
{
    const loom_attention_args *f = t->f;
    int64_t group = f->heads / f->kv_heads, ldq;
    bool add = !first_span || (chunk == 0 && t->a->accumulate_dq);

    open_span(t, s, b, g, first, keys);
    for (int64_t q = 0; q < f->q_seq; q += QUERIES) {
        int64_t count = f->q_seq - q < QUERIES ? f->q_seq - q : QUERIES;

        tag_queries(t, s, b, q, count);
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            float *dq = dq_place(t, chunk, b, h, &ldq);
            bool any = queries_against_span(t, s, b, h, q, count, keys);

            if (any || !add)
                store_rows(dq + q * ldq, ldq, s->dq, t->width, count, f->head_dim, 1, add);
        }
    }
    close_span(t, s, b, g, first, keys);
}

static void backward_task(const void *context, int64_t task, int thread)
{
    const backward *t = context;
    int64_t chunk = task % t->chunks, g = task / t->chunks % t->f->kv_heads, b = task / t->chunks / t->f->kv_heads;
    int64_t from = t->key_blocks * chunk / t->chunks * KEYS, to = t->key_blocks * (chunk + 1) / t->chunks * KEYS, first = from;

    to = to < t->f->k_seq ? to : t->f->k_seq;
    do { /* also where there is no key at all: somebody has to write the zeros of dq */
        span_of_keys(t, scratch_of(t, thread), chunk, b, g, first, to - first < SPAN ? to - first : SPAN, first == from);
        first += SPAN;
    } while (first < to);
}

LOOM_INLINE void add_step(float *to, const float *from, int64_t i, int n)
{
    vf_put(to + i, vf_get(to + i, n) + vf_get(from + i, n), n);
}

static void add_dq_tokens(const void *context, int64_t from, int64_t to)
{
    const backward *t = context;
    const loom_attention_args *f = t->f;
    int64_t row = f->heads * f->head_dim;

    for (int64_t token = from; token < to; token++)
        for (int64_t chunk = 1; chunk < t->chunks; chunk++)
            EACH_LANES(0, row, add_step, t->a->dq_BSHK + token / f->q_seq * t->dq_at.sequence + token % f->q_seq * t->dq_at.token,
                       t->dq_parts + ((chunk - 1) * f->batch * f->q_seq + token) * row);
}

/* Heads are tasks enough as a rule. With fewer than the threads can share evenly, the keys of a head are divided too, and each part but the
 * first needs a dq of its own; so the last bits of dq depend on the count of threads, and on nothing else. */
static int64_t chunks_for(int threads, int64_t heads, int64_t key_blocks)
{
    int64_t chunks = threads == 1 || heads >= 3 * threads ? 1 : (3 * threads + heads - 1) / heads;

    return chunks < key_blocks ? chunks : key_blocks > 0 ? key_blocks : 1;
}

loom_status ISA(attention_backward)(loom_cpu *cpu, const loom_attention_backward_args *a)
{
    const loom_attention_args *f = &a->forward;
    backward t = {
        .a = a,
        .f = f,
        .q_at = bshk_of(f->q_at, f->heads, f->head_dim, f->q_seq),
        .k_at = bshk_of(f->k_at, f->kv_heads, f->head_dim, f->k_seq),
        .v_at = bshk_of(f->v_at, f->kv_heads, f->head_dim, f->k_seq),
        .o_at = bshk_of(f->o_at, f->heads, f->head_dim, f->q_seq),
        .do_at = bshk_of(a->do_at, f->heads, f->head_dim, f->q_seq),
        .dq_at = bshk_of(a->dq_at, f->heads, f->head_dim, f->q_seq),
        .dk_at = bshk_of(a->dk_at, f->kv_heads, f->head_dim, f->k_seq),
        .dv_at = bshk_of(a->dv_at, f->kv_heads, f->head_dim, f->k_seq),
        .key_blocks = (f->k_seq + KEYS - 1) / KEYS,
        .width = padded(f->head_dim),
        .scale = f->scale != 0 ? f->scale : 1.0f / sqrtf((float)f->head_dim),
    };
    int64_t rows = f->batch * f->heads * f->q_seq;
    t.chunks = chunks_for(cpu->threads, f->batch * f->kv_heads, t.key_blocks);
    t.scratch_bytes = (scratch_size(f->head_dim, t.width) + 63) / 64 * 64;
    size_t delta_bytes = (size_t)padded(rows) * sizeof(float), parts_bytes = (size_t)((t.chunks - 1) * rows * f->head_dim) * sizeof(float);
    void *workspace;
    loom_status status = loom_cpu_workspace(cpu, (size_t)cpu->threads * t.scratch_bytes + delta_bytes + parts_bytes, &workspace);

    if (status < 0)
        return status;
    t.scratch = workspace;
    t.delta = (float *)(t.scratch + (size_t)cpu->threads * t.scratch_bytes);
    t.dq_parts = t.delta + padded(rows);
    loom_parallel_spans(cpu->threads, f->batch * f->q_seq, row_grain(f->heads * f->head_dim), delta_tokens, &t);
    loom_parallel_tasks(cpu->threads, f->batch * f->kv_heads * t.chunks, backward_task, &t);
    if (t.chunks > 1)
        loom_parallel_spans(cpu->threads, f->batch * f->q_seq, row_grain(f->heads * f->head_dim), add_dq_tokens, &t);
    return LOOM_OK;
}
