/* Memory of NCCL's, and what communicators know of it. Refused, as NCCL refuses it: to give up what was never registered, windows of other memory, and windows
 * that are not alike. What the real library may not survive ends the process: memory that goes while it is registered, a communicator that goes before what it
 * knows, memory that is left at the end. */
#include "communicator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct double_registration {
    struct double_registration *next;
    const char *begin;
    size_t bytes;
    bool window, symmetric;
} registration;

static struct {
    pthread_mutex_t lock; /* of the list, and of all registrations */
    ncclComm_t comms;
    int blocks;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void give_up(const char *words)
{
    fprintf(stderr, "double of NCCL: %s\n", words);
    abort();
}

/* --- communicators ---------------------------------------------------------------------------------------------------------------- */

void double_comm_list(ncclComm_t comm)
{
    pthread_mutex_lock(&process.lock);
    comm->next = process.comms;
    process.comms = comm;
    pthread_mutex_unlock(&process.lock);
}

void double_comm_unlist(ncclComm_t comm, bool aborted)
{
    ncclComm_t *link = &process.comms;

    pthread_mutex_lock(&process.lock);
    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
    if (comm->registrations && !aborted)
        give_up("a communicator is destroyed that still knows registered memory");
    while (comm->registrations) {
        registration *r = comm->registrations;
        comm->registrations = r->next;
        free(r);
    }
    free(comm->window_made);
    pthread_mutex_unlock(&process.lock);
}

/* --- memory --------------------------------------------------------------------------------------------------------------------------- */

static void check_all_is_back(void)
{
    if (!process.blocks)
        return;
    fprintf(stderr, "double of NCCL: %d blocks of ncclMemAlloc are left\n", process.blocks);
    fflush(NULL);
    _exit(97);
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    static bool watched;

    if (!ptr || !size)
        return ncclInvalidArgument;
    if (double_fails(__func__) || !(*ptr = double_take_now(size)))
        return ncclUnhandledCudaError;
    pthread_mutex_lock(&process.lock);
    process.blocks++;
    if (!watched)
        atexit(check_all_is_back);
    watched = true;
    pthread_mutex_unlock(&process.lock);
    return ncclSuccess;
}

/* Waits for nothing: whatever is queued and still uses it finds NaN. */
ncclResult_t ncclMemFree(void *ptr)
{
    if (!double_is_nccl(ptr, 1))
        return ncclInvalidArgument;
    pthread_mutex_lock(&process.lock);
    for (ncclComm_t c = process.comms; c; c = c->next)
        for (const registration *r = c->registrations; r; r = r->next)
            if (r->begin == ptr)
                give_up("memory is freed that a communicator still knows");
    process.blocks--;
    pthread_mutex_unlock(&process.lock);
    double_give_now(ptr);
    return ncclSuccess;
}

/* --- registrations ---------------------------------------------------------------------------------------------------------------------- */

static registration *make(const void *buff, size_t size, bool window, bool symmetric)
{
    registration *r = malloc(sizeof *r);

    if (!r)
        abort();
    *r = (registration){.begin = buff, .bytes = size, .window = window, .symmetric = symmetric};
    return r;
}

static void add(ncclComm_t comm, registration *r)
{
    pthread_mutex_lock(&process.lock);
    r->next = comm->registrations;
    comm->registrations = r;
    pthread_mutex_unlock(&process.lock);
}

static ncclResult_t drop(ncclComm_t comm, const void *handle, bool window)
{
    registration **link = &comm->registrations, *r;

    pthread_mutex_lock(&process.lock);
    while (*link && (const void *)*link != handle)
        link = &(*link)->next;
    r = *link;
    if (r && r->window == window)
        *link = r->next;
    else
        r = NULL;
    pthread_mutex_unlock(&process.lock);
    free(r);
    return r ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    ncclResult_t result = double_comm_enter(comm);
    registration *r;

    if (result != ncclSuccess || !size || !double_is_device(buff, size))
        return result != ncclSuccess ? result : ncclInvalidArgument;
    if (double_fails(__func__))
        return ncclSystemError;
    r = make(buff, size, false, false);
    add(comm, r);
    *handle = r;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return drop(comm, handle, false);
}

/* Collective. As in NCCL ncclSuccess says that it has begun; the window is there when all ranks have asked for one and `comm` is no longer in progress. A refusal here
 * does nothing to the communicator, one that comes later is its end. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
    double_rank *mine = &comm->segment->ranks[comm->rank];
    ncclResult_t result = double_comm_enter(comm);

    if (result != ncclSuccess || !size || (uintptr_t)buff % 4096 || !double_is_nccl(buff, size))
        return result != ncclSuccess ? result : ncclInvalidArgument;
    if (double_fails(__func__))
        return ncclInvalidUsage;
    comm->window_into = win;
    comm->window_made = make(buff, size, true, winFlags == NCCL_WIN_COLL_SYMMETRIC);
    mine->window[comm->windows % 2] = (double_window_post){size, winFlags};
    atomic_store(&mine->windows_posted, ++comm->windows);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
    return drop(comm, win, true);
}

bool double_window_is_under_way(ncclComm_t comm)
{
    const double_window_post *mine, *other;

    if (!comm->window_into)
        return false;
    if (double_fails("window")) {
        double_comm_fail(comm, ncclUnhandledCudaError, "there is no address space for a window");
        return false;
    }
    for (int r = 0; r < comm->size; r++)
        if (atomic_load(&comm->segment->ranks[r].windows_posted) < comm->windows)
            return true;
    mine = &comm->segment->ranks[comm->rank].window[(comm->windows - 1) % 2];
    for (int r = 0; r < comm->size; r++) {
        other = &comm->segment->ranks[r].window[(comm->windows - 1) % 2];
        if (other->bytes != mine->bytes || other->flags != mine->flags) {
            double_comm_fail(comm, ncclInvalidUsage, "ranks register windows of different sizes or kinds");
            return false;
        }
    }
    *comm->window_into = (ncclWindow_t)(void *)comm->window_made;
    add(comm, comm->window_made);
    comm->window_into = NULL;
    comm->window_made = NULL;
    return false;
}

double_known double_find_registration(ncclComm_t comm, const void *pointer, size_t bytes)
{
    double_known known = {0};

    pthread_mutex_lock(&process.lock);
    for (const registration *r = comm->registrations; r; r = r->next) {
        const char *at = pointer;
        if (at >= r->begin && at + bytes <= r->begin + r->bytes)
            known = (double_known){1, r->symmetric, (uint64_t)(at - r->begin)};
    }
    pthread_mutex_unlock(&process.lock);
    return known;
}
