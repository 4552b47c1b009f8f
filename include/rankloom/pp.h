/* Pipeline parallelism: runs a schedule's actions. A stage is a table of callbacks; this module knows nothing of layers. */
#ifndef RANKLOOM_PP_H
#define RANKLOOM_PP_H

#include <rankloom/mesh.h>
#include <rankloom/schedule.h>
LOOM_BEGIN

/* What a stage can do. `chunk` is global (0 .. n_chunks-1), `slot` is a small index, unique among this chunk's micro-batches in flight, below
 * loom_schedule_slots(chunk): keep saved activations in arrays indexed by it. Buffers are f32 of `boundary` elements, lent for the call, except
 * `input`, which stays valid and unchanged until the backward of the same micro-batch is over. The first chunk has input and d_input NULL, the last
 * has output and d_output NULL (it computes the loss itself). Work may be enqueued on the pipeline's compute stream. */
typedef struct loom_stage_ops {
    void *context;
    loom_status (*forward)(void *context, int chunk, int micro_batch, int slot, const float *input, float *output);
    /* Input gradient and weight gradients together. */
    loom_status (*backward)(void *context, int chunk, int micro_batch, int slot, const float *input, const float *d_output, float *d_input);
    /* For zero-bubble schedules, else NULL: the two halves. The weight half may come later; what it needs is kept by the stage under `slot`. */
    loom_status (*backward_input)(void *context, int chunk, int micro_batch, int slot, const float *input, const float *d_output, float *d_input);
    loom_status (*backward_weight)(void *context, int chunk, int micro_batch, int slot, const float *input);
} loom_stage_ops;

typedef struct loom_pipeline loom_pipeline; /* opaque */

/* `schedule` has sends and receives (loom_schedule_for_layout) and must outlive the pipeline, as must mesh and compute stream.
 * boundary: f32 elements that one micro-batch hands from chunk to chunk on this rank. All buffers are allocated here: loom_schedule_buffers() of one boundary each (f32, rounded up to 64 bytes),
 * inputs as LOOM_MEM_ACTIVATIONS, messages as LOOM_MEM_COMM. */
LOOM_API loom_status loom_pipeline_open(loom_mesh *mesh, const loom_schedule *schedule, size_t boundary, const loom_stage_ops *ops,
                                        loom_stream *compute, loom_pipeline **pipeline);
LOOM_API void loom_pipeline_close(loom_pipeline *pipeline); /* accepts NULL */

/* Runs every action of this stage once: one training step's forwards and backwards. Returns when all is done, sends included.
 * The first failure (of a callback, or of a message: LOOM_E_PEER, LOOM_E_MISMATCH) ends the step with a message that says in which action;
 * the pipeline is then only good for loom_pipeline_close(), and other stages end when their messages do, at the latest at the comm's deadline. */
LOOM_API loom_status loom_pipeline_step(loom_pipeline *pipeline);
/* The same without the wait at its end: where streams run by themselves it returns when all is enqueued, and what follows on the compute stream comes after
 * it. So a graph can have it (device.h). Times are of the enqueueing then. */
LOOM_API loom_status loom_pipeline_enqueue(loom_pipeline *pipeline);

/* What the last step did, action by action, in order: for the trace, and to compare with the simulated order. Borrowed. */
typedef struct loom_pipeline_time {
    loom_action action;
    double begin_s, end_s; /* monotonic */
    double wait_s;         /* of which waiting for a message to arrive, or for one to be taken so that its buffer is free */
} loom_pipeline_time;
LOOM_API const loom_pipeline_time *loom_pipeline_times(const loom_pipeline *pipeline, int *count);
LOOM_API double loom_pipeline_wait_s(const loom_pipeline *pipeline); /* sum of wait_s of the last step */

/* "F c0 m3", "B c1 m0", "recv F c0 m3", into `text`; returns text. */
LOOM_API char *loom_pipeline_label(const loom_action *action, char *text, size_t bytes);

LOOM_END
#endif
