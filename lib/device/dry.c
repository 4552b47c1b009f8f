/* The dry device: counts memory, does no work. Its addresses are ones that no Linux process maps, so a read or write of them is a fault
 * and never silent damage. */
#include <stdlib.h>

#include "device/backend.h"
#include "device/host_stream.h"

static const uint64_t FIRST_ADDRESS = UINT64_C(1) << 52;

static loom_status dry_open(loom_device *device, const loom_device_config *config)
{
    device->threads = config->threads ? config->threads : 1;
    device->dry_next = FIRST_ADDRESS;
    device->own_bell = aligned_alloc(64, sizeof *device->own_bell);
    if (!device->own_bell)
        return loom_fail(LOOM_E_MEMORY, "no memory for the dry device");
    *device->own_bell = (loom_doorbell){0};
    device->bell = device->own_bell;
    return LOOM_OK;
}

static void dry_close(loom_device *device)
{
    free(device->own_bell);
}

static loom_status dry_alloc(loom_device *device, size_t bytes, void **memory)
{
    if (bytes > (FIRST_ADDRESS << 1) - device->dry_next)
        return loom_fail(LOOM_E_MEMORY, "the dry device has handed out all its addresses");
    *memory = (void *)(uintptr_t)device->dry_next; /* addresses are not used twice: there are enough */
    device->dry_next += bytes;
    return LOOM_OK;
}

static void dry_free(loom_device *device, void *memory)
{
    (void)device, (void)memory;
}

const loom_backend loom_backend_dry = {
    .name = "dry",
    .open = dry_open,
    .close = dry_close,
    .alloc = dry_alloc,
    .free = dry_free,
    LOOM_HOST_STREAMS,
};
