#include "block.h"
#include "moe.h"
#include "names.h"
#include "try.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int64_t columns_here(const loom_tp *tp, int64_t features)
{
    loom_tp_block block = {features, 1};
    loom_range mine = loom_tp_block_range(tp, &block);

    return mine.end - mine.begin;
}

void gpt_shape_init(gpt_shape *s, const loom_model *model, loom_tp *tp, int64_t sequences, int64_t whole)
{
    loom_rank_shape rank;

    loom_rank_shape_of(model, &tp->mesh->layout, &tp->mesh->here, sequences, whole, &rank);
    s->model = model;
    s->tp = tp;
    s->sizes = rank;
    s->sequences = sequences;
    s->whole = whole;
    s->seq = rank.seq;
    s->local_seq = rank.local_seq;
    s->T = rank.tokens;
    s->Tl = rank.local_tokens;
    s->D = rank.hidden;
    s->head_dim = rank.head_dim;
    s->q_width = rank.q_width;
    s->kv_width = rank.kv_width;
    s->qkv_width = rank.qkv_width;
    s->heads = rank.heads;
    s->kv_heads = rank.kv_heads;
    s->split_backward = loom_schedule_kind_splits(tp->mesh->layout.schedule);
}

/* --- norm ---------------------------------------------------------------------------------------------------------------------- */

static void init_norm_parameter(loom_param *param, const gpt_shape *s, const char *name, const char *what, int kind)
{
    char full[GPT_NAME_BYTES + 8];

    snprintf(full, sizeof full, "%s.%s", name, what);
    loom_tp_replicated(s->tp, full, 1, &s->D, &param->shard);
    param->shard.init.kind = kind;
    param->shard.init.std = s->model->init_jitter;
}

loom_status gpt_norm_init(gpt_norm *norm, const gpt_shape *s, const char *name, loom_param_list *params)
{
    init_norm_parameter(&norm->weight, s, name, "weight", LOOM_INIT_ONES);
    TRY(loom_param_list_add(params, &norm->weight));
    if (s->model->norm == LOOM_LAYERNORM) {
        init_norm_parameter(&norm->bias, s, name, "bias", LOOM_INIT_ZEROS);
        TRY(loom_param_list_add(params, &norm->bias));
    }
    return LOOM_OK;
}

loom_status gpt_norm_forward(const gpt_norm *norm, const gpt_shape *s, const float *x, const float *add, float *sum, float *y, float *mean,
                             float *rstd)
{
    loom_kernels *k = s->tp->kernels;
    float eps = (float)s->model->norm_eps;

    if (s->model->norm == LOOM_RMSNORM)
        return k->rmsnorm(k,
                          &(loom_rmsnorm_args){.y_TD = y,
                                               .rstd_T = rstd,
                                               .x_TD = x,
                                               .weight_D = norm->weight.value,
                                               .add_TD = add,
                                               .sum_TD = sum,
                                               .tokens = s->Tl,
                                               .hidden = s->D,
                                               .eps = eps},
                          s->tp->compute);
    return k->layernorm(k,
                        &(loom_layernorm_args){.y_TD = y,
                                               .mean_T = mean,
                                               .rstd_T = rstd,
                                               .x_TD = x,
                                               .weight_D = norm->weight.value,
                                               .bias_D = norm->bias.value,
                                               .add_TD = add,
                                               .sum_TD = sum,
                                               .tokens = s->Tl,
                                               .hidden = s->D,
                                               .eps = eps},
                        s->tp->compute);
}

loom_status gpt_norm_backward(gpt_norm *norm, const gpt_shape *s, const float *dy, const float *x, const float *mean, const float *rstd,
                              float *dx, bool accumulate)
{
    loom_kernels *k = s->tp->kernels;

    if (s->model->norm == LOOM_RMSNORM)
        return k->rmsnorm_backward(k,
                                   &(loom_rmsnorm_backward_args){.dx_TD = dx,
                                                                 .dweight_D = norm->weight.gradient,
                                                                 .dy_TD = dy,
                                                                 .x_TD = x,
                                                                 .weight_D = norm->weight.value,
                                                                 .rstd_T = rstd,
                                                                 .tokens = s->Tl,
                                                                 .hidden = s->D,
                                                                 .accumulate = accumulate},
                                   s->tp->compute);
    return k->layernorm_backward(k,
                                 &(loom_layernorm_backward_args){.dx_TD = dx,
                                                                 .dweight_D = norm->weight.gradient,
                                                                 .dbias_D = norm->bias.gradient,
                                                                 .dy_TD = dy,
                                                                 .x_TD = x,
                                                                 .weight_D = norm->weight.value,
                                                                 .mean_T = mean,
                                                                 .rstd_T = rstd,
                                                                 .tokens = s->Tl,
                                                                 .hidden = s->D,
                                                                 .accumulate = accumulate},
                                 s->tp->compute);
}

/* --- parameters ------------------------------------------------------------------------------------------------------------------ */

static loom_status init_linear(loom_linear *layer, const gpt_shape *s, gpt_part part, int64_t index, loom_linear_config config,
                               loom_param_list *params)
{
    char name[GPT_NAME_BYTES];

    config.name = gpt_name(s->model, part, index, name);
    config.in_major = s->model->names == LOOM_NAMES_GPT2;
    config.bias_jitter = s->model->init_jitter;
    config.init_std = s->model->init_std;
    if (config.kind == LOOM_LINEAR_ROW) /* writes into the residual stream: Radford et al. 2019, §2.3 */
        config.init_std /= sqrt(2.0 * (double)s->model->layers);
    TRY(loom_linear_init(layer, s->tp, &config));
    return loom_linear_declare(layer, params);
}

static loom_status init_attention(gpt_block *block, const gpt_shape *s, int64_t index, loom_param_list *params)
{
    const loom_model *model = s->model;
    loom_tp_block q = {model->heads * model->head_dim, model->head_dim}, kv = {model->kv_heads * model->head_dim, model->head_dim};
    loom_linear_config column = {.kind = LOOM_LINEAR_COLUMN, .in = model->hidden, .bias = model->attention_bias, .n_blocks = 1};

    if (model->names == LOOM_NAMES_GPT2) {
        column.out = q.features + 2 * kv.features;
        column.n_blocks = 3;
        column.blocks[0] = q;
        column.blocks[1] = column.blocks[2] = kv;
        block->n_qkv = 1;
        TRY(init_linear(&block->qkv[0], s, GPT_QKV, index, column, params));
    } else {
        block->n_qkv = 3;
        for (int i = 0; i < 3; i++) {
            column.blocks[0] = i == 0 ? q : kv;
            column.out = column.blocks[0].features;
            TRY(init_linear(&block->qkv[i], s, (gpt_part)(GPT_Q + i), index, column, params));
        }
    }
    return init_linear(&block->projection, s, GPT_PROJECTION, index,
                       (loom_linear_config){.kind = LOOM_LINEAR_ROW,
                                            .in = q.features,
                                            .out = model->hidden,
                                            .bias = model->output_bias,
                                            .blocks = {q},
                                            .n_blocks = 1},
                       params);
}

/* `gate` and `narrow`: under which names; that of up follows gate's. */
static loom_status init_mlp(gpt_block *block, const gpt_shape *s, int64_t index, int64_t ffn, gpt_part gate, gpt_part narrow,
                            loom_param_list *params)
{
    const loom_model *model = s->model;
    loom_linear_config column = {.kind = LOOM_LINEAR_COLUMN, .in = model->hidden, .out = ffn, .bias = model->mlp_bias};
    loom_linear_config row = {.kind = LOOM_LINEAR_ROW, .in = ffn, .out = model->hidden, .bias = model->mlp_bias};

    block->n_wide = model->mlp == LOOM_SWIGLU ? 2 : 1;
    block->ffn = columns_here(s->tp, ffn);
    block->wide_width = loom_wide_columns(model, block->ffn);
    for (int i = 0; i < block->n_wide; i++)
        TRY(init_linear(&block->wide[i], s, block->n_wide == 1 ? GPT_WIDE : (gpt_part)(gate + i), index, column, params));
    return init_linear(&block->narrow, s, narrow, index, row, params);
}

/* A dense MLP, or experts and beside them, in some models, an MLP that every token goes through. */
static loom_status init_feed_forward(gpt_block *block, const gpt_shape *s, int64_t index, loom_param_list *params)
{
    const loom_moe *moe = &s->model->moe;

    if (!loom_model_layer_has_experts(s->model, index))
        return init_mlp(block, s, index, s->model->ffn, GPT_GATE, GPT_NARROW, params);
    TRY(gpt_experts_init(block, s, index, params));
    if (moe->shared == 0)
        return LOOM_OK;
    return init_mlp(block, s, index, moe->shared * moe->shared_ffn, GPT_SHARED_GATE, GPT_SHARED_NARROW, params);
}

loom_status gpt_block_init(gpt_block *block, const gpt_shape *s, int64_t index, loom_param_list *params)
{
    char name[GPT_NAME_BYTES];

    memset(block, 0, sizeof *block);
    TRY(gpt_norm_init(&block->norm1, s, gpt_name(s->model, GPT_NORM1, index, name), params));
    TRY(init_attention(block, s, index, params));
    TRY(gpt_norm_init(&block->norm2, s, gpt_name(s->model, GPT_NORM2, index, name), params));
    return init_feed_forward(block, s, index, params);
}

void gpt_block_close(gpt_block *block)
{
    loom_moe_layer_close(block->experts);
}

/* --- memory ---------------------------------------------------------------------------------------------------------------------- */

void gpt_carve(gpt_carver *carver, float **buffer, int64_t count)
{
    *buffer = carver->memory ? carver->memory + carver->used : NULL;
    carver->used += loom_aligned(count);
}

/* Whether backward needs q, k and v as the projection made them. */
static bool keeps_qkv(const gpt_shape *s)
{
    return loom_cp_saved(s->cp) == 0;
}

static float *qkv_of(const gpt_shape *s, const gpt_workspace *w, const gpt_saved *saved)
{
    return keeps_qkv(s) ? saved->qkv : w->qkv;
}

void gpt_saved_carve(gpt_carver *carver, const gpt_shape *s, int64_t ffn, gpt_saved *saved)
{
    float **const buffer[LOOM_KEPT_BUFFERS] = {
        [LOOM_KEPT_MEAN1] = &saved->mean1_T,         [LOOM_KEPT_RSTD1] = &saved->rstd1_T,   [LOOM_KEPT_NORM1] = &saved->norm1_TD,
        [LOOM_KEPT_QKV] = &saved->qkv,               [LOOM_KEPT_EXCHANGED] = &saved->exchanged, [LOOM_KEPT_LSE] = &saved->lse,
        [LOOM_KEPT_ATTENTION] = &saved->attention,   [LOOM_KEPT_MID] = &saved->mid_TD,      [LOOM_KEPT_MEAN2] = &saved->mean2_T,
        [LOOM_KEPT_RSTD2] = &saved->rstd2_T,         [LOOM_KEPT_NORM2] = &saved->norm2_TD,  [LOOM_KEPT_WIDE] = &saved->wide,
        [LOOM_KEPT_ACTIVE] = &saved->active};
    int64_t count[LOOM_KEPT_BUFFERS];

    loom_kept_counts(s->model, &s->sizes, ffn, loom_cp_saved(s->cp), count);
    for (int i = 0; i < LOOM_KEPT_BUFFERS; i++)
        gpt_carve(carver, buffer[i], count[i]);
}

/* --- forward ---------------------------------------------------------------------------------------------------------------------- */

static loom_attention_args attention_call(const gpt_shape *s, const gpt_workspace *w, const gpt_saved *saved)
{
    loom_bshk row = {.token = s->qkv_width};
    const float *qkv = qkv_of(s, w, saved);

    return (loom_attention_args){.o_BSHK = saved->attention,
                                 .lse_BHS = saved->lse,
                                 .q_BSHK = qkv,
                                 .k_BSGK = qkv + s->q_width,
                                 .v_BSGK = qkv + s->q_width + s->kv_width,
                                 .q_at = row,
                                 .k_at = row,
                                 .v_at = row,
                                 .batch = s->sequences,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .q_seq = s->local_seq,
                                 .k_seq = s->local_seq,
                                 .head_dim = s->head_dim,
                                 .mask = {.causal = true, .window = s->model->sliding_window, .q_documents_BS = s->documents_T}};
}

/* q and k lie side by side in a row, so they turn as one run of heads. */
static loom_status rotate(const gpt_shape *s, const gpt_workspace *w, float *qkv, bool inverse)
{
    loom_kernels *k = s->tp->kernels;

    if (s->model->positions != LOOM_ROPE)
        return LOOM_OK;
    return k->rope(k,
                   &(loom_rope_args){.y_THK = qkv,
                                     .x_THK = qkv,
                                     .cos_PK = w->cos_SK,
                                     .sin_PK = w->sin_SK,
                                     .tokens = s->T,
                                     .heads = s->heads + s->kv_heads,
                                     .head_dim = s->head_dim,
                                     .y_token = s->qkv_width,
                                     .x_token = s->qkv_width,
                                     .positions = s->seq,
                                     .rows_T = s->positions_T,
                                     .inverse = inverse},
                   s->tp->compute);
}

static void list(loom_linear *layers, int count, loom_linear **at)
{
    for (int i = 0; i < count; i++)
        at[i] = &layers[i];
}

/* Through the column-parallel layers of a region: x [Tl, D] -> y [T, their widths side by side]. */
static loom_status column_forward(loom_linear *layers, int count, const gpt_shape *s, gpt_workspace *w, const float *x_local, float *y)
{
    loom_linear *at[3];

    list(layers, count, at);
    return loom_tp_columns_forward(at, count, x_local, s->T, w->gathered_TD, y);
}

/* Out of a region through a row-parallel layer: x [T, in of this rank] -> branch [Tl, D]. */
static loom_status row_forward(const loom_linear *layer, const gpt_shape *s, gpt_workspace *w, const float *x)
{
    TRY(loom_tp_row_forward(layer, x, s->T, w->partial_TD, w->branch_TlD));
    return loom_linear_add_bias(layer, w->branch_TlD, s->Tl);
}

/* norm2 -> wide, active. GELU is part of the product before it. */
static loom_status mlp_inner(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved)
{
    loom_kernels *k = s->tp->kernels;

    if (s->model->mlp == LOOM_GELU_TANH)
        return loom_tp_column_forward_gelu(&block->wide[0], saved->norm2_TD, s->T, w->gathered_TD, saved->wide, saved->active);
    TRY(column_forward(block->wide, block->n_wide, s, w, saved->norm2_TD, saved->wide));
    return k->swiglu(k,
                     &(loom_swiglu_args){.y_TF = saved->active,
                                         .gate_TF = saved->wide,
                                         .up_TF = saved->wide + block->ffn,
                                         .tokens = s->T,
                                         .width = block->ffn,
                                         .ld_gate = block->wide_width,
                                         .ld_up = block->wide_width},
                     s->tp->compute);
}

loom_status gpt_mlp_forward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved)
{
    TRY(mlp_inner(block, s, w, saved));
    return loom_linear_forward(&block->narrow, saved->active, s->T, w->partial_TD, s->D);
}

/* norm2 -> branch. */
static loom_status feed_forward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved)
{
    if (block->experts)
        return gpt_experts_forward(block, s, w, saved);
    TRY(mlp_inner(block, s, w, saved));
    return row_forward(&block->narrow, s, w, saved->active);
}

loom_status gpt_block_forward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *x, float *out)
{
    loom_attention_args attention = attention_call(s, w, saved);
    float *qkv = qkv_of(s, w, saved);
    loom_kernels *k = s->tp->kernels;

    TRY(gpt_norm_forward(&block->norm1, s, x, NULL, NULL, saved->norm1_TD, saved->mean1_T, saved->rstd1_T));
    TRY(column_forward(block->qkv, block->n_qkv, s, w, saved->norm1_TD, qkv));
    TRY(rotate(s, w, qkv, false));
    TRY(loom_cp_attention(s->cp, &attention, saved->exchanged));
    TRY(row_forward(&block->projection, s, w, saved->attention));
    TRY(gpt_norm_forward(&block->norm2, s, x, w->branch_TlD, saved->mid_TD, saved->norm2_TD, saved->mean2_T, saved->rstd2_T));
    TRY(feed_forward(block, s, w, saved));
    return k->add(k, &(loom_add_args){.y = out, .a = saved->mid_TD, .b = w->branch_TlD, .count = s->Tl * s->D}, s->tp->compute);
}

/* --- backward ------------------------------------------------------------------------------------------------------------------------ *
 * Gradients inside a region take the place of what they are made from: that of gate and up theirs, and where backward is split that of q, k and v theirs
 * and that of the attention's sum the sum's. So the weights' half finds both factors of each product in `saved`. Where it is not split, a product
 * that ends in GELU's slope leaves its result in d_inner. */

/* d [Tl, D] -> the layer's weight gradient. */
static loom_status row_backward_weight(loom_linear *layer, const gpt_shape *s, gpt_workspace *w, const float *d, const float *x_in)
{
    const float *d_full;

    TRY(loom_tp_leave_backward(s->tp, d, s->T, s->D, w->gathered_TD, &d_full));
    return loom_linear_backward_weight(layer, x_in, d_full, s->D, s->T);
}

/* d [Tl, D] -> d_inner [T, in of this rank], the gradient of x_in, or of `before` where x_in is gelu(before). */
static loom_status row_backward(loom_linear *layer, const gpt_shape *s, gpt_workspace *w, const float *d, const float *x_in, const float *before)
{
    const float *d_full;

    TRY(loom_linear_bias_gradient(layer, d, s->Tl));
    TRY(loom_tp_row_backward_gelu(layer, d, s->T, w->gathered_TD, &d_full, before, w->d_inner));
    return s->split_backward ? LOOM_OK : loom_linear_backward_weight(layer, x_in, d_full, s->D, s->T);
}

loom_status gpt_sum_partial(const gpt_shape *s, gpt_workspace *w)
{
    TRY(loom_tp_enter_backward_begin(s->tp, w->partial_TD, s->T, s->D, w->branch_TlD));
    return loom_tp_enter_backward_end(s->tp);
}

/* x [Tl, D] and dy -> the layers' weight gradients. x is gathered again rather than kept: Korthikanti §4.2.2. */
static loom_status column_backward_weight(loom_linear *layers, int count, const gpt_shape *s, gpt_workspace *w, const float *x_local, const float *dy)
{
    loom_linear *at[3];
    const float *x_full;

    list(layers, count, at);
    TRY(loom_tp_enter(s->tp, x_local, s->T, s->D, w->gathered_TD, &x_full));
    return loom_linears_backward_weight(at, count, x_full, dy, s->T);
}

/* dy -> partial [T, D]. */
static loom_status column_backward_input(loom_linear *layers, int count, const gpt_shape *s, gpt_workspace *w, const float *dy)
{
    loom_linear *at[3];

    list(layers, count, at);
    return loom_linears_backward_input(at, count, dy, s->T, w->partial_TD);
}

/* partial [T, D] -> branch [Tl, D], and the weight gradients from x_full, under which the sum over tp travels. */
static loom_status sum_under_weights(loom_linear *layers, int count, const gpt_shape *s, gpt_workspace *w, const float *x_full, const float *dy)
{
    loom_linear *at[3];

    list(layers, count, at);
    TRY(loom_tp_enter_backward_begin(s->tp, w->partial_TD, s->T, s->D, w->branch_TlD));
    TRY(loom_linears_backward_weight(at, count, x_full, dy, s->T));
    return loom_tp_enter_backward_end(s->tp);
}

static loom_status column_backward_sum(loom_linear *layers, int count, const gpt_shape *s, gpt_workspace *w, const float *x_local, const float *dy)
{
    const float *x_full;

    if (s->split_backward)
        return gpt_sum_partial(s, w);
    TRY(loom_tp_enter(s->tp, x_local, s->T, s->D, w->gathered_TD, &x_full));
    return sum_under_weights(layers, count, s, w, x_full, dy);
}

/* dy -> branch [Tl, D]. What the weight gradients want of other ranks travels under the gradient of the input. */
static loom_status column_backward(loom_linear *layers, int count, const gpt_shape *s, gpt_workspace *w, const float *x_local, const float *dy)
{
    const float *x_full;

    if (!s->split_backward)
        TRY(loom_tp_enter_begin(s->tp, x_local, s->T, s->D, w->gathered_TD, &x_full));
    TRY(column_backward_input(layers, count, s, w, dy));
    if (s->split_backward)
        return gpt_sum_partial(s, w);
    TRY(loom_tp_enter_end(s->tp));
    return sum_under_weights(layers, count, s, w, x_full, dy);
}

/* In place: saved->wide becomes its gradient. */
static loom_status activate_backward(const gpt_block *block, const gpt_shape *s, const gpt_saved *saved, const float *d_active)
{
    loom_kernels *k = s->tp->kernels;
    float *wide = saved->wide;

    if (s->model->mlp == LOOM_GELU_TANH)
        return k->gelu_backward(k, &(loom_gelu_backward_args){.dx = wide, .dy = d_active, .x = wide, .count = s->T * block->ffn}, s->tp->compute);
    return k->swiglu_backward(k,
                              &(loom_swiglu_backward_args){.dgate_TF = wide,
                                                           .dup_TF = wide + block->ffn,
                                                           .dy_TF = d_active,
                                                           .gate_TF = wide,
                                                           .up_TF = wide + block->ffn,
                                                           .tokens = s->T,
                                                           .width = block->ffn,
                                                           .ld_dgate = block->wide_width,
                                                           .ld_dup = block->wide_width,
                                                           .ld_gate = block->wide_width,
                                                           .ld_up = block->wide_width},
                              s->tp->compute);
}

/* Whether the slope of GELU is part of the product before it. */
static bool ends_in_slope(const gpt_shape *s)
{
    return s->model->mlp == LOOM_GELU_TANH && !s->split_backward;
}

/* The gradient of what the first matrices gave. */
static float *d_wide_of(const gpt_shape *s, const gpt_workspace *w, const gpt_saved *saved)
{
    return ends_in_slope(s) ? w->d_inner : saved->wide;
}

/* d [Tl, D] -> that gradient. */
static loom_status mlp_backward_inner(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *d)
{
    if (ends_in_slope(s))
        return row_backward(&block->narrow, s, w, d, saved->active, saved->wide);
    TRY(row_backward(&block->narrow, s, w, d, saved->active, NULL));
    return activate_backward(block, s, saved, w->d_inner);
}

loom_status gpt_mlp_backward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *d)
{
    TRY(mlp_backward_inner(block, s, w, saved, d));
    return column_backward_input(block->wide, block->n_wide, s, w, d_wide_of(s, w, saved));
}

loom_status gpt_mlp_backward_sum(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved)
{
    return column_backward_sum(block->wide, block->n_wide, s, w, saved->norm2_TD, d_wide_of(s, w, saved));
}

loom_status gpt_mlp_backward_weight(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *d)
{
    TRY(row_backward_weight(&block->narrow, s, w, d, saved->active));
    return column_backward_weight(block->wide, block->n_wide, s, w, saved->norm2_TD, saved->wide);
}

static loom_status feed_forward_backward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, float *d)
{
    if (block->experts) {
        TRY(gpt_experts_backward(block, s, w, saved, d));
    } else {
        TRY(mlp_backward_inner(block, s, w, saved, d));
        TRY(column_backward(block->wide, block->n_wide, s, w, saved->norm2_TD, d_wide_of(s, w, saved)));
    }
    return gpt_norm_backward(&block->norm2, s, w->branch_TlD, saved->mid_TD, saved->mean2_T, saved->rstd2_T, d, true);
}

/* What of d_qkv the weights' half needs takes the place of q, k and v, or of what context parallelism kept of them: at least as much. */
static float *kept_d_qkv(const gpt_shape *s, const gpt_saved *saved)
{
    return keeps_qkv(s) ? saved->qkv : saved->exchanged;
}

static loom_status keep(const gpt_shape *s, float *place, const float *gradient, int64_t count)
{
    return s->split_backward ? loom_stream_copy(s->tp->compute, place, gradient, (size_t)count * sizeof *place) : LOOM_OK;
}

static loom_status attention_backward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *x, float *d)
{
    loom_bshk row = {.token = s->qkv_width};
    loom_attention_backward_args call = {.forward = attention_call(s, w, saved),
                                         .do_BSHK = w->d_inner,
                                         .dq_BSHK = w->d_qkv,
                                         .dk_BSGK = w->d_qkv + s->q_width,
                                         .dv_BSGK = w->d_qkv + s->q_width + s->kv_width,
                                         .dq_at = row,
                                         .dk_at = row,
                                         .dv_at = row};

    TRY(keep(s, saved->mid_TD, d, s->Tl * s->D));
    TRY(row_backward(&block->projection, s, w, d, saved->attention, NULL));
    TRY(loom_cp_attention_backward(s->cp, &call, saved->exchanged));
    TRY(rotate(s, w, w->d_qkv, true));
    TRY(column_backward(block->qkv, block->n_qkv, s, w, saved->norm1_TD, w->d_qkv));
    TRY(keep(s, kept_d_qkv(s, saved), w->d_qkv, s->T * s->qkv_width));
    return gpt_norm_backward(&block->norm1, s, w->branch_TlD, x, saved->mean1_T, saved->rstd1_T, d, true);
}

loom_status gpt_block_backward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *x, float *d)
{
    TRY(feed_forward_backward(block, s, w, saved, d));
    return attention_backward(block, s, w, saved, x, d);
}

loom_status gpt_block_backward_weight(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *d_out)
{
    if (block->experts)
        TRY(gpt_experts_backward_weight(block, s, w, saved, d_out));
    else
        TRY(gpt_mlp_backward_weight(block, s, w, saved, d_out));
    TRY(row_backward_weight(&block->projection, s, w, saved->mid_TD, saved->attention));
    return column_backward_weight(block->qkv, block->n_qkv, s, w, saved->norm1_TD, kept_d_qkv(s, saved));
}
