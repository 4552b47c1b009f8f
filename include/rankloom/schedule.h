/* Pipeline schedules as data: for every stage an ordered list of actions. Generated once, proved once, simulated by the planner,
 * executed by lib/pp. No communication here. */
#ifndef RANKLOOM_SCHEDULE_H
#define RANKLOOM_SCHEDULE_H

#include <rankloom/layout.h>
LOOM_BEGIN

typedef enum loom_action_kind {
    LOOM_FORWARD,         /* F */
    LOOM_BACKWARD,        /* B: input and weight gradients together */
    LOOM_BACKWARD_INPUT,  /* I */
    LOOM_BACKWARD_WEIGHT, /* W */
    LOOM_SEND_F,          /* activation to the stage of chunk + 1 */
    LOOM_RECV_F,
    LOOM_SEND_B,          /* gradient to the stage of chunk - 1 */
    LOOM_RECV_B,
    LOOM_UNSHARD,         /* gather weights (ZeRO-3) */
    LOOM_RESHARD,
    LOOM_REDUCE_GRAD,
    LOOM_ACTION_KINDS,
} loom_action_kind;

/* `chunk` is global, 0 .. n_chunks-1 in model order. For SEND_F/RECV_F it is the chunk that produced the activation; for SEND_B/RECV_B the chunk
 * whose input gradient travels. `peer` is the other stage of a send or recv, else -1. */
typedef struct loom_action {
    uint8_t kind;
    int16_t peer;
    int32_t chunk, micro_batch;
} loom_action;

typedef struct loom_stage_actions {
    loom_action *at;
    int count, capacity;
} loom_stage_actions;

typedef struct loom_schedule {
    int stages, chunks_per_stage, micro_batches;
    int *stage_of_chunk; /* [stages * chunks_per_stage] */
    bool has_comm;       /* sends and receives are in the lists */
    loom_stage_actions *stage;
} loom_schedule;

/* Compute-only order of `kind`. LOOM_E_INVALID with the rule and the nearest legal numbers (interleaved: pp divides the micro-batches).
 * GPipe backwards run in ascending micro-batch order. Free with loom_schedule_free(). */
LOOM_API loom_status loom_schedule_generate(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches, loom_schedule **schedule);
LOOM_API loom_status loom_schedule_for_layout(const loom_layout *layout, loom_schedule **schedule); /* with comm */
/* Adds sends and receives: a send right after its producer, a receive posted as early as the order of its channel allows, before
 * its consumer; receives of a pair in the order of the sends. Neighbouring chunks on one stage need none. */
LOOM_API loom_status loom_schedule_add_comm(loom_schedule *schedule);
LOOM_API void loom_schedule_free(loom_schedule *schedule); /* accepts NULL */

/* What a proof found. */
typedef struct loom_schedule_facts {
    int *peak_in_flight;   /* [stages] most micro-batch-chunks whose activations a stage holds */
    int *peak_chunk_slots; /* [stages * chunks_per_stage] the same for each chunk position */
} loom_schedule_facts;
/* Proves: every (micro-batch, chunk, pass) once; causal; on the right stage; pairs FIFO; no cycle under sends that block with `buffers`
 * messages of room per channel (-1: unlimited). LOOM_OK, or LOOM_E_INVALID with the first breach, a deadlock as its shortest cycle in words.
 * `facts` may be NULL; else free with loom_schedule_facts_free(). */
LOOM_API loom_status loom_schedule_verify(const loom_schedule *schedule, int buffers, loom_schedule_facts *facts);
LOOM_API void loom_schedule_facts_free(loom_schedule_facts *facts);

/* torch.distributed.pipelining's CSV: a row a stage, cells like 0F1, 2B3, 1I0, 1W0, compute-only or compute_comms (0SEND_F1 …). */
LOOM_API loom_status loom_schedule_load_csv(const char *path, int stages, int chunks_per_stage, loom_schedule **schedule);
LOOM_API loom_status loom_schedule_save_csv(const loom_schedule *schedule, const char *path);

/* Ideal bubble share (idle / busy of one stage) when every F costs 1 and every B 2: what theory says for this generator. */
LOOM_API double loom_schedule_ideal_bubble(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches);

LOOM_END
#endif
