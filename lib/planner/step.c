/* The whole step: layers to stages, stages through the pipeline, reduction and optimizer behind it. */
#include "planner/cost.h"

#include <math.h>
#include <stdlib.h>

/* One pipeline rank: its passes per micro-batch, its weights, and how many layers it has. */
typedef struct stage {
    loom_pass_pair pass;
    loom_weights weights;
    int layers;
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

static void add_layers(stage *at, const loom_job *job, const loom_pass_pair *costs, const loom_weights *weights, int first, int count)
{
    for (int layer = first; layer < first + count; layer++) {
        loom_layer_kind kind = loom_layer_kind_of(&job->model, layer);
        loom_pass_add(&at->pass.forward, &costs[kind].forward, 1);
        loom_pass_add(&at->pass.backward, &costs[kind].backward, 1);
        at->weights.dense += weights[kind].dense;
        at->weights.experts += weights[kind].experts;
        at->layers++;
    }
}

static void add_ends(stage *stages, const loom_job *job, const loom_degrees *g)
{
    stage *first = &stages[0], *last = &stages[loom_degrees_stage_of_chunk(g, g->pp * g->vpp - 1)];
    loom_pass_pair embedding = loom_embedding_cost(job, g), head = loom_head_cost(job, g);

    loom_pass_add(&first->pass.forward, &embedding.forward, 1);
    loom_pass_add(&first->pass.backward, &embedding.backward, 1);
    first->weights.dense += loom_embedding_weights(&job->model, g);
    loom_pass_add(&last->pass.forward, &head.forward, 1);
    loom_pass_add(&last->pass.backward, &head.backward, 1);
    last->weights.dense += job->model.tied_embeddings && first == last ? 0 : loom_head_weights(&job->model, g);
}

static void fill_stages(stage *stages, const loom_job *job, const loom_degrees *g, const int *chunk_layers)
{
    loom_pass_pair costs[LOOM_LAYER_KINDS] = {0};
    loom_weights weights[LOOM_LAYER_KINDS] = {0};
    int layer = 0;

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        if (kind == LOOM_LAYER_EXPERTS && job->model.moe.experts == 0)
            continue;
        costs[kind] = loom_layer_cost(job, g, kind);
        weights[kind] = loom_layer_weights(&job->model, g, kind);
    }
    for (int chunk = 0; chunk < g->pp * g->vpp; chunk++) {
        add_layers(&stages[loom_degrees_stage_of_chunk(g, chunk)], job, costs, weights, layer, chunk_layers[chunk]);
        layer += chunk_layers[chunk];
    }
    add_ends(stages, job, g);
}

static double hop_seconds(const loom_job *job, const loom_degrees *g)
{
    /* every tensor-parallel rank sends its part: split along the sequence, or scattered and gathered again inside the domain */
    double bytes = 2.0 * g->micro_batch * job->seq / g->cp * job->model.hidden / g->tp;

    if (g->pp == 1)
        return 0;
    return loom_soft(job, LOOM_SOFT_P2P_EXPOSED) * loom_hop_seconds(&job->machine, g->tp * g->cp * g->dp, bytes);
}

/* The tied embedding has two copies when first and last stage differ: their gradients are summed. */
static double tied_seconds(const loom_job *job, const loom_degrees *g)
{
    double bytes = loom_soft(job, LOOM_SOFT_GRADIENT_BYTES) * job->model.vocab * job->model.hidden / g->tp;

    if (!job->model.tied_embeddings || g->pp == 1)
        return 0;
    return loom_reduce_seconds(&job->machine, (loom_group){2, g->tp * g->cp * g->dp * (g->pp - 1)}, bytes);
}

/* What comes after the pipeline on each stage: reduction and optimizer. Stage i is done with its last backward before stage 0 is, by the
 * backwards of the stages before it. */
static void add_tail(loom_step_cost *cost, const loom_job *job, const loom_degrees *g, const stage *stages)
{
    double early = 0, worst = -1;

    for (int i = 0; i < g->pp; i++) {
        double f = loom_pass_seconds(&stages[i].pass.forward), b = loom_pass_seconds(&stages[i].pass.backward);
        loom_reduction r = loom_reduction_cost(job, g, &stages[i].weights, stages[i].layers, f, b, cost->micro_batches);
        double optimizer = loom_optimizer_seconds(job, g, &stages[i].weights);
        double tail = fmax(0, r.exposed - early) + optimizer;
        if (tail > worst) {
            worst = tail;
            cost->part[LOOM_TIME_DP] = fmax(0, r.exposed - early);
            cost->part[LOOM_TIME_OPTIMIZER] = optimizer;
            cost->hidden_dp = r.hidden;
        }
        early += b / g->vpp;
    }
    cost->part[LOOM_TIME_DP] += tied_seconds(job, g);
}

static void add_pipeline(loom_step_cost *cost, const loom_job *job, const loom_degrees *g, const stage *stages)
{
    double f[LOOM_MAX_STAGES], b[LOOM_MAX_STAGES], w[LOOM_MAX_STAGES];
    double hop = hop_seconds(job, g), busiest = 0;

    for (int i = 0; i < g->pp; i++) {
        f[i] = loom_pass_seconds(&stages[i].pass.forward);
        b[i] = loom_pass_seconds(&stages[i].pass.backward);
        w[i] = stages[i].pass.backward.weight;
        if (f[i] + b[i] > busiest) {
            busiest = f[i] + b[i];
            cost->busiest = i;
        }
    }
    loom_pipe pipe = {g->pp, g->vpp, cost->micro_batches, g->pipeline, f, b, w, hop};
    double makespan = loom_pipe_seconds(&pipe);
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        cost->part[i] += cost->micro_batches * (stages[cost->busiest].pass.forward.part[i] + stages[cost->busiest].pass.backward.part[i]);
    pipe.hop = 0;
    cost->part[LOOM_TIME_PP] = makespan - loom_pipe_seconds(&pipe);
    cost->part[LOOM_TIME_BUBBLE] = fmax(0, makespan - cost->part[LOOM_TIME_PP] - cost->micro_batches * busiest);
}

loom_status loom_step_predict(const loom_job *job, const loom_degrees *g, const int *chunk_layers, loom_step_cost *cost)
{
    stage *stages = calloc((size_t)g->pp, sizeof *stages);
    int world = g->tp * g->cp * g->dp * g->pp;
    loom_step_cost c = {0};

    if (!stages)
        return loom_fail(LOOM_E_MEMORY, "no memory for %d stages", g->pp);
    c.micro_batches = job->global_batch / ((int64_t)g->micro_batch * g->dp);
    fill_stages(stages, job, g, chunk_layers);
    add_pipeline(&c, job, g, stages);
    add_tail(&c, job, g, stages);
    free(stages);
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        c.seconds += c.part[i];
    c.part[LOOM_TIME_OTHER] += c.seconds * loom_soft(job, LOOM_SOFT_JITTER) * log2(world > 1 ? world : 1) + loom_soft(job, LOOM_SOFT_FIXED);
    c.seconds = 0;
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        c.seconds += c.part[i];
    *cost = c;
    return LOOM_OK;
}
