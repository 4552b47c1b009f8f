/* Which allocations are live, and the ledger that sums them up. */
#ifndef LOOM_DEVICE_BLOCKS_H
#define LOOM_DEVICE_BLOCKS_H

#include <rankloom/device.h>

typedef struct loom_block {
    uint64_t address; /* 0: free place in the table */
    uint64_t bytes;   /* rounded up to 64, as the ledger counts */
    loom_memory_use use;
} loom_block;

/* A hash table with linear probing. All zero is empty. */
typedef struct loom_blocks {
    loom_block *table;
    size_t capacity, count; /* capacity is 0 or a power of two */
    loom_ledger ledger;
} loom_blocks;

loom_status loom_blocks_add(loom_blocks *blocks, const void *address, uint64_t bytes, loom_memory_use use);
bool loom_blocks_remove(loom_blocks *blocks, const void *address); /* false: no such block */
void loom_blocks_drop(loom_blocks *blocks);

#endif
