/* Graphs: work that is enqueued once and run many times. Who captures how is the back end's. */
#include "device/graph.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/try.h"
#include "device/backend.h"
#include "device/stream.h"

/* --- what stands in a capture's way --------------------------------------------------------------------------------------- */

static loom_status failure_of(const loom_graph *graph)
{
    return loom_fail(graph->failed, "%s", graph->message);
}

loom_status loom_graph_check(const loom_device *device)
{
    return device->capture && device->capture->failed < 0 ? failure_of(device->capture) : LOOM_OK;
}

void loom_graph_break(loom_graph *graph, loom_status status)
{
    if (graph->failed >= 0) {
        graph->failed = status;
        snprintf(graph->message, sizeof graph->message, "%s", loom_last_error());
    }
    if (graph->native)
        graph->device->backend->graph_drop(graph);
}

loom_status loom_graph_refuse(loom_device *device, const char *call)
{
    loom_status status;

    if (!device->capture)
        return LOOM_OK;
    if ((status = loom_graph_check(device)) < 0)
        return status;
    status = loom_fail(LOOM_E_INVALID, "%s while a graph is captured on stream \"%s\": a replay could not do it again, so the capture was dropped",
                       call, device->capture->stream->name);
    loom_graph_break(device->capture, status);
    return status;
}

/* --- parts ------------------------------------------------------------------------------------------------------------------- */

void loom_graph_add(loom_graph *graph, loom_graph_part *part)
{
    part->next = graph->parts;
    graph->parts = part;
}

void loom_graph_remove(loom_graph *graph, loom_graph_part *part)
{
    loom_graph_part **link = &graph->parts;

    while (*link && *link != part)
        link = &(*link)->next;
    if (*link)
        *link = part->next;
    part->drop(part);
}

/* --- a graph's life ------------------------------------------------------------------------------------------------------------ */

bool loom_device_captures(const loom_device *device)
{
    return device->backend->graph_begin != NULL;
}

loom_status loom_graph_begin(loom_stream *stream)
{
    loom_device *device = stream->device;
    loom_graph *graph;
    loom_status status;

    if (!loom_device_captures(device))
        return loom_fail(LOOM_E_UNSUPPORTED, "a %s device captures no graphs; loom_device_captures() tells", device->backend->name);
    if (device->capture)
        return loom_fail(LOOM_E_INVALID, "a graph is begun on stream \"%s\", and one is being captured already, since stream \"%s\"", stream->name,
                         device->capture->stream->name);
    if (!(graph = calloc(1, sizeof *graph)))
        return loom_fail(LOOM_E_MEMORY, "no memory for a graph");
    graph->device = device;
    graph->stream = stream;
    if ((status = device->backend->graph_begin(graph)) < 0) {
        loom_graph_close(graph);
        return status;
    }
    device->capture = graph;
    return LOOM_OK;
}

loom_status loom_graph_end(loom_stream *stream, loom_graph **graph)
{
    loom_device *device = stream->device;
    loom_graph *g = device->capture;
    loom_status status;

    if (!g)
        return loom_fail(LOOM_E_INVALID, "a graph ends on stream \"%s\", and none was begun", stream->name);
    if (g->stream != stream)
        return loom_fail(LOOM_E_INVALID, "a graph ends on stream \"%s\"; it was begun on stream \"%s\"", stream->name, g->stream->name);
    device->capture = NULL;
    status = g->failed < 0 ? failure_of(g) : graph ? device->backend->graph_end(g) : LOOM_OK;
    if (status < 0 || !graph)
        loom_graph_close(g);
    else
        *graph = g;
    return status;
}

loom_status loom_graph_launch(loom_graph *graph, loom_stream *stream)
{
    loom_status status;

    if (stream->device != graph->device)
        return loom_fail(LOOM_E_INVALID, "a graph is launched on stream \"%s\", which belongs to another device", stream->name);
    LOOM_TRY(loom_graph_refuse(graph->device, "loom_graph_launch"));
    if (graph->failed < 0)
        return failure_of(graph);
    LOOM_TRY(graph->device->backend->graph_launch(graph, stream));
    for (loom_graph_part *part = graph->parts; part; part = part->next)
        LOOM_TRY(part->launched(part, stream));
    return LOOM_OK;

fail:
    return status;
}

void loom_graph_close(loom_graph *graph)
{
    if (!graph)
        return;
    if (graph->native)
        graph->device->backend->graph_drop(graph);
    while (graph->parts)
        loom_graph_remove(graph, graph->parts);
    free(graph);
}
