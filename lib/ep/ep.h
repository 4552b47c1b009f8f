/* What the files of lib/ep share. */
#ifndef LOOM_EP_EP_H
#define LOOM_EP_EP_H

#include <rankloom/ep.h>
#include <rankloom/sizes.h>

/* Device memory that grows with the load. */
typedef struct loom_ep_buffer {
    float *data;
    int64_t capacity; /* elements */
    loom_memory_use use;
} loom_ep_buffer;

struct loom_ep {
    loom_ep_config config;
    loom_mesh *mesh;
    loom_device *device;
    loom_kernels *kernels;
    loom_stream *compute; /* borrowed */
    loom_stream *comm;    /* own: tokens on their way */
    loom_event *computed, *communicated;
    loom_comm *ep, *etp; /* borrowed from the mesh */
    int ep_size, etp_size;

    /* Rows between their stations; all layers use the same. */
    loom_ep_buffer leaving;   /* choices of this rank's tokens, sorted by expert, before they go and after they come back */
    loom_ep_buffer arrived;   /* rows that the ep group sent here, by source rank */
    loom_ep_buffer gathered;  /* those of all etp ranks */
    loom_ep_buffer partial;   /* what each etp rank computed of this rank's rows */
    loom_ep_buffer of_expert; /* results, or gradients, sorted by local expert; that of the activation, too, where backward is split */

    loom_ep_shape shape;
    int32_t *positions, *place_of_position; /* [cp, seq] of the tokens of a sequence, and the other way round: rank * seq + number there */
    int64_t counted;      /* tokens of each sequence here that are no padding: the first */
    int64_t whole_tokens; /* of a whole micro-batch, without padding */
    double losses;        /* of a micro-batch; 0: whole_tokens */

    loom_moe_layer **layer;
    int layers;
    double *loads; /* device: [layers][experts] choices in this step, those of them that were dropped, and room for a loom_ep_load */
    double *counted_choices; /* host: the same, of this rank */
};

/* One side of an exchange: rows for or from each rank, and where they begin. */
typedef struct loom_ep_rows {
    const size_t *count, *at;
} loom_ep_rows;

/* One expert of this rank. */
typedef struct loom_ep_expert {
    loom_param gate, up, down;
} loom_ep_expert;

struct loom_moe_layer {
    loom_ep *ep;
    const loom_moe *moe;
    int64_t hidden, ffn;  /* ffn: columns of an expert that this etp rank has */
    int64_t experts_here; /* local expert e is expert e + ep rank * experts_here */
    int index;            /* in ep->layer */
    loom_router_rule rule;
    loom_param router, bias;
    loom_ep_expert *expert;
};

struct loom_moe_record {
    loom_ep *ep;
    loom_expert_shape shape;
    int64_t balanced[LOOM_ROWS_BUFFERS]; /* what the buffers that follow the load begin with, here and in ep */
    int64_t capacity, hidden, ffn, experts, experts_here, top_k, units;
    float *memory; /* what the pointers of this rank's tokens point into */
    float *logits_TE, *scores_TE, *lse_T, *dlogits_TE, *weights_TK, *dweights_TK, *returned_RD;
    float *stats, *slopes; /* counts and score sums of the micro-batch, [2][unit][expert], and what the balance loss makes of them */
    int32_t *integers;
    int32_t *ids_TK, *kept_TK; /* choices; those that are not dropped, else -1: the same where nothing is dropped */
    int32_t *rows_TK, *order_R, *offsets_E, *counts_E; /* row of each choice, choice of each row, first row of each expert */
    int32_t *all_choices, *host_choices; /* of the whole micro-batch, where some may be dropped: [cp][tp][tokens, top_k] */
    int32_t *tables; /* counts of [etp][ep][local expert], who sends what here */
    double *balance; /* the loss, as gradients see it */

    int64_t tokens, first; /* of this micro-batch */
    int32_t *host_offsets, *host_counts, *host_tables;
    size_t *sent, *received, *sent_at, *received_at; /* [ep] rows */
    size_t *of_etp, *of_etp_at;                      /* [etp] rows that arrived at each member */
    int32_t *rows_E1, *host_rows_E1; /* [experts_here + 1] first row of each expert that is here; on the device, and on the host */
    int64_t rows;                    /* of all of them */
    int64_t choices;                                 /* of this rank's tokens that go to an expert */
    int64_t *chosen;                                 /* [experts] choices of this rank's tokens, dropped or not */
    loom_ep_buffer x, wide, active; /* by local expert: input, gate and up side by side, activation */
    loom_ep_buffer out; /* results by local expert, of the all-gather dispatcher; then, where backward is split, their gradient */
    loom_ep_buffer all_weights, all_ids; /* of the all-gather dispatcher: weights and int32 choices of all tokens */
    loom_ep_buffer places;          /* int32: for each row as gathered its place among the rows by expert, then the reverse; or, of all tokens, the
                                       choice of each row and the row of each choice */
};

/* open.c: at least `count` elements, `balanced` and in steps from there; what was there is lost. Waits for both streams before it lets go of memory. */
loom_status loom_ep_reserve(loom_ep *ep, loom_ep_buffer *buffer, int64_t count, int64_t balanced);

/* capacity.c: record->kept_TK from ids_TK. Collective over tp and cp. */
loom_status loom_ep_drop(loom_ep *ep, const loom_moe *moe, loom_moe_record *record);
int64_t loom_ep_choices_count(const loom_ep *ep, int64_t top_k); /* of record->all_choices */

/* exchange.c. record->kept_TK sorted by expert, and counted. */
loom_status loom_ep_count(loom_ep *ep, loom_moe_record *record);
/* The counts travel, and the record says who sends what to whom. */
loom_status loom_ep_plan(loom_ep *ep, loom_moe_record *record);
/* Rows in ep->leaving go to their experts, on their way to to_RD [record->rows, hidden]; with only one rank they are there already. */
loom_status loom_ep_send_out(loom_ep *ep, loom_moe_record *record, float *to_RD);
/* The rows that came are in to_RD, sorted by local expert. */
loom_status loom_ep_take_in(loom_ep *ep, loom_moe_record *record, float *to_RD);
/* from_RD, rows by local expert of which each etp rank has a part of the sum, back to where they came from: `to` [choices, hidden]. */
loom_status loom_ep_send_back(loom_ep *ep, loom_moe_record *record, const float *from_RD, float *to);
/* Later work of compute sees what send_back delivered. */
loom_status loom_ep_wait_back(loom_ep *ep);
/* Nothing travels: every expert is on this rank alone. */
bool loom_ep_alone(const loom_ep *ep);

/* Pieces of exchanges. The streams of tokens and of compute follow each other; rows of this rank go to every rank of `comm`; rows of every rank go
 * home, where they land side by side; and such parts are added in rank order: to [count] = the parts in ep->partial. */
loom_status loom_ep_comm_after_compute(loom_ep *ep);
loom_status loom_ep_compute_after_comm(loom_ep *ep);
loom_status loom_ep_gather(loom_ep *ep, loom_comm *comm, loom_dtype dtype, int64_t width, const void *from, loom_ep_rows all, void *to);
loom_status loom_ep_scatter(loom_ep *ep, loom_comm *comm, int64_t width, const float *from, loom_ep_rows all, float *to);
loom_status loom_ep_sum_parts(loom_ep *ep, int parts, int64_t count, float *to);
void loom_ep_offsets(const size_t *counts, int size, size_t *offsets);          /* where each of `size` begins */
int64_t loom_ep_arrived_rows(const loom_ep *ep, const loom_moe_record *record); /* at this rank over ep */
float *loom_ep_by_source(const loom_ep *ep);                                    /* where rows lie by source rank, those of all etp ranks */

/* gathered.c: the same layer by the all-gather dispatcher. */
bool loom_ep_gathers(const loom_ep *ep);
loom_status loom_ep_gathered_dispatch(loom_ep *ep, loom_moe_record *record, const float *x);
loom_status loom_ep_gathered_compute(loom_moe_layer *layer, loom_moe_record *record);
loom_status loom_ep_gathered_combine(loom_ep *ep, const loom_moe_record *record, float *y, bool accumulate);
loom_status loom_ep_gathered_dispatch_backward(loom_ep *ep, loom_moe_record *record, const float *dy);
loom_status loom_ep_gathered_compute_backward(loom_moe_layer *layer, loom_moe_record *record);

/* experts.c: out [rows, hidden] of the rows in record->x. Backward: from the gradient of those results to that of x in ep->of_expert, and to the
 * weights' gradients, or where these come later to what the record keeps for them. */
loom_status loom_ep_experts(loom_moe_layer *layer, loom_moe_record *record, float *out);
float *loom_ep_gradient(const loom_ep *ep, const loom_moe_record *record); /* where backward finds the gradient of the results */
loom_status loom_ep_experts_backward(loom_moe_layer *layer, loom_moe_record *record);
loom_status loom_ep_experts_backward_weight(loom_moe_layer *layer, loom_moe_record *record);

#endif
