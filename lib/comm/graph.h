/* What a graph has of a comm. */
#ifndef LOOM_COMM_GRAPH_H
#define LOOM_COMM_GRAPH_H

#include "comm/transport.h"
#include "device/graph.h"

/* The calls of one comm that are in one graph. They are counted here and not in the comm: no call was made yet. Each launch counts them there, as if all had been. */
typedef struct loom_comm_part {
    loom_graph_part part; /* first: the graph sees this */
    struct loom_comm_part *next; /* of the comm */
    loom_graph *graph;
    loom_comm *comm;
    loom_traffic traffic;
    uint64_t collectives, messages;
    char last[LOOM_CALL_TEXT]; /* the last of them */
} loom_comm_part;

/* The part of the graph that is captured now, to count a call in; NULL where nothing is captured. */
loom_status loom_comm_capture(loom_comm *comm, loom_comm_part **part);

/* The comm failed, with loom_last_error(): its graphs run no more, and the other comms in them fail with it, since their calls may wait in a replay for those of this
 * one. Under the world's lock. */
void loom_comm_fail_graphs(loom_comm *comm, loom_status status);
/* The comm goes: its graphs run no more. */
void loom_comm_leave_graphs(loom_comm *comm);

#endif
