/* The planner: a model and a machine room in, the best layouts out, each with time, memory and reasons. Pure computation: no network, no
 * GPU, nothing global; two threads may plan at once. docs/planner.md has the formulas and how well they do. */
#ifndef RANKLOOM_PLANNER_H
#define RANKLOOM_PLANNER_H

#include <rankloom/layout.h>
#include <rankloom/text.h>
#include <rankloom/forecast.h>
#include <rankloom/topology.h>
LOOM_BEGIN

/* --- what to plan for ------------------------------------------------------------------------------------------------------- */

enum { LOOM_PLAN_TEXT = 64, LOOM_PLAN_RULES = 32 };

/* A step that somebody timed: a layout ("tp=8,pp=16,dp=8,mbs=2") and its seconds. Calibrates all predictions of the request. */
typedef struct loom_measured_step {
    const char *layout;
    double seconds;
} loom_measured_step;

typedef struct loom_plan_request {
    const loom_model *model; /* borrowed, as all pointers here */
    const loom_topology *topology;
    loom_train_shape train;     /* global batch, sequence, precision; micro_batch > 0 fixes it */
    const char *framework;      /* whose habits to assume: "rankloom" (also NULL), "nemo", "megatron-lm", "torchtitan" … */
    int max_gpus;               /* 0: all */
    bool fewer_gpus;            /* look at fewer ranks than all too */
    double memory_margin;       /* share of the memory to leave free; 0: 0.05 */
    const char *const *fix;     /* "tp=8", "zero=1", "recompute=none" …, NULL-terminated or NULL */
    const char *const *exclude; /* "pp=16", "cp>1" …, likewise */
    const char *const *set;     /* constants over the tables: "h100.sustained=0.8", likewise */
    const loom_measured_step *measured;
    int n_measured;
    int keep;    /* layouts to hand out; 0: 5, at most 32 */
    bool pareto; /* fill the front */
    bool advise; /* look for changes that would gain: several searches more */
    loom_run_options run; /* of a run of this engine: what its forecast of memory does not know leaves the formulas for other software */
} loom_plan_request;

/* --- one layout in full -------------------------------------------------------------------------------------------------------- */

typedef enum loom_time_part {
    LOOM_TIME_GEMM,
    LOOM_TIME_ATTENTION,
    LOOM_TIME_POINTWISE, /* norms, residuals, activations, loss: memory-bound work */
    LOOM_TIME_LAUNCH,    /* the device waits for the host */
    LOOM_TIME_TP,        /* exposed communication, by axis */
    LOOM_TIME_CP,
    LOOM_TIME_EP,
    LOOM_TIME_DP,
    LOOM_TIME_PP,
    LOOM_TIME_BUBBLE,
    LOOM_TIME_OPTIMIZER,
    LOOM_TIME_OTHER, /* ranks that wait for one another, fixed costs */
    LOOM_TIME_PARTS,
} loom_time_part;
LOOM_API const char *loom_time_part_name(loom_time_part part);

typedef enum loom_memory_part {
    LOOM_MEMORY_WEIGHTS,
    LOOM_MEMORY_GRADIENTS,
    LOOM_MEMORY_OPTIMIZER,
    LOOM_MEMORY_ACTIVATIONS, /* kept for the backward, all micro-batches in flight */
    LOOM_MEMORY_TRANSIENT,   /* working set of the widest layer, and of what is recomputed */
    LOOM_MEMORY_LOGITS,      /* logits and their gradient, last stage */
    LOOM_MEMORY_LOSS,        /* softmax working set */
    LOOM_MEMORY_BUFFERS,     /* communication, gathered weights */
    LOOM_MEMORY_WORKSPACE,   /* libraries */
    LOOM_MEMORY_SLACK,       /* fragmentation, context */
    LOOM_MEMORY_PARTS,
} loom_memory_part;
LOOM_API const char *loom_memory_part_name(loom_memory_part part);

typedef struct loom_stage_memory {
    double part[LOOM_MEMORY_PARTS]; /* bytes */
    double allocated;               /* without slack and context: what a framework calls allocated */
    double total;
    double parameters;     /* of one rank */
    int layers, in_flight; /* in_flight: most micro-batch-chunks held */
} loom_stage_memory;

typedef struct loom_prediction {
    loom_layout layout;
    double step_s, low_s, high_s;   /* 80 % interval */
    double part_s[LOOM_TIME_PARTS]; /* sum to step_s */
    double hidden_dp_s;             /* gradient traffic under compute */
    double tokens_per_s, tokens_per_s_per_gpu;
    double mfu_full, mfu_causal, hfu; /* attention square counted whole, or half; hfu: with what is recomputed */
    double default_share;             /* of the time that rests on constants nobody measured */
    int64_t micro_batches;
    double bubble; /* idle over busy */
    int busiest;   /* stage */
    int stages;    /* = layout.pp */
    loom_stage_memory memory[LOOM_MAX_STAGES];
    int fullest;         /* stage */
    double memory_limit; /* bytes, margin taken off */
    bool memory_exact;   /* what this engine will allocate, to the byte (forecast.h); else formulas */
    bool fits;
} loom_prediction;

/* Predicts `layout` (whole and legal, see loom_layout_check). Only that: no search. */
LOOM_API loom_status loom_plan_predict(const loom_plan_request *request, const loom_layout *layout, loom_prediction *prediction);

/* --- the search -------------------------------------------------------------------------------------------------------------------- */

typedef struct loom_plan_rejection {
    char reason[LOOM_PLAN_TEXT]; /* "memory", or the id of a rule (layout.h) */
    uint64_t count;              /* memory: groups of layouts that the search dropped for it; a rule: degrees that it rules out */
} loom_plan_rejection;

/* Something to change, and what the best layout would then gain. */
typedef struct loom_plan_change {
    char text[160];
    double gain; /* share of the step */
} loom_plan_change;
enum { LOOM_PLAN_CHANGES = 3 };

typedef struct loom_plan {
    loom_prediction *best; /* fastest first; they differ in tp, cp, pp, ep or etp */
    int n_best;
    loom_prediction *front; /* Pareto over step time, fullest stage and ranks: fastest first. Empty unless asked for */
    int n_front;
    uint64_t legal;     /* layouts that break no rule */
    uint64_t evaluated; /* whose time was worked out; bounds decide on the others */
    double seconds;
    int simulated;       /* schedules of the fastest splits that were run in virtual time, in simulation_s */
    double simulation_s;
    size_t peak_bytes;
    loom_plan_rejection rejected[LOOM_PLAN_RULES];
    int n_rejected;
    char binding[256];                           /* what limits the best layout */
    char runner_up[256];                         /* why the second is second, and what would make it win */
    loom_plan_change changes[LOOM_PLAN_CHANGES]; /* the cheapest that gain 2 % and more */
    int n_changes;
    char hopeless[320]; /* n_best 0: why nothing fits, in numbers */
} loom_plan;

/* Of all layouts of the request that break no rule and fit, the fastest by closed form, exactly; then the schedules of the fastest splits in virtual time
 * (docs/planner.md says what is exact). */
LOOM_API loom_status loom_plan_search(const loom_plan_request *request, loom_plan **plan);
LOOM_API void loom_plan_free(loom_plan *plan); /* accepts NULL */

/* --- telling. The caller frees *text with loom_text_free(). ------------------------------------------------------------------------- */
typedef enum loom_plan_format { LOOM_PLAN_AS_TEXT, LOOM_PLAN_AS_JSON, LOOM_PLAN_AS_YAML } loom_plan_format;
LOOM_API loom_status loom_plan_describe(const loom_plan_request *request, const loom_plan *plan, loom_plan_format format, char **text);
LOOM_API loom_status loom_prediction_describe(const loom_plan_request *request, const loom_prediction *prediction, loom_plan_format format,
                                              char **text);
/* Rank, coordinates and place of every rank of a layout, and the ranks of every kind of group. */
LOOM_API loom_status loom_plan_map(const loom_plan_request *request, const loom_layout *layout, char **text);
/* "tp=8,pp=16,mbs=2" as a layout for the ranks of the request: what is not said is what loom_layout_default() and the train section
 * have. */
LOOM_API loom_status loom_plan_layout(const loom_plan_request *request, const char *text, loom_layout *layout);
/* Why `layout` ("tp=16,pp=2") is not the plan: broken rules, or where memory ends, or what it would cost. */
LOOM_API loom_status loom_plan_explain(const loom_plan_request *request, const char *layout, char **text);

/* Predicts every row of a table with the columns of published runs and reports the errors by source and device kind. `set` as in the
 * request. */
LOOM_API loom_status loom_plan_score(const char *path, const char *const *set, loom_plan_format format, char **text);

/* The textbook's arithmetic of one collective: traffic of a rank, time, and the formulas. bandwidth in B/s. */
typedef struct loom_collective_cost {
    double sent_per_rank, received_per_rank; /* bytes */
    double volume_factor;                    /* sent over buffer */
    double seconds;
} loom_collective_cost;
LOOM_API loom_status loom_plan_collective(loom_pattern pattern, double bytes, int ranks, double bandwidth, double latency_s,
                                          loom_collective_cost *cost);
LOOM_API loom_status loom_plan_collective_text(loom_pattern pattern, double bytes, int ranks, double bandwidth, double latency_s,
                                               char **text);
LOOM_API loom_status loom_plan_collective_json(loom_pattern pattern, double bytes, int ranks, double bandwidth, double latency_s, char **text);

LOOM_END
#endif
