/* Streams and events of a CUDA device. */
#include "cuda/device.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/try.h"
#include "cuda/module.h"
#include "device/queue.h"
#include "device/watch.h"

/* --- work that is left ------------------------------------------------------------------------------------------------------------ */

void loom_cuda_nap(int rounds)
{
    enum { YIELDS = 2000 };
    static const struct timespec short_sleep = {.tv_nsec = 50000};

    if (rounds < YIELDS)
        sched_yield();
    else
        nanosleep(&short_sleep, NULL);
}

void loom_cuda_run_out(loom_device *device, cudaStream_t stream, double begin_s)
{
    static const double PATIENCE_S = 10;
    loom_cuda_device *d = loom_cuda_of(device);
    double called_s = loom_now_s(), now_s = called_s;
    char reason[1024];

    snprintf(reason, sizeof reason, "%s", loom_last_error());
    for (int rounds = 0; !d->stuck && cudaStreamQuery(stream) == cudaErrorNotReady; rounds++) {
        if (rounds % 256 == 255)
            loom_watch_check(device, now_s - begin_s);
        loom_cuda_nap(rounds);
        now_s = loom_now_s();
        d->stuck = now_s - called_s >= PATIENCE_S;
    }
    loom_fail(LOOM_OK, "%s", reason);
}

/* --- streams ------------------------------------------------------------------------------------------------------------------ */

/* Who goes first where kernels compete for the device. Compute fills it whatever its place, so what others wait for comes before it: messages of the
 * pipeline, then collectives inside a layer; gradients travel under backward and may wait. */
static int steps_of(const char *name)
{
    static const struct {
        const char *name;
        int steps; /* above the least */
    } ranks[] = {{"recv", 3}, {"send", 3}, {"tp", 2}, {"cp", 2}, {"ep", 2}, {"dp", 1}};

    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        if (strncmp(name, ranks[i].name, strlen(ranks[i].name)) == 0)
            return ranks[i].steps;
    return 0;
}

static int priority_of(const loom_cuda_device *d, const char *name)
{
    int priority = d->priority_least - steps_of(name); /* a smaller number is more */

    return priority > d->priority_greatest ? priority : d->priority_greatest;
}

static loom_status open_native(loom_device *device, loom_cuda_stream *s)
{
    loom_cuda_device *d = loom_cuda_of(device);
    cudaStream_t stream;
    loom_status status;

    LOOM_TRY(loom_cuda_enter(device));
    LOOM_TRY(loom_cuda_check(device, cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority_of(d, s->base.name)),
                             "cudaStreamCreateWithPriority for stream \"%s\"", s->base.name));
    s->base.backend = stream;
    LOOM_TRY(loom_cuda_check(device, cudaEventCreateWithFlags(&s->mark, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    pthread_mutex_lock(&d->lock);
    s->next = d->streams;
    d->streams = s;
    pthread_mutex_unlock(&d->lock);
    return LOOM_OK;

fail:
    return status;
}

static void free_stream(loom_cuda_stream *s)
{
    if (s->base.backend)
        cudaStreamDestroy(s->base.backend);
    if (s->mark)
        cudaEventDestroy(s->mark);
    loom_timeline_drop(s->base.line);
    free(s);
}

loom_status loom_cuda_stream_open(loom_device *device, loom_stream_kind kind, const char *name, loom_stream **stream)
{
    loom_cuda_stream *s = calloc(1, sizeof *s);
    loom_timeline *line = calloc(1, sizeof *line);
    loom_status status;

    if (!s || !line) {
        free(s);
        free(line);
        return loom_fail(LOOM_E_MEMORY, "no memory for stream \"%s\"", name);
    }
    atomic_store(&line->users, 1);
    s->base.device = device;
    s->base.kind = kind; /* both are the same here: the device runs them */
    s->base.line = line;
    snprintf(s->base.name, sizeof s->base.name, "%s", name);
    s->computes = steps_of(name) == 0;
    status = open_native(device, s);
    if (status < 0) {
        free_stream(s);
        return status;
    }
    *stream = &s->base;
    return LOOM_OK;
}

void loom_cuda_stream_close(loom_stream *stream)
{
    loom_cuda_device *d = loom_cuda_of(stream->device);

    pthread_mutex_lock(&d->lock);
    for (loom_cuda_stream **link = &d->streams; *link; link = &(*link)->next)
        if (&(*link)->base == stream) {
            *link = (*link)->next;
            break;
        }
    pthread_mutex_unlock(&d->lock);
    if (loom_cuda_enter(stream->device) >= 0)
        loom_cuda_run_out(stream->device, loom_cuda_stream_of(stream), loom_now_s());
    free_stream((loom_cuda_stream *)stream);
}

/* --- work ------------------------------------------------------------------------------------------------------------------------ */

/* What stands before every enqueueing call: after a failure nothing more runs. */
static loom_status begin(loom_stream *stream)
{
    return loom_stream_failed(stream) ? loom_stream_failure(stream) : loom_cuda_enter(stream->device);
}

typedef struct host_work {
    loom_work_fn *work;
    void *argument;
    loom_timeline *line;
} host_work;

/* On a thread of the driver, between two pieces of the stream's work. It may call nothing of CUDA. */
static void CUDART_CB run_work(void *context)
{
    host_work *w = context;
    loom_status status;

    if (atomic_load_explicit(&w->line->failed, memory_order_acquire) >= 0 && (status = w->work(w->argument)) < 0)
        loom_timeline_fail(w->line, status);
    loom_timeline_drop(w->line);
    free(w);
}

loom_status loom_cuda_stream_run(loom_stream *stream, loom_work_fn *work, void *argument)
{
    host_work *w;
    loom_status status = begin(stream);

    if (status < 0)
        return status;
    w = malloc(sizeof *w);
    if (!w)
        return loom_fail(LOOM_E_MEMORY, "stream \"%s\": no memory to queue work", stream->name);
    *w = (host_work){work, argument, loom_timeline_hold(stream->line)};
    status = loom_cuda_check(stream->device, cudaLaunchHostFunc(loom_cuda_stream_of(stream), run_work, w), "cudaLaunchHostFunc on stream \"%s\"",
                             stream->name);
    if (status < 0) {
        loom_timeline_drop(w->line);
        free(w);
    }
    return status;
}

loom_status loom_cuda_stream_fill_zero(loom_stream *stream, void *memory, size_t bytes)
{
    loom_status status = begin(stream);

    if (status < 0 || !bytes)
        return status;
    return loom_cuda_check(stream->device, cudaMemsetAsync(memory, 0, bytes, loom_cuda_stream_of(stream)),
                           "cudaMemsetAsync of %zu bytes on stream \"%s\"", bytes, stream->name);
}

/* --- waiting ------------------------------------------------------------------------------------------------------------------------ */

loom_status loom_cuda_settle(loom_device *device, cudaStream_t stream, const char *name)
{
    double begin_s = loom_now_s();
    cudaError_t code;

    for (int rounds = 0; (code = cudaStreamQuery(stream)) == cudaErrorNotReady; rounds++) {
        loom_status status = rounds % 256 == 255 ? loom_watch_check(device, loom_now_s() - begin_s) : LOOM_OK;
        if (status < 0) {
            loom_cuda_run_out(device, stream, begin_s);
            return status;
        }
        loom_cuda_nap(rounds);
    }
    return loom_cuda_check(device, code, "work of stream \"%s\"", name);
}

/* The host's own wait for an axis' stream is exposed, too. */
static loom_status settle_measured(loom_stream *stream)
{
    const loom_cuda_stream *s = (const loom_cuda_stream *)stream;
    double begin_s = loom_now_s();
    loom_status status = loom_cuda_settle(stream->device, loom_cuda_stream_of(stream), stream->name);

    if (!s->computes && s->account && s->account->exposed_s)
        *s->account->exposed_s += loom_now_s() - begin_s;
    loom_cuda_collect_waits(stream->device);
    return status < 0 ? status : loom_watch_check(stream->device, 0); /* a call that went wrong ends, too */
}

loom_status loom_cuda_stream_wait(loom_stream *stream)
{
    loom_status status = loom_cuda_enter(stream->device);

    if (status < 0 || (status = settle_measured(stream)) < 0)
        return status;
    return loom_stream_failure(stream);
}

loom_status loom_cuda_stream_query(loom_stream *stream)
{
    loom_status status = begin(stream);
    cudaError_t code;

    if (status < 0)
        return status;
    code = cudaStreamQuery(loom_cuda_stream_of(stream));
    if (code == cudaErrorNotReady)
        return LOOM_PENDING;
    if ((status = loom_cuda_check(stream->device, code, "work of stream \"%s\"", stream->name)) < 0)
        return status;
    return loom_stream_failure(stream);
}

/* --- copies ------------------------------------------------------------------------------------------------------------------------- */

/* Memory of the host that is not pinned: loom_alloc_host() gives what is. */
static loom_status is_pageable(const loom_device *device, const void *memory, bool *pageable)
{
    struct cudaPointerAttributes attributes;
    loom_status status = loom_cuda_check(device, cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");

    *pageable = status >= 0 && attributes.type == cudaMemoryTypeUnregistered;
    return status;
}

/* CUDA may copy to and from pageable memory in the caller, when the stream gets there, and would wait for a peer that is gone without a deadline: so the wait is ours.
 * Nothing of the kind while a graph is captured, when nothing runs. */
static loom_status wait_before_pageable(loom_stream *stream, const void *to, const void *from)
{
    bool pageable;
    loom_status status;

    if (loom_cuda_capture_number(stream->device))
        return LOOM_OK;
    LOOM_TRY(is_pageable(stream->device, to, &pageable));
    if (!pageable)
        LOOM_TRY(is_pageable(stream->device, from, &pageable));
    return pageable ? settle_measured(stream) : LOOM_OK;

fail:
    return status;
}

loom_status loom_cuda_stream_copy(loom_stream *stream, void *to, const void *from, size_t bytes)
{
    loom_status status = begin(stream);

    if (status < 0 || !bytes || (status = wait_before_pageable(stream, to, from)) < 0)
        return status;
    return loom_cuda_check(stream->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, loom_cuda_stream_of(stream)),
                           "cudaMemcpyAsync of %zu bytes on stream \"%s\"", bytes, stream->name);
}

/* --- events -------------------------------------------------------------------------------------------------------------------------- */

loom_status loom_cuda_event_open(loom_device *device, loom_event **event)
{
    loom_cuda_event *e = calloc(1, sizeof *e);
    loom_status status;

    if (!e)
        return loom_fail(LOOM_E_MEMORY, "no memory for an event");
    e->base.device = device;
    LOOM_TRY(loom_cuda_enter(device));
    LOOM_TRY(loom_cuda_check(device, cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    *event = &e->base;
    return LOOM_OK;

fail:
    free(e);
    return status;
}

void loom_cuda_event_close(loom_event *event)
{
    if (loom_cuda_enter(event->device) >= 0)
        cudaEventDestroy(((loom_cuda_event *)event)->event);
    loom_timeline_drop(event->line);
    free(event);
}

loom_status loom_cuda_event_record(loom_event *event, loom_stream *stream)
{
    loom_status status = loom_cuda_enter(stream->device);

    if (status < 0)
        return status;
    loom_timeline_drop(event->line);
    event->line = loom_timeline_hold(stream->line);
    ((loom_cuda_event *)event)->account = ((loom_cuda_stream *)stream)->account;
    ((loom_cuda_event *)event)->capture = loom_cuda_capture_number(stream->device);
    return loom_cuda_check(stream->device, cudaEventRecord(((loom_cuda_event *)event)->event, loom_cuda_stream_of(stream)),
                           "cudaEventRecord on stream \"%s\"", stream->name);
}

static loom_status wait_for(loom_stream *stream, cudaEvent_t event, loom_cuda_account *account)
{
    loom_cuda_wait *wait;
    loom_status status;

    LOOM_TRY(loom_cuda_wait_begin(stream, account, &wait));
    LOOM_TRY(loom_cuda_check(stream->device, cudaStreamWaitEvent(loom_cuda_stream_of(stream), event, 0), "cudaStreamWaitEvent on stream \"%s\"",
                             stream->name));
    return loom_cuda_wait_end(stream, wait);

fail:
    return status;
}

/* Never recorded counts as reached, and so does what was recorded on the other side of a capture (graph.c). */
loom_status loom_cuda_stream_wait_event(loom_stream *stream, loom_event *event)
{
    const loom_cuda_event *e = (const loom_cuda_event *)event;
    loom_status status = begin(stream);

    if (status < 0 || !event->line || e->capture != loom_cuda_capture_number(stream->device))
        return status;
    return wait_for(stream, e->event, e->account);
}

/* The mark of `other` serves: whoever waits for it later records it anew. */
loom_status loom_cuda_stream_follow(loom_stream *stream, loom_stream *other)
{
    cudaEvent_t mark = ((loom_cuda_stream *)other)->mark;
    loom_status status = begin(stream);

    if (status < 0 || stream == other)
        return status;
    LOOM_TRY(loom_stream_failure(other));
    LOOM_TRY(loom_cuda_check(stream->device, cudaEventRecord(mark, loom_cuda_stream_of(other)), "cudaEventRecord on stream \"%s\"", other->name));
    return wait_for(stream, mark, ((loom_cuda_stream *)other)->account);

fail:
    return status;
}

loom_status loom_cuda_event_query(const loom_event *event)
{
    loom_status status = loom_cuda_enter(event->device);
    cudaError_t code;

    if (status < 0 || !event->line || (status = loom_timeline_failure(event->line)) < 0)
        return status;
    if (((const loom_cuda_event *)event)->capture)
        return loom_fail(LOOM_E_INVALID, "an event that was recorded in a graph says nothing of its replays; ask the stream of the launch");
    code = cudaEventQuery(((const loom_cuda_event *)event)->event);
    return code == cudaErrorNotReady ? LOOM_PENDING : loom_cuda_check(event->device, code, "an event");
}
