/* Data parallelism: reduction of gradients, gathers of parameters, what of both hides under compute, and the optimizer. */
#include "planner/cost.h"

#include <math.h>

/* The groups that share dense weights, and expert weights. */
static loom_group dense_group(const loom_degrees *g)
{
    return (loom_group){g->dp * g->cp, g->tp};
}

static loom_group expert_group(const loom_degrees *g)
{
    int n = g->tp * g->cp * g->dp / (g->ep * g->etp);
    return (loom_group){n < 1 ? 1 : n, g->ep * g->etp};
}

/* State is sharded over `inner` neighbours of the group and repeated over `outer` of those. */
typedef struct nest {
    loom_group inner, outer;
} nest;

static nest nest_of(loom_group group, int shard_group)
{
    int inner = shard_group > 0 && shard_group < group.n ? shard_group : group.n;
    return (nest){{inner, group.stride}, {group.n / inner, group.stride * inner}};
}

/* Sum gradients of `parameters`: whole on every rank (ZeRO-0) or one shard each. */
static double gradient_seconds(const loom_job *job, const loom_degrees *g, loom_group group, double parameters)
{
    double bytes = parameters * loom_soft(job, LOOM_SOFT_GRADIENT_BYTES);
    nest n = nest_of(group, g->zero ? g->shard_group : 0);

    if (g->zero == 0)
        return loom_reduce_seconds(&job->machine, group, bytes);
    return loom_gather_seconds(&job->machine, n.inner, bytes) + loom_reduce_seconds(&job->machine, n.outer, bytes / n.inner.n);
}

static double gather_seconds(const loom_job *job, const loom_degrees *g, loom_group group, double parameters)
{
    nest n = nest_of(group, g->shard_group);
    return g->zero == 0 || parameters <= 0 ? 0 : loom_gather_seconds(&job->machine, n.inner, 2 * parameters);
}

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

/* ZeRO-3: every micro-batch gathers the weights of a layer for its forward, again for its backward, and scatters its gradient. Transfers run one
 * layer ahead of compute. */
static loom_reduction fully_sharded(const loom_job *job, const loom_degrees *g, const loom_weights *w, double layers, double forward, double backward, int64_t m)
{
    nest dense = nest_of(dense_group(g), g->shard_group), experts = nest_of(expert_group(g), 0);
    double hide = loom_soft(job, LOOM_SOFT_SHARDED_HIDDEN), bytes = loom_soft(job, LOOM_SOFT_GRADIENT_BYTES), wide = loom_soft(job, LOOM_SOFT_GATHER_BYTES);
    double slow = 1 / loom_soft(job, LOOM_SOFT_SHARDED_RATE), late = loom_soft(job, LOOM_SOFT_SHARDED_EXPOSED);
    double gather = slow * layers * (loom_gather_seconds(&job->machine, dense.inner, wide * w->dense / layers) + loom_gather_seconds(&job->machine, experts.inner, wide * w->experts / layers));
    double scatter = slow * layers * (loom_gather_seconds(&job->machine, dense.inner, bytes * w->dense / layers) + loom_gather_seconds(&job->machine, experts.inner, bytes * w->experts / layers));
    double buckets = late > 0 ? 1 / late : layers;
    loom_reduction once = both(under(job, gather, hide * forward, buckets), under(job, gather + scatter, hide * backward, buckets));
    double replicas = loom_reduce_seconds(&job->machine, dense.outer, bytes * w->dense / dense.inner.n);

    once.exposed *= m;
    once.hidden *= m;
    return both(once, under(job, replicas, hide * backward, layers));
}

loom_reduction loom_reduction_cost(const loom_job *job, const loom_degrees *g, const loom_weights *w, double layers, double forward, double backward, int64_t micro_batches)
{
    if (layers < 1)
        layers = 1;
    if (g->zero == 3)
        return fully_sharded(job, g, w, layers, forward, backward, micro_batches);
    double reduce = gradient_seconds(job, g, dense_group(g), w->dense) + gradient_seconds(job, g, expert_group(g), w->experts);
    double gather = gather_seconds(job, g, dense_group(g), w->dense) + gather_seconds(job, g, expert_group(g), w->experts);
    loom_reduction turns = {g->zero ? loom_soft(job, LOOM_SOFT_OWNER_TURN) * nest_of(dense_group(g), g->shard_group).inner.n : 0, 0};
    return both(turns, both(under(job, reduce, loom_soft(job, LOOM_SOFT_DP_WINDOW) * backward, layers), under(job, gather, loom_soft(job, LOOM_SOFT_GATHER_WINDOW) * forward, layers)));
}

double loom_optimizer_seconds(const loom_job *job, const loom_degrees *g, const loom_weights *w)
{
    nest dense = nest_of(dense_group(g), g->shard_group);
    double dense_share = g->zero ? dense.inner.n : 1, expert_share = g->zero ? expert_group(g).n : 1;
    double owned = w->dense / dense_share + w->experts / expert_share;

    return loom_stream_seconds(&job->machine, (loom_soft(job, LOOM_SOFT_OPTIMIZER_BYTES) + 4) * owned, 20);
}
