/* Devices: memory with a ledger, in-order streams, events. Code above this header is written once for CPU and CUDA. */
#ifndef RANKLOOM_DEVICE_H
#define RANKLOOM_DEVICE_H

#include <rankloom/dtype.h>
#include <rankloom/ledger.h>
#include <rankloom/status.h>
LOOM_BEGIN

typedef enum loom_device_kind {
    LOOM_CPU,
    LOOM_CUDA,
    LOOM_DRY, /* memory is only counted, kernels do nothing: a rank of any size can be rehearsed on a laptop */
} loom_device_kind;

typedef struct loom_device loom_device; /* opaque; any thread may allocate from it */
typedef struct loom_stream loom_stream; /* opaque; an in-order queue; one thread at a time enqueues */
typedef struct loom_event loom_event;   /* opaque; a point in a stream */
typedef struct loom_graph loom_graph;   /* opaque; work that was enqueued once, to be run many times */

typedef struct loom_device_config {
    int index;             /* CUDA ordinal among the visible devices; 0 for CPU */
    bool or_only;          /* CUDA: where this process sees one device, that one, whatever the index: some launchers show each rank its own */
    int threads;           /* threads of a kernel on CPU; 0: OMP_NUM_THREADS, else the cores this process may use */
    uint64_t heap_bytes;   /* CPU: address space reserved for the shared heap; 0: RANKLOOM_HEAP_BYTES, else 4 x the host's memory */
} loom_device_config;

/* Opens a device. `config` may be NULL for defaults. On CPU all memory comes from a heap on a memfd that ranks of the same
 * host read directly (comm/shm); pages are reserved when they are allocated, so a lack of memory is LOOM_E_MEMORY and never SIGBUS.
 * A CUDA device that the build or the machine lacks is LOOM_E_UNSUPPORTED with the reason in words. */
LOOM_API loom_status loom_device_open(loom_device_kind kind, const loom_device_config *config, loom_device **device);
LOOM_API void loom_device_close(loom_device *device); /* accepts NULL; everything allocated from it must be freed before */
LOOM_API loom_device_kind loom_device_get_kind(const loom_device *device);
LOOM_API int loom_device_threads(const loom_device *device);

/* `bytes` of zeroed memory aligned to 64, or NULL in *memory when bytes is 0. The caller frees with loom_free().
 * On LOOM_DRY the pointer is an address that must never be read or written. */
LOOM_API loom_status loom_alloc(loom_device *device, size_t bytes, loom_memory_use use, void **memory);
/* The same for memory that loom_comm_register() will hear of; a device may take it from elsewhere. It can take longer than loom_alloc() and take more than was
 * asked for: at set-up, not in a step. */
LOOM_API loom_status loom_alloc_for_comm(loom_device *device, size_t bytes, loom_memory_use use, void **memory);
LOOM_API void loom_free(loom_device *device, void *memory); /* accepts NULL */

/* Memory of the host for what is copied to or from `device`, aligned to 64 and zeroed; on CUDA it is pinned, so that copies run beside compute. NULL in
 * *memory when bytes is 0. Not in the ledger, which is the device's. */
LOOM_API loom_status loom_alloc_host(loom_device *device, size_t bytes, void **memory);
/* Accepts NULL. On CUDA it goes when all that is queued now is over; on CPU nothing that is queued may still use it. */
LOOM_API void loom_free_host(loom_device *device, void *memory);

/* Bytes as asked for, rounded up to 64 each: what is live now and the most that ever was. `total` peaks are of the sum. */
typedef struct loom_ledger {
    uint64_t live[LOOM_MEM_USES], peak[LOOM_MEM_USES];
    uint64_t live_total, peak_total;
    uint64_t allocations;
} loom_ledger;
LOOM_API void loom_device_ledger(const loom_device *device, loom_ledger *ledger);
LOOM_API void loom_device_reset_peak(loom_device *device);

/* --- streams ----------------------------------------------------------------------------------------------------
 * Work enqueued on one stream happens in that order. CPU streams come in two kinds. An inline stream has no thread: compute runs at
 * once in the caller; communication that has to wait for a peer stays queued and goes on whenever its owner calls anything of
 * this header or of comm.h on *any* of the device's streams, so a message posted on one stream makes progress under compute on another.
 * A worker stream has a thread of its own. All inline streams of a device belong to one thread at a time; other threads use worker streams. */
typedef enum loom_stream_kind { LOOM_STREAM_INLINE, LOOM_STREAM_WORKER } loom_stream_kind;

LOOM_API loom_status loom_stream_open(loom_device *device, loom_stream_kind kind, const char *name, loom_stream **stream);
/* Accepts NULL. What is queued touches no memory afterwards: on CPU it is abandoned; on CUDA, where it cannot be called back, this waits for it, though no longer
 * than 10 s. */
LOOM_API void loom_stream_close(loom_stream *stream);
LOOM_API loom_device *loom_stream_device(const loom_stream *stream);
LOOM_API const char *loom_stream_name(const loom_stream *stream);

/* Waits until everything enqueued so far is done, or fails with the first error of it (LOOM_E_MISMATCH, LOOM_E_PEER …). */
LOOM_API loom_status loom_stream_wait(loom_stream *stream);
/* LOOM_OK when idle, LOOM_PENDING when not, or the error. Drives progress. */
LOOM_API loom_status loom_stream_query(loom_stream *stream);
/* Drives every stream of the device a little: call it between layers so that posted communication goes on. */
LOOM_API void loom_device_progress(loom_device *device);

/* Runs `work(argument)` in stream order. On CUDA: as a host function. A failure poisons the stream: later work does not run. */
typedef loom_status loom_work_fn(void *argument);
LOOM_API loom_status loom_stream_run(loom_stream *stream, loom_work_fn *work, void *argument);
/* Between any two places. On CUDA the caller waits for the stream first where one of them is memory of the host that is not loom_alloc_host()'s. */
LOOM_API loom_status loom_stream_copy(loom_stream *stream, void *to, const void *from, size_t bytes);
LOOM_API loom_status loom_stream_fill_zero(loom_stream *stream, void *memory, size_t bytes);
/* Later work of `stream` comes after everything that is queued on `other` now. On CUDA the caller goes on; on CPU, where compute runs in the caller,
 * this is loom_stream_wait(other), with its failures. */
LOOM_API loom_status loom_stream_follow(loom_stream *stream, loom_stream *other);

/* --- events ------------------------------------------------------------------------------------------------------ */
LOOM_API loom_status loom_event_open(loom_device *device, loom_event **event);
LOOM_API void loom_event_close(loom_event *event);                                 /* accepts NULL */
LOOM_API loom_status loom_event_record(loom_event *event, loom_stream *stream);      /* the point after what is queued now */
LOOM_API loom_status loom_stream_wait_event(loom_stream *stream, loom_event *event); /* later work of stream waits for it */
/* LOOM_OK, LOOM_PENDING, or the failure of the stream it was recorded on (also when that stream was closed before it got there). */
LOOM_API loom_status loom_event_query(const loom_event *event);

/* --- graphs -------------------------------------------------------------------------------------------------------------------
 * A step that enqueues the same work every time can be captured once, and launched with one call from then on. Between begin and end whatever is enqueued on
 * *any* stream of the device goes into the graph and does not run: kernels, copies, collectives and messages, with the order that streams, events and
 * follow() give them. A launch is as if all of that were enqueued anew, after everything that is queued on any stream of the device now and before
 * everything that is enqueued later. It uses the memory that was named at capture, with what is in it then; so that memory, and memory of the host that a copy names, has
 * to stay. A graph ends with the first comm, stream or kernels that it uses: from then on a launch fails, and nothing else happens.
 *
 * Events mean something only on their own side of begin and end: to a stream that waits for one from the other side it is reached, since launches are ordered as a
 * whole. Not possible during capture is what a replay could not repeat: to allocate or free, to open or close a stream, to wait for or ask about a
 * stream or event, work of the host, new comms, another graph. Such a call is LOOM_E_INVALID (or, where it returns nothing, is done), and drops the capture: what
 * is enqueued afterwards fails with the same words, and so does loom_graph_end(). Nothing that was captured has run then, and the device is as before.
 * Kernels and comms want to have met their shapes before: what they open at a first call they cannot open now.
 *
 * By the thread of the inline streams; no other thread uses the device during capture. Where comms are in it, all their ranks capture and launch alike. */
LOOM_API bool loom_device_captures(const loom_device *device); /* CUDA does. Elsewhere loom_graph_begin() is LOOM_E_UNSUPPORTED: enqueue as always */
LOOM_API loom_status loom_graph_begin(loom_stream *stream);
/* On the same stream. `graph` NULL: the capture is dropped. */
LOOM_API loom_status loom_graph_end(loom_stream *stream, loom_graph **graph);
LOOM_API loom_status loom_graph_launch(loom_graph *graph, loom_stream *stream); /* of the device; which one only matters to who waits for it first */
LOOM_API void loom_graph_close(loom_graph *graph); /* accepts NULL; replays that are queued run to their end */

LOOM_END
#endif
