/* Attention forward, blocked: a task is QUERIES queries of one head; keys come by in blocks, and a running maximum and sum per query
 * (the online softmax) stand for the keys already seen. Scratch per thread is a few blocks, whatever the length. Also the merge of two
 * partial results. */
#include "kernels/cpu/block.h"

enum { KEYS = 128, PANELS = 8 * 16 / LANES, QUERIES = PANELS * PANEL };

typedef struct attention {
    const loom_attention_args *a;
    loom_bshk q_at, k_at, v_at, o_at;
    int64_t query_blocks, width; /* width: head_dim padded to whole vectors */
    float scale;
    char *scratch;
    size_t scratch_bytes; /* of each thread */
} attention;

/* Of one panel: queries transposed and scaled, the output so far, and maximum and sum so far of each query. */
typedef struct query_panel {
    float *q_transposed, *o; /* [K][PANEL], [PANEL][width] */
    float largest[PANEL], sum[PANEL];
    int32_t position[PANEL], document[PANEL];
    token_tags tags;
    int64_t first; /* query of the panel's first lane */
    int count;     /* queries; the other lanes compute nothing that is kept */
} query_panel;

typedef struct scratch {
    query_panel panel[PANELS];
    int32_t k_position[KEYS];
    float shrink[PANEL];
    float *k, *v, *scores; /* [KEYS][width] twice, [KEYS][PANEL] */
} scratch;

static size_t scratch_size(int64_t head_dim, int64_t width)
{
    size_t floats = (size_t)(PANELS * PANEL * (head_dim + width) + 2 * KEYS * width + KEYS * PANEL);

    return (sizeof(scratch) + 63) / 64 * 64 + floats * sizeof(float);
}

static scratch *scratch_of(const attention *t, int thread)
{
    char *base = t->scratch + (size_t)thread * t->scratch_bytes;
    float *at = (float *)(base + (sizeof(scratch) + 63) / 64 * 64);
    scratch *s = (scratch *)base;

    for (int p = 0; p < PANELS; p++) {
        s->panel[p].o = at;
        s->panel[p].q_transposed = at + PANEL * t->width;
        at += PANEL * (t->width + t->a->head_dim);
    }
    s->k = at;
    s->v = s->k + KEYS * t->width;
    s->scores = s->v + KEYS * t->width;
    return s;
}

static void open_panel(const attention *t, query_panel *p, int64_t b, int64_t h, int64_t first)
{
    const loom_attention_args *a = t->a;
    int64_t left = a->q_seq - first;
    const int32_t *documents = a->mask.q_documents_BS;

    p->first = first;
    p->count = left < PANEL ? (int)left : PANEL;
    transpose_panel(p->q_transposed, PANEL, a->q_BSHK + b * t->q_at.sequence + first * t->q_at.token + h * a->head_dim, t->q_at.token,
                    p->count, a->head_dim, t->scale, ROWS_AHEAD * t->q_at.token);
    memset(p->o, 0, (size_t)(PANEL * t->width) * sizeof(float));
    for (int i = 0; i < PANEL; i++) {
        p->largest[i] = -INFINITY;
        p->sum[i] = 0;
        p->document[i] = documents && i < p->count ? documents[b * a->q_seq + first + i] : 0;
    }
    copy_positions(p->position, a->mask.q_positions_S, a->mask.q_start, first, p->count);
    memset(p->position + p->count, 0, (size_t)(PANEL - p->count) * sizeof(int32_t));
    p->tags = tags_of(p->position, documents ? p->document : NULL, p->count);
}

/* Scores become exp(score - largest so far); what was summed before shrinks by exp(old largest - new). Says whether anything has to
 * shrink. */
LOOM_INLINE bool softmax_lanes(query_panel *p, float *scores, float *shrink, int lane, int64_t keys)
{
    vf old = vf_load(p->largest + lane), largest = old, sum = vf_set(0);

    for (int64_t j = 0; j < keys; j++)
        largest = vf_max(vf_load(scores + j * PANEL + lane), largest);
    /* a query that has seen nothing yet has -inf: exp(-inf - 0) is 0, exp(-inf - -inf) is not a number */
    vf base = vf_select(largest == vf_set(-INFINITY), vf_set(0), largest);
    vf factor = vf_exp(old - base);

    for (int64_t j = 0; j < keys; j++) {
        vf e = vf_exp(vf_load(scores + j * PANEL + lane) - base);
        vf_store(scores + j * PANEL + lane, e);
        sum += e;
    }
    vf_store(p->sum + lane, vf_fma(vf_load(p->sum + lane), factor, sum));
    vf_store(p->largest + lane, largest);
    vf_store(shrink + lane, factor);
    for (int i = 0; i < LANES; i++)
        if (factor[i] != 1.0f)
            return true;
    return false;
}

static void shrink_output(float *o, const float *shrink, int64_t width)
{
    for (int i = 0; i < PANEL; i++)
        for (int64_t d = 0; d < width; d += LANES)
            vf_store(o + i * width + d, vf_load(o + i * width + d) * shrink[i]);
}

static void panel_block(const attention *t, scratch *s, query_panel *p, const token_tags *k, int64_t keys)
{
    const loom_attention_mask *mask = &t->a->mask;
    sight sees = sight_of(mask, &p->tags, k);
    bool shrink = false;

    if (sees == SEES_NONE)
        return;
    if (sees == SEES_SOME)
        keys = keys_in_reach(mask, &p->tags, k, keys);
    tile_product((tile_operands){.a = s->k,
                                 .a_row = t->width,
                                 .a_step = 1,
                                 .b = p->q_transposed,
                                 .ldb = PANEL,
                                 .c = s->scores,
                                 .ldc = PANEL,
                                 .k = t->a->head_dim},
                 keys, PANEL);
    for (int lane = 0; lane < PANEL; lane += LANES) {
        if (sees == SEES_SOME)
            mask_lanes(mask, &p->tags, k, lane, s->scores + lane, PANEL, keys);
        shrink |= softmax_lanes(p, s->scores, s->shrink, lane, keys);
    }
    if (shrink)
        shrink_output(p->o, s->shrink, t->width);
    tile_product(
        (tile_operands){
            .a = s->scores, .a_row = 1, .a_step = PANEL, .b = s->v, .ldb = t->width, .c = p->o, .ldc = t->width, .k = keys, .add = true},
        PANEL, t->width);
}

static void key_block(const attention *t, scratch *s, int panels, int64_t b, int64_t g, int64_t first)
{
    const loom_attention_args *a = t->a;
    int64_t left = a->k_seq - first, keys = left < KEYS ? left : KEYS;
    const int32_t *documents = a->mask.k_documents_BS ? a->mask.k_documents_BS + b * a->k_seq + first : NULL;
    bool wanted = false;

    copy_positions(s->k_position, a->mask.k_positions_S, a->mask.k_start, first, keys);
    token_tags tags = tags_of(s->k_position, documents, keys);
    for (int p = 0; p < panels; p++)
        wanted |= sight_of(&a->mask, &s->panel[p].tags, &tags) != SEES_NONE;
    if (!wanted)
        return;
    copy_panel(s->k, t->width, a->k_BSGK + b * t->k_at.sequence + first * t->k_at.token + g * a->head_dim, t->k_at.token, keys, a->head_dim,
               1);
    copy_panel(s->v, t->width, a->v_BSGK + b * t->v_at.sequence + first * t->v_at.token + g * a->head_dim, t->v_at.token, keys, a->head_dim,
               1);
    for (int p = 0; p < panels; p++)
        panel_block(t, s, &s->panel[p], &tags, keys);
}

static void close_panel(const attention *t, const query_panel *p, int64_t b, int64_t h)
{
    const loom_attention_args *a = t->a;

    for (int i = 0; i < p->count; i++) {
        float *o = a->o_BSHK + b * t->o_at.sequence + (p->first + i) * t->o_at.token + h * a->head_dim;
        float share = p->sum[i] == 0 ? 0 : 1.0f / p->sum[i]; /* no key seen: 0 */

        for (int64_t d = 0; d < a->head_dim; d += LANES)
            vf_put(o + d, vf_load(p->o + i * t->width + d) * share, a->head_dim - d < LANES ? (int)(a->head_dim - d) : LANES);
        a->lse_BHS[(b * a->heads + h) * a->q_seq + p->first + i] = p->largest[i] + logf(p->sum[i]);
    }
}

/* Tasks of one head follow each other, the last queries first: under a causal mask they take longest. */
static void attention_task(const void *context, int64_t task, int thread)
{
    const attention *t = context;
    const loom_attention_args *a = t->a;
    int64_t block = t->query_blocks - 1 - task / (a->batch * a->heads), head = task % (a->batch * a->heads);
    int64_t b = head / a->heads, h = head % a->heads;
    scratch *s = scratch_of(t, thread);
    int panels = 0;

    for (int64_t first = block * QUERIES; panels < PANELS && first < a->q_seq; first += PANEL)
        open_panel(t, &s->panel[panels++], b, h, first);
    for (int64_t first = 0; first < a->k_seq; first += KEYS)
        key_block(t, s, panels, b, h / (a->heads / a->kv_heads), first);
    for (int p = 0; p < panels; p++)
        close_panel(t, &s->panel[p], b, h);
}

loom_status ISA(attention)(loom_cpu *cpu, const loom_attention_args *a)
{
    attention t = {
        .a = a,
        .q_at = bshk_of(a->q_at, a->heads, a->head_dim, a->q_seq),
        .k_at = bshk_of(a->k_at, a->kv_heads, a->head_dim, a->k_seq),
        .v_at = bshk_of(a->v_at, a->kv_heads, a->head_dim, a->k_seq),
        .o_at = bshk_of(a->o_at, a->heads, a->head_dim, a->q_seq),
        .query_blocks = (a->q_seq + QUERIES - 1) / QUERIES,
        .width = padded(a->head_dim),
        .scale = a->scale != 0 ? a->scale : 1.0f / sqrtf((float)a->head_dim),
    };
    t.scratch_bytes = (scratch_size(a->head_dim, t.width) + 63) / 64 * 64;
    void *workspace;
    loom_status status = loom_cpu_workspace(cpu, (size_t)cpu->threads * t.scratch_bytes, &workspace);

    if (status < 0)
        return status;
    t.scratch = workspace;
    loom_parallel_tasks(cpu->threads, t.query_blocks * a->batch * a->heads, attention_task, &t);
    return LOOM_OK;
}

/* --- merge --- */

LOOM_INLINE void merge_step(float *o, const float *o2, vf share, vf share2, int64_t i, int n)
{
    vf_put(o + i, vf_fma(vf_get(o2 + i, n), share2, vf_get(o + i, n) * share), n);
}

static void merge_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_attention_merge_args *a = context;
    loom_bshk o_at = bshk_of(a->o_at, a->heads, a->head_dim, a->seq), o2_at = bshk_of(a->o2_at, a->heads, a->head_dim, a->seq);

    for (int64_t t = from; t < to; t++)
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t b = t / a->seq, i = t % a->seq, row = (b * a->heads + h) * a->seq + i;
            float lse = a->lse_BHS[row], lse2 = a->lse2_BHS[row], largest = lse > lse2 ? lse : lse2;

            if (lse2 == -INFINITY)
                continue; /* the second saw no key; if the first saw none either, o is 0 and stays so */
            float sum = expf(lse - largest) + expf(lse2 - largest), merged = largest + logf(sum);

            EACH_LANES(0, a->head_dim, merge_step, a->o_BSHK + b * o_at.sequence + i * o_at.token + h * a->head_dim,
                       a->o2_BSHK + b * o2_at.sequence + i * o2_at.token + h * a->head_dim, vf_set(expf(lse - merged)),
                       vf_set(expf(lse2 - merged)));
            a->lse_BHS[row] = merged;
        }
}

loom_status ISA(attention_merge)(loom_cpu *cpu, const loom_attention_merge_args *a)
{
    loom_parallel_spans(cpu->threads, a->batch * a->seq, row_grain(a->heads * a->head_dim), merge_tokens, a);
    return LOOM_OK;
}
