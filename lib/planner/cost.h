/* The time model inside the planner: what one GEMM, collective, layer, pipeline and reduction costs. docs/planner.md has the formulas. */
#ifndef LOOM_PLANNER_COST_H
#define LOOM_PLANNER_COST_H

#include <rankloom/planner.h>

#include "planner/constants.h"

/* --- what a prediction stands on ------------------------------------------------------------------------------------------ */

/* A machine room as the cost model sees it: equal devices, in domains of scale-up links, on nodes. */
typedef struct loom_machine {
    loom_constant dev[LOOM_DEV_COUNT];
    int ranks;
    int domain; /* neighbouring ranks that scale-up links join */
    int node;   /* neighbouring ranks on one host */
    const loom_topology *measured; /* products and collectives in f32 that were timed on these ranks; NULL: none were. Borrowed from the request */
    double crowd;                  /* ranks of a host for each of its cores, at least 1. Rates are those of a rank while all are at work; while some wait,
                                      the others run faster */
} loom_machine;

/* What selective recompute repeats in the backward pass. */
enum {
    LOOM_REPEAT_CORE = 1,    /* attention core */
    LOOM_REPEAT_NORM = 2,    /* norms */
    LOOM_REPEAT_ACT = 4,     /* the activation function of MLP or experts */
    LOOM_REPEAT_MLP = 8,     /* whole MLP or shared expert */
    LOOM_REPEAT_LATENT = 16, /* up-projections of latent attention */
    LOOM_REPEAT_HALF = 32    /* every second matrix product */
};

typedef enum loom_pipeline {
    LOOM_PIPE_GPIPE,
    LOOM_PIPE_1F1B,
    LOOM_PIPE_INTERLEAVED,
    LOOM_PIPE_ZB_H1,
    LOOM_PIPE_ZB_H2,
    LOOM_PIPE_ZB_V,
    LOOM_PIPE_DUAL,
} loom_pipeline;

/* Ranks that talk: how many, how many of them share a scale-up domain, how many domains they touch. */
typedef struct loom_group {
    int n, inside, domains;
} loom_group;

/* Where the groups of a layout lie on a machine. */
typedef struct loom_places {
    loom_group tp, cp, pp, etp, ep;
    loom_group gradient, gradient_outer; /* ranks that share a copy of dense state; copies of it */
    loom_group expert_gradient;
    loom_group ends; /* first and last stage */
} loom_places;

/* The degrees of a layout, in short: what the search walks over. */
typedef struct loom_degrees {
    int tp, cp, dp, pp, vpp, ep, etp, zero;
    int micro_batch;
    int shard_group; /* ranks that one copy of the sharded state is spread over; divides dp * cp */
    bool sequence_parallel;
    loom_pipeline pipeline;
    loom_recompute recompute;
    loom_cp_kind cp_kind;
    loom_axis order[4]; /* of ranks, fastest first */
    loom_places places; /* filled by loom_degrees_place() */
} loom_degrees;

/* Groups of constants that are likely off together (doubts.c). */
typedef enum loom_doubt {
    LOOM_DOUBT_PACE, /* the device as a whole: clocks, memory, launches */
    LOOM_DOUBT_GEMM,
    LOOM_DOUBT_ATTENTION,
    LOOM_DOUBT_ELEMENTWISE,
    LOOM_DOUBT_LAUNCH,
    LOOM_DOUBT_GAP, /* between kernels */
    LOOM_DOUBT_LINK,
    LOOM_DOUBT_NET,
    LOOM_DOUBT_TP, /* what is not hidden of it */
    LOOM_DOUBT_EP,
    LOOM_DOUBT_SHARDED, /* the rate at which sharded weights travel */
    LOOM_DOUBT_LATE,    /* what of them sticks out even so */
    LOOM_DOUBT_REDUCTION,
    LOOM_DOUBT_HOP,
    LOOM_DOUBT_OPTIMIZER,
    LOOM_DOUBT_JITTER,
    LOOM_DOUBT_FIXED,
    LOOM_DOUBTS,
} loom_doubt;

/* What measured steps have taught (calibrate.c). */
enum { LOOM_MOST_MEASURED = 16 };
typedef struct loom_calibration {
    int n;
    double moved[LOOM_DOUBTS];                   /* logarithm of the factor that each doubt turned out to be */
    double covariance[LOOM_DOUBTS][LOOM_DOUBTS]; /* of what the doubts still are; without measured steps each stands by itself with its spread */
    struct {
        loom_degrees degrees;
        double own; /* logarithm of measured over predicted that is left to the layout itself */
    } at[LOOM_MOST_MEASURED];
} loom_calibration;

/* What is trained, on what, with what. */
typedef struct loom_job {
    loom_model model;
    loom_machine machine;
    loom_constant soft[LOOM_SOFT_COUNT];
    int64_t seq, global_batch;
    bool own;                     /* trained by this engine as it is (f32) */
    bool forecast;                /* and its memory is known to the byte */
    int bits;                     /* of GEMM inputs: 32, 16, 8 or 4 */
    double element;               /* bytes of an activation: 2, or 4 when training in f32 */
    loom_calibration calibration; /* by steps that were measured; the constants are moved already */
    int repeat;                   /* LOOM_REPEAT_*: what selective recompute means here */
    double imbalance;             /* busiest expert rank over the mean, >= 1 */
} loom_job;

/* Works out `places` from the degrees and their order (places.c). */
void loom_degrees_place(loom_degrees *degrees, const loom_machine *machine);

static inline double loom_dev(const loom_machine *machine, loom_device_constant which)
{
    return machine->dev[which].value;
}

/* Micro-batches of one dp rank in one step. */
static inline int64_t loom_micro_batches_of(const loom_job *job, const loom_degrees *degrees)
{
    return job->global_batch / ((int64_t)degrees->micro_batch * degrees->dp);
}

static inline double loom_soft(const loom_job *job, loom_software_constant which)
{
    return job->soft[which].value;
}

/* --- kernels (kernels.c) ----------------------------------------------------------------------------------------------------- */
typedef enum loom_gemm_role { LOOM_GEMM_FORWARD, LOOM_GEMM_INPUT, LOOM_GEMM_WEIGHT } loom_gemm_role;

/* Seconds of a product m x k by k x n; grouped: of `groups` of them, m rows each. bits: of the inputs (job->bits, or 16 where the framework
 * keeps 16). Output 16-bit; a weight gradient is accumulated in fp32. */
double loom_gemm_seconds(const loom_job *job, double m, double n, double k, int bits, loom_gemm_role role);
double loom_grouped_seconds(const loom_job *job, double groups, double m, double n, double k, int bits, loom_gemm_role role);
/* Seconds to move `bytes` through memory in `kernels` kernels. */
double loom_stream_seconds(const loom_machine *machine, double bytes, double kernels);

/* --- communication (links.c) -------------------------------------------------------------------------------------------------- */
/* `bytes`: the full buffer (gathered result, input of a reduce-scatter, what is reduced, one rank's send buffer of an exchange). */
double loom_gather_seconds(const loom_machine *machine, loom_group group, double bytes); /* all-gather or reduce-scatter */
double loom_reduce_seconds(const loom_machine *machine, loom_group group, double bytes); /* all-reduce */
/* once: copies that each piece of the buffer has in it, when only one of them crosses to each further domain; else 0. */
double loom_exchange_seconds(const loom_machine *machine, loom_group group, double bytes, double once);
double loom_hop_seconds(const loom_machine *machine, loom_group group, double bytes); /* point to point, to the next of the group */

/* --- layers (layer.c) ------------------------------------------------------------------------------------------------------------ */
/* One pass of one micro-batch through something. */
typedef struct loom_pass {
    double part[LOOM_TIME_PARTS];
    double weight;    /* of the sum: weight gradients, which may wait */
    double hidden_dp; /* traffic of sharded weights and gradients beside the sum, under it */
} loom_pass;

typedef struct loom_pass_pair {
    loom_pass forward, backward; /* backward holds what is recomputed */
} loom_pass_pair;

typedef enum loom_layer_kind { LOOM_LAYER_DENSE, LOOM_LAYER_EXPERTS, LOOM_LAYER_KINDS } loom_layer_kind;

double loom_pass_seconds(const loom_pass *pass);
void loom_pass_add(loom_pass *sum, const loom_pass *pass, double times);
loom_pass_pair loom_layer_cost(const loom_job *job, const loom_degrees *degrees, loom_layer_kind kind);
/* A layer with experts can cost no less, whatever ep and etp are. */
loom_pass_pair loom_layer_cost_bound(const loom_job *job, const loom_degrees *degrees);
loom_pass_pair loom_embedding_cost(const loom_job *job, const loom_degrees *degrees);
loom_pass_pair loom_head_cost(const loom_job *job, const loom_degrees *degrees); /* final norm, head, loss */

/* --- pipeline (pipeline.c) ---------------------------------------------------------------------------------------------------------- */
typedef struct loom_pipe {
    int stages, chunks; /* chunks: of one stage */
    int64_t micro_batches;
    loom_pipeline kind;
    const double *forward, *backward, *weight; /* [stages] of one micro-batch through a whole stage */
    double hop;                                /* exposed seconds of a message to the next stage */
} loom_pipe;
double loom_pipe_seconds(const loom_pipe *pipe);
/* What is left of a bubble where ranks share cores: those that work take over those of the ones that wait. */
double loom_crowded_bubble(const loom_machine *machine, int stages, double bubble);

/* --- parameters of a rank (weights.c) ------------------------------------------------------------------------------------------------ */
typedef struct loom_weights {
    double dense;   /* replicated over dp x cp */
    double experts; /* replicated over the expert data group only */
} loom_weights;
loom_weights loom_layer_weights(const loom_model *model, const loom_degrees *degrees, loom_layer_kind kind);
double loom_embedding_weights(const loom_model *model, const loom_degrees *degrees);
double loom_head_weights(const loom_model *model, const loom_degrees *degrees); /* matrix and final norm, tied or not */

/* --- reduction of gradients, gathers of parameters (reduction.c) ------------------------------------------------------------- */
typedef struct loom_reduction {
    double exposed;
    double hidden; /* under compute */
} loom_reduction;
/* ZeRO-2 and 3: what one micro-batch adds to the passes of something with these weights. ZeRO-2 scatters its gradient; ZeRO-3 gathers
 * weights for the forward, again for the backward, and scatters. Transfers run one layer ahead of compute. */
void loom_add_sharding(const loom_job *job, const loom_degrees *degrees, const loom_weights *weights, loom_pass_pair *pair);
/* Once a step, after the pipeline. forward, backward: seconds of one micro-batch through the stage, under which things can hide. */
loom_reduction loom_reduction_cost(const loom_job *job, const loom_degrees *degrees, const loom_weights *weights, double layers,
                                   double forward, double backward);
double loom_optimizer_seconds(const loom_job *job, const loom_degrees *degrees, const loom_weights *weights);

/* fmax() and fmin() are calls into libm, for the sake of NaNs that nothing here is. */
static inline double loom_larger(double a, double b)
{
    return a > b ? a : b;
}

static inline double loom_smaller(double a, double b)
{
    return a < b ? a : b;
}

static inline double loom_gib(double bytes)
{
    return bytes / 0x1p30;
}

/* --- memory of a rank (memory.c) --------------------------------------------------------------------------------------------- */
typedef struct loom_memory {
    double part[LOOM_MEMORY_PARTS];
    double allocated, total;
    double parameters;
    int layers;
    double in_flight; /* micro-batches whose activations the stage holds, a chunk counts 1/vpp */
} loom_memory;
/* What a stage holds: layers of each kind, and the ends of the model. */
typedef struct loom_stage_load {
    int layers[LOOM_LAYER_KINDS];
    bool first, last;
} loom_stage_load;
/* What does not depend on the split: bytes of one layer of each kind. Made once for a layout's degrees. */
typedef struct loom_memory_table {
    double kept[LOOM_LAYER_KINDS], transient[LOOM_LAYER_KINDS]; /* activations of one micro-batch */
    loom_weights weights[LOOM_LAYER_KINDS];
    double embedding, head; /* parameters */
    double embedding_kept;  /* bytes of one micro-batch on the first stage */
    double logits;          /* elements */
    double norm_kept;       /* bytes that the final norm keeps */
} loom_memory_table;
loom_memory_table loom_memory_table_of(const loom_job *job, const loom_degrees *degrees);
loom_memory loom_memory_of(const loom_job *job, const loom_degrees *degrees, const loom_memory_table *table, const loom_stage_load *load,
                           double in_flight);
double loom_memory_total(const loom_job *job, const loom_degrees *degrees, const loom_memory_table *table, const loom_stage_load *load,
                         double in_flight);
/* Bytes of a stage with n >= 1 layers of one kind and f micro-batches in flight: whole + n layer + f (n kept + ends). */
typedef struct loom_memory_line {
    double whole, layer, kept, ends;
} loom_memory_line;
loom_memory_line loom_memory_line_of(const loom_job *job, const loom_degrees *degrees, const loom_memory_table *table, loom_layer_kind kind,
                                     bool first, bool last);
loom_memory loom_stage_memory_of(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers, int stage);
/* Micro-batches in flight at a stage in whole-stage units. */
double loom_in_flight(const loom_degrees *degrees, int stage, int64_t micro_batches);
int loom_degrees_stage_of_chunk(const loom_degrees *degrees, int chunk);
loom_layer_kind loom_layer_kind_of(const loom_model *model, int64_t layer);

/* --- the step (step.c) ------------------------------------------------------------------------------------------------------- */
typedef struct loom_step_cost {
    double seconds;
    double part[LOOM_TIME_PARTS]; /* sum to `seconds` */
    int busiest;                  /* stage */
    int64_t micro_batches;
    double hidden_dp;
    double pass_dp; /* of part[LOOM_TIME_DP]: inside the passes of the busiest stage */
} loom_step_cost;
/* `chunk_layers` [pp * vpp] in model order. `degrees` are placed. Not calibrated. */
void loom_step_predict(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers, loom_step_cost *cost);

#endif
