/* The public prediction: time and interval, memory of every stage, rates. */
#include "planner/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <rankloom/engine.h>

#include "planner/calibrate.h"
#include "planner/forecast.h"
#include "planner/interval.h"
#include "planner/job.h"
#include "planner/limits.h"

const char *loom_time_part_name(loom_time_part part)
{
    static const char *const names[LOOM_TIME_PARTS] = {"gemm", "attention", "pointwise", "launch", "tp",        "cp",
                                                       "ep",   "dp",        "pp",        "bubble", "optimizer", "other"};
    return part >= 0 && part < LOOM_TIME_PARTS ? names[part] : "unknown part";
}

const char *loom_memory_part_name(loom_memory_part part)
{
    static const char *const names[LOOM_MEMORY_PARTS] = {"weights", "gradients", "optimizer", "activations", "transient",
                                                         "logits",  "loss",      "buffers",   "workspace",   "slack"};
    return part >= 0 && part < LOOM_MEMORY_PARTS ? names[part] : "unknown part";
}

/* The simulated pipeline in place of the closed form: what is not work of the busiest stage is messages and bubble. */
static void use_simulation(const loom_job *job, const loom_degrees *g, const loom_layer_table *layers, const int *chunk_layers,
                           loom_step_cost *cost)
{
    double with, without, old = cost->part[LOOM_TIME_PP] + cost->part[LOOM_TIME_BUBBLE], work = cost->pass_dp;

    if (!loom_simulate_pipeline(job, g, layers, chunk_layers, true, &with) ||
        !loom_simulate_pipeline(job, g, layers, chunk_layers, false, &without))
        return;
    for (int i = LOOM_TIME_GEMM; i <= LOOM_TIME_EP; i++)
        work += cost->part[i];
    double waits = without - work, grown = with - work - old;
    double spread = 1 + loom_soft(job, LOOM_SOFT_JITTER) * log2(g->tp * g->cp * g->dp * g->pp);
    for (int i = LOOM_TIME_GEMM; waits < 0 && i <= LOOM_TIME_EP; i++) /* the busiest stage is quicker while others leave it their cores */
        cost->part[i] *= without / work;
    cost->part[LOOM_TIME_BUBBLE] = fmax(0, waits);
    cost->part[LOOM_TIME_PP] = (with - without);
    cost->part[LOOM_TIME_OTHER] += grown * (spread - 1);
    cost->seconds += grown * spread;
}

enum { MOST_FORECAST = 400000 }; /* actions of a schedule to go through: about a tenth of a second */

/* The ledger's rows of a rank of this engine. Of tp ranks the first or the last holds most where features are cut unevenly. */
static bool forecast_stage(const loom_job *job, const loom_layout *layout, const loom_schedule *schedule, int stage, loom_stage_memory *to)
{
    static const loom_memory_part part_of[LOOM_MEM_USES] = {
        [LOOM_MEM_WEIGHTS] = LOOM_MEMORY_WEIGHTS, [LOOM_MEM_GRADIENTS] = LOOM_MEMORY_GRADIENTS,     [LOOM_MEM_OPTIMIZER] = LOOM_MEMORY_OPTIMIZER,
        [LOOM_MEM_LOGITS] = LOOM_MEMORY_LOGITS,   [LOOM_MEM_ACTIVATIONS] = LOOM_MEMORY_ACTIVATIONS, [LOOM_MEM_COMM] = LOOM_MEMORY_BUFFERS,
        [LOOM_MEM_OTHER] = LOOM_MEMORY_WORKSPACE, [LOOM_MEM_WORKSPACE] = LOOM_MEMORY_WORKSPACE,     [LOOM_MEM_KERNELS] = LOOM_MEMORY_WORKSPACE};
    loom_rank_forecast most = {0}, f;

    for (int tp = 0; tp < layout->tp; tp += layout->tp > 1 ? layout->tp - 1 : 1) {
        if (loom_forecast_on(&job->model, layout, schedule, loom_layout_rank(layout, (int[4]){tp, 0, 0, stage}), NULL, &f) < 0)
            return false;
        most = f.memory_total > most.memory_total ? f : most;
    }
    memset(to->part, 0, sizeof to->part);
    for (int use = 0; use < LOOM_MEM_USES; use++)
        to->part[part_of[use]] += (double)most.memory[use];
    to->allocated = (double)most.memory_total;
    to->part[LOOM_MEMORY_SLACK] = loom_soft(job, LOOM_SOFT_FRAGMENTS) * to->allocated + loom_soft(job, LOOM_SOFT_CONTEXT_BYTES);
    to->total = to->allocated + to->part[LOOM_MEMORY_SLACK];
    to->parameters = (double)most.parameters;
    return true;
}

static bool forecast_stages(const loom_job *job, const loom_layout *layout, const loom_schedule *schedule, loom_stage_memory *to)
{
    for (int stage = 0; stage < layout->pp; stage++)
        if (!forecast_stage(job, layout, schedule, stage, &to[stage]))
            return false;
    return true;
}

/* What this engine does not train keeps the formulas for frameworks. */
static void forecast_memory(const loom_job *job, loom_prediction *p)
{
    loom_layout layout = p->layout;
    loom_schedule *schedule;

    if (!job->forecast || loom_layout_check(&layout, &job->model, 0) < 0 || 4 * p->micro_batches * layout.pp * layout.vpp > MOST_FORECAST ||
        loom_engine_check_model(&job->model) < 0 || loom_engine_check_layout(&layout) < 0 || loom_schedule_for_layout(&layout, &schedule) < 0)
        return;
    p->memory_exact = forecast_stages(job, &layout, schedule, p->memory);
    loom_schedule_free(schedule);
}

static void fill_memory(const loom_job *job, const loom_degrees *g, const int *chunk_layers, double limit, loom_prediction *p)
{
    p->stages = g->pp;
    p->memory_limit = limit;
    for (int stage = 0; stage < g->pp; stage++) {
        loom_memory m = loom_stage_memory_of(job, g, chunk_layers, stage);
        loom_stage_memory *to = &p->memory[stage];
        memcpy(to->part, m.part, sizeof to->part);
        to->allocated = m.allocated;
        to->total = m.total;
        to->parameters = m.parameters;
        to->layers = m.layers;
        to->in_flight = (int)ceil(m.in_flight * g->vpp - 1e-9);
    }
    forecast_memory(job, p);
    for (int stage = 1; stage < g->pp; stage++)
        if (p->memory[stage].total > p->memory[p->fullest].total)
            p->fullest = stage;
    p->fits = p->memory[p->fullest].total <= limit;
}

static double peak_of(const loom_job *job)
{
    double peak = loom_dev(&job->machine, job->bits == 8 ? LOOM_DEV_PEAK_8 : job->bits == 4 ? LOOM_DEV_PEAK_4 : LOOM_DEV_PEAK_16);
    return peak > 0 ? peak : loom_dev(&job->machine, LOOM_DEV_PEAK_16);
}

/* Share of the model flop that recompute adds: a forward is a third; selective repeats little and only what is memory-bound. */
static double again(const loom_degrees *g)
{
    return g->recompute == LOOM_RECOMPUTE_FULL ? 4.0 / 3 : 1;
}

static void fill_rates(const loom_job *job, const loom_degrees *g, loom_prediction *p)
{
    double world = (double)g->tp * g->cp * g->dp * g->pp, peak = peak_of(job) * world * p->step_s;

    p->tokens_per_s = (double)job->global_batch * job->seq / p->step_s;
    p->tokens_per_s_per_gpu = p->tokens_per_s / world;
    p->mfu_full = loom_model_flop(&job->model, job->global_batch, job->seq, false) / peak;
    p->mfu_causal = loom_model_flop(&job->model, job->global_batch, job->seq, true) / peak;
    p->hfu = p->mfu_full * again(g);
}

void loom_step_simulate(const loom_job *job, const loom_degrees *g, const int *chunk_layers, loom_step_cost *cost)
{
    loom_layer_table layers;
    loom_memory_table memory = loom_memory_table_of(job, g);

    loom_layer_table_make(job, g, &layers);
    loom_step_cost_of(job, g, &layers, &memory, chunk_layers, cost);
    use_simulation(job, g, &layers, chunk_layers, cost);
    loom_calibration_apply(&job->calibration, g, cost);
}

loom_status loom_predict_degrees(const loom_job *job, const loom_degrees *g, const int *chunk_layers, double memory_limit,
                                 loom_prediction *p)
{
    loom_step_cost cost;

    memset(p, 0, sizeof *p);
    loom_step_simulate(job, g, chunk_layers, &cost);
    loom_layout_of_degrees(g, job, chunk_layers, &p->layout);
    p->step_s = cost.seconds;
    loom_interval(job, g, chunk_layers, cost.seconds, &p->low_s, &p->high_s);
    memcpy(p->part_s, cost.part, sizeof p->part_s);
    p->hidden_dp_s = cost.hidden_dp;
    p->micro_batches = cost.micro_batches;
    p->busiest = cost.busiest;
    p->default_share = loom_default_share(job, &cost);
    double busy = cost.seconds - cost.part[LOOM_TIME_BUBBLE];
    p->bubble = busy > 0 ? cost.part[LOOM_TIME_BUBBLE] / busy : 0;
    fill_memory(job, g, chunk_layers, memory_limit, p);
    fill_rates(job, g, p);
    return LOOM_OK;
}

/* --- the public calls ------------------------------------------------------------------------------------------------------------ */

loom_status loom_plan_layout(const loom_plan_request *request, const char *text, loom_layout *layout)
{
    int world = loom_topology_ranks(request->topology);

    if (request->max_gpus > 0 && request->max_gpus < world)
        world = request->max_gpus;
    loom_layout_default(request->model, layout);
    layout->global_batch = request->train.global_batch;
    layout->seq = request->train.seq > 0 ? request->train.seq : request->model->seq;
    layout->micro_batch = request->train.micro_batch > 0 ? request->train.micro_batch : 1;
    layout->zero = 1;
    loom_status status = loom_layout_parse(text, text, layout);
    return status < 0 ? status : loom_layout_check(layout, request->model, world);
}

/* A measured layout, resolved. */
typedef struct measured_layout {
    loom_degrees degrees;
    int chunk_layers[LOOM_MAX_STAGES];
} measured_layout;

static loom_status read_measured(const loom_plan_request *request, const loom_job *job, measured_layout *layouts, loom_timed_step *steps)
{
    for (int i = 0; i < request->n_measured; i++) {
        const loom_measured_step *measured = &request->measured[i];
        loom_layout layout;
        loom_status status = loom_plan_layout(request, measured->layout, &layout);
        if (status < 0)
            return status;
        if (!(measured->seconds > 0))
            return loom_fail(LOOM_E_INVALID, "measured step %s: %g s is no time", measured->layout, measured->seconds);
        loom_degrees_of_layout(&layout, job, &layouts[i].degrees, layouts[i].chunk_layers);
        steps[i] = (loom_timed_step){&layouts[i].degrees, layouts[i].chunk_layers, measured->seconds};
    }
    return LOOM_OK;
}

loom_status loom_job_calibrate(const loom_plan_request *request, loom_job *job)
{
    loom_timed_step steps[LOOM_MOST_MEASURED];
    measured_layout *layouts;

    if (request->n_measured < 1)
        return LOOM_OK;
    if (request->n_measured > LOOM_MOST_MEASURED)
        return loom_fail(LOOM_E_INVALID, "%d measured steps; at most %d are taken", request->n_measured, LOOM_MOST_MEASURED);
    if (!(layouts = calloc((size_t)request->n_measured, sizeof *layouts)))
        return loom_fail(LOOM_E_MEMORY, "no memory for %d measured steps", request->n_measured);
    loom_status status = read_measured(request, job, layouts, steps);
    if (status >= 0) {
        loom_calibration calibration;
        loom_calibration_learn(job, steps, request->n_measured, &calibration);
        loom_calibrate(job, &calibration);
    }
    free(layouts);
    return status;
}

loom_status loom_plan_predict(const loom_plan_request *request, const loom_layout *layout, loom_prediction *prediction)
{
    loom_job job;
    loom_degrees g;
    int chunk_layers[LOOM_MAX_STAGES];
    loom_status status = loom_job_make(request, &job);

    if (status >= 0)
        status = loom_job_calibrate(request, &job);
    if (status < 0)
        return status;
    loom_degrees_of_layout(layout, &job, &g, chunk_layers);
    return loom_predict_degrees(&job, &g, chunk_layers, loom_job_memory_limit(request, &job), prediction);
}
