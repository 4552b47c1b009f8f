/* A topology in words: one line, and the tree. */
#include "topology/tell.h"

#include "topology/exact.h"

#include <rankloom/text.h>

#include <math.h>
#include <string.h>

/* --- figures --------------------------------------------------------------------------------------------------------------- */

static void tell(loom_text *text, loom_figure figure, double unit, const char *name)
{
    if (loom_known(figure))
        loom_text_add(text, "%.4g %s", figure.value / unit, name);
    else
        loom_text_add(text, "unknown");
}

static void tell_of(loom_text *text, loom_figure figure, double unit, const char *name)
{
    tell(text, figure, unit, name);
    if (loom_known(figure))
        loom_text_add(text, " (%s)", loom_origin_name(figure.origin));
}

void loom_tell_rate(loom_text *text, loom_figure bytes_per_s)
{
    tell(text, bytes_per_s, 1e9, "GB/s");
}

void loom_tell_rate_of(loom_text *text, loom_figure bytes_per_s)
{
    tell_of(text, bytes_per_s, 1e9, "GB/s");
}

void loom_tell_latency_of(loom_text *text, loom_figure seconds)
{
    tell_of(text, seconds, 1e-6, "us");
}

void loom_tell_memory_of(loom_text *text, loom_figure bytes)
{
    tell_of(text, bytes, 1073741824.0, "GiB");
}

void loom_tell_span(loom_text *text, int first, int count)
{
    if (count == 1)
        loom_text_add(text, "%d", first);
    else
        loom_text_add(text, "%d-%d", first, first + count - 1);
}

/* --- which nodes are alike ---------------------------------------------------------------------------------------------------- */

/* Number of the domain of local device `i` among the domains of its node, in order of appearance. */
static int local_domain(const loom_topology *t, const loom_topo_node *node, int i)
{
    return t->devices[node->first_device + i].domain - t->devices[node->first_device].domain;
}

bool loom_nodes_alike(const loom_topology *t, int index_a, int index_b)
{
    const loom_topo_node *a = &t->nodes[index_a], *b = &t->nodes[index_b];

    if (a->devices != b->devices || a->nics != b->nics || a->numas != b->numas || a->cores != b->cores || a->threads != b->threads ||
        !loom_figure_equal(a->memory_bytes, b->memory_bytes))
        return false;
    for (int i = 0; i < a->devices; i++) {
        const loom_topo_device *x = &t->devices[a->first_device + i], *y = &t->devices[b->first_device + i];
        if (x->chip != y->chip || local_domain(t, a, i) != local_domain(t, b, i) ||
            (x->nic < 0 ? y->nic >= 0 : x->nic - a->first_nic != y->nic - b->first_nic) ||
            (x->numa < 0 ? y->numa >= 0 : x->numa - a->first_numa != y->numa - b->first_numa))
            return false;
    }
    for (int i = 0; i < a->nics; i++)
        if (!loom_figure_equal(t->nics[a->first_nic + i].bandwidth, t->nics[b->first_nic + i].bandwidth) ||
            t->nics[a->first_nic + i].rail != t->nics[b->first_nic + i].rail)
            return false;
    for (int i = 0; i < a->numas; i++) {
        const loom_numa *x = &t->numas[a->first_numa + i], *y = &t->numas[b->first_numa + i];
        if (x->os_index != y->os_index || x->cores != y->cores || !loom_figure_equal(x->memory_bytes, y->memory_bytes))
            return false;
    }
    return !t->wires ||
           memcmp(t->wires + a->first_wire, t->wires + b->first_wire, (size_t)(a->devices * a->devices) * sizeof *t->wires) == 0;
}

int loom_alike_run(const loom_topology *t, int first)
{
    int count = 1;
    while (first + count < t->n_nodes && t->nodes[first + count].rack == t->nodes[first].rack && loom_nodes_alike(t, first, first + count))
        count++;
    return count;
}

/* --- one line ------------------------------------------------------------------------------------------------------------------- */

static void line_nodes(loom_text *text, const loom_topology *t, int first, int count)
{
    const loom_topo_node *node = &t->nodes[first];

    loom_text_add(text, "%d node%s x %d", count, count == 1 ? "" : "s", node->devices);
    for (int i = 0; i < node->devices; i++) {
        int chip = t->devices[node->first_device + i].chip;
        if (i == 0 || chip != t->devices[node->first_device + i - 1].chip)
            loom_text_add(text, "%s%s", i == 0 ? " " : "/", t->chips[chip].name);
    }
}

static void line_domains(loom_text *text, const loom_topology *t)
{
    int most = 0, run = 0;

    for (int rank = 0; rank < t->n_devices; rank++) {
        run = rank > 0 && loom_topology_domain_of(t, rank) == loom_topology_domain_of(t, rank - 1) ? run + 1 : 1;
        most = run > most ? run : most;
    }
    if (most > 1)
        loom_text_add(text, ", domains of %d", most);
    else
        loom_text_add(text, ", no fast links");
}

loom_status loom_topology_line(const loom_topology *t, char **out)
{
    loom_text text = {0};

    for (int first = 0, count; first < t->n_nodes; first += count) {
        count = 1;
        while (first + count < t->n_nodes && loom_nodes_alike(t, first, first + count))
            count++;
        if (first)
            loom_text_add(&text, " + ");
        line_nodes(&text, t, first, count);
    }
    line_domains(&text, t);
    if (t->n_racks > 1)
        loom_text_add(&text, ", %d racks", t->n_racks);
    if (t->n_nodes > 1) {
        loom_text_add(&text, ", network ");
        loom_tell_rate(&text, loom_topology_nic_bandwidth(t, 0));
        loom_text_add(&text, " a device");
    }
    return loom_text_take(&text, out);
}

/* --- the tree --------------------------------------------------------------------------------------------------------------------- */

static void tree_levels(loom_text *text, const loom_topology *t)
{
    for (int level = LOOM_LEVEL_RACK; level < LOOM_LEVELS && t->n_nodes > 1; level++) {
        const loom_level_figures *figures = &t->levels[level];
        if (level == LOOM_LEVEL_CLUSTER && t->n_racks < 2 && !t->rails)
            continue;
        loom_text_add(text, "├── network %s: ",
                      level == LOOM_LEVEL_RACK ? (t->rails ? "on one rail of a rack" : "inside a rack") : "through the spine");
        loom_figure share = loom_known(figures->bandwidth) ? figures->bandwidth : loom_topology_nic_bandwidth(t, 0);
        if (!loom_known(figures->bandwidth))
            share.value /= loom_figure_or(figures->oversubscription, 1);
        loom_tell_rate_of(text, share);
        loom_text_add(text, " a device, latency ");
        loom_tell_latency_of(text, figures->latency_s);
        if (loom_figure_or(figures->oversubscription, 1) > 1)
            loom_text_add(text, ", oversubscribed %.3g:1 (%s)", figures->oversubscription.value,
                          loom_origin_name(figures->oversubscription.origin));
        loom_text_add(text, "\n");
    }
}

/* "network cards 0-3: 25 GB/s each (given), 2 devices a card" */
static void tree_nics(loom_text *text, const loom_topology *t, const loom_topo_node *node, const char *indent)
{
    for (int first = 0, count; first < node->nics; first += count) {
        const loom_nic *nic = &t->nics[node->first_nic + first];
        count = 1;
        while (first + count < node->nics && loom_figure_equal(nic[count].bandwidth, nic->bandwidth) && nic[count].numa == nic->numa &&
               nic[count].devices == nic->devices)
            count++;
        loom_text_add(text, "%s├── network card%s ", indent, count == 1 ? "" : "s");
        loom_tell_span(text, first, count);
        loom_text_add(text, ": ");
        loom_tell_rate_of(text, nic->bandwidth);
        if (nic->numa >= 0)
            loom_text_add(text, ", NUMA node %d", t->numas[nic->numa].os_index);
        loom_text_add(text, ", %d device%s a card\n", nic->devices, nic->devices == 1 ? "" : "s");
    }
}

static void tree_host(loom_text *text, const loom_topology *t, const loom_topo_node *node, const char *indent)
{
    if (node->cores) {
        loom_text_add(text, "%s├── %d core%s, %d thread%s, memory ", indent, node->cores, node->cores == 1 ? "" : "s", node->threads,
                      node->threads == 1 ? "" : "s");
        loom_tell_memory_of(text, node->memory_bytes);
        loom_text_add(text, "\n");
    }
    for (int i = 0; i < node->numas; i++) {
        const loom_numa *numa = &t->numas[node->first_numa + i];
        loom_text_add(text, "%s├── NUMA node %d", indent, numa->os_index);
        if (numa->cores || node->cores)
            loom_text_add(text, ": %d core%s", numa->cores, numa->cores == 1 ? "" : "s");
        if (loom_known(numa->memory_bytes)) {
            loom_text_add(text, ", memory ");
            loom_tell_memory_of(text, numa->memory_bytes);
        }
        loom_text_add(text, "\n");
    }
}

/* Device numbers of neighbouring ranks: "0-7", "0,2". */
static void tell_locals(loom_text *text, const loom_topology *t, int rank, int count)
{
    for (int i = 0, run; i < count; i += run) {
        int local = t->devices[t->rank_device[rank + i]].local;
        for (run = 1; i + run < count && t->devices[t->rank_device[rank + i + run]].local == local + run;)
            run++;
        loom_text_add(text, "%s", i ? "," : "");
        loom_tell_span(text, local, run);
    }
}

static loom_figure domain_rate(const loom_topology *t, int rank, int count)
{
    int ranks[256]; /* a node has no more */

    for (int i = 0; i < count; i++)
        ranks[i] = rank + i;
    return loom_topology_group(t, ranks, count).bandwidth;
}

/* One line for each domain of the node, or for a run of devices that stand alone. */
static void tree_domains(loom_text *text, const loom_topology *t, const loom_topo_node *node, const char *indent)
{
    int base = node->first_device; /* ranks and devices of a node start at the same number */

    for (int first = 0, count; first < node->devices; first += count) {
        const loom_topo_device *device = &t->devices[t->rank_device[base + first]];
        const loom_chip *chip = &t->chips[device->chip];
        count = 1;
        while (first + count < node->devices && t->devices[t->rank_device[base + first + count]].domain == device->domain)
            count++;
        loom_text_add(text, "%s%s device%s ", indent, first + count < node->devices ? "├──" : "└──", count == 1 ? "" : "s");
        tell_locals(text, t, base + first, count);
        if (count == 1) {
            loom_text_add(text, ": %s", chip->name);
        } else {
            loom_text_add(text, ": %d x %s on %s, ", count, chip->name, chip->link[0] ? chip->link : "NVLink");
            loom_tell_rate_of(text, domain_rate(t, base + first, count));
        }
        loom_text_add(text, "\n");
    }
}

static void tree_node_run(loom_text *text, const loom_topology *t, int first, int count)
{
    const loom_topo_node *node = &t->nodes[first];

    loom_text_add(text, "├── node%s ", count == 1 ? "" : "s");
    loom_tell_span(text, first, count);
    if (node->name[0])
        loom_text_add(text, " \"%s\"", node->name);
    loom_text_add(text, "%s ranks ", count == 1 ? ":" : " alike:");
    loom_tell_span(text, node->first_device, node->devices);
    if (count > 1)
        loom_text_add(text, " and so on");
    loom_text_add(text, "\n");
    tree_host(text, t, node, "│   ");
    tree_nics(text, t, node, "│   ");
    tree_domains(text, t, node, "│   ");
}

static void tree_chip(loom_text *text, const loom_chip *chip)
{
    int known = 0;

    loom_text_add(text, "├── %s", chip->name);
    if (chip->label[0] && strcmp(chip->label, chip->name) != 0)
        loom_text_add(text, " (%s)", chip->label);
    loom_text_add(text, "\n│   ├── memory ");
    loom_tell_memory_of(text, chip->memory_bytes);
    loom_text_add(text, " at ");
    loom_tell_rate_of(text, chip->memory_bandwidth);
    if (loom_known(chip->price_per_hour))
        loom_text_add(text, ", %.4g an hour", chip->price_per_hour.value);
    loom_text_add(text, "\n│   └── peak");
    for (int math = 0; math < LOOM_MATHS; math++)
        if (loom_known(chip->peak[math]))
            loom_text_add(text, "%s %s %.4g Tflop/s (%s)", known++ ? "," : "", loom_math_name((loom_math)math),
                          chip->peak[math].value / 1e12, loom_origin_name(chip->peak[math].origin));
    loom_text_add(text, "%s\n", known ? "" : " unknown");
}

static void tree_measured(loom_text *text, const loom_topology *t)
{
    if (t->measured[0])
        loom_text_add(text, "├── measured: %s\n│   └── %d GEMM shapes, %d collective points, %d laws\n", t->measured, t->n_gemms,
                      t->n_points, t->n_laws);
}

loom_status loom_topology_tree(const loom_topology *t, char **out)
{
    loom_text text = {0};

    loom_text_add(&text, "%s: %d node%s, %d device%s, %d fast domain%s, %d rack%s\n", t->name[0] ? t->name : t->source, t->n_nodes,
                  t->n_nodes == 1 ? "" : "s", t->n_devices, t->n_devices == 1 ? "" : "s", t->n_domains, t->n_domains == 1 ? "" : "s",
                  t->n_racks, t->n_racks == 1 ? "" : "s");
    tree_levels(&text, t);
    for (int first = 0, count; first < t->n_nodes; first += count) {
        count = loom_alike_run(t, first);
        if (t->n_racks > 1 && (first == 0 || t->nodes[first].rack != t->nodes[first - 1].rack))
            loom_text_add(&text, "├── rack %d\n", t->nodes[first].rack);
        tree_node_run(&text, t, first, count);
    }
    for (int i = 0; i < t->n_chips; i++)
        tree_chip(&text, &t->chips[i]);
    tree_measured(&text, t);
    for (int i = 0; i < t->n_notices; i++)
        loom_text_add(&text, "├── note: %s\n", t->notices[i]);
    loom_text_add(&text, "└── figures are one direction, a device; (assumed) is the catalogue's, (given) a file's\n");
    return loom_text_take(&text, out);
}
