/* Which layers each pipeline stage gets. */
#ifndef LOOM_PLANNER_SPLIT_H
#define LOOM_PLANNER_SPLIT_H

#include "planner/cost.h"

/* Passes of one micro-batch through one layer of each kind and through the ends of the model, and weight-gradient shares. Made once for a
 * layout's degrees; everything about stages is sums of it. */
typedef struct loom_layer_table {
    loom_pass_pair layer[LOOM_LAYER_KINDS], embedding, head;
    double forward[LOOM_LAYER_KINDS], backward[LOOM_LAYER_KINDS], weight[LOOM_LAYER_KINDS]; /* seconds */
    double embedding_forward, embedding_backward, head_forward, head_backward, head_weight;
} loom_layer_table;
void loom_layer_table_make(const loom_job *job, const loom_degrees *degrees, loom_layer_table *table);
/* In steps: passes alone; those of `like` for another ep or etp; with what ZeRO-2 and 3 move beside them. */
void loom_layer_table_passes(const loom_job *job, const loom_degrees *degrees, loom_layer_table *table);
void loom_layer_table_change_experts(const loom_job *job, const loom_degrees *degrees, const loom_layer_table *like,
                                     loom_layer_table *table);
void loom_layer_table_shard(const loom_job *job, const loom_degrees *degrees, const loom_memory_table *memory,
                            const loom_layer_table *passes, loom_layer_table *table);
/* Passes with experts at their cheapest: no exchange, no small groups. No choice of ep and etp makes a layer faster. */
void loom_layer_table_make_bound(const loom_job *job, const loom_degrees *degrees, loom_layer_table *table);

/* loom_step_predict() with the tables at hand. */
void loom_step_cost_of(const loom_job *job, const loom_degrees *degrees, const loom_layer_table *layers, const loom_memory_table *memory,
                       const int *chunk_layers, loom_step_cost *cost);

/* The split of `layers` over pp * vpp chunks that makes the pipeline fastest among those whose stages fit into `limit` bytes each. One
 * chunk a stage: exact for 1F1B's closed form, and for the busiest stage with other schedules. Several chunks: the busiest chunk is as
 * short as can be. Returns false when no split fits, or none whose pipeline takes less than `bound` seconds. `chunk_layers` has room for
 * LOOM_MAX_STAGES. */
bool loom_split_best(const loom_job *job, const loom_degrees *degrees, const loom_layer_table *layers, const loom_memory_table *memory,
                     double limit, double bound, int *chunk_layers);

/* Whether every stage of such a split fits. */
bool loom_split_fits(const loom_job *job, const loom_degrees *degrees, const loom_memory_table *memory, double limit,
                     const int *chunk_layers);

#endif
