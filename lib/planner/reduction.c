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

static loom_reduction both(loom_reduction a, loom_reduction b)
{
    return (loom_reduction){a.exposed + b.exposed, a.hidden + b.hidden};
}

/* Seconds to gather (or scatter) all layers of a stage, a message a layer. */
static double sharded_seconds(const loom_job *job, const loom_degrees *g, const loom_weights *w, double layers, double bytes)
{
    double dense = loom_gather_seconds(&job->machine, g->places.gradient, bytes * w->dense / layers);
    double experts = loom_gather_seconds(&job->machine, g->places.expert_gradient, bytes * w->experts / layers);
    return layers * (dense + experts) / loom_soft(job, LOOM_SOFT_SHARDED_RATE);
}

/* ZeRO-3: every micro-batch gathers the weights of a layer for its forward, again for its backward, and scatters its gradient. Transfers run one
 * layer ahead of compute. */
static loom_reduction fully_sharded(const loom_job *job, const loom_degrees *g, const loom_weights *w, double layers, double forward, double backward, int64_t m)
{
    double hide = loom_soft(job, LOOM_SOFT_SHARDED_HIDDEN), late = loom_soft(job, LOOM_SOFT_SHARDED_EXPOSED), bytes = loom_soft(job, LOOM_SOFT_GRADIENT_BYTES);
    double gather = sharded_seconds(job, g, w, layers, loom_soft(job, LOOM_SOFT_GATHER_BYTES)), scatter = sharded_seconds(job, g, w, layers, bytes);
    double buckets = late > 0 ? 1 / late : layers;
    loom_reduction once = both(under(job, gather, hide * forward, buckets), under(job, gather + scatter, hide * backward, buckets));
    double replicas = loom_reduce_seconds(&job->machine, g->places.gradient_outer, bytes * w->dense / g->places.gradient.n);

    once.exposed *= m;
    once.hidden *= m;
    return both(once, under(job, replicas, hide * backward, layers));
}

loom_reduction loom_reduction_cost(const loom_job *job, const loom_degrees *g, const loom_weights *w, double layers, double forward, double backward, int64_t micro_batches)
{
    const loom_places *at = &g->places;

    if (layers < 1)
        layers = 1;
    if (g->zero == 3)
        return fully_sharded(job, g, w, layers, forward, backward, micro_batches);
    double reduce = gradient_seconds(job, g, at->gradient, at->gradient_outer, w->dense) + gradient_seconds(job, g, at->expert_gradient, alone, w->experts);
    double gather = g->zero ? loom_gather_seconds(&job->machine, at->gradient, 2 * w->dense) + loom_gather_seconds(&job->machine, at->expert_gradient, 2 * w->experts) : 0;
    loom_reduction turns = {g->zero ? loom_soft(job, LOOM_SOFT_OWNER_TURN) * at->gradient.n : 0, 0};
    loom_reduction reduced = under(job, reduce, loom_soft(job, LOOM_SOFT_DP_WINDOW) * backward, layers);

    return both(turns, both(reduced, under(job, gather, loom_soft(job, LOOM_SOFT_GATHER_WINDOW) * forward, layers)));
}

double loom_optimizer_seconds(const loom_job *job, const loom_degrees *g, const loom_weights *w)
{
    double dense_share = g->zero ? g->places.gradient.n : 1, expert_share = g->zero ? g->places.expert_gradient.n : 1;
    double owned = w->dense / dense_share + w->experts / expert_share;

    return loom_stream_seconds(&job->machine, (loom_soft(job, LOOM_SOFT_OPTIMIZER_BYTES) + 4) * owned, 20);
}
