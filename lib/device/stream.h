/* Streams from the inside: what comm enqueues, and what kernels call before they compute. Tasks are of host streams (CPU and dry); a device whose
 * streams run by themselves has only the timeline, for failures. */
#ifndef LOOM_DEVICE_STREAM_H
#define LOOM_DEVICE_STREAM_H

#include <rankloom/device.h>

#include <pthread.h>
#include <stdatomic.h>

typedef enum loom_step {
    LOOM_STEP_WAIT,  /* nothing to do until a peer or another stream gets on */
    LOOM_STEP_AGAIN, /* something was done, and more can be done at once */
    LOOM_STEP_OVER,  /* over; task->status says how */
} loom_step;

/* A piece of queued work, embedded in what the owner needs for it. Owned by the stream from loom_stream_submit() until release(). */
typedef struct loom_task loom_task;
struct loom_task {
    loom_task *next;
    /* Does a bounded piece of the work; never blocks. The first piece, done while the caller enqueues, should be short. With LOOM_STEP_OVER
     * and a failure, loom_last_error() of the thread has the message. */
    loom_step (*step)(loom_task *task);
    /* Somebody has waited `stalled_s` for this task without any progress: time to look at deadlines and whether peers live. A failure ends
     * the task. NULL: waits for ever (only where another task's check bounds it). */
    loom_status (*check)(loom_task *task, double stalled_s);
    /* The stream is done with the task, one way or another (task->status); frees it. */
    void (*release)(loom_task *task);
    double *exposed_s; /* where to add the seconds that a caller waited for this task; NULL: nowhere */
    uint64_t over_ns;  /* when it was over, if step() knows; saves its waiter a look at the clock */
    loom_status status;
};

/* How far a stream is; outlives it, because events look at it. */
typedef struct loom_timeline {
    _Atomic int32_t users;
    _Atomic uint64_t submitted, completed;
    _Atomic int32_t failed; /* a loom_status; the message is complete before it is set */
    _Atomic int32_t wanted; /* somebody waits for an event of this stream: its head's deadline counts */
    char message[2048];
} loom_timeline;

struct loom_stream {
    loom_device *device;
    loom_stream *next; /* in device->streams */
    loom_stream_kind kind;
    char name[32];
    loom_task *head, *tail;
    uint64_t over_ns; /* of the task that was at the head last */
    bool running;     /* head's step is on the call stack: entries made from inside it do not drive it again */
    loom_timeline *line;
    void *backend; /* of a device that has streams of its own */

    /* worker */
    pthread_t thread;
    pthread_mutex_t lock; /* of head and tail */
    bool closing;         /* under lock */
};

struct loom_event {
    loom_device *device;
    loom_timeline *line; /* NULL: never recorded, counts as reached */
    uint64_t ticket;
};

/* Enqueues `task`. On an inline stream with nothing before it the task begins now, in this thread. A poisoned stream releases the task
 * at once and the call fails with the stream's error. */
loom_status loom_stream_submit(loom_stream *stream, loom_task *task);

/* What a kernel calls first: returns when everything before it on `stream` is done, so that it may compute in this thread. */
loom_status loom_stream_sync_for_compute(loom_stream *stream);

/* One piece of every inline stream; whether anything moved. */
bool loom_device_drive(loom_device *device);

#endif
