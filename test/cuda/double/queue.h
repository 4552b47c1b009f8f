/* The insides of the queue, for graphs. Everything here is under the device's lock. */
#ifndef LOOM_DOUBLE_QUEUE_H
#define LOOM_DOUBLE_QUEUE_H

#include "double.h"

enum { DOUBLE_BRANCHES_MAX = 256 };

/* Where in a capture an event was recorded: behind the `at`-th piece of work of a branch, with what of the other branches comes before that. */
typedef struct double_place {
    uint64_t capture; /* its number */
    int branch;
    uint32_t at, seen[DOUBLE_BRANCHES_MAX];
} double_place;

/* A point in a stream, as an event had it when it was recorded: later records of the event make new points. */
typedef struct double_point {
    int users;
    struct CUstream_st *stream; /* held */
    uint64_t ticket;
    uint64_t ns;         /* of an event that notes the time: when the stream got there */
    double_place *place; /* in a capture, and in no stream; else NULL */
} double_point;

struct CUstream_st {
    struct CUstream_st *next;
    int users; /* the handle, and points */
    double_op *head, **tail;
    double_op *shared, **shared_tail; /* those of them that have an order, and peers */
    uint64_t pushed, done;
    uint64_t wanted;  /* the host has asked for everything up to here */
    uint64_t target;  /* of this round: with what others need of it */
    uint64_t held_ns; /* it rests until then, as if the hardware were busy: peers get ahead of it */
    bool stuck;       /* its head found a peer that is not ready, in this round */
    bool destroyed;
    cudaGraph_t capture; /* what is pushed goes there; NULL: into the queue */
    int branch;          /* of it */
};

struct CUevent_st {
    double_point *point; /* NULL: never recorded */
    bool timed;
};

void double_lock(void);
void double_unlock(void);

/* To the end of the queue, whatever the stream. */
void double_enqueue(cudaStream_t stream, double_op *op);
void double_enqueue_wait(cudaStream_t stream, double_point *point);
double_point *double_enqueue_stamp(cudaStream_t stream); /* notes the time in the point */
double_point *double_new_point(cudaStream_t stream, uint64_t ticket);
void double_drop_point(double_point *point); /* accepts NULL */
/* A queue without a handle: wants nothing by itself, and goes when it has run all that is put into it before the lock is given back. */
cudaStream_t double_open_queue(void);
void double_release_streams(cudaGraph_t captured); /* what is pushed into them is queued again */
bool double_leaves_out_wait(void); /* LOOM_DOUBLE_DROP: counts the call; true: this is the one */

/* graph.c: what the calls on a stream that is captured do, or on an event that was recorded there. */
cudaError_t double_capture(cudaStream_t stream, double_op *op);
cudaError_t double_capture_record(cudaStream_t stream, cudaEvent_t event, bool external);
cudaError_t double_capture_wait(cudaStream_t stream, cudaEvent_t event);
/* The capture of the stream is good for nothing any more. Returns `error`. */
cudaError_t double_invalidate(cudaStream_t stream, cudaError_t error);

#endif
