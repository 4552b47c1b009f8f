/* Streams of devices whose work is done by threads of this process. */
#ifndef LOOM_DEVICE_HOST_STREAM_H
#define LOOM_DEVICE_HOST_STREAM_H

#include "device/stream.h"

loom_status loom_host_stream_open(loom_device *device, loom_stream_kind kind, const char *name, loom_stream **stream);
void loom_host_stream_close(loom_stream *stream);
loom_status loom_host_stream_wait(loom_stream *stream);
loom_status loom_host_stream_query(loom_stream *stream);
loom_status loom_host_stream_run(loom_stream *stream, loom_work_fn *work, void *argument);
loom_status loom_host_stream_copy(loom_stream *stream, void *to, const void *from, size_t bytes);
loom_status loom_host_stream_fill_zero(loom_stream *stream, void *memory, size_t bytes);
loom_status loom_host_stream_follow(loom_stream *stream, loom_stream *other);
void loom_host_progress(loom_device *device);
loom_status loom_host_event_open(loom_device *device, loom_event **event);
void loom_host_event_close(loom_event *event);
loom_status loom_host_event_record(loom_event *event, loom_stream *stream);
loom_status loom_host_stream_wait_event(loom_stream *stream, loom_event *event);
loom_status loom_host_event_query(const loom_event *event);
/* The line that `task` waits for, if it is a wait for an event; else NULL. */
const loom_timeline *loom_event_awaited(const loom_task *task);

/* The rows of a back end's table. */
#define LOOM_HOST_STREAMS                                                                                                                  \
    .stream_open = loom_host_stream_open, .stream_close = loom_host_stream_close, .stream_wait = loom_host_stream_wait,                    \
    .stream_query = loom_host_stream_query, .stream_run = loom_host_stream_run, .stream_copy = loom_host_stream_copy,                      \
    .stream_fill_zero = loom_host_stream_fill_zero, .stream_follow = loom_host_stream_follow, .progress = loom_host_progress, .event_open = loom_host_event_open,                    \
    .event_close = loom_host_event_close, .event_record = loom_host_event_record, .stream_wait_event = loom_host_stream_wait_event,        \
    .event_query = loom_host_event_query

#endif
