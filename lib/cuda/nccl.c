/* NCCL as a transport. Calls are enqueued on CUDA streams and run there; what is left to the host is making communicators and noticing that a
 * peer is gone.
 *
 * Every communicator is in NCCL's non-blocking mode: whatever would wait for a peer returns ncclInProgress, and settle() waits with a deadline.
 * NCCL keeps the calls of one communicator in one order, on whatever streams they are, so a receive that is posted early would hold up everything
 * behind it. Pairs that loom_comm_connect() names therefore get a communicator for each direction (a lane). Messages of a lane are taken in
 * the order in which they were sent: NCCL knows no tags. Nor does it compare what ranks call; a mismatch ends at the deadline, or in wrong data.
 *
 * A comm of one rank needs no NCCL: its calls are copies. */
#include "cuda/transport.h"

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/transport.h"
#include "core/clock.h"
#include "core/try.h"
#include "cuda/device.h"
#include "cuda/module.h"
#include "device/watch.h"

typedef struct nccl_lane {
    int peer;
    ncclComm_t out, in; /* of two ranks each: the sender is 0, the receiver 1 */
} nccl_lane;

typedef struct nccl_comm {
    ncclComm_t comm; /* NULL: one rank */
    nccl_lane *lanes;
    int n_lanes;
    int *scratch;     /* of barriers, on the device */
    cudaEvent_t done; /* after the last call */
    loom_cuda_account *account; /* of what streams wait for it */
    char last[LOOM_CALL_TEXT];
} nccl_comm;

typedef struct nccl_world {
    ncclUniqueId id; /* of everyone's communicator */
    loom_watch watch;
} nccl_world;

static nccl_comm *nccl_of(const loom_comm *comm)
{
    return comm->state;
}

/* --- results ------------------------------------------------------------------------------------------------------------------ */

static loom_status describe(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what)
{
    const char *more = ncclGetLastError(c);

    return loom_fail(result == ncclRemoteError ? LOOM_E_PEER : result == ncclInvalidArgument || result == ncclInvalidUsage ? LOOM_E_INVALID : LOOM_E_IO,
                     "comm \"%s\": NCCL: %s: %s%s%s", comm->name, what, ncclGetErrorString(result), more && *more ? ": " : "", more ? more : "");
}

/* Waits until what `result` began on `c` is no longer in progress. */
static loom_status settle(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what)
{
    static const struct timespec nap = {.tv_nsec = 100000};
    double begin_s = loom_now_s();

    while (result == ncclInProgress) {
        ncclResult_t polled = ncclCommGetAsyncError(c, &result);
        if (polled != ncclSuccess)
            result = polled;
        if (result != ncclInProgress)
            break;
        if (loom_now_s() - begin_s > comm->world->deadline_s)
            return loom_fail(LOOM_E_PEER, "comm \"%s\": NCCL: %s: not all of its %d ranks came within %g s", comm->name, what, comm->size,
                             comm->world->deadline_s);
        nanosleep(&nap, NULL);
    }
    return result == ncclSuccess ? LOOM_OK : describe(comm, c, result, what);
}

static loom_status enter(const loom_comm *comm)
{
    return loom_cuda_enter(comm->world->device);
}

static loom_status check_cuda(const loom_comm *comm, cudaError_t code, const char *what)
{
    return loom_cuda_check(comm->world->device, code, "%s for comm \"%s\"", what, comm->name);
}

/* --- watching over waits ------------------------------------------------------------------------------------------------------------ */

static loom_status check_async(loom_comm *comm)
{
    ncclResult_t result = ncclSuccess;

    if (atomic_load(&comm->failed) < 0 || !nccl_of(comm)->comm)
        return LOOM_OK;
    if (ncclCommGetAsyncError(nccl_of(comm)->comm, &result) != ncclSuccess || (result != ncclSuccess && result != ncclInProgress))
        return loom_comm_give_up(comm, describe(comm, nccl_of(comm)->comm, result, nccl_of(comm)->last));
    return LOOM_OK;
}

/* The deadline passed: a comm whose last call is not over is what holds the stream up, or one of those that do. */
static loom_status check_overdue(loom_comm *comm)
{
    nccl_comm *n = nccl_of(comm);
    loom_status status;

    if (atomic_load(&comm->failed) < 0 || !n->last[0] || cudaEventQuery(n->done) != cudaErrorNotReady)
        return LOOM_OK;
    status = loom_fail(LOOM_E_PEER, "%s, or a call before it on this comm, is not over after %g s: a rank has not called it, or is gone", n->last,
                       comm->world->deadline_s);
    loom_world_dump_once(comm->world);
    return loom_comm_give_up(comm, status);
}

/* The comms of a world as they are now; giving one up takes the lock of the list. */
static loom_comm **list_comms(loom_world *world, int *count)
{
    loom_comm **list = NULL;

    *count = 0;
    pthread_mutex_lock(&world->lock);
    for (loom_comm *comm = world->comms; comm; comm = comm->next)
        ++*count;
    list = malloc(((size_t)*count + 1) * sizeof *list);
    *count = 0;
    for (loom_comm *comm = world->comms; list && comm; comm = comm->next)
        if (comm->state)
            list[(*count)++] = comm;
    pthread_mutex_unlock(&world->lock);
    return list;
}

static loom_status watch_world(void *context, double waited_s)
{
    loom_world *world = context;
    int count;
    loom_comm **list = list_comms(world, &count);
    loom_status status = LOOM_OK;

    for (int i = 0; i < count && status >= 0; i++)
        status = check_async(list[i]);
    for (int i = 0; i < count && status >= 0 && waited_s > world->deadline_s; i++)
        status = check_overdue(list[i]);
    free(list);
    return status;
}

/* --- the world -------------------------------------------------------------------------------------------------------------------------- */

static loom_status present(loom_world *world, const char *hint, char card[LOOM_CARD_BYTES])
{
    nccl_world *w = calloc(1, sizeof *w);
    ncclResult_t result;

    (void)hint;
    if (!w)
        return loom_fail(LOOM_E_MEMORY, "no memory for NCCL's world");
    world->states[LOOM_NCCL] = w;
    w->watch = (loom_watch){.check = watch_world, .context = world};
    if (world->rank == 0 && (result = ncclGetUniqueId(&w->id)) != ncclSuccess)
        return loom_fail(LOOM_E_IO, "NCCL: ncclGetUniqueId: %s: %s", ncclGetErrorString(result), ncclGetLastError(NULL));
    _Static_assert(sizeof w->id <= LOOM_CARD_BYTES, "a card fits");
    memcpy(card, &w->id, sizeof w->id);
    return LOOM_OK;
}

static loom_status open_world(loom_world *world, const char (*cards)[LOOM_CARD_BYTES])
{
    nccl_world *w = world->states[LOOM_NCCL];

    memcpy(&w->id, cards[0], sizeof w->id);
    loom_watch_add(world->device, &w->watch);
    return LOOM_OK;
}

static void close_world(loom_world *world)
{
    nccl_world *w = world->states[LOOM_NCCL];

    if (!w)
        return;
    loom_watch_remove(world->device, &w->watch);
    free(w);
    world->states[LOOM_NCCL] = NULL;
}

/* --- comms -------------------------------------------------------------------------------------------------------------------------------- */

static loom_status prepare(loom_comm *comm, uint64_t *address)
{
    nccl_comm *n = calloc(1, sizeof *n);
    loom_status status;

    *address = 0; /* communicators are found by their id */
    if (!n)
        return loom_fail(LOOM_E_MEMORY, "no memory for comm \"%s\"", comm->name);
    comm->state = n;
    LOOM_TRY(enter(comm));
    LOOM_TRY(loom_cuda_account_open(comm->world->device, &comm->exposed_s, &n->account));
    return check_cuda(comm, cudaEventCreateWithFlags(&n->done, cudaEventDisableTiming), "cudaEventCreateWithFlags");

fail:
    return status;
}

/* Everyone's comm comes from the id; all others are split from one that is there. */
static loom_status join(loom_comm *comm, const uint64_t *addresses)
{
    nccl_world *w = comm->world->states[LOOM_NCCL];
    nccl_comm *n = nccl_of(comm);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result;
    loom_status status;

    (void)addresses;
    if (comm->size == 1 || n->comm)
        return LOOM_OK;
    config.blocking = 0;
    LOOM_TRY(enter(comm));
    result = ncclCommInitRankConfig(&n->comm, comm->size, w->id, comm->rank, &config);
    return settle(comm, n->comm, result, "making the communicator");

fail:
    return status;
}

/* Every rank of the parent calls, those without a group too. NCCL writes the new communicator when the parent is done with the split. */
static loom_status split(loom_comm *parent, loom_comm *comm, int first)
{
    ncclComm_t made = NULL, from = nccl_of(parent)->comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    bool alone = !comm || comm->size == 1;
    loom_status status;

    if (!from)
        return LOOM_OK; /* a parent of one rank has groups of one rank */
    config.blocking = 0;
    LOOM_TRY(enter(parent));
    LOOM_TRY(settle(parent, from, ncclCommSplit(from, alone ? NCCL_SPLIT_NOCOLOR : first, alone ? 0 : comm->rank, &made, &config), "ncclCommSplit"));
    if (alone)
        return LOOM_OK;
    nccl_of(comm)->comm = made;
    return settle(comm, made, ncclInProgress, "joining the new communicator");

fail:
    return status;
}

static void close_communicator(const loom_comm *comm, ncclComm_t *c)
{
    if (*c && atomic_load(&comm->failed) < 0)
        ncclCommAbort(*c);
    else if (*c)
        ncclCommDestroy(*c);
    *c = NULL;
}

static void close_communicators(loom_comm *comm)
{
    nccl_comm *n = nccl_of(comm);

    for (int i = 0; i < n->n_lanes; i++) {
        close_communicator(comm, &n->lanes[i].out);
        close_communicator(comm, &n->lanes[i].in);
    }
    close_communicator(comm, &n->comm);
}

static void leave(loom_comm *comm)
{
    nccl_comm *n = nccl_of(comm);

    if (!n || enter(comm) < 0)
        return;
    loom_cuda_account_close(n->account);
    close_communicators(comm);
    if (n->scratch)
        loom_cuda_backend.free(comm->world->device, n->scratch);
    if (n->done)
        cudaEventDestroy(n->done);
    free(n->lanes);
    free(n);
    comm->state = NULL;
}

/* What runs on the device ends with it, so that streams go on and the caller gets to hear the reason. */
static void give_up(loom_comm *comm, loom_status status)
{
    (void)status;
    if (enter(comm) >= 0)
        close_communicators(comm);
}

/* --- calls ------------------------------------------------------------------------------------------------------------------------------------ */

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
    return settle(call->comm, used, result, loom_call_describe(call, text));
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
    loom_status status = settle(comm, n->comm, result, "a group of messages");

    for (int i = 0; i < n->n_lanes && status >= 0 && result == ncclInProgress; i++) {
        status = settle(comm, n->lanes[i].out, result, "a group of messages");
        if (status >= 0)
            status = settle(comm, n->lanes[i].in, result, "a group of messages");
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
    if (nccl_of(comm)->scratch)
        return LOOM_OK;
    return loom_cuda_backend.alloc(comm->world->device, 64, (void **)&nccl_of(comm)->scratch);
}

static loom_status launch(loom_comm *comm, loom_call **first, loom_stream *stream)
{
    nccl_comm *n = nccl_of(comm);
    loom_status status;

    LOOM_TRY(enter(comm));
    if ((*first)->kind == LOOM_CALL_BARRIER)
        LOOM_TRY(take_scratch(comm));
    LOOM_TRY(copy_own_messages(*first, stream));
    if (comm->size == 1)
        return loom_call_is_p2p((*first)->kind) ? LOOM_OK : copy_alone(*first, stream);
    *first = (*first)->next ? sort_by_tag(*first) : *first;
    LOOM_TRY(start_measured(*first, stream));
    loom_call_describe(*first, n->last);
    return check_cuda(comm, cudaEventRecord(n->done, loom_cuda_stream_of(stream)), "cudaEventRecord");

fail:
    return status;
}

/* --- what ranks tell each other when comms are made --------------------------------------------------------------------------------------------- */

static loom_status gather_bytes(loom_comm *comm, char *on_device, const void *mine, void *all, size_t bytes)
{
    loom_stream *stream = comm->world->setup;
    ncclComm_t c = nccl_of(comm)->comm;
    char *own = on_device + bytes * (size_t)comm->rank;
    loom_status status;

    LOOM_TRY(loom_cuda_stream_copy(stream, own, mine, bytes));
    LOOM_TRY(settle(comm, c, ncclAllGather(own, on_device, bytes, ncclUint8, c, loom_cuda_stream_of(stream)), "exchanging what a new comm needs"));
    snprintf(nccl_of(comm)->last, LOOM_CALL_TEXT, "making a group of comm \"%s\"", comm->name);
    LOOM_TRY(check_cuda(comm, cudaEventRecord(nccl_of(comm)->done, loom_cuda_stream_of(stream)), "cudaEventRecord"));
    LOOM_TRY(loom_cuda_stream_copy(stream, all, on_device, bytes * (size_t)comm->size));
    return loom_cuda_stream_wait(stream);

fail:
    return status;
}

static loom_status exchange(loom_comm *comm, const void *mine, void *all, size_t bytes)
{
    loom_device *device = comm->world->device;
    void *on_device;
    loom_status status;

    if (comm->size == 1) {
        memcpy(all, mine, bytes);
        return LOOM_OK;
    }
    status = loom_cuda_backend.alloc(device, bytes * (size_t)comm->size, &on_device);
    if (status < 0)
        return status;
    status = gather_bytes(comm, on_device, mine, all, bytes);
    loom_cuda_backend.free(device, on_device);
    return status;
}

/* --- lanes ------------------------------------------------------------------------------------------------------------------------------------------ */

enum { LANES_MAX = 8 };

/* Of each pair the lower rank makes the ids: of its own direction, then of the other. */
typedef struct lane_card {
    int32_t count, peer[LANES_MAX];
    ncclUniqueId id[LANES_MAX][2];
} lane_card;

static loom_status fill_lane_card(const loom_comm *comm, const int *peers, int count, lane_card *card)
{
    card->count = count;
    for (int i = 0; i < count; i++) {
        card->peer[i] = peers[i];
        for (int direction = 0; direction < 2 && comm->rank < peers[i]; direction++) {
            ncclResult_t result = ncclGetUniqueId(&card->id[i][direction]);
            if (result != ncclSuccess)
                return describe(comm, NULL, result, "ncclGetUniqueId");
        }
    }
    return LOOM_OK;
}

/* Where `rank` stands in the list of that card, or -1. */
static int find_peer(const lane_card *card, int rank)
{
    for (int i = 0; i < card->count; i++)
        if (card->peer[i] == rank)
            return i;
    return -1;
}

static loom_status begin_lane(const loom_comm *comm, const lane_card *cards, nccl_lane *lane)
{
    bool lower = comm->rank < lane->peer;
    const lane_card *maker = &cards[lower ? comm->rank : lane->peer];
    int at = find_peer(maker, lower ? lane->peer : comm->rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result;

    if (find_peer(&cards[lane->peer], comm->rank) < 0)
        return loom_fail(LOOM_E_MISMATCH, "comm \"%s\": rank %d connects to rank %d, which does not connect to it", comm->name, comm->rank, lane->peer);
    config.blocking = 0;
    result = ncclCommInitRankConfig(&lane->out, 2, maker->id[at][lower ? 0 : 1], 0, &config);
    if (result == ncclSuccess || result == ncclInProgress)
        result = ncclCommInitRankConfig(&lane->in, 2, maker->id[at][lower ? 1 : 0], 1, &config);
    return result == ncclSuccess || result == ncclInProgress ? LOOM_OK : describe(comm, NULL, result, "making a lane");
}

/* All are begun before the first is waited for: pairs would wait for one another in a ring else. */
static loom_status open_lanes(loom_comm *comm, const lane_card *cards)
{
    nccl_comm *n = nccl_of(comm);
    loom_status status;

    for (int i = 0; i < n->n_lanes; i++)
        LOOM_TRY(begin_lane(comm, cards, &n->lanes[i]));
    for (int i = 0; i < n->n_lanes; i++) {
        LOOM_TRY(settle(comm, n->lanes[i].out, ncclInProgress, "opening a lane to a neighbour"));
        LOOM_TRY(settle(comm, n->lanes[i].in, ncclInProgress, "opening a lane from a neighbour"));
    }
    return LOOM_OK;

fail:
    return status;
}

static loom_status connect_peers(loom_comm *comm, const int *peers, int count)
{
    nccl_comm *n = nccl_of(comm);
    lane_card mine = {0}, *cards;
    loom_status status;

    if (comm->size == 1 || n->lanes)
        return LOOM_OK;
    if (count > LANES_MAX)
        return loom_fail(LOOM_E_UNSUPPORTED, "comm \"%s\": %d peers to connect; at most %d have lanes of their own", comm->name, count, LANES_MAX);
    cards = calloc((size_t)comm->size, sizeof *cards);
    n->lanes = calloc((size_t)count + 1, sizeof *n->lanes);
    if (!cards || !n->lanes) {
        status = loom_fail(LOOM_E_MEMORY, "comm \"%s\": no memory for lanes", comm->name);
        goto fail;
    }
    n->n_lanes = count;
    for (int i = 0; i < count; i++)
        n->lanes[i].peer = peers[i];
    LOOM_TRY(enter(comm));
    LOOM_TRY(fill_lane_card(comm, peers, count, &mine));
    LOOM_TRY(exchange(comm, &mine, cards, sizeof mine));
    status = open_lanes(comm, cards);

fail:
    free(cards);
    return status;
}

const loom_transport loom_transport_nccl = {
    .name = "nccl",
    .present = present,
    .open = open_world,
    .close = close_world,
    .prepare = prepare,
    .join = join,
    .leave = leave,
    .give_up = give_up,
    .launch = launch,
    .split = split,
    .exchange = exchange,
    .connect = connect_peers,
};
