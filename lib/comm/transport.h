/* The inside of comm: a world, its groups, their calls, and what a transport provides. */
#ifndef LOOM_COMM_TRANSPORT_H
#define LOOM_COMM_TRANSPORT_H

#include <rankloom/comm.h>

#include <pthread.h>
#include <stdatomic.h>

#include "comm/flight_recorder.h"
#include "comm/reduce.h"
#include "device/stream.h"

enum {
    LOOM_COMM_NAME_BYTES = 32,
    LOOM_CARD_BYTES = 512, /* a transport's part of what ranks tell each other at the start */
    LOOM_INVITATION_BYTES = 128,
};

typedef struct loom_world loom_world;
typedef struct loom_call loom_call;

typedef struct loom_transport {
    const char *name;
    size_t call_bytes; /* of a call's scratch memory */

    /* Writes what the other ranks need to reach this one. `hint` is a name or address that all of them can reach, such as the store's, or
     * NULL. All transports present themselves, one is then opened, the others are closed. */
    loom_status (*present)(loom_world *world, const char *hint, char card[LOOM_CARD_BYTES]);
    /* Cards of all ranks, by world rank. */
    loom_status (*open)(loom_world *world, const char (*cards)[LOOM_CARD_BYTES]);
    void (*close)(loom_world *world); /* accepts half-open */
    /* On rank 0, once all ranks are here: what they need of it to join the comm of everyone, in world->invitation then. NULL: nothing. */
    loom_status (*invite)(loom_world *world, char invitation[LOOM_INVITATION_BYTES]);

    /* A group begins in two steps: every member prepares its end and says where it is; all addresses are exchanged; then it is usable. */
    loom_status (*prepare)(loom_comm *comm, uint64_t *address);
    loom_status (*join)(loom_comm *comm, const uint64_t *addresses);
    void (*leave)(loom_comm *comm); /* accepts half-joined; the other members may still be inside their last call */

    /* Does a bounded piece of a call; with LOOM_STEP_OVER call->task.status says how it went. Collectives of one comm come in order, one at
     * a time. */
    loom_step (*step)(loom_call *call);
    /* Nothing moved for `stalled_s`: a status below zero ends the call. Names who is missing. */
    loom_status (*check)(loom_call *call, double stalled_s);
    /* A call that had begun is over, also when it was abandoned: frees what its scratch memory holds. */
    void (*drop)(loom_call *call);
    /* This rank gives up on `comm`, and on others of its world that have just failed with it: tell the others, with loom_last_error(). */
    void (*give_up)(loom_comm *comm, loom_status status);

    /* Only of a device whose streams run by themselves; NULL elsewhere. Then there is no step, check and drop. */

    /* Enqueues a call, or those of a group, on `stream`; may put the list into another order. */
    loom_status (*launch)(loom_comm *comm, loom_call **first, loom_stream *stream);
    /* A graph that has calls of `comm` was launched on `stream`: to be watched like a call. `text` says what it is. */
    loom_status (*launched)(loom_comm *comm, const char *text, loom_stream *stream);
    /* Every rank of `parent` calls it when groups are made, between their prepare and their join; `comm` NULL: it is in none. `first`: the
     * first member of its group, as a rank of the parent. */
    loom_status (*split)(loom_comm *parent, loom_comm *comm, int first);
    loom_status (*exchange)(loom_comm *comm, const void *mine, void *all, size_t bytes); /* all_gather of host memory */
    loom_status (*connect)(loom_comm *comm, const int *peers, int count);                /* NULL: needs none */
    loom_status (*enlist)(loom_comm *comm, void *memory, bool symmetric);                /* NULL: nothing to gain */
} loom_transport;

extern const loom_transport loom_transport_shm, loom_transport_tcp, loom_transport_dry;

enum { LOOM_SHM, LOOM_TCP, LOOM_NCCL, LOOM_TRANSPORTS }; /* those that a world chooses from */

/* What is common to all groups that descend from one world. */
struct loom_world {
    _Atomic int32_t users; /* comms; the last one closes it */
    loom_device *device;
    const loom_transport *transport;
    const loom_reducer *reducer;
    void *states[LOOM_TRANSPORTS]; /* of each transport that has presented itself */
    int rank, size;
    double deadline_s;
    char invitation[LOOM_INVITATION_BYTES];
    loom_stream *setup;   /* where groups are made */
    pthread_mutex_t lock; /* of the list and the number */
    loom_comm *comms;
    int made; /* comms ever */
    _Atomic int32_t dumped;
    _Atomic int32_t broken; /* something failed: a peer may be stuck in any comm, and none may be waited for */
    loom_comm_observer_fn *observe; /* NULL: nobody */
    void *observer;
};

struct loom_comm {
    loom_world *world;
    loom_comm *next; /* in world->comms */
    int rank, size;
    int *members; /* world ranks */
    char name[LOOM_COMM_NAME_BYTES];
    void *state; /* of the transport */
    double exposed_s;
    loom_traffic traffic;
    uint64_t next_sequence, next_message; /* of collectives and of point-to-point calls, as they are enqueued */
    _Atomic uint64_t turn;                /* the collective that may run now */
    _Atomic int32_t failed;               /* a loom_status; message is complete before it is set */
    char message[1024];
    loom_recorder recorder;
    struct loom_comm_part *parts; /* of graphs */

    /* touched by the thread of the inline streams only */
    uint64_t ended_ns; /* of the last call that ended there */
    loom_call *spare;
    int group_depth;
    loom_call *group_first, **group_last;
    loom_stream *group_stream;
};

/* One operation. Owned by its stream once submitted. */
struct loom_call {
    loom_task task;  /* first: the stream sees this */
    loom_call *next; /* in a group, or among the spare ones */
    loom_comm *comm;
    loom_call_kind kind;
    loom_dtype dtype;
    loom_reduce_op op;
    int peer; /* or root */
    uint64_t sequence, tag;
    const void *send;
    void *recv;
    size_t count;
    size_t *counts; /* all_to_all_v: [4][size] send counts, send offsets, recv counts, recv offsets; owned */
    char name[LOOM_COMM_NAME_BYTES];
    bool begun;
    bool at_once;    /* its stream is inline and empty: the first step comes before the call returns */
    bool pooled;     /* goes back to comm->spare */
    uint64_t record; /* in the flight recorder */
    uint64_t enqueued_ns, begun_ns;
    /* the transport's scratch memory follows */
};

static inline void *loom_call_scratch(loom_call *call)
{
    return call + 1;
}

static inline bool loom_call_is_p2p(loom_call_kind kind)
{
    return kind == LOOM_CALL_SEND || kind == LOOM_CALL_RECV;
}

/* "all_reduce #12 (1024 f32, sum) on comm "dp"". Returns text. */
enum { LOOM_CALL_TEXT = 192 };
const char *loom_call_describe(const loom_call *call, char text[LOOM_CALL_TEXT]);
/* "did not arrive", "did not take it", "did not send it": what the one who is missing did not do. */
const char *loom_missed_verb(loom_call_kind kind);
/* "rank 2", or "rank 2 (rank 6 of the world)" where these differ. */
enum { LOOM_RANK_TEXT = 48 };
const char *loom_rank_describe(const loom_comm *comm, int rank, char text[LOOM_RANK_TEXT]);

/* The comm fails: keeps loom_last_error(), tells the peers once. Returns `status`. */
loom_status loom_comm_give_up(loom_comm *comm, loom_status status);

/* A deadline passed: the flight recorder goes to stderr or to RANKLOOM_FLIGHT_RECORDER, once a world. */
void loom_world_dump_once(loom_world *world);

/* all_gather of `bytes` bytes as a call of kind `split`, waited for. */
loom_status loom_comm_exchange(loom_comm *comm, const void *mine, void *all, size_t bytes);

/* A comm without its transport's end; `members` are world ranks and are copied. */
loom_status loom_comm_make(loom_world *world, const int *members, int count, int rank, const char *name, loom_comm **comm);

#endif
