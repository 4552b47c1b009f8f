/* What the exact form calls things, and when two topologies are the same. */
#include "topology/exact.h"

#include "topology/tell.h"

#include <string.h>

const loom_figure_field loom_chip_figures[LOOM_CHIP_FIGURES] = {
    {"memory_bytes", offsetof(loom_chip, memory_bytes)},
    {"memory_nominal_bytes", offsetof(loom_chip, memory_nominal_bytes)},
    {"memory_bandwidth", offsetof(loom_chip, memory_bandwidth)},
    {"memory_reach", offsetof(loom_chip, memory_reach)},
    {"link_bandwidth", offsetof(loom_chip, link_bandwidth)},
    {"peer_bandwidth", offsetof(loom_chip, peer_bandwidth)},
    {"host_bandwidth", offsetof(loom_chip, host_bandwidth)},
    {"nic_bandwidth", offsetof(loom_chip, nic_bandwidth)},
    {"power_w", offsetof(loom_chip, power_w)},
    {"price_per_hour", offsetof(loom_chip, price_per_hour)},
};

const loom_figure_field loom_gemm_figures[LOOM_GEMM_FIGURES] = {
    {"share", offsetof(loom_gemm_law, share)}, {"m0", offsetof(loom_gemm_law, m0)},           {"n0", offsetof(loom_gemm_law, n0)},
    {"k0", offsetof(loom_gemm_law, k0)},       {"start_s", offsetof(loom_gemm_law, start_s)},
};

const loom_figure_field loom_level_figure_names[LOOM_LEVEL_FIGURES] = {
    {"bandwidth", offsetof(loom_level_figures, bandwidth)},
    {"latency_s", offsetof(loom_level_figures, latency_s)},
    {"oversubscription", offsetof(loom_level_figures, oversubscription)},
};

const char *const loom_chip_class_names[] = {"gpu", "tpu", "cpu", NULL};
const char *const loom_path_names[] = {"X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "N/A", NULL};

bool loom_figure_equal(loom_figure a, loom_figure b)
{
    return a.origin == b.origin && (!loom_known(a) || a.value == b.value);
}

static bool figures_equal(const void *a, const void *b, const loom_figure_field *fields, int count)
{
    for (int i = 0; i < count; i++)
        if (!loom_figure_equal(loom_figure_in(a, &fields[i]), loom_figure_in(b, &fields[i])))
            return false;
    return true;
}

bool loom_chip_equal(const loom_chip *a, const loom_chip *b)
{
    if (strcmp(a->name, b->name) || strcmp(a->label, b->label) || strcmp(a->link, b->link) || strcmp(a->origin, b->origin) ||
        a->kind != b->kind || a->link_domain != b->link_domain || !figures_equal(a, b, loom_chip_figures, LOOM_CHIP_FIGURES))
        return false;
    for (int math = 0; math < LOOM_MATHS; math++)
        if (!loom_figure_equal(a->peak[math], b->peak[math]) ||
            !figures_equal(&a->gemm[math], &b->gemm[math], loom_gemm_figures, LOOM_GEMM_FIGURES))
            return false;
    return true;
}

/* --- whole topologies ---------------------------------------------------------------------------------------------------------- */

static bool nodes_equal(const loom_topology *a, const loom_topology *b)
{
    for (int i = 0; i < a->n_nodes; i++) {
        const loom_topo_node *x = &a->nodes[i], *y = &b->nodes[i];
        if (strcmp(x->name, y->name) || x->rack != y->rack || x->first_device != y->first_device || x->devices != y->devices ||
            x->first_numa != y->first_numa || x->numas != y->numas || x->first_nic != y->first_nic || x->nics != y->nics ||
            x->cores != y->cores || x->threads != y->threads || !loom_figure_equal(x->memory_bytes, y->memory_bytes))
            return false;
    }
    for (int i = 0; i < a->n_numas; i++) {
        const loom_numa *x = &a->numas[i], *y = &b->numas[i];
        if (x->node != y->node || x->os_index != y->os_index || x->cores != y->cores || x->threads != y->threads ||
            !loom_figure_equal(x->memory_bytes, y->memory_bytes))
            return false;
    }
    for (int i = 0; i < a->n_nics; i++) {
        const loom_nic *x = &a->nics[i], *y = &b->nics[i];
        if (x->node != y->node || x->numa != y->numa || x->rail != y->rail || x->devices != y->devices ||
            !loom_figure_equal(x->bandwidth, y->bandwidth))
            return false;
    }
    return true;
}

static bool devices_equal(const loom_topology *a, const loom_topology *b)
{
    int wires = 0;

    for (int i = 0; i < a->n_devices; i++) {
        const loom_topo_device *x = &a->devices[i], *y = &b->devices[i];
        if (x->chip != y->chip || x->node != y->node || x->local != y->local || x->domain != y->domain || x->numa != y->numa ||
            x->nic != y->nic || a->rank_device[i] != b->rank_device[i])
            return false;
    }
    for (int i = 0; i < a->n_nodes; i++)
        wires += a->nodes[i].devices * a->nodes[i].devices;
    if (!a->wires != !b->wires)
        return false;
    return !a->wires || memcmp(a->wires, b->wires, (size_t)wires * sizeof *a->wires) == 0;
}

static bool measured_equal(const loom_topology *a, const loom_topology *b)
{
    for (int i = 0; i < a->n_gemms; i++) {
        const loom_gemm_point *x = &a->gemms[i], *y = &b->gemms[i];
        if (x->chip != y->chip || x->math != y->math || x->m != y->m || x->n != y->n || x->k != y->k || x->seconds != y->seconds)
            return false;
    }
    for (int i = 0; i < a->n_points; i++) {
        const loom_pattern_point *x = &a->points[i], *y = &b->points[i];
        if (x->pattern != y->pattern || x->level != y->level || x->ranks != y->ranks || x->in_domain != y->in_domain ||
            x->bytes != y->bytes || x->seconds != y->seconds)
            return false;
    }
    for (int i = 0; i < a->n_laws; i++) {
        const loom_pattern_law *x = &a->laws[i], *y = &b->laws[i];
        if (x->pattern != y->pattern || x->level != y->level || x->ranks != y->ranks || x->in_domain != y->in_domain ||
            !loom_figure_equal(x->fixed_s, y->fixed_s) || !loom_figure_equal(x->step_s, y->step_s) ||
            !loom_figure_equal(x->bandwidth, y->bandwidth))
            return false;
    }
    return true;
}

bool loom_topology_equal(const loom_topology *a, const loom_topology *b)
{
    if (strcmp(a->name, b->name) || strcmp(a->measured, b->measured) || a->n_chips != b->n_chips || a->n_devices != b->n_devices ||
        a->n_nodes != b->n_nodes || a->n_racks != b->n_racks || a->n_domains != b->n_domains || a->n_numas != b->n_numas ||
        a->n_nics != b->n_nics || a->rails != b->rails || a->peer_access != b->peer_access || a->n_gemms != b->n_gemms ||
        a->n_points != b->n_points || a->n_laws != b->n_laws || a->n_notices != b->n_notices)
        return false;
    for (int i = 0; i < a->n_chips; i++)
        if (!loom_chip_equal(&a->chips[i], &b->chips[i]))
            return false;
    for (int level = 0; level < LOOM_LEVELS; level++)
        if (!figures_equal(&a->levels[level], &b->levels[level], loom_level_figure_names, LOOM_LEVEL_FIGURES))
            return false;
    for (int i = 0; i < a->n_notices; i++)
        if (strcmp(a->notices[i], b->notices[i]))
            return false;
    return nodes_equal(a, b) && devices_equal(a, b) && measured_equal(a, b);
}
