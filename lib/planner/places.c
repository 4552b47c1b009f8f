/* Which groups of a layout stay inside a scale-up domain. */
#include "planner/cost.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* How far apart neighbours of each axis are in rank order. */
static void strides_of(const loom_degrees *g, int stride[4])
{
    const int degree[4] = {[LOOM_AXIS_TP] = g->tp, [LOOM_AXIS_CP] = g->cp, [LOOM_AXIS_DP] = g->dp, [LOOM_AXIS_PP] = g->pp};
    int so_far = 1;

    for (int i = 0; i < 4; i++) {
        stride[g->order[i]] = so_far;
        so_far *= degree[g->order[i]];
    }
}

/* Members of one domain among `n` ranks that are `stride` apart. */
static int inside(const loom_machine *machine, int n, int stride)
{
    int fit = machine->domain / stride;
    return fit < 1 ? 1 : least(fit, n);
}

static loom_group group(int n, int in)
{
    return (loom_group){n, in, (n + in - 1) / in};
}

static loom_group along(const loom_machine *machine, int n, int stride)
{
    return group(n, inside(machine, n, stride));
}

/* A folded axis of `n` ranks that begins at `first` in the numbering tp, cp, dp of a stage: it takes what is left of tp, then of cp, then
 * of dp. */
static loom_group folded(const loom_degrees *g, const loom_machine *machine, const int stride[4], int first, int n)
{
    const int degree[3] = {g->tp, g->cp, g->dp};
    int in = 1, rest = n, below = first;

    for (int axis = 0; axis < 3 && rest > 1; axis++) {
        if (below >= degree[axis]) { /* this axis lies wholly below the fold */
            below /= degree[axis];
            continue;
        }
        int part = least(rest, degree[axis] / below);
        in *= inside(machine, part, stride[axis] * below);
        rest /= part;
        below = 1;
    }
    return group(n, least(in, machine->domain));
}

void loom_degrees_place(loom_degrees *g, const loom_machine *machine)
{
    int stride[4], copies = g->dp * g->cp;
    int shard = g->shard_group > 0 && g->shard_group < copies ? g->shard_group : copies;

    strides_of(g, stride);
    g->places.tp = along(machine, g->tp, stride[LOOM_AXIS_TP]);
    g->places.cp = along(machine, g->cp, stride[LOOM_AXIS_CP]);
    g->places.pp = along(machine, g->pp, stride[LOOM_AXIS_PP]);
    g->places.etp = folded(g, machine, stride, 1, g->etp);
    g->places.ep = folded(g, machine, stride, g->etp, g->ep);
    g->places.expert_gradient = folded(g, machine, stride, g->etp * g->ep, most(1, g->tp * copies / (g->etp * g->ep)));
    g->places.ends = along(machine, 2, stride[LOOM_AXIS_PP] * (g->pp > 1 ? g->pp - 1 : 1));
    int in = least(inside(machine, g->cp, stride[LOOM_AXIS_CP]) * inside(machine, g->dp, stride[LOOM_AXIS_DP]), machine->domain);
    g->places.gradient = group(shard, least(in, shard));
    g->places.gradient_outer = group(copies / shard, in > shard ? least(in / shard, copies / shard) : 1);
}
