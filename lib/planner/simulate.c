/* The pipeline in virtual time: the schedule that the engine would run, with this model's passes and messages. */
#include <rankloom/schedule.h>

#include "planner/crowd.h"
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
               loom_schedule_simulate(schedule, &schedule_costs, &timeline) == LOOM_OK && loom_crowd_timeline(&job->machine, schedule, &timeline) == LOOM_OK;
    if (ran)
        *seconds = 1e-6 * timeline.makespan_us;
    loom_timeline_free(&timeline);
    loom_schedule_free(schedule);
    return ran;
}
