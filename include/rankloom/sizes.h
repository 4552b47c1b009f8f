/* Sizes of what this engine keeps on a rank, from model and layout alone. The engine carves its buffers by these functions and the planner adds them
 * up, so the two cannot differ. Counts are elements of 4 bytes; every buffer starts at a multiple of LOOM_ALIGN_F32 of them (64 bytes). */
#ifndef RANKLOOM_SIZES_H
#define RANKLOOM_SIZES_H

#include <rankloom/layout.h>
LOOM_BEGIN

enum { LOOM_ALIGN_F32 = 16 };
static inline int64_t loom_aligned(int64_t count)
{
    return (count + LOOM_ALIGN_F32 - 1) / LOOM_ALIGN_F32 * LOOM_ALIGN_F32;
}
/* Places of `buffers` buffers one behind the other: offset[i] of each, and the sum. */
LOOM_API int64_t loom_carve(const int64_t *count, int buffers, int64_t *offset);

/* --- cuts ------------------------------------------------------------------------------------------------------------------------
 * Features that are split over ranks as whole units (heads of head_dim, or single columns). Fewer units than ranks: each is shared by size / units. */
LOOM_API loom_range loom_cut_units(int64_t features, int64_t unit, int size, int rank);
LOOM_API int loom_cut_holders(int64_t features, int64_t unit, int size); /* ranks that hold the same units */
/* Rows of a vocabulary on each rank, the last ones padded. */
LOOM_API int64_t loom_vocab_rows(int64_t vocab, int size);

/* --- a rank ----------------------------------------------------------------------------------------------------------------------- */

/* Of `sequences` sequences of `whole` tokens (padded so that the layout can cut them), and of the model's features, what lies on the rank at `here`. */
typedef struct loom_rank_shape {
    int64_t sequences, seq, local_seq;        /* seq: padding included; local_seq: of each sequence on this cp rank */
    int64_t tokens, local_tokens;             /* inside a tp region, and between two */
    int64_t hidden, heads, kv_heads, head_dim;
    int64_t q_width, kv_width, qkv_width;
    int64_t ffn, shared_ffn, expert_ffn;      /* columns: dense MLP, shared experts, one routed expert */
    int64_t vocab_rows;
    int64_t routed_tokens, most_routed;       /* that this rank routes to experts; the most that any rank of tp does */
    bool sequence_parallel;
} loom_rank_shape;
LOOM_API void loom_rank_shape_of(const loom_model *model, const loom_layout *layout, const loom_coords *here, int64_t sequences, int64_t whole,
                                 loom_rank_shape *shape);

/* Columns of the first matrix of an MLP of width `ffn`: twice that where gate and up lie side by side. */
LOOM_API int64_t loom_wide_columns(const loom_model *model, int64_t ffn);

/* What a block keeps from forward to backward, for one micro-batch. `ffn`: columns of its dense MLP or shared experts on this rank. `exchanged`: what
 * context parallelism keeps (loom_cp_kept()). */
enum {
    LOOM_KEPT_MEAN1,
    LOOM_KEPT_RSTD1,
    LOOM_KEPT_NORM1,
    LOOM_KEPT_QKV,
    LOOM_KEPT_EXCHANGED,
    LOOM_KEPT_LSE,
    LOOM_KEPT_ATTENTION,
    LOOM_KEPT_MID,
    LOOM_KEPT_MEAN2,
    LOOM_KEPT_RSTD2,
    LOOM_KEPT_NORM2,
    LOOM_KEPT_WIDE,
    LOOM_KEPT_ACTIVE,
    LOOM_KEPT_BUFFERS,
};
LOOM_API void loom_kept_counts(const loom_model *model, const loom_rank_shape *shape, int64_t ffn, int64_t exchanged,
                               int64_t count[LOOM_KEPT_BUFFERS]);
/* Inputs of blocks and the gradient of the last one's output that a chunk keeps of a micro-batch, [local_tokens, hidden] each: the first block's input is
 * the pipeline's, and so is the gradient, unless the head left it or the weights' half of a split backward reads it again. */
LOOM_API int64_t loom_chunk_rows(int64_t layers, bool embedding, bool head, bool split_backward);
LOOM_API bool loom_chunk_keeps_gradient(int64_t layers, bool head, bool split_backward); /* that gradient */

/* Buffers that live within one call, shared by all blocks of a stage, and those of its ends. */
enum {
    LOOM_WORK_GATHERED,
    LOOM_WORK_PARTIAL,
    LOOM_WORK_BRANCH,
    LOOM_WORK_QKV,
    LOOM_WORK_DQKV,
    LOOM_WORK_DINNER,
    LOOM_WORK_COS,
    LOOM_WORK_SIN,
    LOOM_WORK_EMBEDDING_D, /* of a stage with the embedding */
    LOOM_WORK_FINAL,       /* of a stage with the head, from here on */
    LOOM_WORK_FINAL_NORM,
    LOOM_WORK_MEAN,
    LOOM_WORK_RSTD,
    LOOM_WORK_LOSS,
    LOOM_WORK_SCRATCH,
    LOOM_WORK_BUFFERS,
};
LOOM_API void loom_work_counts(const loom_model *model, const loom_rank_shape *shape, bool embedding, bool head, int64_t exchanged,
                               int64_t count[LOOM_WORK_BUFFERS]);
/* Rows of logits at a time: at most 128 MiB of them, so that their memory does not grow with the micro-batch. */
LOOM_API int64_t loom_logits_rows(const loom_rank_shape *shape);

/* --- context parallelism -------------------------------------------------------------------------------------------------------------- */

/* An all-to-all over `inner` neighbours and blocks over `outer` groups of them: see cp.h. */
typedef struct loom_cp_shape {
    loom_cp_kind kind;
    int size, inner, outer;
    int64_t batch, local_seq, group_seq;
    int64_t heads, kv_heads, group_heads, group_kv_heads, head_dim; /* of this tp rank, and of it between the exchanges */
} loom_cp_shape;
/* Whether `parts` ranks of an all-to-all can share these heads: each gets whole ones, and all that read one kv head have it. */
LOOM_API bool loom_cp_heads_split(int64_t heads, int64_t kv_heads, int64_t parts);
/* Ranks of the all-to-all of a kind over `size` ranks; a hybrid takes the most that the heads allow. */
LOOM_API int loom_cp_inner(loom_cp_kind kind, int size, int64_t heads, int64_t kv_heads);
LOOM_API void loom_cp_shape_of(loom_cp_kind kind, int size, int inner, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim,
                               loom_cp_shape *shape);
LOOM_API int64_t loom_cp_kv_elements(const loom_cp_shape *shape); /* keys and values of one block */
LOOM_API int64_t loom_cp_kept(const loom_cp_shape *shape);        /* from forward to backward of one attention; 0: the caller's q, k, v are */

enum {
    LOOM_CP_SENT,
    LOOM_CP_LANDED,
    LOOM_CP_WORKED,
    LOOM_CP_KV_MINE,
    LOOM_CP_KV_LANDED,
    LOOM_CP_DKV_ALL,
    LOOM_CP_KV_ALL,
    LOOM_CP_KV_EVEN,
    LOOM_CP_KV_ODD,
    LOOM_CP_O_PART, /* partial results of forward and travelling gradients of backward share their place */
    LOOM_CP_LSE_PART,
    LOOM_CP_DKV_EVEN,
    LOOM_CP_DKV_ODD,
    LOOM_CP_DKV_PART,
    LOOM_CP_BUFFERS,
};
/* Where each buffer is, -1: there is none; returns the elements of all. */
LOOM_API int64_t loom_cp_place(const loom_cp_shape *shape, int64_t offset[LOOM_CP_BUFFERS]);

/* --- experts ------------------------------------------------------------------------------------------------------------------------------ */

typedef struct loom_expert_shape {
    int ep, etp;
    int64_t experts, here, top_k; /* here: experts of this ep rank */
    int64_t hidden, ffn;          /* ffn: columns of one on this etp rank */
    int64_t units;                /* of the balance loss in a micro-batch */
    int64_t capacity;             /* tokens that this rank routes at most */
    bool split_backward;          /* gradients of weights come later than those of inputs */
} loom_expert_shape;
LOOM_API void loom_expert_shape_of(const loom_model *model, const loom_layout *layout, const loom_coords *here, loom_expert_shape *shape);

/* What a layer of experts keeps of one micro-batch whatever the load is. */
enum {
    LOOM_RECORD_LOGITS,
    LOOM_RECORD_SCORES,
    LOOM_RECORD_DLOGITS,
    LOOM_RECORD_LSE,
    LOOM_RECORD_WEIGHTS,
    LOOM_RECORD_DWEIGHTS,
    LOOM_RECORD_RETURNED,
    LOOM_RECORD_STATS,
    LOOM_RECORD_SLOPES,
    LOOM_RECORD_FLOATS,
};
enum {
    LOOM_RECORD_IDS,
    LOOM_RECORD_ROWS,
    LOOM_RECORD_ORDER,
    LOOM_RECORD_OFFSETS,
    LOOM_RECORD_COUNTS,
    LOOM_RECORD_TABLES,
    LOOM_RECORD_FIRST_ROWS,
    LOOM_RECORD_INTEGERS,
};
LOOM_API void loom_record_counts(const loom_expert_shape *shape, int64_t floats[LOOM_RECORD_FLOATS], int64_t integers[LOOM_RECORD_INTEGERS]);

/* Doubles of a stage's loads behind the counts of its experts. */
enum { LOOM_LOAD_TOTALS = 6 };

/* What depends on the load: `choices` made here, `arrived` rows from this rank's ep group, `rows` those of all etp ranks. Of a record the first five,
 * of the stage the others. 0: not needed. */
enum {
    LOOM_ROWS_X,
    LOOM_ROWS_WIDE,
    LOOM_ROWS_ACTIVE,
    LOOM_ROWS_OUT, /* the gradient of the results, where it waits for the weights' half of a backward */
    LOOM_ROWS_PLACES,
    LOOM_ROWS_OF_EXPERT,
    LOOM_ROWS_LEAVING,
    LOOM_ROWS_ARRIVED,
    LOOM_ROWS_GATHERED,
    LOOM_ROWS_PARTIAL,
    LOOM_ROWS_BUFFERS,
};
LOOM_API void loom_rows_counts(const loom_expert_shape *shape, int64_t choices, int64_t arrived, int64_t rows, int64_t count[LOOM_ROWS_BUFFERS]);
/* Width of a row of LOOM_ROWS_OF_EXPERT: a gradient, and where backward is split that of an activation before it. */
LOOM_API int64_t loom_expert_scratch(const loom_expert_shape *shape);
/* The same under a balanced load of a full record: what each buffer has from the start. */
LOOM_API void loom_rows_balanced(const loom_expert_shape *shape, int64_t count[LOOM_ROWS_BUFFERS]);
/* What a buffer of `balanced` elements grows to for `count`: in eighths of that, so its size depends on the largest load alone. */
LOOM_API int64_t loom_rows_grown(int64_t balanced, int64_t count);

/* --- weights -------------------------------------------------------------------------------------------------------------------------------- */

/* Doubles that dp sums norms and losses in. */
enum { LOOM_REDUCTION_SUMS = 32 };
/* What is cut over the ranks that share a gradient, from which stage of ZeRO on (Rajbhandari et al., SC 2020, §5). */
enum { LOOM_ZERO_STATE = 1, LOOM_ZERO_GRADIENTS = 2, LOOM_ZERO_WEIGHTS = 3 };
/* Whether `what` of a class of parameters is. Gradients that are summed over a second group as well (`alone` false), norms under sequence parallelism and tied
 * embeddings, keep to the first stage: that sum comes once, at the end of a step. */
static inline bool loom_zero_cuts(int zero, int what, int parts, bool alone)
{
    return zero >= what && parts > 1 && (alone || what == LOOM_ZERO_STATE);
}
/* Units whose whole weights, and as many whose whole gradients, have a place at a time: one in use, one on its way. */
enum { LOOM_UNIT_PLACES = 2 };
/* Elements of a flat buffer of parameters that lie one behind the other, each aligned (`sum` of those), and that `parts` ranks share. */
static inline int64_t loom_flat_elements(int64_t sum, int parts)
{
    int64_t unit = (int64_t)LOOM_ALIGN_F32 * parts;

    return (sum + unit - 1) / unit * unit;
}

LOOM_END
#endif
