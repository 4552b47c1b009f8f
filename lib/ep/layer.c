/* The parameters of a layer of experts. */
#include "ep/ep.h"

#include "core/try.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The router is whole on every tp rank, and each saw only the tokens that it routed. */
static loom_status add_router(loom_moe_layer *layer, const loom_moe_layer_config *config, loom_param_list *params)
{
    loom_comm *tp = layer->ep->mesh->axis[LOOM_AXIS_TP];
    loom_shard *weight = &layer->router.shard, *bias = &layer->bias.shard;
    loom_status status;

    snprintf(weight->name, sizeof weight->name, "%s", config->router);
    weight->dims = 2;
    weight->shape[0] = layer->moe->experts;
    weight->shape[1] = layer->hidden;
    weight->split_dim = -1;
    weight->split_axis = LOOM_AXIS_TP;
    weight->holders = loom_comm_size(tp);
    weight->holder = loom_comm_rank(tp);
    weight->gradient = LOOM_GRADIENT_PARTIAL;
    weight->decay = true;
    weight->init = (loom_init){LOOM_INIT_NORMAL, config->init_std};
    LOOM_TRY(loom_param_list_add(params, &layer->router));
    if (!layer->moe->selection_bias)
        return LOOM_OK;
    *bias = *weight;
    snprintf(bias->name, sizeof bias->name, "%s", config->selection_bias);
    bias->dims = 1;
    bias->gradient = LOOM_GRADIENT_WHOLE; /* of zeros */
    bias->decay = false;
    bias->init = (loom_init){LOOM_INIT_ZEROS, 0};
    return loom_param_list_add(params, &layer->bias);

fail:
    return status;
}

/* gate and up are cut by rows, down by columns, each etp rank the same range of the expert's width. */
static loom_status add_matrix(loom_moe_layer *layer, const loom_moe_layer_config *config, loom_param *param, int64_t expert, const char *what,
                              bool down, loom_param_list *params)
{
    loom_shard *shard = &param->shard;
    const loom_ep *ep = layer->ep;

    snprintf(shard->name, sizeof shard->name, "%s.%lld.%s.weight", config->experts, (long long)expert, what);
    shard->dims = 2;
    shard->shape[down ? 1 : 0] = layer->moe->ffn;
    shard->shape[down ? 0 : 1] = layer->hidden;
    shard->split_dim = down ? 1 : 0;
    shard->split_axis = LOOM_AXIS_ETP;
    shard->n_ranges = 1;
    shard->ranges[0] = loom_cut(layer->moe->ffn, ep->etp_size, loom_comm_rank(ep->etp));
    shard->holders = 1;
    shard->gradient = LOOM_GRADIENT_WHOLE;
    shard->expert = true;
    shard->decay = true;
    shard->init = (loom_init){LOOM_INIT_NORMAL, down ? config->init_std_down : config->init_std};
    return loom_param_list_add(params, param);
}

static loom_status add_experts(loom_moe_layer *layer, const loom_moe_layer_config *config, loom_param_list *params)
{
    int64_t first = loom_comm_rank(layer->ep->ep) * layer->experts_here;
    loom_status status;

    layer->expert = calloc((size_t)layer->experts_here, sizeof *layer->expert);
    if (!layer->expert)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for %lld experts", config->experts, (long long)layer->experts_here);
    for (int64_t e = 0; e < layer->experts_here; e++) {
        loom_ep_expert *expert = &layer->expert[e];

        LOOM_TRY(add_matrix(layer, config, &expert->gate, first + e, config->gate, false, params));
        LOOM_TRY(add_matrix(layer, config, &expert->up, first + e, config->up, false, params));
        LOOM_TRY(add_matrix(layer, config, &expert->down, first + e, config->down, true, params));
    }
    return LOOM_OK;

fail:
    return status;
}

static loom_status join(loom_ep *ep, loom_moe_layer *layer)
{
    loom_moe_layer **all = realloc(ep->layer, ((size_t)ep->layers + 1) * sizeof *all);

    if (!all)
        return loom_fail(LOOM_E_MEMORY, "no memory for a list of %d layers of experts", ep->layers + 1);
    ep->layer = all;
    layer->index = ep->layers;
    all[ep->layers++] = layer;
    return LOOM_OK;
}

static loom_status check_config(const loom_ep *ep, const loom_moe_layer_config *config)
{
    const loom_moe *moe = config->moe;

    if (moe->experts < 1 || moe->experts > LOOM_ROUTER_EXPERTS_MAX || moe->experts % ep->ep_size != 0)
        return loom_fail(LOOM_E_INVALID, "%s: ep=%d ranks cannot share %lld experts evenly; at most %d can be routed", config->experts, ep->ep_size,
                         (long long)moe->experts, LOOM_ROUTER_EXPERTS_MAX);
    if (moe->ffn < ep->etp_size)
        return loom_fail(LOOM_E_INVALID, "%s: etp=%d ranks cannot share an expert of width %lld", config->experts, ep->etp_size, (long long)moe->ffn);
    if (ep->layers > 0 && ep->layer[0]->moe->experts != moe->experts)
        return loom_fail(LOOM_E_INVALID, "%s: %lld experts, and an earlier layer has %lld; the layers of one model have the same", config->experts,
                         (long long)moe->experts, (long long)ep->layer[0]->moe->experts);
    return LOOM_OK;
}

loom_status loom_moe_layer_open(loom_ep *ep, const loom_moe_layer_config *config, loom_param_list *params, loom_moe_layer **out)
{
    loom_status status = check_config(ep, config);
    loom_range columns;
    loom_moe_layer *layer;

    if (status < 0)
        return status;
    if (!(layer = calloc(1, sizeof *layer)))
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for the layer itself", config->experts);
    columns = loom_cut(config->moe->ffn, ep->etp_size, loom_comm_rank(ep->etp));
    layer->ep = ep;
    layer->moe = config->moe;
    layer->hidden = config->hidden;
    layer->ffn = columns.end - columns.begin;
    layer->experts_here = config->moe->experts / ep->ep_size;
    layer->rule = (loom_router_rule){.experts = config->moe->experts,
                                     .top_k = config->moe->top_k,
                                     .groups = config->moe->groups,
                                     .groups_kept = config->moe->groups_kept,
                                     .sigmoid = config->moe->router == LOOM_ROUTER_SIGMOID,
                                     .normalise = config->moe->normalise_top_k,
                                     .route_scale = (float)config->moe->route_scale};
    LOOM_TRY(add_router(layer, config, params));
    LOOM_TRY(add_experts(layer, config, params));
    LOOM_TRY(join(ep, layer));
    *out = layer;
    return LOOM_OK;

fail:
    loom_moe_layer_close(layer);
    return status;
}

void loom_moe_layer_close(loom_moe_layer *layer)
{
    if (!layer)
        return;
    free(layer->expert);
    free(layer);
}
