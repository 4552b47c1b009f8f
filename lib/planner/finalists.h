/* The second look: schedules of a layout that the search found, in virtual time. */
#ifndef LOOM_PLANNER_FINALISTS_H
#define LOOM_PLANNER_FINALISTS_H

#include "planner/search.h"

/* A closed form lies above the simulation by no more than this share of it: little once the pipeline is full (a test runs whole spaces). */
double loom_closed_form_above(int64_t micro_batches, int stages);

/* Puts the schedule and the number of chunks into `found` that simulate fastest with its other degrees: all are simulated whose closed form does not rule
 * them out. `actions`: how many may be simulated yet; what is beyond them keeps its closed form's choice. Returns how many layouts were simulated. */
int loom_finalist_refine(const loom_space *space, double limit, int64_t *actions, loom_found *found);

#endif
