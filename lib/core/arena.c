/* A chain of blocks; each allocation moves a mark in the last one. */
#include "core/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SMALLEST_BLOCK = 4096, LARGEST_STEP = 1 << 20 };

struct loom_arena_block {
    loom_arena_block *before;
    alignas(max_align_t) char data[];
};

static loom_arena_block *add_block(loom_arena *arena, size_t bytes)
{
    size_t capacity = arena->capacity < SMALLEST_BLOCK / 2 ? SMALLEST_BLOCK : arena->capacity * 2; /* few blocks, whatever the file */

    if (capacity > LARGEST_STEP)
        capacity = LARGEST_STEP;
    if (capacity < bytes)
        capacity = bytes;
    if (capacity > PTRDIFF_MAX - sizeof(loom_arena_block)) /* more than any object may have */
        return NULL;

    loom_arena_block *block = calloc(1, sizeof *block + capacity);
    if (!block)
        return NULL;
    block->before = arena->last;
    arena->last = block;
    arena->used = 0;
    arena->capacity = capacity;
    return block;
}

void *loom_arena_alloc(loom_arena *arena, size_t bytes)
{
    const size_t align = alignof(max_align_t);

    if (bytes > SIZE_MAX - align)
        return NULL;
    bytes = (bytes + align - 1) / align * align;
    if ((!arena->last || bytes > arena->capacity - arena->used) && !add_block(arena, bytes))
        return NULL;

    void *at = arena->last->data + arena->used;
    arena->used += bytes;
    return at;
}

void *loom_arena_array(loom_arena *arena, size_t count, size_t size)
{
    size_t bytes;

    return __builtin_mul_overflow(count, size, &bytes) ? NULL : loom_arena_alloc(arena, bytes);
}

char *loom_arena_copy(loom_arena *arena, const char *text, size_t length)
{
    char *copy = length == SIZE_MAX ? NULL : loom_arena_alloc(arena, length + 1);

    if (copy && length)
        memcpy(copy, text, length);
    return copy;
}

void loom_arena_free(loom_arena *arena)
{
    while (arena->last) {
        loom_arena_block *before = arena->last->before;
        free(arena->last);
        arena->last = before;
    }
    *arena = (loom_arena){0};
}
