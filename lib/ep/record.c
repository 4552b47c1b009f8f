/* What a layer keeps of one micro-batch. */
#include "ep/ep.h"

#include "core/try.h"

#include <assert.h>
#include <stdlib.h>

/* Both parts of the record that every load needs. */
static loom_status allocate_device(loom_moe_record *r)
{
    loom_device *device = r->ep->device;
    int64_t floats[LOOM_RECORD_FLOATS], integers[LOOM_RECORD_INTEGERS], at[LOOM_RECORD_FLOATS], place[LOOM_RECORD_INTEGERS], used;
    float **const buffer[LOOM_RECORD_FLOATS] = {
        [LOOM_RECORD_LOGITS] = &r->logits_TE,     [LOOM_RECORD_SCORES] = &r->scores_TE,     [LOOM_RECORD_DLOGITS] = &r->dlogits_TE,
        [LOOM_RECORD_LSE] = &r->lse_T,            [LOOM_RECORD_WEIGHTS] = &r->weights_TK,   [LOOM_RECORD_DWEIGHTS] = &r->dweights_TK,
        [LOOM_RECORD_RETURNED] = &r->returned_RD, [LOOM_RECORD_STATS] = &r->stats,          [LOOM_RECORD_SLOPES] = &r->slopes};
    int32_t **const list[LOOM_RECORD_INTEGERS] = {
        [LOOM_RECORD_IDS] = &r->ids_TK,        [LOOM_RECORD_ROWS] = &r->rows_TK,     [LOOM_RECORD_ORDER] = &r->order_R,
        [LOOM_RECORD_OFFSETS] = &r->offsets_E, [LOOM_RECORD_COUNTS] = &r->counts_E, [LOOM_RECORD_TABLES] = &r->tables,
        [LOOM_RECORD_FIRST_ROWS] = &r->rows_E1};
    loom_status status;

    loom_record_counts(&r->shape, floats, integers);
    used = loom_carve(floats, LOOM_RECORD_FLOATS, at);
    LOOM_TRY(loom_alloc(device, (size_t)used * sizeof(float), LOOM_MEM_ACTIVATIONS, (void **)&r->memory));
    used = loom_carve(integers, LOOM_RECORD_INTEGERS, place);
    LOOM_TRY(loom_alloc(device, (size_t)used * sizeof(int32_t), LOOM_MEM_ACTIVATIONS, (void **)&r->integers));
    for (int i = 0; i < LOOM_RECORD_FLOATS; i++)
        *buffer[i] = r->memory + at[i];
    for (int i = 0; i < LOOM_RECORD_INTEGERS; i++)
        *list[i] = r->integers + place[i];
    return loom_alloc(device, sizeof *r->balance, LOOM_MEM_ACTIVATIONS, (void **)&r->balance);

fail:
    return status;
}

static bool drops(const loom_moe_record *r)
{
    return r->ep->config.capacity_factor > 0;
}

/* What the drop rule looks at: all choices, and this rank's that stay. */
static loom_status allocate_choices(loom_moe_record *r)
{
    int64_t all = drops(r) ? loom_aligned(loom_ep_choices_count(r->ep, r->top_k)) : 0, kept = drops(r) ? r->capacity * r->top_k : 0;
    loom_status status;

    r->kept_TK = r->ids_TK;
    if (!drops(r))
        return LOOM_OK;
    LOOM_TRY(loom_alloc(r->ep->device, (size_t)(all + kept) * sizeof(int32_t), LOOM_MEM_ACTIVATIONS, (void **)&r->all_choices));
    r->kept_TK = r->all_choices + all;
    r->host_choices = calloc((size_t)all, sizeof *r->host_choices);
    return r->host_choices ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for %lld choices", (long long)all);

fail:
    return status;
}

/* What is copied to and from the device. */
static loom_status allocate_pinned(loom_moe_record *r)
{
    size_t etp = (size_t)r->ep->etp_size;
    loom_device *device = r->ep->device;
    loom_status status;

    LOOM_TRY(loom_alloc_host(device, ((size_t)r->experts + 1) * sizeof *r->host_offsets, (void **)&r->host_offsets));
    LOOM_TRY(loom_alloc_host(device, (size_t)r->experts * sizeof *r->host_counts, (void **)&r->host_counts));
    LOOM_TRY(loom_alloc_host(device, (size_t)r->experts * etp * sizeof *r->host_tables, (void **)&r->host_tables));
    return loom_alloc_host(device, ((size_t)r->experts_here + 1) * sizeof *r->host_rows_E1, (void **)&r->host_rows_E1);

fail:
    return status;
}

static loom_status allocate_host(loom_moe_record *r)
{
    size_t ep = (size_t)r->ep->ep_size, etp = (size_t)r->ep->etp_size;
    size_t *sizes = calloc(4 * ep + 2 * etp, sizeof *sizes);

    r->sent = sizes;
    r->chosen = calloc((size_t)r->experts, sizeof *r->chosen);
    if (!sizes || !r->chosen)
        return loom_fail(LOOM_E_MEMORY, "no memory for the counts of %lld experts", (long long)r->experts);
    r->sent_at = sizes + ep;
    r->received = sizes + 2 * ep;
    r->received_at = sizes + 3 * ep;
    r->of_etp = sizes + 4 * ep;
    r->of_etp_at = sizes + 4 * ep + etp;
    return allocate_pinned(r);
}

static loom_status reserve_balanced(loom_moe_record *r)
{
    const int64_t *balanced = r->balanced;
    loom_status status;

    r->x.use = r->wide.use = r->active.use = r->places.use = LOOM_MEM_ACTIVATIONS;
    r->out.use = r->all_weights.use = r->all_ids.use = LOOM_MEM_ACTIVATIONS;
    loom_rows_balanced(&r->shape, r->balanced);
    LOOM_TRY(loom_ep_reserve(r->ep, &r->x, balanced[LOOM_ROWS_X], balanced[LOOM_ROWS_X]));
    LOOM_TRY(loom_ep_reserve(r->ep, &r->wide, balanced[LOOM_ROWS_WIDE], balanced[LOOM_ROWS_WIDE]));
    LOOM_TRY(loom_ep_reserve(r->ep, &r->active, balanced[LOOM_ROWS_ACTIVE], balanced[LOOM_ROWS_ACTIVE]));
    return loom_ep_reserve(r->ep, &r->out, balanced[LOOM_ROWS_OUT], balanced[LOOM_ROWS_OUT]);

fail:
    return status;
}

loom_status loom_moe_record_open(const loom_moe_layer *layer, int64_t tokens, loom_moe_record **out)
{
    loom_ep *ep = layer->ep;
    loom_moe_record *r = calloc(1, sizeof *r);
    loom_status status;

    if (!r)
        return loom_fail(LOOM_E_MEMORY, "no memory for the record of a micro-batch");
    assert(ep->shape.sequences > 0); /* loom_ep_reshape() comes first */
    r->ep = ep;
    r->capacity = tokens;
    r->hidden = layer->hidden;
    r->ffn = layer->ffn;
    r->experts = layer->moe->experts;
    r->experts_here = layer->experts_here;
    r->top_k = layer->moe->top_k;
    r->units = layer->moe->balance == LOOM_BALANCE_SEQUENCE ? ep->shape.sequences : 1;
    r->shape = (loom_expert_shape){.ep = ep->ep_size,
                                   .etp = ep->etp_size,
                                   .experts = r->experts,
                                   .here = r->experts_here,
                                   .top_k = r->top_k,
                                   .hidden = r->hidden,
                                   .ffn = r->ffn,
                                   .units = r->units,
                                   .capacity = tokens,
                                   .split_backward = ep->config.split_backward};
    LOOM_TRY(allocate_device(r));
    LOOM_TRY(allocate_host(r));
    LOOM_TRY(allocate_choices(r));
    LOOM_TRY(reserve_balanced(r));
    *out = r;
    return LOOM_OK;

fail:
    loom_moe_record_close(r);
    return status;
}

void loom_moe_record_close(loom_moe_record *r)
{
    if (!r)
        return;
    loom_ep_buffer *const buffer[] = {&r->x, &r->wide, &r->active, &r->places, &r->out, &r->all_weights, &r->all_ids};

    for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++)
        loom_free(r->ep->device, buffer[i]->data);
    loom_free(r->ep->device, r->memory);
    loom_free(r->ep->device, r->integers);
    loom_free(r->ep->device, r->all_choices);
    loom_free(r->ep->device, r->balance);
    free(r->sent);
    loom_free_host(r->ep->device, r->host_offsets);
    loom_free_host(r->ep->device, r->host_counts);
    loom_free_host(r->ep->device, r->host_tables);
    loom_free_host(r->ep->device, r->host_rows_E1);
    free(r->chosen);
    free(r->host_choices);
    free(r);
}

const int32_t *loom_moe_ids(const loom_moe_record *record)
{
    return record->ids_TK;
}

const int32_t *loom_moe_kept(const loom_moe_record *record)
{
    return record->kept_TK;
}

const size_t *loom_moe_sent(const loom_moe_record *record)
{
    return record->sent;
}

const size_t *loom_moe_received(const loom_moe_record *record)
{
    return record->received;
}
