/* Remains of closed worlds. */
#include "device/remains.h"

#include "device/backend.h"

void loom_remains_add(loom_device *device, loom_remains *remains)
{
    remains->next = device->remains;
    device->remains = remains;
}

void loom_remains_visit(loom_device *device, bool closing)
{
    for (loom_remains **link = &device->remains; *link;) {
        loom_remains *one = *link, *next = one->next;

        if (one->visit(one, device, closing))
            *link = next;
        else
            link = &one->next;
    }
}
