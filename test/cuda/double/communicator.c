/* How ranks meet. Nothing here waits: as with the real library in non-blocking mode the caller polls ncclCommGetAsyncError() until it is done. */
#include "communicator.h"

#include "core/clock.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- segments ------------------------------------------------------------------------------------------------------------------- */

static int make_segment(void)
{
    int fd = (int)memfd_create("nccl double", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, (off_t)sizeof(double_segment)) != 0)
        abort();
    return fd;
}

static double_segment *map_segment(double_fd name)
{
    char path[64];
    void *segment;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    segment = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(double_segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (segment == MAP_FAILED) {
        perror("the double of NCCL cannot map a communicator");
        abort();
    }
    close(fd);
    return segment;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    double_fd name = {(int)getpid(), make_segment()}; /* closed when all ranks have come; an id that is not used stays open, as NCCL's listener does */

    memset(id, 0, sizeof *id);
    memcpy(id->internal, &name, sizeof name);
    return ncclSuccess;
}

/* --- meeting ---------------------------------------------------------------------------------------------------------------------- */

static ncclComm_t join(double_fd segment, int fd, int rank, int size)
{
    ncclComm_t comm = calloc(1, sizeof *comm);

    if (!comm || size > DOUBLE_RANKS_MAX)
        abort();
    comm->users = 1;
    comm->rank = rank;
    comm->size = size;
    comm->fd = fd;
    comm->segment = map_segment(segment);
    double_arena_get_name(&comm->segment->ranks[rank].arena);
    double_comm_list(comm);
    atomic_store(&comm->segment->ranks[rank].arrived, 1);
    return comm;
}

static void close_segment(ncclComm_t comm)
{
    if (comm->fd >= 0)
        close(comm->fd);
    comm->fd = -1;
}

static bool all_arrived(ncclComm_t comm)
{
    for (int r = 0; r < comm->size; r++)
        if (!atomic_load(&comm->segment->ranks[r].arrived))
            return false;
    for (int r = 0; r < comm->size && !comm->ready; r++)
        comm->bases[r] = double_arena_map(&comm->segment->ranks[r].arena);
    close_segment(comm);
    comm->ready = true;
    return true;
}

static bool is_blocking(const ncclConfig_t *config)
{
    return !config || config->blocking != 0;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    double_fd segment;

    if (is_blocking(config) || (config->maxCTAs < 1 && config->maxCTAs != INT_MIN) || rank < 0 || rank >= nranks) /* nobody of ours blocks in here */
        return ncclInvalidArgument;
    if (double_fails(__func__))
        return ncclSystemError;
    memcpy(&segment, id.internal, sizeof segment);
    double_salt((uint64_t)rank);
    *comm = join(segment, segment.pid == (int)getpid() ? segment.fd : -1, rank, nranks);
    return ncclInProgress;
}

/* --- splitting ---------------------------------------------------------------------------------------------------------------------- */

/* As in NCCL ncclSuccess says that it has begun: *newcomm is there when `comm` is no longer in progress. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    double_rank *mine = &comm->segment->ranks[comm->rank];
    ncclResult_t result = double_comm_enter(comm);

    if (result != ncclSuccess || is_blocking(config))
        return result != ncclSuccess ? result : ncclInvalidArgument;
    *newcomm = NULL;
    comm->split_into = newcomm;
    comm->split_fd = make_segment();
    mine->split[comm->splits % 2] = (double_split){color, key, {(int)getpid(), comm->split_fd}};
    atomic_store(&mine->split_posted, ++comm->splits);
    return ncclSuccess;
}

static const double_split *split_of(ncclComm_t comm, int rank)
{
    return &comm->segment->ranks[rank].split[(comm->splits - 1) % 2];
}

/* Before `rank` in the new communicator. */
static bool precedes(ncclComm_t comm, int other, int rank)
{
    int a = split_of(comm, other)->key, b = split_of(comm, rank)->key;

    return a < b || (a == b && other < rank);
}

static void end_split(ncclComm_t comm)
{
    int color = split_of(comm, comm->rank)->color, first = comm->rank, rank = 0, size = 0;

    for (int r = 0; r < comm->size; r++)
        if (split_of(comm, r)->color == color) {
            size++;
            rank += precedes(comm, r, comm->rank);
            first = precedes(comm, r, first) ? r : first;
        }
    if (color != NCCL_SPLIT_NOCOLOR)
        *comm->split_into = join(split_of(comm, first)->segment, first == comm->rank ? comm->split_fd : -1, rank, size);
    if (color == NCCL_SPLIT_NOCOLOR || first != comm->rank)
        close(comm->split_fd);
    comm->split_into = NULL;
}

/* Goes on with it, if there is one. */
static bool split_is_under_way(ncclComm_t comm)
{
    if (!comm->split_into)
        return false;
    for (int r = 0; r < comm->size; r++)
        if (atomic_load(&comm->segment->ranks[r].split_posted) < comm->splits)
            return true;
    end_split(comm);
    return false;
}

/* --- state ----------------------------------------------------------------------------------------------------------------------------- */

ncclResult_t double_comm_enter(ncclComm_t comm)
{
    if (!atomic_load(&comm->error) && (!comm->ready || comm->split_into || comm->window_into || comm->job))
        double_comm_fail(comm, ncclInvalidArgument, "a communicator is used while it is still in progress");
    return (ncclResult_t)atomic_load(&comm->error);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    bool under_way = false;

    double_launch(comm);
    if (!atomic_load(&comm->error))
        under_way = !all_arrived(comm) || split_is_under_way(comm) || double_window_is_under_way(comm);
    *error = under_way ? ncclInProgress : (ncclResult_t)atomic_load(&comm->error);
    return ncclSuccess;
}

void double_comm_drop(ncclComm_t comm)
{
    if (atomic_fetch_sub(&comm->users, 1) > 1)
        return;
    munmap(comm->segment, sizeof *comm->segment);
    close_segment(comm);
    free(comm);
}

/* Where the real library would wait for ever, or for what is not there yet. */
static const char *why_not_destroy(ncclComm_t comm)
{
    if (!comm->ready)
        return "it is still being made";
    if (comm->split_into)
        return "it is being split";
    if (comm->job)
        return "what was called last is not launched yet";
    for (int r = 0; r < comm->size; r++)
        if (atomic_load(&comm->users) > 1 && atomic_load(&comm->segment->ranks[r].aborted))
            return "it has calls under way, and a peer has aborted its end";
    return NULL;
}

/* The real library waits until they are gone: for ever, since who waits cannot destroy them. */
static void insist_on_no_graph(ncclComm_t comm)
{
    if (!double_is_captured(&comm->order))
        return;
    fprintf(stderr, "double of NCCL, rank %d of %d: a communicator is closed before the graphs that have calls of it\n", comm->rank, comm->size);
    abort();
}

/* --- destroying ------------------------------------------------------------------------------------------------------------------------ */

enum { CLOSING_MAX = 64 };

static _Thread_local struct {
    int count;
    ncclComm_t comms[CLOSING_MAX];
} closing;

static bool is_gone(const double_rank *rank)
{
    return atomic_load(&rank->closing) || atomic_load(&rank->aborted) || kill(rank->arena.pid, 0) != 0;
}

/* A thread of the real library's serves the other ranks of the node until they have come this far, too. */
static void wait_for_peers(ncclComm_t comm)
{
    static const double PATIENCE_S = 60;
    double begin_s = loom_now_s();

    for (int r = 0; r < comm->size; r++)
        while (!is_gone(&comm->segment->ranks[r])) {
            loom_sleep_s(0.0001);
            if (loom_now_s() - begin_s < PATIENCE_S)
                continue;
            fprintf(stderr, "double of NCCL, rank %d of %d: ncclCommDestroy waits for rank %d, which does not come to destroy its end\n", comm->rank, comm->size, r);
            abort();
        }
}

void double_end_grouped_closing(void)
{
    for (int i = 0; i < closing.count; i++)
        atomic_store(&closing.comms[i]->segment->ranks[closing.comms[i]->rank].closing, 1);
    for (int i = 0; i < closing.count; i++) {
        wait_for_peers(closing.comms[i]);
        double_comm_drop(closing.comms[i]);
    }
    closing.count = 0;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    const char *why = why_not_destroy(comm);

    insist_on_no_graph(comm);
    if (why) {
        fprintf(stderr, "double of NCCL, rank %d of %d: ncclCommDestroy would hang: %s; it has to be aborted\n", comm->rank, comm->size, why);
        abort();
    }
    double_comm_unlist(comm, false);
    if (closing.count == CLOSING_MAX)
        abort();
    closing.comms[closing.count++] = comm;
    if (!double_is_grouped())
        double_end_grouped_closing();
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    insist_on_no_graph(comm);
    atomic_store(&comm->aborted, 1);
    double_launch(comm); /* others may be in the same group */
    atomic_store(&comm->segment->ranks[comm->rank].aborted, 1);
    if (comm->split_into)
        close(comm->split_fd);
    double_comm_unlist(comm, true);
    double_comm_drop(comm);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const words[ncclNumResults] = {"no error",         "unhandled cuda error", "unhandled system error", "internal error",
                                                      "invalid argument", "invalid usage",        "remote process exited",  "in progress"};

    return (unsigned)result < ncclNumResults ? words[result] : "?";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? comm->message : "";
}
