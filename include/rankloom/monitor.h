/* Where a step's time went, and the files that tell it: JSON lines of metrics, a trace for Perfetto, plots of curves. */
#ifndef RANKLOOM_MONITOR_H
#define RANKLOOM_MONITOR_H

#include <rankloom/comm.h>
#include <rankloom/mesh.h>
LOOM_BEGIN

typedef enum loom_time_kind {
    LOOM_TIME_COMPUTE,
    LOOM_TIME_COMM_TP, /* exposed communication, by axis */
    LOOM_TIME_COMM_CP,
    LOOM_TIME_COMM_EP,
    LOOM_TIME_COMM_DP,
    LOOM_TIME_PIPELINE, /* waiting for another stage */
    LOOM_TIME_DATA,
    LOOM_TIME_CHECKPOINT,
    LOOM_TIME_REST,
    LOOM_TIME_KINDS,
} loom_time_kind;
LOOM_API const char *loom_time_kind_name(loom_time_kind kind); /* "compute", "comm_tp", …, "pipeline", "data", "checkpoint", "other" */

typedef struct loom_monitor loom_monitor; /* opaque; used by one thread. Every call but open takes NULL, and does nothing then */

typedef struct loom_monitor_config {
    const char *metrics; /* JSON lines, written by world rank 0 only; NULL: none */
    const char *trace;   /* prefix: PREFIX.json in the end, written by rank 0 from all ranks' events; NULL: none */
    int trace_first_step, trace_steps; /* which steps are traced, counted from the first one of this run; 0, 0: the ten after the second */
} loom_monitor_config;

/* `config` is the same on every rank. The mesh must outlive the monitor. */
LOOM_API loom_status loom_monitor_open(loom_mesh *mesh, const loom_monitor_config *config, loom_monitor **monitor);
LOOM_API loom_status loom_monitor_finish(loom_monitor *monitor); /* collective: merges the trace */
LOOM_API void loom_monitor_close(loom_monitor *monitor);         /* accepts NULL */

/* Books waits for a comm that is not the mesh's (a group that a module made for itself) under `kind`. It has to stay open while steps are measured.
 * LOOM_E_INVALID when too many are watched. */
LOOM_API loom_status loom_monitor_watch(loom_monitor *monitor, const loom_comm *comm, loom_time_kind kind);

/* Spans nest; each second belongs to the innermost span. Time that a comm that is watched, as all of the mesh are, kept a stream waiting is taken out of the span and booked under
 * its axis by itself. Outside any span: REST. The kinds of a step sum to the step by construction. */
LOOM_API void loom_span_begin(loom_monitor *monitor, loom_time_kind kind, const char *name); /* name: lent until the span ends */
LOOM_API void loom_span_end(loom_monitor *monitor);
/* For the trace: something that is no span, on a track of its own (a stage's actions, a loader's thread). Monotonic seconds. Copies both texts. */
LOOM_API void loom_monitor_event(loom_monitor *monitor, const char *track, const char *name, double begin_s, double end_s);
/* Whether this step is traced: to save the work of making events. */
LOOM_API bool loom_monitor_traces(const loom_monitor *monitor);

LOOM_API void loom_monitor_step_begin(loom_monitor *monitor, int64_t step);
/* Fills `seconds[LOOM_TIME_KINDS]` of this rank, which sum to the step's seconds; returns those. With a metrics file it is collective over the world:
 * the ranks tell each other their times, so that rank 0 can name the rank that computed or waited longest. */
LOOM_API double loom_monitor_step_end(loom_monitor *monitor, double seconds[LOOM_TIME_KINDS]);

/* A line of the metrics file: what is worth saying of a step. */
typedef struct loom_step_metrics {
    int64_t step, tokens;
    double loss, grad_norm, lr, step_time_s;
    double seconds[LOOM_TIME_KINDS];
    double mfu; /* 0: unknown */
    const char *extra; /* more JSON members without braces, or NULL */
} loom_step_metrics;
/* Writes one line on world rank 0, nothing elsewhere: step, loss, grad_norm, lr, step_time_s, tokens_per_s, then KIND_s of every kind, mfu if known,
 * and of the last step that ended, over all ranks: slowest_rank with its slowest_compute_s, data_rank with its data_max_s. */
LOOM_API loom_status loom_monitor_write(loom_monitor *monitor, const loom_step_metrics *metrics);

/* --- plots ----------------------------------------------------------------------------------------------------------- */

typedef struct loom_curve {
    const char *label;
    const double *x, *y; /* ascending x; a y that is not finite leaves a gap */
    int count;
} loom_curve;

typedef struct loom_plot {
    const char *title, *x_label, *y_label;
    const loom_curve *curves;
    int n_curves; /* at most 8 */
} loom_plot;

/* Writes a plain SVG file, readable on light and on dark ground. */
LOOM_API loom_status loom_plot_save(const loom_plot *plot, const char *path);

LOOM_END
#endif
