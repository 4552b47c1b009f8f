/* Choosing slots and buffers by walking the actions once, as the step will. What holds of a plan:
 *   (1) a buffer has one owner at a time: it is acquired by a receive or a producer on this stage and released by its last reader;
 *   (2) outboxes go round in a ring per chunk and direction, so that a message of one never waits for a message of another;
 *   (3) at the end nothing is held: every activation met its backward, every received message its reader. */
#include "schedule/plan.h"

#include "core/try.h"

#include <assert.h>
#include <stdlib.h>

enum { FORWARDS, BACKWARDS, DIRECTIONS };

typedef struct planner {
    const loom_schedule *schedule;
    int stage, room;
    loom_stage_plan *plan;
    int *position;  /* [chunks] of a chunk among those of its stage */
    uint8_t *busy;  /* [plan->buffers] */
    int capacity;   /* of busy and plan->use */
    int *input;     /* [positions][micro_batches] buffer, -1: none. So are the next two */
    int *gradient;
    int *outgoing[DIRECTIONS];
    int *slot;      /* [positions][micro_batches] */
    uint8_t *taken; /* [positions][micro_batches] slots in use */
    int *ring;      /* [positions][DIRECTIONS][room] buffers, -1: not yet made */
    int *turn;      /* [positions][DIRECTIONS] */
} planner;

static int chunks(const planner *p)
{
    return p->schedule->stages * p->schedule->chunks_per_stage;
}

static bool is_here(const planner *p, int chunk)
{
    return p->schedule->stage_of_chunk[chunk] == p->stage;
}

static int at(const planner *p, int chunk, int micro_batch)
{
    return p->position[chunk] * p->schedule->micro_batches + micro_batch;
}

static loom_status new_buffer(planner *p, loom_buffer_use use, int *buffer)
{
    if (p->plan->buffers == p->capacity) {
        int capacity = p->capacity ? 2 * p->capacity : 16;
        uint8_t *uses = realloc(p->plan->use, (size_t)capacity);
        if (uses)
            p->plan->use = uses;
        uint8_t *busy = realloc(p->busy, (size_t)capacity);
        if (busy)
            p->busy = busy;
        if (!uses || !busy)
            return loom_fail(LOOM_E_MEMORY, "no memory for the plan of stage %d", p->stage);
        p->capacity = capacity;
    }
    *buffer = p->plan->buffers++;
    p->plan->use[*buffer] = (uint8_t)use;
    p->busy[*buffer] = 1;
    return LOOM_OK;
}

/* (1) The lowest free buffer of this use, or one more. */
static loom_status acquire(planner *p, loom_buffer_use use, int *buffer)
{
    for (int i = 0; i < p->plan->buffers; i++)
        if (p->plan->use[i] == use && !p->busy[i]) {
            p->busy[i] = 1;
            *buffer = i;
            return LOOM_OK;
        }
    return new_buffer(p, use, buffer);
}

static void release(planner *p, int *buffer)
{
    if (*buffer >= 0) {
        assert(p->busy[*buffer]);
        p->busy[*buffer] = 0;
    }
    *buffer = -1;
}

/* (2) */
static loom_status next_outbox(planner *p, int chunk, int direction, int *buffer)
{
    int channel = p->position[chunk] * DIRECTIONS + direction;
    int *place = &p->ring[channel * p->room + p->turn[channel]];

    p->turn[channel] = (p->turn[channel] + 1) % p->room;
    if (*place < 0) {
        loom_status status = new_buffer(p, LOOM_BUFFER_OUTBOX, place);
        if (status < 0)
            return status;
    }
    *buffer = *place;
    return LOOM_OK;
}

static int take_slot(planner *p, int chunk, int micro_batch)
{
    uint8_t *taken = &p->taken[at(p, chunk, 0)];
    int slot = 0;

    while (taken[slot])
        slot++; /* there are as many as micro-batches */
    taken[slot] = 1;
    return p->slot[at(p, chunk, micro_batch)] = slot;
}

/* The micro-batch needs neither slot nor input any more. */
static void forget(planner *p, int chunk, int micro_batch)
{
    release(p, &p->input[at(p, chunk, micro_batch)]);
    p->taken[at(p, chunk, p->slot[at(p, chunk, micro_batch)])] = 0;
}

/* Where a forward or backward puts what chunk `to` will read: straight into that chunk's own buffer if it is on this stage, else in an outbox. */
static loom_status destination(planner *p, const loom_action *action, int to, int *inbox, loom_buffer_use use, int direction, int *buffer)
{
    loom_status status;

    if (to < 0 || to >= chunks(p)) {
        *buffer = -1;
        return LOOM_OK;
    }
    if (is_here(p, to)) {
        int *place = &inbox[at(p, to, action->micro_batch)];
        status = acquire(p, use, place);
        *buffer = *place;
        return status;
    }
    status = next_outbox(p, action->chunk, direction, buffer);
    p->outgoing[direction][at(p, action->chunk, action->micro_batch)] = *buffer;
    return status;
}

static loom_status plan_forward(planner *p, loom_stage_step *step)
{
    const loom_action *a = &step->action;

    step->slot = take_slot(p, a->chunk, a->micro_batch);
    step->input = p->input[at(p, a->chunk, a->micro_batch)];
    assert((step->input >= 0) == (a->chunk > 0));
    return destination(p, a, a->chunk + 1, p->input, LOOM_BUFFER_INPUT, FORWARDS, &step->output);
}

static loom_status plan_backward(planner *p, loom_stage_step *step)
{
    const loom_action *a = &step->action;
    int *gradient = &p->gradient[at(p, a->chunk, a->micro_batch)];
    loom_status status = LOOM_OK;

    step->slot = p->slot[at(p, a->chunk, a->micro_batch)];
    step->input = p->input[at(p, a->chunk, a->micro_batch)];
    if (a->kind != LOOM_BACKWARD_WEIGHT) {
        step->d_output = *gradient;
        assert((step->d_output >= 0) == (a->chunk + 1 < chunks(p)));
        status = destination(p, a, a->chunk - 1, p->gradient, LOOM_BUFFER_GRADIENT, BACKWARDS, &step->d_input);
        release(p, gradient);
    }
    if (a->kind != LOOM_BACKWARD_INPUT)
        forget(p, a->chunk, a->micro_batch);
    return status;
}

/* A receive takes its buffer when it is posted, not when the message is there. */
static loom_status plan_receive(planner *p, loom_stage_step *step)
{
    const loom_action *a = &step->action;
    bool forwards = a->kind == LOOM_RECV_F;
    int *place = forwards ? &p->input[at(p, a->chunk + 1, a->micro_batch)] : &p->gradient[at(p, a->chunk - 1, a->micro_batch)];
    loom_status status = acquire(p, forwards ? LOOM_BUFFER_INPUT : LOOM_BUFFER_GRADIENT, place);

    step->message = *place;
    return status;
}

static loom_status plan_step(planner *p, loom_stage_step *step)
{
    const loom_action *a = &step->action;

    switch (a->kind) {
    case LOOM_FORWARD:
        return plan_forward(p, step);
    case LOOM_BACKWARD:
    case LOOM_BACKWARD_INPUT:
    case LOOM_BACKWARD_WEIGHT:
        return plan_backward(p, step);
    case LOOM_SEND_F:
    case LOOM_SEND_B:
        step->message = p->outgoing[a->kind == LOOM_SEND_F ? FORWARDS : BACKWARDS][at(p, a->chunk, a->micro_batch)];
        assert(step->message >= 0);
        return LOOM_OK;
    case LOOM_RECV_F:
    case LOOM_RECV_B:
        return plan_receive(p, step);
    default:
        return loom_fail(LOOM_E_UNSUPPORTED,
                         "the schedule of stage %d gathers or reduces shards (action kind %d); the executor runs forwards, backwards, sends and "
                         "receives, so use a schedule for zero 0 or 1",
                         p->stage, a->kind);
    }
}

static int *filled(size_t count, int value)
{
    int *at_ = malloc(count * sizeof *at_);

    for (size_t i = 0; at_ && i < count; i++)
        at_[i] = value;
    return at_;
}

static loom_status planner_open(planner *p)
{
    size_t positions = (size_t)p->schedule->chunks_per_stage;
    size_t cells = positions * (size_t)p->schedule->micro_batches;

    p->position = filled((size_t)chunks(p), -1);
    p->input = filled(cells, -1);
    p->gradient = filled(cells, -1);
    p->outgoing[FORWARDS] = filled(cells, -1);
    p->outgoing[BACKWARDS] = filled(cells, -1);
    p->slot = filled(cells, -1);
    p->taken = calloc(cells, 1);
    p->ring = filled(positions * DIRECTIONS * (size_t)p->room, -1);
    p->turn = filled(positions * DIRECTIONS, 0);
    p->plan->step = calloc((size_t)p->plan->steps + 1, sizeof *p->plan->step);
    if (!p->position || !p->input || !p->gradient || !p->outgoing[FORWARDS] || !p->outgoing[BACKWARDS] || !p->slot || !p->taken || !p->ring || !p->turn ||
        !p->plan->step)
        return loom_fail(LOOM_E_MEMORY, "no memory for the plan of stage %d", p->stage);
    for (int chunk = 0, position = 0; chunk < chunks(p); chunk++)
        if (is_here(p, chunk))
            p->position[chunk] = position++;
    return LOOM_OK;
}

static void planner_close(planner *p)
{
    free(p->position);
    free(p->busy);
    free(p->input);
    free(p->gradient);
    free(p->outgoing[FORWARDS]);
    free(p->outgoing[BACKWARDS]);
    free(p->slot);
    free(p->taken);
    free(p->ring);
    free(p->turn);
}

/* (3) */
static void check_nothing_held(const planner *p)
{
    for (int i = 0; i < p->plan->buffers; i++)
        assert(p->plan->use[i] == LOOM_BUFFER_OUTBOX || !p->busy[i]);
    for (int i = 0; i < p->schedule->chunks_per_stage * p->schedule->micro_batches; i++)
        assert(!p->taken[i]);
}

/* The fewest outbox buffers of a channel, from two so that one can be filled while one is under way, with which this schedule is proved to run. */
static loom_status outbox_room(const loom_schedule *schedule, int *room)
{
    loom_status status = loom_schedule_verify(schedule, -1, NULL);

    if (status < 0)
        return status;
    for (*room = 2; *room < schedule->micro_batches; *room *= 2)
        if (loom_schedule_verify(schedule, *room, NULL) == LOOM_OK)
            return LOOM_OK;
    return LOOM_OK; /* room for every message of a channel is no limit at all */
}

static loom_status walk(planner *p)
{
    const loom_stage_actions *actions = &p->schedule->stage[p->stage];

    for (int i = 0; i < actions->count; i++) {
        loom_stage_step *step = &p->plan->step[i];
        *step = (loom_stage_step){actions->at[i], .slot = -1, .input = -1, .output = -1, .d_output = -1, .d_input = -1, .message = -1};
        loom_status status = plan_step(p, step);
        if (status < 0)
            return status;
    }
    check_nothing_held(p);
    return LOOM_OK;
}

loom_status loom_stage_plan_make(const loom_schedule *schedule, int stage, loom_stage_plan *plan)
{
    planner p = {.schedule = schedule, .stage = stage, .plan = plan};
    loom_status status;

    *plan = (loom_stage_plan){.steps = schedule->stage[stage].count};
    if (!schedule->has_comm)
        return loom_fail(LOOM_E_INVALID, "the schedule has no sends and receives; loom_schedule_add_comm() puts them in");
    LOOM_TRY(outbox_room(schedule, &p.room));
    LOOM_TRY(planner_open(&p));
    LOOM_TRY(walk(&p));
    planner_close(&p);
    return LOOM_OK;

fail:
    planner_close(&p);
    loom_stage_plan_free(plan);
    return status;
}

int loom_stage_plan_buffers(const loom_stage_plan *plan, bool inputs)
{
    int count = 0;

    for (int i = 0; i < plan->buffers; i++)
        count += (plan->use[i] == LOOM_BUFFER_INPUT) == inputs;
    return count;
}

loom_status loom_schedule_buffers(const loom_schedule *schedule, int stage, int *inputs, int *messages)
{
    loom_stage_plan plan;
    loom_status status = loom_stage_plan_make(schedule, stage, &plan);

    if (status < 0)
        return status;
    *inputs = loom_stage_plan_buffers(&plan, true);
    *messages = loom_stage_plan_buffers(&plan, false);
    loom_stage_plan_free(&plan);
    return LOOM_OK;
}

typedef bool is_pass_fn(uint8_t kind);

static bool is_forward(uint8_t kind)
{
    return kind == LOOM_FORWARD;
}

static bool begins_backward(uint8_t kind)
{
    return kind == LOOM_BACKWARD || kind == LOOM_BACKWARD_INPUT;
}

static bool ends_backward(uint8_t kind)
{
    return kind == LOOM_BACKWARD || kind == LOOM_BACKWARD_WEIGHT;
}

/* Most micro-batches of the chunk from the pass that begins something to the one that ends it, both included. */
static int most_open(const loom_schedule *schedule, int chunk, is_pass_fn *begins, is_pass_fn *ends)
{
    const loom_stage_actions *actions = &schedule->stage[schedule->stage_of_chunk[chunk]];
    int held = 0, most = 0;

    for (int i = 0; i < actions->count; i++)
        if (actions->at[i].chunk == chunk) {
            held += begins(actions->at[i].kind);
            most = held > most ? held : most;
            held -= ends(actions->at[i].kind);
        }
    return most;
}

int loom_schedule_slots(const loom_schedule *schedule, int chunk)
{
    return most_open(schedule, chunk, is_forward, ends_backward);
}

int loom_schedule_open_backwards(const loom_schedule *schedule, int chunk)
{
    return most_open(schedule, chunk, begins_backward, ends_backward);
}

void loom_stage_plan_free(loom_stage_plan *plan)
{
    free(plan->step);
    free(plan->use);
    *plan = (loom_stage_plan){0};
}
