/* The thread of a worker stream. */
#ifndef LOOM_DEVICE_WORKER_H
#define LOOM_DEVICE_WORKER_H

#include "device/stream.h"

loom_status loom_worker_start(loom_stream *stream);
void loom_worker_stop(loom_stream *stream); /* waits for the piece under way, leaves the rest queued */
void loom_worker_push(loom_stream *stream, loom_task *task);
double *loom_worker_exposed(loom_stream *stream); /* exposed_s of the task under way, NULL if none */

#endif
