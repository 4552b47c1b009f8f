/* Building a topology node after node, and what follows from the parts. */
#include "topology/build.h"

#include "topology/exact.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loom_builder {
    loom_topology *topology;
    int chip_room, device_room, node_room, numa_room, nic_room, notice_room, wire_room;
    int n_wires;
};

bool loom_grow(void **array, int count, int *capacity, size_t item_bytes)
{
    if (count < *capacity)
        return true;
    int wanted = *capacity ? 2 * *capacity : 8;
    void *grown = realloc(*array, (size_t)wanted * item_bytes);
    if (!grown)
        return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

static loom_status no_memory(const loom_builder *builder)
{
    return loom_fail(LOOM_E_MEMORY, "%s: no memory for a topology of %d devices", builder->topology->source, builder->topology->n_devices);
}

loom_host_shape *loom_host_shape_new(void)
{
    loom_host_shape *shape = calloc(1, sizeof *shape);
    if (!shape)
        return NULL;
    shape->memory_bytes = loom_unknown();
    for (int i = 0; i < LOOM_MAX_NODE_DEVICES; i++) {
        shape->device_numa[i] = shape->device_nic[i] = shape->nic_numa[i] = -1;
        shape->group[i] = i;
        shape->nic_bandwidth[i] = loom_unknown();
        shape->numa[i].memory_bytes = loom_unknown();
    }
    return shape;
}

void loom_default_levels(loom_level_figures levels[LOOM_LEVELS])
{
    /* One step of a ring: within the 0.1 to 1.4 us that published single-node sweeps give, and a few us a switch on networks. */
    static const double latency_us[LOOM_LEVELS] = {0, 0.7, 2, 5, 8};

    for (int level = 0; level < LOOM_LEVELS; level++) {
        levels[level].bandwidth = loom_unknown();
        levels[level].latency_s = loom_assumed(latency_us[level] * 1e-6);
        levels[level].oversubscription = loom_assumed(1);
    }
}

loom_status loom_build_open(const char *source, loom_builder **builder)
{
    loom_builder *b = calloc(1, sizeof *b);
    loom_topology *t = calloc(1, sizeof *t);

    if (!b || !t) {
        free(b);
        free(t);
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for a topology", source);
    }
    snprintf(t->source, sizeof t->source, "%s", source);
    t->peer_access = true;
    loom_default_levels(t->levels);
    b->topology = t;
    *builder = b;
    return LOOM_OK;
}

void loom_build_close(loom_builder *builder)
{
    if (!builder)
        return;
    loom_topology_free(builder->topology);
    free(builder);
}

loom_topology *loom_build_topology(loom_builder *builder)
{
    return builder->topology;
}

loom_status loom_build_chip(loom_builder *builder, const loom_chip *chip, int *index)
{
    loom_topology *t = builder->topology;

    for (*index = 0; *index < t->n_chips; ++*index)
        if (loom_chip_equal(&t->chips[*index], chip))
            return LOOM_OK;
    if (t->n_chips == LOOM_MAX_CHIPS)
        return loom_fail(LOOM_E_INVALID, "%s: more than %d kinds of device", t->source, LOOM_MAX_CHIPS);
    if (!loom_grow((void **)&t->chips, t->n_chips, &builder->chip_room, sizeof *t->chips))
        return no_memory(builder);
    t->chips[t->n_chips++] = *chip;
    return LOOM_OK;
}

loom_status loom_build_notice(loom_builder *builder, const char *format, ...)
{
    loom_topology *t = builder->topology;
    va_list arguments;

    if (!loom_grow((void **)&t->notices, t->n_notices, &builder->notice_room, sizeof *t->notices))
        return no_memory(builder);
    va_start(arguments, format);
    vsnprintf(t->notices[t->n_notices++], sizeof *t->notices, format, arguments);
    va_end(arguments);
    return LOOM_OK;
}

/* Domain number of each device of the new host: a number for each group, in the order in which groups appear. */
static void number_domains(loom_topology *t, const loom_host_shape *shape, bool joins, int *domain)
{
    int next = joins && t->n_devices ? t->n_domains - 1 : t->n_domains;

    for (int i = 0; i < shape->devices; i++) {
        int before = 0;
        while (before < i && shape->group[before] != shape->group[i])
            before++;
        domain[i] = before < i ? domain[before] : next++;
    }
    if (next > t->n_domains)
        t->n_domains = next;
}

static loom_status add_devices(loom_builder *builder, const loom_host_shape *shape, bool joins)
{
    loom_topology *t = builder->topology;
    const loom_topo_node *node = &t->nodes[t->n_nodes];
    int domain[LOOM_MAX_NODE_DEVICES];

    number_domains(t, shape, joins, domain);
    for (int i = 0; i < shape->devices; i++) {
        if (!loom_grow((void **)&t->devices, t->n_devices, &builder->device_room, sizeof *t->devices))
            return no_memory(builder);
        t->devices[t->n_devices++] = (loom_topo_device){
            .chip = shape->chip[i],
            .node = t->n_nodes,
            .local = i,
            .domain = domain[i],
            .numa = shape->device_numa[i] < 0 ? -1 : node->first_numa + shape->device_numa[i],
            .nic = shape->device_nic[i] < 0 ? -1 : node->first_nic + shape->device_nic[i],
        };
    }
    return LOOM_OK;
}

static loom_status add_numas_and_nics(loom_builder *builder, const loom_host_shape *shape)
{
    loom_topology *t = builder->topology;
    const loom_topo_node *node = &t->nodes[t->n_nodes];

    for (int i = 0; i < shape->numas; i++) {
        if (!loom_grow((void **)&t->numas, t->n_numas, &builder->numa_room, sizeof *t->numas))
            return no_memory(builder);
        t->numas[t->n_numas] = shape->numa[i];
        t->numas[t->n_numas++].node = t->n_nodes;
    }
    for (int i = 0; i < shape->nics; i++) {
        if (!loom_grow((void **)&t->nics, t->n_nics, &builder->nic_room, sizeof *t->nics))
            return no_memory(builder);
        t->nics[t->n_nics++] = (loom_nic){
            .node = t->n_nodes,
            .numa = shape->nic_numa[i] < 0 ? -1 : node->first_numa + shape->nic_numa[i],
            .bandwidth = shape->nic_bandwidth[i],
        };
    }
    return LOOM_OK;
}

/* Wires are kept as one square matrix a node, node after node; a host that says nothing gets a matrix of unknowns once any host has one. */
static loom_status add_wires(loom_builder *builder, const loom_host_shape *shape)
{
    loom_topology *t = builder->topology;
    int before = builder->n_wires, count = shape->devices * shape->devices;

    builder->n_wires += count;
    if (!shape->wires && !t->wires)
        return LOOM_OK;
    bool first = !t->wires;
    loom_wire *grown = realloc(t->wires, (size_t)builder->n_wires * sizeof *grown);
    if (!grown)
        return no_memory(builder);
    t->wires = grown;
    for (int i = first ? 0 : before; i < builder->n_wires; i++)
        grown[i] = (loom_wire){LOOM_PATH_UNKNOWN, 0};
    if (shape->wires)
        memcpy(grown + before, shape->wires, (size_t)count * sizeof *grown);
    return LOOM_OK;
}

/* A file of a few bytes can ask for any number of nodes: what is beyond every machine is refused before it is allocated. */
static loom_status check_size(const loom_builder *builder, const loom_host_shape *shape)
{
    const loom_topology *t = builder->topology;
    const struct {
        const char *what;
        int have, add, most;
    } limits[] = {{"nodes", t->n_nodes, 1, LOOM_MAX_NODES},
                  {"devices", t->n_devices, shape->devices, LOOM_MAX_DEVICES},
                  {"NUMA nodes", t->n_numas, shape->numas, LOOM_MAX_DEVICES},
                  {"network cards", t->n_nics, shape->nics, LOOM_MAX_DEVICES},
                  {"wires", t->wires ? builder->n_wires : 0, shape->wires ? shape->devices * shape->devices : 0, LOOM_MAX_WIRES}};

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].add > limits[i].most - limits[i].have)
            return loom_fail(LOOM_E_INVALID, "%s: more than %d %s", t->source, limits[i].most, limits[i].what);
    return shape->devices > 0 ? LOOM_OK : loom_fail(LOOM_E_INVALID, "%s: node %d has no devices", t->source, t->n_nodes);
}

loom_status loom_build_host(loom_builder *builder, const loom_host_shape *shape, int rack, bool joins)
{
    loom_topology *t = builder->topology;
    loom_status status;

    if ((status = check_size(builder, shape)) < 0)
        return status;
    if (!loom_grow((void **)&t->nodes, t->n_nodes, &builder->node_room, sizeof *t->nodes))
        return no_memory(builder);
    loom_topo_node *node = &t->nodes[t->n_nodes];
    *node = (loom_topo_node){
        .rack = rack,
        .first_device = t->n_devices,
        .devices = shape->devices,
        .first_numa = t->n_numas,
        .numas = shape->numas,
        .first_nic = t->n_nics,
        .nics = shape->nics,
        .first_wire = builder->n_wires,
        .cores = shape->cores,
        .threads = shape->threads,
        .memory_bytes = shape->memory_bytes,
    };
    snprintf(node->name, sizeof node->name, "%s", shape->name);
    if ((status = add_numas_and_nics(builder, shape)) < 0 || (status = add_devices(builder, shape, joins)) < 0 ||
        (status = add_wires(builder, shape)) < 0)
        return status;
    t->n_nodes++;
    if (rack >= t->n_racks)
        t->n_racks = rack + 1;
    return LOOM_OK;
}

void loom_choose_nics(int devices, const int *device_numa, int nics, const int *nic_numa, int *device_nic)
{
    int users[LOOM_MAX_NODE_DEVICES] = {0};

    for (int i = 0; i < devices; i++) {
        int best = -1;
        for (int nic = 0; device_numa[i] >= 0 && nic < nics; nic++)
            if (nic_numa[nic] == device_numa[i] && (best < 0 || users[nic] < users[best]))
                best = nic;
        if (best < 0 && nics)
            best = (int)((int64_t)i * nics / devices); /* nothing is near: dealt out in order, neighbours together */
        device_nic[i] = best;
        if (best >= 0)
            users[best]++;
    }
}

void loom_collect_numas(loom_host_shape *shape)
{
    int *lists[] = {shape->device_numa, shape->nic_numa};
    int counts[] = {shape->devices, shape->nics}, highest = -1;

    for (int l = 0; l < 2; l++)
        for (int i = 0; i < counts[l]; i++)
            highest = lists[l][i] > highest ? lists[l][i] : highest;
    for (int os = 0, index = 0; os <= highest; os++) {
        bool named = false;
        for (int l = 0; l < 2; l++)
            for (int i = 0; i < counts[l]; i++)
                named = named || lists[l][i] == os;
        if (!named || index >= LOOM_MAX_NODE_DEVICES)
            continue;
        for (int l = 0; l < 2; l++)
            for (int i = 0; i < counts[l]; i++)
                if (lists[l][i] == os)
                    lists[l][i] = index;
        shape->numa[index].os_index = os;
        shape->numas = ++index;
    }
}

/* Ranks: node after node; in a node, devices of one domain next to each other, domains in the order of their first device. */
static void order_ranks(loom_topology *t)
{
    int rank = 0;

    for (int n = 0; n < t->n_nodes; n++) {
        int first = t->nodes[n].first_device, end = first + t->nodes[n].devices;
        for (int a = first; a < end; a++) {
            bool leads = true; /* a is the first of its domain in this node */
            for (int b = first; b < a; b++)
                leads = leads && t->devices[b].domain != t->devices[a].domain;
            for (int b = a; leads && b < end; b++)
                if (t->devices[b].domain == t->devices[a].domain)
                    t->rank_device[rank++] = b;
        }
    }
}

static void count_nic_users(loom_topology *t)
{
    for (int i = 0; i < t->n_devices; i++)
        if (t->devices[i].nic >= 0)
            t->nics[t->devices[i].nic].devices++;
    for (int n = 0; n < t->n_nodes; n++)
        for (int i = 0; i < t->nodes[n].nics; i++)
            t->nics[t->nodes[n].first_nic + i].rail = t->rails ? i : 0;
}

loom_status loom_build_finish(loom_builder *builder, loom_topology **topology)
{
    loom_topology *t = builder->topology;
    loom_status status = LOOM_OK;

    if (t->n_devices == 0)
        status = loom_fail(LOOM_E_INVALID, "%s: no devices in it", t->source);
    else if (!(t->rank_device = malloc((size_t)t->n_devices * sizeof *t->rank_device)))
        status = no_memory(builder);
    if (status == LOOM_OK) {
        count_nic_users(t);
        order_ranks(t);
        t->period = loom_period(t);
        *topology = t;
        builder->topology = NULL;
    }
    loom_build_close(builder);
    return status;
}

void loom_topology_free(loom_topology *topology)
{
    if (!topology)
        return;
    free(topology->chips);
    free(topology->devices);
    free(topology->nodes);
    free(topology->numas);
    free(topology->nics);
    free(topology->wires);
    free(topology->rank_device);
    free(topology->gemms);
    free(topology->points);
    free(topology->laws);
    free(topology->notices);
    free(topology);
}
