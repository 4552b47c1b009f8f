/* Expert parallelism: a mixture-of-experts layer whose experts are spread over ranks. Knows nothing of transformers.
 *
 * Parallel folding: the ranks of a stage, tp x cp x dp of them, are for experts also etp x ep x edp. Each ep rank has experts / ep whole
 * experts, of which each etp rank has some of the columns; edp ranks have the same and add up their gradients.
 *
 * Every token of the stage is routed by exactly one rank. With sequence parallelism (or tp 1) a rank routes the tokens it holds between the tp
 * regions; without it tp ranks hold the same tokens and each takes its share of them (loom_moe_own_tokens), so that none is computed twice:
 * the caller puts the shares together again, which the sum that leaves a tp region does by the way.
 *
 * A layer's forward is dispatch, compute, combine; its backward the same three, and where the gradients of weights come later (zero-bubble schedules)
 * a fourth that makes them. Between the three tokens travel on a stream of their own, so the caller may compute something else (shared experts). Every
 * rank of ep and etp makes every call, also with no token: the counts are exchanged first, and a rank that gets none takes part with zero rows. No token
 * is dropped, whatever the load: buffers grow.
 *
 * Two dispatchers, and the bytes that a rank hands to others in forward; backward is as much again (loom_ep_dispatcher), with n = ep, T tokens here:
 *   alltoall   counts, 4 experts (n - 1)/n; then 4 hidden for each choice whose expert is elsewhere, and as much for each choice of others that is here
 *   allgather  counts, 4 (n - 1); (n - 1) T 4 (hidden + 2 top_k) of tokens with their choices; of the sums 4 hidden for each token of the others.
 *              Backward: 4 (hidden) there, 4 (hidden + top_k) back
 *   and with etp, what arrived goes also to the other etp ranks, and parts of the sum come back.
 *
 * Dropping is an option (capacity_factor): an expert has room for ceil(capacity_factor * tokens * top_k / experts) choices of each sequence, and serves
 * them in the order of the sequence, a token's best choice first. What finds no room adds nothing to its token; the weights of the token's other
 * choices stay. So what is dropped depends on no layout and on no later token. Balance loss and loads count choices, dropped or not.
 *
 * The choice depends on a token's logits alone. The sum over its experts has the order of the choice, best first, whatever rank they are on; with
 * allgather each rank sums its own, and these parts are added in rank order. Two runs of one layout give the same bits.
 *
 * The balance loss is 'switch': E / k * sum over experts of (share of the choices that went to e, the sum over e being k) * (mean score of e), over
 * all tokens of one micro-batch, on whatever tp and cp ranks they are; or 'sequence': the same inside each sequence, with scores divided by
 * their sum over experts, then the mean over sequences. Its gradient is that of the mean over micro-batches times the count of tokens whose loss
 * counts (loom_ep_begin), to match losses that are sums over tokens; so is that of the z-loss, which is a mean over tokens. */
#ifndef RANKLOOM_EP_H
#define RANKLOOM_EP_H

#include <rankloom/kernels.h>
#include <rankloom/mesh.h>
#include <rankloom/shard.h>
LOOM_BEGIN

typedef struct loom_ep loom_ep;                 /* what the layers of one model share; opaque */
typedef struct loom_moe_layer loom_moe_layer;   /* one layer of experts and its router; opaque */
typedef struct loom_moe_record loom_moe_record; /* what a layer keeps from forward to backward, for one micro-batch; opaque */

typedef enum loom_ep_dispatcher { LOOM_EP_ALLTOALL, LOOM_EP_ALLGATHER, LOOM_EP_DISPATCHERS } loom_ep_dispatcher;
LOOM_API const char *loom_ep_dispatcher_name(loom_ep_dispatcher dispatcher); /* "alltoall", "allgather" */

typedef struct loom_ep_config {
    loom_ep_dispatcher dispatcher;
    double capacity_factor; /* 0: nothing is dropped */
    bool split_backward;    /* gradients of the experts' weights come later, by loom_moe_backward_weight(); records keep what they need */
} loom_ep_config;

/* `config` NULL: all zeros. */
LOOM_API loom_status loom_ep_open(loom_mesh *mesh, loom_kernels *kernels, loom_stream *compute, const loom_ep_config *config, loom_ep **ep);
LOOM_API void loom_ep_close(loom_ep *ep); /* accepts NULL; after its layers and records */

/* How the tokens of a micro-batch lie on this cp rank: rows [sequences, seq]. */
typedef struct loom_ep_shape {
    int64_t sequences, seq;
    int64_t whole;                 /* tokens of a whole sequence: what lies behind them is padding, goes to no expert and counts nowhere. 0: all */
    const int32_t *positions_CS;   /* [cp, seq] where in their sequence the tokens of each cp rank lie, ascending; NULL: one rank's behind the other's */
} loom_ep_shape;

/* From now on rows lie so. Before the first record, and whenever it changes; positions are copied. */
LOOM_API loom_status loom_ep_reshape(loom_ep *ep, const loom_ep_shape *shape);

typedef struct loom_moe_layer_config {
    const loom_moe *moe; /* lent until the layer is closed */
    int64_t hidden;
    const char *router;         /* name of the router's weight [experts, hidden] */
    const char *selection_bias; /* name of the bias [experts], where moe->selection_bias */
    const char *experts;        /* expert N has EXPERTS.N.GATE.weight and so on */
    const char *gate, *up, *down;
    double init_std, init_std_down;
} loom_moe_layer_config;

/* Makes the parameters and adds them to `params`: router, selection bias, then gate, up and down of each expert that is here. Experts are SwiGLU.
 * The selection bias is a parameter that gets no gradient, so the optimizer leaves it as it is; loom_ep_finish() steers it. */
LOOM_API loom_status loom_moe_layer_open(loom_ep *ep, const loom_moe_layer_config *config, loom_param_list *params, loom_moe_layer **layer);
LOOM_API void loom_moe_layer_close(loom_moe_layer *layer); /* accepts NULL */

/* Memory of one micro-batch in flight of any layer like `layer`, for up to `tokens` routed by this rank. What depends on the load starts at its
 * balanced size and grows. */
LOOM_API loom_status loom_moe_record_open(const loom_moe_layer *layer, int64_t tokens, loom_moe_record **record);
LOOM_API void loom_moe_record_close(loom_moe_record *record); /* accepts NULL */

/* Which of the `tokens` rows that this rank holds between the tp regions it routes. */
LOOM_API loom_range loom_moe_own_tokens(const loom_ep *ep, int64_t tokens);

/* Routes x [tokens, hidden], whose first row is token `first` of the micro-batch, and sends the rows to their experts. x is lent until the end
 * of the layer's backward. */
LOOM_API loom_status loom_moe_dispatch(loom_moe_layer *layer, loom_moe_record *record, const float *x, int64_t tokens, int64_t first);
/* The experts that are here; sends their results back. */
LOOM_API loom_status loom_moe_compute(loom_moe_layer *layer, loom_moe_record *record);
/* y [tokens, hidden] = (or +=) the weighted sum of the results. */
LOOM_API loom_status loom_moe_combine(loom_moe_layer *layer, loom_moe_record *record, float *y, bool accumulate);

/* Gradients of router and experts are added to; overwrites parts of the record. x as in forward. dy is lent to the end. */
LOOM_API loom_status loom_moe_dispatch_backward(loom_moe_layer *layer, loom_moe_record *record, const float *x, const float *dy);
LOOM_API loom_status loom_moe_compute_backward(loom_moe_layer *layer, loom_moe_record *record);
/* dx [tokens, hidden] = (or +=) the gradient of x. */
LOOM_API loom_status loom_moe_combine_backward(loom_moe_layer *layer, loom_moe_record *record, float *dx, bool accumulate);

/* With split_backward, and only then, once after compute_backward of this record: the gradients of the experts' weights, which it left out (the
 * router's are made in dispatch_backward). Nothing travels. */
LOOM_API loom_status loom_moe_backward_weight(loom_moe_layer *layer, loom_moe_record *record);

/* The layer's balance loss of this micro-batch, without its coefficient: the same on every tp and cp rank. Valid from dispatch_backward on; waits. */
LOOM_API loom_status loom_moe_balance(loom_moe_layer *layer, const loom_moe_record *record, double *value);
/* The chosen experts [tokens, top_k], best first, -1 of padding; the same with -1 for what was dropped; and how many rows each rank of ep was sent and
 * sent here (choices, or with allgather tokens): borrowed. For tests and tools. */
LOOM_API const int32_t *loom_moe_ids(const loom_moe_record *record);
LOOM_API const int32_t *loom_moe_kept(const loom_moe_record *record);
LOOM_API const size_t *loom_moe_sent(const loom_moe_record *record);
LOOM_API const size_t *loom_moe_received(const loom_moe_record *record);

/* How the tokens of a step spread over experts, over the global batch and all stages. */
typedef struct loom_ep_load {
    double most; /* choices of the busiest expert over the mean of its layer: the worst layer's */
    double idle; /* share of experts that no token chose: the worst stage's */
    double dropped; /* share of all choices that found no room */
} loom_ep_load;

/* A step is: begin, micro-batches, (the optimizer,) finish. `losses`: how many tokens' losses a micro-batch sums, on the average of the global batch;
 * 0: those of all its tokens. Finish counts the choices of the global batch and steers selection biases:
 * bias += speed * sign(mean count - count). Collective over all ranks. */
LOOM_API loom_status loom_ep_begin(loom_ep *ep, double losses);
LOOM_API loom_status loom_ep_finish(loom_ep *ep, loom_ep_load *load);

LOOM_END
#endif
