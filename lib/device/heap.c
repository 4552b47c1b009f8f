/* Blocks with boundary tags in one growing segment.
 *
 * Invariants: (1) chunks lie back to back from `first` to `top`, each knows its size and that of the one before; (2) two free chunks
 * never touch, and the chunk below `top` is never free; (3) every free chunk is in the bin of its size, no other is; (4) pages below
 * `reserved` exist, bytes at and above `fresh` are zero. */
#include "device/heap.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/poison.h"

enum { UNIT = 64, BINS = 48, GROWTH_BYTES = 1 << 20 };
static const uint32_t MARK = 0x4c4f4f4d;

typedef struct chunk chunk;
struct chunk {
    uint64_t bytes;         /* of this chunk with its tag, a multiple of UNIT */
    uint64_t before_bytes;  /* of the chunk before it, 0: it is the first */
    chunk *next, *previous; /* in its bin, while free */
    uint32_t mark, is_free;
    uint64_t unused[3];
};
_Static_assert(sizeof(chunk) == UNIT, "a tag keeps blocks aligned");

struct loom_heap {
    loom_segment segment;
    char *first, *top;      /* chunks lie here; from top on nothing was carved */
    char *reserved, *fresh; /* (4) */
    uint64_t last_bytes;    /* of the chunk below top */
    chunk *bins[BINS];      /* bin b holds free chunks of 2^b to 2^(b+1)-1 units */
};

static int bin_of(uint64_t bytes)
{
    int bin = 63 - __builtin_clzll(bytes / UNIT);

    return bin < BINS ? bin : BINS - 1;
}

static chunk *chunk_after(const loom_heap *heap, const chunk *c)
{
    char *after = (char *)c + c->bytes;

    return after < heap->top ? (chunk *)(void *)after : NULL;
}

static chunk *chunk_before(const chunk *c)
{
    return c->before_bytes ? (chunk *)(void *)((char *)c - c->before_bytes) : NULL;
}

static void bin_insert(loom_heap *heap, chunk *c)
{
    chunk **bin = &heap->bins[bin_of(c->bytes)];

    c->is_free = 1;
    c->previous = NULL;
    c->next = *bin;
    if (*bin)
        (*bin)->previous = c;
    *bin = c;
}

static void bin_remove(loom_heap *heap, chunk *c)
{
    if (c->previous)
        c->previous->next = c->next;
    else
        heap->bins[bin_of(c->bytes)] = c->next;
    if (c->next)
        c->next->previous = c->previous;
    c->is_free = 0;
}

loom_status loom_heap_open(size_t bytes, loom_heap **heap)
{
    loom_heap *h = calloc(1, sizeof *h);
    loom_status status;

    if (!h)
        return loom_fail(LOOM_E_MEMORY, "no memory for the heap's own bookkeeping");
    if ((status = loom_segment_create("rankloom-heap", bytes, &h->segment)) < 0) {
        free(h);
        return status;
    }
    h->first = h->top = h->reserved = h->fresh = h->segment.base + LOOM_SEGMENT_HEAD_BYTES;
    *heap = h;
    return LOOM_OK;
}

void loom_heap_close(loom_heap *heap)
{
    if (!heap)
        return;
    loom_unpoison(heap->first, (size_t)(heap->fresh - heap->first)); /* the addresses may be mapped again for something else */
    loom_segment_close(&heap->segment);
    free(heap);
}

const loom_segment *loom_heap_segment(const loom_heap *heap)
{
    return &heap->segment;
}

/* Makes pages up to `end` exist, in steps so that small blocks do not each enter the kernel. */
static loom_status grow(loom_heap *heap, char *end)
{
    char *limit = heap->segment.base + heap->segment.bytes;
    size_t offset = (size_t)(heap->reserved - heap->segment.base), bytes;
    loom_status status;

    if (end <= heap->reserved)
        return LOOM_OK;
    bytes = ((size_t)(end - heap->reserved) + GROWTH_BYTES - 1) / GROWTH_BYTES * GROWTH_BYTES;
    if (bytes > (size_t)(limit - heap->reserved))
        bytes = (size_t)(limit - heap->reserved);
    if ((status = loom_segment_reserve(&heap->segment, offset, bytes)) < 0)
        return status;
    heap->reserved += bytes;
    return LOOM_OK;
}

static loom_status carve_from_top(loom_heap *heap, uint64_t bytes, chunk **carved)
{
    uint64_t left = (uint64_t)(heap->segment.base + heap->segment.bytes - heap->top);
    chunk *c = (chunk *)(void *)heap->top;
    loom_status status;

    if (bytes > left)
        return loom_fail(LOOM_E_MEMORY,
                         "a block of %llu bytes does not fit the shared heap: %llu of its %zu bytes of address space are left; raise "
                         "RANKLOOM_HEAP_BYTES",
                         (unsigned long long)bytes, (unsigned long long)left, heap->segment.bytes);
    if ((status = grow(heap, heap->top + bytes)) < 0)
        return status;
    loom_unpoison(c, bytes);
    *c = (chunk){.bytes = bytes, .before_bytes = heap->last_bytes, .mark = MARK};
    heap->top += bytes;
    heap->last_bytes = bytes;
    *carved = c;
    return LOOM_OK;
}

/* A free chunk of at least `bytes`: first fit in its own bin, and whatever heads a larger bin fits. */
static chunk *find_free(const loom_heap *heap, uint64_t bytes)
{
    int bin = bin_of(bytes);

    for (chunk *c = heap->bins[bin]; c; c = c->next)
        if (c->bytes >= bytes)
            return c;
    while (++bin < BINS)
        if (heap->bins[bin])
            return heap->bins[bin];
    return NULL;
}

/* Gives what `c` has beyond `bytes` back as a free chunk, if it is worth a tag and a unit. */
static void split(loom_heap *heap, chunk *c, uint64_t bytes)
{
    uint64_t rest = c->bytes - bytes;
    chunk *tail, *after = chunk_after(heap, c);

    if (rest < 2 * UNIT)
        return;
    assert(after); /* (2): a free chunk never ends at top */
    tail = (chunk *)(void *)((char *)c + bytes);
    loom_unpoison(tail, UNIT);
    *tail = (chunk){.bytes = rest, .before_bytes = bytes, .mark = MARK};
    c->bytes = bytes;
    after->before_bytes = rest;
    bin_insert(heap, tail);
}

loom_status loom_heap_take(loom_heap *heap, size_t bytes, bool zeroed, void **block)
{
    uint64_t whole = ((uint64_t)bytes + UNIT - 1) / UNIT * UNIT + UNIT;
    chunk *c;
    char *at, *fresh = heap->fresh;

    if (bytes > heap->segment.bytes)
        return loom_fail(LOOM_E_MEMORY, "a block of %zu bytes does not fit the shared heap of %zu; raise RANKLOOM_HEAP_BYTES", bytes,
                         heap->segment.bytes);
    if ((c = find_free(heap, whole))) {
        bin_remove(heap, c);
        split(heap, c, whole);
    } else {
        loom_status status = carve_from_top(heap, whole, &c);
        if (status < 0)
            return status;
    }
    at = (char *)c + UNIT;
    loom_unpoison(at, bytes);
    loom_poison(at + bytes, c->bytes - UNIT - bytes);
    if (heap->top > heap->fresh)
        heap->fresh = heap->top;
    if (zeroed && at < fresh)
        memset(at, 0, at + bytes < fresh ? bytes : (size_t)(fresh - at));
    *block = at;
    return LOOM_OK;
}

/* Joins `c` with the free chunk after it. */
static void absorb_next(loom_heap *heap, chunk *c)
{
    chunk *after = chunk_after(heap, c), *beyond;

    bin_remove(heap, after);
    c->bytes += after->bytes;
    if ((beyond = chunk_after(heap, c)))
        beyond->before_bytes = c->bytes;
}

void loom_heap_give(loom_heap *heap, void *block)
{
    chunk *c = (chunk *)(void *)((char *)block - UNIT), *after = chunk_after(heap, c), *before = chunk_before(c);

    assert(c->mark == MARK && !c->is_free);
    loom_unpoison(block, c->bytes - UNIT);
    if (after && after->is_free)
        absorb_next(heap, c);
    if (before && before->is_free) {
        bin_remove(heap, before);
        before->bytes += c->bytes;
        if ((after = chunk_after(heap, before)))
            after->before_bytes = before->bytes;
        c = before;
    }
    loom_poison((char *)c + UNIT, c->bytes - UNIT);
    if (chunk_after(heap, c)) {
        bin_insert(heap, c);
        return;
    }
    heap->top = (char *)c; /* (2) */
    heap->last_bytes = c->before_bytes;
}

bool loom_heap_is_sound(const loom_heap *heap)
{
    uint64_t before_bytes = 0, free_chunks = 0, binned = 0;
    bool before_free = false;

    for (char *at = heap->first; at < heap->top;) {
        const chunk *c = (const chunk *)(const void *)at;
        if (c->mark != MARK || c->before_bytes != before_bytes || !c->bytes || c->bytes % UNIT || (before_free && c->is_free))
            return false;
        before_bytes = c->bytes;
        before_free = c->is_free;
        free_chunks += c->is_free;
        at += c->bytes;
        if (at > heap->top)
            return false;
    }
    for (int bin = 0; bin < BINS; bin++)
        for (const chunk *c = heap->bins[bin]; c; c = c->next) {
            if (!c->is_free || bin_of(c->bytes) != bin)
                return false;
            binned++;
        }
    return !before_free && before_bytes == heap->last_bytes && free_chunks == binned && heap->top <= heap->fresh &&
           heap->fresh <= heap->reserved;
}
