/* What closed worlds could not free, because peers might still look there: it stays with the device, and is asked now and then. */
#ifndef LOOM_DEVICE_REMAINS_H
#define LOOM_DEVICE_REMAINS_H

#include <rankloom/device.h>

typedef struct loom_remains {
    struct loom_remains *next;
    /* Frees what may go by now; true: that was all, and the thing itself is gone. `closing`: the device's memory goes away now, so all of it may. */
    bool (*visit)(struct loom_remains *remains, loom_device *device, bool closing);
} loom_remains;

/* By the thread that opens and closes worlds. */
void loom_remains_add(loom_device *device, loom_remains *remains);
void loom_remains_visit(loom_device *device, bool closing);

#endif
