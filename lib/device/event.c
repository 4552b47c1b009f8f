/* Points in streams, and streams that wait for them. */
#include <stdlib.h>

#include "device/backend.h"
#include "device/host_stream.h"
#include "device/queue.h"

loom_status loom_host_event_open(loom_device *device, loom_event **event)
{
    loom_event *e = calloc(1, sizeof *e);

    if (!e)
        return loom_fail(LOOM_E_MEMORY, "no memory for an event");
    e->device = device;
    *event = e;
    return LOOM_OK;
}

void loom_host_event_close(loom_event *event)
{
    loom_timeline_drop(event->line);
    free(event);
}

loom_status loom_host_event_record(loom_event *event, loom_stream *stream)
{
    loom_timeline_drop(event->line);
    event->line = loom_timeline_hold(stream->line);
    event->ticket = atomic_load(&stream->line->submitted);
    return LOOM_OK;
}

/* LOOM_OK, LOOM_PENDING, or the failure of the stream that should have got there. */
static loom_status reached(const loom_timeline *line, uint64_t ticket)
{
    loom_status failure = loom_timeline_failure(line);

    if (failure < 0)
        return failure;
    return atomic_load(&line->completed) >= ticket ? LOOM_OK : LOOM_PENDING;
}

loom_status loom_host_event_query(const loom_event *event)
{
    loom_device_progress(event->device);
    return event->line ? reached(event->line, event->ticket) : LOOM_OK;
}

typedef struct event_task {
    loom_task task;
    loom_timeline *line;
    uint64_t ticket;
} event_task;

static loom_step step_event(loom_task *task)
{
    event_task *wait = (event_task *)task;

    task->status = reached(wait->line, wait->ticket);
    return task->status == LOOM_PENDING ? LOOM_STEP_WAIT : LOOM_STEP_OVER;
}

/* We have no deadline of our own: what holds us up is the other stream's head, and its deadline counts from now on. */
static loom_status check_event(loom_task *task, double stalled_s)
{
    (void)stalled_s;
    atomic_store(&((event_task *)task)->line->wanted, 1);
    return LOOM_OK;
}

static void release_event(loom_task *task)
{
    loom_timeline_drop(((event_task *)task)->line);
    free(task);
}

const loom_timeline *loom_event_awaited(const loom_task *task)
{
    return task->step == step_event ? ((const event_task *)task)->line : NULL;
}

loom_status loom_host_stream_wait_event(loom_stream *stream, loom_event *event)
{
    event_task *wait;

    if (!event->line || event->line == stream->line || reached(event->line, event->ticket) == LOOM_OK)
        return LOOM_OK;
    wait = malloc(sizeof *wait);
    if (!wait)
        return loom_fail(LOOM_E_MEMORY, "stream \"%s\": no memory to wait for an event", stream->name);
    *wait =
        (event_task){{.step = step_event, .check = check_event, .release = release_event}, loom_timeline_hold(event->line), event->ticket};
    return loom_stream_submit(stream, &wait->task);
}
