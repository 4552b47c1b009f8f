/* Booking time. What holds between step_begin and step_end:
 *   (1) every moment is booked once: from mark_s to now belongs to the innermost span, less what the comms say they kept us waiting for;
 *   (2) so the kinds sum to the step. */
#include "monitor/monitor.h"

#include "core/clock.h"
#include "core/try.h"
#include "device/backend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *loom_time_kind_name(loom_time_kind kind)
{
    static const char *const name[LOOM_TIME_KINDS] = {"compute", "comm_tp", "comm_cp", "comm_ep", "comm_dp", "pipeline", "data", "checkpoint", "other"};

    return (unsigned)kind < LOOM_TIME_KINDS ? name[kind] : "?";
}

/* --- open and close ------------------------------------------------------------------------------------------------------ */

static void watch(loom_monitor *m, const loom_comm *comm, loom_time_kind kind)
{
    if (!comm)
        return;
    for (int i = 0; i < m->n_watched; i++)
        if (m->watched[i].comm == comm)
            return; /* an axis and a folded one may be one comm */
    m->watched[m->n_watched++] = (loom_watched){comm, kind, 0};
}

loom_status loom_monitor_watch(loom_monitor *m, const loom_comm *comm, loom_time_kind kind)
{
    if (!m)
        return LOOM_OK;
    if (m->n_watched == LOOM_MONITOR_COMMS)
        return loom_fail(LOOM_E_INVALID, "monitor: %d comms are watched, and %s would be one more than there is room for", m->n_watched,
                         loom_comm_name(comm));
    watch(m, comm, kind);
    return LOOM_OK;
}

/* The world carries the global norm, hence dp. */
static void watch_mesh(loom_monitor *m, const loom_mesh *mesh)
{
    static const loom_time_kind of_axis[LOOM_AXES] = {
        [LOOM_AXIS_TP] = LOOM_TIME_COMM_TP,  [LOOM_AXIS_CP] = LOOM_TIME_COMM_CP, [LOOM_AXIS_DP] = LOOM_TIME_COMM_DP, [LOOM_AXIS_PP] = LOOM_TIME_PIPELINE,
        [LOOM_AXIS_ETP] = LOOM_TIME_COMM_EP, [LOOM_AXIS_EP] = LOOM_TIME_COMM_EP, [LOOM_AXIS_EDP] = LOOM_TIME_COMM_DP};

    for (int axis = 0; axis < LOOM_AXES; axis++)
        watch(m, mesh->axis[axis], of_axis[axis]);
    watch(m, mesh->kv, LOOM_TIME_COMM_TP);
    watch(m, mesh->gradient, LOOM_TIME_COMM_DP);
    watch(m, mesh->tied, LOOM_TIME_COMM_DP);
    watch(m, mesh->stage, LOOM_TIME_COMM_DP);
    watch(m, mesh->model, LOOM_TIME_COMM_DP);
    watch(m, mesh->world, LOOM_TIME_COMM_DP);
}

static loom_status open_metrics(loom_monitor *m)
{
    size_t ranks = (size_t)loom_comm_size(m->mesh->world);

    m->of_ranks = calloc(ranks * LOOM_TIME_KINDS, sizeof *m->of_ranks);
    if (!m->of_ranks)
        return loom_fail(LOOM_E_MEMORY, "no memory for the times of %zu ranks", ranks);
    if (loom_comm_rank(m->mesh->world) != 0)
        return LOOM_OK;
    if (!(m->metrics = fopen(m->metrics_path, "w")))
        return loom_fail(LOOM_E_IO, "%s: %s", m->metrics_path, strerror(errno));
    return LOOM_OK;
}

static loom_status copy_path(const char *path, char **copy)
{
    *copy = path ? strdup(path) : NULL;
    return path && !*copy ? loom_fail(LOOM_E_MEMORY, "no memory for the path %s", path) : LOOM_OK;
}

loom_status loom_monitor_open(loom_mesh *mesh, const loom_monitor_config *config, loom_monitor **monitor)
{
    loom_status status;
    loom_monitor *m = calloc(1, sizeof *m);

    if (!m)
        return loom_fail(LOOM_E_MEMORY, "no memory for the monitor itself");
    m->mesh = mesh;
    m->device = loom_comm_device(mesh->world);
    watch_mesh(m, mesh);
    loom_trace_open(&m->trace, config);
    LOOM_TRY(copy_path(config->metrics, &m->metrics_path));
    LOOM_TRY(copy_path(config->trace, &m->trace_prefix));
    m->trace.prefix = m->trace_prefix;
    if (m->trace_prefix)
        loom_comm_set_observer(mesh->world, loom_trace_observe, &m->trace);
    LOOM_TRY(loom_stream_open(m->device, LOOM_STREAM_INLINE, "monitor", &m->stream));
    if (m->metrics_path)
        LOOM_TRY(open_metrics(m));
    *monitor = m;
    return LOOM_OK;

fail:
    loom_monitor_close(m);
    return status;
}

loom_status loom_monitor_finish(loom_monitor *m)
{
    return m && m->trace.prefix ? loom_trace_write(m) : LOOM_OK;
}

void loom_monitor_close(loom_monitor *m)
{
    if (!m)
        return;
    if (m->trace_prefix)
        loom_comm_set_observer(m->mesh->world, NULL, NULL);
    if (m->metrics)
        fclose(m->metrics);
    free(m->of_ranks);
    loom_stream_close(m->stream);
    loom_trace_drop(&m->trace);
    free(m->metrics_path);
    free(m->trace_prefix);
    free(m);
}

/* --- booking ------------------------------------------------------------------------------------------------------------- */

static loom_time_kind kind_now(const loom_monitor *m)
{
    int top = m->depth < LOOM_SPAN_DEPTH ? m->depth : LOOM_SPAN_DEPTH;

    return top ? m->span[top - 1].kind : LOOM_TIME_REST;
}

/* What the comms kept us waiting since the last look, by kind. Returns the sum. */
static double take_exposed(loom_monitor *m, double exposed_s[LOOM_TIME_KINDS])
{
    double sum_s = 0;

    for (int i = 0; i < m->n_watched; i++) {
        loom_watched *w = &m->watched[i];
        double total_s = loom_comm_exposed_s(w->comm);
        exposed_s[w->kind] += total_s - w->seen_s;
        sum_s += total_s - w->seen_s;
        w->seen_s = total_s;
    }
    return sum_s;
}

/* (1). A comm may book a wait a little later than it happened, so that it can exceed this stretch: then the stretch is shared out in proportion. */
static void book(loom_monitor *m, double now_s)
{
    double exposed_s[LOOM_TIME_KINDS] = {0};
    double stretch_s = now_s - m->mark_s, sum_s = take_exposed(m, exposed_s);
    double share = sum_s > stretch_s ? stretch_s / sum_s : 1;

    for (int kind = 0; kind < LOOM_TIME_KINDS; kind++)
        m->seconds[kind] += share * exposed_s[kind];
    m->seconds[kind_now(m)] += stretch_s - share * sum_s;
    m->mark_s = now_s;
}

void loom_span_begin(loom_monitor *m, loom_time_kind kind, const char *name)
{
    if (!m)
        return;
    double now_s = loom_now_s();
    book(m, now_s);
    if (m->depth < LOOM_SPAN_DEPTH)
        m->span[m->depth] = (loom_span){kind, name, now_s};
    m->depth++;
    loom_device_range_begin(m->device, name);
}

void loom_span_end(loom_monitor *m)
{
    if (!m || m->depth == 0)
        return;
    double now_s = loom_now_s();
    book(m, now_s);
    m->depth--;
    loom_device_range_end(m->device);
    if (m->trace.on && m->depth < LOOM_SPAN_DEPTH)
        loom_trace_add(&m->trace, "work", m->span[m->depth].name, m->span[m->depth].begin_s, now_s);
}

void loom_monitor_event(loom_monitor *m, const char *track, const char *name, double begin_s, double end_s)
{
    if (m && m->trace.on)
        loom_trace_add(&m->trace, track, name, begin_s, end_s);
}

bool loom_monitor_traces(const loom_monitor *m)
{
    return m && m->trace.on;
}

/* --- steps --------------------------------------------------------------------------------------------------------------- */

void loom_monitor_step_begin(loom_monitor *m, int64_t step)
{
    double before_s[LOOM_TIME_KINDS] = {0};

    if (!m)
        return;
    snprintf(m->step_name, sizeof m->step_name, "step %lld", (long long)step);
    take_exposed(m, before_s); /* what came before the step is not part of it */
    memset(m->seconds, 0, sizeof m->seconds);
    m->trace.on = m->trace.prefix && m->steps_begun >= m->trace.first && m->steps_begun < m->trace.last;
    m->steps_begun++;
    loom_device_range_begin(m->device, m->step_name);
    m->step_begin_s = m->mark_s = loom_now_s();
}

static void find_slowest(loom_monitor *m, const double (*of_rank)[LOOM_TIME_KINDS], int ranks)
{
    m->slowest_rank = m->data_rank = 0;
    for (int r = 1; r < ranks; r++) {
        if (of_rank[r][LOOM_TIME_COMPUTE] > of_rank[m->slowest_rank][LOOM_TIME_COMPUTE])
            m->slowest_rank = r;
        if (of_rank[r][LOOM_TIME_DATA] > of_rank[m->data_rank][LOOM_TIME_DATA])
            m->data_rank = r;
    }
    m->slowest_compute_s = of_rank[m->slowest_rank][LOOM_TIME_COMPUTE];
    m->data_max_s = of_rank[m->data_rank][LOOM_TIME_DATA];
}

/* A failure here is one of the world comm; the next call on it reports it. */
static void tell_ranks(loom_monitor *m)
{
    if (loom_comm_gather_host(m->mesh->world, m->seconds, m->of_ranks, sizeof m->seconds) < 0)
        return;
    find_slowest(m, (const double(*)[LOOM_TIME_KINDS])m->of_ranks, loom_comm_size(m->mesh->world));
}

double loom_monitor_step_end(loom_monitor *m, double seconds[LOOM_TIME_KINDS])
{
    double now_s = loom_now_s(), total_s = 0;

    memset(seconds, 0, LOOM_TIME_KINDS * sizeof *seconds);
    if (!m)
        return 0;
    book(m, now_s);
    loom_device_range_end(m->device);
    if (m->trace.on)
        loom_trace_add(&m->trace, "step", m->step_name, m->step_begin_s, now_s);
    m->trace.on = false;
    memcpy(seconds, m->seconds, sizeof m->seconds);
    for (int kind = 0; kind < LOOM_TIME_KINDS; kind++)
        total_s += seconds[kind]; /* (2) */
    if (m->of_ranks)
        tell_ranks(m);
    return total_s;
}
