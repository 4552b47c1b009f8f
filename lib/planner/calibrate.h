/* What measured steps say about predictions: which constants are off, and what is left to a layout itself. */
#ifndef LOOM_PLANNER_CALIBRATE_H
#define LOOM_PLANNER_CALIBRATE_H

#include "planner/cost.h"

/* A step that was timed. */
typedef struct loom_timed_step {
    const loom_degrees *degrees; /* placed */
    const int *chunk_layers;
    double seconds;
} loom_timed_step;

/* Where the constants of `job`, not calibrated yet, explain 1 to LOOM_MOST_MEASURED timed steps best, and how sure that makes them. */
void loom_calibration_learn(const loom_job *job, const loom_timed_step *steps, int n, loom_calibration *calibration);
/* Moves the constants of `job` there: the same job, or one of the same model, machine and software. */
void loom_calibrate(loom_job *job, const loom_calibration *calibration);
/* What layouts like a measured one keep of what no constant explained: factor on the prediction of the moved constants, 1 without measured steps. */
double loom_calibration_factor(const loom_calibration *calibration, const loom_degrees *degrees);
/* No factor is less. */
double loom_calibration_least(const loom_calibration *calibration);
/* Multiplies the whole prediction by the factor. */
void loom_calibration_apply(const loom_calibration *calibration, const loom_degrees *degrees, loom_step_cost *cost);
/* Standard deviation of the logarithm of a predicted step. */
double loom_prediction_spread(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers);

#endif
