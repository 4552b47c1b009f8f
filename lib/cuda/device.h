/* What the module keeps of a device, a stream and an event, and how a failure of CUDA becomes one of ours. */
#ifndef LOOM_CUDA_DEVICE_H
#define LOOM_CUDA_DEVICE_H

#include "device/backend.h"
#include "device/stream.h"

#include <cuda_runtime_api.h>

/* Where a comm's waits are booked. */
typedef struct loom_cuda_account {
    struct loom_cuda_account *next; /* of the device */
    double *exposed_s;              /* NULL: the comm is gone */
} loom_cuda_account;

/* A wait of a computing stream, between two points of it; of a graph, in each of its replays anew. */
typedef struct loom_cuda_wait {
    struct loom_cuda_wait *next;
    cudaEvent_t begin, end;
    loom_cuda_account *account;
} loom_cuda_wait;

/* A capture, and what came of it. */
typedef struct loom_cuda_graph {
    struct loom_cuda_graph *next; /* of the device */
    uint64_t number;              /* of the capture, from 1 */
    cudaGraphExec_t exec;         /* NULL while it is captured */
    cudaEvent_t done;             /* after the last replay */
    loom_cuda_wait *waits;
    bool measured;                /* a replay whose waits are not added up yet */
} loom_cuda_graph;

typedef struct loom_cuda_device {
    int ordinal;
    cudaMemPool_t pool;
    cudaStream_t allocations, frees; /* two: a free comes behind all that is queued, and an allocation may not wait for that */
    int priority_least, priority_greatest;
    bool registers;       /* memory for comms comes from NCCL; registered.h */
    bool stuck;           /* work that was waited for at an end did not get through */
    pthread_mutex_t lock; /* of the lists */
    struct loom_cuda_block *blocks; /* of NCCL's memory */
    struct loom_cuda_host_block *host_blocks; /* pinned, freed while something was queued */
    struct loom_cuda_stream *streams;
    loom_cuda_account *accounts;
    loom_cuda_wait *waits, **last_wait; /* not yet added up, in order */
    loom_cuda_wait *spare_waits;
    loom_cuda_graph *graphs, *capturing; /* the latter NULL: none is */
    uint64_t captures;                   /* that were ever begun */
} loom_cuda_device;

/* stream.backend of the base is the cudaStream_t. */
typedef struct loom_cuda_stream {
    loom_stream base; /* first */
    cudaEvent_t mark; /* everything of this stream so far: for a free, and for a stream that follows */
    bool computes;    /* it is no stream of an axis: what it waits for is exposed */
    loom_cuda_account *account; /* of an axis' stream: of the comm whose call came last */
    struct loom_cuda_stream *next;
} loom_cuda_stream;

typedef struct loom_cuda_event {
    loom_event base; /* first */
    cudaEvent_t event;
    loom_cuda_account *account; /* its stream's, when it was recorded */
    uint64_t capture;           /* that it was recorded in; 0: none */
} loom_cuda_event;

/* "CUDA device 0: <what>: out of memory (cudaErrorMemoryAllocation)", with the status that fits; LOOM_OK when `code` is no failure. */
loom_status loom_cuda_check(const loom_device *device, cudaError_t code, const char *what, ...) LOOM_PRINTF(3, 4);

/* What is enqueued on d->frees from here on comes behind everything that is queued on any stream now. */
void loom_cuda_frees_follow_all(loom_device *device);

/* Waits until `stream` has nothing left to do, with an eye on the peers' deadlines (device/watch.h). `name` is for the message. */
loom_status loom_cuda_settle(loom_device *device, cudaStream_t stream, const char *name);

/* Between two looks at something that others do, which ends within microseconds or milliseconds: yields in the first rounds, then naps that are short against a step. */
void loom_cuda_nap(int rounds);
/* Until the device has run what is left of a stream's work, which cannot be called back and may use memory that the caller is about to let go of; unless
 * it does not get through: then nobody waits for such work a second time. Comms that hold the stream up since begin_s are aborted by the watch. What went wrong
 * before stays the thread's message. */
void loom_cuda_run_out(loom_device *device, cudaStream_t stream, double begin_s);

/* exposure.c: an account is closed with its comm; waits are measured where `stream` computes, and collected when somebody has waited for it. */
loom_status loom_cuda_account_open(loom_device *device, double *exposed_s, loom_cuda_account **account);
void loom_cuda_account_close(loom_cuda_account *account); /* accepts NULL */
/* `account` NULL, or a stream that does not compute: *wait is NULL, and nothing is measured. */
loom_status loom_cuda_wait_begin(loom_stream *stream, loom_cuda_account *account, loom_cuda_wait **wait);
loom_status loom_cuda_wait_end(loom_stream *stream, loom_cuda_wait *wait);
void loom_cuda_collect_waits(loom_device *device);
void loom_cuda_give_waits(loom_cuda_device *d, loom_cuda_wait *waits); /* of a graph that is gone, for others to use */
void loom_cuda_free_waits(loom_cuda_device *d);

/* graph.c */
uint64_t loom_cuda_capture_number(const loom_device *device); /* of the one under way; 0: none is */
loom_status loom_cuda_graph_begin(loom_graph *graph);
loom_status loom_cuda_graph_end(loom_graph *graph);
loom_status loom_cuda_graph_launch(loom_graph *graph, loom_stream *stream);
void loom_cuda_graph_drop(loom_graph *graph);

static inline loom_cuda_device *loom_cuda_of(const loom_device *device)
{
    return device->native;
}

static inline cudaStream_t loom_cuda_stream_of(const loom_stream *stream)
{
    return stream->backend;
}

loom_status loom_cuda_stream_open(loom_device *device, loom_stream_kind kind, const char *name, loom_stream **stream);
void loom_cuda_stream_close(loom_stream *stream);
loom_status loom_cuda_stream_wait(loom_stream *stream);
loom_status loom_cuda_stream_query(loom_stream *stream);
loom_status loom_cuda_stream_run(loom_stream *stream, loom_work_fn *work, void *argument);
loom_status loom_cuda_stream_copy(loom_stream *stream, void *to, const void *from, size_t bytes);
loom_status loom_cuda_stream_fill_zero(loom_stream *stream, void *memory, size_t bytes);
loom_status loom_cuda_stream_follow(loom_stream *stream, loom_stream *other);
loom_status loom_cuda_event_open(loom_device *device, loom_event **event);
void loom_cuda_event_close(loom_event *event);
loom_status loom_cuda_event_record(loom_event *event, loom_stream *stream);
loom_status loom_cuda_stream_wait_event(loom_stream *stream, loom_event *event);
loom_status loom_cuda_event_query(const loom_event *event);

/* The rows of the back end's table. */
#define LOOM_CUDA_STREAMS                                                                                                                  \
    .stream_open = loom_cuda_stream_open, .stream_close = loom_cuda_stream_close, .stream_wait = loom_cuda_stream_wait,                    \
    .stream_query = loom_cuda_stream_query, .stream_run = loom_cuda_stream_run, .stream_copy = loom_cuda_stream_copy,                      \
    .stream_fill_zero = loom_cuda_stream_fill_zero, .stream_follow = loom_cuda_stream_follow, .event_open = loom_cuda_event_open,          \
    .event_close = loom_cuda_event_close, .event_record = loom_cuda_event_record, .stream_wait_event = loom_cuda_stream_wait_event,        \
    .event_query = loom_cuda_event_query, .graph_begin = loom_cuda_graph_begin, .graph_end = loom_cuda_graph_end,                          \
    .graph_launch = loom_cuda_graph_launch, .graph_drop = loom_cuda_graph_drop

#endif
