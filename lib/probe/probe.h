/* What the parts of the probe share: the ranks that measure, and how a time is taken. */
#ifndef LOOM_PROBE_PROBE_H
#define LOOM_PROBE_PROBE_H

#include <rankloom/probe.h>

typedef struct loom_prober {
    loom_device *device;
    loom_stream *stream;
    loom_kernels *kernels;
    loom_comm *world;
    loom_topology *topology; /* of the hosts of this run; every rank has it */
    double *cell;            /* one number on the device, for agreeing on times */
    bool crowded;            /* the host of this rank has fewer cores than ranks, */
    bool sole;               /* so many ranks work now as have a core of their own, */
    bool waits;              /* and this one waits meanwhile */
} loom_prober;

/* Something to be timed: enqueues and waits. */
typedef loom_status loom_probe_work(loom_prober *p, void *context);

/* Median of several runs, of the slowest rank of `comm`; the mean where ranks take turns on a core, for then waiting for a turn is part of it. All its ranks call; they agree on the count of runs, about what `budget_s` allows. */
loom_status loom_probe_time(loom_prober *p, loom_comm *comm, loom_probe_work *work, void *context, double budget_s, double *seconds);
/* Work: the product that `context`, a loom_gemm_args, asks for. */
loom_status loom_probe_gemm(loom_prober *p, void *context);
/* *value becomes the largest of the ranks of `comm`. */
loom_status loom_probe_agree(loom_prober *p, loom_comm *comm, double *value);

enum { LOOM_PROBE_HOST_NAME = 64 };
/* p->topology: the hosts of the world's ranks, with nothing measured. */
loom_status loom_probe_hosts(loom_prober *p);

/* Ranks of this host for each of its cores, at least 1; and whether this rank is one too many. */
double loom_probe_crowd(const loom_prober *p);
bool loom_probe_lacks_core(const loom_prober *p);

/* Copies of f32: memory bandwidth of the chip. Every rank copies at once, so it is the share of one rank. */
loom_status loom_probe_memory(loom_prober *p, double budget_s);
/* f32 products of a grid of shapes and, with a model, of its linear layers; every rank at once. */
loom_status loom_probe_products(loom_prober *p, const loom_model *model, const loom_train_shape *train, double budget_s);
/* Every collective by size of group and bytes, all groups of an axis at once. */
loom_status loom_probe_collectives(loom_prober *p, double budget_s);

#endif
