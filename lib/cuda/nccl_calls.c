/* Calls of a comm, enqueued on CUDA streams. */
#include "cuda/communicator.h"

#include <stdio.h>

#include "core/try.h"
#include "cuda/module.h"

/* --- what NCCL is asked for ---------------------------------------------------------------------------------------------------------------- */

/* 16-bit integers have no type of NCCL's; where they are only moved they are pairs of bytes. */
static loom_status type_of(const loom_call *call, ncclDataType_t *type, size_t *elements_of_one)
{
    static const struct {
        int type, elements;
    } types[LOOM_DTYPE_COUNT] = {
        [LOOM_F32] = {ncclFloat32, 1},       [LOOM_F64] = {ncclFloat64, 1},       [LOOM_BF16] = {ncclBfloat16, 1}, [LOOM_F16] = {ncclFloat16, 1},
        [LOOM_F8E4M3] = {ncclFloat8e4m3, 1}, [LOOM_F8E5M2] = {ncclFloat8e5m2, 1}, [LOOM_I8] = {ncclInt8, 1},       [LOOM_U8] = {ncclUint8, 1},
        [LOOM_U16] = {ncclUint8, 2},         [LOOM_I32] = {ncclInt32, 1},         [LOOM_I64] = {ncclInt64, 1},
    };
    bool reduces = call->kind == LOOM_CALL_ALL_REDUCE || call->kind == LOOM_CALL_REDUCE_SCATTER;

    if (reduces && types[call->dtype].elements != 1)
        return loom_fail(LOOM_E_UNSUPPORTED, "%s of %s: NCCL has no such type", loom_call_kind_name(call->kind), loom_dtype_name(call->dtype));
    *type = (ncclDataType_t)types[call->dtype].type;
    *elements_of_one = (size_t)types[call->dtype].elements;
    return LOOM_OK;
}

static ncclRedOp_t op_of(loom_reduce_op op)
{
    static const ncclRedOp_t ops[LOOM_REDUCE_OPS] = {[LOOM_SUM] = ncclSum, [LOOM_AVG] = ncclAvg, [LOOM_MAX] = ncclMax, [LOOM_MIN] = ncclMin};

    return ops[op];
}

/* Block `rank` of an all_to_all, whether its blocks are equal or listed. */
static size_t block_count(const loom_call *call, bool received, int rank)
{
    return call->counts ? call->counts[(received ? 2 : 0) * call->comm->size + rank] : call->count;
}

static size_t block_offset(const loom_call *call, bool received, int rank)
{
    return call->counts ? call->counts[(received ? 3 : 1) * call->comm->size + rank] : call->count * (size_t)rank;
}

static ncclResult_t exchange_blocks(const loom_call *call, ncclDataType_t type, size_t scale, ncclComm_t c, cudaStream_t stream)
{
    size_t element = loom_dtype_bytes(call->dtype);
    ncclResult_t result = ncclGroupStart(), ended;

    for (int r = 0; r < call->comm->size && result == ncclSuccess; r++) {
        const char *from = (const char *)call->send + block_offset(call, false, r) * element;
        char *to = (char *)call->recv + block_offset(call, true, r) * element;
        size_t sent = block_count(call, false, r) * scale, received = block_count(call, true, r) * scale;

        if (sent)
            result = ncclSend(from, sent, type, r, c, stream);
        if (received && result == ncclSuccess)
            result = ncclRecv(to, received, type, r, c, stream);
    }
    ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static nccl_lane *find_lane(const nccl_comm *n, int peer)
{
    for (int i = 0; i < n->n_lanes; i++)
        if (n->lanes[i].peer == peer)
            return &n->lanes[i];
    return NULL;
}

static ncclResult_t start_message(const loom_call *call, ncclDataType_t type, size_t scale, cudaStream_t stream, ncclComm_t *used)
{
    const nccl_lane *lane = find_lane(nccl_of(call->comm), call->peer);
    bool sends = call->kind == LOOM_CALL_SEND;

    *used = !lane ? nccl_of(call->comm)->comm : sends ? lane->out : lane->in;
    if (sends)
        return ncclSend(call->send, call->count * scale, type, lane ? 1 : call->peer, *used, stream);
    return ncclRecv(call->recv, call->count * scale, type, lane ? 0 : call->peer, *used, stream);
}

static ncclResult_t start_collective(const loom_call *call, ncclDataType_t type, size_t scale, ncclComm_t c, cudaStream_t stream)
{
    size_t count = call->count * scale;
    int *scratch = nccl_of(call->comm)->scratch;

    switch (call->kind) {
    case LOOM_CALL_ALL_REDUCE:
        return ncclAllReduce(call->send, call->recv, count, type, op_of(call->op), c, stream);
    case LOOM_CALL_REDUCE_SCATTER:
        return ncclReduceScatter(call->send, call->recv, count, type, op_of(call->op), c, stream);
    case LOOM_CALL_ALL_GATHER:
        return ncclAllGather(call->send, call->recv, count, type, c, stream);
    case LOOM_CALL_BROADCAST:
        return ncclBroadcast(call->send, call->recv, count, type, call->peer, c, stream);
    case LOOM_CALL_BARRIER:
        return ncclAllReduce(scratch, scratch, 1, ncclInt32, ncclSum, c, stream);
    default:
        return exchange_blocks(call, type, scale, c, stream);
    }
}

static bool is_empty(const loom_call *call)
{
    return call->count == 0 && call->kind != LOOM_CALL_BARRIER && call->kind != LOOM_CALL_ALL_TO_ALL_V;
}

static loom_status start(const loom_call *call, cudaStream_t stream)
{
    nccl_comm *n = nccl_of(call->comm);
    ncclComm_t used = n->comm;
    ncclDataType_t type = ncclUint8;
    ncclResult_t result;
    size_t scale = 1;
    char text[LOOM_CALL_TEXT];
    loom_status status = type_of(call, &type, &scale);

    if (status < 0 || is_empty(call))
        return status;
    result = loom_call_is_p2p(call->kind) ? start_message(call, type, scale, stream, &used) : start_collective(call, type, scale, used, stream);
    return loom_nccl_settle(call->comm, used, result, loom_call_describe(call, text));
}

/* --- calls of one rank with itself ------------------------------------------------------------------------------------------------------------- */

static loom_status copy(const loom_call *call, void *to, const void *from, size_t elements, loom_stream *stream)
{
    if (to == from)
        return LOOM_OK;
    return loom_cuda_stream_copy(stream, to, from, elements * loom_dtype_bytes(call->dtype));
}

static loom_status copy_alone(const loom_call *call, loom_stream *stream)
{
    size_t element = loom_dtype_bytes(call->dtype);

    if (call->kind == LOOM_CALL_BARRIER || call->kind == LOOM_CALL_BROADCAST)
        return LOOM_OK;
    if (call->kind == LOOM_CALL_ALL_TO_ALL_V)
        return copy(call, (char *)call->recv + block_offset(call, true, 0) * element, (const char *)call->send + block_offset(call, false, 0) * element,
                    block_count(call, false, 0), stream);
    return copy(call, call->recv, call->send, call->count, stream);
}

/* Messages to oneself are copies, if their two ends are in one group; NCCL itself takes them no other way. A receive that has its send points to it. */
static loom_status copy_own_messages(loom_call *first, loom_stream *stream)
{
    char text[LOOM_CALL_TEXT];
    loom_status status;

    for (loom_call *send = first; send; send = send->next) {
        loom_call *recv;
        if (send->kind != LOOM_CALL_SEND || send->peer != send->comm->rank)
            continue;
        for (recv = first; recv; recv = recv->next)
            if (recv->kind == LOOM_CALL_RECV && recv->peer == send->peer && recv->tag == send->tag && !recv->send)
                break;
        if (!recv || recv->count != send->count || recv->dtype != send->dtype)
            return loom_fail(LOOM_E_INVALID, "%s: on GPUs a message to oneself needs its receive, of the same count and type, in the same group",
                             loom_call_describe(send, text));
        recv->send = send->send;
        if ((status = copy(send, recv->recv, send->send, send->count, stream)) < 0)
            return status;
    }
    return LOOM_OK;
}

/* --- launching ------------------------------------------------------------------------------------------------------------------------------------ */

static bool is_own_message(const loom_call *call)
{
    return loom_call_is_p2p(call->kind) && call->peer == call->comm->rank;
}

/* Within a group messages to one peer go by rising tag on both sides, so the order in which the two ends named them does not matter. */
static loom_call *sort_by_tag(loom_call *first)
{
    loom_call *sorted = NULL;

    while (first) {
        loom_call *call = first, **link = &sorted;
        first = first->next;
        while (*link && (*link)->tag <= call->tag)
            link = &(*link)->next;
        call->next = *link;
        *link = call;
    }
    return sorted;
}

/* A group may have begun something on any of them. */
static loom_status settle_all(const loom_comm *comm, ncclResult_t result)
{
    const nccl_comm *n = nccl_of(comm);
    loom_status status = loom_nccl_settle(comm, n->comm, result, "a group of messages");

    for (int i = 0; i < n->n_lanes && status >= 0 && result == ncclInProgress; i++) {
        status = loom_nccl_settle(comm, n->lanes[i].out, result, "a group of messages");
        if (status >= 0)
            status = loom_nccl_settle(comm, n->lanes[i].in, result, "a group of messages");
    }
    return status;
}

static loom_status start_all(loom_call *first, loom_stream *stream)
{
    bool grouped = first->next != NULL;
    loom_status status = LOOM_OK;
    ncclResult_t ended = ncclSuccess;

    if (grouped)
        ncclGroupStart();
    for (const loom_call *call = first; call && status >= 0; call = call->next)
        if (!is_own_message(call))
            status = start(call, loom_cuda_stream_of(stream));
    if (grouped)
        ended = ncclGroupEnd();
    return status < 0 ? status : settle_all(first->comm, ended);
}

/* What follows on a computing stream waits for the calls; on an axis' own stream whoever waits for that one does. */
static loom_status start_measured(loom_call *first, loom_stream *stream)
{
    loom_cuda_account *account = nccl_of(first->comm)->account;
    loom_cuda_stream *s = (loom_cuda_stream *)stream;
    loom_cuda_wait *wait;
    loom_status status;

    LOOM_TRY(loom_cuda_wait_begin(stream, account, &wait));
    LOOM_TRY(start_all(first, stream));
    if (!s->computes)
        s->account = account;
    return loom_cuda_wait_end(stream, wait);

fail:
    return status;
}

static loom_status take_scratch(loom_comm *comm)
{
    loom_status status = LOOM_OK;

    if (nccl_of(comm)->scratch || (status = loom_graph_refuse(comm->world->device, "a comm's first barrier")) < 0)
        return status;
    return loom_cuda_backend.alloc(comm->world->device, 64, (void **)&nccl_of(comm)->scratch);
}

loom_status loom_nccl_watch_call(loom_comm *comm, const char *text, loom_stream *stream)
{
    nccl_comm *n = nccl_of(comm);

    if (comm->size == 1)
        return LOOM_OK;
    snprintf(n->last, sizeof n->last, "%s", text);
    return loom_nccl_check_cuda(comm, cudaEventRecord(n->done, loom_cuda_stream_of(stream)), "cudaEventRecord");
}

loom_status loom_nccl_launch(loom_comm *comm, loom_call **first, loom_stream *stream)
{
    char text[LOOM_CALL_TEXT];
    loom_status status;

    LOOM_TRY(loom_nccl_enter(comm));
    if ((*first)->kind == LOOM_CALL_BARRIER)
        LOOM_TRY(take_scratch(comm));
    LOOM_TRY(copy_own_messages(*first, stream));
    if (comm->size == 1)
        return loom_call_is_p2p((*first)->kind) ? LOOM_OK : copy_alone(*first, stream);
    *first = (*first)->next ? sort_by_tag(*first) : *first;
    LOOM_TRY(start_measured(*first, stream));
    if (comm->world->device->capture) /* nothing runs yet: launches of the graph are watched */
        return LOOM_OK;
    return loom_nccl_watch_call(comm, loom_call_describe(*first, text), stream);

fail:
    return status;
}
