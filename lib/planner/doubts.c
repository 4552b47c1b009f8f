/* The table of doubts. Spreads are round figures that residuals of held-out sources bear out (docs/planner.md, "Intervals"). */
#include "planner/doubts.h"

#include <math.h>

/* How a factor on the time changes a constant. */
typedef enum effect {
    TIMES,  /* the constant is a time, a count, or traffic */
    SLOWS,  /* a rate or share of one */
    BARES,  /* a share that hides: what it leaves grows */
} effect;

enum { MOST = 6 };

typedef struct constants {
    effect how;
    bool device; /* of the device, else of the software */
    int n, which[MOST];
} constants;

static const struct {
    double spread;
    constants of[2];
} doubts[LOOM_DOUBTS] = {
    [LOOM_DOUBT_PACE] = {0.03, {{SLOWS, true, 2, {LOOM_DEV_SUSTAINED, LOOM_DEV_MEMORY_SHARE}}, {TIMES, true, 2, {LOOM_DEV_HOST_KERNEL, LOOM_DEV_KERNEL_GAP}}}},
    [LOOM_DOUBT_GEMM] = {0.06, {{SLOWS, true, 3, {LOOM_DEV_GEMM_SHARE, LOOM_DEV_SHARE_8, LOOM_DEV_SHARE_4}}}},
    [LOOM_DOUBT_ATTENTION] =
        {0.12, {{SLOWS, true, 4, {LOOM_DEV_ATTENTION_FORWARD, LOOM_DEV_ATTENTION_BACKWARD, LOOM_DEV_FLASH2_FORWARD, LOOM_DEV_FLASH2_BACKWARD}}}},
    [LOOM_DOUBT_ELEMENTWISE] = {0.16, {{TIMES, false, 1, {LOOM_SOFT_ELEMENTWISE}}}},
    [LOOM_DOUBT_LAUNCH] = {0.5, {{TIMES, false, 1, {LOOM_SOFT_HOST_FACTOR}}}},
    [LOOM_DOUBT_GAP] = {0.8, {{TIMES, true, 1, {LOOM_DEV_KERNEL_GAP}}}},
    [LOOM_DOUBT_LINK] = {0.12, {{SLOWS, true, 6, {LOOM_DEV_LINK_REDUCE_2, LOOM_DEV_LINK_REDUCE_4, LOOM_DEV_LINK_REDUCE_8, LOOM_DEV_LINK_GATHER_2, LOOM_DEV_LINK_GATHER_4, LOOM_DEV_LINK_GATHER_8}},
                                {SLOWS, true, 3, {LOOM_DEV_LINK_EXCHANGE_2, LOOM_DEV_LINK_EXCHANGE_4, LOOM_DEV_LINK_EXCHANGE_8}}}},
    [LOOM_DOUBT_NET] = {0.3, {{SLOWS, true, 1, {LOOM_DEV_NET_SHARE}}}},
    [LOOM_DOUBT_TP] = {0.2, {{BARES, false, 1, {LOOM_SOFT_TP_HIDDEN}}}},
    [LOOM_DOUBT_EP] = {0.7, {{BARES, false, 1, {LOOM_SOFT_EP_HIDDEN}}}},
    [LOOM_DOUBT_SHARDED] = {0.8, {{SLOWS, false, 1, {LOOM_SOFT_SHARDED_RATE}}}},
    [LOOM_DOUBT_LATE] = {0.7, {{TIMES, false, 1, {LOOM_SOFT_SHARDED_EXPOSED}}}},
    [LOOM_DOUBT_REDUCTION] = {0.4, {{TIMES, false, 1, {LOOM_SOFT_GRADIENT_BYTES}}}},
    [LOOM_DOUBT_HOP] = {0.4, {{TIMES, false, 1, {LOOM_SOFT_P2P_EXPOSED}}}},
    [LOOM_DOUBT_OPTIMIZER] = {0.3, {{TIMES, false, 1, {LOOM_SOFT_OPTIMIZER_BYTES}}}},
    [LOOM_DOUBT_JITTER] = {0.6, {{TIMES, false, 1, {LOOM_SOFT_JITTER}}}},
    [LOOM_DOUBT_FIXED] = {0.5, {{TIMES, false, 1, {LOOM_SOFT_FIXED}}}},
};

static const loom_constant *table_of(const loom_job *job, bool device)
{
    return device ? job->machine.dev : job->soft;
}

/* The table's spreads are for what sweeps and the maker's sheets tell. A habit of the field is less sure, a fit to steps of that very software more. */
static double by_basis(const loom_job *job, loom_doubt which)
{
    const constants *c = &doubts[which].of[0];
    loom_basis basis = table_of(job, c->device)[c->which[0]].basis;

    return basis == LOOM_BASIS_DEFAULT ? 1.3 : basis == LOOM_BASIS_STEPS || basis >= LOOM_BASIS_GIVEN ? 0.8 : 1;
}

double loom_doubt_spread(const loom_job *job, loom_doubt which)
{
    /* releases of a framework differ most in what they do around experts; a device that no step was timed on may keep more or less of its rates */
    double experts = which == LOOM_DOUBT_PACE && job->model.moe.experts > 0 ? 0.06 : 0;
    double device = which == LOOM_DOUBT_PACE && job->machine.dev[LOOM_DEV_SUSTAINED].basis == LOOM_BASIS_DEFAULT ? 0.12 : 0;

    return hypot(hypot(doubts[which].spread, experts), device) * by_basis(job, which);
}

double loom_layout_spread(const loom_job *job)
{
    return job->model.moe.experts > 0 ? 0.1 : 0.055;
}

static double turned(double value, effect how, double factor)
{
    switch (how) {
    case TIMES:
        return value * factor;
    case SLOWS:
        return value / factor;
    default:
        return 1 - (1 - value) * factor;
    }
}

void loom_doubt_turn(loom_job *job, loom_doubt which, double logarithm)
{
    double factor = exp(logarithm);

    for (int part = 0; part < 2; part++) {
        const constants *c = &doubts[which].of[part];
        loom_constant *table = c->device ? job->machine.dev : job->soft;
        for (int i = 0; i < c->n; i++)
            table[c->which[i]].value = turned(table[c->which[i]].value, c->how, factor);
    }
    if (job->soft[LOOM_SOFT_SHARDED_EXPOSED].value > 1) /* no more than all of it */
        job->soft[LOOM_SOFT_SHARDED_EXPOSED].value = 1;
}

static double predicted(const loom_job *job, const loom_degrees *g, const int *chunk_layers, loom_doubt which, double logarithm)
{
    loom_job other = *job;
    loom_step_cost cost;

    loom_doubt_turn(&other, which, logarithm);
    loom_step_predict(&other, g, chunk_layers, &cost);
    return log(cost.seconds);
}

void loom_doubt_slopes(const loom_job *job, const loom_degrees *g, const int *chunk_layers, double slope[LOOM_DOUBTS])
{
    static const double step = 0.1; /* wide enough to see beyond what only begins to stick out */

    for (int i = 0; i < LOOM_DOUBTS; i++)
        slope[i] = (predicted(job, g, chunk_layers, i, step) - predicted(job, g, chunk_layers, i, -step)) / (2 * step);
}
