/* Time of one collective over a group of ranks, by where its members sit. */
#include "planner/cost.h"

#include <math.h>

/* Bandwidth of `n` ranks of one domain, between the measured sizes 2, 4 and 8 on a logarithmic scale. */
static double link_rate(const loom_machine *machine, loom_device_constant two, int n)
{
    double w2 = loom_dev(machine, two), w4 = loom_dev(machine, two + 1), w8 = loom_dev(machine, two + 2);

    if (n <= 2)
        return w2;
    if (n <= 4)
        return w2 + (w4 - w2) * (log2(n) - 1);
    if (n < 8)
        return w4 + (w8 - w4) * (log2(n) - 2);
    return w8;
}

/* What one rank's port carries in a collective over `domains` of them: large networks lose some to shared links. */
static double net_rate(const loom_machine *machine, int domains)
{
    double crowd = domains > 2 ? 1 + loom_dev(machine, LOOM_DEV_NET_CROWD) * (log2(domains) - 1) : 1;
    return loom_dev(machine, LOOM_DEV_NET_RATE) * loom_dev(machine, LOOM_DEV_NET_SHARE) / crowd;
}

/* Bandwidth of a ring step: its members of one domain share the ports of that domain that belong to the group. */
static double ring_rate(const loom_machine *machine, loom_device_constant two, loom_group group)
{
    double inside = link_rate(machine, two, group.inside > 1 ? group.inside : 2);

    if (group.domains == 1)
        return inside;
    double outside = group.inside * net_rate(machine, group.domains);
    return group.inside > 1 && inside < outside ? inside : outside;
}

static double ring_latency(const loom_machine *machine, loom_group group)
{
    double seconds =
        group.inside > 1 ? loom_dev(machine, LOOM_DEV_LINK_START) + loom_dev(machine, LOOM_DEV_LINK_HOP) * (group.inside - 1) : 0;

    if (group.domains > 1)
        seconds += loom_dev(machine, LOOM_DEV_NET_START) + loom_dev(machine, LOOM_DEV_NET_HOP) * (group.domains - 1);
    return seconds;
}

/* What ranks that take turns on their cores lose at a meeting: each has to get its turn. */
static double turn_seconds(const loom_machine *machine, int ranks)
{
    return machine->crowd > 1 ? loom_dev(machine, LOOM_DEV_LINK_TURN) * (machine->crowd - 1) * log2(ranks) : 0;
}

/* What the law says that was fitted to groups of this size: single points are too unsteady where ranks take turns. */
static double by_law(const loom_topology *t, loom_pattern pattern, int ranks, double bytes)
{
    for (int i = 0; i < t->n_laws; i++) {
        const loom_pattern_law *law = &t->laws[i];
        if (law->pattern == pattern && law->ranks == ranks && loom_known(law->bandwidth))
            return loom_figure_or(law->fixed_s, 0) + loom_figure_or(law->step_s, 0) * (ranks - 1) +
                   loom_pattern_volume(pattern, ranks, bytes) / law->bandwidth.value;
    }
    return NAN;
}

/* A collective of neighbours that was timed; NaN when none was. */
static double timed(const loom_machine *machine, loom_pattern pattern, int ranks, double bytes)
{
    if (!machine->measured || machine->measured->n_laws == 0 || ranks > machine->ranks)
        return NAN;
    if (machine->crowd > 1)
        return by_law(machine->measured, pattern, ranks, bytes) + turn_seconds(machine, ranks);
    loom_group_link link = loom_topology_axis(machine->measured, ranks, 1);
    loom_figure seconds = loom_topology_pattern_s(machine->measured, pattern, &link, bytes);
    return seconds.origin == LOOM_ORIGIN_MEASURED ? seconds.value : NAN;
}

double loom_gather_seconds(const loom_machine *machine, loom_group group, double bytes)
{
    if (group.n < 2 || bytes <= 0)
        return 0;
    double measured = timed(machine, LOOM_PATTERN_ALL_GATHER, group.n, bytes);
    if (!isnan(measured))
        return measured;
    return bytes * (group.n - 1) / group.n / ring_rate(machine, LOOM_DEV_LINK_GATHER_2, group) + ring_latency(machine, group);
}

double loom_reduce_seconds(const loom_machine *machine, loom_group group, double bytes)
{
    if (group.n < 2 || bytes <= 0)
        return 0;
    double measured = timed(machine, LOOM_PATTERN_ALL_REDUCE, group.n, bytes);
    if (!isnan(measured))
        return measured;
    return 2 * bytes * (group.n - 1) / group.n / ring_rate(machine, LOOM_DEV_LINK_REDUCE_2, group) + ring_latency(machine, group);
}

/* Of `copies` that choose among `domains` at random, the share that is the first to choose its domain. */
static double first_copies(double copies, double domains)
{
    return domains * (1 - pow(1 - 1 / domains, copies)) / copies;
}

/* The share that stays in the domain and the share that leaves travel at the same time over different wires. */
double loom_exchange_seconds(const loom_machine *machine, loom_group group, double bytes, double once)
{
    if (group.n < 2 || bytes <= 0)
        return 0;
    double measured = timed(machine, LOOM_PATTERN_ALL_TO_ALL, group.n, bytes);
    if (!isnan(measured))
        return measured;
    double leaving = bytes * (group.n - group.inside) / group.n;
    if (once > 1)
        leaving *= first_copies(once, group.domains);
    double inside =
        group.inside > 1 ? bytes * (group.inside - 1) / group.inside / link_rate(machine, LOOM_DEV_LINK_EXCHANGE_2, group.inside) : 0;
    double outside = group.domains > 1 ? leaving / net_rate(machine, group.domains) : 0;
    return (inside > outside ? inside : outside) + ring_latency(machine, group);
}

double loom_hop_seconds(const loom_machine *machine, loom_group group, double bytes)
{
    double measured = timed(machine, LOOM_PATTERN_SEND, 2, bytes);

    if (!isnan(measured))
        return measured;
    if (group.inside > 1)
        return bytes / link_rate(machine, LOOM_DEV_LINK_GATHER_2, 2) + loom_dev(machine, LOOM_DEV_LINK_START);
    return bytes / (loom_dev(machine, LOOM_DEV_NET_RATE) * loom_dev(machine, LOOM_DEV_NET_SHARE)) + loom_dev(machine, LOOM_DEV_NET_START);
}
