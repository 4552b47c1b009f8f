/* The rehearsal of a step: every pipeline that differs, the stages at their latest, and what the time went into. */
#include "planner/rehearse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/try.h"

/* Whether a block is like any undisturbed one. */
static bool is_plain(const loom_rehearsing *r, int block)
{
    const loom_stage_factor *f = r->factor + block * r->layout->pp;

    for (int stage = 0; stage < r->layout->pp; stage++)
        if (f[stage].compute != 1 || f[stage].link != 1)
            return false;
    return r->request->jitter == 0;
}

static double exposed_of(const loom_rehearsed_stage *s)
{
    return s->tp_s + s->cp_s + s->ep_s + s->dp_s;
}

static double busy_of(const loom_rehearsed_stage *s)
{
    return s->compute_s + exposed_of(s);
}

/* What a stage does on a block's timeline. */
static loom_rehearsed_stage stage_of(const loom_rehearsing *r, int block, int stage, const loom_timeline *line)
{
    loom_rehearsed_stage s = {.end_s = line->last_us[stage] * 1e-6, .reduction_s = r->tail[stage].reduction_s};

    for (int i = 0; i < r->schedule->stage[stage].count; i++) {
        double compute, exposed[LOOM_EXPOSED];
        loom_rehearsing_action(r, block, stage, i, line, &compute, exposed);
        s.compute_s += compute * 1e-6;
        s.tp_s += exposed[LOOM_EXPOSED_TP] * 1e-6;
        s.cp_s += exposed[LOOM_EXPOSED_CP] * 1e-6;
        s.ep_s += exposed[LOOM_EXPOSED_EP] * 1e-6;
        s.dp_s += exposed[LOOM_EXPOSED_DP] * 1e-6;
    }
    s.wait_s = fmax(0, s.end_s - busy_of(&s));
    return s;
}

/* Runs the blocks and keeps every stage as it is on the block on which it ends last. */
static loom_status run_blocks(loom_rehearsing *r, loom_rehearsal *out, int *block_of)
{
    bool ran_plain = false;

    for (int block = 0; block < loom_rehearsing_blocks(r); block++) {
        loom_timeline line;
        bool plain = is_plain(r, block);
        if (plain && ran_plain)
            continue;
        ran_plain |= plain;
        loom_status status = loom_rehearsing_run(r, block, true, &line);
        if (status < 0)
            return status;
        out->timelines++;
        for (int stage = 0; stage < r->layout->pp; stage++)
            if (line.last_us[stage] * 1e-6 > out->stage[stage].end_s) {
                out->stage[stage] = stage_of(r, block, stage, &line);
                block_of[stage] = block;
            }
        loom_timeline_free(&line);
    }
    for (int stage = 0; stage < r->layout->pp; stage++)
        if (busy_of(&out->stage[stage]) > busy_of(&out->stage[out->busiest]))
            out->busiest = stage;
    return LOOM_OK;
}

static loom_status run_undisturbed(loom_rehearsing *r, loom_rehearsed_stage *stages, double *step_s)
{
    loom_timeline line;
    loom_status status = loom_rehearsing_run(r, LOOM_UNDISTURBED, true, &line);

    if (status < 0)
        return status;
    for (int stage = 0; stage < r->layout->pp; stage++)
        stages[stage] = stage_of(r, LOOM_UNDISTURBED, stage, &line);
    *step_s = loom_rehearsing_end(r, stages, false).step_s;
    loom_timeline_free(&line);
    return LOOM_OK;
}

/* `plain` [stages]: undisturbed. */
static loom_slowdown slowdown_of(const loom_rehearsal *h, const loom_rehearsed_stage *plain)
{
    loom_slowdown most = {0};
    double most_s = 0;

    for (int stage = 0; stage < h->stages; stage++) {
        const loom_rehearsed_stage *now = &h->stage[stage], *before = &plain[stage];
        double grown_s = busy_of(now) - busy_of(before), later_s = now->end_s - before->end_s;
        if (grown_s > most_s) {
            most_s = grown_s;
            most = (loom_slowdown){.stage = stage,
                                   .passes_s = now->compute_s - before->compute_s,
                                   .links_s = exposed_of(now) - exposed_of(before),
                                   .hidden_s = grown_s - later_s,
                                   .behind_s = h->step_s - h->undisturbed_s - later_s,
                                   .compute_share = before->compute_s / h->undisturbed_s};
        }
    }
    return most;
}

/* Computing as the planner splits it, scaled to what it took here. */
static void split_compute(const loom_rehearsing *r, loom_rehearsal *out)
{
    const loom_layer_table *t = &r->layers;
    loom_pass sum = {0};
    int64_t layer = 0;
    double all = 0;

    for (int chunk = 0; chunk < r->layout->n_chunks; chunk++)
        for (int i = 0; i < r->chunk_layers[chunk]; i++, layer++) {
            const loom_pass_pair *pair = &t->layer[loom_layer_kind_of(&r->job.model, layer)];
            int times = r->schedule->stage_of_chunk[chunk] == out->busiest;
            loom_pass_add(&sum, &pair->forward, times);
            loom_pass_add(&sum, &pair->backward, times);
        }
    for (int end = 0; end < 2; end++) {
        const loom_pass_pair *pair = end ? &t->head : &t->embedding;
        int times = r->schedule->stage_of_chunk[end ? r->layout->n_chunks - 1 : 0] == out->busiest;
        loom_pass_add(&sum, &pair->forward, times);
        loom_pass_add(&sum, &pair->backward, times);
    }
    for (int i = LOOM_TIME_GEMM; i <= LOOM_TIME_LAUNCH; i++)
        all += sum.part[i];
    for (int i = LOOM_TIME_GEMM; i <= LOOM_TIME_LAUNCH; i++)
        out->part_s[i] = all > 0 ? sum.part[i] / all * out->stage[out->busiest].compute_s : 0;
}

/* What is neither work, reduction, optimizer nor allowance is waiting; of that, messages are what goes when they take no time. */
static loom_status split_step(loom_rehearsing *r, loom_rehearsal *out, const loom_step_end *end, int block)
{
    const loom_rehearsed_stage *s = &out->stage[out->busiest];
    loom_timeline with, without;
    loom_status status = loom_rehearsing_run(r, block, true, &with);

    if (status < 0)
        return status;
    if ((status = loom_rehearsing_run(r, block, false, &without)) == LOOM_OK) {
        split_compute(r, out);
        out->part_s[LOOM_TIME_TP] = s->tp_s;
        out->part_s[LOOM_TIME_CP] = s->cp_s;
        out->part_s[LOOM_TIME_EP] = s->ep_s;
        out->part_s[LOOM_TIME_DP] = s->dp_s + fmin(s->reduction_s, end->reduced_s - s->end_s);
        out->part_s[LOOM_TIME_OPTIMIZER] = end->optimizer_s;
        out->part_s[LOOM_TIME_OTHER] = end->other_s;
        double waits = out->step_s;
        for (int i = 0; i < LOOM_TIME_PARTS; i++)
            waits -= out->part_s[i];
        out->part_s[LOOM_TIME_PP] = fmin(waits, fmax(0, (with.makespan_us - without.makespan_us) * 1e-6));
        out->part_s[LOOM_TIME_BUBBLE] = waits - out->part_s[LOOM_TIME_PP];
        out->bubble = with.makespan_us / with.busy_us[out->busiest] - 1;
        loom_timeline_free(&without);
    }
    loom_timeline_free(&with);
    return status;
}

static loom_status tell_path(loom_rehearsing *r, int block, int stage, char **text)
{
    loom_timeline line;
    loom_status status = loom_rehearsing_run(r, block, true, &line);

    if (status < 0)
        return status;
    status = loom_critical_path(r, block, &line, stage, text);
    loom_timeline_free(&line);
    return status;
}

static loom_status rehearse(loom_rehearsing *r, loom_rehearsal *out, loom_rehearsed_stage *plain, int *block_of)
{
    loom_status status;

    LOOM_TRY(run_undisturbed(r, plain, &out->undisturbed_s));
    LOOM_TRY(run_blocks(r, out, block_of));
    loom_step_end end = loom_rehearsing_end(r, out->stage, true);
    out->step_s = end.step_s;
    out->stages = r->layout->pp;
    out->replicas_together = r->block;
    out->replicas = loom_rehearsing_blocks(r);
    out->last_replica = block_of[end.stage] * r->block;
    for (int stage = 0; stage < r->layout->pp; stage++)
        out->actions += r->schedule->stage[stage].count;
    out->slowdown = slowdown_of(out, plain);
    LOOM_TRY(split_step(r, out, &end, block_of[out->busiest]));
    LOOM_TRY(tell_path(r, block_of[end.stage], end.stage, &out->critical_path));
    return LOOM_OK;

fail:
    return status;
}

loom_run_request loom_rehearsed_run(const loom_rehearsal_request *request, double step_s)
{
    loom_run_request run = *request->run;

    run.step_s = step_s;
    run.costs.devices = loom_layout_world(request->layout);
    run.topology = request->plan->topology;
    return run;
}

static loom_status play_run(const loom_rehearsal_request *request, loom_rehearsal *out)
{
    if (!request->run)
        return LOOM_OK;
    const loom_run_request run = loom_rehearsed_run(request, out->step_s);
    return loom_run_play(&run, &out->run);
}

loom_status loom_rehearse(const loom_rehearsal_request *request, loom_rehearsal *rehearsal)
{
    loom_rehearsing *r = malloc(sizeof *r);
    loom_rehearsal out = {0};
    size_t stages = (size_t)request->layout->pp;
    loom_rehearsed_stage *plain = calloc(stages, sizeof *plain);
    int *block_of = calloc(stages, sizeof *block_of);
    loom_status status = LOOM_OK;

    out.stage = calloc(stages, sizeof *out.stage);
    if (!r || !plain || !block_of || !out.stage)
        status = loom_fail(LOOM_E_MEMORY, "no memory for a rehearsal of %zu stages", stages);
    if (status == LOOM_OK && (status = loom_rehearsing_open(request, r)) == LOOM_OK) {
        status = rehearse(r, &out, plain, block_of);
        loom_rehearsing_close(r);
    }
    free(r);
    free(plain);
    free(block_of);
    if (status == LOOM_OK)
        status = play_run(request, &out);
    if (status == LOOM_OK)
        *rehearsal = out;
    else
        loom_rehearsal_free(&out);
    return status;
}

void loom_rehearsal_free(loom_rehearsal *rehearsal)
{
    free(rehearsal->stage);
    loom_text_free(rehearsal->critical_path);
    loom_run_free(&rehearsal->run);
    memset(rehearsal, 0, sizeof *rehearsal);
}
