/* What a layer keeps of one micro-batch. */
#include "ep/ep.h"

#include "core/try.h"

#include <assert.h>
#include <stdlib.h>

static int64_t aligned(int64_t count)
{
    return (count + 15) / 16 * 16; /* 64 bytes */
}

/* Hands out parts of one allocation; with `memory` NULL only counts. */
static void *carve(void *memory, int64_t *used, int64_t count)
{
    int64_t begin = *used;

    *used += aligned(count);
    return memory ? (char *)memory + begin * 4 : NULL; /* floats and 32-bit integers alike */
}

static int64_t carve_floats(loom_moe_record *r)
{
    int64_t used = 0, choices = r->capacity * r->top_k;

    r->logits_TE = carve(r->memory, &used, r->capacity * r->experts);
    r->scores_TE = carve(r->memory, &used, r->capacity * r->experts);
    r->dlogits_TE = carve(r->memory, &used, r->capacity * r->experts);
    r->lse_T = carve(r->memory, &used, r->capacity);
    r->weights_TK = carve(r->memory, &used, choices);
    r->dweights_TK = carve(r->memory, &used, choices);
    r->returned_RD = carve(r->memory, &used, choices * r->hidden);
    r->stats = carve(r->memory, &used, 2 * r->units * r->experts);
    r->slopes = carve(r->memory, &used, r->units * r->experts);
    return used;
}

static int64_t carve_integers(loom_moe_record *r)
{
    int64_t used = 0, choices = r->capacity * r->top_k;

    r->ids_TK = carve(r->integers, &used, choices);
    r->rows_TK = carve(r->integers, &used, choices);
    r->order_R = carve(r->integers, &used, choices);
    r->offsets_E = carve(r->integers, &used, r->experts + 1);
    r->counts_E = carve(r->integers, &used, r->experts);
    r->tables = carve(r->integers, &used, r->experts * r->ep->etp_size);
    return used;
}

static loom_status allocate_host(loom_moe_record *r)
{
    size_t ep = (size_t)r->ep->ep_size, etp = (size_t)r->ep->etp_size;
    size_t *sizes = calloc(4 * ep + 2 * etp, sizeof *sizes);

    r->sent = sizes;
    r->host_offsets = calloc((size_t)r->experts + 1, sizeof *r->host_offsets);
    r->host_counts = calloc((size_t)r->experts, sizeof *r->host_counts);
    r->host_tables = calloc((size_t)r->experts * etp, sizeof *r->host_tables);
    r->expert_rows = calloc((size_t)r->experts_here, sizeof *r->expert_rows);
    if (!sizes || !r->host_offsets || !r->host_counts || !r->host_tables || !r->expert_rows)
        return loom_fail(LOOM_E_MEMORY, "no memory for the counts of %lld experts", (long long)r->experts);
    r->sent_at = sizes + ep;
    r->received = sizes + 2 * ep;
    r->received_at = sizes + 3 * ep;
    r->of_etp = sizes + 4 * ep;
    r->of_etp_at = sizes + 4 * ep + etp;
    return LOOM_OK;
}

/* Balanced, as many rows come in over ep as go out, and every etp rank sees those of all. */
static loom_status reserve_balanced(loom_moe_record *r)
{
    int64_t rows = r->capacity * r->top_k * r->ep->etp_size;
    loom_status status;

    r->x.use = r->wide.use = r->active.use = r->places.use = LOOM_MEM_ACTIVATIONS;
    LOOM_TRY(loom_ep_reserve(r->ep, &r->x, rows * r->hidden));
    LOOM_TRY(loom_ep_reserve(r->ep, &r->wide, rows * 2 * r->ffn));
    LOOM_TRY(loom_ep_reserve(r->ep, &r->active, rows * r->ffn));
    return LOOM_OK;

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
    LOOM_TRY(loom_alloc(ep->device, (size_t)carve_floats(r) * sizeof(float), LOOM_MEM_ACTIVATIONS, (void **)&r->memory));
    carve_floats(r);
    LOOM_TRY(loom_alloc(ep->device, (size_t)carve_integers(r) * sizeof(int32_t), LOOM_MEM_ACTIVATIONS, (void **)&r->integers));
    carve_integers(r);
    LOOM_TRY(loom_alloc(ep->device, sizeof *r->balance, LOOM_MEM_ACTIVATIONS, (void **)&r->balance));
    LOOM_TRY(allocate_host(r));
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
    loom_ep_buffer *const buffer[] = {&r->x, &r->wide, &r->active, &r->places};

    for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++)
        loom_free(r->ep->device, buffer[i]->data);
    loom_free(r->ep->device, r->memory);
    loom_free(r->ep->device, r->integers);
    loom_free(r->ep->device, r->balance);
    free(r->sent);
    free(r->host_offsets);
    free(r->host_counts);
    free(r->host_tables);
    free(r->expert_rows);
    free(r);
}

const int32_t *loom_moe_ids(const loom_moe_record *record)
{
    return record->ids_TK;
}

const size_t *loom_moe_sent(const loom_moe_record *record)
{
    return record->sent;
}

const size_t *loom_moe_received(const loom_moe_record *record)
{
    return record->received;
}
