#include "trainer.h"
#include "names.h"
#include "try.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_dry(const gpt_trainer *t)
{
    return loom_device_get_kind(t->device) == LOOM_DRY;
}

static loom_status open_data(gpt_trainer *t)
{
    const gpt_run *run = t->run;
    int64_t seq = run->layout.seq, local = seq / run->layout.cp, count;

    t->samples = run->layout.global_batch / run->layout.dp;
    count = t->samples * local;
    t->tokens = calloc((size_t)count, sizeof *t->tokens);
    t->targets = calloc((size_t)count, sizeof *t->targets);
    t->whole = calloc((size_t)(2 * seq), sizeof *t->whole);
    t->positions = calloc((size_t)local, sizeof *t->positions);
    if (!t->tokens || !t->targets || !t->whole || !t->positions)
        return loom_fail(LOOM_E_MEMORY, "no memory for %lld tokens of a step", (long long)count);
    loom_cp_split(seq, run->layout.cp, t->mesh->here.at[LOOM_AXIS_CP], t->positions);
    if (is_dry(t))
        return LOOM_OK;
    return gpt_data_open(run->data.path, run->data.tokenizer, run->data.order, run->layout.seq, run->model.vocab, &t->data);
}

static loom_status watch_cp_groups(gpt_trainer *t)
{
    const loom_comm *groups[2];
    int count = loom_cp_groups(t->stage->shape.cp, groups);

    for (int i = 0; i < count; i++)
        TRY(loom_monitor_watch(t->monitor, groups[i], LOOM_TIME_COMM_CP));
    return LOOM_OK;
}

static loom_status open_model(gpt_trainer *t)
{
    const gpt_run *run = t->run;
    loom_dp_config dp = {.adamw = run->train.adamw};
    loom_stage_ops ops;

    TRY(loom_tp_open(t->mesh, t->kernels, t->compute, &t->tp));
    TRY(loom_schedule_for_layout(&run->layout, &t->schedule));
    TRY(gpt_stage_open(&run->model, t->mesh, t->tp, t->schedule, &t->stage));
    TRY(loom_dp_open(t->mesh, &t->stage->params, &dp, t->compute, &t->dp));
    TRY(gpt_stage_allocate(t->stage));
    TRY(watch_cp_groups(t));
    t->stage->dp = t->dp;
    t->stage->monitor = t->monitor;
    gpt_stage_ops(t->stage, &ops);
    return loom_pipeline_open(t->mesh, t->schedule, (size_t)gpt_stage_boundary(t->stage), &ops, t->compute, &t->pipeline);
}

/* Files of tied models have the embedding, the head, or both under their two names. */
static loom_status load_weights(gpt_trainer *t)
{
    const loom_model *model = &t->run->model;
    char embedding[GPT_NAME_BYTES], head[GPT_NAME_BYTES], name[GPT_NAME_BYTES + 8], also[GPT_NAME_BYTES + 8];
    loom_weights_alias alias = {name, also};

    snprintf(name, sizeof name, "%s.weight", gpt_name(model, GPT_EMBEDDING, 0, embedding));
    snprintf(also, sizeof also, "%s.weight", gpt_name(model, GPT_HEAD, 0, head));
    TRY(loom_weights_load(t->mesh, &t->stage->params, t->run->init, model->tied_embeddings ? &alias : NULL));
    return loom_dp_values_changed(t->dp);
}

static loom_status start_weights(gpt_trainer *t)
{
    if (is_dry(t))
        return LOOM_OK;
    if (!t->run->init[0])
        return loom_dp_init(t->dp, (uint64_t)t->run->train.seed);
    return load_weights(t);
}

static loom_status open_all(gpt_trainer *t)
{
    const gpt_run *run = t->run;
    loom_monitor_config monitor = {.metrics = run->output.metrics[0] ? run->output.metrics : NULL,
                                   .trace = run->output.trace[0] ? run->output.trace : NULL};

    TRY(loom_mesh_open(t->world, &run->layout, &run->model, &t->mesh));
    TRY(open_data(t));
    TRY(loom_kernels_open(t->device, NULL, &t->kernels));
    TRY(loom_stream_open(t->device, LOOM_STREAM_INLINE, "compute", &t->compute));
    if (!is_dry(t))
        TRY(loom_monitor_open(t->mesh, &monitor, &t->monitor));
    TRY(open_model(t));
    return start_weights(t);
}

loom_status gpt_trainer_open(const gpt_run *run, loom_comm *world, gpt_trainer **trainer)
{
    gpt_trainer *t = calloc(1, sizeof *t);
    loom_status status;

    if (!t)
        return loom_fail(LOOM_E_MEMORY, "no memory for a trainer");
    t->run = run;
    t->world = world;
    t->device = loom_comm_device(world);
    status = open_all(t);
    if (status < 0) {
        gpt_trainer_close(t);
        return status;
    }
    *trainer = t;
    return LOOM_OK;
}

void gpt_trainer_close(gpt_trainer *t)
{
    if (!t)
        return;
    loom_pipeline_close(t->pipeline);
    gpt_stage_close(t->stage);
    loom_dp_close(t->dp);
    loom_schedule_free(t->schedule);
    loom_tp_close(t->tp);
    loom_monitor_close(t->monitor);
    loom_stream_close(t->compute);
    loom_kernels_close(t->kernels);
    loom_mesh_close(t->mesh);
    gpt_data_close(&t->data);
    free(t->tokens);
    free(t->targets);
    free(t->whole);
    free(t->positions);
    free(t);
}

int64_t gpt_trainer_tokens(const gpt_trainer *t)
{
    return t->run->layout.global_batch * t->run->layout.seq;
}

/* This rank's tokens and targets of one sample. Both are taken by global position, so the shift by one between them crosses the parts. */
static loom_status load_sample(gpt_trainer *t, int64_t sample, int32_t *tokens, int32_t *targets)
{
    int64_t seq = t->run->layout.seq, local = seq / t->run->layout.cp;

    TRY(gpt_data_sample(&t->data, sample, t->whole, t->whole + seq));
    for (int64_t i = 0; i < local; i++) {
        tokens[i] = t->whole[t->positions[i]];
        targets[i] = t->whole[seq + t->positions[i]];
    }
    return LOOM_OK;
}

/* Data-parallel rank r of D has samples [r B/D, (r+1) B/D) of the step, in order; context-parallel ranks share them. */
loom_status gpt_trainer_load_batch(gpt_trainer *t, int64_t step)
{
    int64_t first = step * t->run->layout.global_batch + t->mesh->here.at[LOOM_AXIS_DP] * t->samples;
    int64_t local = t->run->layout.seq / t->run->layout.cp;

    if (is_dry(t))
        return LOOM_OK;
    for (int64_t i = 0; i < t->samples; i++)
        TRY(load_sample(t, first + i, t->tokens + i * local, t->targets + i * local));
    return LOOM_OK;
}

loom_status gpt_trainer_forward_backward(gpt_trainer *t)
{
    TRY(gpt_stage_begin(t->stage, &(gpt_batch){t->tokens, t->targets}));
    TRY(loom_dp_begin(t->dp));
    return loom_pipeline_step(t->pipeline);
}

/* The losses of all ranks that have a head, each token once: tp ranks hold the same, so only the first of them says it. */
static loom_status sum_loss(gpt_trainer *t, double *loss)
{
    TRY(gpt_stage_loss(t->stage, loss));
    TRY(loom_dp_sum(t->dp, loss, 1));
    *loss /= (double)gpt_trainer_tokens(t);
    return LOOM_OK;
}

/* What the stage did, as bars of the trace; messages are on tracks of their own. */
static void trace_actions(gpt_trainer *t)
{
    int count;
    const loom_pipeline_time *time = loom_pipeline_times(t->pipeline, &count);
    char name[32];

    if (!loom_monitor_traces(t->monitor))
        return;
    for (int i = 0; i < count; i++) {
        const loom_pipeline_time *a = &time[i];
        if (a->action.kind > LOOM_BACKWARD_WEIGHT)
            continue;
        if (a->wait_s > 1e-6)
            loom_monitor_event(t->monitor, "pipeline", "wait", a->begin_s, a->begin_s + a->wait_s);
        loom_monitor_event(t->monitor, "pipeline", loom_pipeline_label(&a->action, name, sizeof name), a->begin_s + a->wait_s, a->end_s);
    }
}

static loom_status run_step(gpt_trainer *t, int64_t step, gpt_step *result)
{
    loom_dp_result update;

    loom_span_begin(t->monitor, LOOM_TIME_DATA, "data");
    TRY(gpt_trainer_load_batch(t, step));
    loom_span_end(t->monitor);
    loom_span_begin(t->monitor, LOOM_TIME_COMPUTE, "forward and backward");
    TRY(gpt_trainer_forward_backward(t));
    loom_span_end(t->monitor);
    trace_actions(t);
    loom_span_begin(t->monitor, LOOM_TIME_COMPUTE, "optimizer");
    TRY(loom_dp_finish(t->dp, (double)gpt_trainer_tokens(t), result->lr, step + 1, &update));
    loom_span_end(t->monitor);
    if (t->stage->ep)
        TRY(loom_ep_finish(t->stage->ep, &result->load));
    result->grad_norm = update.grad_norm;
    result->tokens = gpt_trainer_tokens(t);
    return sum_loss(t, &result->loss);
}

loom_status gpt_trainer_step(gpt_trainer *t, int64_t step, gpt_step *result)
{
    const gpt_run *run = t->run;

    result->lr = loom_warmup_cosine(step, run->train.warmup, run->train.steps, run->train.lr, run->train.min_lr);
    loom_monitor_step_begin(t->monitor, step);
    TRY(run_step(t, step, result));
    result->seconds = loom_monitor_step_end(t->monitor, result->breakdown);
    return LOOM_OK;
}
