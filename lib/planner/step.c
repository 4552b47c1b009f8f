/* The whole step: layers to stages, stages through the pipeline, reduction and optimizer behind it. */
#include <math.h>
#include <string.h>

#include "planner/split.h"

/* One pipeline rank: seconds of one micro-batch, weights, layers. */
typedef struct stage {
    loom_stage_load load;
    double forward, backward, weight;
    loom_weights weights;
} stage;

int loom_degrees_stage_of_chunk(const loom_degrees *g, int chunk)
{
    int row = chunk / g->pp, column = chunk % g->pp;
    bool folded = g->pipeline == LOOM_PIPE_ZB_V || g->pipeline == LOOM_PIPE_DUAL;
    return folded && row % 2 ? g->pp - 1 - column : column;
}

loom_layer_kind loom_layer_kind_of(const loom_model *model, int64_t layer)
{
    return loom_model_layer_has_experts(model, layer) ? LOOM_LAYER_EXPERTS : LOOM_LAYER_DENSE;
}

static void count_layers(stage *stages, const loom_job *job, const loom_degrees *g, const int *chunk_layers)
{
    int layer = 0;

    stages[0].load.first = true;
    stages[loom_degrees_stage_of_chunk(g, g->pp * g->vpp - 1)].load.last = true;
    for (int chunk = 0; chunk < g->pp * g->vpp; chunk++)
        for (int i = 0; i < chunk_layers[chunk]; i++)
            stages[loom_degrees_stage_of_chunk(g, chunk)].load.layers[loom_layer_kind_of(&job->model, layer++)]++;
}

static void weigh(stage *s, const loom_job *job, const loom_layer_table *t, const loom_memory_table *m)
{
    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        int n = s->load.layers[kind];
        s->forward += n * t->forward[kind];
        s->backward += n * t->backward[kind];
        s->weight += n * t->weight[kind];
        s->weights.dense += n * m->weights[kind].dense;
        s->weights.experts += n * m->weights[kind].experts;
    }
    if (s->load.first) {
        s->forward += t->embedding_forward;
        s->backward += t->embedding_backward;
        s->weights.dense += m->embedding;
    }
    if (s->load.last) {
        s->forward += t->head_forward;
        s->backward += t->head_backward;
        s->weight += t->head_weight;
        s->weights.dense += job->model.tied_embeddings && s->load.first ? 0 : m->head;
    }
}

static double hop_seconds(const loom_job *job, const loom_degrees *g)
{
    /* every tensor-parallel rank sends its part: split along the sequence, or scattered and gathered again inside the domain */
    double bytes = job->element * g->micro_batch * job->seq / g->cp * job->model.hidden / g->tp;

    if (g->pp == 1)
        return 0;
    return loom_soft(job, LOOM_SOFT_P2P_EXPOSED) * loom_hop_seconds(&job->machine, g->places.pp, bytes);
}

/* The tied embedding has two copies when first and last stage differ: their gradients are summed. */
static double tied_seconds(const loom_job *job, const loom_degrees *g)
{
    double bytes = loom_soft(job, LOOM_SOFT_GRADIENT_BYTES) * job->model.vocab * job->model.hidden / g->tp;

    if (!job->model.tied_embeddings || g->pp == 1)
        return 0;
    return loom_reduce_seconds(&job->machine, g->places.ends, bytes);
}

/* What comes after the pipeline: reduction and optimizer. Stage i is done with its last backward before stage 0 is, by the backwards of the
 * stages before it. */
static void add_tail(loom_step_cost *cost, const loom_job *job, const loom_degrees *g, const stage *stages)
{
    double early = 0, worst = -1, tail = 0, hidden = 0;

    for (int i = 0; i < g->pp; i++) {
        double layers = stages[i].load.layers[0] + stages[i].load.layers[1];
        loom_reduction r = loom_reduction_cost(job, g, &stages[i].weights, layers, stages[i].forward, stages[i].backward);
        double optimizer = loom_optimizer_seconds(job, g, &stages[i].weights);
        double exposed = fmax(0, r.exposed - early);
        if (exposed + optimizer > worst) {
            worst = exposed + optimizer;
            tail = exposed;
            hidden = r.hidden;
            cost->part[LOOM_TIME_OPTIMIZER] = optimizer;
        }
        early += stages[i].backward / g->vpp;
    }
    cost->part[LOOM_TIME_DP] += tail + tied_seconds(job, g);
    cost->hidden_dp += hidden;
}

/* The busiest stage's work by part, m times. */
static void add_work(loom_step_cost *cost, const loom_layer_table *t, const stage *s)
{
    loom_pass sum = {0};

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        loom_pass_add(&sum, &t->layer[kind].forward, s->load.layers[kind]);
        loom_pass_add(&sum, &t->layer[kind].backward, s->load.layers[kind]);
    }
    if (s->load.first) {
        loom_pass_add(&sum, &t->embedding.forward, 1);
        loom_pass_add(&sum, &t->embedding.backward, 1);
    }
    if (s->load.last) {
        loom_pass_add(&sum, &t->head.forward, 1);
        loom_pass_add(&sum, &t->head.backward, 1);
    }
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        cost->part[i] += cost->micro_batches * sum.part[i];
    cost->pass_dp = cost->part[LOOM_TIME_DP];
    cost->hidden_dp += cost->micro_batches * sum.hidden_dp;
}

static void add_pipeline(loom_step_cost *cost, const loom_job *job, const loom_degrees *g, const loom_layer_table *t, const stage *stages)
{
    double f[LOOM_MAX_STAGES], b[LOOM_MAX_STAGES], w[LOOM_MAX_STAGES], busiest = 0;

    for (int i = 0; i < g->pp; i++) {
        f[i] = stages[i].forward;
        b[i] = stages[i].backward;
        w[i] = stages[i].weight;
        if (f[i] + b[i] > busiest) {
            busiest = f[i] + b[i];
            cost->busiest = i;
        }
    }
    loom_pipe pipe = {g->pp, g->vpp, cost->micro_batches, g->pipeline, f, b, w, hop_seconds(job, g)};
    double makespan = loom_pipe_seconds(&pipe);
    pipe.hop = 0;
    cost->part[LOOM_TIME_PP] = makespan - loom_pipe_seconds(&pipe);
    add_work(cost, t, &stages[cost->busiest]);
    cost->part[LOOM_TIME_BUBBLE] =
        loom_crowded_bubble(&job->machine, g->pp, fmax(0, makespan - cost->part[LOOM_TIME_PP] - cost->micro_batches * busiest));
}

static void sum_up(loom_step_cost *cost, const loom_job *job, int world)
{
    double seconds = 0;

    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        seconds += cost->part[i];
    cost->part[LOOM_TIME_OTHER] += seconds * loom_soft(job, LOOM_SOFT_JITTER) * log2(world) + loom_soft(job, LOOM_SOFT_FIXED);
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        cost->seconds += cost->part[i];
}

void loom_step_cost_of(const loom_job *job, const loom_degrees *g, const loom_layer_table *layers, const loom_memory_table *memory,
                       const int *chunk_layers, loom_step_cost *cost)
{
    stage stages[LOOM_MAX_STAGES];

    memset(stages, 0, (size_t)g->pp * sizeof *stages);
    *cost = (loom_step_cost){.micro_batches = loom_micro_batches_of(job, g)};
    count_layers(stages, job, g, chunk_layers);
    for (int i = 0; i < g->pp; i++)
        weigh(&stages[i], job, layers, memory);
    add_pipeline(cost, job, g, layers, stages);
    add_tail(cost, job, g, stages);
    sum_up(cost, job, g->tp * g->cp * g->dp * g->pp);
}

void loom_step_predict(const loom_job *job, const loom_degrees *g, const int *chunk_layers, loom_step_cost *cost)
{
    loom_layer_table layers;
    loom_memory_table memory = loom_memory_table_of(job, g);

    loom_layer_table_make(job, g, &layers);
    loom_step_cost_of(job, g, &layers, &memory, chunk_layers, cost);
}
