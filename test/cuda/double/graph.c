/* Stream capture and graphs. A capture is a list of pieces of work, each of a branch (what was a stream) and in the order in which they came, with the waits
 * between branches. A replay makes a queue of every branch and fills it with clones; so the device's thread runs it in any order that the captured
 * dependencies allow, beside whatever else there is. */
#include "queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One of three: a piece of work, a wait for another branch, an event that is to note the time. Each is one piece of work in a replay, so that a place in the
 * branch is a place in its queue. */
typedef struct node {
    int branch;
    double_op *op; /* to be cloned */
    int from;      /* a wait: for the `at`-th piece of that branch */
    uint32_t at;
    cudaEvent_t event;
} node;

/* What of each branch comes before the end of this one; its own length among them. */
typedef struct branch {
    uint32_t seen[DOUBLE_BRANCHES_MAX];
} branch;

struct CUgraph_st {
    struct CUgraph_st *next;
    int users; /* the capture or the handle, and executables */
    uint64_t number;
    cudaStream_t origin;
    pthread_t thread;
    bool active, invalid;
    node *nodes;
    int count, room;
    branch *branches;
    int n_branches;
};

struct CUgraphExec_st {
    cudaGraph_t graph;
    double_point *last; /* the end of the last replay: the next one comes after it */
};

static struct CUgraph_st *graphs; /* all there are; under the device's lock */
static _Thread_local cudaGraph_t captured_here;

static void drop_graph(cudaGraph_t graph)
{
    struct CUgraph_st **link = &graphs;

    if (--graph->users > 0)
        return;
    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    for (int i = 0; i < graph->count; i++)
        if (graph->nodes[i].op)
            graph->nodes[i].op->drop(graph->nodes[i].op);
    free(graph->nodes);
    free(graph->branches);
    free(graph);
}

bool double_is_captured(const void *order)
{
    bool found = false;

    double_lock();
    for (const struct CUgraph_st *g = graphs; g; g = g->next)
        for (int i = 0; i < g->count; i++)
            found |= g->nodes[i].op && g->nodes[i].op->order == order;
    double_unlock();
    return found;
}

/* Whether this thread may ask about what it does not capture. */
static _Thread_local enum cudaStreamCaptureMode mode_here = cudaStreamCaptureModeThreadLocal;

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    enum cudaStreamCaptureMode before = mode_here;

    mode_here = *mode;
    *mode = before;
    return cudaSuccess;
}

bool double_ends_capture(void)
{
    if (!captured_here || mode_here == cudaStreamCaptureModeRelaxed)
        return false;
    double_lock();
    captured_here->invalid = true;
    double_unlock();
    return true;
}

cudaError_t double_invalidate(cudaStream_t stream, cudaError_t error)
{
    if (stream->capture)
        stream->capture->invalid = true;
    return error;
}

/* --- what is captured --------------------------------------------------------------------------------------------------------- */

static int add_branch(cudaGraph_t graph)
{
    if (graph->n_branches == DOUBLE_BRANCHES_MAX)
        abort();
    graph->branches[graph->n_branches] = (branch){.seen = {0}};
    return graph->n_branches++;
}

static void add_node(cudaStream_t stream, node n)
{
    cudaGraph_t graph = stream->capture;

    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->nodes = realloc(graph->nodes, (size_t)graph->room * sizeof *graph->nodes);
        if (!graph->nodes)
            abort();
    }
    n.branch = stream->branch;
    graph->nodes[graph->count++] = n;
    graph->branches[stream->branch].seen[stream->branch]++;
}

cudaError_t double_capture(cudaStream_t stream, double_op *op)
{
    if (stream->capture->invalid || !op->clone) {
        op->drop(op);
        return stream->capture->invalid ? cudaErrorStreamCaptureInvalidated : double_invalidate(stream, cudaErrorStreamCaptureUnsupported);
    }
    add_node(stream, (node){.op = op});
    return cudaSuccess;
}

cudaError_t double_capture_record(cudaStream_t stream, cudaEvent_t event, bool external)
{
    const branch *b = &stream->capture->branches[stream->branch];
    double_place *place;

    if (stream->capture->invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (external) {
        add_node(stream, (node){.event = event});
        return cudaSuccess;
    }
    double_drop_point(event->point);
    event->point = calloc(1, sizeof *event->point);
    place = malloc(sizeof *place);
    if (!event->point || !place)
        abort();
    *place = (double_place){.capture = stream->capture->number, .branch = stream->branch, .at = b->seen[stream->branch]};
    memcpy(place->seen, b->seen, sizeof place->seen);
    event->point->users = 1;
    event->point->place = place;
    return cudaSuccess;
}

static cudaGraph_t find_capture(uint64_t number)
{
    cudaGraph_t graph = graphs;

    while (graph && !(graph->active && graph->number == number))
        graph = graph->next;
    return graph;
}

/* The branch knows of all that came before `place`; whether that is news. */
static bool see(branch *b, const double_place *place)
{
    if (b->seen[place->branch] >= place->at)
        return false;
    for (int i = 0; i < DOUBLE_BRANCHES_MAX; i++)
        b->seen[i] = place->seen[i] > b->seen[i] ? place->seen[i] : b->seen[i];
    return true;
}

/* A stream that waits for what is captured is captured from then on. */
cudaError_t double_capture_wait(cudaStream_t stream, cudaEvent_t event)
{
    const double_place *place = event->point ? event->point->place : NULL;
    cudaGraph_t graph;

    if (!event->point)
        return cudaSuccess;
    if (!place)
        return double_invalidate(stream, cudaErrorStreamCaptureIsolation);
    graph = find_capture(place->capture);
    if (!graph)
        return double_invalidate(stream, cudaErrorCapturedEvent);
    if (graph->invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (stream->capture && stream->capture != graph)
        return double_invalidate(stream, cudaErrorStreamCaptureMerge);
    if (stream->capture && graph->branches[stream->branch].seen[place->branch] >= place->at)
        return cudaSuccess; /* it comes after that anyway */
    if (double_leaves_out_wait())
        return cudaSuccess;
    if (!stream->capture) {
        stream->capture = graph;
        stream->branch = add_branch(graph);
    }
    if (see(&graph->branches[stream->branch], place))
        add_node(stream, (node){.from = place->branch, .at = place->at});
    return cudaSuccess;
}

/* --- capturing ------------------------------------------------------------------------------------------------------------------ */

static cudaGraph_t new_graph(cudaStream_t origin)
{
    static uint64_t captures;
    cudaGraph_t graph = calloc(1, sizeof *graph);

    if (!graph || !(graph->branches = calloc(DOUBLE_BRANCHES_MAX, sizeof *graph->branches)))
        abort();
    graph->next = graphs;
    graphs = graph;
    graph->users = 1;
    graph->number = ++captures;
    graph->origin = origin;
    graph->thread = pthread_self();
    graph->active = true;
    return graph;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    if (double_fails(__func__))
        return double_remember(cudaErrorInvalidValue);
    if (mode != cudaStreamCaptureModeThreadLocal) /* in others one thread could spoil another's capture; ours are not to */
        return double_remember(cudaErrorInvalidValue);
    double_lock();
    if (stream->capture || captured_here) {
        double_unlock();
        return double_remember(cudaErrorIllegalState);
    }
    captured_here = stream->capture = new_graph(stream);
    stream->branch = add_branch(captured_here);
    double_unlock();
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    double_lock();
    *status = !stream->capture          ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    double_unlock();
    return cudaSuccess;
}

static bool is_joined(const struct CUgraph_st *graph)
{
    for (int i = 0; i < graph->n_branches; i++)
        if (graph->branches[graph->origin->branch].seen[i] < graph->branches[i].seen[i])
            return false;
    return true;
}

static cudaError_t end_capture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaGraph_t g = stream->capture;

    if (!g)
        return cudaErrorIllegalState;
    if (!pthread_equal(g->thread, pthread_self()))
        return cudaErrorStreamCaptureWrongThread;
    if (g->origin != stream)
        return double_invalidate(stream, cudaErrorStreamCaptureUnmatched);
    double_release_streams(g);
    g->active = false;
    captured_here = NULL;
    *graph = g;
    return g->invalid ? cudaErrorStreamCaptureInvalidated : is_joined(g) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

/* Out of capture, also where there is nothing to show for it. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t error;

    double_lock();
    *graph = NULL;
    error = end_capture(stream, graph);
    if (error != cudaSuccess && *graph) {
        drop_graph(*graph);
        *graph = NULL;
    }
    double_unlock();
    return error == cudaSuccess ? error : double_remember(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    double_lock();
    drop_graph(graph);
    double_unlock();
    return cudaSuccess;
}

/* --- replays --------------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    if (double_fails(__func__) || flags != cudaGraphInstantiateFlagUseNodePriority || !(*exec = calloc(1, sizeof **exec)))
        return double_remember(cudaErrorInvalidValue);
    double_lock();
    (*exec)->graph = graph;
    graph->users++;
    double_unlock();
    return cudaSuccess;
}

/* Nothing stays of a replay but what is queued. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    double_lock();
    double_drop_point(exec->last);
    drop_graph(exec->graph);
    double_unlock();
    free(exec);
    return cudaSuccess;
}

enum { PLACES_BEFORE = 1 /* in each queue: the wait for the launch */ };

static void enqueue_wait(cudaStream_t queue, cudaStream_t other, uint64_t ticket)
{
    double_point *point = double_new_point(other, ticket);

    double_enqueue_wait(queue, point);
    double_drop_point(point);
}

static void enqueue_node(const node *n, cudaStream_t queues[])
{
    cudaStream_t queue = queues[n->branch];

    if (n->op) {
        double_enqueue(queue, n->op->clone(n->op));
    } else if (n->event) {
        double_drop_point(n->event->point);
        n->event->point = double_enqueue_stamp(queue);
    } else {
        enqueue_wait(queue, queues[n->from], PLACES_BEFORE + n->at);
    }
}

static void replay(cudaGraphExec_t exec, cudaStream_t stream)
{
    const struct CUgraph_st *graph = exec->graph;
    cudaStream_t queues[DOUBLE_BRANCHES_MAX];

    if (exec->last)
        double_enqueue_wait(stream, exec->last);
    double_drop_point(exec->last);
    for (int i = 0; i < graph->n_branches; i++) {
        queues[i] = double_open_queue();
        enqueue_wait(queues[i], stream, stream->pushed);
    }
    for (int i = 0; i < graph->count; i++)
        enqueue_node(&graph->nodes[i], queues);
    for (int i = 0; i < graph->n_branches; i++)
        enqueue_wait(stream, queues[i], queues[i]->pushed);
    exec->last = double_new_point(stream, stream->pushed);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;

    if (double_fails(__func__))
        return double_remember(cudaErrorLaunchFailure);
    double_lock();
    if (stream->capture)
        error = double_invalidate(stream, cudaErrorStreamCaptureUnsupported); /* legal, but none of ours does it */
    else
        replay(exec, stream);
    double_unlock();
    return error == cudaSuccess ? error : double_remember(error);
}
