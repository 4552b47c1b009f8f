/* What measured steps say about predictions: how far off the model was, and for which kind of layout. */
#ifndef LOOM_PLANNER_CALIBRATE_H
#define LOOM_PLANNER_CALIBRATE_H

#include "planner/cost.h"

/* Notes a step of `seconds` whose prediction is `cost` (not calibrated itself). More than LOOM_MOST_MEASURED: the last are left out. */
void loom_calibration_add(loom_calibration *calibration, const loom_step_cost *cost, double seconds);
/* What to multiply a prediction by: 1 without measured steps. A measured step speaks for layouts whose time is made of the same things: its
 * correction fades with the share of the time that is spent on something else. */
double loom_calibration_factor(const loom_calibration *calibration, const loom_step_cost *cost);
/* Multiplies the whole prediction by it. */
void loom_calibrate(const loom_calibration *calibration, loom_step_cost *cost);
/* No prediction is multiplied by less. */
double loom_calibration_least(const loom_calibration *calibration);

#endif
