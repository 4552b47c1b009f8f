/* The trace: kept in memory while steps run, merged by rank 0 at the end into one file that Perfetto and chrome://tracing open. */
#include "monitor/monitor.h"

#include "core/clock.h"
#include "core/file.h"
#include "core/text.h"
#include "core/try.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bars of one track that overlap without nesting (two messages of one comm under way) are legal input; viewers stack them. */
enum { MOST_EVENTS = 1 << 20 };

/* Clocks of one host agree; further apart than this they belong to different hosts, and the barrier at the end aligns them. */
static const double one_clock_s = 0.05;

void loom_trace_open(loom_trace *t, const loom_monitor_config *config)
{
    pthread_mutex_init(&t->lock, NULL);
    t->first = config->trace_steps ? config->trace_first_step : 2;
    t->last = t->first + (config->trace_steps ? config->trace_steps : 10);
}

/* --- collecting ------------------------------------------------------------------------------------------------------------ */

static int track_of(loom_trace *t, const char *name)
{
    char(*tracks)[LOOM_TRACE_NAME];

    for (int i = 0; i < t->tracks; i++)
        if (!strncmp(t->track[i], name, LOOM_TRACE_NAME - 1))
            return i;
    if (!(tracks = realloc(t->track, (size_t)(t->tracks + 1) * sizeof *tracks)))
        return -1;
    t->track = tracks;
    snprintf(tracks[t->tracks], sizeof *tracks, "%s", name);
    return t->tracks++;
}

static bool make_room(loom_trace *t)
{
    size_t capacity = t->capacity ? 2 * t->capacity : 1024;
    loom_trace_event *events;

    if (t->events < t->capacity)
        return true;
    if (capacity > MOST_EVENTS || !(events = realloc(t->event, capacity * sizeof *events)))
        return false;
    t->event = events;
    t->capacity = capacity;
    return true;
}

static bool add(loom_trace *t, const char *track, const char *name, double begin_s, double end_s)
{
    int index = track_of(t, track);

    if (index < 0 || !make_room(t))
        return false;
    loom_trace_event *e = &t->event[t->events++];
    snprintf(e->name, sizeof e->name, "%s", name ? name : "");
    e->track = index;
    e->begin_s = begin_s;
    e->end_s = end_s;
    return true;
}

void loom_trace_add(loom_trace *t, const char *track, const char *name, double begin_s, double end_s)
{
    pthread_mutex_lock(&t->lock);
    t->lost += !add(t, track, name, begin_s, end_s);
    pthread_mutex_unlock(&t->lock);
}

/* "all_reduce 4.2 MB" on the comm's track; "65.5 kB, peer 1" on its tracks for messages. */
static void name_call(const loom_comm_event *e, bool is_message, char *name, size_t bytes)
{
    double size = (double)e->count * (double)loom_dtype_bytes(e->dtype);
    const char *unit = size < 1e6 ? "kB" : "MB";
    double amount = size < 1e6 ? size * 1e-3 : size * 1e-6;

    if (is_message)
        snprintf(name, bytes, "%.4g %s, peer %d", amount, unit, e->peer);
    else if (e->kind == LOOM_CALL_BARRIER)
        snprintf(name, bytes, "barrier");
    else
        snprintf(name, bytes, "%s %.4g %s", loom_call_kind_name(e->kind), amount, unit);
}

void loom_trace_observe(void *context, const loom_comm_event *event)
{
    loom_trace *t = context;
    bool is_message = event->kind == LOOM_CALL_SEND || event->kind == LOOM_CALL_RECV;
    char name[LOOM_TRACE_NAME], track[LOOM_TRACE_NAME];

    if (!t->on)
        return;
    name_call(event, is_message, name, sizeof name);
    snprintf(track, sizeof track, "comm %s%s%s", loom_comm_name(event->comm), is_message ? " " : "",
             is_message ? loom_call_kind_name(event->kind) : "");
    loom_trace_add(t, track, name, event->begin_s, event->end_s);
}

void loom_trace_drop(loom_trace *t)
{
    free(t->event);
    free(t->track);
    pthread_mutex_destroy(&t->lock);
}

/* --- as text --------------------------------------------------------------------------------------------------------------- */

static void add_name(loom_text *out, const char *what, int pid, int tid, const char *name)
{
    loom_text_add(out, "{\"ph\": \"M\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": ", what, pid, tid);
    loom_text_add_json(out, name);
    loom_text_add(out, "}}");
}

/* "rank 5: tp1 pp2": only the axes that are split. */
static void describe_rank(const loom_mesh *mesh, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "rank %d", loom_comm_rank(mesh->world));

    for (int axis = 0; axis < LOOM_AXES; axis++)
        if (mesh->axis[axis] && loom_comm_size(mesh->axis[axis]) > 1 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, " %s%d", loom_axis_name((loom_axis)axis), mesh->here.at[axis]);
}

/* This rank's part of "traceEvents". Times in microseconds from `zero_s`, a moment of this rank's clock. */
static void add_events(loom_text *out, const loom_monitor *m, double zero_s)
{
    const loom_trace *t = &m->trace;
    int rank = loom_comm_rank(m->mesh->world);
    char name[160];

    describe_rank(m->mesh, name, 128);
    if (t->lost)
        snprintf(name + strlen(name), sizeof name - 128, ", events lost: %llu", (unsigned long long)t->lost % 1000000000);
    add_name(out, "process_name", rank, 0, name);
    loom_text_add(out, ",\n{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %d, \"tid\": 0, \"args\": {\"sort_index\": %d}}", rank, rank);
    for (int i = 0; i < t->tracks; i++) {
        loom_text_add(out, ",\n");
        add_name(out, "thread_name", rank, i, t->track[i]);
    }
    for (size_t i = 0; i < t->events; i++) {
        const loom_trace_event *e = &t->event[i];
        loom_text_add(out, ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"name\": ", rank, e->track,
                      (e->begin_s - zero_s) * 1e6, (e->end_s - e->begin_s) * 1e6);
        loom_text_add_json(out, e->name);
        loom_text_add(out, "}");
    }
}

/* --- merging --------------------------------------------------------------------------------------------------------------- */

/* What the ranks tell each other first. */
typedef struct hello {
    double clock_s; /* right after a barrier */
    double first_s; /* begin of the earliest event; infinity: none */
} hello;

static double earliest(const loom_trace *t)
{
    double first_s = INFINITY;

    for (size_t i = 0; i < t->events; i++)
        first_s = fmin(first_s, t->event[i].begin_s);
    return first_s;
}

/* What to add to rank r's clock to get rank 0's. */
static double offset_of(const hello *all, int r)
{
    double offset_s = all[0].clock_s - all[r].clock_s;

    return fabs(offset_s) < one_clock_s ? 0 : offset_s;
}

/* The moment of this rank's clock at which the trace begins. */
static loom_status agree_on_zero(loom_monitor *m, double *zero_s)
{
    loom_comm *world = m->mesh->world;
    int ranks = loom_comm_size(world), rank = loom_comm_rank(world);
    hello *all = calloc((size_t)ranks, sizeof *all), mine;
    double first_s = INFINITY;
    loom_status status;

    if (!all)
        return loom_fail(LOOM_E_MEMORY, "no memory to merge the traces of %d ranks", ranks);
    LOOM_TRY(loom_barrier(world, "trace", m->stream));
    LOOM_TRY(loom_stream_wait(m->stream));
    mine = (hello){loom_now_s(), earliest(&m->trace)};
    LOOM_TRY(loom_comm_gather_host(world, &mine, all, sizeof mine));
    for (int r = 0; r < ranks; r++)
        first_s = fmin(first_s, all[r].first_s + offset_of(all, r));
    *zero_s = isfinite(first_s) ? first_s - offset_of(all, rank) : 0;

fail:
    free(all);
    return status;
}

/* A text on its way lies in memory of the comm's device, at both ends. */
static loom_status receive(loom_monitor *m, int from, char *text, size_t bytes)
{
    loom_device *device = loom_comm_device(m->mesh->world);
    void *way = NULL;
    loom_status status;

    LOOM_TRY(loom_alloc(device, bytes, LOOM_MEM_OTHER, &way));
    LOOM_TRY(loom_recv(m->mesh->world, way, bytes, LOOM_U8, from, 0, m->stream));
    LOOM_TRY(loom_stream_copy(m->stream, text, way, bytes));
    status = loom_stream_wait(m->stream);

fail:
    loom_free(device, way);
    return status;
}

/* Rank 0 takes the texts of the others one after another; `file` NULL: only so that they are not kept waiting. */
static loom_status take_text(loom_monitor *m, int from, size_t bytes, loom_file_writer *file)
{
    char *text = malloc(bytes + 1);
    loom_status status;

    if (!text)
        return loom_fail(LOOM_E_MEMORY, "no memory for the trace of rank %d (%zu bytes)", from, bytes);
    LOOM_TRY(receive(m, from, text, bytes));
    if (file && bytes > 0) {
        LOOM_TRY(loom_file_write(file, ",\n", 2));
        LOOM_TRY(loom_file_write(file, text, bytes));
    }

fail:
    free(text);
    return status;
}

static loom_status give_text(loom_monitor *m, const loom_text *text)
{
    loom_device *device = loom_comm_device(m->mesh->world);
    void *way = NULL;
    loom_status status;

    LOOM_TRY(loom_alloc(device, text->length, LOOM_MEM_OTHER, &way));
    LOOM_TRY(loom_stream_copy(m->stream, way, loom_text_so_far(text), text->length));
    LOOM_TRY(loom_send(m->mesh->world, way, text->length, LOOM_U8, 0, 0, m->stream));
    status = loom_stream_wait(m->stream);

fail:
    loom_free(device, way);
    return status;
}

static loom_status write_own(const loom_trace *t, const loom_text *own, loom_file_writer **file)
{
    static const char head[] = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
    char path[4096];
    loom_status status;

    snprintf(path, sizeof path, "%s.json", t->prefix);
    LOOM_TRY(loom_file_create(path, file));
    LOOM_TRY(loom_file_write(*file, head, sizeof head - 1));
    return loom_file_write(*file, own->at, own->length);

fail:
    return status;
}

static loom_status write_merged(loom_monitor *m, const loom_text *own, const int64_t *bytes)
{
    loom_file_writer *file = NULL;
    loom_status status = write_own(&m->trace, own, &file), taken;

    for (int r = 1; r < loom_comm_size(m->mesh->world); r++) {
        taken = take_text(m, r, (size_t)bytes[r], status < 0 ? NULL : file);
        status = status < 0 ? status : taken;
        if (taken == LOOM_E_PEER || taken == LOOM_E_MISMATCH)
            break; /* the world is of no more use */
    }
    if (status >= 0 && (status = loom_file_write(file, "\n]}\n", 4)) >= 0)
        return loom_file_commit(file);
    loom_file_abandon(file);
    return status;
}

loom_status loom_trace_write(loom_monitor *m)
{
    loom_comm *world = m->mesh->world;
    loom_text text = {0};
    double zero_s = 0;
    int64_t mine, *bytes = calloc((size_t)loom_comm_size(world), sizeof *bytes);
    loom_status status = bytes ? agree_on_zero(m, &zero_s) : loom_fail(LOOM_E_MEMORY, "no memory to merge the traces of the ranks");

    if (status < 0)
        goto fail;
    add_events(&text, m, zero_s);
    if (text.failed)
        loom_text_drop(&text); /* nothing of this rank, but it takes part */
    mine = (int64_t)text.length;
    LOOM_TRY(loom_comm_gather_host(world, &mine, bytes, sizeof mine));
    status = loom_comm_rank(world) == 0 ? write_merged(m, &text, bytes) : give_text(m, &text);

fail:
    loom_text_drop(&text);
    free(bytes);
    return status;
}
