/* The TCP transport's structures: one connection between every two ranks, parcels on it, and the two kinds of calls on top. */
#ifndef LOOM_COMM_TCP_H
#define LOOM_COMM_TCP_H

#include "comm/bootstrap.h"
#include "comm/ordered.h"
#include "device/wait.h"

enum {
    TCP_EAGER = 8192,      /* messages up to here travel with their announcement */
    TCP_BUFFER = 64 << 10, /* a connection's read-ahead */
    TCP_NOTICE_BYTES = 512,
};

/* Classes of parcels beside those of collectives. */
enum {
    TCP_ANNOUNCE =
        LOOM_PARCEL_TRANSPORTS_OWN, /* a send: number is its tag, part its id, count and dtype are checked; with the data if it is short */
    TCP_ANSWER,                     /* to announcement `part`: flags is a tcp_answer; count and dtype of a refusal */
    TCP_DATA,                       /* of announcement `part` */
    TCP_GAVE_UP,                    /* number is the status, data the reason */
    TCP_WAITS_IN,                   /* data is the call that the sender is stuck in, "" when it no longer is */
    TCP_GOODBYE,
};

typedef enum tcp_answer { TCP_TAKEN, TCP_GO_ON, TCP_REFUSED } tcp_answer;

/* What goes before a parcel's data. Ranks of one world have one byte order: the greeting compares. */
typedef struct tcp_frame {
    uint32_t magic;
    uint8_t class, dtype;
    uint16_t flags;
    uint64_t comm, number, count, bytes;
    uint32_t part, zero;
} tcp_frame;
_Static_assert(sizeof(tcp_frame) == 48, "no holes");

typedef struct tcp_link {
    int fd; /* -1: none (this rank itself, or dead) */
    bool dead, goodbye;
    char why[128]; /* it is dead */
    char waits_in[TCP_NOTICE_BYTES];
    loom_parcel *expected, *arrived; /* in order */
    uint32_t next_id;                /* of announcements to this peer */

    loom_parcel *out, **out_last;
    tcp_frame out_frame;
    size_t out_done; /* bytes of frame and data of `out` that are written */

    tcp_frame in_frame;
    size_t in_done;    /* bytes of frame and data that are read */
    loom_parcel *into; /* what the data goes to; NULL: is thrown away */
    char *buffer;      /* read ahead: [begin, end) */
    size_t begin, end;
} tcp_link;

typedef struct tcp_world {
    pthread_mutex_t lock; /* of everything below: streams of several threads may call */
    int listeners[2], n_listeners;
    unsigned char token[32]; /* of rank 0's card after open: who knows it may connect */
    tcp_link *links;         /* by world rank */
    int size;
    uint64_t comms; /* that this rank has prepared */
    loom_poll_source source;
} tcp_world;

typedef struct tcp_comm {
    uint64_t id;
} tcp_comm;

/* A point-to-point call's scratch memory. */
typedef struct tcp_message {
    int resume;
    uint32_t id;
    loom_parcel announce, answer, data;
} tcp_message;

typedef struct tcp_call {
    union {
        ordered_call ordered; /* a collective; first, where loom_ordered_step() looks for it */
        tcp_message message;
    };
    bool noticed; /* peers were told that we are stuck in it */
} tcp_call;

/* tcp_open.c */
loom_status loom_tcp_present(loom_world *world, const char *hint, char card[LOOM_CARD_BYTES]);
loom_status loom_tcp_connect_all(loom_world *world, const char (*cards)[LOOM_CARD_BYTES]);

/* tcp_link.c: all with the lock held */
void loom_tcp_send(tcp_link *link, loom_parcel *parcel);
void loom_tcp_expect(tcp_link *link, loom_parcel *parcel);
void loom_tcp_forget(tcp_link *link, loom_parcel *parcel);
/* A parcel of the transport's own with a copy of `data`; false without memory. */
bool loom_tcp_send_copy(tcp_link *link, loom_parcel what, const void *data, size_t bytes);
bool loom_tcp_drive(tcp_world *w);                  /* reads and writes what can be; whether anything moved */
void loom_tcp_purge(tcp_link *link, uint64_t comm); /* what arrived for a comm that is gone, and what was not yet begun to be sent */
bool loom_tcp_is_idle(const tcp_link *link);        /* nothing to write */
void loom_tcp_free_link(tcp_link *link);

/* tcp_p2p.c */
loom_step loom_tcp_message_step(loom_call *call);
void loom_tcp_message_drop(loom_call *call);

extern const loom_mail loom_tcp_mail;

static inline tcp_world *tcp_world_of(const loom_comm *comm)
{
    return comm->world->states[LOOM_TCP];
}

static inline tcp_link *tcp_link_to(const loom_comm *comm, int rank)
{
    return &tcp_world_of(comm)->links[comm->members[rank]];
}

static inline uint64_t tcp_id(const loom_comm *comm)
{
    return ((const tcp_comm *)comm->state)->id;
}

#endif
