/* In-order queues of tasks. An inline stream is driven by its owner's calls, a worker stream by its thread (worker.c). */
#include "device/host_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "device/backend.h"
#include "device/queue.h"
#include "device/wait.h"
#include "device/worker.h"

/* --- the queue ----------------------------------------------------------------------------------------------------- */

loom_timeline *loom_timeline_hold(loom_timeline *line)
{
    atomic_fetch_add(&line->users, 1);
    return line;
}

void loom_timeline_drop(loom_timeline *line)
{
    if (line && atomic_fetch_sub(&line->users, 1) == 1)
        free(line);
}

bool loom_stream_failed(const loom_stream *stream)
{
    return atomic_load_explicit(&stream->line->failed, memory_order_acquire) < 0;
}

void loom_timeline_fail(loom_timeline *line, loom_status status)
{
    if (atomic_load_explicit(&line->failed, memory_order_acquire) < 0)
        return;
    snprintf(line->message, sizeof line->message, "%s", loom_last_error());
    atomic_store(&line->failed, (int32_t)status);
}

loom_status loom_timeline_failure(const loom_timeline *line)
{
    int32_t failed = atomic_load_explicit(&line->failed, memory_order_acquire);

    return failed < 0 ? loom_fail((loom_status)failed, "%s", line->message) : LOOM_OK;
}

loom_status loom_stream_failure(const loom_stream *stream)
{
    return loom_timeline_failure(stream->line);
}

void loom_queue_push(loom_stream *stream, loom_task *task)
{
    task->next = NULL;
    if (stream->tail)
        stream->tail->next = task;
    else
        stream->head = task;
    stream->tail = task;
}

loom_task *loom_queue_pop(loom_stream *stream)
{
    loom_task *task = stream->head;

    stream->head = task->next;
    if (!stream->head)
        stream->tail = NULL;
    return task;
}

void loom_stream_retire(loom_stream *stream, loom_task *task)
{
    loom_timeline *line = stream->line;

    if (task->status < 0)
        loom_timeline_fail(line, task->status);
    task->release(task); /* before it counts as completed: what it uses may be freed after that */
    atomic_fetch_add(&line->completed, 1);
    loom_device_ring(stream->device); /* another thread of ours may wait for it */
}

/* --- inline streams --------------------------------------------------------------------------------------------------- */

/* After a failure nothing that is queued runs. */
static void abandon_queue(loom_stream *stream, loom_status status)
{
    while (stream->head) {
        loom_task *task = loom_queue_pop(stream);
        task->status = status;
        loom_stream_retire(stream, task);
    }
}

static void retire_head(loom_stream *stream)
{
    loom_task *task = loom_queue_pop(stream);
    loom_status status = task->status;

    stream->over_ns = task->over_ns;
    loom_stream_retire(stream, task);
    if (status < 0)
        abandon_queue(stream, status);
}

static bool step_head(loom_stream *stream)
{
    loom_step step;

    stream->running = true;
    step = stream->head->step(stream->head);
    stream->running = false;
    if (step == LOOM_STEP_OVER)
        retire_head(stream);
    return step != LOOM_STEP_WAIT;
}

bool loom_device_drive(loom_device *device)
{
    bool moved = false;

    for (loom_stream *stream = device->streams; stream; stream = stream->next)
        if (stream->head && !stream->running)
            moved |= step_head(stream);
    return moved;
}

/* Progress that nobody waits for. Still the caller's time, so it is charged to what it was spent on. */
void loom_host_progress(loom_device *device)
{
    for (loom_stream *stream = device->streams; stream; stream = stream->next) {
        double *exposed_s, start_s;

        if (!stream->head || stream->running)
            continue;
        exposed_s = stream->head->exposed_s;
        start_s = loom_now_s();
        step_head(stream);
        if (exposed_s)
            *exposed_s += loom_now_s() - start_s;
    }
}

static void check_head(loom_stream *stream, double stalled_s)
{
    loom_task *head = stream->head;
    loom_status status;

    if (!head || !head->check || stream->running)
        return;
    status = head->check(head, stalled_s);
    if (status >= 0)
        return;
    head->status = status;
    retire_head(stream);
}

/* Streams that somebody waits for through an event: its head is what holds the waiter up. */
static void check_wanted(loom_device *device, double stalled_s)
{
    for (loom_stream *stream = device->streams; stream; stream = stream->next)
        if (atomic_exchange(&stream->line->wanted, 0))
            check_head(stream, stalled_s);
}

/* --- waiting for a stream ------------------------------------------------------------------------------------------------ */

/* Until all that was enqueued before is over; the time is charged to the task that held the caller up. */
typedef struct stream_wait {
    loom_stream *stream;
    uint64_t ticket;
    double *charged_s; /* of the task at the head */
    uint64_t since_ns;
} stream_wait;

static double *own_exposed(loom_stream *stream)
{
    if (stream->kind == LOOM_STREAM_WORKER)
        return loom_worker_exposed(stream);
    return stream->head ? stream->head->exposed_s : NULL;
}

/* Who a wait for this stream's head is charged to. A head that waits for an event is held up by the head of that event's stream. */
static double *exposed_of_head(loom_stream *stream)
{
    bool is_inline = stream->kind == LOOM_STREAM_INLINE;
    const loom_timeline *awaited = is_inline && stream->head ? loom_event_awaited(stream->head) : NULL;

    for (loom_stream *other = awaited ? stream->device->streams : NULL; other; other = other->next)
        if (other->line == awaited)
            return own_exposed(other);
    return own_exposed(stream);
}

/* The task at the head changed, or the wait ends: what passed since then was the old one's. */
static void charge(stream_wait *wait)
{
    uint64_t over_ns = wait->stream->kind == LOOM_STREAM_INLINE ? wait->stream->over_ns : 0;
    uint64_t now_ns = over_ns > wait->since_ns ? over_ns : loom_now_ns();

    if (wait->charged_s)
        *wait->charged_s += (double)(now_ns - wait->since_ns) * 1e-9;
    wait->charged_s = exposed_of_head(wait->stream);
    wait->since_ns = now_ns;
}

static bool wait_is_over(void *context)
{
    stream_wait *wait = context;

    return atomic_load(&wait->stream->line->completed) >= wait->ticket;
}

static bool wait_drive(void *context)
{
    stream_wait *wait = context;
    bool moved = loom_device_drive(wait->stream->device);

    if (exposed_of_head(wait->stream) != wait->charged_s)
        charge(wait);
    return moved;
}

static void wait_check(void *context, double stalled_s)
{
    stream_wait *wait = context;

    if (wait->stream->kind == LOOM_STREAM_INLINE) /* a worker looks after its own head */
        check_head(wait->stream, stalled_s);
    check_wanted(wait->stream->device, stalled_s);
}

static void drain(loom_stream *stream)
{
    stream_wait wait = {.stream = stream, .ticket = atomic_load(&stream->line->submitted)};
    loom_waiter waiter = {wait_is_over, wait_drive, wait_check, &wait};

    if (wait_is_over(&wait) || stream->running) {
        loom_host_progress(stream->device);
        return;
    }
    wait.charged_s = exposed_of_head(stream);
    wait.since_ns = loom_now_ns();
    loom_wait(stream->device, &waiter);
    if (wait.charged_s)
        charge(&wait);
}

/* --- the rows of the back end's table ------------------------------------------------------------------------------------- */

loom_status loom_host_stream_open(loom_device *device, loom_stream_kind kind, const char *name, loom_stream **stream)
{
    loom_stream *s = calloc(1, sizeof *s);
    loom_timeline *line = aligned_alloc(64, (sizeof *line + 63) / 64 * 64);

    if (!s || !line) {
        free(s);
        free(line);
        return loom_fail(LOOM_E_MEMORY, "no memory for stream \"%s\"", name);
    }
    memset(line, 0, sizeof *line);
    atomic_store(&line->users, 1);
    s->device = device;
    s->kind = kind;
    s->line = line;
    snprintf(s->name, sizeof s->name, "%s", name);
    if (kind == LOOM_STREAM_WORKER) {
        loom_status status = loom_worker_start(s);
        if (status < 0) {
            loom_timeline_drop(line);
            free(s);
            return status;
        }
    } else {
        s->next = device->streams;
        device->streams = s;
    }
    *stream = s;
    return LOOM_OK;
}

void loom_host_stream_close(loom_stream *stream)
{
    if (stream->kind == LOOM_STREAM_WORKER) {
        loom_worker_stop(stream);
    } else {
        loom_stream **link = &stream->device->streams;
        while (*link != stream)
            link = &(*link)->next;
        *link = stream->next;
    }
    if (stream->head && !loom_stream_failed(stream))
        loom_fail(LOOM_E_PEER, "stream \"%s\" was closed before this was done", stream->name);
    abandon_queue(stream, loom_stream_failed(stream) ? (loom_status)atomic_load(&stream->line->failed) : LOOM_E_PEER);
    loom_timeline_drop(stream->line);
    free(stream);
}

loom_status loom_stream_submit(loom_stream *stream, loom_task *task)
{
    if (loom_stream_failed(stream)) {
        task->status = (loom_status)atomic_load(&stream->line->failed);
        task->release(task);
        return loom_stream_failure(stream);
    }
    atomic_fetch_add(&stream->line->submitted, 1);
    if (stream->kind == LOOM_STREAM_WORKER) {
        loom_worker_push(stream, task);
    } else {
        loom_queue_push(stream, task);
        if (stream->head == task && !stream->running)
            step_head(stream); /* once: whatever takes long is left to those who wait, and charged to their wait */
    }
    return LOOM_OK;
}

loom_status loom_host_stream_wait(loom_stream *stream)
{
    if (stream->kind == LOOM_STREAM_INLINE || !pthread_equal(pthread_self(), stream->thread)) /* else: work that runs on it asks */
        drain(stream);
    return loom_stream_failure(stream);
}

loom_status loom_stream_sync_for_compute(loom_stream *stream)
{
    return loom_host_stream_wait(stream);
}

loom_status loom_host_stream_query(loom_stream *stream)
{
    if (stream->kind == LOOM_STREAM_INLINE)
        loom_host_progress(stream->device);
    if (loom_stream_failed(stream))
        return loom_stream_failure(stream);
    return atomic_load(&stream->line->completed) >= atomic_load(&stream->line->submitted) ? LOOM_OK : LOOM_PENDING;
}

/* --- work of the caller ------------------------------------------------------------------------------------------------------ */

typedef enum host_work { WORK_RUN, WORK_COPY, WORK_ZERO } host_work;

typedef struct work_task {
    loom_task task;
    host_work kind;
    loom_work_fn *work;
    void *to; /* or the argument of work */
    const void *from;
    size_t bytes;
} work_task;

static loom_status do_work(const work_task *work)
{
    switch (work->kind) {
    case WORK_RUN:
        return work->work(work->to);
    case WORK_COPY:
        memmove(work->to, work->from, work->bytes);
        return LOOM_OK;
    case WORK_ZERO:
        memset(work->to, 0, work->bytes);
        return LOOM_OK;
    }
    return LOOM_OK;
}

static loom_step step_work(loom_task *task)
{
    task->status = do_work((const work_task *)task);
    return LOOM_STEP_OVER;
}

static void release_work(loom_task *task)
{
    free(task);
}

static loom_status enqueue_work(loom_stream *stream, work_task work)
{
    work_task *queued = malloc(sizeof *queued);

    if (!queued)
        return loom_fail(LOOM_E_MEMORY, "stream \"%s\": no memory to queue work", stream->name);
    *queued = work;
    queued->task = (loom_task){.step = step_work, .release = release_work};
    return loom_stream_submit(stream, &queued->task);
}

loom_status loom_host_stream_run(loom_stream *stream, loom_work_fn *work, void *argument)
{
    return enqueue_work(stream, (work_task){.kind = WORK_RUN, .work = work, .to = argument});
}

loom_status loom_host_stream_copy(loom_stream *stream, void *to, const void *from, size_t bytes)
{
    if (loom_device_get_kind(stream->device) == LOOM_DRY || !bytes)
        return LOOM_OK;
    return enqueue_work(stream, (work_task){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes});
}

loom_status loom_host_stream_fill_zero(loom_stream *stream, void *memory, size_t bytes)
{
    if (loom_device_get_kind(stream->device) == LOOM_DRY || !bytes)
        return LOOM_OK;
    return enqueue_work(stream, (work_task){.kind = WORK_ZERO, .to = memory, .bytes = bytes});
}

/* Compute runs in the thread that calls it, so what has to come first is waited for here. */
loom_status loom_host_stream_follow(loom_stream *stream, loom_stream *other)
{
    (void)stream;
    return loom_host_stream_wait(other);
}
