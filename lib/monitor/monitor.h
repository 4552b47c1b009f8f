/* What the files of lib/monitor share. */
#ifndef LOOM_MONITOR_MONITOR_H
#define LOOM_MONITOR_MONITOR_H

#include <rankloom/monitor.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { LOOM_SPAN_DEPTH = 32, LOOM_TRACE_NAME = 48, LOOM_MONITOR_COMMS = 16 };

/* One span that is open. */
typedef struct loom_span {
    loom_time_kind kind;
    const char *name;
    double begin_s;
} loom_span;

/* One communicator whose waits are booked, and what was booked already. */
typedef struct loom_watched {
    const loom_comm *comm;
    loom_time_kind kind;
    double seen_s;
} loom_watched;

/* A bar of the trace. */
typedef struct loom_trace_event {
    char name[LOOM_TRACE_NAME];
    int track; /* index among the trace's track names */
    double begin_s, end_s;
} loom_trace_event;

typedef struct loom_trace {
    const char *prefix; /* NULL: nothing is traced */
    int64_t first, last; /* steps of this run: [first, last) */
    _Atomic bool on;
    pthread_mutex_t lock; /* of what follows: worker streams add events too */
    loom_trace_event *event;
    size_t events, capacity;
    char (*track)[LOOM_TRACE_NAME];
    int tracks;
    uint64_t lost; /* events there was no memory for */
} loom_trace;

struct loom_monitor {
    loom_mesh *mesh;
    loom_device *device; /* of the mesh: its profiler is shown the spans */
    loom_stream *stream; /* of the monitor's own few messages */
    char *metrics_path, *trace_prefix;
    FILE *metrics; /* world rank 0 */

    loom_watched watched[LOOM_MONITOR_COMMS];
    int n_watched;
    loom_span span[LOOM_SPAN_DEPTH];
    int depth;      /* may exceed LOOM_SPAN_DEPTH: those spans are counted, not kept */
    double mark_s;  /* up to here time is booked */
    double seconds[LOOM_TIME_KINDS];
    double step_begin_s;
    char step_name[32];
    int64_t steps_begun;

    double *of_ranks; /* [world][LOOM_TIME_KINDS]; NULL without metrics */
    int slowest_rank, data_rank;
    double slowest_compute_s, data_max_s;

    loom_trace trace;
};

/* trace.c */
void loom_trace_open(loom_trace *trace, const loom_monitor_config *config);
/* For loom_comm_set_observer(): `context` is the trace. */
void loom_trace_observe(void *context, const loom_comm_event *event);
void loom_trace_add(loom_trace *trace, const char *track, const char *name, double begin_s, double end_s);
loom_status loom_trace_write(loom_monitor *monitor); /* collective */
void loom_trace_drop(loom_trace *trace);

#endif
