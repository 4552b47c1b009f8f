/* Graphs by stream capture. Every stream of the device is forked from the one that the capture begins on and joined to it at the end, so that what is enqueued on
 * any of them is in the graph; a launch is forked and joined in the same way.
 *
 * CUDA has two rules that callers above need not know of. A stream that is captured may not wait for an event from before the capture, nor any other for one that was
 * recorded in it: since a launch comes after all that was queued and before all that follows, such waits are left out: events know their capture. And the
 * thread that captures may ask about no stream or event whatever: the library refuses those calls (device/graph.h). */
#include "cuda/device.h"

#include <stdlib.h>

#include "core/try.h"
#include "cuda/module.h"
#include "device/queue.h"

uint64_t loom_cuda_capture_number(const loom_device *device)
{
    const loom_cuda_device *d = loom_cuda_of(device);

    return d->capturing ? d->capturing->number : 0;
}

/* --- forks and joins --------------------------------------------------------------------------------------------------------- */

/* All other streams go on behind `event`. */
static loom_status fork_from(const loom_stream *stream, cudaEvent_t event)
{
    loom_device *device = stream->device;
    loom_cuda_device *d = loom_cuda_of(device);
    loom_status status = LOOM_OK;

    pthread_mutex_lock(&d->lock);
    for (loom_cuda_stream *s = d->streams; s && status >= 0; s = s->next)
        if (&s->base != stream)
            status = loom_cuda_check(device, cudaStreamWaitEvent(loom_cuda_stream_of(&s->base), event, 0), "cudaStreamWaitEvent on stream \"%s\"",
                                     s->base.name);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static loom_status join_one(const loom_stream *stream, const loom_cuda_stream *other)
{
    loom_device *device = stream->device;
    loom_status status;

    LOOM_TRY(loom_stream_failure(&other->base));
    LOOM_TRY(loom_cuda_check(device, cudaEventRecord(other->mark, loom_cuda_stream_of(&other->base)), "cudaEventRecord on stream \"%s\"",
                             other->base.name));
    return loom_cuda_check(device, cudaStreamWaitEvent(loom_cuda_stream_of(stream), other->mark, 0), "cudaStreamWaitEvent on stream \"%s\"", stream->name);

fail:
    return status;
}

/* `stream` goes on behind all others. */
static loom_status join_to(const loom_stream *stream)
{
    loom_cuda_device *d = loom_cuda_of(stream->device);
    loom_status status = LOOM_OK;

    pthread_mutex_lock(&d->lock);
    for (const loom_cuda_stream *s = d->streams; s && status >= 0; s = s->next)
        if (&s->base != stream)
            status = join_one(stream, s);
    pthread_mutex_unlock(&d->lock);
    return status;
}

/* --- capture ----------------------------------------------------------------------------------------------------------------- */

static loom_status begin_capture(loom_device *device, loom_cuda_graph *g, loom_cuda_stream *origin)
{
    loom_cuda_device *d = loom_cuda_of(device);
    cudaStream_t stream = loom_cuda_stream_of(&origin->base);
    loom_status status;

    LOOM_TRY(loom_stream_failure(&origin->base));
    LOOM_TRY(loom_cuda_enter(device));
    LOOM_TRY(loom_cuda_check(device, cudaEventCreateWithFlags(&g->done, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    LOOM_TRY(loom_cuda_check(device, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture on stream \"%s\"",
                             origin->base.name));
    d->capturing = g;
    LOOM_TRY(loom_cuda_check(device, cudaEventRecord(origin->mark, stream), "cudaEventRecord on stream \"%s\"", origin->base.name));
    return fork_from(&origin->base, origin->mark);

fail:
    return status;
}

loom_status loom_cuda_graph_begin(loom_graph *graph)
{
    loom_cuda_device *d = loom_cuda_of(graph->device);
    loom_cuda_graph *g = calloc(1, sizeof *g);

    if (!g)
        return loom_fail(LOOM_E_MEMORY, "no memory for a graph");
    g->number = ++d->captures;
    pthread_mutex_lock(&d->lock);
    g->next = d->graphs;
    d->graphs = g;
    pthread_mutex_unlock(&d->lock);
    graph->native = g;
    return begin_capture(graph->device, g, (loom_cuda_stream *)graph->stream);
}

/* Priorities are those of the streams that the work was captured on. */
static loom_status instantiate(loom_device *device, loom_cuda_graph *g, cudaGraph_t captured)
{
    loom_status status = loom_cuda_check(device, cudaGraphInstantiate(&g->exec, captured, cudaGraphInstantiateFlagUseNodePriority), "cudaGraphInstantiate");

    cudaGraphDestroy(captured);
    return status;
}

/* Out of capture, whatever comes of it. */
static cudaError_t end_capture(loom_cuda_device *d, const loom_stream *stream, cudaGraph_t *captured)
{
    d->capturing = NULL;
    *captured = NULL;
    return cudaStreamEndCapture(loom_cuda_stream_of(stream), captured);
}

loom_status loom_cuda_graph_end(loom_graph *graph)
{
    loom_device *device = graph->device;
    cudaGraph_t captured;
    loom_status status;

    LOOM_TRY(loom_cuda_enter(device));
    LOOM_TRY(join_to(graph->stream));
    LOOM_TRY(loom_cuda_check(device, end_capture(loom_cuda_of(device), graph->stream, &captured), "cudaStreamEndCapture on stream \"%s\"",
                             graph->stream->name));
    return instantiate(device, graph->native, captured);

fail:
    return status;
}

/* --- replays ----------------------------------------------------------------------------------------------------------------- */

loom_status loom_cuda_graph_launch(loom_graph *graph, loom_stream *stream)
{
    loom_device *device = graph->device;
    loom_cuda_graph *g = graph->native;
    cudaStream_t native = loom_cuda_stream_of(stream);
    loom_status status;

    LOOM_TRY(loom_stream_failure(stream));
    LOOM_TRY(loom_cuda_enter(device));
    loom_cuda_collect_waits(device); /* of its last replay, which is about to be measured over */
    LOOM_TRY(join_to(stream));
    LOOM_TRY(loom_cuda_check(device, cudaGraphLaunch(g->exec, native), "cudaGraphLaunch on stream \"%s\"", stream->name));
    LOOM_TRY(loom_cuda_check(device, cudaEventRecord(g->done, native), "cudaEventRecord on stream \"%s\"", stream->name));
    g->measured = true;
    return fork_from(stream, g->done);

fail:
    return status;
}

/* --- the end ----------------------------------------------------------------------------------------------------------------- */

static void unlink_graph(loom_cuda_device *d, loom_cuda_graph *g)
{
    loom_cuda_graph **link = &d->graphs;

    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
}

/* A replay that is under way keeps what it needs; its events are kept for other waits and not destroyed. */
void loom_cuda_graph_drop(loom_graph *graph)
{
    loom_cuda_device *d = loom_cuda_of(graph->device);
    loom_cuda_graph *g = graph->native;
    cudaGraph_t captured;

    loom_cuda_enter(graph->device);
    if (d->capturing == g && end_capture(d, graph->stream, &captured) == cudaSuccess)
        cudaGraphDestroy(captured);
    cudaGetLastError(); /* a capture that was not joined is an error, and its end all the same */
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    if (g->done)
        cudaEventDestroy(g->done);
    pthread_mutex_lock(&d->lock);
    unlink_graph(d, g);
    pthread_mutex_unlock(&d->lock);
    loom_cuda_give_waits(d, g->waits);
    free(g);
    graph->native = NULL;
}
