/* What the layers share, and the end of a step: loads and selection biases. */
#include "ep/ep.h"

#include "core/try.h"

#include <stdlib.h>
#include <string.h>

const char *loom_ep_dispatcher_name(loom_ep_dispatcher dispatcher)
{
    static const char *const names[LOOM_EP_DISPATCHERS] = {"alltoall", "allgather"};

    return dispatcher >= 0 && dispatcher < LOOM_EP_DISPATCHERS ? names[dispatcher] : "unknown dispatcher";
}

loom_status loom_ep_open(loom_mesh *mesh, loom_kernels *kernels, loom_stream *compute, const loom_ep_config *config, loom_ep **out)
{
    loom_status status;
    loom_ep *ep = calloc(1, sizeof *ep);

    if (!ep)
        return loom_fail(LOOM_E_MEMORY, "no memory for an expert-parallel context");
    if (config)
        ep->config = *config;
    ep->mesh = mesh;
    ep->device = loom_stream_device(compute);
    ep->kernels = kernels;
    ep->compute = compute;
    ep->ep = mesh->axis[LOOM_AXIS_EP];
    ep->etp = mesh->axis[LOOM_AXIS_ETP];
    ep->ep_size = loom_comm_size(ep->ep);
    ep->etp_size = loom_comm_size(ep->etp);
    ep->leaving.use = ep->arrived.use = ep->gathered.use = ep->partial.use = LOOM_MEM_COMM;
    ep->of_expert.use = LOOM_MEM_WORKSPACE;
    LOOM_TRY(loom_stream_open(ep->device, LOOM_STREAM_INLINE, "ep", &ep->comm));
    LOOM_TRY(loom_event_open(ep->device, &ep->computed));
    LOOM_TRY(loom_event_open(ep->device, &ep->communicated));
    *out = ep;
    return LOOM_OK;

fail:
    loom_ep_close(ep);
    return status;
}

void loom_ep_close(loom_ep *ep)
{
    if (!ep)
        return;
    loom_ep_buffer *const buffer[] = {&ep->leaving, &ep->arrived, &ep->gathered, &ep->partial, &ep->of_expert};

    for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++)
        loom_free(ep->device, buffer[i]->data);
    loom_free(ep->device, ep->loads);
    loom_event_close(ep->communicated);
    loom_event_close(ep->computed);
    loom_stream_close(ep->comm);
    free(ep->counted_choices);
    free(ep->positions);
    free(ep->layer);
    free(ep);
}

/* positions [cp, seq] as given or one rank's behind the other's, and behind them the other way round: which place has a position. */
static int32_t *copy_positions(const loom_ep_shape *shape, int64_t count)
{
    int32_t *positions = malloc(2 * (size_t)count * sizeof *positions);

    for (int64_t i = 0; positions && i < count; i++) {
        positions[i] = shape->positions_CS ? shape->positions_CS[i] : (int32_t)i;
        positions[count + positions[i]] = (int32_t)i;
    }
    return positions;
}

loom_status loom_ep_reshape(loom_ep *ep, const loom_ep_shape *shape)
{
    loom_comm *cp = ep->mesh->axis[LOOM_AXIS_CP];
    int64_t count = loom_comm_size(cp) * shape->seq;
    int32_t *positions = copy_positions(shape, count);
    const int32_t *here;

    if (!positions)
        return loom_fail(LOOM_E_MEMORY, "experts: no memory for %lld positions", (long long)count);
    here = positions + loom_comm_rank(cp) * shape->seq;
    free(ep->positions);
    ep->positions = positions;
    ep->place_of_position = positions + count;
    ep->shape = *shape;
    ep->shape.positions_CS = NULL; /* was lent */
    ep->shape.whole = shape->whole > 0 ? shape->whole : count;
    ep->whole_tokens = shape->sequences * ep->shape.whole;
    for (ep->counted = 0; ep->counted < shape->seq && here[ep->counted] < ep->shape.whole;)
        ep->counted++;
    return LOOM_OK;
}

loom_status loom_ep_reserve(loom_ep *ep, loom_ep_buffer *buffer, int64_t count, int64_t balanced)
{
    int64_t grown = loom_rows_grown(balanced, count);
    loom_status status;

    if (count <= buffer->capacity)
        return LOOM_OK;
    LOOM_TRY(loom_stream_wait(ep->compute));
    LOOM_TRY(loom_stream_wait(ep->comm));
    loom_free(ep->device, buffer->data);
    buffer->data = NULL;
    buffer->capacity = 0;
    LOOM_TRY(loom_alloc(ep->device, (size_t)grown * sizeof *buffer->data, buffer->use, (void **)&buffer->data));
    buffer->capacity = grown;
    return LOOM_OK;

fail:
    return status;
}

/* --- a step ---------------------------------------------------------------------------------------------------------------------- */

/* Choices of each expert of each layer; layers of one model have the same count of experts. Behind them what was dropped, all choices and what was
 * dropped of them, and a loom_ep_load: LOOM_LOAD_TOTALS. */
static int64_t load_count(const loom_ep *ep)
{
    return ep->layers ? ep->layers * ep->layer[0]->moe->experts : 0;
}

enum { TOTALS = 2, WORST = 2 }; /* all choices and those that were dropped; what of a load is the worst stage's */

loom_status loom_ep_begin(loom_ep *ep, double losses)
{
    size_t bytes = (size_t)(load_count(ep) + 1) * sizeof *ep->loads;

    if (!ep->counted_choices && !(ep->counted_choices = malloc(bytes)))
        return loom_fail(LOOM_E_MEMORY, "no memory for the loads of %lld experts", (long long)load_count(ep));
    memset(ep->counted_choices, 0, bytes);
    ep->losses = losses;
    if (ep->loads)
        return LOOM_OK;
    return loom_alloc(ep->device, (size_t)(load_count(ep) + LOOM_LOAD_TOTALS) * sizeof *ep->loads, LOOM_MEM_OTHER, (void **)&ep->loads);
}

static void add_to_load(const double *count, int64_t experts, double mean, loom_ep_load *load, int64_t *idle)
{
    for (int64_t e = 0; e < experts; e++) {
        if (mean > 0 && count[e] / mean > load->most)
            load->most = count[e] / mean;
        *idle += count[e] == 0;
    }
}

/* DeepSeek-V3 (2024), §2.1.2: an expert with more than its share becomes a little harder to choose, and the other way round. */
static loom_status steer(loom_ep *ep, loom_moe_layer *layer, const double *count, double mean)
{
    float bias[LOOM_ROUTER_EXPERTS_MAX];
    loom_part part = loom_param_kept_value(&layer->bias);
    size_t bytes = (size_t)part.count * sizeof *bias;
    loom_status status;

    if (!layer->moe->selection_bias || layer->moe->bias_speed == 0 || part.count == 0)
        return LOOM_OK;
    count += part.first;
    LOOM_TRY(loom_stream_copy(ep->compute, bias, part.data, bytes));
    LOOM_TRY(loom_stream_wait(ep->compute));
    for (int64_t e = 0; e < part.count; e++)
        bias[e] += (float)(layer->moe->bias_speed * ((mean > count[e]) - (mean < count[e])));
    LOOM_TRY(loom_stream_copy(ep->compute, part.data, bias, bytes));
    return loom_stream_wait(ep->compute);

fail:
    return status;
}

static loom_status finish_layers(loom_ep *ep, const double *counts, loom_ep_load *load)
{
    int64_t experts = ep->layer[0]->moe->experts, idle = 0;
    loom_status status;

    for (int l = 0; l < ep->layers; l++) {
        const double *count = counts + l * experts;
        double mean = 0;

        for (int64_t e = 0; e < experts; e++)
            mean += count[e] / (double)experts;
        add_to_load(count, experts, mean, load, &idle);
        LOOM_TRY(steer(ep, ep->layer[l], count, mean));
    }
    load->idle = (double)idle / (double)load_count(ep);
    return LOOM_OK;

fail:
    return status;
}

/* The sum over the ranks of the stage, in ep->counted_choices. */
static loom_status sum_loads(loom_ep *ep)
{
    size_t count = (size_t)load_count(ep) + (ep->config.capacity_factor > 0), bytes = count * sizeof *ep->loads;
    loom_status status;

    LOOM_TRY(loom_stream_copy(ep->compute, ep->loads, ep->counted_choices, bytes));
    LOOM_TRY(loom_all_reduce(ep->mesh->stage, ep->loads, ep->loads, count, LOOM_F64, LOOM_SUM, ep->compute));
    LOOM_TRY(loom_stream_copy(ep->compute, ep->counted_choices, ep->loads, bytes));
    return loom_stream_wait(ep->compute);

fail:
    return status;
}

/* The share of all stages' choices. */
static loom_status share_dropped(loom_ep *ep, loom_ep_load *load)
{
    double *place = ep->loads + load_count(ep) + 1, totals[TOTALS] = {0, ep->counted_choices[load_count(ep)]};
    loom_status status;

    for (int64_t i = 0; i < load_count(ep); i++)
        totals[0] += ep->counted_choices[i];
    LOOM_TRY(loom_stream_copy(ep->compute, place, totals, sizeof totals));
    LOOM_TRY(loom_all_reduce(ep->mesh->axis[LOOM_AXIS_PP], place, place, TOTALS, LOOM_F64, LOOM_SUM, ep->compute));
    LOOM_TRY(loom_stream_copy(ep->compute, totals, place, sizeof totals));
    LOOM_TRY(loom_stream_wait(ep->compute));
    load->dropped = totals[0] > 0 ? totals[1] / totals[0] : 0;
    return LOOM_OK;

fail:
    return status;
}

/* The worst of all stages. */
static loom_status share_load(loom_ep *ep, loom_ep_load *load)
{
    double *place = ep->loads + load_count(ep) + 1 + TOTALS;
    loom_status status;

    LOOM_TRY(loom_stream_copy(ep->compute, place, load, WORST * sizeof *place));
    LOOM_TRY(loom_all_reduce(ep->mesh->axis[LOOM_AXIS_PP], place, place, WORST, LOOM_F64, LOOM_MAX, ep->compute));
    LOOM_TRY(loom_stream_copy(ep->compute, load, place, WORST * sizeof *place));
    return loom_stream_wait(ep->compute);

fail:
    return status;
}

loom_status loom_ep_finish(loom_ep *ep, loom_ep_load *load)
{
    loom_status status;

    *load = (loom_ep_load){0};
    if (!ep->loads)
        return loom_fail(LOOM_E_INVALID, "loom_ep_finish() outside a step; loom_ep_begin() opens one");
    LOOM_TRY(sum_loads(ep));
    if (ep->layers > 0 && loom_device_get_kind(ep->device) != LOOM_DRY)
        LOOM_TRY(finish_layers(ep, ep->counted_choices, load));
    if (ep->config.capacity_factor > 0)
        LOOM_TRY(share_dropped(ep, load));
    return share_load(ep, load);

fail:
    return status;
}
