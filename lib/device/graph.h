/* Graphs from the inside: what is kept of a capture and of what came of it, and what others keep with it. */
#ifndef LOOM_DEVICE_GRAPH_H
#define LOOM_DEVICE_GRAPH_H

#include <rankloom/device.h>

/* What another module has to do with a graph; embedded in what it keeps. It is the graph's from loom_graph_add() until drop(). */
typedef struct loom_graph_part loom_graph_part;
struct loom_graph_part {
    loom_graph_part *next;
    loom_status (*launched)(loom_graph_part *part, loom_stream *stream); /* a replay was enqueued on `stream`, and nothing behind it yet */
    void (*drop)(loom_graph_part *part);                                 /* the graph is gone, or has nothing to do with it any more; frees it */
};

struct loom_graph {
    loom_device *device;
    loom_stream *stream; /* where it was begun */
    void *native;        /* the back end's; NULL: not captured yet, or not any more */
    loom_graph_part *parts;
    loom_status failed; /* why the capture was dropped, or what was captured cannot run again; with message */
    char message[1024];
};

/* What an enqueueing call asks first: LOOM_OK, or why the capture under way was dropped. */
loom_status loom_graph_check(const loom_device *device);
/* A call that no graph can hold. LOOM_OK where nothing is captured; else the capture is dropped, and the failure names the call. */
loom_status loom_graph_refuse(loom_device *device, const char *call);
/* Nothing of the graph runs again, with loom_last_error() as the reason; a replay under way goes on. Also of a capture under way. */
void loom_graph_break(loom_graph *graph, loom_status status);

void loom_graph_add(loom_graph *graph, loom_graph_part *part);
void loom_graph_remove(loom_graph *graph, loom_graph_part *part); /* and drops it */

#endif
