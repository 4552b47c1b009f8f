/* Inside the schedule module: making and filling a schedule. */
#ifndef LOOM_SCHEDULE_SCHEDULE_H
#define LOOM_SCHEDULE_SCHEDULE_H

#include <rankloom/schedule.h>

#include <assert.h>

enum { LOOM_MOST_SCHEDULE_BYTES = 64 << 20 }; /* of a file */

/* An empty schedule with room for `capacity` actions a stage; chunks sit as `kind` places them. */
loom_status loom_schedule_new(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches, int capacity, loom_schedule **schedule);
/* Appends, growing the list. */
loom_status loom_stage_append(loom_stage_actions *list, loom_action action);

/* Appends a compute action to a list that loom_schedule_new() made large enough. */
static inline void loom_emit(loom_schedule *schedule, int stage, loom_action_kind kind, int chunk, int micro_batch)
{
    loom_stage_actions *list = &schedule->stage[stage];

    assert(list->count < list->capacity);
    list->at[list->count++] = (loom_action){(uint8_t)kind, -1, chunk, micro_batch};
}

/* The generators: each fills the compute order of one stage. */
void loom_emit_gpipe(loom_schedule *schedule, int stage);
void loom_emit_1f1b(loom_schedule *schedule, int stage);
void loom_emit_interleaved(loom_schedule *schedule, int stage);
void loom_emit_zb_h1(loom_schedule *schedule, int stage);
void loom_emit_zb_v(loom_schedule *schedule, int stage);

/* Passes of a micro-batch through a chunk, as an index of tables. */
typedef enum loom_pass { LOOM_PASS_FORWARD, LOOM_PASS_INPUT, LOOM_PASS_WEIGHT, LOOM_PASSES } loom_pass;
static inline bool loom_is_compute(const loom_action *action)
{
    return action->kind <= LOOM_BACKWARD_WEIGHT;
}
static inline bool loom_is_send(const loom_action *action)
{
    return action->kind == LOOM_SEND_F || action->kind == LOOM_SEND_B;
}
static inline bool loom_is_recv(const loom_action *action)
{
    return action->kind == LOOM_RECV_F || action->kind == LOOM_RECV_B;
}

static inline int loom_chunk_count(const loom_schedule *schedule)
{
    return schedule->stages * schedule->chunks_per_stage;
}

/* A message is named by its direction (0 activation, 1 gradient), the chunk that made it and the micro-batch: its place in a table of
 * loom_message_count() entries. */
static inline size_t loom_message(const loom_schedule *schedule, int direction, int chunk, int micro_batch)
{
    return ((size_t)direction * (size_t)loom_chunk_count(schedule) + (size_t)chunk) * (size_t)schedule->micro_batches + (size_t)micro_batch;
}
static inline size_t loom_message_count(const loom_schedule *schedule)
{
    return 2 * (size_t)loom_chunk_count(schedule) * (size_t)schedule->micro_batches;
}
/* The message that a compute action waits for or makes (ask loom_action_source() or loom_action_target() first), or a send or recv moves. */
size_t loom_message_in(const loom_schedule *schedule, const loom_action *action);
size_t loom_message_out(const loom_schedule *schedule, const loom_action *action);

#endif
