/* The executor: walks a stage's actions, in order, on one thread.
 *
 * Messages never hold up compute: each buffer has a stream of its own, a receive is posted on it when the list says so, and the only waits are
 * for the one message that the next action reads, and for an outbox to be free again. Messages are matched by (kind, chunk, micro-batch), so that two
 * stages that are each other's next and previous neighbour (pp 2 with virtual stages) cannot take one for another. */
#include <rankloom/pp.h>
#include <rankloom/sizes.h>

#include "core/clock.h"
#include "core/try.h"
#include "schedule/plan.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct message_buffer {
    float *data;
    loom_stream *stream; /* what moves this buffer */
    loom_event *done;    /* the compute that last touched it */
    bool moving;         /* a message was started that compute has not waited for */
} message_buffer;

struct loom_pipeline {
    loom_mesh *mesh;
    loom_device *device;
    loom_stage_ops ops;
    loom_stream *compute;
    size_t boundary;
    loom_stage_plan plan;
    float *activations, *messages; /* what the buffers' data point into */
    message_buffer *buffer;        /* [plan.buffers] */
    loom_pipeline_time *time;        /* [plan.steps] */
    double wait_s;
};

/* --- opening ------------------------------------------------------------------------------------------------------------ */

static loom_status check_ops(const loom_stage_plan *plan, const loom_stage_ops *ops)
{
    if (!ops->forward)
        return loom_fail(LOOM_E_INVALID, "the stage has no forward");
    for (int i = 0; i < plan->steps; i++) {
        uint8_t kind = plan->step[i].action.kind;
        if ((kind == LOOM_BACKWARD_INPUT || kind == LOOM_BACKWARD_WEIGHT) && (!ops->backward_input || !ops->backward_weight))
            return loom_fail(LOOM_E_UNSUPPORTED, "the schedule splits backwards into input and weight halves, and this stage has no backward_input and "
                                                 "backward_weight; gpipe, 1f1b and interleaved need only backward");
        if (kind == LOOM_BACKWARD && !ops->backward)
            return loom_fail(LOOM_E_INVALID, "the schedule has whole backwards, and this stage has no backward");
    }
    return LOOM_OK;
}

static const char *stream_name(loom_buffer_use use)
{
    return use == LOOM_BUFFER_INPUT ? "recv forward" : use == LOOM_BUFFER_GRADIENT ? "recv backward" : "send";
}

static loom_status open_buffers(loom_pipeline *p)
{
    loom_device *device = p->device;
    size_t each = (size_t)loom_aligned((int64_t)p->boundary);
    int activations = loom_stage_plan_buffers(&p->plan, true), messages = loom_stage_plan_buffers(&p->plan, false);
    loom_status status;

    p->buffer = calloc((size_t)p->plan.buffers + 1, sizeof *p->buffer);
    p->time = calloc((size_t)p->plan.steps + 1, sizeof *p->time);
    if (!p->buffer || !p->time)
        return loom_fail(LOOM_E_MEMORY, "no memory for the pipeline's tables");
    LOOM_TRY(loom_alloc_for_comm(device, (size_t)activations * each * sizeof(float), LOOM_MEM_ACTIVATIONS, (void **)&p->activations));
    LOOM_TRY(loom_alloc_for_comm(device, (size_t)messages * each * sizeof(float), LOOM_MEM_COMM, (void **)&p->messages));
    for (int i = 0; i < p->plan.buffers; i++) {
        message_buffer *b = &p->buffer[i];
        float *pool = p->plan.use[i] == LOOM_BUFFER_INPUT ? p->activations : p->messages;
        int index = p->plan.use[i] == LOOM_BUFFER_INPUT ? --activations : --messages;
        b->data = pool + (size_t)index * each;
        LOOM_TRY(loom_stream_open(device, LOOM_STREAM_INLINE, stream_name(p->plan.use[i]), &b->stream));
        LOOM_TRY(loom_event_open(device, &b->done));
    }
    return LOOM_OK;

fail:
    return status;
}

/* The stages that this one exchanges messages with: those of the chunks before and after its own. */
static loom_status connect_neighbours(const loom_pipeline *p, const loom_schedule *schedule, int stage)
{
    int peers[LOOM_MAX_STAGES], count = 0, chunks = schedule->stages * schedule->chunks_per_stage;

    for (int c = 0; c + 1 < chunks; c++) {
        int a = schedule->stage_of_chunk[c], b = schedule->stage_of_chunk[c + 1], peer = a == stage ? b : b == stage ? a : stage;
        bool known = peer == stage;
        for (int i = 0; i < count; i++)
            known |= peers[i] == peer;
        if (!known)
            peers[count++] = peer;
    }
    return loom_comm_connect(p->mesh->axis[LOOM_AXIS_PP], peers, count);
}

/* Messages go from one of these into the other. */
static loom_status register_buffers(const loom_pipeline *p)
{
    loom_comm *pp = p->mesh->axis[LOOM_AXIS_PP];
    loom_status status = loom_comm_register(pp, p->activations, false);

    return status < 0 ? status : loom_comm_register(pp, p->messages, false);
}

loom_status loom_pipeline_open(loom_mesh *mesh, const loom_schedule *schedule, size_t boundary, const loom_stage_ops *ops, loom_stream *compute,
                               loom_pipeline **pipeline)
{
    int stage = loom_comm_rank(mesh->axis[LOOM_AXIS_PP]), stages = loom_comm_size(mesh->axis[LOOM_AXIS_PP]);
    loom_status status;
    loom_pipeline *p;

    if (schedule->stages != stages)
        return loom_fail(LOOM_E_INVALID, "the schedule is for %d stages and the mesh has pp %d", schedule->stages, stages);
    if (!(p = calloc(1, sizeof *p)))
        return loom_fail(LOOM_E_MEMORY, "no memory for the pipeline itself");
    p->mesh = mesh;
    p->device = loom_stream_device(compute);
    p->ops = *ops;
    p->compute = compute;
    p->boundary = boundary;
    LOOM_TRY(loom_stage_plan_make(schedule, stage, &p->plan));
    LOOM_TRY(check_ops(&p->plan, ops));
    LOOM_TRY(open_buffers(p));
    LOOM_TRY(connect_neighbours(p, schedule, stage));
    LOOM_TRY(register_buffers(p));
    *pipeline = p;
    return LOOM_OK;

fail:
    loom_pipeline_close(p);
    return status;
}

void loom_pipeline_close(loom_pipeline *p)
{
    if (!p)
        return;
    for (int i = 0; p->buffer && i < p->plan.buffers; i++) {
        loom_stream_close(p->buffer[i].stream);
        loom_event_close(p->buffer[i].done);
    }
    loom_free(p->device, p->activations);
    loom_free(p->device, p->messages);
    free(p->buffer);
    free(p->time);
    loom_stage_plan_free(&p->plan);
    free(p);
}

/* --- messages ----------------------------------------------------------------------------------------------------------- */

static uint64_t tag_of(const loom_action *a)
{
    bool forwards = a->kind == LOOM_SEND_F || a->kind == LOOM_RECV_F;

    return (uint64_t)forwards << 63 | (uint64_t)a->chunk << 32 | (uint64_t)a->micro_batch;
}

/* Compute that still reads or writes the buffer comes first; on CPU it is over by now. Of a receive most schedules would see to that without our wait: what
 * comes was made from something that this stage sent after it had last touched the buffer. But weight halves of backward touch it later than that. */
static loom_status start_message(loom_pipeline *p, const loom_stage_step *step)
{
    const loom_action *a = &step->action;
    loom_comm *pp = p->mesh->axis[LOOM_AXIS_PP];
    message_buffer *b = &p->buffer[step->message];
    loom_status status = loom_stream_wait_event(b->stream, b->done);

    if (status < 0)
        return status;
    b->moving = true;
    if (a->kind == LOOM_SEND_F || a->kind == LOOM_SEND_B)
        return loom_send(pp, b->data, p->boundary, LOOM_F32, a->peer, tag_of(a), b->stream);
    return loom_recv(pp, b->data, p->boundary, LOOM_F32, a->peer, tag_of(a), b->stream);
}

/* Compute goes on when the message that this buffer holds has come, or gone. On CPU that is waited for here. Once is enough: backward reads again what forward
 * has waited for, and buffers between two chunks of one stage hold no message. */
static loom_status wait_for_message(loom_pipeline *p, int buffer, double *wait_s)
{
    message_buffer *b = buffer < 0 ? NULL : &p->buffer[buffer];
    double begin = loom_now_s();
    loom_status status;

    if (!b || !b->moving)
        return LOOM_OK;
    b->moving = false;
    status = loom_stream_follow(p->compute, b->stream);
    *wait_s += loom_now_s() - begin;
    return status;
}

/* --- a step -------------------------------------------------------------------------------------------------------------- */

static float *data_of(const loom_pipeline *p, int buffer)
{
    return buffer < 0 ? NULL : p->buffer[buffer].data;
}

static loom_status call_stage(loom_pipeline *p, const loom_stage_step *step)
{
    const loom_action *a = &step->action;
    const loom_stage_ops *ops = &p->ops;
    const float *input = data_of(p, step->input), *d_output = data_of(p, step->d_output);

    switch (a->kind) {
    case LOOM_FORWARD:
        return ops->forward(ops->context, a->chunk, a->micro_batch, step->slot, input, data_of(p, step->output));
    case LOOM_BACKWARD:
        return ops->backward(ops->context, a->chunk, a->micro_batch, step->slot, input, d_output, data_of(p, step->d_input));
    case LOOM_BACKWARD_INPUT:
        return ops->backward_input(ops->context, a->chunk, a->micro_batch, step->slot, input, d_output, data_of(p, step->d_input));
    default:
        return ops->backward_weight(ops->context, a->chunk, a->micro_batch, step->slot, input);
    }
}

static loom_status compute(loom_pipeline *p, const loom_stage_step *step, double *wait_s)
{
    const int touched[] = {step->input, step->output, step->d_output, step->d_input};
    loom_status status;

    for (size_t i = 0; i < sizeof touched / sizeof *touched; i++)
        LOOM_TRY(wait_for_message(p, touched[i], wait_s));
    LOOM_TRY(call_stage(p, step));
    for (size_t i = 0; i < sizeof touched / sizeof *touched; i++)
        if (touched[i] >= 0)
            LOOM_TRY(loom_event_record(p->buffer[touched[i]].done, p->compute));
    return LOOM_OK;

fail:
    return status;
}

static bool is_message(uint8_t kind)
{
    return kind == LOOM_SEND_F || kind == LOOM_RECV_F || kind == LOOM_SEND_B || kind == LOOM_RECV_B;
}

static loom_status run_step(loom_pipeline *p, int i)
{
    const loom_stage_step *step = &p->plan.step[i];
    loom_pipeline_time *time = &p->time[i];
    char name[64];
    loom_status status;

    *time = (loom_pipeline_time){.action = step->action, .begin_s = loom_now_s()};
    status = is_message(step->action.kind) ? start_message(p, step) : compute(p, step, &time->wait_s);
    loom_device_progress(p->device);
    time->end_s = loom_now_s();
    p->wait_s += time->wait_s;
    if (status < 0)
        return loom_fail(status, "stage %d, %s: %s", loom_comm_rank(p->mesh->axis[LOOM_AXIS_PP]),
                         loom_pipeline_label(&step->action, name, sizeof name), loom_last_error());
    return LOOM_OK;
}

/* What was sent last may still be on its way. In a graph its end would see to that; enqueued, nothing else does. Booked on the last action. */
static loom_status drain(loom_pipeline *p)
{
    loom_pipeline_time *last = &p->time[p->plan.steps - 1];
    double wait_s = 0;
    loom_status status = LOOM_OK;

    for (int i = 0; i < p->plan.buffers && status >= 0; i++)
        status = wait_for_message(p, i, &wait_s);
    last->end_s = loom_now_s();
    last->wait_s += wait_s;
    p->wait_s += wait_s;
    return status;
}

loom_status loom_pipeline_enqueue(loom_pipeline *p)
{
    loom_status status;

    p->wait_s = 0;
    for (int i = 0; i < p->plan.steps; i++)
        LOOM_TRY(run_step(p, i));
    return p->plan.steps > 0 ? drain(p) : LOOM_OK;

fail:
    return status;
}

loom_status loom_pipeline_step(loom_pipeline *p)
{
    loom_status status = loom_pipeline_enqueue(p);

    return status < 0 ? status : loom_stream_wait(p->compute);
}

/* --- what it did ------------------------------------------------------------------------------------------------------- */

const loom_pipeline_time *loom_pipeline_times(const loom_pipeline *p, int *count)
{
    *count = p->plan.steps;
    return p->time;
}

double loom_pipeline_wait_s(const loom_pipeline *p)
{
    return p->wait_s;
}

char *loom_pipeline_label(const loom_action *action, char *text, size_t bytes)
{
    static const char *const name[LOOM_ACTION_KINDS] = {"F",      "B",      "I",       "W",       "send F", "recv F",
                                                        "send B", "recv B", "unshard", "reshard", "reduce"};

    snprintf(text, bytes, "%s c%d m%d", action->kind < LOOM_ACTION_KINDS ? name[action->kind] : "?", (int)action->chunk, (int)action->micro_batch);
    return text;
}
