/* Layouts drawn at random from the space of the search: what the best ones stand out against. */
#include <rankloom/draw.h>

#include <stdlib.h>

#include "core/random.h"
#include "core/try.h"
#include "planner/job.h"
#include "planner/predict.h"
#include "planner/search.h"

/* Their pipelines are run as those of the finalists are. So many actions of all together take a few seconds; behind that fewer layouts are
 * drawn. */
enum { MOST_ACTIONS = 10000000 };

typedef struct drawing {
    loom_space space;
    uint32_t turn, step; /* of the random numbers */
} drawing;

/* One of the choices, or 0 when there is none. */
static int pick(drawing *d, const loom_choices *choices)
{
    const uint32_t counter[4] = {d->turn, d->step++, 0, 0}, key[2] = {0x6c6f6f6d, 0};
    uint32_t output[4];

    loom_philox4x32_10(counter, key, output);
    return choices->count > 0 ? choices->at[output[0] % (uint32_t)choices->count] : 0;
}

static bool pick_pipeline(drawing *d, loom_degrees *g)
{
    loom_schedules schedules;
    loom_choices index = {.count = 0};

    loom_space_schedules(&d->space, g->pp, loom_micro_batches_of(d->space.job, g), &schedules);
    for (; index.count < schedules.count; index.count++)
        index.at[index.count] = index.count;
    if (schedules.count == 0)
        return false;
    int at = pick(d, &index);
    g->pipeline = schedules.pipeline[at];
    g->vpp = schedules.vpp[at];
    return true;
}

/* tp, cp, pp and then what they leave open; false: this corner of the space is empty. */
static bool pick_degrees(drawing *d, loom_degrees *g)
{
    const loom_space *s = &d->space;
    loom_choices c;
    loom_orders orders;

    loom_space_tp(s, &c);
    if (!(g->tp = pick(d, &c)))
        return false;
    loom_space_cp(s, g->tp, &c);
    if (!(g->cp = pick(d, &c)))
        return false;
    loom_space_pp(s, g->tp, g->cp, &c);
    if (!(g->pp = pick(d, &c)))
        return false;
    g->dp = s->world / (g->tp * g->cp * g->pp);
    loom_space_micro_batch(s, g->dp, &c);
    if (!(g->micro_batch = pick(d, &c)))
        return false;
    loom_space_etp(s, g->tp * g->cp * g->dp, &c);
    if (!(g->etp = pick(d, &c)))
        return false;
    loom_space_ep(s, g->etp, g->tp * g->cp * g->dp, &c);
    if (!(g->ep = pick(d, &c)))
        return false;
    loom_space_zero(s, g->dp * g->cp, &c);
    g->zero = pick(d, &c);
    loom_space_sequence_parallel(s, g->tp, g->cp, &c);
    g->sequence_parallel = pick(d, &c);
    loom_space_cp_kind(s, g->tp, g->cp, &c);
    g->cp_kind = pick(d, &c);
    loom_space_recompute(s, &c);
    g->recompute = pick(d, &c);
    loom_space_orders(g->tp, g->cp, g->dp, g->pp, &orders);
    for (int i = 0; i < 4; i++)
        g->order[i] = orders.at[0][i];
    return pick_pipeline(d, g);
}

static loom_plan_point point_of(const loom_prediction *p)
{
    const loom_layout *l = &p->layout;

    return (loom_plan_point){.tp = l->tp,
                             .cp = l->cp,
                             .pp = l->pp,
                             .vpp = l->vpp,
                             .dp = l->dp,
                             .ep = l->ep,
                             .etp = l->etp,
                             .zero = l->zero,
                             .micro_batch = l->micro_batch,
                             .recompute = l->recompute,
                             .step_s = p->step_s,
                             .bytes = p->memory[p->fullest].total,
                             .fits = p->fits};
}

/* What every draw uses. */
typedef struct scratch {
    loom_job job;
    loom_limits limits;
    loom_found found;
    loom_prediction prediction;
} scratch;

static int64_t actions_of(const loom_prediction *p)
{
    return 4 * p->micro_batches * p->layout.pp * p->layout.vpp;
}

static int sample(const loom_plan_request *request, scratch *s, int count, loom_plan_point *points)
{
    int world = loom_topology_ranks(request->topology), found = 0;
    double limit = loom_job_memory_limit(request, &s->job);
    drawing d = {.space = {&s->job, &s->limits, request->max_gpus > 0 && request->max_gpus < world ? request->max_gpus : world}};
    int64_t actions = 0;

    for (d.turn = 0; d.turn < 4 * (uint32_t)count && found < count && actions < MOST_ACTIONS; d.turn++) {
        loom_degrees g = {0};
        d.step = 0;
        if (!pick_degrees(&d, &g) || !loom_search_evaluate(&s->job, &g, 1e30, &s->found))
            continue;
        if (loom_predict_degrees(&s->job, &s->found.degrees, s->found.chunk_layers, limit, &s->prediction) < 0)
            continue;
        points[found++] = point_of(&s->prediction);
        actions += actions_of(&s->prediction);
    }
    return found;
}

loom_status loom_plan_sample(const loom_plan_request *request, int count, loom_plan_point *points, int *found)
{
    scratch *s = malloc(sizeof *s);
    loom_status status = LOOM_OK;

    if (!s)
        return loom_fail(LOOM_E_MEMORY, "no memory to draw layouts");
    LOOM_TRY(loom_job_make(request, &s->job));
    LOOM_TRY(loom_job_calibrate(request, &s->job));
    LOOM_TRY(loom_limits_of(request, &s->job, &s->limits));
    *found = sample(request, s, count, points);

fail:
    free(s);
    return status;
}
