/* Device memory: an arena that other processes can map, out of the host's reach while no queued work runs. */
#include "double.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/poison.h"

enum { ALIGN = 256, NOBODYS_BYTES = 256 /* between two blocks */, NCCL_ALIGN = 4096 };
static const uint64_t ARENA_BYTES = UINT64_C(1) << 36;

typedef struct block {
    struct block *next;
    uint64_t offset, bytes, room;
    bool free, nccl; /* nccl: of ncclMemAlloc, which has pages of its own */
    cudaEvent_t gone; /* where its free is queued; NULL: there is none */
    uint64_t takes;   /* a free that comes after another take is none any more */
} block;

static struct {
    pthread_mutex_t lock;
    char *base;
    int fd;
    uint64_t used;
    uint64_t opened; /* bytes of it that are accessible now */
    block *blocks;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void open_arena(void)
{
    if (arena.base)
        return;
    arena.fd = (int)memfd_create("cuda double", MFD_CLOEXEC);
    if (arena.fd < 0 || ftruncate(arena.fd, (off_t)ARENA_BYTES) != 0)
        abort();
    arena.base = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
    if (arena.base == MAP_FAILED)
        abort();
}

static void protect(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), rounded = (bytes + page - 1) / page * page;

    if (rounded == arena.opened)
        return;
    if (mprotect(arena.base, rounded > arena.opened ? rounded : arena.opened, rounded ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        abort();
    arena.opened = rounded;
}

void double_memory_open(void)
{
    pthread_mutex_lock(&arena.lock);
    if (arena.base)
        protect(arena.used);
    pthread_mutex_unlock(&arena.lock);
}

void double_memory_shut(void)
{
    pthread_mutex_lock(&arena.lock);
    if (arena.base)
        protect(0);
    pthread_mutex_unlock(&arena.lock);
}

/* --- blocks -------------------------------------------------------------------------------------------------------------------- */

/* `waits`: also one whose free is still queued, if there is no other. */
static block *find_free(uint64_t room, bool waits, bool nccl)
{
    for (block *b = arena.blocks; b; b = b->next)
        if (b->free && b->room == room && b->nccl == nccl)
            return b;
    for (block *b = arena.blocks; waits && b; b = b->next)
        if (b->gone && b->room == room)
            return b;
    return NULL;
}

static block *make_block(uint64_t room, bool nccl)
{
    uint64_t begin = arena.used + NOBODYS_BYTES;
    block *b;

    if (nccl)
        begin = (begin + NCCL_ALIGN - 1) / NCCL_ALIGN * NCCL_ALIGN;
    if (begin + room > ARENA_BYTES || !(b = malloc(sizeof *b)))
        return NULL;
    *b = (block){.next = arena.blocks, .offset = begin, .room = room, .nccl = nccl};
    arena.blocks = b;
    loom_poison(arena.base + arena.used, begin + room - arena.used);
    arena.used = begin + room;
    return b;
}

/* The caller owns *gone, what its stream has to wait for, or NULL. */
static block *take(uint64_t bytes, bool waits, bool nccl, cudaEvent_t *gone)
{
    uint64_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    block *b = find_free(room, waits, nccl);

    if (!b && !(b = make_block(room, nccl)))
        return NULL;
    b->bytes = bytes;
    b->free = false;
    b->takes++;
    *gone = b->gone;
    b->gone = NULL;
    return b;
}

static block *find(const void *pointer)
{
    uint64_t offset = (uint64_t)((const char *)pointer - arena.base);

    for (block *b = arena.blocks; b; b = b->next)
        if (!b->free && offset >= b->offset && offset < b->offset + b->bytes)
            return b;
    return NULL;
}

static bool is_within(const void *pointer, size_t bytes, bool only_nccl)
{
    bool inside;
    block *b;

    pthread_mutex_lock(&arena.lock);
    b = arena.base ? find(pointer) : NULL;
    inside = b && (b->nccl || !only_nccl) && (uint64_t)((const char *)pointer - arena.base) + bytes <= b->offset + b->bytes;
    pthread_mutex_unlock(&arena.lock);
    return inside;
}

bool double_is_device(const void *pointer, size_t bytes)
{
    return is_within(pointer, bytes, false);
}

bool double_is_nccl(const void *pointer, size_t bytes)
{
    return is_within(pointer, bytes, true);
}

/* --- memory of NCCL's ------------------------------------------------------------------------------------------------------------- */

/* Makes it NaN, also while the device runs nothing. */
static void spoil(char *pointer, uint64_t bytes)
{
    uint64_t opened = arena.opened;

    protect(arena.used > opened ? arena.used : opened);
    loom_unpoison(pointer, bytes);
    memset(pointer, 0xff, bytes);
    if (!opened)
        protect(0);
}

void *double_take_now(size_t bytes)
{
    cudaEvent_t gone;
    block *b;

    pthread_mutex_lock(&arena.lock);
    open_arena();
    b = take(bytes, false, true, &gone);
    if (b)
        spoil(arena.base + b->offset, b->bytes);
    pthread_mutex_unlock(&arena.lock);
    return b ? arena.base + b->offset : NULL;
}

void double_give_now(void *pointer)
{
    block *b;

    pthread_mutex_lock(&arena.lock);
    b = find(pointer);
    spoil(pointer, b->bytes);
    loom_poison(pointer, b->room);
    b->free = true;
    pthread_mutex_unlock(&arena.lock);
}

/* --- queued work on memory ------------------------------------------------------------------------------------------------------- */

typedef enum memory_work { COPY, SET, TAKE, GIVE } memory_work;

typedef struct memory_op {
    double_op op;
    memory_work work;
    void *to;
    const void *from;
    int value;
    size_t bytes;
    uint64_t takes; /* of the block that is given back */
} memory_op;

static void give(void *pointer, uint64_t takes)
{
    cudaEvent_t gone = NULL;
    block *b;

    pthread_mutex_lock(&arena.lock);
    b = find(pointer);
    if (b->takes == takes) {
        gone = b->gone;
        b->gone = NULL;
        b->free = true;
        memset(pointer, 0xff, b->bytes);
        loom_poison(pointer, b->room);
    }
    pthread_mutex_unlock(&arena.lock);
    if (gone)
        cudaEventDestroy(gone);
}

static double_step run_memory(double_op *op)
{
    memory_op *m = (memory_op *)op;

    switch (m->work) {
    case COPY:
        memmove(m->to, m->from, m->bytes);
        break;
    case SET:
        memset(m->to, m->value, m->bytes);
        break;
    case TAKE: /* new memory is NaN, in f32 as in 16 bits */
        loom_poison(m->to, (m->bytes + ALIGN - 1) / ALIGN * ALIGN);
        loom_unpoison(m->to, m->bytes);
        memset(m->to, 0xff, m->bytes);
        break;
    case GIVE:
        give(m->to, m->takes);
        break;
    }
    return DOUBLE_OVER;
}

static void drop_memory(double_op *op)
{
    free(op);
}

static double_op *clone_memory(const double_op *op)
{
    memory_op *clone = malloc(sizeof *clone);

    if (!clone)
        abort();
    *clone = *(const memory_op *)op;
    return &clone->op;
}

/* No graph of ours allocates or frees. */
static cudaError_t push(cudaStream_t stream, memory_op what)
{
    memory_op *m = malloc(sizeof *m);

    if (!m)
        return double_remember(cudaErrorMemoryAllocation);
    *m = what;
    m->op = (double_op){.run = run_memory, .drop = drop_memory, .clone = what.work == COPY || what.work == SET ? clone_memory : NULL};
    return double_push(stream, &m->op);
}

/* --- what the host calls ----------------------------------------------------------------------------------------------------------- */

struct CUmemPoolHandle_st {
    bool waits; /* may hand out what is still in use, and have the taker's stream wait for it */
};

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props)
{
    if (props->allocType != cudaMemAllocationTypePinned || props->location.type != cudaMemLocationTypeDevice)
        return double_remember(cudaErrorInvalidValue);
    pthread_mutex_lock(&arena.lock);
    open_arena();
    pthread_mutex_unlock(&arena.lock);
    *pool = calloc(1, sizeof **pool);
    if (!*pool)
        return double_remember(cudaErrorMemoryAllocation);
    (*pool)->waits = true; /* CUDA's default, and an invitation to deadlocks */
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    if (!pool || !value)
        return double_remember(cudaErrorInvalidValue);
    if (attribute == cudaMemPoolReuseAllowInternalDependencies)
        pool->waits = *(const int *)value;
    return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    free(pool);
    return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    cudaEvent_t gone = NULL;
    block *b;

    if (!pool || !bytes)
        return double_remember(cudaErrorInvalidValue);
    if (double_fails(__func__))
        return double_remember(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&arena.lock);
    b = take(bytes, pool->waits, false, &gone);
    pthread_mutex_unlock(&arena.lock);
    if (!b)
        return double_remember(cudaErrorMemoryAllocation);
    if (gone) {
        cudaStreamWaitEvent(stream, gone, 0);
        cudaEventDestroy(gone);
    }
    *pointer = arena.base + b->offset;
    return push(stream, (memory_op){.work = TAKE, .to = *pointer, .bytes = bytes});
}

/* The block is free only when the stream gets here. */
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    memory_op op = {.work = GIVE, .to = pointer};
    cudaEvent_t gone;
    cudaError_t error;
    block *b;

    if (!double_is_device(pointer, 1) || double_is_nccl(pointer, 1))
        return double_remember(cudaErrorInvalidValue);
    if ((error = cudaEventCreateWithFlags(&gone, cudaEventDisableTiming)) || (error = cudaEventRecord(gone, stream)))
        return error;
    pthread_mutex_lock(&arena.lock);
    b = find(pointer);
    b->gone = gone;
    op.takes = b->takes;
    pthread_mutex_unlock(&arena.lock);
    return push(stream, op);
}

/* --- the host's memory --------------------------------------------------------------------------------------------------------------- */

typedef struct pinned {
    struct pinned *next;
    char *begin;
    size_t bytes;
} pinned;

static pinned *all_pinned; /* under the arena's lock */

/* Where in the list the one that `pointer` is in is linked, or would be. */
static pinned **find_pinned(const void *pointer)
{
    pinned **link = &all_pinned;

    while (*link && ((const char *)pointer < (*link)->begin || (const char *)pointer >= (*link)->begin + (*link)->bytes))
        link = &(*link)->next;
    return link;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    pinned *p;

    if (double_ends_capture())
        return double_remember(cudaErrorStreamCaptureUnsupported);
    if (flags != cudaHostAllocDefault || double_fails(__func__) || !(*pointer = aligned_alloc(64, (bytes + 63) / 64 * 64)) || !(p = malloc(sizeof *p)))
        return double_remember(cudaErrorMemoryAllocation);
    memset(*pointer, 0xff, bytes);
    pthread_mutex_lock(&arena.lock);
    *p = (pinned){.next = all_pinned, .begin = *pointer, .bytes = bytes};
    all_pinned = p;
    pthread_mutex_unlock(&arena.lock);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *pointer)
{
    pinned **link, *gone;

    if (double_ends_capture())
        return double_remember(cudaErrorStreamCaptureUnsupported);
    pthread_mutex_lock(&arena.lock);
    link = find_pinned(pointer);
    gone = *link;
    if (gone)
        *link = gone->next;
    pthread_mutex_unlock(&arena.lock);
    free(gone);
    free(pointer);
    return gone ? cudaSuccess : double_remember(cudaErrorInvalidValue);
}

static enum cudaMemoryType type_of(const void *pointer)
{
    bool is_pinned;

    if (double_is_device(pointer, 1))
        return cudaMemoryTypeDevice;
    pthread_mutex_lock(&arena.lock);
    is_pinned = *find_pinned(pointer) != NULL;
    pthread_mutex_unlock(&arena.lock);
    return is_pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    *attributes = (struct cudaPointerAttributes){.type = type_of(pointer)};
    return cudaSuccess;
}

/* Memory of the host is read as late as the stream gets there, pinned or not: CUDA may copy what is not aside at once, but our streams promise nothing of it. A copy to
 * memory that is not pinned returns when it is done, as CUDA's does, however long that takes. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    cudaError_t error;

    if (kind != cudaMemcpyDefault || double_fails(__func__))
        return double_remember(cudaErrorInvalidValue);
    error = push(stream, (memory_op){.work = COPY, .to = to, .from = from, .bytes = bytes});
    if (error == cudaSuccess && type_of(to) == cudaMemoryTypeUnregistered)
        double_finish(stream);
    return error;
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    if (double_fails(__func__) || !double_is_device(pointer, bytes)) /* CUDA takes no pageable memory here */
        return double_remember(cudaErrorInvalidValue);
    return push(stream, (memory_op){.work = SET, .to = pointer, .value = value, .bytes = bytes});
}

/* --- other processes ------------------------------------------------------------------------------------------------------------------ */

void double_arena_get_name(double_arena_name *name)
{
    pthread_mutex_lock(&arena.lock);
    open_arena();
    pthread_mutex_unlock(&arena.lock);
    *name = (double_arena_name){.pid = (int)getpid(), .fd = arena.fd, .bytes = ARENA_BYTES};
}

uint64_t double_arena_offset(const void *pointer)
{
    return (uint64_t)((const char *)pointer - arena.base);
}

static const char *map_arena(const double_arena_name *name)
{
    char path[64];
    void *base;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", name->pid, name->fd);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    base = fd < 0 ? MAP_FAILED : mmap(NULL, name->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        perror("the double cannot map a peer's memory");
        abort();
    }
    close(fd);
    return base;
}

/* Mapped once, whatever communicators there are, and until the process ends. */
const char *double_arena_map(const double_arena_name *name)
{
    static struct {
        double_arena_name name;
        const char *base;
    } mapped[16];
    size_t i = 0;

    if (name->pid == (int)getpid())
        return arena.base;
    pthread_mutex_lock(&arena.lock);
    while (i < 16 && mapped[i].base && (mapped[i].name.pid != name->pid || mapped[i].name.fd != name->fd))
        i++;
    if (i == 16)
        abort();
    if (!mapped[i].base) {
        mapped[i].name = *name;
        mapped[i].base = map_arena(name);
    }
    pthread_mutex_unlock(&arena.lock);
    return mapped[i].base;
}
