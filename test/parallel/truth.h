/* What the independent float64 implementation says of a fixture model, and how far a float32 run may be from it. */
#ifndef TEST_PARALLEL_TRUTH_H
#define TEST_PARALLEL_TRUTH_H

#include <rankloom/rankloom.h>

#include "run.h"

enum { TRUTH_STEPS = 20, TRUTH_BATCH = 8, TRUTH_SEQ = 32 };

/* Limits of the fixtures' README: about five times the measured float32 distance, below what any typical mistake does. */
#define TRUTH_LOSS 3e-6          /* absolute */
#define TRUTH_GRAD_NORM 8e-6     /* relative */
#define TRUTH_GRADIENT 5e-6      /* relative L2 of a tensor */
#define TRUTH_LOGITS 1e-5        /* absolute */

typedef struct truth {
    char folder[1024];
    loom_model model;
    double loss[TRUTH_STEPS], grad_norm[TRUTH_STEPS];
    double first_grad_norm;
    loom_safetensors *gradients, *expected;
} truth;

/* Aborts the test when a file is not as it should be. `folder` is relative to the test data. */
void truth_open(const char *name, truth *t);
void truth_close(truth *t);

/* The run that the fixtures' curves are of, from their weights; without degrees yet. The caller frees. */
gpt_run *truth_run(const truth *t);
/* Gives the run a layout: the degrees and kinds that `l` names, else 1 and the usual; its sequence and batch stay, in micro-batches of 2, padded where it has to be. */
void truth_use_layout(gpt_run *run, loom_layout l);

/* Tensor `name` as f32, `count` elements; the test fails when it is not there in that size. The caller frees. */
float *truth_tensor(const loom_safetensors *file, const char *name, int64_t count);

#endif
