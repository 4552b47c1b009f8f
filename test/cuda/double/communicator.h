/* NCCL's communicators: how ranks meet (communicator.c) and what they exchange (nccl.c). */
#ifndef LOOM_DOUBLE_COMMUNICATOR_H
#define LOOM_DOUBLE_COMMUNICATOR_H

#include "double.h"

#include <nccl.h>
#include <stdatomic.h>

enum { DOUBLE_RANKS_MAX = 16 };

/* A memfd of some process. */
typedef struct double_fd {
    int pid, fd;
} double_fd;

/* What a communicator knows of some memory. */
typedef struct double_known {
    int32_t registered, symmetric; /* 1 or 0 */
    uint64_t offset;               /* from where the registration begins */
} double_known;

/* What a rank calls, for its peers to compare and to read from. */
typedef struct double_post {
    int32_t kind, type, op, root, of_graph;
    uint64_t count, send; /* offset in the poster's arena */
    double_known known[2]; /* whether the communicator knows what is sent and received */
} double_post;

typedef struct double_window_post {
    uint64_t bytes;
    int32_t flags;
} double_window_post;

typedef struct double_split {
    int32_t color, key;
    double_fd segment; /* of the new communicator, if this rank is its first */
} double_split;

typedef struct double_rank {
    _Atomic uint64_t arrived;
    double_arena_name arena;
    _Atomic uint64_t posted, taken; /* collectives: said what it calls; has read what the others sent */
    double_post post;
    _Atomic uint64_t split_posted;
    double_split split[2];
    _Atomic uint64_t windows_posted;
    double_window_post window[2];
    _Atomic uint64_t stuck; /* its device waits in this communicator for a peer */
    _Atomic int aborted, closing;
} double_rank;

/* Messages from one rank to another, one at a time. */
typedef struct double_lane {
    _Atomic uint64_t sent, taken;
    double_post post;
} double_lane;

/* What all ranks of a communicator map. */
typedef struct double_segment {
    double_rank ranks[DOUBLE_RANKS_MAX];
    double_lane lanes[DOUBLE_RANKS_MAX][DOUBLE_RANKS_MAX]; /* [from][to] */
} double_segment;

struct ncclComm {
    double_order order; /* of its work, whatever the streams; first */
    _Atomic int users;  /* the handle, and queued work */
    int rank, size;
    double_segment *segment;
    int fd; /* of the segment, if it is ours and peers may still open it through us; else -1 */
    const char *bases[DOUBLE_RANKS_MAX];
    bool ready;
    uint64_t collectives; /* that were begun, by the device */
    uint64_t sent[DOUBLE_RANKS_MAX], received[DOUBLE_RANKS_MAX];
    _Atomic int error; /* ncclResult_t: what went wrong after a call had returned */
    _Atomic int aborted;
    char message[256];

    /* a split under way; the host's */
    ncclComm_t *split_into;
    uint64_t splits;
    int split_fd;

    /* registered.c; the host's */
    struct double_registration *registrations;
    uint64_t windows;
    ncclWindow_t *window_into; /* of one under way */
    struct double_registration *window_made;
    ncclComm_t next; /* of the process */

    struct double_job *job; /* nccl.c: calls of it that are not launched yet; NULL: none */
};

/* registered.c */
void double_comm_list(ncclComm_t comm);
void double_comm_unlist(ncclComm_t comm, bool aborted); /* ends the process where registrations are left and it was not aborted */
double_known double_find_registration(ncclComm_t comm, const void *pointer, size_t bytes);
bool double_window_is_under_way(ncclComm_t comm); /* goes on with it, if it is */

void double_comm_fail(ncclComm_t comm, ncclResult_t error, const char *words);
/* What every call on it begins with: one that has failed takes no more, nor does one that is in progress as far as the caller has asked, which fails by it. */
ncclResult_t double_comm_enter(ncclComm_t comm);

void double_comm_drop(ncclComm_t comm);

void double_launch(ncclComm_t comm);   /* what was called on it is in its streams from here on */
bool double_is_grouped(void);          /* this thread is between ncclGroupStart() and ncclGroupEnd() */
void double_end_grouped_closing(void); /* destroys what was to be destroyed in the group, all at once */

#endif
