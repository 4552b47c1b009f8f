/* What lies between ranks: links of pairs, what a group's ring meets, how many groups of neighbours fit. */
#include <rankloom/topology.h>

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>

/* B/s of one NVLink of a chip, one direction: 25 GB/s from the second generation to the fourth, and where nobody knows the chip. */
static double one_link(const loom_chip *chip)
{
    int generation = 4;

    sscanf(chip->link, "NVLink%d", &generation);
    return generation >= 5 ? 50e9 : generation >= 2 ? 25e9 : 20e9;
}

int loom_topology_ranks(const loom_topology *t)
{
    return t->n_devices;
}

static const loom_topo_device *device_at(const loom_topology *t, int rank)
{
    assert(rank >= 0 && rank < t->n_devices);
    return &t->devices[t->rank_device[rank]];
}

int loom_topology_device_of(const loom_topology *t, int rank)
{
    return rank >= 0 && rank < t->n_devices ? t->rank_device[rank] : -1;
}

int loom_topology_node_of(const loom_topology *t, int rank)
{
    return rank >= 0 && rank < t->n_devices ? device_at(t, rank)->node : -1;
}

int loom_topology_domain_of(const loom_topology *t, int rank)
{
    return rank >= 0 && rank < t->n_devices ? device_at(t, rank)->domain : -1;
}

int loom_topology_local_rank(const loom_topology *t, int rank)
{
    /* Ranks of a node follow one another, and so do its devices: both start at the same number. */
    return rank >= 0 && rank < t->n_devices ? rank - t->nodes[device_at(t, rank)->node].first_device : -1;
}

const loom_chip *loom_topology_chip_of(const loom_topology *t, int rank)
{
    return rank >= 0 && rank < t->n_devices ? &t->chips[device_at(t, rank)->chip] : NULL;
}

loom_wire loom_topology_wire(const loom_topology *t, int a, int b)
{
    if (!t->wires || a < 0 || b < 0 || a >= t->n_devices || b >= t->n_devices || t->devices[a].node != t->devices[b].node)
        return (loom_wire){LOOM_PATH_UNKNOWN, 0};
    const loom_topo_node *node = &t->nodes[t->devices[a].node];
    return t->wires[node->first_wire + t->devices[a].local * node->devices + t->devices[b].local];
}

loom_figure loom_topology_nic_bandwidth(const loom_topology *t, int rank)
{
    if (rank < 0 || rank >= t->n_devices || device_at(t, rank)->nic < 0)
        return loom_unknown();
    const loom_nic *nic = &t->nics[device_at(t, rank)->nic];
    return (loom_figure){nic->bandwidth.value / nic->devices, nic->bandwidth.origin};
}

/* --- pieces that links and groups share --------------------------------------------------------------------------- */

/* Scale-up bandwidth of a device over `links` NVLinks; 0: they are not listed, and the chip's figure stands. */
static loom_figure linked_bandwidth(const loom_chip *chip, int links, loom_figure whole)
{
    if (links == 0)
        return whole;
    loom_figure listed = {links * one_link(chip), LOOM_ORIGIN_ASSUMED};
    return loom_known(whole) ? loom_figure_min(whole, listed) : listed;
}

static bool same_rail(const loom_topology *t, const loom_topo_device *a, const loom_topo_device *b)
{
    return !t->rails || a->nic < 0 || b->nic < 0 || t->nics[a->nic].rail == t->nics[b->nic].rail;
}

static loom_level level_between(const loom_topology *t, const loom_topo_device *a, const loom_topo_device *b)
{
    if (a == b)
        return LOOM_LEVEL_SELF;
    if (a->domain == b->domain)
        return LOOM_LEVEL_DOMAIN;
    if (a->node == b->node)
        return LOOM_LEVEL_NODE;
    return t->nodes[a->node].rack == t->nodes[b->node].rack ? LOOM_LEVEL_RACK : LOOM_LEVEL_CLUSTER;
}

/* A figure given or measured for the whole level stands above what parts suggest. */
static loom_figure level_or(const loom_topology *t, loom_level level, loom_figure from_parts)
{
    return loom_known(t->levels[level].bandwidth) ? t->levels[level].bandwidth : from_parts;
}

static loom_figure through_switches(const loom_topology *t, loom_level level, loom_figure bandwidth)
{
    bandwidth.value /= loom_figure_or(t->levels[level].oversubscription, 1);
    return bandwidth;
}

/* --- pairs -------------------------------------------------------------------------------------------------------------- */

loom_link loom_topology_link(const loom_topology *t, int rank_a, int rank_b)
{
    const loom_topo_device *a = device_at(t, rank_a), *b = device_at(t, rank_b);
    const loom_chip *chip_a = &t->chips[a->chip], *chip_b = &t->chips[b->chip];
    loom_level level = level_between(t, a, b);
    loom_figure bandwidth = loom_unknown();
    loom_wire wire = loom_topology_wire(t, t->rank_device[rank_a], t->rank_device[rank_b]);

    if (level == LOOM_LEVEL_DOMAIN && wire.path > LOOM_PATH_NVLINK && wire.path < LOOM_PATH_UNKNOWN)
        level = LOOM_LEVEL_NODE; /* one domain, but not these two directly: a cube mesh */
    switch (level) {
    case LOOM_LEVEL_SELF:
        bandwidth = chip_a->memory_bandwidth;
        break;
    case LOOM_LEVEL_DOMAIN:
        bandwidth =
            linked_bandwidth(chip_a, wire.links,
                             chip_a == chip_b ? chip_a->peer_bandwidth : loom_figure_min(chip_a->peer_bandwidth, chip_b->peer_bandwidth));
        break;
    case LOOM_LEVEL_NODE:
        bandwidth = loom_figure_min(chip_a->host_bandwidth, chip_b->host_bandwidth);
        break;
    default:
        if (level == LOOM_LEVEL_RACK && !same_rail(t, a, b))
            level = LOOM_LEVEL_CLUSTER;
        bandwidth = loom_figure_min(loom_topology_nic_bandwidth(t, rank_a), loom_topology_nic_bandwidth(t, rank_b));
        bandwidth = through_switches(t, level, bandwidth);
    }
    if (level != LOOM_LEVEL_SELF)
        bandwidth = level_or(t, level, bandwidth);
    return (loom_link){level, bandwidth, level == LOOM_LEVEL_SELF ? loom_assumed(0) : t->levels[level].latency_s};
}

/* --- groups ---------------------------------------------------------------------------------------------------------------- */

/* Members as a function of their index, so that an axis of a large world needs no list. */
typedef struct members {
    const int *ranks; /* NULL: first + index * stride */
    int first, stride, count;
} members;

static int member(const members *m, int index)
{
    return m->ranks ? m->ranks[index] : m->first + index * m->stride;
}

static bool ascending(const members *m)
{
    for (int i = 1; m->ranks && i < m->count; i++)
        if (m->ranks[i - 1] >= m->ranks[i])
            return false;
    return true;
}

static int place_of(const loom_topology *t, const members *m, int index, bool domain)
{
    const loom_topo_device *device = device_at(t, member(m, index));
    return domain ? device->domain : device->node;
}

/* How many places (nodes or domains) the members touch, and the fewest members in one of them. Ranks of a place follow one another, so in
 * ascending members a place is a run; otherwise members are compared pair by pair. */
static void count_places(const loom_topology *t, const members *m, bool sorted, bool domain, int *places, int *fewest)
{
    *places = 0;
    *fewest = INT_MAX;
    for (int i = 0; i < m->count;) {
        int here = place_of(t, m, i, domain), same = 0, step = 1;
        bool first = true;
        for (int j = sorted ? i : 0; j < m->count; j++) {
            bool equal = place_of(t, m, j, domain) == here;
            same += equal;
            if (sorted && !equal)
                break;
            first = first && !(equal && j < i);
        }
        if (sorted)
            step = same;
        *places += first;
        if (same < *fewest)
            *fewest = same;
        i += step;
    }
}

/* What a member can hand on inside its domain, at least: the links to the other members there. */
static loom_figure domain_bandwidth(const loom_topology *t, const members *m, int in_domain)
{
    loom_figure least = {INFINITY, LOOM_ORIGIN_ASSUMED};

    for (int i = 0; i < m->count; i++) {
        int device = t->rank_device[member(m, i)], links = 0;
        const loom_chip *chip = &t->chips[t->devices[device].chip];
        for (int j = 0; t->wires && j < m->count; j++)
            if (j != i)
                links += loom_topology_wire(t, device, t->rank_device[member(m, j)]).links;
        loom_figure pairs = chip->peer_bandwidth;
        pairs.value *= in_domain - 1;
        least = loom_figure_min(least, linked_bandwidth(chip, links, loom_figure_min(chip->link_bandwidth, pairs)));
    }
    return level_or(t, LOOM_LEVEL_DOMAIN, least);
}

static loom_figure host_bandwidth(const loom_topology *t, const members *m)
{
    loom_figure least = {INFINITY, LOOM_ORIGIN_ASSUMED};

    for (int i = 0; i < m->count; i++)
        least = loom_figure_min(least, t->chips[device_at(t, member(m, i))->chip].host_bandwidth);
    return level_or(t, LOOM_LEVEL_NODE, least);
}

static loom_figure network_bandwidth(const loom_topology *t, const members *m, loom_level level)
{
    loom_figure least = {INFINITY, LOOM_ORIGIN_ASSUMED};

    for (int i = 0; i < m->count; i++)
        least = loom_figure_min(least, loom_topology_nic_bandwidth(t, member(m, i)));
    return level_or(t, level, through_switches(t, level, least));
}

/* The slowest level between neighbours of the ring. A ring whose members fill several rails of a node stays on its rails. */
static loom_level ring_level(const loom_topology *t, const members *m, int alone_in_node)
{
    loom_level worst = LOOM_LEVEL_SELF;

    for (int i = 0; i < m->count; i++) {
        const loom_topo_device *a = device_at(t, member(m, i)), *b = device_at(t, member(m, (i + 1) % m->count));
        loom_level level = level_between(t, a, b);
        if (level == LOOM_LEVEL_RACK && alone_in_node && !same_rail(t, a, b))
            level = LOOM_LEVEL_CLUSTER;
        worst = level > worst ? level : worst;
    }
    return worst;
}

static loom_path worst_path(const loom_topology *t, const members *m)
{
    loom_path worst = LOOM_PATH_SELF;

    for (int i = 0; i < m->count; i++) {
        int next = (i + 1) % m->count;
        if (next == i)
            continue;
        loom_path path = (loom_path)loom_topology_wire(t, t->rank_device[member(m, i)], t->rank_device[member(m, next)]).path;
        worst = path > worst ? path : worst;
    }
    return worst;
}

/* The slower of the part inside (domain, or host if the ring leaves domains inside a node) and the network, of which a ring uses the cards
 * of all its members in one place at once. */
static loom_figure ring_bandwidth(const loom_topology *t, const members *m, const loom_group_link *link)
{
    bool leaves_domain = link->in_node > link->in_domain || (link->nodes == 1 && link->domains > 1);
    int cards = link->in_domain > link->in_node ? link->in_domain : link->in_node;
    loom_figure inside = {INFINITY, LOOM_ORIGIN_ASSUMED};

    if (link->in_domain > 1)
        inside = domain_bandwidth(t, m, link->in_domain);
    if (leaves_domain)
        inside = loom_figure_min(inside, host_bandwidth(t, m));
    if (link->level < LOOM_LEVEL_RACK)
        return inside;
    loom_figure network = network_bandwidth(t, m, link->level);
    network.value *= cards;
    return loom_figure_min(inside, network);
}

static loom_group_link group_link(const loom_topology *t, const members *m)
{
    loom_group_link link = {.ranks = m->count};
    bool sorted = ascending(m);

    count_places(t, m, sorted, true, &link.domains, &link.in_domain);
    count_places(t, m, sorted, false, &link.nodes, &link.in_node);
    link.level = ring_level(t, m, link.in_node == 1);
    link.path = link.nodes == 1 ? worst_path(t, m) : LOOM_PATH_UNKNOWN;
    if (m->count <= 1) {
        link.bandwidth = device_at(t, member(m, 0)) ? t->chips[device_at(t, member(m, 0))->chip].memory_bandwidth : loom_unknown();
        link.latency_s = loom_assumed(0);
        return link;
    }
    link.bandwidth = ring_bandwidth(t, m, &link);
    link.latency_s = t->levels[link.level].latency_s;
    return link;
}

loom_group_link loom_topology_group(const loom_topology *t, const int *ranks, int count)
{
    assert(count > 0);
    members m = {.ranks = ranks, .count = count};
    return group_link(t, &m);
}

/* Worse: a slower level; then unknown before known; then less bandwidth. */
static bool worse(const loom_group_link *a, const loom_group_link *b)
{
    if (loom_known(a->bandwidth) != loom_known(b->bandwidth))
        return !loom_known(a->bandwidth);
    if (loom_known(a->bandwidth) && a->bandwidth.value != b->bandwidth.value)
        return a->bandwidth.value < b->bandwidth.value;
    return a->level > b->level;
}

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Groups whose first ranks differ by a multiple of the period meet the same, so one of each kind is asked. */
loom_group_link loom_topology_axis(const loom_topology *t, int n, int stride)
{
    loom_group_link worst = {0};
    int64_t block = (int64_t)n * stride;

    assert(n > 0 && stride > 0 && block <= t->n_devices);
    int64_t blocks = t->n_devices / block, kinds = t->period / greatest_divisor(block, t->period);
    int starts = stride < t->period ? stride : t->period;
    for (int64_t b = 0; b < blocks && b < kinds; b++) {
        for (int i = 0; i < starts; i++) {
            members m = {.first = (int)(b * block) + i, .stride = stride, .count = n};
            loom_group_link link = group_link(t, &m);
            if (!worst.ranks || worse(&link, &worst))
                worst = link;
        }
    }
    return worst;
}

/* --- fitting whole groups into places ------------------------------------------------------------------------------------------ */

static int ranks_in_places(const loom_topology *t, int n, bool domain)
{
    int used = 0;

    for (int first = 0, end; first < t->n_devices; first = end) {
        const loom_topo_device *device = device_at(t, first);
        end = first + 1;
        while (end < t->n_devices && (domain ? device_at(t, end)->domain == device->domain : device_at(t, end)->node == device->node))
            end++;
        used += (end - first) / n * n;
    }
    return used;
}

int loom_topology_ranks_in_nodes(const loom_topology *t, int n)
{
    return n > 0 ? ranks_in_places(t, n, false) : 0;
}

int loom_topology_ranks_in_domains(const loom_topology *t, int n)
{
    return n > 0 ? ranks_in_places(t, n, true) : 0;
}
