#include "planner/finalists.h"

#include <math.h>
#include <stdlib.h>

#include "planner/calibrate.h"
#include "planner/predict.h"

double loom_closed_form_above(int64_t micro_batches, int stages)
{
    return micro_batches < 4 * stages ? 0.4 : 0.2;
}

typedef struct variant {
    loom_pipeline pipeline;
    int vpp;
    double closed;
} variant;

static int by_closed_form(const void *a, const void *b)
{
    double x = ((const variant *)a)->closed, y = ((const variant *)b)->closed;

    return (x > y) - (x < y);
}

static loom_degrees with(const loom_degrees *g, const variant *v)
{
    loom_degrees other = *g;

    other.pipeline = v->pipeline;
    other.vpp = v->vpp;
    return other;
}

/* The legal ones that fit, fastest closed form first. */
static int list_variants(const loom_space *space, double limit, const loom_degrees *g, loom_found *scratch, variant *variants)
{
    loom_schedules schedules;
    int count = 0;

    loom_space_schedules(space, g->pp, loom_micro_batches_of(space->job, g), &schedules);
    for (int i = 0; i < schedules.count; i++) {
        variant v = {schedules.pipeline[i], schedules.vpp[i], 0};
        loom_degrees other = with(g, &v);
        if (!loom_search_evaluate(space->job, &other, limit, scratch))
            continue;
        v.closed = scratch->seconds;
        variants[count++] = v;
    }
    qsort(variants, (size_t)count, sizeof *variants, by_closed_form);
    return count;
}

static double simulated(const loom_job *job, const loom_found *found)
{
    loom_step_cost cost;

    loom_step_simulate(job, &found->degrees, found->chunk_layers, &cost);
    return cost.seconds;
}

int loom_finalist_refine(const loom_space *space, double limit, int64_t *actions, loom_found *found)
{
    loom_found *scratch = malloc(sizeof *scratch);
    variant variants[LOOM_MOST_CHOICES];
    double best = INFINITY, above;
    int count, tried = 0;

    if (!scratch || found->degrees.pp == 1) {
        free(scratch);
        return 0;
    }
    loom_degrees g = found->degrees;
    above = loom_closed_form_above(loom_micro_batches_of(space->job, &g), g.pp);
    count = list_variants(space, limit, &g, scratch, variants);
    for (int i = 0; i < count && variants[i].closed / (1 + above) < best; i++) {
        loom_degrees other = with(&g, &variants[i]);
        int64_t cost = 2 * 3 * loom_micro_batches_of(space->job, &g) * g.pp * other.vpp; /* with and without messages; up to three actions a pass */
        if (tried > 0 && cost > *actions)
            continue;
        *actions -= cost;
        tried++;
        if (!loom_search_evaluate(space->job, &other, limit, scratch))
            continue;
        double seconds = simulated(space->job, scratch);
        if (seconds < best) {
            best = seconds;
            *found = *scratch;
        }
    }
    free(scratch);
    return tried;
}
