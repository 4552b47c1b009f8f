/* Interleaved 1F1B (Narayanan et al. 2021): a stage holds several chunks and takes micro-batches through them in groups of `stages`, so a bubble is
 * as short as a chunk. `stages` divides the micro-batches (a rule of the layout). */
#include "schedule/schedule.h"

/* The k-th forward of a stage: within a group, chunk after chunk, and through each chunk the micro-batches of the group. */
static int row_of(const loom_schedule *s, int k)
{
    return k / s->stages % s->chunks_per_stage;
}

static int micro_batch_of(const loom_schedule *s, int k)
{
    return k / (s->stages * s->chunks_per_stage) * s->stages + k % s->stages;
}

static void forward(loom_schedule *s, int stage, int k)
{
    loom_emit(s, stage, LOOM_FORWARD, row_of(s, k) * s->stages + stage, micro_batch_of(s, k));
}

static void backward(loom_schedule *s, int stage, int k)
{
    int row = s->chunks_per_stage - 1 - row_of(s, k);

    loom_emit(s, stage, LOOM_BACKWARD, row * s->stages + stage, micro_batch_of(s, k));
}

void loom_emit_interleaved(loom_schedule *s, int stage)
{
    int total = s->micro_batches * s->chunks_per_stage, forwards = 0;
    /* The first backward of a stage comes back after the rest of its group, all chunks but the last, and down and up the stages below. */
    int warm_up = 2 * (s->stages - 1 - stage) + (s->chunks_per_stage - 1) * s->stages;

    if (s->chunks_per_stage == 1) {
        loom_emit_1f1b(s, stage);
        return;
    }
    while (forwards < warm_up && forwards < total)
        forward(s, stage, forwards++);
    for (int k = 0; k < total; k++) {
        if (forwards < total)
            forward(s, stage, forwards++);
        backward(s, stage, k);
    }
}
