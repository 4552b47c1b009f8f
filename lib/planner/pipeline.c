/* How long a pipeline takes from its first forward to its last backward: closed forms, without simulating. */
#include "planner/cost.h"

#include <math.h>

static double sum(const double *at, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += at[i];
    return s;
}

static double most(const double *at, int n)
{
    double m = at[0];
    for (int i = 1; i < n; i++)
        m = fmax(m, at[i]);
    return m;
}

/* Every stage waits for those before it to fill, is busy m times, and then for those after it to drain, except as far as its own
 * surplus of work hides them: in the steady state a heavy stage i finds its next input k = min(p-i-1, m-1) slots early. With v chunks a
 * stage fill and drain are v times shorter. */
static double one_f_one_b(const loom_pipe *pipe)
{
    int p = pipe->stages, v = pipe->chunks;
    double m = (double)pipe->micro_batches, before = 0, after = 0, worst = 0;

    for (int i = 0; i < p; i++)
        after += pipe->forward[i] + pipe->backward[i];
    for (int i = 0; i < p; i++) {
        double own = pipe->forward[i] + pipe->backward[i];
        double k = fmin(p - i - 1, m - 1);
        after -= own;
        double drain = fmin(after, fmax(0, after - k * pipe->forward[i]) + fmax(0, after - k * pipe->backward[i]));
        worst = fmax(worst, before / v + m * own + drain / v);
        before += own;
    }
    return worst + 2 * m * v * pipe->hop + 2 * (p - 1) * pipe->hop;
}

static double gpipe(const loom_pipe *pipe)
{
    int p = pipe->stages;
    double m = (double)pipe->micro_batches;

    return (m - 1) * (most(pipe->forward, p) + most(pipe->backward, p)) + sum(pipe->forward, p) + sum(pipe->backward, p) +
           2 * (m + p - 1) * pipe->hop;
}

/* Mean passes of a stage: forward, input gradient, weight gradient. */
typedef struct passes {
    double f, i, w, busiest;
} passes;

static passes mean_passes(const loom_pipe *pipe)
{
    int p = pipe->stages;
    passes mean = {sum(pipe->forward, p) / p, 0, sum(pipe->weight, p) / p, 0};

    mean.i = sum(pipe->backward, p) / p - mean.w;
    for (int s = 0; s < p; s++)
        mean.busiest = fmax(mean.busiest, pipe->forward[s] + pipe->backward[s]);
    return mean;
}

static double hops(const loom_pipe *pipe)
{
    return 2 * ((double)pipe->micro_batches * pipe->chunks + pipe->stages - 1) * pipe->hop;
}

/* 1F1B with split backward: weight gradients fill the waits as far as they go. */
static double zero_bubble_h1(const loom_pipe *pipe)
{
    passes mean = mean_passes(pipe);
    return (double)pipe->micro_batches * mean.busiest + (pipe->stages - 1) * (mean.f + fmax(0, mean.i - mean.w)) + hops(pipe);
}

/* The same with twice the micro-batches in flight: another weight gradient for every wait, the ramp of forwards overlaps the next step's.
 */
static double zero_bubble_h2(const loom_pipe *pipe)
{
    passes mean = mean_passes(pipe);
    return (double)pipe->micro_batches * mean.busiest + (pipe->stages - 1) * fmax(0, mean.f + mean.i - 2 * mean.w) + hops(pipe);
}

/* Folded in a V: half a pass a stage to fill, or what input gradients exceed weight gradients by. Found by running the schedule in virtual
 * time for stages of 4 to 16 and passes of several shapes, where it is exact from 2p micro-batches on; fewer leave the fold half empty. */
static double zero_bubble_v(const loom_pipe *pipe)
{
    passes mean = mean_passes(pipe);
    double p = pipe->stages, m = (double)pipe->micro_batches;
    double a = fmax(fmax(mean.f, fmax(mean.i, mean.w)) / 2, mean.i - mean.w);
    double empty = mean.f * (1 - 0.5 * fmin(1, fmax(0, (m - p) / p)));

    return m * mean.busiest + (p - 1) * fmax(a, empty) + fmax(0, mean.i - mean.w) + hops(pipe);
}

static double dual_pipe(const loom_pipe *pipe)
{
    int p = pipe->stages;
    double f = sum(pipe->forward, p) / p, b = sum(pipe->backward, p) / p, w = sum(pipe->weight, p) / p;
    double bubble = fmax(0, (p / 2.0 - 1) * (f + b + b - 3 * w));

    return pipe->micro_batches * (most(pipe->forward, p) + most(pipe->backward, p)) + bubble +
           2 * (pipe->micro_batches + p - 1) * pipe->hop;
}

double loom_pipe_seconds(const loom_pipe *pipe)
{
    if (pipe->stages == 1)
        return pipe->micro_batches * (pipe->forward[0] + pipe->backward[0]);
    switch (pipe->kind) {
    case LOOM_PIPE_GPIPE:
        return gpipe(pipe);
    case LOOM_PIPE_1F1B:
    case LOOM_PIPE_INTERLEAVED:
        return one_f_one_b(pipe);
    case LOOM_PIPE_ZB_H1:
        return zero_bubble_h1(pipe);
    case LOOM_PIPE_ZB_H2:
        return zero_bubble_h2(pipe);
    case LOOM_PIPE_ZB_V:
        return zero_bubble_v(pipe);
    case LOOM_PIPE_DUAL:
        return dual_pipe(pipe);
    }
    return one_f_one_b(pipe);
}

/* Stages that are at work share all cores, as long as there are enough of them to keep every core busy: p / crowd of p. In a ramp from 1 to p stages
 * only what is below that idles, at full speed. */
double loom_crowded_bubble(const loom_machine *machine, int stages, double bubble)
{
    double enough = stages / machine->crowd;

    if (machine->crowd <= 1 || stages < 2)
        return bubble;
    return bubble * fmax(0, enough - 1) / (stages - 1) / machine->crowd;
}
