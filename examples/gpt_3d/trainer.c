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

static int32_t separator(const gpt_run *run)
{
    return run->data.packed ? run->data.separator : GPT_NO_SEPARATOR;
}

/* Whether kernels read other memory than the host writes, and go on by themselves. */
static bool is_apart(const gpt_trainer *t)
{
    return loom_device_get_kind(t->device) == LOOM_CUDA;
}

static loom_status open_ids(gpt_trainer *t, int id, size_t bytes)
{
    TRY(loom_alloc_host(t->device, bytes, (void **)&t->local[id]));
    t->ids[id] = t->local[id];
    return is_apart(t) ? loom_alloc(t->device, bytes, LOOM_MEM_OTHER, (void **)&t->ids[id]) : LOOM_OK;
}

static void close_ids(gpt_trainer *t, int id)
{
    if (t->ids[id] != t->local[id])
        loom_free(t->device, t->ids[id]);
    loom_free_host(t->device, t->local[id]);
}

static loom_status open_data(gpt_trainer *t)
{
    const gpt_run *run = t->run;
    int64_t seq = loom_layout_padded_seq(&run->layout, run->layout.seq), count;
    gpt_data_config config = {.path = run->data.path,
                              .tokenizer = run->data.tokenizer,
                              .order = run->data.order,
                              .seq = run->layout.seq,
                              .vocab = run->model.vocab,
                              .separator = separator(run)};

    t->samples = run->layout.global_batch / run->layout.dp;
    t->local_seq = seq / run->layout.cp;
    count = t->samples * t->local_seq;
    t->places = calloc((size_t)t->local_seq, sizeof *t->places);
    for (int id = 0; id < GPT_IDS; id++) {
        TRY(open_ids(t, id, (size_t)count * sizeof *t->ids[id]));
        t->whole[id] = calloc((size_t)seq, sizeof *t->whole[id]);
        if (!t->places || !t->whole[id])
            return loom_fail(LOOM_E_MEMORY, "no memory for %lld tokens of a step", (long long)count);
    }
    loom_cp_split(seq, run->layout.cp, t->mesh->here.at[LOOM_AXIS_CP], t->places);
    t->counted = run->layout.global_batch * run->layout.seq;
    return is_dry(t) ? LOOM_OK : gpt_data_open(&config, &t->data);
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
    gpt_stage_options options = {.separator = separator(run), .experts = run->experts};
    loom_stage_ops ops;

    TRY(loom_tp_open(t->mesh, t->kernels, t->compute, &t->tp));
    TRY(loom_schedule_for_layout(&run->layout, &t->schedule));
    TRY(gpt_stage_open(&run->model, t->mesh, t->tp, t->schedule, &options, &t->stage));
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
    loom_graph_close(t->replay.graph);
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
    for (int id = 0; id < GPT_IDS; id++) {
        close_ids(t, id);
        free(t->whole[id]);
    }
    free(t->places);
    free(t);
}

int64_t gpt_trainer_tokens(const gpt_trainer *t)
{
    return t->counted > 0 ? t->counted : 1; /* of nothing the loss is 0 */
}

/* One sample, with the padding behind it: tokens 0 without a target, which nothing before them sees. */
static loom_status load_whole(gpt_trainer *t, int64_t sample)
{
    int64_t seq = t->run->layout.seq, padded = loom_layout_padded_seq(&t->run->layout, seq);

    TRY(gpt_data_sample(&t->data, sample, t->whole[GPT_TOKENS], t->whole[GPT_TARGETS]));
    gpt_data_documents(t->whole[GPT_TOKENS], seq, separator(t->run), t->whole[GPT_DOCUMENTS], t->whole[GPT_ROWS]);
    for (int64_t i = seq; i < padded; i++) {
        t->whole[GPT_TARGETS][i] = LOOM_IGNORE_INDEX;
        t->whole[GPT_DOCUMENTS][i] = t->whole[GPT_DOCUMENTS][seq - 1];
    }
    return LOOM_OK;
}

/* This rank's part of sample number `i` of its step. All is taken by global position, so the shift by one between tokens and targets crosses the
 * parts, and documents and what is counted of them are the same whoever holds them. */
static loom_status load_sample(gpt_trainer *t, int64_t i, int64_t sample)
{
    TRY(load_whole(t, sample));
    for (int id = 0; id < GPT_IDS; id++)
        for (int64_t s = 0; s < t->local_seq; s++)
            t->local[id][i * t->local_seq + s] = t->whole[id][t->places[s]];
    return LOOM_OK;
}

/* Where documents end the loss counts fewer tokens; how many is known when all ranks have said it, stages and tp ranks holding the same. */
static loom_status count_targets(gpt_trainer *t)
{
    double counted = 0;

    if (!t->run->data.packed)
        return LOOM_OK;
    for (int64_t i = 0; i < t->samples * t->local_seq && t->mesh->here.at[LOOM_AXIS_PP] == 0; i++)
        counted += t->local[GPT_TARGETS][i] != LOOM_IGNORE_INDEX;
    TRY(loom_dp_sum(t->dp, &counted, 1));
    if (!is_dry(t))
        t->counted = (int64_t)counted;
    return LOOM_OK;
}

/* Data-parallel rank r of D has samples [r B/D, (r+1) B/D) of the step, in order; context-parallel ranks share them. */
loom_status gpt_trainer_load_batch(gpt_trainer *t, int64_t step)
{
    int64_t first = step * t->run->layout.global_batch + t->mesh->here.at[LOOM_AXIS_DP] * t->samples;

    for (int64_t i = 0; i < t->samples && !is_dry(t); i++)
        TRY(load_sample(t, i, first + i));
    for (int id = 0; id < GPT_IDS && is_apart(t); id++)
        TRY(loom_stream_copy(t->compute, t->ids[id], t->local[id], (size_t)(t->samples * t->local_seq) * sizeof *t->ids[id]));
    return count_targets(t);
}

loom_status gpt_trainer_forward_backward(gpt_trainer *t)
{
    TRY(gpt_replay_run(t));
    return is_apart(t) ? LOOM_OK : loom_stream_wait(t->compute);
}

/* The losses of all ranks that have a head, each token once: tp ranks hold the same, so only the first of them says it. */
static loom_status sum_loss(gpt_trainer *t, double *loss)
{
    TRY(gpt_stage_loss(t->stage, loss));
    TRY(loom_dp_sum(t->dp, loss, 1));
    *loss /= (double)gpt_trainer_tokens(t);
    return LOOM_OK;
}

/* What the stage did, as bars of the trace; messages are on tracks of their own. A replay is one bar, its span. */
static void trace_actions(gpt_trainer *t)
{
    int count;
    const loom_pipeline_time *time = loom_pipeline_times(t->pipeline, &count);
    char name[32];

    if (!loom_monitor_traces(t->monitor) || t->replay.replayed)
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
