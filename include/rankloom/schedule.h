/* Pipeline schedules as data: for every stage an ordered list of actions. Generated once, proved once, simulated by the planner,
 * executed by lib/pp. No communication here. */
#ifndef RANKLOOM_SCHEDULE_H
#define RANKLOOM_SCHEDULE_H

#include <rankloom/layout.h>
#include <rankloom/text.h>
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
 * Backwards of a chunk, and weight gradients, run in ascending micro-batch order in every generator (GPipe too), so a gradient is
 * summed in the same order whatever the schedule. Free with loom_schedule_free().
 *   gpipe        all forwards, chunk by chunk, then all backwards; any number of chunks
 *   1f1b         one chunk a stage
 *   interleaved  several chunks a stage, groups of `stages` micro-batches; with one chunk it is 1f1b
 *   zb-h1        1F1B with split backward; stage s keeps up to s weight gradients back and fills its last waits with them
 *   zb-v         two chunks a stage, the second on the way back; split backward */
LOOM_API loom_status loom_schedule_generate(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches, loom_schedule **schedule);
LOOM_API loom_status loom_schedule_for_layout(const loom_layout *layout, loom_schedule **schedule); /* with comm */
/* Adds sends and receives. A send stands right after its producer. A receive means posting it: the executor waits for the data right before
 * the consumer. Receive k + 1 of a channel (ordered pair of stages) stands before the consumer of k, so that it is on its way while k is used, and
 * earlier where its message is made earlier (F 1 unit of time, B 2, I and W 1). So the lowered schedule runs even when sends block until
 * their receive is posted. Receives of a channel are in the order of the sends. Neighbouring chunks on one stage need none.
 * LOOM_E_INVALID when the order cannot run. */
LOOM_API loom_status loom_schedule_add_comm(loom_schedule *schedule);
LOOM_API void loom_schedule_drop_comm(loom_schedule *schedule); /* takes sends and receives out again */
LOOM_API void loom_schedule_free(loom_schedule *schedule); /* accepts NULL */
LOOM_API loom_status loom_schedule_copy(const loom_schedule *schedule, loom_schedule **copy);

/* What an action needs from another stage before it can run, and what it makes for another stage: the stage, or -1 for none. */
LOOM_API int loom_action_source(const loom_schedule *schedule, const loom_action *action);
LOOM_API int loom_action_target(const loom_schedule *schedule, const loom_action *action);
/* "F of micro-batch 1 on chunk 0" into `text`; returns text. */
LOOM_API char *loom_action_describe(const loom_action *action, char *text, size_t bytes);

/* What a proof found. */
typedef struct loom_schedule_facts {
    int *peak_in_flight;    /* [stages] most micro-batch-chunks whose activations a stage holds: from F to B, or to W where B is split */
    int *peak_before_input; /* [stages] the same, counted from F to B or I */
    int *peak_chunk_slots;  /* [stages * chunks_per_stage] peak_in_flight of each chunk, by its global number */
    int *peak_receives;     /* [stages] most receives that are posted and whose message is not used yet; 0 without comm */
} loom_schedule_facts;
/* Proves: every (micro-batch, chunk, pass) once; causal; on the right stage; pairs FIFO; no cycle under sends that block with `buffers`
 * messages of room per channel beyond the receives posted (0: rendezvous, -1: unlimited). A compute-only schedule is judged as a program
 * would run it that sends right after the producer and receives right before the consumer. LOOM_OK, or LOOM_E_INVALID with the first breach, a deadlock as the shortest cycle of waiting
 * stages in words. `facts` may be NULL; else filled when the schedule is sound; free with loom_schedule_facts_free(). */
LOOM_API loom_status loom_schedule_verify(const loom_schedule *schedule, int buffers, loom_schedule_facts *facts);
LOOM_API void loom_schedule_facts_free(loom_schedule_facts *facts);
/* The fewest buffers a channel with which a schedule that runs at all runs under sends that block. */
LOOM_API int loom_schedule_least_buffers(const loom_schedule *schedule);
/* What loom_schedule_verify() said of `schedule` as a JSON object: with its `facts`, or, `facts` NULL, with the `reason` against it. `source` names the file;
 * `layout` is what the schedule was made for, or NULL. Free *text with loom_text_free(). */
LOOM_API loom_status loom_schedule_verdict_json(const char *source, const loom_layout *layout, const loom_schedule *schedule, int buffers, const loom_schedule_facts *facts,
                                                const char *reason, char **text);

/* How many buffers of one boundary the executor of lib/pp allocates on `stage` (the schedule has comm): `inputs` wait for the backward that
 * reads them again, `messages` are gradients that have arrived and what is on its way to other stages. */
LOOM_API loom_status loom_schedule_buffers(const loom_schedule *schedule, int stage, int *inputs, int *messages);

/* Most micro-batches of `chunk` that are between forward and the end of backward: how many slots its saved activations need. */
LOOM_API int loom_schedule_slots(const loom_schedule *schedule, int chunk);
/* Most micro-batches of `chunk` whose backward has begun and has not ended: 1 where it is whole, more where W is kept back. */
LOOM_API int loom_schedule_open_backwards(const loom_schedule *schedule, int chunk);

/* torch.distributed.pipelining's CSV: a row a stage, cells like 0F1, 2B3, 1I0, 1W0, compute-only or compute_comms (0SEND_F1, 1RECV_F1,
 * 0WAIT_SEND_F1, 0UNSHARD …), empty cells are idle slots. `stages` and `chunks_per_stage` 0: as the file has them. Chunks sit where their actions
 * are. (1F0;1B0)OVERLAP_F_B is read as its parts in order. All problems of a file come in one message, with row and cell; whether the order
 * runs is for loom_schedule_verify(). Saving writes compute_comms, with the waits that torch from 2.15 on wants, when has_comm, else
 * compute-only. */
LOOM_API loom_status loom_schedule_load_csv(const char *path, int stages, int chunks_per_stage, loom_schedule **schedule);
LOOM_API loom_status loom_schedule_parse_csv(const char *source, const char *text, size_t bytes, int stages, int chunks_per_stage, loom_schedule **schedule);
LOOM_API loom_status loom_schedule_save_csv(const loom_schedule *schedule, const char *path);

/* Megatron's order: a line a stage, a number an action: chunk k of the stage, from 1, forward as k and backward as -k; the n-th time is micro-batch n - 1.
 * LOOM_E_UNSUPPORTED for what it cannot say: split backwards, other orders of micro-batches, chunks that are not dealt out round after round.
 * Sends and receives are left out. '#' begins a comment. */
LOOM_API loom_status loom_schedule_order_text(const loom_schedule *schedule, char **text);
LOOM_API loom_status loom_schedule_load_order(const char *path, loom_schedule **schedule);
LOOM_API loom_status loom_schedule_parse_order(const char *source, const char *text, size_t bytes, loom_schedule **schedule);

/* Ideal bubble share (idle / busy of one stage, until the last stage is done) when every F costs 1 and every B 2 (I and W 1 each) and
 * messages take no time: what theory says for this generator. Exact for all of gpipe, 1f1b, interleaved and zb-h1, for zb-v from
 * 2 * stages - 1 micro-batches on (below that a lower bound). */
LOOM_API double loom_schedule_ideal_bubble(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches);
/* The same as a share of the whole time: idle / (idle + busy). */
LOOM_API double loom_schedule_ideal_idle(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches);
/* The fewest micro-batches that the generator takes with which that share is at most `idle`. */
LOOM_API int loom_schedule_micro_batches_for(loom_schedule_kind kind, int stages, int chunks_per_stage, double idle);

/* --- virtual time --------------------------------------------------------------------------------------------------------
 * Every stage runs its list in order on one compute queue; messages travel beside it, one after another on each ordered pair of stages;
 * UNSHARD and REDUCE_GRAD run on one collective queue of the stage, in order, beside both. */
typedef struct loom_schedule_costs {
    void *context; /* handed to the callbacks; a NULL callback means 0 */
    double (*action_us)(void *context, int stage, const loom_action *action); /* F, B, I, W, UNSHARD, REDUCE_GRAD */
    double (*transfer_us)(void *context, int from, int to, const loom_action *producer); /* how long the message of this F, B, I or send fills its link */
    double (*latency_us)(void *context, int from, int to); /* on top: delays the arrival, does not fill the link */
    double stall_share; /* of each transfer that also holds up the sender's compute queue: 0 asynchronous, 1 blocking sends */
} loom_schedule_costs;

typedef struct loom_action_time {
    double start_us, end_us;
    int cause_stage, cause_index; /* the action whose end let this one start: the one before it, or the producer of what it waited for; -1: none */
} loom_action_time;

typedef struct loom_timeline {
    int stages;
    double makespan_us;
    double *busy_us, *first_us, *last_us; /* [stages] computing; start of the first and end of the last action */
    loom_action_time **at;                /* [stages][count of that stage's actions] */
} loom_timeline;

/* Works with or without comm in the lists. LOOM_E_INVALID when the order cannot run to its end (loom_schedule_verify() says why). */
LOOM_API loom_status loom_schedule_simulate(const loom_schedule *schedule, const loom_schedule_costs *costs, loom_timeline *timeline);
LOOM_API void loom_timeline_free(loom_timeline *timeline);

/* The timeline as SVG: a row a stage, and below it what each stage holds in flight. `real`: times are microseconds and are told as such; else they are
 * plain units. Caller frees with loom_text_free(). */
LOOM_API loom_status loom_schedule_svg(const loom_schedule *schedule, const loom_timeline *timeline, const char *title, bool real, char **text);

LOOM_END
#endif
