/* Time of one collective over a group of ranks, by where its members sit. */
#include "planner/cost.h"

#include <math.h>

/* How a group lies on the machine: how many of its members share a scale-up domain, how many domains it touches. */
typedef struct lie {
    int inside, domains;
} lie;

static lie group_lie(const loom_machine *machine, loom_group group)
{
    int per_domain = machine->domain / group.stride;

    if (per_domain < 1)
        per_domain = 1;
    if (per_domain >= group.n)
        return (lie){group.n, 1};
    return (lie){per_domain, (group.n + per_domain - 1) / per_domain};
}

bool loom_group_inside(const loom_machine *machine, loom_group group)
{
    return group_lie(machine, group).domains == 1;
}

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
    lie at = group_lie(machine, group);
    double inside = link_rate(machine, two, at.inside > 1 ? at.inside : 2);

    if (at.domains == 1)
        return inside;
    double outside = at.inside * net_rate(machine, at.domains);
    return at.inside > 1 && inside < outside ? inside : outside;
}

static double ring_latency(const loom_machine *machine, loom_group group)
{
    lie at = group_lie(machine, group);
    double seconds = at.inside > 1 ? loom_dev(machine, LOOM_DEV_LINK_START) + loom_dev(machine, LOOM_DEV_LINK_HOP) * (at.inside - 1) : 0;

    if (at.domains > 1)
        seconds += loom_dev(machine, LOOM_DEV_NET_START) + loom_dev(machine, LOOM_DEV_NET_HOP) * (at.domains - 1);
    return seconds;
}

double loom_gather_seconds(const loom_machine *machine, loom_group group, double bytes)
{
    if (group.n < 2 || bytes <= 0)
        return 0;
    return bytes * (group.n - 1) / group.n / ring_rate(machine, LOOM_DEV_LINK_GATHER_2, group) + ring_latency(machine, group);
}

double loom_reduce_seconds(const loom_machine *machine, loom_group group, double bytes)
{
    if (group.n < 2 || bytes <= 0)
        return 0;
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
    lie at = group_lie(machine, group);
    double leaving = bytes * (group.n - at.inside) / group.n;
    if (once > 1)
        leaving *= first_copies(once, at.domains);
    double inside = at.inside > 1 ? bytes * (at.inside - 1) / at.inside / link_rate(machine, LOOM_DEV_LINK_EXCHANGE_2, at.inside) : 0;
    double outside = at.domains > 1 ? leaving / net_rate(machine, at.domains) : 0;
    return (inside > outside ? inside : outside) + ring_latency(machine, group);
}

double loom_hop_seconds(const loom_machine *machine, int stride, double bytes)
{
    if (stride < machine->domain)
        return bytes / link_rate(machine, LOOM_DEV_LINK_GATHER_2, 2) + loom_dev(machine, LOOM_DEV_LINK_START);
    return bytes / (loom_dev(machine, LOOM_DEV_NET_RATE) * loom_dev(machine, LOOM_DEV_NET_SHARE)) + loom_dev(machine, LOOM_DEV_NET_START);
}
