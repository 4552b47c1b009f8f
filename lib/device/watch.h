/* Who looks after a wait that lasts: on a device whose work goes on by itself nothing else would notice that a peer is gone. */
#ifndef LOOM_DEVICE_WATCH_H
#define LOOM_DEVICE_WATCH_H

#include <rankloom/device.h>

typedef struct loom_watch {
    struct loom_watch *next;
    /* Somebody has waited `waited_s` for a stream of the device. A failure ends the wait. */
    loom_status (*check)(void *context, double waited_s);
    void *context;
} loom_watch;

/* By the thread that opens and closes what is watched, while no other waits. */
void loom_watch_add(loom_device *device, loom_watch *watch);
void loom_watch_remove(loom_device *device, loom_watch *watch); /* accepts one that was not added */
loom_status loom_watch_check(loom_device *device, double waited_s);

#endif
