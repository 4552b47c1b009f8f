/* Parts of the proof. */
#ifndef LOOM_SCHEDULE_VERIFY_H
#define LOOM_SCHEDULE_VERIFY_H

#include "schedule/schedule.h"

/* Where each pass of a micro-batch through a chunk stands in the list of its stage. */
typedef struct loom_places {
    int chunks, micro_batches;
    int *at; /* [pass][chunk][micro_batch] index */
} loom_places;

/* Steps (1) to (3) of the proof. On failure too, free(places->at). */
loom_status loom_find_places(const loom_schedule *schedule, loom_places *places);

/* Step (5): `schedule` has comm and passed the others. Runs every list in order; a send is over when its receive is posted, or when fewer than
 * `buffers` messages before it on its channel lie unreceived (-1: always). LOOM_E_INVALID names the shortest cycle of stages that wait. */
loom_status loom_check_deadlock(const loom_schedule *schedule, int buffers);

#endif
