/* The CPU device: memory from the shared heap, host streams. */
#include "core/settings.h"
#include "device/backend.h"
#include "device/host.h"
#include "device/host_stream.h"

enum { SPINS = 1000 };
static const uint64_t SMALLEST_DEFAULT_HEAP = UINT64_C(1) << 30;

/* The default is far more address space than memory; where the limit of the process (ulimit -v) forbids it, as much as it allows. */
static loom_status open_default_heap(loom_device *device)
{
    uint64_t bytes = 4 * loom_host_memory_bytes();
    loom_status status = loom_heap_open(bytes, &device->heap);

    while (status == LOOM_E_MEMORY && (bytes /= 2) >= SMALLEST_DEFAULT_HEAP)
        status = loom_heap_open(bytes, &device->heap);
    return status;
}

static loom_status open_heap(loom_device *device, uint64_t bytes)
{
    int64_t setting = 0;
    loom_status status;

    if (!bytes) {
        if ((status = loom_setting_i64(LOOM_SETTING_HEAP_BYTES, &setting)) < 0)
            return status;
        bytes = setting > 0 ? (uint64_t)setting : 0;
    }
    if (!bytes)
        return open_default_heap(device);
    if (bytes < 2 * LOOM_SEGMENT_HEAD_BYTES)
        return loom_fail(LOOM_E_INVALID, "a shared heap of %llu bytes is too small; 1 GiB is a sensible least", (unsigned long long)bytes);
    return loom_heap_open(bytes, &device->heap);
}

static loom_status cpu_open(loom_device *device, const loom_device_config *config)
{
    loom_status status = open_heap(device, config->heap_bytes);

    if (status < 0)
        return status;
    device->threads = config->threads;
    if (!device->threads && (device->threads = loom_setting_omp_threads()) == 0)
        device->threads = loom_host_cores();
    device->spins = SPINS;
    device->bell = &loom_segment_get_head(loom_heap_segment(device->heap))->bell;
    return LOOM_OK;
}

static void cpu_close(loom_device *device)
{
    loom_heap_close(device->heap);
}

static loom_status cpu_alloc(loom_device *device, size_t bytes, void **memory)
{
    return loom_heap_take(device->heap, bytes, true, memory);
}

static void cpu_free(loom_device *device, void *memory)
{
    loom_heap_give(device->heap, memory);
}

loom_status loom_device_take(loom_device *device, size_t bytes, bool zeroed, void **block)
{
    loom_status status;

    pthread_mutex_lock(&device->lock);
    status = loom_heap_take(device->heap, bytes, zeroed, block);
    pthread_mutex_unlock(&device->lock);
    return status;
}

void loom_device_give(loom_device *device, void *block)
{
    if (!block)
        return;
    pthread_mutex_lock(&device->lock);
    loom_heap_give(device->heap, block);
    pthread_mutex_unlock(&device->lock);
}

const loom_segment *loom_device_segment(const loom_device *device)
{
    return device->heap ? loom_heap_segment(device->heap) : NULL;
}

void loom_device_set_crowded(loom_device *device, bool crowded)
{
    device->spins = crowded ? 0 : SPINS;
}

const loom_backend loom_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    LOOM_HOST_STREAMS,
};
