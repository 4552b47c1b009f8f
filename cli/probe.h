/* What the parts of `rankloom probe` share: the ranks that measure, and how a time is taken. */
#ifndef CLI_PROBE_H
#define CLI_PROBE_H

#include <rankloom/comm.h>
#include <rankloom/kernels.h>
#include <rankloom/model.h>
#include <rankloom/topology.h>

typedef struct probe {
    loom_launch launch;
    loom_store *store;
    loom_device *device;
    loom_stream *stream;
    loom_kernels *kernels;
    loom_comm *world;
    loom_topology *topology; /* of the hosts of this run; every rank has it */
    double *cell;            /* one number on the device, for agreeing on times */
    double budget_s;         /* of the whole probe */
} probe;

/* Something to be timed: enqueues and waits. */
typedef loom_status probe_work(probe *p, void *context);

/* Median of several runs, of the slowest rank of `comm`. All its ranks call; they agree on the count of runs, about what `budget_s` allows. */
loom_status probe_time(probe *p, loom_comm *comm, probe_work *work, void *context, double budget_s, double *seconds);
/* *value becomes the largest of the ranks of `comm`. */
loom_status probe_agree(probe *p, loom_comm *comm, double *value);

/* Copies of f32: memory bandwidth of the chip. Every rank copies at once, so it is the share of one rank. */
loom_status probe_memory(probe *p, double budget_s);
/* f32 products of a grid of shapes and, with a model, of its linear layers; every rank at once. */
loom_status probe_gemms(probe *p, const loom_model *model, const loom_train_shape *train, double budget_s);
/* Every collective by size of group and bytes, all groups of an axis at once. */
loom_status probe_collectives(probe *p, double budget_s);

#endif
