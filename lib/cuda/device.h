/* What the module keeps of a device, a stream and an event, and how a failure of CUDA becomes one of ours. */
#ifndef LOOM_CUDA_DEVICE_H
#define LOOM_CUDA_DEVICE_H

#include "device/backend.h"
#include "device/stream.h"

#include <cuda_runtime_api.h>

typedef struct loom_cuda_device {
    int ordinal;
    cudaMemPool_t pool;
    cudaStream_t allocations, frees; /* two: a free comes behind all that is queued, and an allocation may not wait for that */
    int priority_least, priority_greatest;
    pthread_mutex_t lock; /* of the list */
    struct loom_cuda_stream *streams;
} loom_cuda_device;

/* stream.backend of the base is the cudaStream_t. */
typedef struct loom_cuda_stream {
    loom_stream base; /* first */
    cudaEvent_t mark; /* everything of this stream so far: for a free, and for a stream that follows */
    struct loom_cuda_stream *next;
} loom_cuda_stream;

typedef struct loom_cuda_event {
    loom_event base; /* first */
    cudaEvent_t event;
} loom_cuda_event;

/* "CUDA device 0: <what>: out of memory (cudaErrorMemoryAllocation)", with the status that fits; LOOM_OK when `code` is no failure. */
loom_status loom_cuda_check(const loom_device *device, cudaError_t code, const char *what, ...) LOOM_PRINTF(3, 4);

/* Waits until `stream` has nothing left to do, with an eye on the peers' deadlines (device/watch.h). `name` is for the message. */
loom_status loom_cuda_settle(loom_device *device, cudaStream_t stream, const char *name);

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
    .event_query = loom_cuda_event_query

#endif
