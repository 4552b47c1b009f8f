/* A thread that runs one stream's tasks in order. */
#include "device/worker.h"

#include <signal.h>
#include <string.h>

#include "device/backend.h"
#include "device/queue.h"
#include "device/wait.h"

static loom_task *head_of(loom_stream *stream)
{
    loom_task *head;

    pthread_mutex_lock(&stream->lock);
    head = stream->head;
    pthread_mutex_unlock(&stream->lock);
    return head;
}

static void retire_head(loom_stream *stream)
{
    loom_task *task;

    pthread_mutex_lock(&stream->lock);
    task = loom_queue_pop(stream);
    pthread_mutex_unlock(&stream->lock);
    loom_stream_retire(stream, task);
}

static bool stopped(void *context)
{
    loom_stream *stream = context;
    bool closing;

    pthread_mutex_lock(&stream->lock);
    closing = stream->closing;
    pthread_mutex_unlock(&stream->lock);
    return closing;
}

static bool drive(void *context)
{
    loom_stream *stream = context;
    loom_task *head = head_of(stream);
    loom_step step;

    if (!head)
        return false;
    if (loom_stream_failed(stream)) { /* after a failure nothing that is queued runs */
        head->status = (loom_status)atomic_load(&stream->line->failed);
        retire_head(stream);
        return true;
    }
    step = head->step(head);
    if (step == LOOM_STEP_OVER)
        retire_head(stream);
    return step != LOOM_STEP_WAIT;
}

static void check(void *context, double stalled_s)
{
    loom_stream *stream = context;
    loom_task *head = head_of(stream);
    loom_status status;

    if (!head || !head->check || (status = head->check(head, stalled_s)) >= 0)
        return;
    head->status = status;
    retire_head(stream);
}

static void *run(void *context)
{
    loom_stream *stream = context;
    loom_waiter waiter = {stopped, drive, check, stream};

    loom_wait(stream->device, &waiter);
    return NULL;
}

loom_status loom_worker_start(loom_stream *stream)
{
    sigset_t all, before;
    int failed;

    pthread_mutex_init(&stream->lock, NULL);
    sigfillset(&all); /* signals are the program's business, in its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&stream->thread, NULL, run, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        pthread_mutex_destroy(&stream->lock);
        return loom_fail(LOOM_E_MEMORY, "stream \"%s\": no thread: %s", stream->name, strerror(failed));
    }
    return LOOM_OK;
}

void loom_worker_stop(loom_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->closing = true;
    pthread_mutex_unlock(&stream->lock);
    loom_device_ring(stream->device);
    pthread_join(stream->thread, NULL);
    pthread_mutex_destroy(&stream->lock);
}

void loom_worker_push(loom_stream *stream, loom_task *task)
{
    pthread_mutex_lock(&stream->lock);
    loom_queue_push(stream, task);
    pthread_mutex_unlock(&stream->lock);
    loom_device_ring(stream->device);
}

double *loom_worker_exposed(loom_stream *stream)
{
    double *exposed_s;

    pthread_mutex_lock(&stream->lock);
    exposed_s = stream->head ? stream->head->exposed_s : NULL;
    pthread_mutex_unlock(&stream->lock);
    return exposed_s;
}
