/* How sure a predicted time is. */
#ifndef LOOM_PLANNER_INTERVAL_H
#define LOOM_PLANNER_INTERVAL_H

#include "planner/cost.h"

/* The 80 % interval of a step predicted to take `seconds`. */
void loom_interval(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers, double seconds, double *low_s, double *high_s);
/* Share of the time that rests on constants of basis DEFAULT. */
double loom_default_share(const loom_job *job, const loom_step_cost *cost);

#endif
