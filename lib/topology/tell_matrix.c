/* The device matrix people know from `nvidia-smi topo -m`. */
#include "topology/tell.h"

#include <rankloom/text.h>

#include <stdio.h>
#include <stdlib.h>

enum { SHOW_ALL = 16 /* devices that fit a screen side by side */ };

/* What a cell says, and the legend's sentence for it. */
static const char *cell_of(const loom_topology *t, int rank_a, int rank_b, char cell[8])
{
    static const char *const paths[] = {"X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS"};
    loom_wire wire = loom_topology_wire(t, t->rank_device[rank_a], t->rank_device[rank_b]);

    if (rank_a == rank_b)
        return "X";
    if (wire.path == LOOM_PATH_NVLINK) {
        snprintf(cell, 8, "NV%d", wire.links);
        return cell;
    }
    if (wire.path > LOOM_PATH_NVLINK && wire.path < LOOM_PATH_UNKNOWN)
        return paths[wire.path];
    switch (loom_topology_link(t, rank_a, rank_b).level) {
    case LOOM_LEVEL_DOMAIN:
        return "FAST";
    case LOOM_LEVEL_NODE:
        return "HOST";
    case LOOM_LEVEL_RACK:
        return "NET";
    default:
        return "SPINE";
    }
}

/* All ranks when few; else those of the first node and one of each farther place that differs: next in the domain, next node, next rack. */
static int choose_ranks(const loom_topology *t, int *ranks)
{
    int count = 0;
    bool seen[LOOM_LEVELS] = {false};

    for (int rank = 0; rank < t->n_devices; rank++) {
        bool near = t->n_devices <= SHOW_ALL || loom_topology_node_of(t, rank) == loom_topology_node_of(t, 0);
        loom_level level = loom_topology_link(t, 0, rank).level;
        if (!near && seen[level])
            continue;
        if (!near)
            seen[level] = true;
        ranks[count++] = rank;
    }
    return count;
}

static void add_row(loom_text *text, const loom_topology *t, const int *ranks, int count, int row)
{
    const loom_topo_device *device = &t->devices[t->rank_device[ranks[row]]];
    char cell[8], name[16];

    snprintf(name, sizeof name, "rank%d", ranks[row]);
    loom_text_add(text, "%-10s", name);
    for (int i = 0; i < count; i++)
        loom_text_add(text, "%-8s", cell_of(t, ranks[row], ranks[i], cell));
    loom_text_add(text, "%-6d%-8d", device->node, device->local);
    if (device->numa >= 0)
        loom_text_add(text, "%-6d", t->numas[device->numa].os_index);
    else
        loom_text_add(text, "%-6s", "N/A");
    if (device->nic >= 0)
        loom_text_add(text, "%d\n", device->nic - t->nodes[device->node].first_nic);
    else
        loom_text_add(text, "N/A\n");
}

/* One line for each kind of cell that occurs, with the bandwidth of one pair that has it. */
static void add_legend(loom_text *text, const loom_topology *t, const int *ranks, int count)
{
    static const struct {
        loom_level level;
        const char *meaning;
    } kinds[] = {{LOOM_LEVEL_DOMAIN, "NV#, FAST  scale-up links (# of them)"},
                 {LOOM_LEVEL_NODE, "PIX, PXB, PHB, NODE, SYS, HOST  inside the host, without such links"},
                 {LOOM_LEVEL_RACK, "NET  network, one switch"},
                 {LOOM_LEVEL_CLUSTER, "SPINE  network, through the spine"}};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        bool told = false;
        for (int i = 0; i < count && !told; i++)
            for (int j = 0; j < count && !told; j++) {
                loom_link link = loom_topology_link(t, ranks[i], ranks[j]);
                if (link.level != kinds[k].level)
                    continue;
                loom_text_add(text, "  %s: ", kinds[k].meaning);
                loom_tell_rate_of(text, link.bandwidth);
                loom_text_add(text, ", ");
                loom_tell_latency_of(text, link.latency_s);
                loom_text_add(text, "\n");
                told = true;
            }
    }
}

loom_status loom_topology_matrix(const loom_topology *t, char **out)
{
    loom_text text = {0};
    int *ranks = malloc((size_t)t->n_devices * sizeof *ranks);

    if (!ranks)
        return loom_fail(LOOM_E_MEMORY, "no memory for a list of %d ranks", t->n_devices);
    int count = choose_ranks(t, ranks);
    loom_text_add(&text, "%-10s", "");
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "rank%d", ranks[i]);
        loom_text_add(&text, "%-8s", name);
    }
    loom_text_add(&text, "node  device  NUMA  NIC\n");
    for (int i = 0; i < count; i++)
        add_row(&text, t, ranks, count, i);
    loom_text_add(&text, "\n");
    add_legend(&text, t, ranks, count);
    if (count < t->n_devices)
        loom_text_add(&text, "  %d of %d ranks: those of the first node, and one of each place farther away\n", count, t->n_devices);
    free(ranks);
    return loom_text_take(&text, out);
}
