/* A stage's plan: its actions with slots and message buffers already chosen. Pure data, from the schedule alone, so that a step makes no
 * decision and the memory is known before anything runs. */
#ifndef LOOM_SCHEDULE_PLAN_H
#define LOOM_SCHEDULE_PLAN_H

#include <rankloom/schedule.h>

/* Every buffer holds one boundary. */
typedef enum loom_buffer_use {
    LOOM_BUFFER_INPUT,    /* a chunk's input, from its arrival to the end of its backward */
    LOOM_BUFFER_GRADIENT, /* the gradient of a chunk's output, until its backward has read it */
    LOOM_BUFFER_OUTBOX,   /* written for another stage, until the message is taken */
} loom_buffer_use;

/* Buffers are indices, -1: none. What one action reads and writes. */
typedef struct loom_stage_step {
    loom_action action;
    int slot;              /* of the micro-batch on its chunk; -1 for messages */
    int input, output;     /* of a forward; a backward has its input too */
    int d_output, d_input; /* of a backward */
    int message;           /* what a send or a receive moves */
} loom_stage_step;

typedef struct loom_stage_plan {
    loom_stage_step *step;
    int steps;
    uint8_t *use; /* [buffers] loom_buffer_use */
    int buffers;
} loom_stage_plan;

/* Proves the schedule first. LOOM_E_INVALID when it does not run or has no sends and receives. */
loom_status loom_stage_plan_make(const loom_schedule *schedule, int stage, loom_stage_plan *plan);
/* How many buffers hold inputs, or messages: gradients that arrive and outboxes. */
int loom_stage_plan_buffers(const loom_stage_plan *plan, bool inputs);
void loom_stage_plan_free(loom_stage_plan *plan);

#endif
