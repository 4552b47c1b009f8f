/* Tensor parallelism: linear layers split by columns or rows, vocabulary-parallel embedding and cross-entropy, sequence parallelism.
 * Knows nothing of transformers. Activations are f32, row-major, one row a token.
 *
 * Two regions alternate. Between them every rank of tp holds activations of the same tokens (or, with sequence parallelism, of its own
 * T/tp tokens); inside, each rank holds all T tokens and some of the features. loom_tp_enter leads in, loom_tp_leave out; each call's
 * backward is the other's communication (Shoeybi et al. 2019 §3; Korthikanti et al. 2022 §4.2.2). */
#ifndef RANKLOOM_TP_H
#define RANKLOOM_TP_H

#include <rankloom/kernels.h>
#include <rankloom/mesh.h>
#include <rankloom/shard.h>
LOOM_BEGIN

/* What the layers of one model share. Plain data, filled by loom_tp_open(); read it, do not change it. */
typedef struct loom_tp {
    loom_mesh *mesh;
    loom_kernels *kernels;
    loom_stream *compute; /* borrowed */
    loom_stream *comm;    /* own: communication that hides under products */
    loom_event *computed, *communicated;
    int rank, size;
    bool sequence_parallel; /* and size > 1 */
    int64_t chunks, chunk_tokens; /* communication beside a product it depends on goes in up to so many chunks of at least so many tokens; 1: in one */
    size_t *blocks;               /* [3 * size] what such a chunk sends whom */
} loom_tp;

LOOM_API loom_status loom_tp_open(loom_mesh *mesh, loom_kernels *kernels, loom_stream *compute, loom_tp **tp);
LOOM_API void loom_tp_close(loom_tp *tp); /* accepts NULL */

/* Tokens that this rank holds between the regions, of `tokens` in the micro-batch. With sequence parallelism tokens must divide by size. */
LOOM_API int64_t loom_tp_local_tokens(const loom_tp *tp, int64_t tokens);
/* How the gradient of a parameter used between the regions (norm weight, bias after a row-parallel layer) is formed: PARTIAL with sequence parallelism. */
LOOM_API loom_gradient_form loom_tp_between_gradient(const loom_tp *tp);
/* Shard spec of a parameter that every tp rank holds whole and uses between the regions. */
LOOM_API void loom_tp_replicated(const loom_tp *tp, const char *name, int dims, const int64_t *shape, loom_shard *shard);

/* --- regions ------------------------------------------------------------------------------------------------------------------
 * tokens: T of the whole micro-batch; features: width of a row. Enqueued on tp->compute unless said otherwise. */

/* x_local -> *x_full [T, features]: the rows of all ranks. `buffer` [T, features] is used when rows have to be gathered, else *x_full is x_local. */
LOOM_API loom_status loom_tp_enter(loom_tp *tp, const float *x_local, int64_t tokens, int64_t features, float *buffer, const float **x_full);
/* The same on tp->comm, after the work now on tp->compute: what does not need *x_full may be computed meanwhile, and later work sees it after the end. */
LOOM_API loom_status loom_tp_enter_begin(loom_tp *tp, const float *x_local, int64_t tokens, int64_t features, float *buffer, const float **x_full);
LOOM_API loom_status loom_tp_enter_end(loom_tp *tp);
/* Sums dx_full [T, features] (overwritten) over tp into dx_local. Starts on tp->comm after the work now on tp->compute: weight gradients may be
 * computed meanwhile. dx_local may be dx_full itself without sequence parallelism, and must be another buffer with it. */
LOOM_API loom_status loom_tp_enter_backward_begin(loom_tp *tp, float *dx_full, int64_t tokens, int64_t features, float *dx_local);
LOOM_API loom_status loom_tp_enter_backward_end(loom_tp *tp); /* later work on tp->compute sees dx_local */
/* Sums y_partial [T, features] (overwritten) over tp; this rank gets its rows in y_local (may be y_partial without sequence parallelism). */
LOOM_API loom_status loom_tp_leave(loom_tp *tp, float *y_partial, int64_t tokens, int64_t features, float *y_local);
/* dy_local -> *dy_full [T, features], as loom_tp_enter. */
LOOM_API loom_status loom_tp_leave_backward(loom_tp *tp, const float *dy_local, int64_t tokens, int64_t features, float *buffer, const float **dy_full);

/* --- linear layers -------------------------------------------------------------------------------------------------------------- */

/* Features that are split over tp as whole units: heads of head_dim, or single columns (unit 1). Units are cut by loom_cut(). Fewer units than ranks:
 * each unit is shared by size/units ranks (kv heads), and its gradient is added over those. */
typedef struct loom_tp_block {
    int64_t features, unit;
} loom_tp_block;
/* Which of the block's features this rank holds. */
LOOM_API loom_range loom_tp_block_range(const loom_tp *tp, const loom_tp_block *block);

typedef enum loom_linear_kind { LOOM_LINEAR_COLUMN, LOOM_LINEAR_ROW } loom_linear_kind;

typedef struct loom_linear_config {
    loom_linear_kind kind;
    const char *name;        /* parameters are NAME.weight and NAME.bias */
    int64_t in, out;         /* global */
    bool bias;               /* a column layer adds it itself; a row layer's is added after loom_tp_leave with loom_linear_add_bias */
    bool in_major;           /* weight is stored [in, out] (GPT-2's Conv1D) instead of [out, in] */
    loom_tp_block blocks[3]; /* of the split side: of out for COLUMN, of in for ROW; several: fused q, k, v, each cut by itself */
    int n_blocks;            /* 0: one block of single features */
    double init_std, bias_jitter;
    bool decay_bias; /* weights always decay, biases normally not */
} loom_linear_config;

typedef struct loom_linear {
    loom_tp *tp;
    loom_linear_kind kind;
    bool has_bias, in_major;
    int64_t in, out; /* of this rank */
    loom_param weight, bias;
} loom_linear;

LOOM_API loom_status loom_linear_init(loom_linear *layer, loom_tp *tp, const loom_linear_config *config);
LOOM_API loom_status loom_linear_declare(loom_linear *layer, loom_param_list *params);

/* y_TO = x_TI W^T (+ bias, column layers). leading_y: distance of rows of y, at least out: several layers may write side by side. */
LOOM_API loom_status loom_linear_forward(const loom_linear *layer, const float *x_TI, int64_t tokens, float *y_TO, int64_t leading_y);
/* dx_TI (+)= dy_TO W. */
LOOM_API loom_status loom_linear_backward_input(const loom_linear *layer, const float *dy_TO, int64_t leading_dy, int64_t tokens, float *dx_TI, bool accumulate);
/* A column layer that GELU follows, and a row layer that it precedes, each as one product: y_TO as above and gelu_TO = gelu(y_TO); dx_TI = gradient of
 * before_TI where the layer read gelu(before_TI). Rows side by side; no two of the matrices may be one. */
LOOM_API loom_status loom_linear_forward_gelu(const loom_linear *layer, const float *x_TI, int64_t tokens, float *y_TO, float *gelu_TO);
LOOM_API loom_status loom_linear_backward_input_gelu(const loom_linear *layer, const float *dy_TO, int64_t tokens, const float *before_TI, float *dx_TI);
/* dW += dy^T x, and the bias gradient of a column layer. */
LOOM_API loom_status loom_linear_backward_weight(loom_linear *layer, const float *x_TI, const float *dy_TO, int64_t leading_dy, int64_t tokens);
/* Row layers: y += bias, and bias gradient += column sums of dy, over this rank's own `tokens` between the regions. */
LOOM_API loom_status loom_linear_add_bias(const loom_linear *layer, float *y_TO, int64_t tokens);
LOOM_API loom_status loom_linear_bias_gradient(loom_linear *layer, const float *dy_TO, int64_t tokens);

/* Layers that read the same x as one matrix product: when dp laid their weights (stored [out, in]) side by side, one GEMM does for all.
 * Outputs lie side by side in y, rows `sum of out` apart. */
LOOM_API loom_status loom_linears_forward(loom_linear *const *layers, int count, const float *x_TI, int64_t tokens, float *y);
LOOM_API loom_status loom_linears_backward_input(loom_linear *const *layers, int count, const float *dy, int64_t tokens, float *dx_TI);
LOOM_API loom_status loom_linears_backward_weight(loom_linear *const *layers, int count, const float *x_TI, const float *dy, int64_t tokens);

/* The border of a region and the product beside it in one call, as the two calls one after the other would. Where the device computes and communicates at once,
 * and RANKLOOM_TP_CHUNKS does not forbid it, a chunk of the tokens travels while another is multiplied; sums over tokens and ranks then have another order. */
/* y = loom_linears_forward of loom_tp_enter: x_local [Tl, in] -> y [T, widths side by side]; buffer [T, in]. */
LOOM_API loom_status loom_tp_columns_forward(loom_linear *const *layers, int count, const float *x_local, int64_t tokens, float *buffer, float *y);
/* y_local [Tl, out] = loom_tp_leave of loom_linear_forward of a row layer; partial [T, out] is overwritten. */
LOOM_API loom_status loom_tp_row_forward(const loom_linear *layer, const float *x_TI, int64_t tokens, float *partial_TO, float *y_local);
/* Its backward: dy_local -> *dy_full [T, out], which its weight gradient reads (loom_tp_leave_backward), and dx = dy_full W. */
LOOM_API loom_status loom_tp_row_backward(const loom_linear *layer, const float *dy_local, int64_t tokens, float *buffer, const float **dy_full, float *dx_TI);
/* The first and the last of these with loom_linear_forward_gelu and loom_linear_backward_input_gelu. */
LOOM_API loom_status loom_tp_column_forward_gelu(const loom_linear *layer, const float *x_local, int64_t tokens, float *buffer, float *y_TO, float *gelu_TO);
LOOM_API loom_status loom_tp_row_backward_gelu(const loom_linear *layer, const float *dy_local, int64_t tokens, float *buffer, const float **dy_full,
                                               const float *before_TI, float *dx_TI);

/* --- vocabulary ------------------------------------------------------------------------------------------------------------------ */

/* Rows of the embedding or head that this rank holds: ceil(vocab / size) each, the last ones padded. */
LOOM_API int64_t loom_tp_vocab_rows(const loom_tp *tp, int64_t vocab);

typedef struct loom_vocab_config {
    const char *name; /* whole name of the weight */
    int64_t vocab, hidden;
    double init_std;
    int tied;        /* see loom_shard: also lives on another stage */
    bool tied_owner;
} loom_vocab_config;

/* A [vocab, hidden] matrix split by rows over tp: embedding, head, or both at once. */
typedef struct loom_vocab_matrix {
    loom_tp *tp;
    int64_t vocab, hidden, rows, first, real_rows; /* rows: local with padding; real rows are [first, first + real_rows) of the vocabulary */
    loom_param weight;
} loom_vocab_matrix;

LOOM_API loom_status loom_vocab_init(loom_vocab_matrix *matrix, loom_tp *tp, const loom_vocab_config *config);
LOOM_API loom_status loom_vocab_declare(loom_vocab_matrix *matrix, loom_param_list *params);

/* y_partial [T, hidden] = rows of this rank, 0 elsewhere: loom_tp_leave sums. Tokens outside [0, vocab) give 0 rows:
 * whoever reads the data checks them. */
LOOM_API loom_status loom_vocab_embed(const loom_vocab_matrix *matrix, const int32_t *tokens_T, int64_t tokens, float *y_partial);
/* Weight gradient from dy_full [T, hidden], in token order. */
LOOM_API loom_status loom_vocab_embed_backward(loom_vocab_matrix *matrix, const int32_t *tokens_T, int64_t tokens, const float *dy_full);
/* logits_TV [T, rows] = x_full W^T, and the two gradients. */
LOOM_API loom_status loom_vocab_logits(const loom_vocab_matrix *matrix, const float *x_full, int64_t tokens, float *logits_TV);
LOOM_API loom_status loom_vocab_logits_backward_input(const loom_vocab_matrix *matrix, const float *dlogits_TV, int64_t tokens, float *dx_full);
LOOM_API loom_status loom_vocab_logits_backward_weight(loom_vocab_matrix *matrix, const float *x_full, const float *dlogits_TV, int64_t tokens);

/* Cross-entropy over logits of which each rank has `columns` (must be loom_tp_vocab_rows(vocab): a gathered matrix is refused).
 *   logits_TV  [T, columns]  overwritten with the gradient of the weighted sum of losses: (softmax - onehot) * weight
 *   target_T   [T]           global ids; -100: not counted, gradient 0
 *   loss_T     [T]           loss of each token, 0 where not counted; same on all ranks
 *   weight_T   [T]           of each token's gradient; NULL: 1
 *   scratch    [4 * T]
 * A max of T floats and a sum of 2T travel, never logits. */
LOOM_API loom_status loom_tp_cross_entropy(loom_tp *tp, int64_t vocab, int64_t columns, float *logits_TV, const int32_t *target_T, int64_t tokens,
                                           const float *weight_T, float *loss_T, float *scratch);

LOOM_END
#endif
