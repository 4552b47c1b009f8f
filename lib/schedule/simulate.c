/* A schedule in virtual time. Each list runs in order, so no global clock is needed: a stage runs on until it waits for a message that nobody has
 * sent yet, and is woken when it is. Times come out the same whatever the order of running. */
#include "schedule/schedule.h"

#include <math.h>
#include <stdlib.h>

/* A message under way: when it is there, and who sent it. */
typedef struct arrival {
    double at_us; /* NaN: not sent yet */
    int stage, index;
} arrival;

typedef struct simulation {
    const loom_schedule *schedule;
    const loom_schedule_costs *costs;
    loom_timeline *line;
    int *at;              /* [stages] next action */
    double *clock_us;     /* [stages] compute queue */
    int *clock_cause;     /* [stages] the action that clock_us is the end of */
    arrival *collective;  /* [stages] end of the last action of the collective queue */
    arrival *unsharded;   /* [chunks] when its gathered weights are there */
    arrival *message;     /* [message] */
    double *link_us;      /* [from][to] when the link is free */
    int *waiting;         /* [stages] stack of those that may go on */
    int n_waiting;
    bool *is_waiting;
} simulation;

static double transfer(simulation *m, int from, int to, const loom_action *producer, double ready_us, int index)
{
    const loom_schedule_costs *c = m->costs;
    double *link = &m->link_us[(size_t)from * (size_t)m->schedule->stages + (size_t)to];
    double length = c->transfer_us ? c->transfer_us(c->context, from, to, producer) : 0;
    double start = *link > ready_us ? *link : ready_us;

    *link = start + length;
    m->message[loom_message_out(m->schedule, producer)] =
        (arrival){*link + (c->latency_us ? c->latency_us(c->context, from, to) : 0), from, index};
    if (!m->is_waiting[to]) {
        m->is_waiting[to] = true;
        m->waiting[m->n_waiting++] = to;
    }
    return length;
}

/* Moves the start of an action to `later`, when that is what it waits for. */
static void wait_for(loom_action_time *time, arrival later)
{
    if (later.at_us > time->start_us) {
        time->start_us = later.at_us;
        time->cause_stage = later.stage;
        time->cause_index = later.index;
    }
}

static double duration(const simulation *m, int stage, const loom_action *a)
{
    return m->costs->action_us ? m->costs->action_us(m->costs->context, stage, a) : 0;
}

static void compute(simulation *m, int stage, int index, const loom_action *a, loom_action_time *time)
{
    double length = duration(m, stage, a);

    wait_for(time, m->unsharded[a->chunk]);
    time->end_us = time->start_us + length;
    m->line->busy_us[stage] += length;
    m->clock_us[stage] = time->end_us;
    m->clock_cause[stage] = index;
}

static void collective(simulation *m, int stage, int index, const loom_action *a, loom_action_time *time)
{
    wait_for(time, m->collective[stage]);
    time->end_us = time->start_us + duration(m, stage, a);
    m->collective[stage] = (arrival){time->end_us, stage, index};
    if (a->kind == LOOM_UNSHARD)
        m->unsharded[a->chunk] = m->collective[stage];
}

/* Sends what the action made, and holds the stage up for its share of the transfer. */
static void send(simulation *m, int stage, int to, int index, const loom_action *a, loom_action_time *time)
{
    time->end_us += m->costs->stall_share * transfer(m, stage, to, a, time->end_us, index);
    m->clock_us[stage] = time->end_us;
    m->clock_cause[stage] = index;
}

/* Runs the next action of a stage. False: it waits for a message that is not sent yet. */
static bool step(simulation *m, int stage)
{
    const loom_schedule *s = m->schedule;
    int index = m->at[stage];
    const loom_action *a = &s->stage[stage].at[index];
    loom_action_time *time = &m->line->at[stage][index];
    bool computes = loom_is_compute(a), receives = computes && loom_action_source(s, a) >= 0;
    int to = loom_is_send(a) ? a->peer : computes && !s->has_comm ? loom_action_target(s, a) : -1;

    if (receives && isnan(m->message[loom_message_in(s, a)].at_us))
        return false;
    *time = (loom_action_time){m->clock_us[stage], m->clock_us[stage], m->clock_cause[stage] < 0 ? -1 : stage, m->clock_cause[stage]};
    if (receives)
        wait_for(time, m->message[loom_message_in(s, a)]);
    if (computes)
        compute(m, stage, index, a, time);
    else if (a->kind == LOOM_UNSHARD || a->kind == LOOM_REDUCE_GRAD)
        collective(m, stage, index, a, time);
    if (to >= 0)
        send(m, stage, to, index, a, time);
    m->at[stage]++;
    return true;
}

static loom_status run(simulation *m)
{
    const loom_schedule *s = m->schedule;

    for (int stage = s->stages - 1; stage >= 0; stage--) {
        m->is_waiting[stage] = true;
        m->waiting[m->n_waiting++] = stage;
    }
    while (m->n_waiting > 0) {
        int stage = m->waiting[--m->n_waiting];
        m->is_waiting[stage] = false;
        while (m->at[stage] < s->stage[stage].count && step(m, stage))
            ;
    }
    for (int stage = 0; stage < s->stages; stage++)
        if (m->at[stage] < s->stage[stage].count) {
            char text[64];
            return loom_fail(LOOM_E_INVALID, "the schedule stops: stage %d waits for ever in %s; loom_schedule_verify() says why", stage,
                             loom_action_describe(&s->stage[stage].at[m->at[stage]], text, sizeof text));
        }
    return LOOM_OK;
}

/* First start, last end and the makespan. */
static void sum_up(const loom_schedule *s, loom_timeline *line)
{
    for (int stage = 0; stage < s->stages; stage++) {
        for (int i = 0; i < s->stage[stage].count; i++) {
            const loom_action_time *time = &line->at[stage][i];
            bool works = time->end_us > time->start_us;
            if (works && (line->last_us[stage] == 0 || time->start_us < line->first_us[stage]))
                line->first_us[stage] = time->start_us;
            if (time->end_us > line->last_us[stage])
                line->last_us[stage] = time->end_us;
        }
        if (line->last_us[stage] > line->makespan_us)
            line->makespan_us = line->last_us[stage];
    }
}

static bool open_timeline(const loom_schedule *s, loom_timeline *line)
{
    size_t stages = (size_t)s->stages;

    *line = (loom_timeline){.stages = s->stages};
    line->busy_us = calloc(stages, sizeof *line->busy_us);
    line->first_us = calloc(stages, sizeof *line->first_us);
    line->last_us = calloc(stages, sizeof *line->last_us);
    line->at = calloc(stages, sizeof *line->at);
    if (!line->busy_us || !line->first_us || !line->last_us || !line->at)
        return false;
    for (int i = 0; i < s->stages; i++) /* one more: calloc(0) may give NULL */
        if (!(line->at[i] = calloc((size_t)s->stage[i].count + 1, sizeof *line->at[i])))
            return false;
    return true;
}

void loom_timeline_free(loom_timeline *line)
{
    for (int i = 0; line->at && i < line->stages; i++)
        free(line->at[i]);
    free(line->at);
    free(line->busy_us);
    free(line->first_us);
    free(line->last_us);
    *line = (loom_timeline){0};
}

static bool open_simulation(simulation *m)
{
    size_t stages = (size_t)m->schedule->stages, chunks = (size_t)loom_chunk_count(m->schedule), messages = loom_message_count(m->schedule);

    m->at = calloc(stages, sizeof *m->at);
    m->clock_us = calloc(stages, sizeof *m->clock_us);
    m->clock_cause = malloc(stages * sizeof *m->clock_cause);
    m->collective = calloc(stages, sizeof *m->collective);
    m->unsharded = calloc(chunks, sizeof *m->unsharded);
    m->message = malloc(messages * sizeof *m->message);
    m->link_us = calloc(stages * stages, sizeof *m->link_us);
    m->waiting = calloc(stages, sizeof *m->waiting);
    m->is_waiting = calloc(stages, sizeof *m->is_waiting);
    if (!m->at || !m->clock_us || !m->clock_cause || !m->collective || !m->unsharded || !m->message || !m->link_us || !m->waiting || !m->is_waiting)
        return false;
    for (size_t i = 0; i < stages; i++)
        m->clock_cause[i] = -1;
    for (size_t i = 0; i < messages; i++)
        m->message[i] = (arrival){NAN, -1, -1};
    return true;
}

static void close_simulation(simulation *m)
{
    free(m->at);
    free(m->clock_us);
    free(m->clock_cause);
    free(m->collective);
    free(m->unsharded);
    free(m->message);
    free(m->link_us);
    free(m->waiting);
    free(m->is_waiting);
}

loom_status loom_schedule_simulate(const loom_schedule *schedule, const loom_schedule_costs *costs, loom_timeline *timeline)
{
    loom_timeline line;
    simulation m = {.schedule = schedule, .costs = costs, .line = &line};
    bool room = open_timeline(schedule, &line);
    loom_status status = open_simulation(&m) && room ? run(&m) : loom_fail(LOOM_E_MEMORY, "no memory to simulate %d stages", schedule->stages);

    close_simulation(&m);
    if (status < 0) {
        loom_timeline_free(&line);
        return status;
    }
    sum_up(schedule, &line);
    *timeline = line;
    return LOOM_OK;
}
