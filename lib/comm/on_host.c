/* Collectives on memory of the host, whatever the device: for the few bytes that ranks tell each other besides the training itself. */
#include <rankloom/comm.h>

#include <string.h>

#include "comm/transport.h"
#include "core/try.h"
#include "device/backend.h"

/* Memory of the device for the way. Not in the ledger, which is the model's. */
static loom_status take(loom_device *device, size_t bytes, void **memory)
{
    loom_status status;

    pthread_mutex_lock(&device->lock);
    status = device->backend->alloc(device, (bytes + 63) / 64 * 64, memory);
    pthread_mutex_unlock(&device->lock);
    return status;
}

static void give(loom_device *device, void *memory)
{
    pthread_mutex_lock(&device->lock);
    if (memory)
        device->backend->free(device, memory);
    pthread_mutex_unlock(&device->lock);
}

static bool reads_host(const loom_comm *comm)
{
    return !comm->world->transport->launch;
}

loom_status loom_comm_gather_host(loom_comm *comm, const void *mine, void *all, size_t bytes)
{
    size_t whole = bytes * (size_t)comm->size;
    loom_stream *stream = comm->world->setup;
    loom_device *device = comm->world->device;
    char *way = NULL, *own;
    loom_status status;

    if (bytes == 0)
        return LOOM_OK;
    LOOM_TRY(loom_graph_refuse(device, "loom_comm_gather_host"));
    if (reads_host(comm)) {
        LOOM_TRY(loom_all_gather(comm, mine, all, bytes, LOOM_U8, stream));
        return loom_stream_wait(stream);
    }
    LOOM_TRY(take(device, whole, (void **)&way));
    own = way + bytes * (size_t)comm->rank;
    LOOM_TRY(loom_stream_copy(stream, own, mine, bytes));
    LOOM_TRY(loom_all_gather(comm, own, way, bytes, LOOM_U8, stream));
    LOOM_TRY(loom_stream_copy(stream, all, way, whole));
    status = loom_stream_wait(stream);

fail:
    give(device, way);
    return status;
}

loom_status loom_comm_broadcast_host(loom_comm *comm, void *buffer, size_t bytes, int root)
{
    loom_stream *stream = comm->world->setup;
    loom_device *device = comm->world->device;
    void *way = NULL;
    loom_status status;

    if (bytes == 0)
        return LOOM_OK;
    LOOM_TRY(loom_graph_refuse(device, "loom_comm_broadcast_host"));
    if (reads_host(comm)) {
        LOOM_TRY(loom_broadcast(comm, buffer, bytes, LOOM_U8, root, stream));
        return loom_stream_wait(stream);
    }
    LOOM_TRY(take(device, bytes, &way));
    LOOM_TRY(loom_stream_copy(stream, way, buffer, bytes));
    LOOM_TRY(loom_broadcast(comm, way, bytes, LOOM_U8, root, stream));
    LOOM_TRY(loom_stream_copy(stream, buffer, way, bytes));
    status = loom_stream_wait(stream);

fail:
    give(device, way);
    return status;
}
