/* The layout: how one model is split over ranks. Plain data, decided once, read by mesh, schedules, memory model, engine, planner. */
#ifndef RANKLOOM_LAYOUT_H
#define RANKLOOM_LAYOUT_H

#include <rankloom/model.h>
LOOM_BEGIN

enum { LOOM_MAX_STAGES = 1024 }; /* pp * vpp */

/* The grid's axes. Rank order, fastest first: tp, cp, dp, pp (placement may permute it). Folded axes share those ranks:
 * the ranks of one stage, tp x cp x dp of them, are also etp x ep x edp. */
typedef enum loom_axis {
    LOOM_AXIS_TP,
    LOOM_AXIS_CP,
    LOOM_AXIS_DP,
    LOOM_AXIS_PP,
    LOOM_AXIS_ETP,
    LOOM_AXIS_EP,
    LOOM_AXIS_EDP,
    LOOM_AXES,
} loom_axis;
LOOM_API const char *loom_axis_name(loom_axis axis);

typedef enum loom_schedule_kind {
    LOOM_SCHEDULE_GPIPE,
    LOOM_SCHEDULE_1F1B,
    LOOM_SCHEDULE_INTERLEAVED,
    LOOM_SCHEDULE_ZB_H1,
    LOOM_SCHEDULE_ZB_V,
    LOOM_SCHEDULE_KINDS,
} loom_schedule_kind;
LOOM_API const char *loom_schedule_kind_name(loom_schedule_kind kind); /* "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v" */
LOOM_API bool loom_schedule_kind_splits(loom_schedule_kind kind);      /* backward in two halves, I and W: the zero-bubble ones */

typedef enum loom_recompute { LOOM_RECOMPUTE_NONE, LOOM_RECOMPUTE_SELECTIVE, LOOM_RECOMPUTE_FULL } loom_recompute;
typedef enum loom_cp_kind { LOOM_CP_RING, LOOM_CP_ALLGATHER, LOOM_CP_ULYSSES, LOOM_CP_HYBRID, LOOM_CP_AUTO } loom_cp_kind; /* auto: resolve chooses */
LOOM_API const char *loom_recompute_name(loom_recompute recompute); /* "none", "selective", "full" */
LOOM_API const char *loom_cp_kind_name(loom_cp_kind kind);          /* "ring", "allgather", "ulysses", "hybrid", "auto" */

typedef struct loom_layout {
    int tp, cp, dp, pp, vpp; /* world = tp * cp * dp * pp; one of tp cp dp pp may be 0, "auto": resolve fills it */
    int ep, etp;             /* ep * etp divides tp * cp * dp; edp is the quotient. 0: 1. No default follows another degree */
    uint32_t given;          /* bit 1 << axis: a person named that degree. Only messages tell it apart from a default */
    int zero;                /* 0..3 */
    bool sequence_parallel;  /* activations between tp regions are split along the sequence over tp */
    loom_schedule_kind schedule;
    loom_recompute recompute;
    loom_cp_kind cp_kind;
    int cp_inner;            /* hybrid: neighbours of the all-to-all; 0: the most that the heads allow */
    int fast_ranks;          /* consecutive ranks that share a fast domain, such as a node; 0: all of them. Only cp_kind auto asks */
    int64_t micro_batch, global_batch, seq; /* sequences, sequences, tokens */
    bool pad_seq;                           /* of whoever runs it: a seq that ranks cannot cut is padded (loom_layout_padded_seq), not refused */
    int n_chunks;                           /* pp * vpp; chunk c runs on stage loom_layout_stage_of_chunk() */
    int64_t chunk_layers[LOOM_MAX_STAGES];  /* layers of each chunk in model order; may be 0; they sum to model.layers.
                                               Before resolve: n_chunks 0 or all layers 0 is even; n_chunks = pp is layers of each stage */
    loom_axis order[4];                     /* rank order, fastest first: a permutation of tp, cp, dp, pp */
} loom_layout;

/* One reason why a layout cannot run: which rule, the values asked for, and the nearest legal ones. The rules, by id:
 *   range         degrees, micro-batch and batch are positive, zero is 0 to 3, pp * vpp at most LOOM_MAX_STAGES
 *   auto          at most one of tp, cp, dp, pp is open, and what is left of the world fills it
 *   world         tp * cp * pp * dp is the world
 *   order         names tp, cp, dp and pp once each
 *   tp-heads      tp divides the heads
 *   tp-kv-heads   tp divides the kv heads, or they divide tp (then tp / kv_heads ranks hold copies of one)
 *   tp-ffn        every tp rank gets a column of the MLP; the cut may be uneven (loom_cut)
 *   tp-vocab      every tp rank gets a row of the vocabulary; the cut may be uneven
 *   pp-layers     pp * vpp is at most the layers
 *   stage-layers  layers_per_stage has pp or pp * vpp entries, which sum to the layers
 *   schedule      1f1b and zb-h1 want vpp 1, zb-v vpp 2; gpipe and interleaved take any
 *   vpp-micro-batches  interleaved with vpp > 1: pp divides the micro-batches of a dp rank
 *   batch         micro_batch * dp divides global_batch
 *   seq           2 * cp divides seq (cp > 1), times tp with sequence parallelism; with pad_seq any will do
 *   positions     seq fits a learned position table
 *   experts       ep and etp need experts; ep divides them; every etp rank gets a column of an expert
 *   expert-ranks  ep * etp divides tp * cp * dp
 *   cp-heads      ulysses: cp * tp divides the heads, and divides the kv heads or is divided by them; hybrid: some 1 < u < cp does that for u * tp,
 *                 cp_inner if that is given
 */
typedef struct loom_rule_breach {
    const char *rule; /* stable id, as above; static */
    char text[384];   /* "tp=6 does not divide 16 heads; 1, 2, 4, 8 and 16 do" */
} loom_rule_breach;

/* A layout of all ones with the model's defaults: chunk_layers left 0 = "even". */
LOOM_API void loom_layout_default(const loom_model *model, loom_layout *layout);

/* Reads `layout:` (tp pp vpp dp cp ep etp zero sequence_parallel schedule micro_batch layers_per_stage recompute cp_kind order; in a file
 * of its own also global_batch and seq). An absent degree is 1, dp absent or "auto" is what is left of `world`; at most one of tp, cp, dp
 * and pp may be "auto". Resolves, and notes every broken rule as a problem of the file. Starts from what *layout holds
 * (loom_layout_default() and the batch of the train section). `node` NULL: an absent section, all defaults. */
LOOM_API void loom_layout_read(loom_reader *reader, const loom_node *node, const loom_model *model, int world, loom_layout *layout);

/* Reads a layout file as `rankloom plan -o` and loom_layout_save() write it, or the `layout:` section of another file. Starts from *layout, as
 * loom_layout_read(). */
LOOM_API loom_status loom_layout_load(const char *path, const loom_model *model, int world, loom_layout *layout);

/* cp_kind auto becomes: ulysses over as many neighbours as lie in one fast domain and as the heads allow, and a ring over those groups; so ulysses if
 * that is all of cp, hybrid with that cp_inner if it is some, ring if it is one. Needs the model; without one it is refused.
 * Fills what else is open (even chunk_layers: layers / n_chunks each, the remainder one by one to the first chunks; etp, ep, n_chunks;
 * the degree that is 0, which becomes 1 when `world` is 0) and then checks every rule. Breaches are all reported: returns how many, writes up to `capacity`. 0: the layout is legal and whole.
 * `world` 0: any. model NULL: only the rules that need no model. This is the one rule checker of planner, engine and CLI. */
LOOM_API int loom_layout_resolve(loom_layout *layout, const loom_model *model, int world, loom_rule_breach *breaches, int capacity);
/* The same as a status: LOOM_E_INVALID with all breaches in the message, one a line. */
LOOM_API loom_status loom_layout_check(loom_layout *layout, const loom_model *model, int world);

LOOM_API int loom_layout_world(const loom_layout *layout);
LOOM_API int64_t loom_layout_micro_batches(const loom_layout *layout); /* of one dp rank in one step */
LOOM_API int loom_layout_edp(const loom_layout *layout);
/* What the ranks that share a sequence can cut `seq` tokens into only after adding some: the next multiple of what the rule 'seq' names. */
LOOM_API int64_t loom_layout_padded_seq(const loom_layout *layout, int64_t seq);
LOOM_API int loom_layout_degree(const loom_layout *layout, loom_axis axis);
/* Stage (pp rank) of chunk c: c mod pp, except zb-v, which folds back. Position of the chunk on its stage: c / pp. */
LOOM_API int loom_layout_stage_of_chunk(const loom_layout *layout, int chunk);
LOOM_API int64_t loom_layout_first_layer(const loom_layout *layout, int chunk);

/* Where a rank sits: its index on every axis. And back. */
typedef struct loom_coords { int at[LOOM_AXES]; } loom_coords;
LOOM_API loom_coords loom_layout_coords(const loom_layout *layout, int rank);
LOOM_API int loom_layout_rank(const loom_layout *layout, const int at[4] /* tp cp dp pp */);
/* Ranks that differ from `rank` only on `axis`, in axis order; returns how many, `members` has room for the degree. */
LOOM_API int loom_layout_group(const loom_layout *layout, loom_axis axis, int rank, int *members);
/* The same for dp x cp together: who shares a dense gradient, dp slowest. */
LOOM_API int loom_layout_gradient_group(const loom_layout *layout, int rank, int *members);

/* Part `index` of `parts` of n units: [n*index/parts, n*(index+1)/parts). The one rule for cutting uneven things. */
typedef struct loom_range { int64_t begin, end; } loom_range;
LOOM_API loom_range loom_cut(int64_t n, int parts, int index);

/* "tp2 pp2 dp1 zero1 sp 1f1b mb2" into `text`; returns text. What is 1 or off is left out, but for tp, pp and dp. */
LOOM_API char *loom_layout_describe(const loom_layout *layout, char *text, size_t bytes);
/* YAML that loom_layout_read() takes, as text (the caller frees it with loom_text_free() of <rankloom/text.h>) or as a file. */
LOOM_API loom_status loom_layout_yaml(const loom_layout *layout, char **text);
LOOM_API loom_status loom_layout_save(const loom_layout *layout, const char *path);

LOOM_END
#endif
