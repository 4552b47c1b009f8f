/* Kernels: the arithmetic of a transformer on one device, as one table of operations with a maker per device and instruction set.
 *
 * What holds of every operation:
 *   - It is enqueued on `stream`; buffers are lent until the stream has passed it. On CPU an inline stream computes before it returns.
 *   - Sizes are those of this shard. Any size may be 0: nothing happens. Matrices are row-major; a stride is the count of elements
 *     from one row to the next, and 0 means "tight" (the row's own length).
 *   - An argument left out (0, NULL, false) is the ordinary case, so `(loom_add_args){.y = …}` names only what matters.
 *   - Data is f32. Outputs may be the very buffer of an input only where it says so.
 *   - Gradients of parameters are added to what is there; gradients of activations are written, or added with `accumulate`.
 *   - The same call with the same count of threads gives the same bits. A NaN that goes in comes out.
 *   - LOOM_E_INVALID (with the rule and the numbers) if the arguments cannot be right; nothing was enqueued then.
 * Letters: T tokens, D hidden, B sequences, S length of one, H heads, G key/value heads, K head size, V vocabulary of this shard, E
 * experts. */
#ifndef RANKLOOM_KERNELS_H
#define RANKLOOM_KERNELS_H

#include <rankloom/device.h>
LOOM_BEGIN

typedef struct loom_kernels loom_kernels;

/* --- matrix product ------------------------------------------------------------------------------------------------------ */

/* C = op(A) op(B) + bias, or C += …. op(A) is M x K, op(B) is K x N; transposed ones are stored the other way round.
 * linear y = x W' + b, W stored [out, in]:  gemm(a = x, b = W, transpose_b, bias = b)
 * its gradients:  dx = dy W: gemm(a = dy, b = W);  dW += dy' x: gemm(a = dy, transpose_a, b = x, accumulate).
 * With GELU; on CUDA in the pass that writes C, so that nothing is read again (docs/cuda-kernels.md):
 *   forward   h = x W' + b, y = gelu(h):    c = h, gelu = y
 *   backward  dh = (dy W) gelu'(h):         c = dh, gelu_input = h;  a = gradient of what the next layer made of y
 * One of the two at most; each a matrix of its own that lies as C does (ldc, stride_c). */
typedef struct loom_gemm_args {
    float *c_MN;
    const float *a_MK, *b_KN;
    const float *bias_N; /* added once to every row; NULL: none */
    int64_t m, n, k;
    int64_t lda, ldb, ldc; /* strides of the rows as they are stored */
    bool transpose_a, transpose_b;
    bool accumulate;
    int64_t batch;                        /* that many products, matrices this far apart; 0: one. stride 0 of a or b: shared by all */
    int64_t stride_a, stride_b, stride_c; /* elements; batch > 1 needs stride_c */
    float *gelu_MN;                       /* also written: gelu(C); NULL: not wanted */
    const float *gelu_input_MN;           /* the product is multiplied by gelu' of this; neither bias nor accumulate; NULL: it is not */
} loom_gemm_args;

/* --- attention ------------------------------------------------------------------------------------------------------------- */

/* Where a [B, S, heads, K] tensor lies: heads side by side, tokens and sequences this far apart (0: tight). A pointer into a fused
 * q,k,v buffer with `token` = its row length works. */
typedef struct loom_bshk {
    int64_t token, sequence;
} loom_bshk;

/* Which keys a query sees. Position of query i is q_positions_S[i], or q_start + i; likewise keys: they are global positions in the
 * sequence, so that ranks of a ring can hold any part of it. Documents, if given, are ids per token: only equal ids see each other. */
typedef struct loom_attention_mask {
    bool causal;                                    /* key position <= query position */
    int64_t window;                                 /* > 0: also key position > query position - window */
    int64_t q_start, k_start;                       /* ignored where positions are given */
    const int32_t *q_positions_S, *k_positions_S;   /* ascending within each run; the same for all sequences */
    const int32_t *q_documents_BS, *k_documents_BS; /* both or none */
} loom_attention_mask;

/* o = softmax(scale q k') v with query head h reading key/value head h / (H/G). No S x S matrix: blocks with an online softmax.
 * lse is log(sum(exp(scale q k'))) per row, what backward and the ring's merge need; -inf (and o = 0) for a row that sees no key. */
typedef struct loom_attention_args {
    float *o_BSHK, *lse_BHS;
    const float *q_BSHK, *k_BSGK, *v_BSGK;
    loom_bshk q_at, k_at, v_at, o_at;
    int64_t batch, heads, kv_heads, q_seq, k_seq, head_dim;
    float scale; /* 0: 1/sqrt(head_dim) */
    loom_attention_mask mask;
} loom_attention_args;

/* Reads o and lse of forward: of the whole row. In a ring both are the merged ones, and each call handles the keys at hand. */
typedef struct loom_attention_backward_args {
    loom_attention_args forward; /* as in forward; o and lse are read */
    const float *do_BSHK;
    float *dq_BSHK, *dk_BSGK, *dv_BSGK;
    loom_bshk do_at, dq_at, dk_at, dv_at;
    bool accumulate_dq, accumulate_dkv;
} loom_attention_backward_args;

/* (o, lse) of the union of two disjoint sets of keys, from (o, lse) and (o2, lse2) of each. Changes o and lse. */
typedef struct loom_attention_merge_args {
    float *o_BSHK, *lse_BHS;
    const float *o2_BSHK, *lse2_BHS;
    loom_bshk o_at, o2_at;
    int64_t batch, heads, seq, head_dim;
} loom_attention_merge_args;

/* --- norms ------------------------------------------------------------------------------------------------------------------ */

/* y = x / sqrt(mean(x^2) + eps) * weight. With `add`: x + add is normalised, and written to `sum` (which may be x or add). */
typedef struct loom_rmsnorm_args {
    float *y_TD, *rstd_T; /* backward reads rstd; NULL: not wanted. y may be x */
    const float *x_TD, *weight_D;
    const float *add_TD;
    float *sum_TD; /* with add only */
    int64_t tokens, hidden;
    float eps;
} loom_rmsnorm_args;

/* dx may be NULL (weight gradient only), so may dweight. accumulate: dx += …, which is how the gradient joins the residual stream. */
typedef struct loom_rmsnorm_backward_args {
    float *dx_TD, *dweight_D; /* dx may be dy unless accumulated */
    const float *dy_TD, *x_TD, *weight_D, *rstd_T;
    int64_t tokens, hidden;
    bool accumulate;
} loom_rmsnorm_backward_args;

/* y = (x - mean) / sqrt(var + eps) * weight + bias. Mean first, then squared distances from it. `add` and `sum` as above. */
typedef struct loom_layernorm_args {
    float *y_TD, *mean_T, *rstd_T;
    const float *x_TD, *weight_D, *bias_D; /* bias may be NULL */
    const float *add_TD;
    float *sum_TD;
    int64_t tokens, hidden;
    float eps;
} loom_layernorm_args;

typedef struct loom_layernorm_backward_args {
    float *dx_TD, *dweight_D, *dbias_D; /* each may be NULL; dx may be dy unless accumulated */
    const float *dy_TD, *x_TD, *weight_D, *mean_T, *rstd_T;
    int64_t tokens, hidden;
    bool accumulate;
} loom_layernorm_backward_args;

/* --- rotary positions --------------------------------------------------------------------------------------------------------- */

/* Row r: cos and sin of (start + r) * theta^(-2i/K), i < K/2, computed in f64. */
typedef struct loom_rope_table_args {
    float *cos_PK, *sin_PK; /* [positions, head_dim / 2] each */
    int64_t positions, head_dim, start;
    double theta;
} loom_rope_table_args;

/* Half-split pairs: element i < K/2 of a head turns with i + K/2 by its token's angle. y may be x. inverse: the other way, which is
 * backward. Token t has table row rows_T[t], or start + t % seq. */
typedef struct loom_rope_args {
    float *y_THK;
    const float *x_THK, *cos_PK, *sin_PK;
    int64_t tokens, heads, head_dim;
    int64_t y_token, x_token; /* elements from one token to the next; 0: heads * head_dim */
    int64_t y_head, x_head;   /* from one head to the next; 0: head_dim */
    int64_t positions;        /* rows of the table; one beyond it is LOOM_E_INVALID */
    int64_t start, seq;       /* seq 0: tokens */
    const int32_t *rows_T;
    bool inverse;
} loom_rope_args;

/* --- activations ------------------------------------------------------------------------------------------------------------- */

/* y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). y may be x. */
typedef struct loom_gelu_args {
    float *y;
    const float *x;
    int64_t count;
} loom_gelu_args;

typedef struct loom_gelu_backward_args {
    float *dx; /* may be dy or x */
    const float *dy, *x;
    int64_t count;
} loom_gelu_backward_args;

/* y = gate / (1 + exp(-gate)) * up. Gate and up may lie side by side in one row of a fused buffer: stride 2 F. y may be gate or up. */
typedef struct loom_swiglu_args {
    float *y_TF;
    const float *gate_TF, *up_TF;
    int64_t tokens, width;
    int64_t ldy, ld_gate, ld_up;
} loom_swiglu_args;

typedef struct loom_swiglu_backward_args {
    float *dgate_TF, *dup_TF; /* may be gate and up */
    const float *dy_TF, *gate_TF, *up_TF;
    int64_t tokens, width;
    int64_t ld_dgate, ld_dup, ld_dy, ld_gate, ld_up;
} loom_swiglu_backward_args;

/* --- simple arithmetic --------------------------------------------------------------------------------------------------------- */

/* y += bias on every row. */
typedef struct loom_bias_args {
    float *y_TN;
    const float *bias_N;
    int64_t tokens, width, ldy;
} loom_bias_args;

/* dbias += sum over rows of dy, in row order. */
typedef struct loom_bias_backward_args {
    float *dbias_N;
    const float *dy_TN;
    int64_t tokens, width, ld_dy;
} loom_bias_backward_args;

/* y = a + b. y may be either. */
typedef struct loom_add_args {
    float *y;
    const float *a, *b;
    int64_t count;
} loom_add_args;

/* y += alpha * x. */
typedef struct loom_axpy_args {
    float *y;
    const float *x;
    float alpha;
    int64_t count;
} loom_axpy_args;

/* y = x * alpha, or x * *alpha_at (one number on the device) where that is given. y may be x. */
typedef struct loom_scale_args {
    float *y;
    const float *x;
    float alpha;
    const float *alpha_at;
    int64_t count;
} loom_scale_args;

typedef struct loom_fill_args {
    float *y;
    float value;
    int64_t count;
} loom_fill_args;

/* y[p][r][c] = x[p][r][c] (or +=) with any distance between rows and between planes: packs and unpacks [T, parts] tensors.
 * No overlap. Strides 0: tight. */
typedef struct loom_copy_args {
    float *y;
    const float *x;
    int64_t planes, rows, cols; /* planes 0: one */
    int64_t y_plane, x_plane, y_row, x_row;
    bool accumulate;
} loom_copy_args;

/* f32 to and from bf16 and f16, to nearest even; also f32 to f32. */
typedef struct loom_cast_args {
    void *y;
    const void *x;
    loom_dtype y_dtype, x_dtype;
    int64_t count;
} loom_cast_args;

/* *sum = sum of x, or of x^2; += with accumulate. In f64, in an order fixed by count alone. */
typedef struct loom_sum_args {
    double *sum;
    const float *x;
    int64_t count;
    bool accumulate;
} loom_sum_args;

/* --- embedding ------------------------------------------------------------------------------------------------------------------- */

/* y[t] = table[ids[t] - first]; 0 where that row is not among the `rows` of this shard. */
typedef struct loom_embedding_args {
    float *y_TD;
    const float *table_VD;
    const int32_t *ids_T;
    int64_t tokens, hidden;
    int64_t first, rows;
    bool accumulate; /* y[t] += …: position embeddings on top of token embeddings */
} loom_embedding_args;

/* dtable[ids[t] - first] += dy[t] in token order; ids outside the shard take no part. */
typedef struct loom_embedding_backward_args {
    float *dtable_VD;
    const float *dy_TD;
    const int32_t *ids_T;
    int64_t tokens, hidden;
    int64_t first, rows;
} loom_embedding_backward_args;

/* y[t] += table[rows_T[t]], or table[start + t % seq]. */
typedef struct loom_position_args {
    float *y_TD;
    const float *table_PD;
    const int32_t *rows_T; /* NULL: start + t % seq */
    int64_t tokens, hidden, positions, start, seq;
} loom_position_args;

typedef struct loom_position_backward_args {
    float *dtable_PD; /* += in token order */
    const float *dy_TD;
    const int32_t *rows_T;
    int64_t tokens, hidden, positions, start, seq;
} loom_position_backward_args;

/* --- softmax cross-entropy, the vocabulary whole or split ---------------------------------------------------------------------------
 * Split over ranks, three steps and two small all-reduces, each logit read once forward:
 *   xent_local     max of the shard's row, sum of exp(logit - that max), the target's logit (0 where another shard has it)
 *   all_reduce(max, a copy of the local max) ; xent_rebase: sum *= exp(local max - global max) ; all_reduce(sum, sums and targets)
 *   xent_gradient  loss, and the gradient in place of the logits
 * Whole: xent does it all in one pass. Columns from `cols` to the stride are padding: never read; their gradient is 0.
 * A target of -100 takes no part: loss and gradient 0. Any other is an id of the whole vocabulary: the caller checks its data (xent gives a
 * NaN loss, the split form cannot see it). */
enum { LOOM_IGNORE_INDEX = -100 };

typedef struct loom_xent_local_args {
    float *max_T, *sum_T, *target_T;
    const float *logits_TV;
    const int32_t *targets_T; /* global ids; this shard's columns are ids first .. first + cols - 1 */
    int64_t tokens, cols, ld, first;
} loom_xent_local_args;

typedef struct loom_xent_rebase_args {
    float *sum_T;
    const float *local_max_T, *global_max_T;
    int64_t tokens;
} loom_xent_rebase_args;

/* loss = log(sum) + max - target; logits become (exp(logit - max) / sum - [is target]) * weight. */
typedef struct loom_xent_gradient_args {
    float *logits_TV;                      /* NULL: only the loss */
    float *loss_T;                         /* NULL: only the gradient. Unweighted */
    const float *max_T, *sum_T, *target_T; /* global */
    const int32_t *targets_T;
    const float *weight_T; /* of each token's loss; NULL: 1 */
    int64_t tokens, cols, ld, first;
} loom_xent_gradient_args;

typedef struct loom_xent_args {
    float *loss_T;    /* unweighted; may be NULL */
    float *logits_TV; /* becomes the gradient, unless forward_only */
    const int32_t *targets_T;
    const float *weight_T;
    int64_t tokens, cols, ld;
    bool forward_only;
} loom_xent_args;

/* Index and value of the largest of each row; the lowest index of equals. Rows of no columns: index -1, value -inf. */
typedef struct loom_argmax_args {
    int32_t *index_T;
    float *value_T; /* may be NULL */
    const float *x_TV;
    int64_t tokens, cols, ld;
} loom_argmax_args;

/* --- optimizer -------------------------------------------------------------------------------------------------------------------- */

/* *scale = what gradient sums are multiplied with: 1 / divisor; where their norm n = sqrt(*squares) / divisor is above `clip` (0: never) that times
 * clip / (n + 1e-6); NaN where the norm is not finite. In f64, so that the host can say the same of the same squares. */
typedef struct loom_clip_args {
    float *scale;
    const double *squares; /* on the device, as *scale */
    double divisor, clip;
} loom_clip_args;

/* g = gradient * *gradient_scale; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 * p = p (1 - lr decay) - lr (m / correction1) / (sqrt(v / correction2) + eps), with correction = 1 - beta^step from the caller. A gradient_scale
 * that is NaN leaves p, m and v as they are. */
typedef struct loom_adamw_args {
    float *p, *m, *v;
    const float *gradient;
    const float *gradient_scale; /* one number on the device: the clip coefficient; NULL: 1 */
    int64_t count;
    double lr, beta1, beta2, eps, decay; /* doubles, so that 1 - beta2 loses nothing */
    double correction1, correction2;
} loom_adamw_args;

/* --- mixture of experts -------------------------------------------------------------------------------------------------------------
 * Letters: E experts, K choices of a token here, A = T * K assignments (token major: assignment a is choice a % K of token a / K), R rows
 * sorted by expert, N balance segments. One layer forward, on one rank:
 *   gemm              logits = x Wr'
 *   router            scores, and of each token K experts and their weights
 *   sort_assignments  which assignment comes to which row, rows of one expert together
 *   gather_rows       x of each row (divide = K)
 *   grouped_gemm      each expert's matrix on its rows; swiglu; grouped_gemm
 *   combine_rows      weighted sum of each token's rows
 * Backward: gather_rows with the weights (rows' gradient), combine_weights_backward, grouped_gemm (ragged_k for the experts' weights),
 * combine_rows without weights (dx), router_backward, gemm. */
enum { LOOM_ROUTER_EXPERTS_MAX = 1024, LOOM_ROUTER_CHOICES_MAX = 64 };

/* How tokens choose; the same in forward and backward. */
typedef struct loom_router_rule {
    int64_t experts, top_k;
    /* Group-limited: only the groups_kept groups whose two best (score + bias) sum highest; 0 or 1, 1: no groups. */
    int64_t groups, groups_kept;
    bool sigmoid;      /* score = sigmoid(logit), else softmax over all experts */
    bool normalise;    /* kept scores divided by their sum */
    float route_scale; /* of the weights; 0: 1 */
} loom_router_rule;

/* Best first, the lowest index of equals. `bias` shifts the choice only, weights are the unbiased scores. Where sequences of `seq` tokens end in
 * padding, only the first `counted` of each choose: the others get experts -1, and weights, scores and lse of 0. */
typedef struct loom_router_args {
    float *score_TE, *weight_TK, *lse_T; /* lse: log sum exp of the logits, for the z-loss; NULL: not wanted */
    int32_t *expert_TK;
    const float *logit_TE, *bias_E; /* bias NULL: none */
    int64_t tokens;
    int64_t first, seq, counted; /* token t is number (first + t) % seq of its sequence; seq 0: all choose */
    loom_router_rule rule;
} loom_router_args;

/* Over each segment of `segment` tokens (0: all): how many assignments each expert has, and the sum of its scores; in token order. `share`:
 * scores are first divided by the token's sum of all scores. Where a segment is split over ranks, these are what to all_reduce. */
typedef struct loom_router_count_args {
    float *assigned_NE, *score_sum_NE;
    const int32_t *expert_TK; /* outside [0, experts): not counted */
    const float *score_TE;    /* NULL: only the counts */
    int64_t tokens, experts, top_k, segment;
    bool share;
} loom_router_count_args;

/* loss = coefficient * mean over segments of E/K sum_e (assigned_e / tokens) (score_sum_e / tokens), and how it changes with one token's
 * score. tokens: of one segment, globally. The "switch" loss takes one segment a micro-batch; the "sequence" one takes each sequence, with
 * `share` above. */
typedef struct loom_router_balance_args {
    double *loss;    /* NULL: not wanted */
    float *slope_NE; /* NULL: not wanted */
    const float *assigned_NE, *score_sum_NE;
    int64_t segments, experts, top_k, tokens;
    double coefficient;
} loom_router_balance_args;

/* dlogit from the weights' gradient, the balance loss (slope, with the same segment and share) and the z-loss (z_slope * lse * softmax,
 * with z_slope = 2 coefficient / tokens for the mean of lse^2). 0 for a token that chose nothing. */
typedef struct loom_router_backward_args {
    float *dlogit_TE;
    const float *dweight_TK; /* NULL: none */
    const float *score_TE;
    const int32_t *expert_TK;      /* as router wrote them, dropped or not: a dropped one has dweight 0 */
    const float *slope_NE;         /* NULL: no balance loss */
    const float *logit_TE, *lse_T; /* with z_slope */
    int64_t tokens, segment;
    bool share;
    float z_slope;
    loom_router_rule rule;
} loom_router_backward_args;

/* Stable sort of assignments by expert. Experts first .. first + experts - 1 take part; other values (a dropped one is -1) get no row. */
typedef struct loom_sort_assignments_args {
    int32_t *order_R;    /* [assignments] the assignment of each row; -1 behind the last */
    int32_t *position_A; /* the row of each assignment, or -1 */
    int32_t *offset_E1;  /* [experts + 1] first row of each expert, and the count of all rows */
    const int32_t *expert_A;
    int64_t assignments, first, experts;
} loom_sort_assignments_args;

/* y[i] = x[row[i] / divide], times weight[row[i]] if given; zeros where row is negative. */
typedef struct loom_gather_rows_args {
    float *y_RD;
    const float *x_TD, *weight_A;
    const int32_t *row_R;
    int64_t rows, hidden, divide; /* divide 0: 1 */
} loom_gather_rows_args;

/* y[t] = sum over j of weight[t, j] x[position[t, j]], in the order of j; negative positions take no part. */
typedef struct loom_combine_rows_args {
    float *y_TD;
    const float *x_RD, *weight_TK; /* weight NULL: 1 */
    const int32_t *position_TK;
    int64_t tokens, top_k, hidden;
    bool accumulate; /* y += … */
} loom_combine_rows_args;

/* dweight[t, j] = sum(dy[t] x[position[t, j]]); 0 where the position is negative. */
typedef struct loom_combine_weights_backward_args {
    float *dweight_TK;
    const float *dy_TD, *x_RD;
    const int32_t *position_TK;
    int64_t tokens, top_k, hidden;
} loom_combine_weights_backward_args;

/* A product per group of rows; group g has rows offset[g] .. offset[g + 1] - 1, any number of them.
 *   ragged_k false:  C[rows, n] = A[rows, k] op(B_g)       forward and input gradient; B_g is stride_b * g further
 *   ragged_k true:   C_g [m, n] = A[rows, m]' B[rows, n]   weight gradient; C_g is stride_c * g further */
typedef struct loom_grouped_gemm_args {
    float *c;
    const float *a, *b;
    const int32_t *offset_G1; /* [groups + 1], ascending */
    int64_t groups, m, n, k;  /* m with ragged_k only, k without only */
    int64_t lda, ldb, ldc, stride_b, stride_c;
    bool ragged_k, transpose_b /* without ragged_k only: B_g is stored [n, k] */, accumulate;
} loom_grouped_gemm_args;

/* --- the table -------------------------------------------------------------------------------------------------------------------- */

/* Every operation once: X(name of the entry, its arguments). */
#define LOOM_KERNEL_LIST(X)                                                                                                                \
    X(gemm, loom_gemm_args)                                                                                                                \
    X(attention, loom_attention_args)                                                                                                      \
    X(attention_backward, loom_attention_backward_args)                                                                                    \
    X(attention_merge, loom_attention_merge_args)                                                                                          \
    X(rmsnorm, loom_rmsnorm_args)                                                                                                          \
    X(rmsnorm_backward, loom_rmsnorm_backward_args)                                                                                        \
    X(layernorm, loom_layernorm_args)                                                                                                      \
    X(layernorm_backward, loom_layernorm_backward_args)                                                                                    \
    X(rope_table, loom_rope_table_args)                                                                                                    \
    X(rope, loom_rope_args)                                                                                                                \
    X(gelu, loom_gelu_args)                                                                                                                \
    X(gelu_backward, loom_gelu_backward_args)                                                                                              \
    X(swiglu, loom_swiglu_args)                                                                                                            \
    X(swiglu_backward, loom_swiglu_backward_args)                                                                                          \
    X(bias, loom_bias_args)                                                                                                                \
    X(bias_backward, loom_bias_backward_args)                                                                                              \
    X(add, loom_add_args)                                                                                                                  \
    X(axpy, loom_axpy_args)                                                                                                                \
    X(scale, loom_scale_args)                                                                                                              \
    X(fill, loom_fill_args)                                                                                                                \
    X(copy, loom_copy_args)                                                                                                                \
    X(cast, loom_cast_args)                                                                                                                \
    X(sum, loom_sum_args)                                                                                                                  \
    X(sum_squares, loom_sum_args)                                                                                                          \
    X(embedding, loom_embedding_args)                                                                                                      \
    X(embedding_backward, loom_embedding_backward_args)                                                                                    \
    X(position, loom_position_args)                                                                                                        \
    X(position_backward, loom_position_backward_args)                                                                                      \
    X(xent_local, loom_xent_local_args)                                                                                                    \
    X(xent_rebase, loom_xent_rebase_args)                                                                                                  \
    X(xent_gradient, loom_xent_gradient_args)                                                                                              \
    X(xent, loom_xent_args)                                                                                                                \
    X(argmax, loom_argmax_args)                                                                                                            \
    X(clip, loom_clip_args)                                                                                                                \
    X(adamw, loom_adamw_args)                                                                                                              \
    X(router, loom_router_args)                                                                                                            \
    X(router_count, loom_router_count_args)                                                                                                \
    X(router_balance, loom_router_balance_args)                                                                                            \
    X(router_backward, loom_router_backward_args)                                                                                          \
    X(sort_assignments, loom_sort_assignments_args)                                                                                        \
    X(gather_rows, loom_gather_rows_args)                                                                                                  \
    X(combine_rows, loom_combine_rows_args)                                                                                                \
    X(combine_weights_backward, loom_combine_weights_backward_args)                                                                        \
    X(grouped_gemm, loom_grouped_gemm_args)

#define LOOM_KERNEL_TYPE(name, args)                                                                                                       \
    typedef loom_status loom_##name##_fn(loom_kernels *kernels, const args *arguments, loom_stream *stream);
LOOM_KERNEL_LIST(LOOM_KERNEL_TYPE)
#undef LOOM_KERNEL_TYPE

/* What a device can do: kernels->gemm(kernels, &(loom_gemm_args){…}, stream). One thread at a time calls through it: kernels share a
 * workspace. A LOOM_DRY device checks the arguments and does nothing. */
struct loom_kernels {
    const char *isa;          /* "portable", "avx2", "avx512"; "cuda"; "dry" */
    const char *gemm_library; /* "onednn", "openblas", "cublaslt", "own"; "dry" */
    loom_device *device;
#define LOOM_KERNEL_ENTRY(name, args) loom_##name##_fn *name;
    LOOM_KERNEL_LIST(LOOM_KERNEL_ENTRY)
#undef LOOM_KERNEL_ENTRY
};

/* NULL or "auto": the best that build and machine have, or what RANKLOOM_ISA, RANKLOOM_GEMM and RANKLOOM_CUDA_MATH say. */
typedef struct loom_kernels_config {
    const char *isa;          /* CPU: "portable", "avx2", "avx512" */
    const char *gemm_library; /* CPU: "onednn", "openblas", "own"; CUDA: "cublaslt", "own" */
    const char *cuda_math;    /* what products and attention multiply on CUDA: "f32", or rounded to "tf32", "bf16" or (products only) "fp8"; sums are f32.
                                 auto: "f32" */
} loom_kernels_config;

/* The kernels of `device`, with a workspace from it that grows with the shapes it meets and then stays. `config` may be NULL. CUDA without
 * its module, or an instruction set or library that is not here: LOOM_E_UNSUPPORTED. Free before the device. */
LOOM_API loom_status loom_kernels_open(loom_device *device, const loom_kernels_config *config, loom_kernels **kernels);
LOOM_API void loom_kernels_close(loom_kernels *kernels); /* accepts NULL */

LOOM_END
#endif
