/* What a kind of device provides, and what every device has. Above this header nobody asks which kind it is. */
#ifndef LOOM_DEVICE_BACKEND_H
#define LOOM_DEVICE_BACKEND_H

#include <rankloom/device.h>

#include <pthread.h>

#include "device/blocks.h"
#include "device/graph.h"
#include "device/heap.h"

typedef struct loom_backend {
    const char *name;
    loom_status (*open)(loom_device *device, const loom_device_config *config);
    void (*close)(loom_device *device);                                     /* accepts half-open */
    loom_status (*alloc)(loom_device *device, size_t bytes, void **memory); /* zeroed, aligned to 64; bytes > 0 */
    loom_status (*alloc_for_comm)(loom_device *device, size_t bytes, void **memory); /* NULL: alloc */
    void (*free)(loom_device *device, void *memory);                                  /* of either */
    loom_status (*host_alloc)(loom_device *device, size_t bytes, void **memory); /* NULL: any memory of the host does */
    void (*host_free)(loom_device *device, void *memory);

    loom_status (*stream_open)(loom_device *device, loom_stream_kind kind, const char *name, loom_stream **stream);
    void (*stream_close)(loom_stream *stream);
    loom_status (*stream_wait)(loom_stream *stream);
    loom_status (*stream_query)(loom_stream *stream);
    loom_status (*stream_run)(loom_stream *stream, loom_work_fn *work, void *argument);
    loom_status (*stream_copy)(loom_stream *stream, void *to, const void *from, size_t bytes);
    loom_status (*stream_fill_zero)(loom_stream *stream, void *memory, size_t bytes);
    loom_status (*stream_follow)(loom_stream *stream, loom_stream *other);
    void (*progress)(loom_device *device);
    void (*range_begin)(const char *name); /* of this thread, for a profiler that looks on; NULL: there is none */
    void (*range_end)(void);

    loom_status (*event_open)(loom_device *device, loom_event **event);
    void (*event_close)(loom_event *event);
    loom_status (*event_record)(loom_event *event, loom_stream *stream);
    loom_status (*stream_wait_event)(loom_stream *stream, loom_event *event);
    loom_status (*event_query)(const loom_event *event);

    /* NULL: the device captures nothing. begin() and end() are about graph->stream; drop() ends a capture under way, forgets what came of one, and leaves
     * `native` NULL. */
    loom_status (*graph_begin)(loom_graph *graph);
    loom_status (*graph_end)(loom_graph *graph);
    loom_status (*graph_launch)(loom_graph *graph, loom_stream *stream);
    void (*graph_drop)(loom_graph *graph);
} loom_backend;

extern const loom_backend loom_backend_cpu, loom_backend_dry, loom_backend_cuda;

struct loom_device {
    const loom_backend *backend;
    loom_device_kind kind;
    int threads;
    loom_blocks blocks; /* every live allocation, and the ledger */

    /* cpu and dry */
    loom_heap *heap;                  /* NULL on dry */
    uint64_t dry_next;                /* next address that dry hands out */
    pthread_mutex_t lock;             /* of heap and blocks: kernels on worker streams allocate too */
    loom_doorbell *bell;              /* what this device's waiters sleep on: in the heap's first page, so that peers ring it */
    loom_doorbell *own_bell;          /* dry: it has no heap */
    loom_stream *streams;             /* inline streams that are open */
    struct loom_remains *remains;     /* of closed worlds; remains.h */
    void *desk;                       /* in the heap: what peers read of this rank, whatever world they share with it (comm/shm.c); NULL: none yet */
    struct loom_poll_source *sources; /* descriptors that news may come from, too */
    int wake_fd;                      /* an eventfd that a ring writes to while there are sources; 0: none yet */
    bool rung_by_peers;               /* peers have mapped the bell and ring it without knowing of wake_fd */

    /* cuda */
    const struct loom_cuda_module *cuda; /* NULL on others; cuda_module.h */
    void *native;                        /* what the module keeps */
    struct loom_watch *watches;          /* over waits for its streams */
    loom_graph *capture;                 /* under way; NULL: none */

    int spins;                        /* pauses before a waiter yields; 0 when ranks have to share cores */
};

/* What this thread does from here on, for the device's profiler; ranges nest. */
void loom_device_range_begin(const loom_device *device, const char *name);
void loom_device_range_end(const loom_device *device);

/* Memory of the heap that is not the model's: control blocks and staging of comm. Not in the ledger. CPU only. */
loom_status loom_device_take(loom_device *device, size_t bytes, bool zeroed, void **block);
void loom_device_give(loom_device *device, void *block);
const loom_segment *loom_device_segment(const loom_device *device); /* NULL when peers cannot map this device */
/* Told by comm once it knows who else runs on the host: where ranks have to share cores a waiter does not spin. */
void loom_device_set_crowded(loom_device *device, bool crowded);

#endif
