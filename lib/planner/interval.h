/* How sure a predicted time is. */
#ifndef LOOM_PLANNER_INTERVAL_H
#define LOOM_PLANNER_INTERVAL_H

#include "planner/cost.h"

/* Half width z of the 80 % interval, on a logarithmic scale: [seconds / e^z, seconds * e^z]. */
double loom_interval(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers);
/* Share of the time that rests on constants of basis DEFAULT. */
double loom_default_share(const loom_job *job, const loom_step_cost *cost);

#endif
