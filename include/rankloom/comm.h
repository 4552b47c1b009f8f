/* Process groups and their collectives. Every operation is enqueued on a stream, as in NCCL. */
#ifndef RANKLOOM_COMM_H
#define RANKLOOM_COMM_H

#include <rankloom/device.h>
#include <rankloom/launch.h>
LOOM_BEGIN

/* A process group: an ordered set of ranks that call collectives together, in the same order. Opaque. */
typedef struct loom_comm loom_comm;

typedef enum loom_reduce_op { LOOM_SUM, LOOM_AVG, LOOM_MAX, LOOM_MIN, LOOM_REDUCE_OPS } loom_reduce_op;

LOOM_API const char *loom_reduce_op_name(loom_reduce_op op);

typedef struct loom_comm_config {
    double deadline_s;     /* of every wait; 0: RANKLOOM_TIMEOUT_S, else 600 */
    const char *transport; /* "auto", "shm", "tcp", "nccl"; NULL: RANKLOOM_TRANSPORT, else auto */
} loom_comm_config;

/* The world of `launch` on `device`. Collective over all ranks. The store must outlive the comm. `config` may be NULL.
 *
 * After a failure (a deadline that passed, a mismatch) ranks that are all alive can go on in their processes: each frees every comm of the broken world and
 * what was opened on them, closes the streams that failed, and calls this again with the same store and device. Not all have to notice at once: LOOM_E_PEER
 * at the deadline names those that did not come, and whoever was too early may call again until all are here together. No attempt meets anything of
 * an earlier one. A rank that has not noticed hears of it when others leave (CPU), or at its own deadline (GPUs). */
LOOM_API loom_status loom_comm_open_world(const loom_launch *launch, loom_store *store, loom_device *device,
                                          const loom_comm_config *config, loom_comm **world);

/* One process stands for rank `rank` of a world of `size`: nothing travels, every call succeeds at once and is counted. */
LOOM_API loom_status loom_comm_open_dry(int rank, int size, loom_device *device, loom_comm **world);

/* Ranks of `parent` with equal `color` form a new comm, ordered by (key, parent rank); color < 0: none, *comm is NULL.
 * Collective over `parent`. `name` appears in every message and in the mismatch check ("tp", "pp", …); copied, at most 31 bytes.
 * On a dry world the members cannot be asked: use loom_comm_create(). */
LOOM_API loom_status loom_comm_split(loom_comm *parent, int color, int key, const char *name, loom_comm **comm);

/* Same, with the members given as parent ranks in order (this rank among them, or none: *comm is NULL). Every rank of `parent`
 * calls; ranks in one group give the same list. Works on dry worlds; the mesh uses only this one. */
LOOM_API loom_status loom_comm_create(loom_comm *parent, const int *members, int count, const char *name, loom_comm **comm);

/* Memory that will travel on `comm` again and again, so that it may go without a copy on its way. Collective over `comm`, after loom_comm_connect(): each rank names a block
 * of loom_alloc_for_comm() as it was handed out, or NULL if it has none. `symmetric`: all ranks' blocks are alike, and in every call all name the same place in theirs
 * (so not in place in reduce_scatter and all_gather). Of calls on `comm` both what is sent and where it is received has to be registered, or neither, on all
 * ranks alike. A hint: where nothing is to be gained (CPU, RANKLOOM_REGISTER=false, a block that is
 * not fit for it on some rank) nothing happens, and RANKLOOM_LOG=info says so. The comm keeps no hold on the block: loom_free() and
 * loom_comm_free() undo it in either order. */
LOOM_API loom_status loom_comm_register(loom_comm *comm, void *memory, bool symmetric);
/* Accepts NULL; safe after an error of a comm, when it waits for nobody. Not collective, but on GPUs: NCCL waits there, without a deadline, until the members on the same
 * node free theirs, so all ranks free their comms in one order. */
LOOM_API void loom_comm_free(loom_comm *comm);
/* Accepts NULL. This rank ends for a reason of its own, while others may be in calls with it: the comms of its world are freed as after a failure, so that it does
 * not wait for those to reach their deadline. */
LOOM_API void loom_comm_abandon(loom_comm *comm);
LOOM_API int loom_comm_rank(const loom_comm *comm);
LOOM_API int loom_comm_size(const loom_comm *comm);
LOOM_API int loom_comm_world_rank(const loom_comm *comm, int rank); /* of a member, in the world it descends from */
LOOM_API const char *loom_comm_name(const loom_comm *comm);
LOOM_API const char *loom_comm_transport(const loom_comm *comm); /* "shm", "dry", … */
LOOM_API loom_device *loom_comm_device(const loom_comm *comm);
/* How many comms this rank has had in the world of `comm`, those that were freed included: it stands still once set-up is over. */
LOOM_API int loom_comm_made(const loom_comm *comm);

/* --- collectives -----------------------------------------------------------------------------------------------------
 * Enqueued: a call returns at once, and buffers are lent to the library until `stream` has passed it. All ranks call with equal
 * count, dtype and op, in the same order as their other calls on `comm`. LOOM_E_INVALID if an argument cannot be right; what only
 * shows while it runs (LOOM_E_MISMATCH, LOOM_E_PEER) comes out of loom_stream_wait(), on every rank. Counts are elements. 16-bit and
 * 8-bit floats accumulate in f32, always in rank order, so every run gives the same bits on every rank. A count of 0 is legal. */

/* recv[count] = op over ranks of send[count]. In place: recv == send. */
LOOM_API loom_status loom_all_reduce(loom_comm *comm, const void *send, void *recv, size_t count, loom_dtype dtype, loom_reduce_op op, loom_stream *stream);
/* Rank r keeps block r: send [size * count], recv [count]. In place: recv == send + rank * count. */
LOOM_API loom_status loom_reduce_scatter(loom_comm *comm, const void *send, void *recv, size_t count, loom_dtype dtype, loom_reduce_op op, loom_stream *stream);
/* recv [size * count] = blocks of all ranks in order; send [count]. In place: send == recv + rank * count. */
LOOM_API loom_status loom_all_gather(loom_comm *comm, const void *send, void *recv, size_t count, loom_dtype dtype, loom_stream *stream);
/* Block r of send goes to rank r; block r of recv comes from rank r. Both [size * count]. Not in place. */
LOOM_API loom_status loom_all_to_all(loom_comm *comm, const void *send, void *recv, size_t count, loom_dtype dtype, loom_stream *stream);
/* send_counts[size], send_offsets[size], recv_counts[size], recv_offsets[size] are elements; copied before the call returns.
 * recv_counts[r] here must equal send_counts[rank] there; a difference is LOOM_E_MISMATCH. Not in place. */
LOOM_API loom_status loom_all_to_all_v(loom_comm *comm, const void *send, const size_t *send_counts, const size_t *send_offsets, void *recv,
                                       const size_t *recv_counts, const size_t *recv_offsets, loom_dtype dtype, loom_stream *stream);
LOOM_API loom_status loom_broadcast(loom_comm *comm, void *buffer, size_t count, loom_dtype dtype, int root, loom_stream *stream);
/* All ranks arrive. `name` is compared: two different names that meet are LOOM_E_MISMATCH on all ranks. NULL: "". */
LOOM_API loom_status loom_barrier(loom_comm *comm, const char *name, loom_stream *stream);

/* The same on memory of the host, whatever the comm's device; they return when it is over. For what ranks tell each other beside the training.
 * all [size * bytes] gets mine [bytes] of every rank. */
LOOM_API loom_status loom_comm_gather_host(loom_comm *comm, const void *mine, void *all, size_t bytes);
LOOM_API loom_status loom_comm_broadcast_host(loom_comm *comm, void *buffer, size_t bytes, int root);

/* --- point to point ---------------------------------------------------------------------------------------------------
 * Matched by (peer, tag); within a tag in the order in which their streams reach them. A send is over when the peer has taken the data; so two ranks that both wait for
 * a send before they post the receive end at the deadline with a message that names both calls. Between group_begin and group_end calls
 * on one stream only queue; at group_end they go on together, in any order. Count or dtype that differ are LOOM_E_MISMATCH on both. */
LOOM_API loom_status loom_send(loom_comm *comm, const void *buffer, size_t count, loom_dtype dtype, int peer, uint64_t tag, loom_stream *stream);
LOOM_API loom_status loom_recv(loom_comm *comm, void *buffer, size_t count, loom_dtype dtype, int peer, uint64_t tag, loom_stream *stream);
/* Names the peers that this rank will exchange messages with outside of groups, once, before the first; each of them names this rank. Collective over
 * `comm`. Host transports need none. On GPUs messages of these pairs no longer wait for other calls of the comm that were enqueued before; they
 * are taken in the order in which they were sent, and tags have to say the same. */
LOOM_API loom_status loom_comm_connect(loom_comm *comm, const int *peers, int count);
LOOM_API loom_status loom_group_begin(loom_comm *comm);
LOOM_API loom_status loom_group_end(loom_comm *comm, loom_stream *stream);

/* --- what travelled -------------------------------------------------------------------------------------------------------
 * Bytes that this rank hands to other ranks, by the algorithm-free law of each call (all_reduce 2(n-1)/n of the buffer, reduce_scatter and
 * all_gather (n-1)/n of the whole, all_to_all what is not its own, broadcast the buffer on every rank but the one before the root, send the
 * message; rounded down to bytes; making comms counts as a call without bytes):
 * the same figure on every transport, so the planner can predict it exactly. */
LOOM_API void loom_comm_traffic(const loom_comm *comm, loom_traffic *traffic);
LOOM_API void loom_comm_reset_traffic(loom_comm *comm);

/* Seconds this comm's calls kept their stream's caller waiting (exposed communication). */
LOOM_API double loom_comm_exposed_s(const loom_comm *comm);

/* A call that is over, for a trace. It begins with its first step, so waiting for the peers is part of it. Monotonic seconds. */
typedef struct loom_comm_event {
    const loom_comm *comm;
    loom_call_kind kind;
    loom_dtype dtype;
    size_t count;
    int peer; /* of a send, recv or broadcast */
    double begin_s, end_s;
} loom_comm_event;
typedef void loom_comm_observer_fn(void *context, const loom_comm_event *event);
/* From now on `observe` hears of every call that ends, on any comm of this world; NULL: nobody does. It is called by the thread that drove the
 * call, which may be a worker stream's, and must not call back. Change it only while no call is under way. */
LOOM_API void loom_comm_set_observer(loom_comm *comm, loom_comm_observer_fn *observe, void *context);

/* Writes the last operations of every comm of this world (the flight recorder) as JSON lines. Also done when a deadline expires,
 * to stderr, or to the file that RANKLOOM_FLIGHT_RECORDER names ("%r" is the rank). */
LOOM_API loom_status loom_comm_dump(const loom_comm *comm, const char *path);

LOOM_END
#endif
