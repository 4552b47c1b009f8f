/* The pipeline in virtual time: the schedule that the engine would run, with this model's passes and messages. */
#include <rankloom/schedule.h>

#include <math.h>
#include <stdlib.h>

#include "planner/job.h"
#include "planner/predict.h"

enum { MOST_ACTIONS = 400000 }; /* about a tenth of a second */

typedef struct costs {
    const loom_degrees *g;
    double forward_us[LOOM_MAX_STAGES], backward_us[LOOM_MAX_STAGES], weight_us[LOOM_MAX_STAGES]; /* of a chunk */
    double hop_us;
} costs;

static double action_us(void *context, int stage, const loom_action *action)
{
    const costs *c = context;

    (void)stage;
    switch (action->kind) {
    case LOOM_FORWARD:
        return c->forward_us[action->chunk];
    case LOOM_BACKWARD:
        return c->backward_us[action->chunk];
    case LOOM_BACKWARD_INPUT:
        return c->backward_us[action->chunk] - c->weight_us[action->chunk];
    case LOOM_BACKWARD_WEIGHT:
        return c->weight_us[action->chunk];
    default:
        return 0;
    }
}

static double transfer_us(void *context, int from, int to, const loom_action *producer)
{
    (void)from, (void)to, (void)producer;
    return ((const costs *)context)->hop_us;
}

static void fill_costs(costs *c, const loom_job *job, const loom_degrees *g, const loom_layer_table *t, const int *chunk_layers)
{
    int layer = 0, chunks = g->pp * g->vpp;

    for (int chunk = 0; chunk < chunks; chunk++) {
        double f = chunk == 0 ? t->embedding_forward : 0, b = chunk == 0 ? t->embedding_backward : 0, w = 0;
        for (int i = 0; i < chunk_layers[chunk]; i++) {
            loom_layer_kind kind = loom_layer_kind_of(&job->model, layer++);
            f += t->forward[kind];
            b += t->backward[kind];
            w += t->weight[kind];
        }
        if (chunk == chunks - 1) {
            f += t->head_forward;
            b += t->head_backward;
            w += t->head_weight;
        }
        c->forward_us[chunk] = f * 1e6;
        c->backward_us[chunk] = b * 1e6;
        c->weight_us[chunk] = w * 1e6;
    }
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Starts and ends of the actions with costs, each sorted; returns how many. */
static int list_edges(const loom_schedule *s, const loom_timeline *t, double *starts, double *ends)
{
    int count = 0;

    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->stage[stage].count; i++)
            if (t->at[stage][i].end_us > t->at[stage][i].start_us) {
                starts[count] = t->at[stage][i].start_us;
                ends[count++] = t->at[stage][i].end_us;
            }
    qsort(starts, (size_t)count, sizeof *starts, by_time);
    qsort(ends, (size_t)count, sizeof *ends, by_time);
    return count;
}

/* Where ranks share cores the costs are those of a rank while all are at work. While only `active` of the stages are, each gets more of the cores,
 * up to one for each rank: that stretch of the timeline is as much shorter. */
static double crowded_us(const loom_machine *machine, const loom_schedule *s, const loom_timeline *t)
{
    size_t actions = 0;
    double us = t->makespan_us;

    for (int stage = 0; stage < s->stages; stage++)
        actions += (size_t)s->stage[stage].count;
    double *starts = malloc((2 * actions + 1) * sizeof *starts), *ends = starts + actions, now = 0;
    int count = starts ? list_edges(s, t, starts, ends) : 0;
    for (int started = 0, ended = 0; ended < count;) {
        int active = started - ended;
        bool starts_one = started < count && starts[started] < ends[ended];
        double next = starts_one ? starts[started] : ends[ended];
        double faster = active > 0 ? fmin(machine->crowd, (double)s->stages / active) : 1;
        us -= (next - now) * (1 - 1 / faster);
        now = next;
        *(starts_one ? &started : &ended) += 1;
    }
    free(starts);
    return us;
}

bool loom_simulate_pipeline(const loom_job *job, const loom_degrees *g, const loom_layer_table *layers, const int *chunk_layers, bool hops,
                            double *seconds)
{
    costs c = {.g = g};
    loom_schedule *schedule = NULL;
    loom_timeline timeline = {0};
    int64_t m = loom_micro_batches_of(job, g);
    double bytes = job->element * g->micro_batch * job->seq / g->cp * job->model.hidden / g->tp;

    if (g->pp == 1 || g->pipeline == LOOM_PIPE_ZB_H2 || g->pipeline == LOOM_PIPE_DUAL || 4 * m * g->pp * g->vpp > MOST_ACTIONS)
        return false;
    fill_costs(&c, job, g, layers, chunk_layers);
    c.hop_us = hops ? 1e6 * loom_hop_seconds(&job->machine, g->places.pp, bytes) : 0;
    loom_schedule_costs schedule_costs = {&c, action_us, transfer_us, NULL, loom_soft(job, LOOM_SOFT_P2P_EXPOSED)};
    bool ran = loom_schedule_generate(loom_schedule_kind_of(g->pipeline), g->pp, g->vpp, (int)m, &schedule) == LOOM_OK &&
               loom_schedule_simulate(schedule, &schedule_costs, &timeline) == LOOM_OK;
    if (ran)
        *seconds = 1e-6 * (job->machine.crowd > 1 ? crowded_us(&job->machine, schedule, &timeline) : timeline.makespan_us);
    loom_timeline_free(&timeline);
    loom_schedule_free(schedule);
    return ran;
}
