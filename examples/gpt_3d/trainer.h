/* One training run on this rank: everything opened in order, a step, and everything closed in reverse. */
#ifndef GPT_3D_TRAINER_H
#define GPT_3D_TRAINER_H

#include "replay.h"
#include "run.h"
#include "stage.h"

/* What a step knows of every token. */
enum { GPT_TOKENS, GPT_TARGETS, GPT_ROWS, GPT_DOCUMENTS, GPT_IDS }; /* ROWS: of position tables */

typedef struct gpt_trainer {
    const gpt_run *run;
    loom_device *device;
    loom_comm *world; /* borrowed */
    loom_mesh *mesh;
    loom_kernels *kernels;
    loom_stream *compute;
    loom_tp *tp;
    loom_schedule *schedule;
    gpt_stage *stage;
    loom_dp *dp;
    loom_pipeline *pipeline;
    loom_monitor *monitor;
    gpt_replay replay;
    gpt_data data;
    int32_t *local[GPT_IDS]; /* of one step on this rank: of every sequence the part that lies here; in memory of the host */
    int32_t *ids[GPT_IDS];   /* the same where kernels can read it: on CPU the very same */
    int32_t *whole[GPT_IDS]; /* of one whole sequence */
    int32_t *places;         /* of this rank's tokens in their sequence, padding included */
    int64_t samples;         /* sequences of one step on this rank */
    int64_t local_seq;       /* this rank's part of each, padding included */
    int64_t counted;         /* tokens whose loss counts, in the global batch at hand */
} gpt_trainer;

typedef struct gpt_step {
    double loss; /* mean over the global batch's counted tokens */
    double grad_norm, lr, seconds;
    double breakdown[LOOM_TIME_KINDS];
    int64_t tokens; /* of the global batch */
    loom_ep_load load; /* of a model with experts */
} gpt_step;

/* Collective over `world`, whose device is the run's. `run` must outlive the trainer. A dry device (see device.h) rehearses: data and weights are not read. */
loom_status gpt_trainer_open(const gpt_run *run, loom_comm *world, gpt_trainer **trainer);
void gpt_trainer_close(gpt_trainer *trainer); /* accepts NULL */

/* Step `step` from 0. The parts are there for tests: load, then forward and backward, then update. */
loom_status gpt_trainer_step(gpt_trainer *trainer, int64_t step, gpt_step *result);
loom_status gpt_trainer_load_batch(gpt_trainer *trainer, int64_t step);
loom_status gpt_trainer_forward_backward(gpt_trainer *trainer);

/* Tokens of the global batch at hand whose loss counts: the divisor of its gradient. At least 1. */
int64_t gpt_trainer_tokens(const gpt_trainer *trainer);

#endif
