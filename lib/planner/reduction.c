/* Data parallelism: reduction of gradients, gathers of parameters, what of both hides under compute, and the optimizer. */
#include "planner/cost.h"

#include <math.h>

/* Sum gradients of `parameters`: whole on every rank (ZeRO-0) or one shard each. */
static double gradient_seconds(const loom_job *job, const loom_degrees *g, loom_group inner, loom_group outer, double parameters)
{
    double bytes = parameters * loom_soft(job, LOOM_SOFT_GRADIENT_BYTES);

    if (g->zero == 0)
        return loom_reduce_seconds(&job->machine, inner, bytes) + loom_reduce_seconds(&job->machine, outer, bytes);
    return loom_gather_seconds(&job->machine, inner, bytes) + loom_reduce_seconds(&job->machine, outer, bytes / inner.n);
}

static const loom_group alone = {1, 1, 1};

/* `work` seconds of communication under a window of compute: what sticks out, and what the hidden part costs the compute. At least the
 * last bucket sticks out. */
static loom_reduction under(const loom_job *job, double work, double window, double buckets)
{
    loom_reduction r;
    double hidden = fmin(work, window);

    r.exposed = window > 0 ? fmax(work - window, work / buckets) : work;
    r.hidden = work - r.exposed;
    r.exposed += loom_dev(&job->machine, LOOM_DEV_OVERLAP_TAX) * hidden;
    return r;
}

/* Seconds to gather (or scatter) weights, a message. */
static double sharded_seconds(const loom_job *job, const loom_degrees *g, const loom_weights *w, double bytes)
{
    double dense = loom_gather_seconds(&job->machine, g->places.gradient, bytes * w->dense);
    double experts = loom_gather_seconds(&job->machine, g->places.expert_gradient, bytes * w->experts);
    return (dense + experts) / loom_soft(job, LOOM_SOFT_SHARDED_RATE);
}

static void add_exposed(loom_pass *pass, loom_reduction r)
{
    pass->part[LOOM_TIME_DP] += r.exposed;
    pass->hidden_dp += r.hidden;
}

void loom_add_sharding(const loom_job *job, const loom_degrees *g, const loom_weights *w, loom_pass_pair *pair)
{
    double bytes = loom_soft(job, LOOM_SOFT_GRADIENT_BYTES), f = loom_pass_seconds(&pair->forward), b = loom_pass_seconds(&pair->backward);

    if (g->zero < 2 || g->dp * g->cp == 1)
        return;
    double scatter = sharded_seconds(job, g, w, bytes);
    if (g->zero == 2) {
        add_exposed(&pair->backward, under(job, scatter, loom_soft(job, LOOM_SOFT_DP_WINDOW) * b, INFINITY));
        return;
    }
    double gather = sharded_seconds(job, g, w, loom_soft(job, LOOM_SOFT_GATHER_BYTES)), hide = loom_soft(job, LOOM_SOFT_SHARDED_HIDDEN);
    double late = loom_soft(job, LOOM_SOFT_SHARDED_EXPOSED);
    add_exposed(&pair->forward, under(job, gather, hide * f, 1 / late));
    add_exposed(&pair->backward, under(job, gather + scatter, hide * b, 1 / late));
}

static loom_reduction both(loom_reduction a, loom_reduction b)
{
    return (loom_reduction){a.exposed + b.exposed, a.hidden + b.hidden};
}

loom_reduction loom_reduction_cost(const loom_job *job, const loom_degrees *g, const loom_weights *w, double layers, double forward,
                                   double backward)
{
    const loom_places *at = &g->places;
    double window = loom_soft(job, LOOM_SOFT_DP_WINDOW) * backward, ahead = loom_soft(job, LOOM_SOFT_GATHER_WINDOW) * forward;

    if (layers < 1)
        layers = 1;
    if (g->zero >= 2) { /* gradients are scattered already; copies of the shards still have to agree */
        double replicas =
            loom_reduce_seconds(&job->machine, at->gradient_outer, loom_soft(job, LOOM_SOFT_GRADIENT_BYTES) * w->dense / at->gradient.n);
        double gather = g->zero == 2 ? loom_gather_seconds(&job->machine, at->gradient, job->element * w->dense) +
                                           loom_gather_seconds(&job->machine, at->expert_gradient, job->element * w->experts)
                                     : 0;
        return both(under(job, replicas, window, layers), under(job, gather, ahead, layers));
    }
    double reduce = gradient_seconds(job, g, at->gradient, at->gradient_outer, w->dense) +
                    gradient_seconds(job, g, at->expert_gradient, alone, w->experts);
    double gather = g->zero ? loom_gather_seconds(&job->machine, at->gradient, job->element * w->dense) +
                                  loom_gather_seconds(&job->machine, at->expert_gradient, job->element * w->experts)
                            : 0;
    loom_reduction turns = {g->zero ? loom_soft(job, LOOM_SOFT_OWNER_TURN) * at->gradient.n : 0, 0};

    return both(turns, both(under(job, reduce, window, layers), under(job, gather, ahead, layers)));
}

double loom_optimizer_seconds(const loom_job *job, const loom_degrees *g, const loom_weights *w)
{
    double dense_share = g->zero ? g->places.gradient.n : 1, expert_share = g->zero ? g->places.expert_gradient.n : 1;
    double owned = w->dense / dense_share + w->experts / expert_share;

    return loom_stream_seconds(&job->machine, (loom_soft(job, LOOM_SOFT_OPTIMIZER_BYTES) + 4) * owned, 20);
}
