/* Building a topology node after node. Every source (cluster file, exact file, hwloc, matrix) says what it knows through these calls; what
 * follows from it (rank order, domains, shares of a NIC) is worked out in one place, loom_build_finish(). */
#ifndef LOOM_TOPOLOGY_BUILD_H
#define LOOM_TOPOLOGY_BUILD_H

#include <rankloom/topology.h>

enum {
    LOOM_MAX_NODE_DEVICES = 256, /* devices, NICs or NUMA nodes of one host */
    LOOM_MAX_DEVICES = 1 << 20,  /* of a cluster, and NICs, and NUMA nodes: more is a typing error */
    LOOM_MAX_NODES = 1 << 17,
    LOOM_MAX_WIRES = 1 << 26,
    LOOM_MAX_CHIPS = 256, /* kinds of device */
};

/* One host as a source describes it. */
typedef struct loom_host_shape {
    char name[64];
    int cores, threads; /* 0: unknown */
    loom_figure memory_bytes;
    int devices, nics, numas;
    int chip[LOOM_MAX_NODE_DEVICES];        /* of each device: index from loom_build_chip() */
    int device_numa[LOOM_MAX_NODE_DEVICES]; /* index of the host's numas, -1: unknown */
    int device_nic[LOOM_MAX_NODE_DEVICES];  /* index of the host's nics, -1: none; see loom_choose_nics() */
    int group[LOOM_MAX_NODE_DEVICES];       /* devices with equal numbers share scale-up links inside the host */
    int nic_numa[LOOM_MAX_NODE_DEVICES];
    loom_figure nic_bandwidth[LOOM_MAX_NODE_DEVICES];
    loom_numa numa[LOOM_MAX_NODE_DEVICES]; /* .node is filled in by loom_build_host() */
    const loom_wire *wires;                /* [devices * devices] or NULL; copied */
} loom_host_shape;

loom_host_shape *loom_host_shape_new(void); /* all unknown; NULL when there is no memory; free() */

typedef struct loom_builder loom_builder;
loom_status loom_build_open(const char *source, loom_builder **builder);
void loom_build_close(loom_builder *builder);              /* accepts NULL; frees the topology too unless it was finished */
loom_topology *loom_build_topology(loom_builder *builder); /* to set name, levels, rails */

/* Index of an equal chip, or of a new one. */
loom_status loom_build_chip(loom_builder *builder, const loom_chip *chip, int *index);
/* Adds a host in rack `rack`. With `joins`, its first group continues the last domain of the host before it (a domain that spans hosts). */
loom_status loom_build_host(loom_builder *builder, const loom_host_shape *shape, int rack, bool joins);
loom_status loom_build_notice(loom_builder *builder, const char *format, ...) LOOM_PRINTF(2, 3);
/* Derives what follows and hands the topology out. The builder is closed in any case. */
loom_status loom_build_finish(loom_builder *builder, loom_topology **topology);

/* Which NIC each device uses: one of its own NUMA node when both are known, and of those the one with the fewest users; devices of unknown
 * locality are dealt out evenly in order. All -1 without NICs. */
void loom_choose_nics(int devices, const int *device_numa, int nics, const int *nic_numa, int *device_nic);

/* Devices that NVLink joins, directly or over others, get one group number. wires [devices * devices]. */
void loom_group_by_nvlink(const loom_wire *wires, int devices, int *group);

/* For sources that name NUMA nodes by the operating system's number only: turns device_numa and nic_numa into indices of shape->numa, which
 * gets the nodes that somebody names, in order of number. */
void loom_collect_numas(loom_host_shape *shape);

/* Sets the defaults of levels that nobody gave: latencies (assumed) and oversubscription 1 (assumed). */
void loom_default_levels(loom_level_figures levels[LOOM_LEVELS]);

/* After how many ranks the cluster repeats; n_devices when it does not. */
int loom_period(const loom_topology *topology);

/* Appends to a heap array, doubling; false when there is no memory. */
bool loom_grow(void **array, int count, int *capacity, size_t item_bytes);

#endif
