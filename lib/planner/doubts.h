/* What may be off about the constants: groups of them that are likely wrong together, by one factor. Intervals and calibration stand on it. */
#ifndef LOOM_PLANNER_DOUBTS_H
#define LOOM_PLANNER_DOUBTS_H

#include "planner/cost.h"

/* Standard deviation of the logarithm of the factor, before anything is measured. */
double loom_doubt_spread(const loom_job *job, loom_doubt which);
/* Changes the constants as if that factor were e^logarithm: time goes up with it. */
void loom_doubt_turn(loom_job *job, loom_doubt which, double logarithm);
/* How the logarithm of the predicted step grows with each. `degrees` are placed. */
void loom_doubt_slopes(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers, double slope[LOOM_DOUBTS]);
/* What layouts have for themselves, that no constant explains: standard deviation of the logarithm of a step. */
double loom_layout_spread(const loom_job *job);

#endif
