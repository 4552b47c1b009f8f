/* Waiting in three steps. Pausing is the quickest way to notice a peer, but only while it has a core to run on; yielding lends it ours;
 * sleeping is for when it is late, and then there is time to look at deadlines. */
#include "device/wait.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "device/backend.h"
#include "device/host.h"

enum { YIELDS = 60 };
static const double SLEEP_S = 0.1;         /* at most, between two looks at deadlines and peers */
static const double SHORT_SLEEP_S = 0.002; /* where news may come in a way that this sleep does not see */

loom_status loom_device_add_source(loom_device *device, loom_poll_source *source)
{
    if (!device->wake_fd) {
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0)
            return loom_fail(LOOM_E_IO, "eventfd: %s", strerror(errno));
        device->wake_fd = fd;
    }
    source->next = device->sources;
    device->sources = source;
    return LOOM_OK;
}

void loom_device_remove_source(loom_device *device, loom_poll_source *source)
{
    loom_poll_source **link = &device->sources;

    while (*link && *link != source)
        link = &(*link)->next;
    if (*link)
        *link = source->next;
}

void loom_device_ring(loom_device *device)
{
    static const uint64_t one = 1;

    if (!atomic_load(&device->bell->sleepers))
        return;
    loom_doorbell_wake(device->bell);
    if (device->wake_fd && write(device->wake_fd, &one, sizeof one) < 0) {
        /* full: then it is readable, which is all that is wanted */
    }
}

/* Sleeps on descriptors instead of the futex, which cannot be waited for together. */
static void sleep_on_sources(loom_device *device, double at_most_s)
{
    enum { MOST = 256 };
    struct pollfd fds[MOST] = {{.fd = device->wake_fd, .events = POLLIN}};
    int count = 1;
    uint64_t rings;

    for (const loom_poll_source *source = device->sources; source; source = source->next)
        count += source->fill(source->context, fds + count, MOST - count);
    if (poll(fds, (nfds_t)count, (int)(at_most_s * 1e3)) > 0 && (fds[0].revents & POLLIN) &&
        read(device->wake_fd, &rings, sizeof rings) < 0) {
        /* another waiter was quicker */
    }
}

static void sleep_unless_news(loom_device *device, const loom_waiter *waiter, bool *moved)
{
    loom_doorbell *bell = device->bell;
    uint32_t rings;

    atomic_fetch_add(&bell->sleepers, 1);
    rings = atomic_load(&bell->rings);
    *moved = waiter->drive(waiter->context);
    if (!*moved && !waiter->done(waiter->context)) {
        if (device->sources)
            sleep_on_sources(device, device->rung_by_peers ? SHORT_SLEEP_S : SLEEP_S);
        else
            loom_doorbell_sleep(bell, rings, SLEEP_S);
    }
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
