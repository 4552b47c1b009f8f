/* A double of the CUDA runtime and of NCCL on the host's memory, so that the whole GPU path runs where there is no GPU.
 *
 * Streams are real queues. One thread of the process, the device, runs what is in them; nothing runs before somebody asks for it (a wait, a query, a
 * peer that is stuck in a collective with us), and then in a random order that a seed decides and that keeps only to what CUDA promises: the order
 * within a stream, events, and NCCL's order within a communicator. So a wait that is missing shows.
 *
 * Device memory is NaN when new and when freed, and as long as no queued work runs the host cannot touch it (PROT_NONE).
 *
 * LOOM_DOUBLE_SEED=n     of the order; n % 3 decides how eager the device is: only what is asked for; something else now and then; all alike, with
 *                        streams that rest for a moment although they could go on
 * LOOM_DOUBLE_DROP=n     the n-th wait for an event that was not reached yet is left out: a mutation that tests have to notice
 * LOOM_DOUBLE_DROPPED=p  where that wait was asked for (a back trace) is added to file p
 * LOOM_DOUBLE_FAIL=f:n   the n-th call of function f fails with an error (cudaMallocFromPoolAsync, cudaMemcpyAsync, …); "window:n": the n-th window, after its
 *                        call has returned
 * LOOM_DOUBLE_REPORT=1   how often each of these was called, to stderr when the process ends
 * LOOM_DOUBLE_TELL=n     after n rounds with nothing to run (each about 0.1 ms): what every stream waits for, to stderr
 * LOOM_DOUBLE_RANGES=p   NVTX ranges, a line each, are added to file p
 * LOOM_DOUBLE_DEVICES=n  devices that it pretends to have; 8
 * LOOM_DOUBLE_SHARED=n   bytes of shared memory that a block may ask for; an A100's 166912
 * LOOM_DOUBLE_HEURISTIC=n the status of cuBLASLt's heuristics where they are made to fail; 15, not supported
 * LOOM_DOUBLE_WORKSPACE=n bytes of workspace that each engine of cuDNN wants, but Blackwell's; 4096
 * LOOM_DOUBLE_BLACKWELL=1 cuDNN has the engine of these for attention's gradient */
#ifndef LOOM_DOUBLE_H
#define LOOM_DOUBLE_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

/* --- the queue (queue.c) -------------------------------------------------------------------------------------------------- */

typedef enum double_step { DOUBLE_WAIT, DOUBLE_OVER } double_step;

/* A piece of queued work. Owned by its stream once pushed. */
typedef struct double_op double_op;
struct double_op {
    double_op *next, *next_shared;
    double_step (*run)(double_op *op);   /* on the device's thread; DOUBLE_WAIT: a peer is not ready, try again later */
    void (*drop)(double_op *op);         /* frees it; after it ran, or when the process ends */
    bool (*wanted_by_peer)(double_op *op); /* of work with an order: a peer waits for this */
    double_op *(*clone)(const double_op *op); /* the same once more, for a replay of the graph that it is in; NULL: no graph can have it */
    bool of_host;                        /* it may not touch device memory */
    void *order;                         /* what else it keeps an order with: a communicator; NULL: nothing */
    uint64_t number;                     /* among the work of `order`, as it was queued */
    uint64_t ticket;                     /* its place in the stream */
    struct double_point *point;          /* of a wait: the point that it waits for */
};

cudaError_t double_push(cudaStream_t stream, double_op *op);
void double_finish(cudaStream_t stream); /* waits for all that was pushed, unless it is captured */

/* Work of `order` is run by rising number, whatever its streams. */
typedef struct double_order {
    uint64_t next;   /* the one that may run now */
    uint64_t issued; /* those that were queued */
} double_order;

bool double_is_captured(const void *order); /* some graph has work of it */
/* Counts as asking or waiting: where this thread captures something, that is an error, and the end of the capture. */
bool double_ends_capture(void);

bool double_fails(const char *function); /* counts the call; true: this is the one that fails */
cudaError_t double_remember(cudaError_t error);
uint64_t double_setting(const char *name, uint64_t otherwise);
uint64_t double_random(void); /* of the device's thread */
void double_salt(uint64_t number); /* so that ranks of one seed differ */

/* A kernel of kernels/cuda/shim, as work of `stream`: run(work), then release(work) whatever happened. */
#ifdef __cplusplus
extern "C"
#endif
    int loom_shim_enqueue(struct CUstream_st *stream, void (*run)(void *work), void *work, void (*release)(void *work));

/* --- memory (memory.c) ------------------------------------------------------------------------------------------------------ */

void double_memory_open(void);  /* the device's thread is about to run work */
void double_memory_shut(void);  /* … and has nothing to do */
bool double_is_device(const void *pointer, size_t bytes);
bool double_is_nccl(const void *pointer, size_t bytes);
void *double_take_now(size_t bytes); /* of NCCL's memory; both in no stream's order */
void double_give_now(void *pointer);

typedef struct double_arena_name {
    int pid, fd;
    uint64_t bytes;
} double_arena_name;
void double_arena_get_name(double_arena_name *name);
uint64_t double_arena_offset(const void *pointer);
/* Another process's arena, to read from, or our own. Aborts when it cannot be mapped. */
const char *double_arena_map(const double_arena_name *name);

#endif
