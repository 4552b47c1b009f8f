/* Waiting in three steps. Pausing is the quickest way to notice a peer, but only while it has a core to run on; yielding lends it ours;
 * sleeping is for when it is late, and then there is time to look at deadlines. */
#include "device/wait.h"

#include <sched.h>

#include "core/clock.h"
#include "device/backend.h"
#include "device/host.h"

enum { YIELDS = 60 };
static const double SLEEP_S = 0.1; /* at most, between two looks at deadlines and peers */

static void sleep_unless_news(loom_device *device, const loom_waiter *waiter, bool *moved)
{
    loom_doorbell *bell = device->bell;
    uint32_t rings;

    atomic_fetch_add(&bell->sleepers, 1);
    rings = atomic_load(&bell->rings);
    *moved = waiter->drive(waiter->context);
    if (!*moved && !waiter->done(waiter->context))
        loom_doorbell_sleep(bell, rings, SLEEP_S);
    atomic_fetch_sub(&bell->sleepers, 1);
}

void loom_wait(loom_device *device, const loom_waiter *waiter)
{
    int rounds = 0;
    double since_s = 0;

    for (;;) {
        bool moved = waiter->drive(waiter->context);

        if (waiter->done(waiter->context))
            return;
        if (!moved && ++rounds <= device->spins) {
            loom_cpu_pause();
        } else if (!moved && rounds <= device->spins + YIELDS) {
            sched_yield();
        } else if (!moved) {
            double now_s = loom_now_s();
            if (since_s == 0)
                since_s = now_s;
            waiter->check(waiter->context, now_s - since_s);
            if (!waiter->done(waiter->context))
                sleep_unless_news(device, waiter, &moved);
        }
        if (moved) {
            rounds = 0;
            since_s = 0;
        }
    }
}
