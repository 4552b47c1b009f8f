/* The calls: checked, counted, recorded, put on their stream. How they run is the transport's. */
#include <rankloom/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/graph.h"
#include "comm/transport.h"
#include "core/clock.h"
#include "device/backend.h"

const char *loom_reduce_op_name(loom_reduce_op op)
{
    static const char *const names[LOOM_REDUCE_OPS] = {[LOOM_SUM] = "sum", [LOOM_AVG] = "avg", [LOOM_MAX] = "max", [LOOM_MIN] = "min"};

    return (unsigned)op < LOOM_REDUCE_OPS ? names[op] : "?";
}

/* --- failure ------------------------------------------------------------------------------------------------------- */

static loom_status failure_of(const loom_comm *comm)
{
    return loom_fail((loom_status)atomic_load(&comm->failed), "comm \"%s\" failed before: %s", comm->name, comm->message);
}

loom_status loom_comm_give_up(loom_comm *comm, loom_status status)
{
    atomic_store(&comm->world->broken, 1);
    pthread_mutex_lock(&comm->world->lock); /* streams of two threads may fail at once; the first one is the reason */
    if (atomic_load(&comm->failed) >= 0) {
        snprintf(comm->message, sizeof comm->message, "%s", loom_last_error());
        atomic_store(&comm->failed, (int32_t)status);
        loom_comm_fail_graphs(comm, status);
        comm->world->transport->give_up(comm, status);
    }
    pthread_mutex_unlock(&comm->world->lock);
    return status;
}

void loom_comm_abandon(loom_comm *comm)
{
    if (comm)
        atomic_store(&comm->world->broken, 1);
}

/* --- a call's life --------------------------------------------------------------------------------------------------- */

static void tell_observer(const loom_call *call, uint64_t now)
{
    const loom_comm *comm = call->comm;
    const loom_comm_event event = {
        .comm = comm,
        .kind = call->kind,
        .dtype = call->dtype,
        .count = call->count,
        .peer = call->peer,
        .begin_s = (double)call->begun_ns * 1e-9,
        .end_s = (double)now * 1e-9,
    };

    comm->world->observe(comm->world->observer, &event);
}

static void finish(loom_call *call, loom_status status)
{
    loom_comm *comm = call->comm;
    uint64_t now;

    call->task.status = status;
    call->task.over_ns = now = loom_recorder_ended(&comm->recorder, call);
    if (call->pooled)
        comm->ended_ns = now;
    if (comm->world->observe && call->begun)
        tell_observer(call, now);
    if (status < 0)
        loom_comm_give_up(comm, status);
    else if (!loom_call_is_p2p(call->kind))
        atomic_store(&comm->turn, call->sequence + 1);
}

static loom_step step_call(loom_task *task)
{
    loom_call *call = (loom_call *)task;
    loom_comm *comm = call->comm;
    loom_step step;

    if (atomic_load_explicit(&comm->failed, memory_order_acquire) < 0) {
        task->status = failure_of(comm);
        return LOOM_STEP_OVER;
    }
    if (!call->begun) {
        if (!loom_call_is_p2p(call->kind) && atomic_load(&comm->turn) != call->sequence)
            return LOOM_STEP_WAIT; /* an earlier collective of this comm waits on another stream */
        call->begun = true;
        call->begun_ns = call->at_once ? call->enqueued_ns : loom_now_ns();
        loom_recorder_begun(&comm->recorder, call, call->begun_ns);
    }
    step = comm->world->transport->step(call);
    if (step == LOOM_STEP_OVER)
        finish(call, task->status);
    return step;
}

static loom_status check_call(loom_task *task, double stalled_s)
{
    loom_call *call = (loom_call *)task;
    loom_comm *comm = call->comm;
    loom_status status;
    char text[LOOM_CALL_TEXT];

    if (!call->begun) {
        if (stalled_s < comm->world->deadline_s)
            return LOOM_OK;
        status = loom_fail(LOOM_E_PEER, "%s did not begin within %g s: an earlier call on this comm waits on another stream",
                           loom_call_describe(call, text), comm->world->deadline_s);
    } else {
        status = comm->world->transport->check(call, stalled_s);
    }
    if (status < 0)
        finish(call, status);
    return status;
}

static void release_call(loom_task *task)
{
    loom_call *call = (loom_call *)task;
    loom_comm *comm = call->comm;

    if (task->status < 0) /* it failed, or its stream did or was closed: the peers would wait for us in vain */
        loom_comm_give_up(comm, task->status);
    if (call->begun)
        comm->world->transport->drop(call);
    free(call->counts);
    if (!call->pooled) {
        free(call);
        return;
    }
    call->next = comm->spare;
    comm->spare = call;
}

static loom_call *make_call(loom_comm *comm, const loom_call *what, const loom_stream *stream)
{
    size_t scratch = comm->world->transport->call_bytes;
    bool pooled = stream->kind == LOOM_STREAM_INLINE && !comm->world->transport->launch;
    loom_call *call = pooled ? comm->spare : NULL;

    if (call)
        comm->spare = call->next;
    else if (!(call = malloc(sizeof *call + scratch)))
        return NULL;
    *call = *what;
    call->task = (loom_task){.step = step_call, .check = check_call, .release = release_call, .exposed_s = &comm->exposed_s};
    call->comm = comm;
    call->pooled = pooled;
    memset(loom_call_scratch(call), 0, scratch);
    return call;
}

/* --- calls of a device whose streams run by themselves -------------------------------------------------------------------- */

/* The calls of one group, or one call: enqueued on the device, or captured, and then of no more interest here. */
static loom_status launch(loom_comm *comm, loom_call *first, loom_stream *stream)
{
    bool captured = comm->world->device->capture != NULL;
    loom_comm_part *part;
    loom_status status = loom_comm_capture(comm, &part);

    if (status >= 0 && (status = comm->world->transport->launch(comm, &first, stream)) < 0)
        loom_comm_give_up(comm, status);
    if (part)
        loom_call_describe(first, part->last);
    while (first) {
        loom_call *call = first;
        first = call->next;
        if (!captured)
            loom_recorder_begun(&comm->recorder, call, call->enqueued_ns);
        free(call->counts);
        free(call);
    }
    return status;
}

/* --- groups of calls ----------------------------------------------------------------------------------------------------- */

typedef struct group_task {
    loom_task task;
    loom_comm *comm;
    loom_call *first; /* those that are not over yet */
} group_task;

static loom_step step_group(loom_task *task)
{
    group_task *group = (group_task *)task;
    bool moved = false;

    for (loom_call **link = &group->first; *link;) {
        loom_call *call = *link;
        loom_step step = step_call(&call->task);

        moved |= step != LOOM_STEP_WAIT;
        if (step != LOOM_STEP_OVER) {
            link = &call->next;
            continue;
        }
        *link = call->next;
        task->status = call->task.status;
        release_call(&call->task);
        if (task->status < 0)
            return LOOM_STEP_OVER;
    }
    if (!group->first)
        return LOOM_STEP_OVER;
    return moved ? LOOM_STEP_AGAIN : LOOM_STEP_WAIT;
}

static loom_status check_group(loom_task *task, double stalled_s)
{
    for (loom_call *call = ((group_task *)task)->first; call; call = call->next) {
        loom_status status = check_call(&call->task, stalled_s);
        if (status < 0)
            return status;
    }
    return LOOM_OK;
}

static void release_group(loom_task *task)
{
    group_task *group = (group_task *)task;

    while (group->first) {
        loom_call *call = group->first;
        group->first = call->next;
        call->task.status = task->status;
        release_call(&call->task);
    }
    free(group);
}

loom_status loom_group_begin(loom_comm *comm)
{
    if (comm->group_depth++ == 0) {
        comm->group_first = NULL;
        comm->group_last = &comm->group_first;
        comm->group_stream = NULL;
    }
    return LOOM_OK;
}

loom_status loom_group_end(loom_comm *comm, loom_stream *stream)
{
    group_task *group;

    if (comm->group_depth == 0)
        return loom_fail(LOOM_E_INVALID, "group_end on comm \"%s\" without a group_begin", comm->name);
    if (comm->group_stream && comm->group_stream != stream)
        return loom_fail(LOOM_E_INVALID, "group_end on comm \"%s\" with stream \"%s\", its calls were made with stream \"%s\"", comm->name,
                         loom_stream_name(stream), loom_stream_name(comm->group_stream));
    if (--comm->group_depth > 0 || !comm->group_first)
        return LOOM_OK;
    if (comm->world->transport->launch) {
        loom_call *first = comm->group_first;
        comm->group_first = NULL;
        return launch(comm, first, stream);
    }
    group = malloc(sizeof *group);
    if (!group)
        return loom_fail(LOOM_E_MEMORY, "no memory for a group of calls");
    *group = (group_task){
        {.step = step_group, .check = check_group, .release = release_group, .exposed_s = &comm->exposed_s}, comm, comm->group_first};
    comm->group_first = NULL;
    return loom_stream_submit(stream, &group->task);
}

static loom_status add_to_group(loom_comm *comm, loom_call *call, loom_stream *stream)
{
    if (comm->group_stream && comm->group_stream != stream) {
        loom_status status =
            loom_fail(LOOM_E_INVALID, "a group of calls on comm \"%s\" uses stream \"%s\" and stream \"%s\"; one group, one stream",
                      comm->name, loom_stream_name(comm->group_stream), loom_stream_name(stream));
        release_call(&call->task);
        return status;
    }
    comm->group_stream = stream;
    call->next = NULL;
    *comm->group_last = call;
    comm->group_last = &call->next;
    return LOOM_OK;
}

/* --- enqueueing ------------------------------------------------------------------------------------------------------------ */

/* In the comm, or in the graph that it goes into. */
static void count(loom_comm *comm, loom_comm_part *part, const loom_call *call, uint64_t traffic_bytes)
{
    loom_traffic *traffic = part ? &part->traffic : &comm->traffic;

    if (loom_call_is_p2p(call->kind))
        ++*(part ? &part->messages : &comm->next_message);
    else
        ++*(part ? &part->collectives : &comm->next_sequence);
    traffic->calls[call->kind]++;
    traffic->bytes[call->kind] += traffic_bytes;
}

static uint64_t number_of(const loom_comm *comm, const loom_comm_part *part, loom_call_kind kind)
{
    if (loom_call_is_p2p(kind))
        return comm->next_message + (part ? part->messages : 0);
    return comm->next_sequence + (part ? part->collectives : 0);
}

static loom_status enqueue(loom_comm *comm, const loom_call *what, uint64_t traffic_bytes, loom_stream *stream)
{
    loom_call *call;
    loom_comm_part *part;
    bool grouped = comm->group_depth > 0, is_inline = stream->kind == LOOM_STREAM_INLINE;
    uint64_t now;
    loom_status status;

    if (atomic_load_explicit(&comm->failed, memory_order_relaxed) < 0) {
        free(what->counts);
        return failure_of(comm);
    }
    if ((status = loom_comm_capture(comm, &part)) < 0) {
        free(what->counts);
        return status;
    }
    if (!(call = make_call(comm, what, stream))) {
        free(what->counts);
        return loom_fail(LOOM_E_MEMORY, "no memory for a call on comm \"%s\"", comm->name);
    }
    call->sequence = number_of(comm, part, call->kind);
    call->enqueued_ns = now = part ? loom_now_ns() : loom_recorder_enqueued(&comm->recorder, call);
    call->at_once = is_inline && !grouped && !stream->head;
    if (grouped && (status = add_to_group(comm, call, stream)) < 0)
        return status;
    count(comm, part, call, traffic_bytes);
    if (grouped)
        return LOOM_OK;
    if (comm->world->transport->launch) {
        call->next = NULL;
        return launch(comm, call, stream);
    }
    status = loom_stream_submit(stream, &call->task);
    if (is_inline && comm->ended_ns >= now) /* done before returning: time the caller did not have */
        comm->exposed_s += (double)(comm->ended_ns - now) * 1e-9;
    return status;
}

static loom_status check_types(const loom_comm *comm, loom_call_kind kind, size_t count, loom_dtype dtype, int buffers,
                               const loom_stream *stream)
{
    size_t element = loom_dtype_bytes(dtype);

    if (!stream || loom_stream_device(stream) != comm->world->device)
        return loom_fail(LOOM_E_INVALID, "%s on comm \"%s\": the stream belongs to another device than the comm", loom_call_kind_name(kind),
                         comm->name);
    if (!element)
        return loom_fail(LOOM_E_INVALID, "%s on comm \"%s\": there is no dtype %d", loom_call_kind_name(kind), comm->name, (int)dtype);
    if (count > (size_t)PTRDIFF_MAX / element / (size_t)buffers)
        return loom_fail(LOOM_E_INVALID, "%s on comm \"%s\": %zu elements for each of %d ranks do not fit memory",
                         loom_call_kind_name(kind), comm->name, count, buffers);
    return LOOM_OK;
}

static loom_status check_op(const loom_comm *comm, loom_call_kind kind, loom_reduce_op op)
{
    if ((unsigned)op < LOOM_REDUCE_OPS)
        return LOOM_OK;
    return loom_fail(LOOM_E_INVALID, "%s on comm \"%s\": there is no reduction %d", loom_call_kind_name(kind), comm->name, (int)op);
}

/* NULL is right only where nothing is read or written. */
static loom_status check_buffer(const loom_comm *comm, loom_call_kind kind, const char *which, const void *buffer, size_t count)
{
    if (buffer || !count)
        return LOOM_OK;
    return loom_fail(LOOM_E_INVALID, "%s on comm \"%s\": %s is NULL for %zu elements", loom_call_kind_name(kind), comm->name, which, count);
}

/* `small` and `large` may share memory only as `small` exactly at `in_place` within large (NULL: never). */
static loom_status check_overlap(const loom_comm *comm, loom_call_kind kind, const void *small, size_t small_bytes, const void *large,
                                 size_t large_bytes, const void *in_place)
{
    uintptr_t a = (uintptr_t)small, b = (uintptr_t)large;

    if (!small_bytes || !large_bytes || a + small_bytes <= b || b + large_bytes <= a || small == in_place)
        return LOOM_OK;
    return loom_fail(LOOM_E_INVALID, "%s on comm \"%s\": send and recv overlap%s", loom_call_kind_name(kind), comm->name,
                     in_place ? " other than exactly in place" : ", and this call cannot work in place");
}

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        loom_status tried = (call);                                                                                                        \
        if (tried < 0)                                                                                                                     \
            return tried;                                                                                                                  \
    } while (0)

loom_status loom_all_reduce(loom_comm *comm, const void *send, void *recv, size_t count, loom_dtype dtype, loom_reduce_op op,
                            loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_ALL_REDUCE, .dtype = dtype, .op = op, .send = send, .recv = recv, .count = count};
    size_t bytes = count * loom_dtype_bytes(dtype);

    TRY(check_types(comm, call.kind, count, dtype, 1, stream));
    TRY(check_op(comm, call.kind, op));
    TRY(check_buffer(comm, call.kind, "send", send, count));
    TRY(check_buffer(comm, call.kind, "recv", recv, count));
    TRY(check_overlap(comm, call.kind, send, bytes, recv, bytes, recv));
    return enqueue(comm, &call, loom_all_reduce_traffic(bytes, comm->size), stream);
}

loom_status loom_reduce_scatter(loom_comm *comm, const void *send, void *recv, size_t count, loom_dtype dtype, loom_reduce_op op,
                                loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_REDUCE_SCATTER, .dtype = dtype, .op = op, .send = send, .recv = recv, .count = count};
    size_t bytes = count * loom_dtype_bytes(dtype);

    TRY(check_types(comm, call.kind, count, dtype, comm->size, stream));
    TRY(check_op(comm, call.kind, op));
    TRY(check_buffer(comm, call.kind, "send", send, count));
    TRY(check_buffer(comm, call.kind, "recv", recv, count));
    TRY(check_overlap(comm, call.kind, recv, bytes, send, bytes * (size_t)comm->size, (const char *)send + bytes * (size_t)comm->rank));
    return enqueue(comm, &call, (uint64_t)bytes * (uint64_t)(comm->size - 1), stream);
}

loom_status loom_all_gather(loom_comm *comm, const void *send, void *recv, size_t count, loom_dtype dtype, loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_ALL_GATHER, .dtype = dtype, .send = send, .recv = recv, .count = count};
    size_t bytes = count * loom_dtype_bytes(dtype);

    TRY(check_types(comm, call.kind, count, dtype, comm->size, stream));
    TRY(check_buffer(comm, call.kind, "send", send, count));
    TRY(check_buffer(comm, call.kind, "recv", recv, count));
    TRY(check_overlap(comm, call.kind, send, bytes, recv, bytes * (size_t)comm->size, (const char *)recv + bytes * (size_t)comm->rank));
    return enqueue(comm, &call, (uint64_t)bytes * (uint64_t)(comm->size - 1), stream);
}

loom_status loom_all_to_all(loom_comm *comm, const void *send, void *recv, size_t count, loom_dtype dtype, loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_ALL_TO_ALL, .dtype = dtype, .send = send, .recv = recv, .count = count};
    size_t bytes = count * loom_dtype_bytes(dtype);

    TRY(check_types(comm, call.kind, count, dtype, comm->size, stream));
    TRY(check_buffer(comm, call.kind, "send", send, count));
    TRY(check_buffer(comm, call.kind, "recv", recv, count));
    TRY(check_overlap(comm, call.kind, send, bytes * (size_t)comm->size, recv, bytes * (size_t)comm->size, NULL));
    return enqueue(comm, &call, (uint64_t)bytes * (uint64_t)(comm->size - 1), stream);
}

/* Elements from the first to behind the last that a list of blocks touches; a product or sum that does not fit is SIZE_MAX. */
static size_t extent(const size_t *counts, const size_t *offsets, int size)
{
    size_t end = 0;

    for (int r = 0; r < size; r++) {
        size_t block_end;
        if (!counts[r])
            continue;
        if (__builtin_add_overflow(counts[r], offsets[r], &block_end))
            return SIZE_MAX;
        if (block_end > end)
            end = block_end;
    }
    return end;
}

loom_status loom_all_to_all_v(loom_comm *comm, const void *send, const size_t *send_counts, const size_t *send_offsets, void *recv,
                              const size_t *recv_counts, const size_t *recv_offsets, loom_dtype dtype, loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_ALL_TO_ALL_V, .dtype = dtype, .send = send, .recv = recv};
    size_t n = (size_t)comm->size, element = loom_dtype_bytes(dtype), sent = extent(send_counts, send_offsets, comm->size),
           received = extent(recv_counts, recv_offsets, comm->size);
    uint64_t travels = 0;

    TRY(check_types(comm, call.kind, sent, dtype, 1, stream));
    TRY(check_types(comm, call.kind, received, dtype, 1, stream));
    TRY(check_buffer(comm, call.kind, "send", send, sent));
    TRY(check_buffer(comm, call.kind, "recv", recv, received));
    TRY(check_overlap(comm, call.kind, send, sent * element, recv, received * element, NULL));
    call.counts = malloc(4 * n * sizeof *call.counts);
    if (!call.counts)
        return loom_fail(LOOM_E_MEMORY, "no memory for the counts of all_to_all_v on comm \"%s\"", comm->name);
    memcpy(call.counts, send_counts, n * sizeof *call.counts);
    memcpy(call.counts + n, send_offsets, n * sizeof *call.counts);
    memcpy(call.counts + 2 * n, recv_counts, n * sizeof *call.counts);
    memcpy(call.counts + 3 * n, recv_offsets, n * sizeof *call.counts);
    for (int r = 0; r < comm->size; r++)
        travels += r == comm->rank ? 0 : send_counts[r] * element;
    return enqueue(comm, &call, travels, stream);
}

static loom_status check_member(const loom_comm *comm, loom_call_kind kind, const char *role, int rank)
{
    if (rank >= 0 && rank < comm->size)
        return LOOM_OK;
    return loom_fail(LOOM_E_INVALID, "%s on comm \"%s\": %s %d is not one of its %d ranks", loom_call_kind_name(kind), comm->name, role,
                     rank, comm->size);
}

/* The law: every rank but one hands the buffer on, whatever the algorithm. Which one does not is fixed as the one before the root, as in a
 * ring. */
loom_status loom_broadcast(loom_comm *comm, void *buffer, size_t count, loom_dtype dtype, int root, loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_BROADCAST, .dtype = dtype, .peer = root, .send = buffer, .recv = buffer, .count = count};

    TRY(check_types(comm, call.kind, count, dtype, 1, stream));
    TRY(check_member(comm, call.kind, "root", root));
    TRY(check_buffer(comm, call.kind, "buffer", buffer, count));
    return enqueue(comm, &call, (comm->rank + 1) % comm->size == root ? 0 : count * loom_dtype_bytes(dtype), stream);
}

loom_status loom_barrier(loom_comm *comm, const char *name, loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_BARRIER, .dtype = LOOM_U8};

    TRY(check_types(comm, call.kind, 0, call.dtype, 1, stream));
    if (name && strlen(name) >= sizeof call.name)
        return loom_fail(LOOM_E_INVALID, "barrier \"%s\" on comm \"%s\": a name has at most %zu bytes", name, comm->name,
                         sizeof call.name - 1);
    snprintf(call.name, sizeof call.name, "%s", name ? name : "");
    return enqueue(comm, &call, 0, stream);
}

loom_status loom_send(loom_comm *comm, const void *buffer, size_t count, loom_dtype dtype, int peer, uint64_t tag, loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_SEND, .dtype = dtype, .peer = peer, .tag = tag, .send = buffer, .count = count};

    TRY(check_types(comm, call.kind, count, dtype, 1, stream));
    TRY(check_member(comm, call.kind, "peer", peer));
    TRY(check_buffer(comm, call.kind, "buffer", buffer, count));
    return enqueue(comm, &call, count * loom_dtype_bytes(dtype), stream);
}

loom_status loom_recv(loom_comm *comm, void *buffer, size_t count, loom_dtype dtype, int peer, uint64_t tag, loom_stream *stream)
{
    loom_call call = {.kind = LOOM_CALL_RECV, .dtype = dtype, .peer = peer, .tag = tag, .recv = buffer, .count = count};

    TRY(check_types(comm, call.kind, count, dtype, 1, stream));
    TRY(check_member(comm, call.kind, "peer", peer));
    TRY(check_buffer(comm, call.kind, "buffer", buffer, count));
    return enqueue(comm, &call, 0, stream);
}

loom_status loom_comm_connect(loom_comm *comm, const int *peers, int count)
{
    TRY(loom_graph_refuse(comm->world->device, "loom_comm_connect"));
    for (int i = 0; i < count; i++) {
        TRY(check_member(comm, LOOM_CALL_SEND, "peer", peers[i]));
        if (peers[i] == comm->rank)
            return loom_fail(LOOM_E_INVALID, "comm \"%s\": rank %d connects to itself", comm->name, comm->rank);
    }
    if (atomic_load(&comm->failed) < 0)
        return failure_of(comm);
    return comm->world->transport->connect ? comm->world->transport->connect(comm, peers, count) : LOOM_OK;
}

loom_status loom_comm_register(loom_comm *comm, void *memory, bool symmetric)
{
    if (atomic_load(&comm->failed) < 0)
        return failure_of(comm);
    return comm->world->transport->enlist ? comm->world->transport->enlist(comm, memory, symmetric) : LOOM_OK;
}

loom_status loom_comm_exchange(loom_comm *comm, const void *mine, void *all, size_t bytes)
{
    loom_call call = {.kind = LOOM_CALL_SPLIT, .dtype = LOOM_U8, .send = mine, .recv = all, .count = bytes};

    if (atomic_load(&comm->failed) < 0)
        return failure_of(comm);
    if (comm->world->transport->exchange) {
        loom_status status = comm->world->transport->exchange(comm, mine, all, bytes);
        comm->traffic.calls[call.kind]++;
        return status < 0 ? loom_comm_give_up(comm, status) : status;
    }
    TRY(enqueue(comm, &call, 0, comm->world->setup));
    return loom_stream_wait(comm->world->setup);
}

void loom_comm_traffic(const loom_comm *comm, loom_traffic *traffic)
{
    *traffic = comm->traffic;
}

void loom_comm_reset_traffic(loom_comm *comm)
{
    comm->traffic = (loom_traffic){0};
}

double loom_comm_exposed_s(const loom_comm *comm)
{
    return comm->exposed_s;
}

void loom_comm_set_observer(loom_comm *comm, loom_comm_observer_fn *observe, void *context)
{
    comm->world->observer = context;
    comm->world->observe = observe;
}
