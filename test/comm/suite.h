/* What every transport has to do, as functions of a rank: run them on any world. */
#ifndef LOOM_TEST_COMM_SUITE_H
#define LOOM_TEST_COMM_SUITE_H

#include "harness/on_ranks.h"

void suite_use_heap(bool heap);                    /* whether buffers come from loom_alloc() or from malloc() */
void *suite_buffer(loom_comm *comm, size_t bytes); /* zeroed */
void suite_drop(loom_comm *comm, void *memory);
void suite_wait(loom_stream *stream); /* fails the test with the message of a failure */

/* The same on any device: a side of the host, and one of the device. */
typedef struct suite_pair {
    char *host;
    void *device;
    size_t bytes;
} suite_pair;

suite_pair suite_two_sided(loom_comm *comm, size_t bytes);
void suite_drop_sides(loom_comm *comm, suite_pair pair);
void suite_push(suite_pair pair, loom_stream *stream); /* to the device */
void suite_pull(suite_pair pair, loom_stream *stream); /* back, and waits */

rank_fn suite_collectives; /* every collective, dtype, op; sizes around every limit */
rank_fn suite_p2p;         /* messages of all sizes, tags in any order, groups */
rank_fn suite_groups;      /* comms out of comms */
rank_fn suite_on_device;   /* of each of these a part, for devices whose memory the host may not touch */

#endif
