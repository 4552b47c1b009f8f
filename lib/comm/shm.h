/* The shared-memory transport's structures.
 *
 * Every rank's device has a heap that all ranks of the host map. For each comm a rank keeps a `box` in its own heap: it alone writes there
 * (but for what a receiver answers in a message), its peers read. Addresses that travel are offsets in the writer's heap.
 *
 * Collectives. A rank posts what it calls in one of two slots (sequence number modulo 2), then waits until all have posted the same
 * sequence number, and compares. Two slots suffice: who posts call k has seen everyone's post of k-1, so everyone is done with k-2. Calls
 * of up to SHM_SMALL bytes carry their data in the slot and are over then. Larger ones read, and where it helps write, the peers' buffers
 * directly if they lie in heaps, else go through `staging` in chunks. Within a call ranks keep in step by `tick`: every rank of a comm
 * counts the same ticks.
 *
 * Point to point. See shm_p2p.c. */
#ifndef LOOM_COMM_SHM_H
#define LOOM_COMM_SHM_H

#include "comm/notice.h"
#include "comm/transport.h"
#include "device/remains.h"
#include "device/segment.h"

enum {
    SHM_SMALL = 4096, /* up to here the data is in the post */
    SHM_INLINE = 40,
    SHM_CHUNK = 128 << 10, /* of staging; any size from 64 KiB to 1 MiB does */
    SHM_PIECE = 256 << 10, /* what one step moves, so that other streams get their turn */
    SHM_MESSAGES = 63,     /* in a block; with its tail it is one page */
};
#define SHM_NOWHERE UINT64_MAX /* a buffer that is not in the heap */

/* What a rank calls. The first SHM_INLINE bytes of data lie in the line that the peers poll. */
typedef struct shm_post {
    alignas(64) _Atomic uint64_t sequence; /* + 1, so that 0 is none; written last */
    uint64_t count;
    uint32_t what; /* kind, dtype, op */
    int32_t root;
    union {
        struct {
            uint64_t send, recv; /* of a large call: offsets in the poster's heap */
        };
        char data[SHM_INLINE + SHM_SMALL]; /* of a small one */
    };
} shm_post;

typedef struct shm_box {
    shm_post posts[2];
    alignas(64) _Atomic uint64_t tick;
    alignas(64) _Atomic int32_t failed; /* a loom_status: the rank gave up, for the reason in `reason` */
    _Atomic uint64_t staging;           /* offset of in[2], out[2], each SHM_CHUNK; 0: none yet */
    loom_notice reason;
    /* outbox[size]: first block of messages to each peer; departed[size]: set by a peer that left the comm, the last thing it does here;
     * counts[2][3][size] of all_to_all_v: send counts, send offsets, recv counts */
    alignas(64) _Atomic uint64_t words[];
} shm_box;

typedef enum shm_message_state {
    SHM_EMPTY,
    SHM_POSTED,
    SHM_TAKEN,
    SHM_REFUSED,
    SHM_WITHDRAWN,
    SHM_SEEN /* the sender has read the answer */
} shm_message_state;

typedef struct shm_message {
    alignas(64) _Atomic uint32_t state;
    _Atomic uint32_t filled, drained; /* chunks that the sender staged, that the receiver took */
    uint32_t dtype;
    uint64_t count, tag;
    uint64_t at;          /* offset of the data, or of two staging chunks */
    uint64_t chunk_bytes; /* of one chunk; the whole message where it lies in the heap */
    uint64_t reply_count; /* of a refusal: what the receiver expected */
    uint32_t reply_dtype;
    uint32_t staged; /* data lies in staging, not in a buffer of the program */
} shm_message;
_Static_assert(sizeof(shm_message) == 64, "a message is a cache line");

typedef struct shm_block {
    shm_message messages[SHM_MESSAGES];
    alignas(64) _Atomic uint64_t next; /* offset of the block after it, 0: none yet */
    _Atomic uint32_t left;             /* the receiver has gone on to the next */
} shm_block;

/* Both directions between this rank and one peer, as this rank sees them. */
typedef struct shm_lane {
    shm_block *out;    /* where the next message is posted; NULL: never sent */
    unsigned filled;   /* messages posted in it */
    shm_block **older; /* blocks before it that may still hold messages under way */
    int n_older, older_capacity;
    shm_block *in;         /* where the peer's next message comes; NULL: none yet */
    unsigned next;         /* in it */
    shm_message **arrived; /* posted, and not yet asked for; in order */
    int n_arrived, arrived_capacity;
    loom_call *waiting; /* receives that no message has come for, in the order of their posting */
} shm_lane;

typedef struct shm_comm shm_comm;
struct shm_comm {
    int rank, size;
    int *world_ranks; /* of the members */
    shm_comm *next_grave;
    shm_box *box;    /* mine */
    shm_box **boxes; /* of every member */
    char **bases;    /* of every member's heap */
    loom_doorbell **bells;
    const void **inputs;  /* [size] scratch of the collective under way */
    char *staging;        /* mine; NULL: none yet */
    uint64_t ticks;       /* that this rank has counted */
    pthread_mutex_t lock; /* of lanes: streams of several threads may send */
    shm_lane *lanes;      /* [size] */
};

/* One for all worlds of a device, so that a peer may look there although this rank has left its world. */
typedef struct shm_desk {
    loom_notice waits_in; /* the call that this rank is stuck in, for the diagnosis of others */
} shm_desk;

typedef struct shm_peer {
    loom_segment segment;
    const shm_desk *desk;
    int pid, pidfd;
} shm_peer;

typedef struct shm_world {
    loom_remains remains; /* first: once it is closed and has graves */
    int size;
    shm_desk *desk;   /* mine: the device's */
    shm_peer *peers;  /* by world rank; NULL until open */
    shm_comm *graves; /* comms that this rank has left and peers have not */
} shm_world;

/* A call's scratch memory. */
typedef struct shm_call {
    int resume;
    bool met;        /* all have posted, and the same */
    int scan;        /* members before it were found ready */
    uint64_t target; /* tick that is waited for */
    loom_step (*body)(loom_call *call);
    size_t done, length; /* bytes or elements of the part under way */
    int block, chunk;
    bool gone; /* a peer was found dead or gone when nothing moved; if still nothing moves, it is missed */
    shm_message *message;
    loom_call *next_waiting; /* a receive in its lane's list */
    char *staging;           /* of a send from elsewhere than the heap */
    uint32_t chunks;
} shm_call;

loom_step loom_shm_collective_step(loom_call *call);
loom_step loom_shm_send_step(loom_call *call);
loom_step loom_shm_recv_step(loom_call *call);
void loom_shm_p2p_forget(loom_call *call);                     /* a receive that was abandoned */
void loom_shm_p2p_withdraw(loom_comm *comm);                   /* nothing that this rank posted and nobody took may be taken any more */
void loom_shm_p2p_give_back(loom_device *device, shm_comm *c); /* blocks, to the heap */
bool loom_shm_is_absent(const loom_call *call, int rank);      /* what a collective waits for has not come from `rank` */

static inline shm_comm *shm_of(const loom_comm *comm)
{
    return comm->state;
}

static inline _Atomic uint64_t *shm_outbox(shm_box *box, int peer)
{
    return &box->words[peer];
}

static inline _Atomic uint64_t *shm_departed(shm_box *box, int size, int peer)
{
    return &box->words[size + peer];
}

static inline loom_step shm_over(loom_call *call, loom_status status)
{
    call->task.status = status;
    return LOOM_STEP_OVER;
}

/* The reader of a piece of a peer's box or staging has taken it, and is the only one who reads there: makes its lines dirty in this core's
 * cache. On AMD's processors the owner's next write to a line that another core holds clean takes 27 ns a line, to one that it holds dirty
 * 3 ns (measured, Zen 4), so a store here saves its tenfold there; elsewhere it costs next to nothing. Never done to a program's own
 * buffers. */
static inline void shm_claim(char *piece, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        volatile char *line = piece + i;
        *line = *line;
    }
}

/* This core is about to write these lines: asks for them while there is something else to do. */
static inline void shm_prefetch_for_write(const char *lines, size_t bytes)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < bytes; i += 64)
        __asm__ volatile("prefetchw %0" : : "m"(lines[i])); /* a compiler for any x86-64 would make it a prefetch for reading */
#else
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(lines + i, 1);
#endif
}

/* Offset of `buffer` in this rank's heap; any offset does for an empty one. */
static inline uint64_t shm_offset(const loom_comm *comm, const void *buffer, size_t bytes)
{
    const shm_comm *c = shm_of(comm);
    const shm_world *world = comm->world->states[LOOM_SHM];
    const char *base = c->bases[comm->rank];

    if (!bytes)
        return 0;
    if ((const char *)buffer < base || (const char *)buffer >= base + world->peers[comm->world->rank].segment.bytes)
        return SHM_NOWHERE;
    return (uint64_t)((const char *)buffer - base);
}

#endif
