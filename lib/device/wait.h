/* How a thread waits: pause, yield, then sleep until the doorbell rings. */
#ifndef LOOM_DEVICE_WAIT_H
#define LOOM_DEVICE_WAIT_H

#include <rankloom/device.h>

typedef struct loom_waiter {
    bool (*done)(void *context);
    bool (*drive)(void *context);                     /* does what can be done now; whether anything moved */
    void (*check)(void *context, double stalled_s);   /* nothing moved for so long: fail what is overdue */
    void *context;
} loom_waiter;

/* Returns when done() is true; bounded by what check() does. */
void loom_wait(loom_device *device, const loom_waiter *waiter);

#endif
