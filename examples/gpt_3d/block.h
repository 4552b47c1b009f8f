/* One transformer block (GPT-2 or Llama kind, dense or with experts), split over tensor-, context- and expert-parallel ranks, assembled from Rankloom's public calls. */
#ifndef GPT_3D_BLOCK_H
#define GPT_3D_BLOCK_H

#include <rankloom/rankloom.h>

/* What all blocks of this rank share: shapes of this shard.
 * T: tokens of a micro-batch on this context-parallel rank; Tl: those this rank holds between tensor-parallel regions. */
typedef struct gpt_shape {
    const loom_model *model;
    loom_tp *tp;
    loom_cp *cp;                                  /* NULL until the stage has memory */
    int64_t sequences, seq, local_seq, T, Tl, D;  /* seq: of whole sequences, padding included; local_seq: this rank's part of each */
    int64_t whole;                                /* tokens of a sequence without the padding behind them */
    const int32_t *positions_T, *documents_T;     /* of the tokens at hand: rows of position tables, and documents or NULL */
    int64_t heads, kv_heads, head_dim;            /* of this rank */
    int64_t q_width, kv_width, qkv_width;         /* of this rank */
    loom_rank_shape sizes;                        /* the same and more, for sizing buffers */
    bool split_backward;                          /* gradients of weights come later than those of inputs */
    loom_ep *ep;                                  /* NULL: no layer has experts */
} gpt_shape;

/* For sequences of `whole` tokens. */
void gpt_shape_init(gpt_shape *shape, const loom_model *model, loom_tp *tp, int64_t sequences, int64_t whole);

/* Buffers that live only within one call. */
typedef struct gpt_workspace {
    float *gathered_TD, *partial_TD; /* rows on their way into and out of a region */
    float *branch_TlD;               /* what a region adds to the residual stream, and its gradient */
    float *qkv;                      /* where cp keeps its own form of q, k and v; else they are saved */
    float *d_qkv, *d_inner;          /* gradients inside a region: of q, k and v; of what its last matrix reads */
    float *cos_SK, *sin_SK;          /* rotary table of whole sequences, made once */
} gpt_workspace;

/* What a block keeps from forward to backward, for one micro-batch. */
typedef struct gpt_saved {
    float *mean1_T, *rstd1_T, *norm1_TD, *qkv, *exchanged, *lse, *attention, *mid_TD, *mean2_T, *rstd2_T, *norm2_TD, *wide, *active;
    loom_moe_record *experts; /* of a layer with experts; not carved */
} gpt_saved;

typedef struct gpt_norm {
    loom_param weight, bias;
} gpt_norm;

typedef struct gpt_block {
    gpt_norm norm1, norm2;
    loom_linear qkv[3], projection, wide[2], narrow; /* GPT-2 has one fused qkv and one wide; Llama q, k, v and gate, up */
    int n_qkv, n_wide;
    int64_t ffn, wide_width; /* columns on this rank of the dense MLP, or of the shared experts, and of its first matrix; 0: there is none */
    loom_moe_layer *experts; /* NULL: a dense layer */
} gpt_block;

loom_status gpt_norm_init(gpt_norm *norm, const gpt_shape *shape, const char *name, loom_param_list *params);
/* y = norm(x), or with `add`: sum = x + add, y = norm(sum). */
loom_status gpt_norm_forward(const gpt_norm *norm, const gpt_shape *shape, const float *x, const float *add, float *sum, float *y, float *mean,
                             float *rstd);
/* dx = gradient through the norm of dy, or added to dx with `accumulate`. */
loom_status gpt_norm_backward(gpt_norm *norm, const gpt_shape *shape, const float *dy, const float *x, const float *mean, const float *rstd,
                              float *dx, bool accumulate);

/* Layer `index` of the model; its parameters join `params` in forward order. */
loom_status gpt_block_init(gpt_block *block, const gpt_shape *shape, int64_t index, loom_param_list *params);
void gpt_block_close(gpt_block *block); /* accepts one that is all zeros */

/* Hands out 64-byte aligned buffers of one allocation; with memory NULL only counts. */
typedef struct gpt_carver {
    float *memory;
    int64_t used; /* floats */
} gpt_carver;
void gpt_carve(gpt_carver *carver, float **buffer, int64_t count);
void gpt_saved_carve(gpt_carver *carver, const gpt_shape *shape, int64_t ffn, gpt_saved *saved);

/* The MLP, or the shared experts: norm2 -> workspace->partial_TD, this rank's part of the sum over tp. */
loom_status gpt_mlp_forward(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved);
/* d [Tl, D], gradient of the sum, -> workspace->partial_TD, this rank's part of the gradient of norm2. Leaves what gpt_mlp_backward_sum needs. */
loom_status gpt_mlp_backward(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved, const float *d);
/* workspace->partial_TD, summed over tp, -> branch_TlD; the first matrices' gradients meanwhile. */
loom_status gpt_mlp_backward_sum(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved);
/* What both left out where backward is split: the matrices' gradients, from what is saved and d as it was given then. */
loom_status gpt_mlp_backward_weight(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved, const float *d);
/* workspace->partial_TD, summed over tp, -> branch_TlD. */
loom_status gpt_sum_partial(const gpt_shape *shape, gpt_workspace *workspace);

/* out [Tl, D] from x [Tl, D]. */
loom_status gpt_block_forward(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved, const float *x,
                              float *out);
/* d: gradient of out on entry, of x on return. Overwrites parts of `saved`. Where backward is split the matrices' gradients are left out, and those of
 * norms, biases behind a region, and routers are made here: they cost little, and what they need lives no longer. */
loom_status gpt_block_backward(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved, const float *x,
                               float *d);
/* The gradients that were left out. `saved` as gpt_block_backward left it, d_out as it was on entry there. */
loom_status gpt_block_backward_weight(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved, const float *d_out);

#endif
