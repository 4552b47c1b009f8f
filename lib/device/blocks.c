/* The table of live allocations. */
#include "device/blocks.h"

#include <stdlib.h>

static size_t place_of(const loom_blocks *blocks, uint64_t address)
{
    return (size_t)((address >> 6) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (blocks->capacity - 1);
}

static void put(loom_blocks *blocks, loom_block block)
{
    size_t i = place_of(blocks, block.address);

    while (blocks->table[i].address)
        i = (i + 1) & (blocks->capacity - 1);
    blocks->table[i] = block;
}

static bool double_capacity(loom_blocks *blocks)
{
    loom_blocks wider = {.capacity = blocks->capacity ? 2 * blocks->capacity : 64};

    wider.table = calloc(wider.capacity, sizeof *wider.table);
    if (!wider.table)
        return false;
    for (size_t i = 0; i < blocks->capacity; i++)
        if (blocks->table[i].address)
            put(&wider, blocks->table[i]);
    free(blocks->table);
    blocks->table = wider.table;
    blocks->capacity = wider.capacity;
    return true;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

loom_status loom_blocks_add(loom_blocks *blocks, const void *address, uint64_t bytes, loom_memory_use use)
{
    loom_ledger *ledger = &blocks->ledger;

    if (2 * (blocks->count + 1) > blocks->capacity && !double_capacity(blocks))
        return loom_fail(LOOM_E_MEMORY, "no memory for the table of %zu allocations", blocks->count + 1);
    put(blocks, (loom_block){(uint64_t)(uintptr_t)address, bytes, use});
    blocks->count++;
    ledger->allocations++;
    ledger->live[use] += bytes;
    ledger->live_total += bytes;
    ledger->peak[use] = larger(ledger->peak[use], ledger->live[use]);
    ledger->peak_total = larger(ledger->peak_total, ledger->live_total);
    return LOOM_OK;
}

/* Closes the gap at `hole`, so that a probe never stops short of a block that once collided here. */
static void close_gap(loom_blocks *blocks, size_t hole)
{
    size_t mask = blocks->capacity - 1;

    for (size_t i = (hole + 1) & mask; blocks->table[i].address; i = (i + 1) & mask) {
        size_t home = place_of(blocks, blocks->table[i].address);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            blocks->table[hole] = blocks->table[i];
            hole = i;
        }
    }
    blocks->table[hole].address = 0;
}

bool loom_blocks_remove(loom_blocks *blocks, const void *address)
{
    uint64_t wanted = (uint64_t)(uintptr_t)address;
    size_t i;

    if (!blocks->capacity)
        return false;
    for (i = place_of(blocks, wanted); blocks->table[i].address != wanted; i = (i + 1) & (blocks->capacity - 1))
        if (!blocks->table[i].address)
            return false;
    blocks->ledger.live[blocks->table[i].use] -= blocks->table[i].bytes;
    blocks->ledger.live_total -= blocks->table[i].bytes;
    blocks->count--;
    close_gap(blocks, i);
    return true;
}

void loom_blocks_drop(loom_blocks *blocks)
{
    free(blocks->table);
    *blocks = (loom_blocks){0};
}
