/* One cluster from the topologies of its hosts. */
#include "topology/build.h"

#include "core/try.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Node `node` of `t` as a shape; its chips become those of the builder. */
static loom_status shape_of(const loom_topology *t, const loom_topo_node *node, loom_builder *builder, loom_host_shape *shape)
{
    if (node->devices > LOOM_MAX_NODE_DEVICES || node->nics > LOOM_MAX_NODE_DEVICES || node->numas > LOOM_MAX_NODE_DEVICES)
        return loom_fail(LOOM_E_INVALID, "%s: a node with more than %d devices, cards or NUMA nodes", t->source, LOOM_MAX_NODE_DEVICES);
    snprintf(shape->name, sizeof shape->name, "%s", node->name);
    shape->cores = node->cores;
    shape->threads = node->threads;
    shape->memory_bytes = node->memory_bytes;
    shape->devices = node->devices;
    shape->nics = node->nics;
    shape->numas = node->numas;
    shape->wires = t->wires ? t->wires + node->first_wire : NULL;
    for (int i = 0; i < node->devices; i++) {
        const loom_topo_device *device = &t->devices[node->first_device + i];
        loom_status status = loom_build_chip(builder, &t->chips[device->chip], &shape->chip[i]);
        if (status < 0)
            return status;
        shape->group[i] = device->domain - t->devices[node->first_device].domain;
        shape->device_numa[i] = device->numa < 0 ? -1 : device->numa - node->first_numa;
        shape->device_nic[i] = device->nic < 0 ? -1 : device->nic - node->first_nic;
    }
    for (int i = 0; i < node->numas; i++)
        shape->numa[i] = t->numas[node->first_numa + i];
    for (int i = 0; i < node->nics; i++) {
        const loom_nic *nic = &t->nics[node->first_nic + i];
        shape->nic_numa[i] = nic->numa < 0 ? -1 : nic->numa - node->first_numa;
        shape->nic_bandwidth[i] = nic->bandwidth;
    }
    return LOOM_OK;
}

loom_status loom_topology_join(const loom_topology *const *hosts, int count, loom_topology **topology)
{
    loom_builder *builder;
    loom_status status = loom_build_open("the hosts of this run", &builder);
    loom_host_shape *shape = NULL;

    if (status < 0)
        return status;
    if (count > 0 && !hosts[0]->peer_access)
        loom_build_topology(builder)->peer_access = false;
    for (int h = 0; h < count; h++)
        for (int n = 0; n < hosts[h]->n_nodes; n++) {
            free(shape);
            if (!(shape = loom_host_shape_new())) {
                status = loom_fail(LOOM_E_MEMORY, "no memory for a host");
                goto fail;
            }
            LOOM_TRY(shape_of(hosts[h], &hosts[h]->nodes[n], builder, shape));
            LOOM_TRY(loom_build_host(builder, shape, 0, false));
        }
    for (int i = 0; count > 0 && i < hosts[0]->n_notices; i++) /* unlike hosts are rare, and their notices alike */
        LOOM_TRY(loom_build_notice(builder, "%s", hosts[0]->notices[i]));
    free(shape);
    return loom_build_finish(builder, topology);

fail:
    free(shape);
    loom_build_close(builder);
    return status;
}
