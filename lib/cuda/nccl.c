/* NCCL as a transport. Calls are enqueued on CUDA streams and run there; what is left to the host is making communicators and noticing that a
 * peer is gone.
 *
 * Every communicator is in NCCL's non-blocking mode: whatever would wait for a peer returns ncclInProgress, and settle() waits with a deadline.
 * NCCL keeps the calls of one communicator in one order, on whatever streams they are, so a receive that is posted early would hold up everything
 * behind it. Pairs that loom_comm_connect() names therefore get a communicator for each direction (a lane). Messages of a lane are taken in
 * the order in which they were sent: NCCL knows no tags. Nor does it compare what ranks call; a mismatch ends at the deadline, or in wrong data.
 *
 * A comm of one rank needs no NCCL: its calls are copies. */
#include "cuda/communicator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/try.h"
#include "cuda/module.h"
#include "cuda/transport.h"

/* --- results ------------------------------------------------------------------------------------------------------------------ */

loom_status loom_nccl_describe(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what)
{
    const char *more = ncclGetLastError(c);

    return loom_fail(result == ncclRemoteError ? LOOM_E_PEER : result == ncclInvalidArgument || result == ncclInvalidUsage ? LOOM_E_INVALID : LOOM_E_IO,
                     "comm \"%s\": NCCL: %s: %s%s%s", comm->name, what, ncclGetErrorString(result), more && *more ? ": " : "", more ? more : "");
}

/* Every call that is enqueued goes through here, since a thread of NCCL's launches it, within microseconds; what waits for peers takes longer. */
static loom_status await(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what)
{
    double begin_s = loom_now_s();

    for (int rounds = 0; result == ncclInProgress; rounds++) {
        ncclResult_t polled = ncclCommGetAsyncError(c, &result);
        if (polled != ncclSuccess)
            result = polled;
        if (result != ncclInProgress)
            break;
        if (loom_now_s() - begin_s > comm->world->deadline_s)
            return loom_fail(LOOM_E_PEER, "comm \"%s\": NCCL: %s: not all of its %d ranks came within %g s", comm->name, what, comm->size,
                             comm->world->deadline_s);
        loom_cuda_nap(rounds);
    }
    return result == ncclSuccess ? LOOM_OK : loom_nccl_describe(comm, c, result, what);
}

loom_status loom_nccl_settle(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what)
{
    loom_status status = await(comm, c, result, what);

    if (status < 0)
        atomic_store(&comm->world->broken, 1);
    return status;
}

loom_status loom_nccl_settle_begun(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what)
{
    return loom_nccl_settle(comm, c, result == ncclSuccess ? ncclInProgress : result, what);
}

loom_status loom_nccl_enter(const loom_comm *comm)
{
    return loom_cuda_enter(comm->world->device);
}

loom_status loom_nccl_check_cuda(const loom_comm *comm, cudaError_t code, const char *what)
{
    return loom_cuda_check(comm->world->device, code, "%s for comm \"%s\"", what, comm->name);
}

/* --- watching over waits ------------------------------------------------------------------------------------------------------------ */

static loom_status check_communicator(loom_comm *comm, ncclComm_t c)
{
    ncclResult_t result = ncclSuccess;

    if (!c)
        return LOOM_OK;
    if (ncclCommGetAsyncError(c, &result) != ncclSuccess || (result != ncclSuccess && result != ncclInProgress))
        return loom_comm_give_up(comm, loom_nccl_describe(comm, c, result, nccl_of(comm)->last));
    return LOOM_OK;
}

static loom_status check_async(loom_comm *comm)
{
    const nccl_comm *n = nccl_of(comm);
    loom_status status;

    if (atomic_load(&comm->failed) < 0)
        return LOOM_OK;
    LOOM_TRY(check_communicator(comm, n->comm));
    for (int i = 0; i < n->n_lanes; i++) {
        LOOM_TRY(check_communicator(comm, n->lanes[i].out));
        LOOM_TRY(check_communicator(comm, n->lanes[i].in));
    }
    return LOOM_OK;

fail:
    return status;
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

    (void)hint;
    (void)card;
    if (!w)
        return loom_fail(LOOM_E_MEMORY, "no memory for NCCL's world");
    world->states[LOOM_NCCL] = w;
    w->watch = (loom_watch){.check = watch_world, .context = world};
    return LOOM_OK;
}

static loom_status open_world(loom_world *world, const char (*cards)[LOOM_CARD_BYTES])
{
    nccl_world *w = world->states[LOOM_NCCL];

    (void)cards;
    loom_watch_add(world->device, &w->watch);
    return LOOM_OK;
}

/* The id of everyone's communicator. NCCL listens for it from here on, and ends that only when all ranks have come: so not before they are here. */
static loom_status invite(loom_world *world, char invitation[LOOM_INVITATION_BYTES])
{
    ncclUniqueId id;
    ncclResult_t result = ncclGetUniqueId(&id);

    (void)world;
    _Static_assert(sizeof id <= LOOM_INVITATION_BYTES, "an invitation fits");
    if (result != ncclSuccess)
        return loom_fail(LOOM_E_IO, "NCCL: ncclGetUniqueId: %s: %s", ncclGetErrorString(result), ncclGetLastError(NULL));
    memcpy(invitation, &id, sizeof id);
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
    LOOM_TRY(loom_nccl_enter(comm));
    LOOM_TRY(loom_cuda_account_open(comm->world->device, &comm->exposed_s, &n->account));
    return loom_nccl_check_cuda(comm, cudaEventCreateWithFlags(&n->done, cudaEventDisableTiming), "cudaEventCreateWithFlags");

fail:
    return status;
}

/* Everyone's comm comes from the id; all others are split from one that is there. */
static loom_status join(loom_comm *comm, const uint64_t *addresses)
{
    nccl_comm *n = nccl_of(comm);
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result;
    loom_status status;

    (void)addresses;
    if (comm->size == 1 || n->comm)
        return LOOM_OK;
    config.blocking = 0;
    memcpy(&id, comm->world->invitation, sizeof id);
    LOOM_TRY(loom_nccl_enter(comm));
    result = ncclCommInitRankConfig(&n->comm, comm->size, id, comm->rank, &config);
    return loom_nccl_settle(comm, n->comm, result, "making the communicator");

fail:
    return status;
}

/* Every rank of the parent calls, those without a group too. NCCL writes the new communicator when the parent is done with the split. */
static loom_status split(loom_comm *parent, loom_comm *comm, int first)
{
    ncclComm_t from = nccl_of(parent)->comm, *made = &nccl_of(parent)->child;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    bool alone = !comm || comm->size == 1;
    ncclResult_t result;
    loom_status status;

    if (!from)
        return LOOM_OK; /* a parent of one rank has groups of one rank */
    config.blocking = 0;
    LOOM_TRY(loom_nccl_enter(parent));
    result = ncclCommSplit(from, alone ? NCCL_SPLIT_NOCOLOR : first, alone ? 0 : comm->rank, made, &config);
    LOOM_TRY(loom_nccl_settle_begun(parent, from, result, "ncclCommSplit"));
    if (alone)
        return LOOM_OK;
    nccl_of(comm)->comm = *made;
    return loom_nccl_settle(comm, *made, ncclInProgress, "joining the new communicator");

fail:
    return status;
}

/* Calls that nobody has waited for. If they do not end within the deadline, peers are gone. */
static void finish_calls(const loom_comm *comm)
{
    const nccl_comm *n = nccl_of(comm);
    double begin_s = loom_now_s();

    while (n->last[0] && !atomic_load(&comm->world->broken) && cudaEventQuery(n->done) == cudaErrorNotReady) {
        loom_sleep_s(0.0001);
        if (loom_now_s() - begin_s > comm->world->deadline_s)
            atomic_store(&comm->world->broken, 1);
    }
}

/* NCCL destroys a communicator when its calls are over; in a broken world that may be never. */
static void close_communicator(const loom_comm *comm, ncclComm_t *c)
{
    bool broken = atomic_load(&comm->world->broken);

    if (!*c)
        return;
    loom_nccl_forget(comm, *c, broken);
    if (broken)
        ncclCommAbort(*c);
    else
        ncclCommDestroy(*c);
    *c = NULL;
}

/* All at once: to destroy a communicator waits until its ranks on this node destroy theirs, too, so that two neighbours that each began with the lane to the other would
 * wait for ever. NCCL before 2.22 does one after the other in a group, too; so all ranks have them in one order: by the lower rank of the pair, then the higher
 * (as the lanes are), then the lower rank's direction before the other. */
static void close_communicators(loom_comm *comm)
{
    nccl_comm *n = nccl_of(comm);

    ncclGroupStart();
    for (int i = 0; i < n->n_lanes; i++) {
        nccl_lane *lane = &n->lanes[i];
        bool lower = comm->rank < lane->peer;
        close_communicator(comm, lower ? &lane->out : &lane->in);
        close_communicator(comm, lower ? &lane->in : &lane->out);
    }
    close_communicator(comm, &n->comm);
    ncclGroupEnd();
}

static void leave(loom_comm *comm)
{
    nccl_comm *n = nccl_of(comm);

    if (!n || loom_nccl_enter(comm) < 0)
        return;
    loom_cuda_account_close(n->account);
    finish_calls(comm);
    close_communicators(comm);
    if (n->scratch)
        loom_cuda_backend.free(comm->world->device, n->scratch);
    if (n->done)
        cudaEventDestroy(n->done);
    free(n->lanes);
    free(n);
    comm->state = NULL;
}

/* What runs on the device ends with it, so that streams go on and the caller gets to hear the reason. Comms that share a graph fail together, and are told
 * together to abort: each waits for the graph to end, which holds the others' calls too. Under the world's lock. */
static void give_up(loom_comm *comm, loom_status status)
{
    (void)status;
    if (loom_nccl_enter(comm) < 0)
        return;
    ncclGroupStart();
    for (loom_comm *c = comm->world->comms; c; c = c->next)
        if (c->state && atomic_load(&c->failed) < 0)
            close_communicators(c);
    ncclGroupEnd();
}

/* --- what ranks tell each other when comms are made --------------------------------------------------------------------------------------------- */

static loom_status gather_bytes(loom_comm *comm, char *on_device, const void *mine, void *all, size_t bytes)
{
    loom_stream *stream = comm->world->setup;
    ncclComm_t c = nccl_of(comm)->comm;
    char *own = on_device + bytes * (size_t)comm->rank;
    loom_status status;

    LOOM_TRY(loom_cuda_stream_copy(stream, own, mine, bytes));
    LOOM_TRY(loom_nccl_settle(comm, c, ncclAllGather(own, on_device, bytes, ncclUint8, c, loom_cuda_stream_of(stream)), "exchanging what a new comm needs"));
    snprintf(nccl_of(comm)->last, LOOM_CALL_TEXT, "making a group of comm \"%s\"", comm->name);
    LOOM_TRY(loom_nccl_check_cuda(comm, cudaEventRecord(nccl_of(comm)->done, loom_cuda_stream_of(stream)), "cudaEventRecord"));
    LOOM_TRY(loom_cuda_stream_copy(stream, all, on_device, bytes * (size_t)comm->size));
    return loom_cuda_stream_wait(stream);

fail:
    return status;
}

loom_status loom_nccl_exchange(loom_comm *comm, const void *mine, void *all, size_t bytes)
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

const loom_transport loom_transport_nccl = {
    .name = "nccl",
    .present = present,
    .open = open_world,
    .close = close_world,
    .invite = invite,
    .prepare = prepare,
    .join = join,
    .leave = leave,
    .give_up = give_up,
    .launch = loom_nccl_launch,
    .launched = loom_nccl_watch_call,
    .split = split,
    .exchange = loom_nccl_exchange,
    .connect = loom_nccl_connect,
    .enlist = loom_nccl_enlist,
};
