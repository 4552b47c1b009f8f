/* A rehearsal under way: what every pass costs, which ranks move together, and the timelines. */
#ifndef LOOM_PLANNER_REHEARSE_H
#define LOOM_PLANNER_REHEARSE_H

#include <rankloom/simulate.h>

#include "planner/job.h"
#include "planner/split.h"

enum { LOOM_EXPOSED_TP, LOOM_EXPOSED_CP, LOOM_EXPOSED_EP, LOOM_EXPOSED_DP, LOOM_EXPOSED };

/* One pass of one chunk, undisturbed, microseconds. */
typedef struct loom_chunk_pass {
    double compute_us, exposed_us[LOOM_EXPOSED];
} loom_chunk_pass;

typedef struct loom_stage_tail {
    double reduction_s, optimizer_s;
} loom_stage_tail;

typedef struct loom_stage_factor {
    double compute, link; /* the worst of the ranks that move together */
} loom_stage_factor;

/* The whole rehearsal. A block is a set of dp indices whose ranks move in lockstep; each runs one pipeline. */
typedef struct loom_rehearsing {
    const loom_rehearsal_request *request;
    const loom_layout *layout;
    loom_job job;
    loom_degrees degrees;
    int chunk_layers[LOOM_MAX_STAGES];
    loom_layer_table layers;
    double scale; /* what measured steps make of every time: 1 without any */
    loom_schedule *schedule;
    loom_chunk_pass *forward, *backward; /* [chunks] */
    double *weight_us;                   /* [chunks] of the backward: what W takes */
    loom_stage_tail *tail;               /* [pp] */
    double hop_us, tied_s;
    int block;                           /* dp indices of one */
    loom_stage_factor *factor;           /* [dp / block][pp] */
} loom_rehearsing;

loom_status loom_rehearsing_open(const loom_rehearsal_request *request, loom_rehearsing *r);
void loom_rehearsing_close(loom_rehearsing *r);
int loom_rehearsing_blocks(const loom_rehearsing *r);
enum { LOOM_UNDISTURBED = -1 }; /* as a block: a pipeline on which nothing is injected */
/* `messages`: they take time. */
loom_status loom_rehearsing_run(loom_rehearsing *r, int block, bool messages, loom_timeline *timeline);
/* What an action of a block's timeline spent: computing, and exposed communication by axis. */
void loom_rehearsing_action(const loom_rehearsing *r, int block, int stage, int index, const loom_timeline *timeline, double *compute_us, double exposed_us[LOOM_EXPOSED]);
/* The critical path of a timeline back from the end of `stage`, in words. */
loom_status loom_critical_path(const loom_rehearsing *r, int block, const loom_timeline *timeline, int stage, char **text);

/* The run of a request that has one, of steps that take `step_s`. */
loom_run_request loom_rehearsed_run(const loom_rehearsal_request *request, double step_s);

/* What comes after the pipelines. `stages` [pp]: as they are on the pipelines that make them end last. */
typedef struct loom_step_end {
    double reduced_s, optimizer_s, other_s, step_s;
    int stage; /* whose gradients are whole last */
} loom_step_end;
loom_step_end loom_rehearsing_end(const loom_rehearsing *r, const loom_rehearsed_stage *stages, bool disturbed);

#endif
