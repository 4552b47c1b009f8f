/* What every transport has to do, as functions of a rank: run them on any world. */
#ifndef LOOM_TEST_COMM_SUITE_H
#define LOOM_TEST_COMM_SUITE_H

#include "harness/on_ranks.h"

void suite_use_heap(bool heap);                    /* whether buffers come from loom_alloc() or from malloc() */
void *suite_buffer(loom_comm *comm, size_t bytes); /* zeroed */
void suite_drop(loom_comm *comm, void *memory);
void suite_wait(loom_stream *stream); /* fails the test with the message of a failure */

rank_fn suite_collectives; /* every collective, dtype, op; sizes around every limit */
rank_fn suite_p2p;         /* messages of all sizes, tags in any order, groups */
rank_fn suite_groups;      /* comms out of comms */

#endif
