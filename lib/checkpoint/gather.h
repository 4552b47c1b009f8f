/* Gathering in steps, for a writer that must know all tensors before the first one comes. */
#ifndef LOOM_CHECKPOINT_GATHER_H
#define LOOM_CHECKPOINT_GATHER_H

#include <rankloom/weights.h>

typedef struct loom_gathering loom_gathering;

loom_status loom_gathering_open(loom_mesh *mesh, const loom_param_list *params, loom_weights_what what, loom_gathering **gathering);
void loom_gathering_close(loom_gathering *gathering); /* accepts NULL */

/* How many global tensors there are; with `specs`, one spec of each in the order of the run. Equal on all ranks. */
int loom_gathering_tensors(const loom_gathering *gathering, const loom_shard **specs);

/* Collective. The status of visit on world rank 0 is the status on every rank. */
loom_status loom_gathering_run(loom_gathering *gathering, loom_weights_visit_fn *visit, void *context);

#endif
