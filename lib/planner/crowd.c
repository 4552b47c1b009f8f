/* Ranks that share cores: stretches of a timeline during which some of them wait are shorter for the others. */
#include "planner/crowd.h"

#include <math.h>
#include <stdlib.h>

#include "core/number.h"

/* Where every moment goes: straight between two moments at which an action starts or ends. */
typedef struct moments {
    double *at_us, *then_us; /* [count], ascending */
    int count;
} moments;

/* Starts and ends of what takes time, each sorted; returns how many. */
static int list_edges(const loom_schedule *s, const loom_timeline *t, double *starts, double *ends)
{
    int count = 0;

    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->stage[stage].count; i++)
            if (t->at[stage][i].end_us > t->at[stage][i].start_us) {
                starts[count] = t->at[stage][i].start_us;
                ends[count++] = t->at[stage][i].end_us;
            }
    qsort(starts, (size_t)count, sizeof *starts, loom_by_value);
    qsort(ends, (size_t)count, sizeof *ends, loom_by_value);
    return count;
}

/* `starts` and `ends` [count] sorted; `m` has room for both. */
static void place_moments(const loom_machine *machine, int stages, const double *starts, const double *ends, int count, moments *m)
{
    double now = 0, then = 0;

    for (int started = 0, ended = 0; ended < count;) {
        int active = started - ended;
        bool starts_one = started < count && starts[started] < ends[ended];
        double next = starts_one ? starts[started] : ends[ended];
        double faster = active > 0 ? fmin(machine->crowd, (double)stages / active) : 1;
        then += (next - now) / faster;
        now = next;
        m->at_us[m->count] = now;
        m->then_us[m->count++] = then;
        *(starts_one ? &started : &ended) += 1;
    }
}

static double moved(const moments *m, double us)
{
    int low = 0, high = m->count - 1;

    if (m->count == 0 || us <= m->at_us[0])
        return us; /* nobody is at work yet */
    if (us >= m->at_us[high])
        return m->then_us[high] + (us - m->at_us[high]);
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(m->at_us[middle] <= us ? &low : &high) = middle;
    }
    return m->then_us[low] + (us - m->at_us[low]) / (m->at_us[high] - m->at_us[low]) * (m->then_us[high] - m->then_us[low]);
}

static void move_timeline(const loom_schedule *s, const moments *m, loom_timeline *t)
{
    for (int stage = 0; stage < s->stages; stage++) {
        double before = 0, after = 0;
        for (int i = 0; i < s->stage[stage].count; i++) {
            loom_action_time *time = &t->at[stage][i];
            before += time->end_us - time->start_us;
            time->start_us = moved(m, time->start_us);
            time->end_us = moved(m, time->end_us);
            after += time->end_us - time->start_us;
        }
        t->busy_us[stage] *= before > 0 ? after / before : 1;
        t->first_us[stage] = moved(m, t->first_us[stage]);
        t->last_us[stage] = moved(m, t->last_us[stage]);
    }
    t->makespan_us = moved(m, t->makespan_us);
}

loom_status loom_crowd_timeline(const loom_machine *machine, const loom_schedule *s, loom_timeline *t)
{
    size_t actions = 1;

    if (machine->crowd <= 1)
        return LOOM_OK;
    for (int stage = 0; stage < s->stages; stage++)
        actions += (size_t)s->stage[stage].count;
    double *room = malloc(6 * actions * sizeof *room);
    if (!room)
        return loom_fail(LOOM_E_MEMORY, "no memory for the edges of %zu actions", actions);
    moments m = {.at_us = room, .then_us = room + 2 * actions};
    double *starts = room + 4 * actions, *ends = starts + actions;
    int count = list_edges(s, t, starts, ends);
    place_moments(machine, s->stages, starts, ends, count, &m);
    move_timeline(s, &m, t);
    free(room);
    return LOOM_OK;
}
