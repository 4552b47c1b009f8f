/* The public face of devices: checks arguments, keeps the ledger, and passes on to the back end. */
#include <rankloom/device.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/backend.h"
#include "device/host.h"
#include "device/remains.h"
#include "device/stream.h"

static const loom_backend *find_backend(loom_device_kind kind)
{
    switch (kind) {
    case LOOM_CPU:
        return &loom_backend_cpu;
    case LOOM_CUDA:
        return &loom_backend_cuda;
    case LOOM_DRY:
        return &loom_backend_dry;
    }
    return NULL;
}

loom_status loom_device_open(loom_device_kind kind, const loom_device_config *config, loom_device **device)
{
    static const loom_device_config defaults;
    const loom_backend *backend = find_backend(kind);
    loom_device *d;
    loom_status status;

    if (!config)
        config = &defaults;
    if (!backend)
        return loom_fail(LOOM_E_INVALID, "there is no device kind %d", (int)kind);
    if (config->index < 0 || config->threads < 0)
        return loom_fail(LOOM_E_INVALID, "a device with index %d and %d threads: neither may be negative", config->index, config->threads);
    d = calloc(1, sizeof *d);
    if (!d)
        return loom_fail(LOOM_E_MEMORY, "no memory for the device itself");
    d->backend = backend;
    d->kind = kind;
    pthread_mutex_init(&d->lock, NULL);
    if ((status = backend->open(d, config)) < 0) {
        loom_device_close(d);
        return status;
    }
    *device = d;
    return LOOM_OK;
}

void loom_device_close(loom_device *device)
{
    if (!device)
        return;
    loom_remains_visit(device, true);
    device->backend->close(device);
    if (device->wake_fd)
        close(device->wake_fd);
    loom_blocks_drop(&device->blocks);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

loom_device_kind loom_device_get_kind(const loom_device *device)
{
    return device->kind;
}

int loom_device_threads(const loom_device *device)
{
    return device->threads;
}

typedef loom_status alloc_fn(loom_device *device, size_t bytes, void **memory);

static loom_status alloc_with(alloc_fn *alloc, loom_device *device, size_t bytes, loom_memory_use use, void **memory)
{
    loom_status status;
    void *block;

    if ((unsigned)use >= LOOM_MEM_USES)
        return loom_fail(LOOM_E_INVALID, "an allocation of %zu bytes for use %d: uses are 0 to %d", bytes, (int)use, LOOM_MEM_USES - 1);
    if (!bytes) {
        *memory = NULL;
        return LOOM_OK;
    }
    if (bytes > SIZE_MAX / 4)
        return loom_fail(LOOM_E_MEMORY, "%zu bytes for %s: no machine has that", bytes, loom_memory_use_name(use));
    if ((status = loom_graph_refuse(device, "loom_alloc")) < 0)
        return status;
    bytes = (bytes + 63) / 64 * 64;
    pthread_mutex_lock(&device->lock);
    status = alloc(device, bytes, &block);
    if (status >= 0 && (status = loom_blocks_add(&device->blocks, block, bytes, use)) < 0)
        device->backend->free(device, block);
    pthread_mutex_unlock(&device->lock);
    if (status < 0)
        return loom_fail(status, "%zu bytes for %s: %s", bytes, loom_memory_use_name(use), loom_last_error());
    *memory = block;
    return LOOM_OK;
}

loom_status loom_alloc(loom_device *device, size_t bytes, loom_memory_use use, void **memory)
{
    return alloc_with(device->backend->alloc, device, bytes, use, memory);
}

loom_status loom_alloc_for_comm(loom_device *device, size_t bytes, loom_memory_use use, void **memory)
{
    const loom_backend *backend = device->backend;

    return alloc_with(backend->alloc_for_comm ? backend->alloc_for_comm : backend->alloc, device, bytes, use, memory);
}

void loom_free(loom_device *device, void *memory)
{
    bool known;

    if (!memory)
        return;
    loom_graph_refuse(device, "loom_free");
    pthread_mutex_lock(&device->lock);
    known = loom_blocks_remove(&device->blocks, memory);
    assert(known && "loom_free() of memory that this device did not give or that was freed already");
    if (known)
        device->backend->free(device, memory);
    pthread_mutex_unlock(&device->lock);
}

loom_status loom_alloc_host(loom_device *device, size_t bytes, void **memory)
{
    void *block = NULL;
    loom_status status = loom_graph_refuse(device, "loom_alloc_host");

    if (status < 0)
        return status;
    if (bytes > SIZE_MAX / 4)
        return loom_fail(LOOM_E_MEMORY, "%zu bytes of host memory: no machine has that", bytes);
    bytes = (bytes + 63) / 64 * 64;
    if (bytes && device->backend->host_alloc)
        status = device->backend->host_alloc(device, bytes, &block);
    else if (bytes && !(block = aligned_alloc(64, bytes)))
        status = loom_fail(LOOM_E_MEMORY, "%zu bytes of host memory are more than there is", bytes);
    if (status < 0)
        return status;
    if (block)
        memset(block, 0, bytes);
    *memory = block;
    return LOOM_OK;
}

void loom_free_host(loom_device *device, void *memory)
{
    if (memory)
        loom_graph_refuse(device, "loom_free_host");
    if (memory && device->backend->host_free)
        device->backend->host_free(device, memory);
    else
        free(memory);
}

void loom_device_ledger(const loom_device *device, loom_ledger *ledger)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&device->lock; /* a lock is not what const promises */

    pthread_mutex_lock(lock);
    *ledger = device->blocks.ledger;
    pthread_mutex_unlock(lock);
}

void loom_device_reset_peak(loom_device *device)
{
    loom_ledger *ledger = &device->blocks.ledger;

    pthread_mutex_lock(&device->lock);
    for (int use = 0; use < LOOM_MEM_USES; use++)
        ledger->peak[use] = ledger->live[use];
    ledger->peak_total = ledger->live_total;
    pthread_mutex_unlock(&device->lock);
}

void loom_device_progress(loom_device *device)
{
    device->backend->progress(device);
}

loom_status loom_stream_open(loom_device *device, loom_stream_kind kind, const char *name, loom_stream **stream)
{
    loom_status status;

    if (kind != LOOM_STREAM_INLINE && kind != LOOM_STREAM_WORKER)
        return loom_fail(LOOM_E_INVALID, "there is no stream kind %d", (int)kind);
    if ((status = loom_graph_refuse(device, "loom_stream_open")) < 0)
        return status;
    return device->backend->stream_open(device, kind, name ? name : "", stream);
}

void loom_stream_close(loom_stream *stream)
{
    if (!stream)
        return;
    loom_graph_refuse(stream->device, "loom_stream_close");
    stream->device->backend->stream_close(stream);
}

loom_device *loom_stream_device(const loom_stream *stream)
{
    return stream->device;
}

const char *loom_stream_name(const loom_stream *stream)
{
    return stream->name;
}

loom_status loom_stream_wait(loom_stream *stream)
{
    loom_status status = loom_graph_refuse(stream->device, "loom_stream_wait");

    if (status < 0)
        return status;
    return stream->device->backend->stream_wait(stream);
}

loom_status loom_stream_query(loom_stream *stream)
{
    loom_status status = loom_graph_refuse(stream->device, "loom_stream_query");

    if (status < 0)
        return status;
    return stream->device->backend->stream_query(stream);
}

loom_status loom_stream_run(loom_stream *stream, loom_work_fn *work, void *argument)
{
    loom_status status = loom_graph_refuse(stream->device, "loom_stream_run");

    if (status < 0)
        return status;
    return stream->device->backend->stream_run(stream, work, argument);
}

loom_status loom_stream_copy(loom_stream *stream, void *to, const void *from, size_t bytes)
{
    loom_status status = loom_graph_check(stream->device);

    if (status < 0)
        return status;
    return stream->device->backend->stream_copy(stream, to, from, bytes);
}

loom_status loom_stream_fill_zero(loom_stream *stream, void *memory, size_t bytes)
{
    loom_status status = loom_graph_check(stream->device);

    if (status < 0)
        return status;
    return stream->device->backend->stream_fill_zero(stream, memory, bytes);
}

loom_status loom_stream_follow(loom_stream *stream, loom_stream *other)
{
    loom_status status;

    if (stream->device != other->device)
        return loom_fail(LOOM_E_INVALID, "stream \"%s\" cannot follow stream \"%s\": they belong to two devices", stream->name, other->name);
    if ((status = loom_graph_check(stream->device)) < 0)
        return status;
    return stream->device->backend->stream_follow(stream, other);
}

void loom_device_range_begin(const loom_device *device, const char *name)
{
    if (device->backend->range_begin)
        device->backend->range_begin(name);
}

void loom_device_range_end(const loom_device *device)
{
    if (device->backend->range_end)
        device->backend->range_end();
}

loom_status loom_event_open(loom_device *device, loom_event **event)
{
    return device->backend->event_open(device, event);
}

void loom_event_close(loom_event *event)
{
    if (event)
        event->device->backend->event_close(event);
}

loom_status loom_event_record(loom_event *event, loom_stream *stream)
{
    loom_status status = loom_graph_check(stream->device);

    if (status < 0)
        return status;
    return stream->device->backend->event_record(event, stream);
}

loom_status loom_stream_wait_event(loom_stream *stream, loom_event *event)
{
    loom_status status = loom_graph_check(stream->device);

    if (status < 0)
        return status;
    return stream->device->backend->stream_wait_event(stream, event);
}

loom_status loom_event_query(const loom_event *event)
{
    loom_status status = loom_graph_refuse(event->device, "loom_event_query");

    if (status < 0)
        return status;
    return event->device->backend->event_query(event);
}
