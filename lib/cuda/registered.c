/* Memory of NCCL's, and its registrations.
 *
 * NCCL asks that of the ranks of a call either all give memory that their communicators know, or none does. So ranks first tell each other whether they
 * can, and afterwards whether they could; if one could not, all take it back.
 *
 * A block has a list of the communicators that know it. It leaves the list when the communicator is closed, or when the block goes; whichever comes first.
 * ncclMemFree() waits for no stream, so a block that was freed stays until an event behind all queued work has passed. */
#include "cuda/registered.h"

#include "cuda/communicator.h"

#include <stdlib.h>

#include "core/log.h"
#include "core/try.h"

/* What a library older than the headers lacks is NULL. */
#if NCCL_VERSION_CODE >= 21903
#define HAS_MEMORY 1
#pragma weak ncclMemAlloc
#pragma weak ncclMemFree
#pragma weak ncclCommRegister
#pragma weak ncclCommDeregister
#else
#define HAS_MEMORY 0
#endif
#if NCCL_VERSION_CODE >= 22703
#define HAS_WINDOWS 1
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister
#else
#define HAS_WINDOWS 0
typedef void *ncclWindow_t;
#endif

typedef struct registration {
    struct registration *next;
    ncclComm_t comm;
    void *handle; /* NULL: it is a window */
    ncclWindow_t window;
} registration;

typedef struct loom_cuda_block {
    struct loom_cuda_block *next;
    void *memory;
    size_t bytes;
    cudaEvent_t gone; /* behind its last use; NULL: it was not freed */
    registration *registrations;
} block;

/* --- the calls, where they exist ------------------------------------------------------------------------------------------------ */

static bool has_memory(void)
{
#if HAS_MEMORY
    return ncclMemAlloc && ncclMemFree && ncclCommRegister && ncclCommDeregister;
#else
    return false;
#endif
}

static bool has_windows(void)
{
#if HAS_WINDOWS
    return ncclCommWindowRegister && ncclCommWindowDeregister;
#else
    return false;
#endif
}

static ncclResult_t take_memory(void **memory, size_t bytes)
{
#if HAS_MEMORY
    return ncclMemAlloc(memory, bytes);
#else
    (void)memory, (void)bytes;
    return ncclInvalidUsage;
#endif
}

static void give_memory(void *memory)
{
#if HAS_MEMORY
    ncclMemFree(memory);
#else
    (void)memory;
#endif
}

static ncclResult_t register_buffer(const block *b, registration *r)
{
#if HAS_MEMORY
    return ncclCommRegister(r->comm, b->memory, b->bytes, &r->handle);
#else
    (void)b, (void)r;
    return ncclInvalidUsage;
#endif
}

static ncclResult_t register_window(const block *b, registration *r, bool symmetric)
{
#if HAS_WINDOWS
    return ncclCommWindowRegister(r->comm, b->memory, b->bytes, &r->window, symmetric ? NCCL_WIN_COLL_SYMMETRIC : NCCL_WIN_DEFAULT);
#else
    (void)b, (void)r, (void)symmetric;
    return ncclInvalidUsage;
#endif
}

static void deregister(const registration *r)
{
#if HAS_MEMORY
    if (r->handle)
        ncclCommDeregister(r->comm, r->handle);
#endif
#if HAS_WINDOWS
    if (r->window)
        ncclCommWindowDeregister(r->comm, r->window);
#endif
}

/* --- blocks ------------------------------------------------------------------------------------------------------------------------ */

static loom_status clear(loom_device *device, void *memory, size_t bytes)
{
    loom_cuda_device *d = loom_cuda_of(device);
    loom_status status = loom_cuda_check(device, cudaMemsetAsync(memory, 0, bytes, d->allocations), "cudaMemsetAsync of %zu bytes", bytes);

    return status < 0 ? status : loom_cuda_settle(device, d->allocations, "new memory");
}

loom_status loom_cuda_registered_alloc(loom_device *device, size_t bytes, void **memory)
{
    loom_cuda_device *d = loom_cuda_of(device);
    block *b;
    loom_status status;

    *memory = NULL;
    if (!d->registers || !has_memory())
        return LOOM_OK;
    loom_cuda_registered_visit(device, false);
    if (!(b = calloc(1, sizeof *b)))
        return loom_fail(LOOM_E_MEMORY, "no memory to keep track of a block of NCCL's");
    b->bytes = bytes;
    if (take_memory(&b->memory, bytes) != ncclSuccess) {
        loom_log(LOOM_LOG_INFO, -1, "NCCL gives no memory (%s); %zu bytes come from the pool", ncclGetLastError(NULL), bytes);
        cudaGetLastError(); /* it may be CUDA's, too, and the next launch would report it again */
        free(b);
        return LOOM_OK;
    }
    if ((status = clear(device, b->memory, bytes)) < 0) {
        give_memory(b->memory);
        free(b);
        return status;
    }
    pthread_mutex_lock(&d->lock);
    b->next = d->blocks;
    d->blocks = b;
    pthread_mutex_unlock(&d->lock);
    *memory = b->memory;
    return LOOM_OK;
}

static block *find(const loom_cuda_device *d, const void *memory)
{
    for (block *b = d->blocks; b; b = b->next)
        if (b->memory == memory && !b->gone)
            return b;
    return NULL;
}

bool loom_cuda_registered_free(loom_device *device, void *memory)
{
    loom_cuda_device *d = loom_cuda_of(device);
    block *b;

    pthread_mutex_lock(&d->lock);
    b = find(d, memory);
    pthread_mutex_unlock(&d->lock);
    if (!b)
        return false;
    if (cudaEventCreateWithFlags(&b->gone, cudaEventDisableTiming) != cudaSuccess)
        return true; /* it cannot be told when it may go: it stays */
    loom_cuda_frees_follow_all(device);
    cudaEventRecord(b->gone, d->frees);
    loom_cuda_registered_visit(device, false);
    return true;
}

static void drop(block *b)
{
    while (b->registrations) {
        registration *r = b->registrations;
        b->registrations = r->next;
        deregister(r);
        free(r);
    }
    give_memory(b->memory);
    cudaEventDestroy(b->gone);
    free(b);
}

void loom_cuda_registered_visit(loom_device *device, bool closing)
{
    loom_cuda_device *d = loom_cuda_of(device);

    if (closing && d->blocks)
        loom_cuda_settle(device, d->frees, "frees");
    pthread_mutex_lock(&d->lock);
    for (block **link = &d->blocks; *link;) {
        block *b = *link;
        if (!b->gone || cudaEventQuery(b->gone) == cudaErrorNotReady) {
            link = &b->next;
            continue;
        }
        *link = b->next;
        drop(b);
    }
    pthread_mutex_unlock(&d->lock);
}

/* --- registering --------------------------------------------------------------------------------------------------------------------- */

/* What ranks tell each other. */
typedef struct vote {
    uint64_t bytes; /* 0: this rank has none, and is content */
    int32_t able, symmetric, windows;
} vote;

typedef struct verdict {
    bool all_able, alike; /* alike: every rank has as many bytes */
    bool symmetric, windows;
} verdict;

static loom_status agree(loom_comm *comm, const vote *mine, verdict *v)
{
    vote *votes = malloc((size_t)comm->size * sizeof *votes);
    loom_status status;

    if (!votes)
        return loom_fail(LOOM_E_MEMORY, "comm \"%s\": no memory to register any", comm->name);
    *v = (verdict){true, mine->bytes > 0, true, true};
    status = loom_comm_exchange(comm, mine, votes, sizeof *mine);
    for (int r = 0; r < comm->size && status >= 0; r++) {
        v->all_able &= votes[r].able;
        v->alike &= votes[r].bytes == mine->bytes;
        v->symmetric &= votes[r].symmetric;
        v->windows &= votes[r].windows;
    }
    free(votes);
    return status;
}

static loom_status tell_outcome(loom_comm *comm, bool done, bool *all_done)
{
    vote mine = {.able = done};
    verdict v;
    loom_status status = agree(comm, &mine, &v);

    *all_done = status >= 0 && v.all_able;
    return status;
}

/* A misuse that NCCL finds in the call itself does nothing to the communicator. */
static bool is_harmless(ncclResult_t result)
{
    return result == ncclInvalidArgument || result == ncclInvalidUsage;
}

static registration *add_registration(const loom_comm *comm, block *b, ncclComm_t c)
{
    loom_cuda_device *d = loom_cuda_of(comm->world->device);
    registration *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->comm = c;
    pthread_mutex_lock(&d->lock);
    r->next = b->registrations;
    b->registrations = r;
    pthread_mutex_unlock(&d->lock);
    return r;
}

/* Every rank has memory. *done is false also where NCCL or the machine has no windows. What goes wrong after the call has returned, on a thread of NCCL's, stays as the
 * communicator's error: nothing can be called on it any more, so that is a failure and no refusal. */
static loom_status try_window(const loom_comm *comm, block *b, bool symmetric, bool *done)
{
    ncclComm_t c = nccl_of(comm)->comm;
    registration *r = add_registration(comm, b, c);
    ncclResult_t result;
    loom_status status;

    *done = false;
    if (!r)
        return loom_fail(LOOM_E_MEMORY, "comm \"%s\": no memory for a registration", comm->name);
    result = register_window(b, r, symmetric);
    if (is_harmless(result))
        return LOOM_OK;
    status = loom_nccl_settle_begun(comm, c, result, "registering a window");
    *done = status >= 0 && r->window;
    return status;
}

static bool try_buffer(const loom_comm *comm, block *b, ncclComm_t c)
{
    registration *r = add_registration(comm, b, c);

    return r && register_buffer(b, r) == ncclSuccess && r->handle;
}

static bool try_buffers(const loom_comm *comm, block *b, bool lanes_only)
{
    const nccl_comm *n = nccl_of(comm);
    bool done = lanes_only || !b || try_buffer(comm, b, n->comm);

    for (int i = 0; b && done && i < n->n_lanes; i++)
        done = try_buffer(comm, b, n->lanes[i].out) && try_buffer(comm, b, n->lanes[i].in);
    return done;
}

/* Of `b`, or of all: what `c` knows. An aborted communicator has forgotten by itself. */
static void forget(loom_device *device, const block *only, ncclComm_t c, bool aborted)
{
    loom_cuda_device *d = loom_cuda_of(device);

    pthread_mutex_lock(&d->lock);
    for (block *b = d->blocks; b; b = b->next)
        for (registration **link = &b->registrations; *link && (!only || b == only);) {
            registration *r = *link;
            if (r->comm != c) {
                link = &r->next;
                continue;
            }
            *link = r->next;
            if (!aborted)
                deregister(r);
            free(r);
        }
    pthread_mutex_unlock(&d->lock);
}

void loom_nccl_forget(const loom_comm *comm, ncclComm_t c, bool aborted)
{
    forget(comm->world->device, NULL, c, aborted);
}

static void take_back(const loom_comm *comm, const block *b)
{
    const nccl_comm *n = nccl_of(comm);

    if (!b)
        return;
    forget(comm->world->device, b, n->comm, false);
    for (int i = 0; i < n->n_lanes; i++) {
        forget(comm->world->device, b, n->lanes[i].out, false);
        forget(comm->world->device, b, n->lanes[i].in, false);
    }
}

static void say(const loom_comm *comm, const block *b, const char *how)
{
    loom_log(LOOM_LOG_INFO, comm->world->rank, "comm \"%s\": %zu bytes are %s", comm->name, b ? b->bytes : 0, how);
}

/* A window where all ranks are alike, else a buffer of each; messages of lanes have communicators of their own. */
static loom_status register_alike(loom_comm *comm, block *b, const verdict *v, bool *all_done)
{
    bool done;
    loom_status status;

    *all_done = false;
    if (!b || !v->alike || !v->windows)
        return LOOM_OK;
    LOOM_TRY(try_window(comm, b, v->symmetric, &done));
    LOOM_TRY(tell_outcome(comm, done && try_buffers(comm, b, true), all_done));
    if (!*all_done)
        take_back(comm, b);
    else
        say(comm, b, v->symmetric ? "a symmetric window" : "a window");
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_nccl_enlist(loom_comm *comm, void *memory, bool symmetric)
{
    loom_cuda_device *d = loom_cuda_of(comm->world->device);
    bool done;
    vote mine;
    verdict v;
    block *b;
    loom_status status;

    if (comm->size == 1)
        return LOOM_OK;
    pthread_mutex_lock(&d->lock);
    b = memory ? find(d, memory) : NULL;
    pthread_mutex_unlock(&d->lock);
    mine = (vote){.bytes = b ? b->bytes : 0, .able = b || !memory, .symmetric = symmetric, .windows = has_windows()};
    LOOM_TRY(agree(comm, &mine, &v));
    if (!v.all_able) {
        say(comm, b, "not registered: some rank's is not NCCL's");
        return LOOM_OK;
    }
    LOOM_TRY(register_alike(comm, b, &v, &done));
    if (done)
        return LOOM_OK;
    LOOM_TRY(tell_outcome(comm, try_buffers(comm, b, false), &done));
    if (!done)
        take_back(comm, b);
    say(comm, b, done ? "registered" : "not registered: NCCL refused on some rank");
    return LOOM_OK;

fail:
    return status;
}
