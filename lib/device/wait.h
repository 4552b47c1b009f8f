/* How a thread waits: pause, yield, then sleep until the doorbell rings. */
#ifndef LOOM_DEVICE_WAIT_H
#define LOOM_DEVICE_WAIT_H

#include <rankloom/device.h>

#include <poll.h>

typedef struct loom_waiter {
    bool (*done)(void *context);
    bool (*drive)(void *context);                   /* does what can be done now; whether anything moved */
    void (*check)(void *context, double stalled_s); /* nothing moved for so long: fail what is overdue */
    void *context;
} loom_waiter;

/* Descriptors (sockets) from which news for this device may come: a waiter sleeps on them, too. Added and removed by the thread of the
 * inline streams while no worker stream of the device waits. */
typedef struct loom_poll_source {
    struct loom_poll_source *next;
    int (*fill)(void *context, struct pollfd *fds, int capacity); /* called by any waiting thread; returns how many it filled in */
    void *context;
} loom_poll_source;
loom_status loom_device_add_source(loom_device *device, loom_poll_source *source);
void loom_device_remove_source(loom_device *device, loom_poll_source *source); /* accepts one that was not added */

/* Wakes this device's own waiters. */
void loom_device_ring(loom_device *device);

/* Returns when done() is true; bounded by what check() does. */
void loom_wait(loom_device *device, const loom_waiter *waiter);

#endif
