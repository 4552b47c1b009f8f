/* A stage's plan: its actions with slots and message buffers already chosen. Pure data, from the schedule alone, so that a step makes no
 * decision and the memory is known before anything runs. */
#ifndef LOOM_PP_PLAN_H
#define LOOM_PP_PLAN_H

#include <rankloom/schedule.h>

/* Every buffer holds one boundary. */
typedef enum loom_pp_buffer_use {
    LOOM_PP_INPUT,    /* a chunk's input, from its arrival to the end of its backward */
    LOOM_PP_GRADIENT, /* the gradient of a chunk's output, until its backward has read it */
    LOOM_PP_OUTBOX,   /* written for another stage, until the message is taken */
} loom_pp_buffer_use;

/* Buffers are indices, -1: none. What one action reads and writes. */
typedef struct loom_pp_step {
    loom_action action;
    int slot;              /* of the micro-batch on its chunk; -1 for messages */
    int input, output;     /* of a forward; a backward has its input too */
    int d_output, d_input; /* of a backward */
    int message;           /* what a send or a receive moves */
} loom_pp_step;

typedef struct loom_pp_plan {
    loom_pp_step *step;
    int steps;
    uint8_t *use; /* [buffers] loom_pp_buffer_use */
    int buffers;
} loom_pp_plan;

/* `room`: outbox buffers of one chunk and direction, that is messages under way before a producer waits. The schedule must have been proved. */
loom_status loom_pp_plan_make(const loom_schedule *schedule, int stage, int room, loom_pp_plan *plan);
void loom_pp_plan_free(loom_pp_plan *plan);

#endif
