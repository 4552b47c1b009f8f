/* Whether a cluster is regular. Large ones are, and a question about all groups of an axis then needs only one of each kind. */
#include "topology/build.h"

#include <string.h>

typedef int place_fn(const loom_topology *t, int rank);

static int rack_of(const loom_topology *t, int rank)
{
    return t->nodes[loom_topology_node_of(t, rank)].rack;
}

/* Length of the equal runs of `place` over all ranks (the last may be shorter); 0 when they differ. */
static int run_length(const loom_topology *t, int places, place_fn *place)
{
    int length = 0;

    if (places == 1)
        return 1; /* one place that holds everything cuts nothing */

    for (int first = 0, end; first < t->n_devices; first = end) {
        for (end = first + 1; end < t->n_devices && place(t, end) == place(t, first);)
            end++;
        if (length == 0)
            length = end - first;
        else if (end - first > length || (end - first < length && end < t->n_devices))
            return 0;
    }
    return length;
}

static bool stand_alike(const loom_topology *t, int rank_a, int rank_b)
{
    const loom_topo_device *a = &t->devices[t->rank_device[rank_a]], *b = &t->devices[t->rank_device[rank_b]];
    loom_figure nic_a = loom_topology_nic_bandwidth(t, rank_a), nic_b = loom_topology_nic_bandwidth(t, rank_b);

    return a->chip == b->chip && a->local == b->local && nic_a.origin == nic_b.origin &&
           (!loom_known(nic_a) || nic_a.value == nic_b.value) &&
           (a->nic < 0 ? b->nic < 0 : b->nic >= 0 && t->nics[a->nic].rail == t->nics[b->nic].rail);
}

static bool nodes_wired_alike(const loom_topology *t)
{
    for (int n = 1; t->wires && n < t->n_nodes; n++) {
        const loom_topo_node *a = &t->nodes[n - 1], *b = &t->nodes[n];
        size_t wires = (size_t)a->devices * (size_t)a->devices;
        if (memcmp(t->wires + a->first_wire, t->wires + b->first_wire, wires * sizeof *t->wires) != 0)
            return false;
    }
    return true;
}

static int64_t least_multiple(int64_t a, int64_t b)
{
    int64_t multiple = a;
    while (multiple % b)
        multiple += a;
    return multiple;
}

int loom_period(const loom_topology *t)
{
    int node = run_length(t, t->n_nodes, loom_topology_node_of), domain = run_length(t, t->n_domains, loom_topology_domain_of);
    int rack = run_length(t, t->n_racks, rack_of);

    if (!node || !domain || !rack || t->n_nodes == 1 || t->n_devices % node)
        return t->n_devices; /* a lone node is asked device by device: there are few */
    for (int rank = node; rank < t->n_devices; rank++)
        if (!stand_alike(t, rank, rank - node))
            return t->n_devices;
    if (!nodes_wired_alike(t))
        return t->n_devices;
    int64_t period = least_multiple(least_multiple(node, domain), rack);
    return period < t->n_devices ? (int)period : t->n_devices;
}
