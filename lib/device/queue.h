/* What inline streams, workers and events share of a stream's insides. */
#ifndef LOOM_DEVICE_QUEUE_H
#define LOOM_DEVICE_QUEUE_H

#include "device/stream.h"

loom_timeline *loom_timeline_hold(loom_timeline *line);
void loom_timeline_drop(loom_timeline *line); /* accepts NULL */
/* Keeps `status` and loom_last_error() for whoever asks, if they are its first failure. */
void loom_timeline_fail(loom_timeline *line, loom_status status);
/* Its first failure as a failure of this call; LOOM_OK: none. */
loom_status loom_timeline_failure(const loom_timeline *line);

void loom_queue_push(loom_stream *stream, loom_task *task);
loom_task *loom_queue_pop(loom_stream *stream); /* the head; there is one */

/* A task that was popped is over: keeps the first failure, releases it, counts it. */
void loom_stream_retire(loom_stream *stream, loom_task *task);
bool loom_stream_failed(const loom_stream *stream);
loom_status loom_stream_failure(const loom_stream *stream); /* of its timeline */

#endif
