/* What a rehearsal stands on: costs of passes, ranks that move together, one pipeline in virtual time. */
#include "planner/rehearse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "core/try.h"
#include "planner/calibrate.h"
#include "planner/crowd.h"

/* --- costs ------------------------------------------------------------------------------------------------------------------ */

static void add_pass(loom_chunk_pass *sum, const loom_pass *pass, double times, double factor)
{
    static const loom_time_part exposed[LOOM_EXPOSED] = {LOOM_TIME_TP, LOOM_TIME_CP, LOOM_TIME_EP, LOOM_TIME_DP};
    double scale = times * factor * 1e6, all = loom_pass_seconds(pass) * scale;

    for (int i = 0; i < LOOM_EXPOSED; i++) {
        sum->exposed_us[i] += pass->part[exposed[i]] * scale;
        all -= pass->part[exposed[i]] * scale;
    }
    sum->compute_us += all;
}

static void add_pair(loom_rehearsing *r, int chunk, const loom_pass_pair *pair, double weight)
{
    add_pass(&r->forward[chunk], &pair->forward, 1, r->scale);
    add_pass(&r->backward[chunk], &pair->backward, 1, r->scale);
    r->weight_us[chunk] += weight * r->scale * 1e6;
}

static void fill_passes(loom_rehearsing *r)
{
    const loom_layer_table *t = &r->layers;
    int64_t layer = 0;
    int chunks = r->layout->n_chunks;

    for (int chunk = 0; chunk < chunks; chunk++) {
        if (chunk == 0)
            add_pair(r, chunk, &t->embedding, 0);
        for (int i = 0; i < r->chunk_layers[chunk]; i++, layer++) {
            loom_layer_kind kind = loom_layer_kind_of(&r->job.model, layer);
            add_pair(r, chunk, &t->layer[kind], t->weight[kind]);
        }
        if (chunk == chunks - 1)
            add_pair(r, chunk, &t->head, t->head_weight);
    }
}

static double pass_seconds(const loom_chunk_pass *pass)
{
    double us = pass->compute_us;

    for (int i = 0; i < LOOM_EXPOSED; i++)
        us += pass->exposed_us[i];
    return us * 1e-6;
}

static loom_weights stage_weights(const loom_rehearsing *r, const loom_memory_table *table, int stage, double *layers)
{
    const loom_model *m = &r->job.model;
    loom_weights w = {0};
    int64_t layer = 0;
    bool first = false;

    *layers = 0;
    for (int chunk = 0; chunk < r->layout->n_chunks; chunk++) {
        bool here = r->schedule->stage_of_chunk[chunk] == stage;
        first |= here && chunk == 0;
        if (here && chunk == 0)
            w.dense += table->embedding;
        for (int i = 0; i < r->chunk_layers[chunk]; i++, layer++) {
            const loom_weights *one = &table->weights[loom_layer_kind_of(m, layer)];
            w.dense += here ? one->dense : 0;
            w.experts += here ? one->experts : 0;
            *layers += here;
        }
        if (here && chunk == r->layout->n_chunks - 1)
            w.dense += m->tied_embeddings && first ? 0 : table->head;
    }
    return w;
}

static void fill_tails(loom_rehearsing *r)
{
    loom_memory_table table = loom_memory_table_of(&r->job, &r->degrees);

    for (int stage = 0; stage < r->layout->pp; stage++) {
        double layers, forward = 0, backward = 0;
        loom_weights w = stage_weights(r, &table, stage, &layers);
        for (int chunk = 0; chunk < r->layout->n_chunks; chunk++) {
            bool here = r->schedule->stage_of_chunk[chunk] == stage;
            forward += here ? pass_seconds(&r->forward[chunk]) / r->scale : 0;
            backward += here ? pass_seconds(&r->backward[chunk]) / r->scale : 0;
        }
        r->tail[stage].reduction_s = r->scale * loom_reduction_cost(&r->job, &r->degrees, &w, layers, forward, backward).exposed;
        r->tail[stage].optimizer_s = r->scale * loom_optimizer_seconds(&r->job, &r->degrees, &w);
    }
}

static void fill_messages(loom_rehearsing *r)
{
    const loom_job *job = &r->job;
    const loom_degrees *g = &r->degrees;
    double bytes = job->element * g->micro_batch * (double)job->seq / g->cp * (double)job->model.hidden / g->tp;

    if (g->pp == 1)
        return;
    r->hop_us = 1e6 * r->scale * loom_hop_seconds(&job->machine, g->places.pp, bytes);
    if (job->model.tied_embeddings)
        r->tied_s = r->scale * loom_reduce_seconds(&job->machine, g->places.ends, loom_soft(job, LOOM_SOFT_GRADIENT_BYTES) * (double)job->model.vocab * (double)job->model.hidden / g->tp);
}

/* --- who moves together --------------------------------------------------------------------------------------------------------- */

/* dp indices in one block. tp and cp groups lie inside a dp index; a group of experts may reach over several, and ZeRO-3 gathers over all. Groups of
 * ranks of a stage in order tp, cp, dp are blocks of ep x etp: a run of dp indices that no group crosses the end of. */
static int block_size(const loom_layout *l)
{
    int inner = l->tp * l->cp, group = l->ep * l->etp, size = 1;

    if (l->zero == 3)
        return l->dp;
    while (size < l->dp && (size * inner % group != 0 || l->dp % size != 0))
        size++;
    return size;
}

static void take_handicap(loom_rehearsing *r, const loom_handicap *h, bool link)
{
    loom_coords at = loom_layout_coords(r->layout, h->rank);
    loom_stage_factor *f = &r->factor[at.at[LOOM_AXIS_DP] / r->block * r->layout->pp + at.at[LOOM_AXIS_PP]];
    double *factor = link ? &f->link : &f->compute;

    *factor = fmax(*factor, h->factor);
}

static loom_status check_handicaps(const loom_handicap *handicaps, int count, int world, const char *what)
{
    for (int i = 0; i < count; i++)
        if (handicaps[i].rank < 0 || handicaps[i].rank >= world || !(handicaps[i].factor >= 1) || handicaps[i].factor > 1e6)
            return loom_fail(LOOM_E_INVALID, "%s: rank=%d, factor=%g; ranks are 0 to %d, and a factor is 1 or more", what, handicaps[i].rank, handicaps[i].factor, world - 1);
    return LOOM_OK;
}

static void fill_factors(loom_rehearsing *r)
{
    const loom_rehearsal_request *q = r->request;
    int cells = loom_rehearsing_blocks(r) * r->layout->pp;

    for (int i = 0; i < cells; i++)
        r->factor[i] = (loom_stage_factor){1, 1};
    for (int i = 0; i < q->n_slow; i++)
        take_handicap(r, &q->slow[i], false);
    for (int i = 0; i < q->n_slow_link; i++)
        take_handicap(r, &q->slow_link[i], true);
}

int loom_rehearsing_blocks(const loom_rehearsing *r)
{
    return r->layout->dp / r->block;
}

/* --- opening -------------------------------------------------------------------------------------------------------------------- */

static loom_status check_request(const loom_rehearsal_request *q)
{
    int world = loom_layout_world(q->layout);
    loom_status status = check_handicaps(q->slow, q->n_slow, world, "slow");

    if (status == LOOM_OK)
        status = check_handicaps(q->slow_link, q->n_slow_link, world, "slow link");
    if (status == LOOM_OK && !(q->jitter >= 0 && q->jitter <= 1))
        status = loom_fail(LOOM_E_INVALID, "jitter=%g: is a share from 0 to 1", q->jitter);
    if (status == LOOM_OK && world > loom_topology_ranks(q->plan->topology))
        status = loom_fail(LOOM_E_INVALID, "the layout wants %d ranks, the topology has %d", world, loom_topology_ranks(q->plan->topology));
    if (status == LOOM_OK && (q->layout->global_batch < 1 || q->layout->seq < 1))
        status = loom_fail(LOOM_E_INVALID, "the layout says no %s", q->layout->global_batch < 1 ? "global_batch" : "seq");
    return status;
}

loom_status loom_rehearsing_open(const loom_rehearsal_request *q, loom_rehearsing *r)
{
    loom_plan_request plan = *q->plan;
    loom_status status;

    memset(r, 0, sizeof *r);
    r->request = q;
    r->layout = q->layout;
    LOOM_TRY(check_request(q));
    plan.train.global_batch = q->layout->global_batch;
    plan.train.seq = q->layout->seq;
    LOOM_TRY(loom_job_make(&plan, &r->job));
    LOOM_TRY(loom_job_calibrate(&plan, &r->job));
    LOOM_TRY(loom_schedule_for_layout(q->layout, &r->schedule));
    loom_degrees_of_layout(q->layout, &r->job, &r->degrees, r->chunk_layers);
    loom_layer_table_make(&r->job, &r->degrees, &r->layers);
    r->scale = loom_calibration_factor(&r->job.calibration, &r->degrees);
    r->block = block_size(q->layout);
    size_t chunks = (size_t)q->layout->n_chunks, stages = (size_t)q->layout->pp;
    r->forward = calloc(chunks, sizeof *r->forward);
    r->backward = calloc(chunks, sizeof *r->backward);
    r->weight_us = calloc(chunks, sizeof *r->weight_us);
    r->tail = calloc(stages, sizeof *r->tail);
    r->factor = calloc((size_t)loom_rehearsing_blocks(r) * stages, sizeof *r->factor);
    if (!r->forward || !r->backward || !r->weight_us || !r->tail || !r->factor)
        LOOM_TRY(loom_fail(LOOM_E_MEMORY, "no memory for the costs of %zu chunks", chunks));
    fill_passes(r);
    fill_tails(r);
    fill_messages(r);
    fill_factors(r);
    return LOOM_OK;

fail:
    loom_rehearsing_close(r);
    return status;
}

void loom_rehearsing_close(loom_rehearsing *r)
{
    loom_schedule_free(r->schedule);
    free(r->forward);
    free(r->backward);
    free(r->weight_us);
    free(r->tail);
    free(r->factor);
    memset(r, 0, sizeof *r);
}

/* --- one pipeline --------------------------------------------------------------------------------------------------------------- */

typedef struct playing {
    const loom_rehearsing *r;
    int block; /* or LOOM_UNDISTURBED */
    bool messages;
} playing;

static loom_stage_factor factor_of(const playing *p, int stage)
{
    return p->block < 0 ? (loom_stage_factor){1, 1} : p->r->factor[p->block * p->r->layout->pp + stage];
}

static double handicap_of(const loom_rehearsal_request *q, int rank)
{
    double factor = 1;

    for (int i = 0; i < q->n_slow; i++)
        if (q->slow[i].rank == rank)
            factor = fmax(factor, q->slow[i].factor);
    return factor;
}

/* All ranks of a cell wait for the slowest: the most of everybody's own factor and jitter. Each draw belongs to (seed, rank, action). */
static double jittered(const playing *p, int stage, const loom_action *a)
{
    const loom_layout *l = p->r->layout;
    const loom_rehearsal_request *q = p->r->request;
    uint64_t name = (uint64_t)a->kind << 56 | (uint64_t)(uint32_t)a->chunk << 32 | (uint32_t)a->micro_batch;
    double most = 0;

    for (int d = p->block * p->r->block; d < (p->block + 1) * p->r->block; d++)
        for (int c = 0; c < l->cp; c++)
            for (int t = 0; t < l->tp; t++) {
                const int at[4] = {t, c, d, stage};
                int rank = loom_layout_rank(l, at);
                most = fmax(most, handicap_of(q, rank) * (1 + q->jitter * loom_near_normal(q->seed, name, (uint64_t)rank)));
            }
    return fmax(most, 0.1);
}

static void cost_of(const playing *p, int stage, const loom_action *a, double *compute_us, double exposed_us[LOOM_EXPOSED])
{
    const loom_rehearsing *r = p->r;
    bool forward = a->kind == LOOM_FORWARD, weight = a->kind == LOOM_BACKWARD_WEIGHT, input = a->kind == LOOM_BACKWARD_INPUT;
    loom_stage_factor f = factor_of(p, stage);

    *compute_us = 0;
    memset(exposed_us, 0, LOOM_EXPOSED * sizeof *exposed_us);
    if (!forward && !weight && !input && a->kind != LOOM_BACKWARD)
        return;
    const loom_chunk_pass *pass = forward ? &r->forward[a->chunk] : &r->backward[a->chunk];
    *compute_us = weight ? r->weight_us[a->chunk] : input ? pass->compute_us - r->weight_us[a->chunk] : pass->compute_us;
    *compute_us *= p->block >= 0 && r->request->jitter > 0 ? jittered(p, stage, a) : f.compute;
    for (int i = 0; i < LOOM_EXPOSED && !weight; i++)
        exposed_us[i] = pass->exposed_us[i] * f.link;
}

static double action_us(void *context, int stage, const loom_action *a)
{
    double compute, exposed[LOOM_EXPOSED];

    cost_of(context, stage, a, &compute, exposed);
    for (int i = 0; i < LOOM_EXPOSED; i++)
        compute += exposed[i];
    return compute;
}

static double transfer_us(void *context, int from, int to, const loom_action *producer)
{
    const playing *p = context;

    (void)producer;
    return p->messages ? p->r->hop_us * fmax(factor_of(p, from).link, factor_of(p, to).link) : 0;
}

void loom_rehearsing_action(const loom_rehearsing *r, int block, int stage, int index, const loom_timeline *line, double *compute_us, double exposed_us[LOOM_EXPOSED])
{
    const playing p = {r, block, true};
    const loom_action_time *time = &line->at[stage][index];
    double whole;

    cost_of(&p, stage, &r->schedule->stage[stage].at[index], compute_us, exposed_us);
    if (r->job.machine.crowd <= 1)
        return;
    whole = *compute_us; /* on shared cores it took less while others waited */
    for (int i = 0; i < LOOM_EXPOSED; i++)
        whole += exposed_us[i];
    double share = whole > 0 ? (time->end_us - time->start_us) / whole : 1;
    *compute_us *= share;
    for (int i = 0; i < LOOM_EXPOSED; i++)
        exposed_us[i] *= share;
}

loom_status loom_rehearsing_run(loom_rehearsing *r, int block, bool messages, loom_timeline *timeline)
{
    playing p = {r, block, messages};
    const loom_schedule_costs costs = {&p, action_us, transfer_us, NULL, loom_soft(&r->job, LOOM_SOFT_P2P_EXPOSED)};

    loom_status status = loom_schedule_simulate(r->schedule, &costs, timeline);

    if (status == LOOM_OK && (status = loom_crowd_timeline(&r->job.machine, r->schedule, timeline)) < 0)
        loom_timeline_free(timeline);
    return status;
}

/* --- behind the pipelines --------------------------------------------------------------------------------------------------------- */

static loom_stage_factor worst_of_stage(const loom_rehearsing *r, int stage)
{
    loom_stage_factor worst = {1, 1};

    for (int b = 0; b < loom_rehearsing_blocks(r); b++) {
        const loom_stage_factor *f = &r->factor[b * r->layout->pp + stage];
        worst.compute = fmax(worst.compute, f->compute);
        worst.link = fmax(worst.link, f->link);
    }
    return worst;
}

/* A stage's gradients are summed when its last pipeline is done; the norm joins all stages, so the optimizer waits for all. */
loom_step_end loom_rehearsing_end(const loom_rehearsing *r, const loom_rehearsed_stage *stages, bool disturbed)
{
    loom_step_end e = {0};
    int world = loom_layout_world(r->layout);

    for (int stage = 0; stage < r->layout->pp; stage++) {
        loom_stage_factor f = disturbed ? worst_of_stage(r, stage) : (loom_stage_factor){1, 1};
        double reduced = stages[stage].end_s + r->tail[stage].reduction_s * f.link;
        if (reduced > e.reduced_s) {
            e.reduced_s = reduced;
            e.stage = stage;
        }
        e.optimizer_s = fmax(e.optimizer_s, r->tail[stage].optimizer_s * f.compute);
    }
    e.reduced_s += r->tied_s;
    if (r->request->jitter == 0)
        e.other_s = (e.reduced_s + e.optimizer_s) * loom_soft(&r->job, LOOM_SOFT_JITTER) * log2(world) + r->scale * loom_soft(&r->job, LOOM_SOFT_FIXED);
    e.step_s = e.reduced_s + e.optimizer_s + e.other_s;
    return e;
}
