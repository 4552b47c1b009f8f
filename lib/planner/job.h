/* A request as the cost model wants it, and layouts in their short form. */
#ifndef LOOM_PLANNER_JOB_H
#define LOOM_PLANNER_JOB_H

#include "planner/cost.h"

/* What of a request is decided once: job, memory limit, what the user fixed. */
loom_status loom_job_make(const loom_plan_request *request, loom_job *job);
/* Takes the measured steps of the request into job->calibration. */
loom_status loom_job_calibrate(const loom_plan_request *request, loom_job *job);
double loom_job_memory_limit(const loom_plan_request *request, const loom_job *job); /* bytes, margin taken off */

/* The devices of a topology as one machine; mixed devices count as the weakest, uneven domains as what divides them all. */
loom_status loom_machine_of(const loom_topology *topology, loom_machine *machine);

/* Figures of a chip over those of the table, where it knows better. */
void loom_machine_read_chip(loom_machine *machine, const loom_chip *chip);

loom_pipeline loom_pipeline_of(loom_schedule_kind kind);
loom_schedule_kind loom_schedule_kind_of(loom_pipeline pipeline);
void loom_degrees_of_layout(const loom_layout *layout, const loom_job *job, loom_degrees *degrees, int *chunk_layers);
void loom_layout_of_degrees(const loom_degrees *degrees, const loom_job *job, const int *chunk_layers, loom_layout *layout);

#endif
