/* What a waiting rank sleeps on, and what wakes it.
 *
 * One doorbell a device, in memory that peers map. A waiter (1) counts itself as a sleeper, (2) reads `rings`, (3) looks once more whether
 * what it waits for has come, and (4) sleeps while `rings` is what it read. A peer (a) publishes its news by a sequentially consistent
 * store and then (b) looks for sleepers. Either (3) sees the news or (b) sees the sleeper, so no wake-up is lost; and while nobody sleeps a
 * ring is one load. */
#ifndef LOOM_DEVICE_DOORBELL_H
#define LOOM_DEVICE_DOORBELL_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

typedef struct loom_doorbell {
    alignas(64) _Atomic uint32_t rings;
    alignas(64) _Atomic uint32_t sleepers; /* a line of its own: every peer polls it, it rarely changes */
} loom_doorbell;

void loom_doorbell_wake(loom_doorbell *bell);                                    /* the slow half of a ring */
void loom_doorbell_sleep(loom_doorbell *bell, uint32_t rings, double at_most_s); /* returns at once when `rings` is no longer current */

static inline void loom_doorbell_ring(loom_doorbell *bell)
{
    if (atomic_load(&bell->sleepers))
        loom_doorbell_wake(bell);
}

#endif
