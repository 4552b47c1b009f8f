/* Lowering: puts the sends and receives into a compute-only schedule.
 *
 * Receives are posted ahead by virtual time (F 1 unit, B 2, I and W 1): before action i of a stage stand the receives of all messages that are
 * made no later than action i ends. So in that time every receive is posted strictly before its message is sent. All other orders (lists,
 * producers before sends, sends before consumers) follow the same clock, hence no cycle: the lowered schedule runs even when sends
 * block without any buffer. */
#include "schedule/lower.h"

#include <stdlib.h>
#include <string.h>

#include "core/try.h"

/* A message on its way, in the order in which its sender makes it. */
typedef struct message {
    int from, to, index; /* index: of the producer, in the list of `from` */
    int channel;
    double made_us;
    loom_action producer;
} message;

/* The messages of one ordered pair of stages; those before `next` have their receive in the list. */
typedef struct channel {
    int next, end;
} channel;

typedef struct traffic {
    message *at; /* channel by channel, in sending order; channels to one stage side by side */
    int count;
    int *place; /* [loom_message_count()] where a message is in `at`; -1: nobody makes it */
    channel *channels;
    int n_channels;
    int *channels_to; /* [stages + 1] channels to stage i are channels_to[i] .. channels_to[i + 1] - 1 */
} traffic;

static int by_channel(const void *left, const void *right)
{
    const message *a = left, *b = right;

    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* `line` NULL: times are not asked for. */
static void collect(const loom_schedule *s, const loom_timeline *line, traffic *t)
{
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->stage[stage].count; i++) {
            const loom_action *action = &s->stage[stage].at[i];
            int to = loom_action_target(s, action);
            if (to >= 0)
                t->at[t->count++] = (message){stage, to, i, 0, line ? line->at[stage][i].end_us : 0, *action};
        }
    qsort(t->at, (size_t)t->count, sizeof *t->at, by_channel);
}

static void sort_into_channels(const loom_schedule *s, traffic *t)
{
    for (int k = 0; k < t->count; k++) {
        message *m = &t->at[k];
        if (k == 0 || m[-1].from != m->from || m[-1].to != m->to) {
            t->channels[t->n_channels++] = (channel){k, k};
            t->channels_to[m->to + 1]++;
        }
        m->channel = t->n_channels - 1;
        t->channels[m->channel].end = k + 1;
        t->place[loom_message_out(s, &m->producer)] = k;
    }
    for (int stage = 0; stage < s->stages; stage++)
        t->channels_to[stage + 1] += t->channels_to[stage];
}

static loom_status open_traffic(const loom_schedule *s, const loom_timeline *line, traffic *t)
{
    size_t most = loom_message_count(s);

    t->at = calloc(most, sizeof *t->at);
    t->place = malloc(most * sizeof *t->place);
    t->channels = calloc(most, sizeof *t->channels);
    t->channels_to = calloc((size_t)s->stages + 1, sizeof *t->channels_to);
    if (!t->at || !t->place || !t->channels || !t->channels_to)
        return loom_fail(LOOM_E_MEMORY, "no memory for %zu messages of a schedule", most);
    memset(t->place, -1, most * sizeof *t->place);
    collect(s, line, t);
    sort_into_channels(s, t);
    return LOOM_OK;
}

static void close_traffic(traffic *t)
{
    free(t->at);
    free(t->place);
    free(t->channels);
    free(t->channels_to);
}

/* Puts the receives of a channel into the list up to and with message `last`. */
static loom_status post(loom_stage_actions *list, const traffic *t, channel *c, int last)
{
    while (c->next <= last) {
        const message *m = &t->at[c->next];
        loom_action recv = m->producer;
        loom_status status;

        recv.kind = recv.kind == LOOM_FORWARD ? LOOM_RECV_F : LOOM_RECV_B;
        recv.peer = (int16_t)m->from;
        if ((status = loom_stage_append(list, recv)) < 0)
            return status;
        c->next++;
    }
    return LOOM_OK;
}

/* What has to be posted before an action that ends at `end_us`: everything that is made by then. */
static loom_status post_ahead(loom_stage_actions *list, traffic *t, int stage, double end_us)
{
    for (int i = t->channels_to[stage]; i < t->channels_to[stage + 1]; i++) {
        channel *c = &t->channels[i];
        int last = c->next - 1;
        loom_status status;

        while (last + 1 < c->end && t->at[last + 1].made_us <= end_us)
            last++;
        if ((status = post(list, t, c, last)) < 0)
            return status;
    }
    return LOOM_OK;
}

static loom_status append_send(const loom_schedule *s, loom_stage_actions *list, loom_action action)
{
    int to = loom_action_target(s, &action);

    if (to < 0)
        return LOOM_OK;
    action.kind = action.kind == LOOM_FORWARD ? LOOM_SEND_F : LOOM_SEND_B;
    action.peer = (int16_t)to;
    return loom_stage_append(list, action);
}

static loom_status lower_stage(const loom_schedule *s, int stage, const loom_timeline *line, traffic *t, loom_stage_actions *list)
{
    loom_status status;
    char text[64];

    for (int i = 0; i < s->stage[stage].count; i++) {
        const loom_action *action = &s->stage[stage].at[i];

        if (loom_action_source(s, action) >= 0) {
            int k = t->place[loom_message_in(s, action)];
            if (k < 0)
                return loom_fail(LOOM_E_INVALID, "nothing makes what %s waits for", loom_action_describe(action, text, sizeof text));
            /* what is used, and when ahead is asked for, the one behind it: it travels while this one is used */
            LOOM_TRY(post(list, t, &t->channels[t->at[k].channel], line && k + 1 < t->channels[t->at[k].channel].end ? k + 1 : k));
        }
        if (line)
            LOOM_TRY(post_ahead(list, t, stage, line->at[stage][i].end_us));
        LOOM_TRY(loom_stage_append(list, *action));
        LOOM_TRY(append_send(s, list, *action));
    }
    return LOOM_OK;

fail:
    return status;
}

static loom_status lower(loom_schedule *s, const loom_timeline *line)
{
    loom_stage_actions *lowered = calloc((size_t)s->stages, sizeof *lowered);
    traffic t = {0};
    loom_status status = lowered ? open_traffic(s, line, &t) : loom_fail(LOOM_E_MEMORY, "no memory to lower a schedule of %d stages", s->stages);

    for (int i = 0; i < s->stages && status == LOOM_OK; i++)
        status = lower_stage(s, i, line, &t, &lowered[i]);
    for (int i = 0; i < s->stages && lowered; i++) {
        free(status == LOOM_OK ? s->stage[i].at : lowered[i].at);
        if (status == LOOM_OK)
            s->stage[i] = lowered[i];
    }
    s->has_comm |= status == LOOM_OK;
    free(lowered);
    close_traffic(&t);
    return status;
}

loom_status loom_lower_at_use(loom_schedule *schedule)
{
    return lower(schedule, NULL);
}

static double unit_cost(void *context, int stage, const loom_action *a)
{
    return a->kind == LOOM_BACKWARD ? 2 : loom_is_compute(a) ? 1 : 0;
}

loom_status loom_schedule_add_comm(loom_schedule *schedule)
{
    const loom_schedule_costs costs = {.action_us = unit_cost};
    loom_timeline line;
    loom_status status;

    if (schedule->has_comm)
        return loom_fail(LOOM_E_INVALID, "the schedule has its sends and receives already");
    if ((status = loom_schedule_simulate(schedule, &costs, &line)) < 0)
        return status;
    status = lower(schedule, &line);
    loom_timeline_free(&line);
    return status;
}
