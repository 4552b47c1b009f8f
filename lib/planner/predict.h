/* One layout in full, as the public prediction shows it. */
#ifndef LOOM_PLANNER_PREDICT_H
#define LOOM_PLANNER_PREDICT_H

#include "planner/split.h"

/* `degrees` placed. The pipeline is simulated when it is not too large, else the closed form stands. */
loom_status loom_predict_degrees(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers, double memory_limit,
                                 loom_prediction *prediction);

/* Its time alone. */
void loom_step_simulate(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers, loom_step_cost *cost);

/* Seconds of the pipeline by running its very schedule in virtual time; false: no such schedule, or too many actions. `hops`: messages take
 * time. */
bool loom_simulate_pipeline(const loom_job *job, const loom_degrees *degrees, const loom_layer_table *layers, const int *chunk_layers,
                            bool hops, double *seconds);

#endif
