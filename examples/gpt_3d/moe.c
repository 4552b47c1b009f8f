#include "moe.h"
#include "names.h"
#include "try.h"

#include <math.h>
#include <stdio.h>

loom_status gpt_experts_init(gpt_block *block, const gpt_shape *s, int64_t index, loom_param_list *params)
{
    const loom_model *model = s->model;
    gpt_expert_names names = gpt_names_of_expert(model);
    char router[GPT_NAME_BYTES], full[GPT_NAME_BYTES + 8], bias[GPT_NAME_BYTES], experts[GPT_NAME_BYTES];

    snprintf(full, sizeof full, "%s.weight", gpt_name(model, GPT_ROUTER, index, router));
    return loom_moe_layer_open(s->ep,
                               &(loom_moe_layer_config){.moe = &model->moe,
                                                        .hidden = model->hidden,
                                                        .router = full,
                                                        .selection_bias = gpt_name(model, GPT_ROUTER_BIAS, index, bias),
                                                        .experts = gpt_name(model, GPT_EXPERTS, index, experts),
                                                        .gate = names.gate,
                                                        .up = names.up,
                                                        .down = names.down,
                                                        .init_std = model->init_std,
                                                        .init_std_down = model->init_std / sqrt(2.0 * (double)model->layers)},
                               params, &block->experts);
}

/* Which rows of [Tl, D] this rank routes, and the first one's number in the micro-batch. */
static loom_range own_rows(const gpt_shape *s, int64_t *first)
{
    loom_range own = loom_moe_own_tokens(s->ep, s->Tl);

    *first = s->tp->sequence_parallel ? s->tp->rank * s->Tl : own.begin;
    return own;
}

static bool has_shared(const gpt_block *block)
{
    return block->n_wide > 0;
}

/* Without sequence parallelism tp ranks route different rows of the same [T, D]: each adds its own to what the sum over tp puts together. With no
 * shared experts' part to add to, the other rows are 0. */
static loom_status clear_partial(const gpt_block *block, const gpt_shape *s, gpt_workspace *w)
{
    if (has_shared(block) || s->tp->size == 1)
        return LOOM_OK;
    return loom_stream_fill_zero(s->tp->compute, w->partial_TD, (size_t)(s->T * s->D) * sizeof *w->partial_TD);
}

/* Tokens are on their way while the shared experts compute. */
loom_status gpt_experts_forward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved)
{
    int64_t first;
    loom_range own = own_rows(s, &first);

    TRY(loom_moe_dispatch(block->experts, saved->experts, saved->norm2_TD + own.begin * s->D, own.end - own.begin, first));
    if (has_shared(block))
        TRY(gpt_mlp_forward(block, s, w, saved));
    TRY(loom_moe_compute(block->experts, saved->experts));
    if (s->tp->sequence_parallel) {
        if (has_shared(block))
            TRY(loom_tp_leave(s->tp, w->partial_TD, s->T, s->D, w->branch_TlD));
        return loom_moe_combine(block->experts, saved->experts, w->branch_TlD, has_shared(block));
    }
    TRY(clear_partial(block, s, w));
    TRY(loom_moe_combine(block->experts, saved->experts, w->partial_TD + own.begin * s->D, has_shared(block)));
    return loom_tp_leave(s->tp, w->partial_TD, s->T, s->D, w->branch_TlD);
}

static loom_status sum_partial(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved)
{
    return has_shared(block) ? gpt_mlp_backward_sum(block, s, w, saved) : gpt_sum_partial(s, w);
}

loom_status gpt_experts_backward(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *d)
{
    int64_t first;
    loom_range own = own_rows(s, &first);

    TRY(loom_moe_dispatch_backward(block->experts, saved->experts, saved->norm2_TD + own.begin * s->D, d + own.begin * s->D));
    if (has_shared(block))
        TRY(gpt_mlp_backward(block, s, w, saved, d));
    TRY(loom_moe_compute_backward(block->experts, saved->experts));
    if (s->tp->sequence_parallel) {
        if (has_shared(block))
            TRY(sum_partial(block, s, w, saved));
        return loom_moe_combine_backward(block->experts, saved->experts, w->branch_TlD, has_shared(block));
    }
    TRY(clear_partial(block, s, w));
    TRY(loom_moe_combine_backward(block->experts, saved->experts, w->partial_TD + own.begin * s->D, has_shared(block)));
    return sum_partial(block, s, w, saved);
}

loom_status gpt_experts_backward_weight(gpt_block *block, const gpt_shape *s, gpt_workspace *w, const gpt_saved *saved, const float *d)
{
    if (has_shared(block))
        TRY(gpt_mlp_backward_weight(block, s, w, saved, d));
    return loom_moe_backward_weight(block->experts, saved->experts);
}
