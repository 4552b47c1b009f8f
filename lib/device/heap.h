/* The CPU device's allocator: blocks of one segment, so that a peer that mapped the segment can read any of them. */
#ifndef LOOM_DEVICE_HEAP_H
#define LOOM_DEVICE_HEAP_H

#include "device/segment.h"

typedef struct loom_heap loom_heap; /* opaque; not locked: the device does */

loom_status loom_heap_open(size_t bytes, loom_heap **heap);
void loom_heap_close(loom_heap *heap); /* accepts NULL */
const loom_segment *loom_heap_segment(const loom_heap *heap);

/* A block aligned to 64, `bytes` > 0. `zeroed` asks for zeros; else the content is whatever was there. */
loom_status loom_heap_take(loom_heap *heap, size_t bytes, bool zeroed, void **block);
void loom_heap_give(loom_heap *heap, void *block);

/* Walks the whole heap and returns false if an invariant does not hold (tests; asserted in heap.c). */
bool loom_heap_is_sound(const loom_heap *heap);

#endif
