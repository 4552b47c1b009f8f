/* The short form of a cluster file: so many nodes of so many such devices, with what a person knows about the links. */
#include "topology/sources.h"

#include "topology/catalogue.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPANS_HOSTS = 17 /* a catalogue domain from here on is meant to span hosts: NVL72, TPU pods */ };

/* One group of equal (or, by gpus_per_node, nearly equal) nodes, as read. */
typedef struct node_group {
    const loom_node *map;
    const loom_catalogue_instance *instance; /* NULL: none named */
    int64_t nodes;
    int64_t *node_devices; /* [nodes] */
    int most_devices;      /* of a node */
    loom_chip slots[LOOM_MAX_NODE_DEVICES];
    int n_slots;           /* 1: all alike */
    int64_t domain;        /* devices that scale-up links join */
    int64_t *domain_nodes; /* [n_domains] nodes of each, NULL: worked out */
    size_t n_domains;
    bool cards_by_wire; /* the link matrix says which network card is near which device */
} node_group;

typedef struct cluster {
    loom_reader *reader;
    loom_builder *builder;
    int nodes_per_rack; /* 0: one rack */
    int nodes;          /* so far */
} cluster;

bool loom_chip_read(loom_reader *reader, const loom_node *where, const char *name, loom_chip *chip)
{
    if (loom_chip_find(name, chip) == LOOM_OK)
        return true;
    loom_reader_problem(reader, where, "%s", loom_last_error());
    return false;
}

/* --- how many nodes, how many devices each ----------------------------------------------------------------------- */

/* `key` as one integer or as a list of them; *count stays 0 when it is absent or wrong. The caller frees *values. */
static loom_status read_integers(cluster *c, const loom_node *map, const char *key, int64_t low, int64_t high, int64_t **values,
                                 size_t *count)
{
    const loom_node *node = loom_node_get(map, key);
    size_t room = loom_node_get_kind(node) == LOOM_NODE_LIST ? loom_node_count(node) : 1;

    *count = 0;
    *values = malloc((room ? room : 1) * sizeof **values);
    if (!*values)
        return loom_fail(LOOM_E_MEMORY, "no memory for a list of %zu numbers", room);
    if (loom_node_get_kind(node) == LOOM_NODE_LIST)
        loom_read_i64_list(c->reader, map, key, low, high, room, *values, count);
    else
        *count = loom_read_i64(c->reader, map, key, low, high, *values) ? 1 : 0;
    return LOOM_OK;
}

/* Fills nodes and node_devices from nodes, gpus_per_node (or cpu_ranks_per_node) and the machine type. */
static loom_status read_sizes(cluster *c, node_group *group, const char *devices_key)
{
    int64_t *sizes;
    size_t n_sizes;
    loom_status status = read_integers(c, group->map, devices_key, 1, LOOM_MAX_NODE_DEVICES, &sizes, &n_sizes);

    if (status < 0)
        return status;
    if (!group->instance)
        loom_require(c->reader, group->map, devices_key);
    group->nodes = n_sizes > 1 ? (int64_t)n_sizes : 1;
    bool told = loom_read_i64(c->reader, group->map, "nodes", 1, LOOM_MAX_NODES, &group->nodes);
    if (told && n_sizes > 1 && group->nodes != (int64_t)n_sizes) {
        loom_reader_problem(c->reader, loom_node_get(group->map, devices_key), "%s lists %zu nodes, but nodes is %lld", devices_key,
                            n_sizes, (long long)group->nodes);
        group->nodes = (int64_t)n_sizes;
    }
    group->node_devices = malloc((size_t)group->nodes * sizeof *group->node_devices);
    if (!group->node_devices) {
        free(sizes);
        return loom_fail(LOOM_E_MEMORY, "no memory for %lld nodes", (long long)group->nodes);
    }
    for (int64_t i = 0; i < group->nodes; i++) {
        int64_t size = n_sizes > 1 ? sizes[i] : n_sizes == 1 ? sizes[0] : group->instance ? group->instance->devices : 1;
        group->node_devices[i] = size;
        group->most_devices = size > group->most_devices ? (int)size : group->most_devices;
    }
    free(sizes);
    return LOOM_OK;
}

/* --- which devices ------------------------------------------------------------------------------------------------------- */

static bool read_scaled(cluster *c, const loom_node *map, const char *key, double unit, loom_figure *figure)
{
    double value;
    if (!loom_read_f64(c->reader, map, key, 1e-6, 1e15, &value))
        return false;
    *figure = loom_given(value * unit);
    return true;
}

/* What a person knows better than the catalogue. */
static void read_chip_overrides(cluster *c, const loom_node *map, loom_chip *chip)
{
    const loom_node *peaks = loom_read_map(c->reader, map, "peak_tflops");

    for (int math = 0; math < LOOM_MATHS; math++)
        read_scaled(c, peaks, loom_math_name((loom_math)math), 1e12, &chip->peak[math]);
    read_scaled(c, map, "memory_gib", 1073741824.0, &chip->memory_bytes);
    read_scaled(c, map, "memory_gb_s", 1e9, &chip->memory_bandwidth);
    if (read_scaled(c, map, "link_gb_s", 1e9, &chip->link_bandwidth))
        chip->peer_bandwidth = chip->link_bandwidth;
    read_scaled(c, map, "peer_gb_s", 1e9, &chip->peer_bandwidth);
    read_scaled(c, map, "pcie_gb_s", 1e9, &chip->host_bandwidth);
    read_scaled(c, map, "price_per_gpu_hour", 1, &chip->price_per_hour);
    read_scaled(c, map, "power_w", 1, &chip->power_w);
}

/* gpu: one label, or a list with the card of each slot of a node. */
static void read_slots(cluster *c, node_group *group)
{
    const loom_node *node = loom_node_get(group->map, "gpu");
    const char *label = group->instance ? group->instance->chip : NULL;

    group->n_slots = 1;
    if (loom_node_get_kind(node) == LOOM_NODE_LIST) {
        loom_read_list(c->reader, group->map, "gpu");
        if ((int)loom_node_count(node) != group->most_devices) {
            loom_reader_problem(c->reader, node, "gpu lists %zu cards, but a node has %d", loom_node_count(node), group->most_devices);
            return;
        }
        group->n_slots = group->most_devices;
        for (int i = 0; i < group->n_slots; i++) {
            const char *text = loom_node_text(loom_node_at(node, (size_t)i));
            if (!text)
                loom_reader_problem(c->reader, loom_node_at(node, (size_t)i), "gpu %d: expected a label such as h100-80g", i);
            else
                loom_chip_read(c->reader, loom_node_at(node, (size_t)i), text, &group->slots[i]);
        }
    } else {
        loom_read_text(c->reader, group->map, "gpu", &label);
        if (!group->instance)
            loom_require(c->reader, group->map, "gpu");
        if (label)
            loom_chip_read(c->reader, node ? node : group->map, label, &group->slots[0]);
    }
    for (int i = 0; i < group->n_slots; i++)
        read_chip_overrides(c, group->map, &group->slots[i]);
}

/* Hosts without accelerators: each rank is a device with its share of the cores and of the memory. */
static void make_cpu_slot(cluster *c, node_group *group)
{
    loom_chip *chip = &group->slots[0];

    group->n_slots = 1;
    loom_chip_find("cpu", chip);
    read_chip_overrides(c, group->map, chip);
}

/* --- which of them share fast links ---------------------------------------------------------------------------------------- */

static loom_status read_domains(cluster *c, node_group *group)
{
    const loom_node *map = group->map;
    int64_t usual = group->instance ? group->instance->domain : group->slots[0].link_domain;
    loom_status status;

    if (group->slots[0].kind == LOOM_CHIP_CPU)
        usual = group->most_devices; /* shared memory joins the ranks of a host */
    if (usual < SPANS_HOSTS && usual > group->most_devices)
        usual = group->most_devices;
    group->domain = usual;
    loom_read_i64(c->reader, map, "nvlink_domain", 0, LOOM_MAX_DEVICES, &group->domain);
    if (!loom_node_get(map, "domains"))
        return LOOM_OK;

    if ((status = read_integers(c, map, "domains", 1, LOOM_MAX_NODES, &group->domain_nodes, &group->n_domains)) < 0)
        return status;
    int64_t sum = 0;
    for (size_t i = 0; i < group->n_domains; i++)
        sum += group->domain_nodes[i];
    if (group->n_domains && sum != group->nodes)
        loom_reader_problem(c->reader, loom_node_get(map, "domains"), "domains hold %lld nodes in all, but there are %lld", (long long)sum,
                            (long long)group->nodes);
    return LOOM_OK;
}

/* A domain smaller than a node has to cut it evenly. */
static void check_domain_cut(cluster *c, const node_group *group)
{
    const loom_node *told = loom_node_get(group->map, "nvlink_domain");

    for (int64_t i = 0; i < group->nodes && group->domain > 1 && told; i++) {
        int64_t size = group->node_devices[i], below = group->domain, above = group->domain;
        if (size <= group->domain || size % group->domain == 0)
            continue;
        while (size % below)
            below--;
        while (size % above)
            above++;
        loom_reader_problem(c->reader, told, "nvlink_domain=%lld does not divide the %lld devices of node %lld; %lld and %lld do",
                            (long long)group->domain, (long long)size, (long long)i, (long long)below, (long long)above);
        return;
    }
}

/* --- network ------------------------------------------------------------------------------------------------------------------ */

static void read_numa_list(cluster *c, const loom_node *map, const char *key, int expected, int *numa)
{
    int64_t values[LOOM_MAX_NODE_DEVICES];
    size_t count = 0;

    if (!loom_read_i64_list(c->reader, map, key, -1, 1023, LOOM_MAX_NODE_DEVICES, values, &count))
        return;
    if ((int)count != expected) {
        loom_reader_problem(c->reader, loom_node_get(map, key), "%s has %zu entries, expected %d", key, count, expected);
        return;
    }
    for (int i = 0; i < expected; i++)
        numa[i] = (int)values[i];
}

/* nic_gbps_per_gpu gives each device a card of its own; nics_per_node and nic_gbps give the node some that devices share. Absent: the
 * machine type's, else the usual share of such a device. */
static void read_nics(cluster *c, const node_group *group, loom_host_shape *shape)
{
    const loom_node *map = group->map;
    const loom_catalogue_instance *type = group->instance;
    double per_device = NAN, per_nic = type ? type->nic_gbit_s : NAN;
    int64_t nics = type ? type->nics : 0;
    bool shared = loom_read_i64(c->reader, map, "nics_per_node", 0, LOOM_MAX_NODE_DEVICES, &nics);
    bool nic_told = loom_read_f64(c->reader, map, "nic_gbps", 1e-3, 1e6, &per_nic);

    if (loom_read_f64(c->reader, map, "nic_gbps_per_gpu", 0, 1e6, &per_device)) {
        if (shared || nic_told)
            loom_reader_problem(
                c->reader, loom_node_get(map, "nic_gbps_per_gpu"),
                "nic_gbps_per_gpu says that each device has a card of its own; leave it out, or nics_per_node and nic_gbps");
        shape->nics = per_device > 0 ? shape->devices : 0;
        for (int i = 0; i < shape->nics; i++)
            shape->nic_bandwidth[i] = loom_given(per_device * 1e9 / 8);
        return;
    }
    if (shared || nic_told || type) {
        shape->nics = nic_told && !shared && !type ? 1 : (int)nics;
        if (shape->nics > shape->devices && shape->nics % shape->devices == 0 && !loom_node_get(map, "nic_numa")) {
            per_nic *= shape->nics / shape->devices; /* several cards a device count as one that is so much faster */
            shape->nics = shape->devices;
        }
        for (int i = 0; i < shape->nics; i++)
            shape->nic_bandwidth[i] = isnan(per_nic) ? loom_unknown()
                                      : nic_told     ? loom_given(per_nic * 1e9 / 8)
                                                     : loom_assumed(per_nic * 1e9 / 8);
        return;
    }
    shape->nics = shape->devices;
    for (int i = 0; i < shape->nics; i++)
        shape->nic_bandwidth[i] = group->slots[group->n_slots > 1 ? i : 0].nic_bandwidth;
}

/* Cards of a node that sit with a device each stay with it; shared ones go by locality. */
static void assign_nics(loom_host_shape *shape)
{
    bool local_known = false;

    for (int i = 0; i < shape->nics; i++)
        local_known = local_known || shape->nic_numa[i] >= 0;
    if (shape->nics == shape->devices && !local_known) {
        for (int i = 0; i < shape->devices; i++)
            shape->device_nic[i] = i;
        return;
    }
    loom_choose_nics(shape->devices, shape->device_numa, shape->nics, shape->nic_numa, shape->device_nic);
}

/* links: the matrix of one node as `nvidia-smi topo -m` prints it; it decides domains, cards and NUMA nodes. */
static loom_status read_links(cluster *c, node_group *group, loom_host_shape *shape, loom_wire **wires)
{
    const loom_node *node = loom_node_get(group->map, "links");
    const char *text = NULL;
    int devices = shape->devices, nics = shape->nics;
    loom_status status;

    if (!loom_read_text(c->reader, group->map, "links", &text))
        return LOOM_OK;
    status = loom_matrix_read("links", text, strlen(text), shape, wires);
    if (status == LOOM_E_MEMORY)
        return status;
    if (status < 0)
        loom_reader_problem(c->reader, node, "%s", loom_last_error());
    else if (shape->devices != devices)
        loom_reader_problem(c->reader, node, "links joins %d devices, but a node has %d", shape->devices, devices);
    for (int64_t i = 1; i < group->nodes; i++)
        if (group->node_devices[i] != group->node_devices[0]) {
            loom_reader_problem(c->reader, node,
                                "links describes every node of its group, but they have %lld and %lld devices: make groups of equal nodes",
                                (long long)group->node_devices[0], (long long)group->node_devices[i]);
            break;
        }
    group->cards_by_wire = nics > 0 && shape->nics == nics;
    shape->devices = devices;
    shape->nics = nics;
    return LOOM_OK;
}

/* --- nodes ------------------------------------------------------------------------------------------------------------------------ */

static loom_status read_host(cluster *c, node_group *group, loom_host_shape *shape, loom_wire **wires)
{
    const loom_node *map = group->map;
    loom_status status;

    shape->devices = group->most_devices;
    loom_read_int(c->reader, map, "cores_per_node", 1, 1 << 16, &shape->cores);
    shape->threads = shape->cores;
    loom_read_int(c->reader, map, "threads_per_node", 1, 1 << 17, &shape->threads);
    read_scaled(c, map, "memory_gib_per_node", 1073741824.0, &shape->memory_bytes);
    read_nics(c, group, shape);
    for (int i = 0; i < shape->devices; i++)
        shape->group[i] = group->domain > 1 ? (int)(i / group->domain) : i;
    if ((status = read_links(c, group, shape, wires)) < 0)
        return status;
    read_numa_list(c, map, "gpu_numa", shape->devices, shape->device_numa);
    read_numa_list(c, map, "nic_numa", shape->nics, shape->nic_numa);
    loom_collect_numas(shape);
    return LOOM_OK;
}

/* Whether node `i` continues the domain of the node before it; *filled counts the devices, *domain and *left the listed ones. */
typedef struct domain_walk {
    int64_t filled, left;
    size_t domain;
} domain_walk;

static bool joins_domain(const node_group *group, domain_walk *walk, int64_t i)
{
    bool joins;

    if (group->domain_nodes) {
        joins = walk->left > 0;
        if (!joins)
            walk->left = walk->domain < group->n_domains ? group->domain_nodes[walk->domain++] : 1;
        walk->left--;
        return joins && group->domain >= group->node_devices[i];
    }
    joins = i > 0 && group->domain > group->most_devices && walk->filled + group->node_devices[i] <= group->domain;
    walk->filled = group->node_devices[i] + (joins ? walk->filled : 0);
    return joins;
}

static loom_status add_nodes(cluster *c, const node_group *group, loom_host_shape *shape)
{
    domain_walk walk = {0, 0, 0};
    int chip[LOOM_MAX_NODE_DEVICES], nics = shape->nics;
    loom_status status = LOOM_OK;

    for (int i = 0; i < group->n_slots; i++)
        if ((status = loom_build_chip(c->builder, &group->slots[i], &chip[i])) < 0)
            return status;
    bool own_nics = nics == shape->devices;
    for (int i = 0; i < shape->devices; i++)
        shape->chip[i] = chip[group->n_slots > 1 ? i : 0];
    for (int64_t i = 0; i < group->nodes && status == LOOM_OK; i++) {
        shape->devices = (int)group->node_devices[i];
        shape->nics = own_nics ? shape->devices : nics;
        if (!group->cards_by_wire)
            assign_nics(shape);
        status = loom_build_host(c->builder, shape, c->nodes_per_rack ? c->nodes / c->nodes_per_rack : 0, joins_domain(group, &walk, i));
        c->nodes++;
    }
    return status;
}

/* A chip of CPU ranks has the rank's share of the host's memory. */
static void share_host_memory(const loom_host_shape *shape, loom_chip *chip)
{
    if (chip->kind == LOOM_CHIP_CPU && !loom_known(chip->memory_bytes) && loom_known(shape->memory_bytes))
        chip->memory_bytes = (loom_figure){floor(shape->memory_bytes.value / shape->devices), shape->memory_bytes.origin};
}

static loom_status read_group(cluster *c, const loom_node *map)
{
    node_group group = {.map = map};
    loom_host_shape *shape = loom_host_shape_new();
    loom_wire *wires = NULL;
    const char *type = NULL;
    loom_status status = shape ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for a node");

    if (status == LOOM_OK && loom_read_text(c->reader, map, "instance", &type) && !(group.instance = loom_catalogue_instance_find(type)))
        loom_reader_problem(c->reader, loom_node_get(map, "instance"), "%s", loom_last_error());
    bool cpus = loom_node_get(map, "cpu_ranks_per_node") != NULL;
    if (status == LOOM_OK)
        status = read_sizes(c, &group, cpus ? "cpu_ranks_per_node" : "gpus_per_node");
    if (status == LOOM_OK) {
        if (cpus)
            make_cpu_slot(c, &group);
        else
            read_slots(c, &group);
        status = read_domains(c, &group);
    }
    if (status == LOOM_OK) {
        check_domain_cut(c, &group);
        status = read_host(c, &group, shape, &wires);
    }
    if (status == LOOM_OK && loom_reader_problems(c->reader) == 0) {
        share_host_memory(shape, &group.slots[0]);
        status = add_nodes(c, &group, shape);
    }
    free(wires);
    free(group.node_devices);
    free(group.domain_nodes);
    free(shape);
    return status;
}

/* --- the whole ---------------------------------------------------------------------------------------------------------------------- */

static void read_levels(cluster *c, const loom_node *map, loom_level_figures levels[LOOM_LEVELS])
{
    const loom_node *latency = loom_read_map(c->reader, map, "latency_us");
    const loom_node *over = loom_read_map(c->reader, map, "oversubscription");
    double value;

    for (int level = LOOM_LEVEL_DOMAIN; level < LOOM_LEVELS; level++) {
        const char *name = loom_level_name((loom_level)level);
        if (loom_read_f64(c->reader, latency, name, 0, 1e6, &value))
            levels[level].latency_s = loom_given(value * 1e-6);
        if (level >= LOOM_LEVEL_RACK && loom_read_f64(c->reader, over, name, 1, 1000, &value))
            levels[level].oversubscription = loom_given(value);
    }
}

static loom_status note_what_is_missing(loom_builder *builder)
{
    const loom_topology *t = loom_build_topology(builder);

    if (t->n_nodes > 1 && t->n_nics == 0)
        return loom_build_notice(builder, "no network is stated between the %d nodes: its speed is unknown", t->n_nodes);
    return LOOM_OK;
}

loom_status loom_cluster_read(loom_reader *reader, const loom_node *map, loom_builder *builder)
{
    cluster c = {.reader = reader, .builder = builder};
    loom_topology *t = loom_build_topology(builder);
    const char *name = "";
    loom_status status = LOOM_OK;

    if (loom_read_text(reader, map, "name", &name))
        snprintf(t->name, sizeof t->name, "%s", name);
    loom_read_int(reader, map, "nodes_per_rack", 1, LOOM_MAX_NODES, &c.nodes_per_rack);
    loom_read_bool(reader, map, "rails", &t->rails);
    read_levels(&c, map, t->levels);
    const loom_node *groups = loom_read_list(reader, map, "groups");
    if (!groups)
        status = read_group(&c, map);
    for (size_t i = 0; groups && i < loom_node_count(groups) && status == LOOM_OK; i++) {
        const loom_node *group = loom_map_in_list(reader, groups, i);
        status = group ? read_group(&c, group) : LOOM_OK;
    }
    return status == LOOM_OK ? note_what_is_missing(builder) : status;
}
