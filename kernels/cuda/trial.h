/* Which of two makers of the same thing is faster on this device: the first calls go to each in turn, with events around them, and once the device has passed
 * those the faster one has all the rest. Nobody waits. Ranks may decide differently, and so may two runs: whoever wants the same bits in every run names a maker. */
#ifndef LOOM_KERNELS_CUDA_TRIAL_H
#define LOOM_KERNELS_CUDA_TRIAL_H

#include "kernels/cuda/gpu.h"

enum { LOOM_TRIAL_CALLS = 4 };

typedef enum loom_trial_maker { LOOM_TRIAL_UNDECIDED, LOOM_TRIAL_FIRST, LOOM_TRIAL_SECOND } loom_trial_maker;

/* All zero: nothing tried yet. With a verdict given nothing is tried. */
typedef struct loom_trial {
    void *begin[LOOM_TRIAL_CALLS], *end[LOOM_TRIAL_CALLS]; /* events; FIRST and SECOND in turn */
    int calls;
    loom_trial_maker verdict;
} loom_trial;

/* Who makes the call at hand, which loom_trial_over() has to follow. Undecided and with no calls left to try, or where a graph is captured, which times nothing: FIRST. */
loom_trial_maker loom_trial_next(loom_trial *t, const loom_gpu *gpu);
void loom_trial_over(loom_trial *t, const loom_gpu *gpu);
void loom_trial_free(loom_trial *t);

#endif
