/* Comms in graphs: what was captured is counted with each launch, and watched over as a whole. */
#include "comm/graph.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/try.h"
#include "device/backend.h"

static uint64_t calls_of(const loom_comm_part *p)
{
    return p->collectives + p->messages;
}

static void count(loom_comm *comm, const loom_comm_part *p)
{
    for (int kind = 0; kind < LOOM_CALL_KINDS; kind++) {
        comm->traffic.calls[kind] += p->traffic.calls[kind];
        comm->traffic.bytes[kind] += p->traffic.bytes[kind];
    }
    comm->next_sequence += p->collectives;
    comm->next_message += p->messages;
}

static loom_status launched(loom_graph_part *part, loom_stream *stream)
{
    const loom_comm_part *p = (const loom_comm_part *)part;
    loom_comm *comm = p->comm;
    char text[LOOM_CALL_TEXT + 64];

    loom_recorder_replayed(&comm->recorder, comm->next_sequence, calls_of(p));
    count(comm, p);
    snprintf(text, sizeof text, "a replay of %llu calls, the last of them %s", (unsigned long long)calls_of(p), p->last);
    return comm->world->transport->launched(comm, text, stream);
}

static void drop(loom_graph_part *part)
{
    loom_comm_part *p = (loom_comm_part *)part, **link = &p->comm->parts;

    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    free(p);
}

static loom_comm_part *find_part(const loom_comm *comm, const loom_graph *graph)
{
    loom_comm_part *p = comm->parts;

    while (p && p->graph != graph)
        p = p->next;
    return p;
}

static loom_status make_part(loom_comm *comm, loom_graph *graph, loom_comm_part **part)
{
    loom_comm_part *p = calloc(1, sizeof *p);

    if (!p)
        return loom_fail(LOOM_E_MEMORY, "no memory for what a graph has of comm \"%s\"", comm->name);
    *p = (loom_comm_part){.part = {.launched = launched, .drop = drop}, .next = comm->parts, .graph = graph, .comm = comm};
    comm->parts = p;
    loom_graph_add(graph, &p->part);
    *part = p;
    return LOOM_OK;
}

loom_status loom_comm_capture(loom_comm *comm, loom_comm_part **part)
{
    loom_graph *graph = comm->world->device->capture;
    loom_status status = loom_graph_check(comm->world->device);

    *part = NULL;
    if (status < 0 || !graph)
        return status;
    *part = find_part(comm, graph);
    return *part ? LOOM_OK : make_part(comm, graph, part);
}

/* All parts are of comms: nobody else has any. */
static void fail_with(const loom_comm *comm, const loom_graph *graph, loom_status status)
{
    for (const loom_graph_part *part = graph->parts; part; part = part->next) {
        loom_comm *other = ((const loom_comm_part *)part)->comm;

        if (atomic_load(&other->failed) < 0)
            continue;
        snprintf(other->message, sizeof other->message, "it is in one graph with comm \"%s\", which failed: %.800s", comm->name, comm->message);
        atomic_store(&other->failed, (int32_t)status);
    }
}

void loom_comm_fail_graphs(loom_comm *comm, loom_status status)
{
    for (const loom_comm_part *p = comm->parts; p; p = p->next) {
        loom_graph_break(p->graph, status);
        fail_with(comm, p->graph, status);
    }
}

void loom_comm_leave_graphs(loom_comm *comm)
{
    while (comm->parts) {
        loom_comm_part *p = comm->parts;
        loom_graph_break(p->graph, loom_fail(LOOM_E_INVALID, "comm \"%s\", whose calls are in the graph, is gone", comm->name));
        loom_graph_remove(p->graph, &p->part);
    }
}
