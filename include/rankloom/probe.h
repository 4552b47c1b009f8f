/* Measuring the ranks at hand: products, memory, collectives. What it finds is a topology with measured figures, which the planner reads. */
#ifndef RANKLOOM_PROBE_H
#define RANKLOOM_PROBE_H

#include <rankloom/comm.h>
#include <rankloom/kernels.h>
#include <rankloom/model.h>
#include <rankloom/topology.h>
LOOM_BEGIN

typedef struct loom_probe_config {
    double budget_s;         /* about how long it may take; 0: 20 */
    const loom_model *model; /* times the products of its layers too, at `train`'s sequence and micro-batch; NULL: only a grid of shapes */
    loom_train_shape train;
} loom_probe_config;

/* Times f32 products by shape and memory copies, on as many ranks of a host at once as it has cores, and every collective by size of group and bytes
 * on all ranks, and fits the laws a planner extrapolates with. Collective over `world`, whose device is a CPU; every rank gets the same topology: that of the hosts of these ranks. */
LOOM_API loom_status loom_probe(loom_comm *world, const loom_probe_config *config, loom_topology **topology);

LOOM_END
#endif
