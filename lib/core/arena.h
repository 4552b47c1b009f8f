/* Memory that is given out in small pieces and freed all at once. */
#ifndef LOOM_CORE_ARENA_H
#define LOOM_CORE_ARENA_H

#include <stddef.h>

typedef struct loom_arena_block loom_arena_block;

/* All zero is an empty arena. */
typedef struct loom_arena {
    loom_arena_block *last;
    size_t used, capacity; /* of the last block */
} loom_arena;

/* `bytes` of zeroed memory, aligned for any type; NULL when the host has none. Never moved; freed with the arena. */
void *loom_arena_alloc(loom_arena *arena, size_t bytes);
/* Room for `count` elements of `size` bytes; NULL also when the product does not fit in size_t. */
void *loom_arena_array(loom_arena *arena, size_t count, size_t size);
/* A copy of `length` bytes with a terminating zero. */
char *loom_arena_copy(loom_arena *arena, const char *text, size_t length);
void loom_arena_free(loom_arena *arena); /* leaves it empty and usable */

#endif
