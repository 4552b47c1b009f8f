/* Sizes of a rank's buffers: cuts, blocks, the ends of the model. */
#include <rankloom/sizes.h>

static const int64_t LOGITS_BYTES = 128 << 20;

int64_t loom_carve(const int64_t *count, int buffers, int64_t *offset)
{
    int64_t used = 0;

    for (int i = 0; i < buffers; i++) {
        offset[i] = used;
        used += loom_aligned(count[i]);
    }
    return used;
}

/* --- cuts ------------------------------------------------------------------------------------------------------------------------ */

int loom_cut_holders(int64_t features, int64_t unit, int size)
{
    int64_t units = features / unit;

    return units < size && size % units == 0 ? size / (int)units : 1;
}

loom_range loom_cut_units(int64_t features, int64_t unit, int size, int rank)
{
    int holders = loom_cut_holders(features, unit, size);
    loom_range range = loom_cut(features / unit, size / holders, rank / holders);

    range.begin *= unit;
    range.end *= unit;
    return range;
}

int64_t loom_vocab_rows(int64_t vocab, int size)
{
    return (vocab + size - 1) / size;
}

static int64_t extent(loom_range range)
{
    return range.end - range.begin;
}

/* --- a rank ------------------------------------------------------------------------------------------------------------------------ */

static int64_t columns(int64_t width, int size, int rank)
{
    return width > 0 ? extent(loom_cut_units(width, 1, size, rank)) : 0;
}

/* Without sequence parallelism tp ranks hold the same tokens, and each routes a part of them. */
static void set_routed(loom_rank_shape *s, int tp, int rank)
{
    s->routed_tokens = s->sequence_parallel ? s->local_tokens : extent(loom_cut(s->tokens, tp, rank));
    s->most_routed = s->sequence_parallel ? s->local_tokens : (s->tokens + tp - 1) / tp;
}

void loom_rank_shape_of(const loom_model *m, const loom_layout *l, const loom_coords *here, int64_t sequences, int64_t whole, loom_rank_shape *s)
{
    int tp = l->tp, rank = here->at[LOOM_AXIS_TP];
    int64_t seq = loom_layout_padded_seq(l, whole);

    *s = (loom_rank_shape){.sequences = sequences,
                           .seq = seq,
                           .local_seq = seq / l->cp,
                           .hidden = m->hidden,
                           .head_dim = m->head_dim,
                           .q_width = extent(loom_cut_units(m->heads * m->head_dim, m->head_dim, tp, rank)),
                           .kv_width = extent(loom_cut_units(m->kv_heads * m->head_dim, m->head_dim, tp, rank)),
                           .ffn = columns(m->ffn, tp, rank),
                           .shared_ffn = columns(m->moe.shared * m->moe.shared_ffn, tp, rank),
                           .vocab_rows = loom_vocab_rows(m->vocab, tp),
                           .sequence_parallel = l->sequence_parallel && tp > 1};
    if (m->moe.experts > 0)
        s->expert_ffn = extent(loom_cut(m->moe.ffn, l->etp, here->at[LOOM_AXIS_ETP]));
    s->tokens = sequences * s->local_seq;
    s->local_tokens = s->sequence_parallel ? s->tokens / tp : s->tokens;
    s->heads = s->q_width / s->head_dim;
    s->kv_heads = s->kv_width / s->head_dim;
    s->qkv_width = s->q_width + 2 * s->kv_width;
    set_routed(s, tp, rank);
}

int64_t loom_wide_columns(const loom_model *model, int64_t ffn)
{
    return (loom_model_mlp_matrices(model) - 1) * ffn;
}

void loom_kept_counts(const loom_model *model, const loom_rank_shape *s, int64_t ffn, int64_t exchanged, int64_t count[LOOM_KEPT_BUFFERS])
{
    int64_t rows = s->local_tokens * s->hidden;

    count[LOOM_KEPT_MEAN1] = count[LOOM_KEPT_MEAN2] = model->norm == LOOM_LAYERNORM ? s->local_tokens : 0;
    count[LOOM_KEPT_RSTD1] = count[LOOM_KEPT_RSTD2] = s->local_tokens;
    count[LOOM_KEPT_NORM1] = count[LOOM_KEPT_NORM2] = count[LOOM_KEPT_MID] = rows;
    count[LOOM_KEPT_QKV] = exchanged ? 0 : s->tokens * s->qkv_width; /* else it is kept in its exchanged form */
    count[LOOM_KEPT_EXCHANGED] = exchanged;
    count[LOOM_KEPT_LSE] = s->tokens * s->heads;
    count[LOOM_KEPT_ATTENTION] = s->tokens * s->q_width;
    count[LOOM_KEPT_WIDE] = s->tokens * loom_wide_columns(model, ffn);
    count[LOOM_KEPT_ACTIVE] = s->tokens * ffn;
}

bool loom_chunk_keeps_gradient(int64_t layers, bool head, bool split_backward)
{
    return head || (split_backward && layers > 0);
}

int64_t loom_chunk_rows(int64_t layers, bool embedding, bool head, bool split_backward)
{
    int64_t inputs = layers - !embedding;

    return (inputs > 0 ? inputs : 0) + loom_chunk_keeps_gradient(layers, head, split_backward);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void loom_work_counts(const loom_model *model, const loom_rank_shape *s, bool embedding, bool head, int64_t exchanged,
                      int64_t count[LOOM_WORK_BUFFERS])
{
    int64_t rows = s->local_tokens * s->hidden, table = model->positions == LOOM_ROPE ? s->seq * s->head_dim / 2 : 0;

    count[LOOM_WORK_GATHERED] = s->sequence_parallel ? s->tokens * s->hidden : 0;
    count[LOOM_WORK_PARTIAL] = s->tokens * s->hidden;
    count[LOOM_WORK_BRANCH] = s->sequence_parallel ? rows : 0; /* else the sum over tp is taken in place */
    count[LOOM_WORK_QKV] = exchanged ? s->tokens * s->qkv_width : 0;
    count[LOOM_WORK_DQKV] = s->tokens * s->qkv_width;
    count[LOOM_WORK_DINNER] = s->tokens * larger(larger(s->ffn, s->shared_ffn), s->q_width);
    count[LOOM_WORK_COS] = count[LOOM_WORK_SIN] = table;
    count[LOOM_WORK_EMBEDDING_D] = embedding ? rows : 0;
    count[LOOM_WORK_FINAL] = count[LOOM_WORK_FINAL_NORM] = head ? rows : 0;
    count[LOOM_WORK_MEAN] = count[LOOM_WORK_RSTD] = head ? s->local_tokens : 0;
    count[LOOM_WORK_LOSS] = head ? s->tokens : 0;
    count[LOOM_WORK_SCRATCH] = head ? 4 * s->tokens : 0;
}

int64_t loom_logits_rows(const loom_rank_shape *s)
{
    int64_t rows = LOGITS_BYTES / (4 * s->vocab_rows);

    return rows < 1 ? 1 : rows < s->tokens ? rows : s->tokens;
}
