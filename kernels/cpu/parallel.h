/* Division of a kernel's work over the threads of its device. The only place that knows OpenMP. */
#ifndef LOOM_KERNELS_PARALLEL_H
#define LOOM_KERNELS_PARALLEL_H

#include <stdint.h>

/* Calls span(context, from, to) for contiguous spans that cover [0, count), one a thread, each a multiple of `grain` but the last. Fewer
 * threads take part when there are fewer grains: pick the grain so that one is worth waking a thread for. */
typedef void loom_span_fn(const void *context, int64_t from, int64_t to);
void loom_parallel_spans(int threads, int64_t count, int64_t grain, loom_span_fn *span, const void *context);

/* Calls task(context, i, thread) once for each i in [0, count), handed out in order to whoever is free; 0 <= thread < threads. What a
 * task writes must not depend on its thread. */
typedef void loom_task_fn(const void *context, int64_t task, int thread);
void loom_parallel_tasks(int threads, int64_t count, loom_task_fn *task, const void *context);

/* Size of the team that a library's own parallel regions get when this thread calls it. Sets it and returns what it was: put that back
 * after the call. It is a property of the calling thread alone. */
int loom_parallel_team(int threads);

#endif
