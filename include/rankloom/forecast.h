/* What a rank of this engine will allocate and send, to the byte, before anything runs: the same rows as the device's ledger and the same counters as
 * the communicators'. Holds for the arrangement of gpt_3d: f32, every ZeRO stage, recompute none and full, one document a sequence, experts by all-to-all
 * without a capacity. Its buffers are carved by the very functions that are added up here (sizes.h). */
#ifndef RANKLOOM_FORECAST_H
#define RANKLOOM_FORECAST_H

#include <rankloom/layout.h>
#include <rankloom/ledger.h>
LOOM_BEGIN

/* Groups of a rank, as the mesh has them; the first are the axes. A hybrid of context parallelism counts its own groups with cp. */
typedef enum loom_rank_group {
    LOOM_GROUP_TP,
    LOOM_GROUP_CP,
    LOOM_GROUP_DP,
    LOOM_GROUP_PP,
    LOOM_GROUP_ETP,
    LOOM_GROUP_EP,
    LOOM_GROUP_EDP,
    LOOM_GROUP_GRADIENT, /* dp x cp */
    LOOM_GROUP_TIED,
    LOOM_GROUP_KV,
    LOOM_GROUP_STAGE,
    LOOM_GROUP_WORLD,
    LOOM_GROUPS,
} loom_rank_group;
LOOM_API const char *loom_rank_group_name(loom_rank_group group);

/* Rows that experts exchanged in the forward passes of one step on this rank, over all its layers and micro-batches. */
typedef struct loom_expert_rows {
    int64_t sent, received; /* over ep, to and from other ranks */
    int64_t arrived;        /* over ep, from all ranks of ep, this one too: what goes to each other rank of etp */
    int64_t peers;          /* that arrived at the other ranks of etp: what comes back from here */
} loom_expert_rows;

typedef struct loom_rank_forecast {
    uint64_t memory[LOOM_MEM_USES], memory_total; /* high-water marks of a training run; experts under a balanced load. LOOM_MEM_KERNELS is not known
                                                     here and stays 0 */
    uint64_t bytes[LOOM_GROUPS][LOOM_CALL_KINDS]; /* that this rank hands to others in one step */
    uint64_t parameters;                          /* elements that this rank holds, padding of the vocabulary included */
    loom_expert_rows rows;                        /* that the bytes stand on */
} loom_rank_forecast;

/* What a run has beside model and layout. All zero is what forecasts are of. */
typedef struct loom_run_options {
    bool packed;            /* documents one behind the other in a sequence */
    bool gathers_experts;   /* tokens go to experts by all-gather */
    double capacity_factor; /* of experts; 0: nothing is dropped */
} loom_run_options;
/* LOOM_E_UNSUPPORTED names what of it changes buffers or traffic in a way that forecasts do not know. */
LOOM_API loom_status loom_forecast_check(const loom_run_options *options);

/* `layout` is whole and legal. `rows` NULL: a balanced load. What this engine does not train is LOOM_E_UNSUPPORTED. */
LOOM_API loom_status loom_forecast_rank(const loom_model *model, const loom_layout *layout, int rank, const loom_expert_rows *rows,
                                        loom_rank_forecast *forecast);

LOOM_END
#endif
