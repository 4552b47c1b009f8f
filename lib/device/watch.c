/* Watches over waits. */
#include "device/watch.h"

#include "device/backend.h"

void loom_watch_add(loom_device *device, loom_watch *watch)
{
    watch->next = device->watches;
    device->watches = watch;
}

void loom_watch_remove(loom_device *device, loom_watch *watch)
{
    struct loom_watch **link = &device->watches;

    while (*link && *link != watch)
        link = &(*link)->next;
    if (*link)
        *link = watch->next;
}

loom_status loom_watch_check(loom_device *device, double waited_s)
{
    for (loom_watch *watch = device->watches; watch; watch = watch->next) {
        loom_status status = watch->check(watch->context, waited_s);
        if (status < 0)
            return status;
    }
    return LOOM_OK;
}
