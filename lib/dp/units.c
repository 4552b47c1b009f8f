/* ZeRO-2 and -3 (Rajbhandari et al., SC 2020, §5; the prefetch of the next unit: §7.2.1 and FSDP, Zhao et al., VLDB 2023, §3.3): whole units have a place only while
 * they are in use. There are two places for weights and two for gradients, and all transfers go by the reduce stream, in the order of the calls: the weights of the
 * next unit travel while one computes, into the place of the one before; the gradients of one unit travel while the next fills the other place. */
#include "dp/dp.h"

#include "core/try.h"

#include <stdlib.h>

/* --- places ----------------------------------------------------------------------------------------------------------------- */

static loom_status open_slots(loom_dp *dp, const loom_dp_class *c, loom_memory_use use, loom_dp_slot *slots)
{
    loom_status status;

    for (int i = 0; i < LOOM_UNIT_PLACES; i++) {
        LOOM_TRY(loom_alloc_for_comm(dp->device, (size_t)c->largest * sizeof(float), use, (void **)&slots[i].memory));
        LOOM_TRY(loom_event_open(dp->device, &slots[i].moved));
    }
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_dp_open_slots(loom_dp *dp, loom_dp_class *c)
{
    loom_status status = c->cut_value ? open_slots(dp, c, LOOM_MEM_WEIGHTS, c->weights) : LOOM_OK;

    return status < 0 || !c->cut_gradient ? status : open_slots(dp, c, LOOM_MEM_GRADIENTS, c->sums);
}

static void close_slots(loom_dp *dp, loom_dp_slot *slots)
{
    for (int i = 0; i < LOOM_UNIT_PLACES; i++) {
        loom_free(dp->device, slots[i].memory);
        loom_event_close(slots[i].moved);
    }
}

void loom_dp_close_slots(loom_dp *dp, loom_dp_class *c)
{
    close_slots(dp, c->weights);
    close_slots(dp, c->sums);
}

static const loom_dp_bucket *bucket_of_unit(const loom_dp_class *c, int unit)
{
    for (const loom_dp_bucket *b = c->bucket; b < c->bucket + c->buckets; b++)
        if (b->unit == unit)
            return b;
    return NULL;
}

typedef loom_status unit_fn(loom_dp *dp, loom_dp_class *c, const loom_dp_bucket *b);

/* Of each class that cuts `what` what it has of the unit. */
static loom_status for_unit(loom_dp *dp, int unit, int what, unit_fn *call)
{
    loom_status status;

    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++) {
        const loom_dp_bucket *b = (what == LOOM_ZERO_WEIGHTS ? c->cut_value : c->cut_gradient) ? bucket_of_unit(c, unit) : NULL;
        if (b && (status = call(dp, c, b)) < 0)
            return status;
    }
    return LOOM_OK;
}

static loom_dp_slot *slot_of(loom_dp_slot *slots, const loom_dp_bucket *bucket)
{
    for (int i = 0; i < LOOM_UNIT_PLACES; i++)
        if (slots[i].pending && slots[i].bucket == bucket)
            return &slots[i];
    return NULL;
}

static loom_dp_slot *take_slot(loom_dp_slot *slots, int *next)
{
    loom_dp_slot *slot = &slots[*next];

    *next = (*next + 1) % LOOM_UNIT_PLACES;
    return slot;
}

/* --- weights ------------------------------------------------------------------------------------------------------------------ */

/* Into the place that was used longest ago: all that reads it is on the compute stream already. */
static loom_status start_gather(loom_dp *dp, loom_dp_class *c, const loom_dp_bucket *b)
{
    loom_dp_slot *slot = take_slot(c->weights, &c->next_weights);
    const float *mine = c->value + loom_dp_kept_index(c, b, loom_dp_slice_begin(c, b), true);
    loom_status status;

    slot->bucket = b;
    slot->pending = true;
    LOOM_TRY(loom_dp_follow_compute(dp));
    LOOM_TRY(loom_all_gather(c->reduce, mine, slot->memory, (size_t)loom_dp_slice_count(c, b), LOOM_F32, dp->reduce));
    return loom_event_record(slot->moved, dp->reduce);

fail:
    return status;
}

static loom_status use_weights(loom_dp *dp, loom_dp_class *c, const loom_dp_bucket *b)
{
    loom_dp_slot *slot = slot_of(c->weights, b);
    loom_status status;

    if (!slot) {
        LOOM_TRY(start_gather(dp, c, b));
        slot = slot_of(c->weights, b);
    }
    LOOM_TRY(loom_stream_wait_event(dp->compute, slot->moved));
    slot->pending = false;
    for (int i = b->first; i < b->last; i++)
        c->param[i]->value = slot->memory + c->offset[i] - b->begin;
    return LOOM_OK;

fail:
    return status;
}

/* Steps are alike: where this one departs from the last, its order is taken down anew. */
static loom_status note_use(loom_dp *dp, int unit)
{
    if (dp->used == dp->uses || dp->use[dp->used] != unit) {
        if (dp->used == dp->capacity) {
            int capacity = dp->capacity ? 2 * dp->capacity : 64;
            int *use = realloc(dp->use, (size_t)capacity * sizeof *use);
            if (!use)
                return loom_fail(LOOM_E_MEMORY, "no memory for the order of %d uses of weights", capacity);
            dp->use = use;
            dp->capacity = capacity;
        }
        dp->use[dp->used] = unit;
        dp->uses = dp->used + 1;
    }
    dp->used++;
    return LOOM_OK;
}

loom_status loom_dp_gather_weights(loom_dp *dp, int unit)
{
    loom_status status;

    if (dp->mesh->layout.zero < LOOM_ZERO_WEIGHTS)
        return LOOM_OK;
    LOOM_TRY(for_unit(dp, unit, LOOM_ZERO_WEIGHTS, use_weights));
    if (!dp->in_step)
        return LOOM_OK;
    LOOM_TRY(note_use(dp, unit));
    return dp->overlap && dp->used < dp->uses ? for_unit(dp, dp->use[dp->used], LOOM_ZERO_WEIGHTS, start_gather) : LOOM_OK;

fail:
    return status;
}

/* --- gradients ---------------------------------------------------------------------------------------------------------------- */

static float *slice_in(const loom_dp_class *c, const loom_dp_slot *slot)
{
    return slot->memory + loom_dp_slice_begin(c, slot->bucket) - slot->bucket->begin;
}

/* This rank's part of what was reduced joins what it keeps. */
static loom_status add_up(loom_dp *dp, const loom_dp_class *c, loom_dp_slot *slot)
{
    const loom_dp_bucket *b = slot->bucket;
    loom_status status;

    if (!slot->pending)
        return LOOM_OK;
    const loom_axpy_args args = {.y = c->gradient + loom_dp_kept_index(c, b, loom_dp_slice_begin(c, b), true),
                                 .x = slice_in(c, slot),
                                 .alpha = 1,
                                 .count = loom_dp_slice_count(c, b)};
    slot->pending = false;
    LOOM_TRY(loom_stream_wait_event(dp->compute, slot->moved));
    return dp->kernels->axpy(dp->kernels, &args, dp->compute);

fail:
    return status;
}

static loom_status begin_gradients(loom_dp *dp, loom_dp_class *c, const loom_dp_bucket *b)
{
    loom_dp_slot *slot = take_slot(c->sums, &c->next_sums);
    loom_status status;

    LOOM_TRY(add_up(dp, c, slot));
    slot->bucket = b;
    LOOM_TRY(loom_stream_fill_zero(dp->compute, slot->memory, (size_t)b->count * sizeof *slot->memory));
    for (int i = b->first; i < b->last; i++)
        c->param[i]->gradient = slot->memory + c->offset[i] - b->begin;
    return LOOM_OK;

fail:
    return status;
}

/* The place that begin_gradients() took last. */
static loom_status scatter_gradients(loom_dp *dp, loom_dp_class *c, const loom_dp_bucket *b)
{
    loom_dp_slot *slot = &c->sums[(c->next_sums + LOOM_UNIT_PLACES - 1) % LOOM_UNIT_PLACES];
    loom_status status;

    if (slot->bucket != b || slot->pending)
        return loom_fail(LOOM_E_INVALID, "loom_dp_scatter_gradients() of unit %d; loom_dp_begin_gradients() of it comes before", b->unit);
    slot->pending = true;
    LOOM_TRY(loom_dp_clear_padding(dp, c, b));
    LOOM_TRY(loom_dp_follow_compute(dp));
    LOOM_TRY(loom_reduce_scatter(c->reduce, slot->memory, slice_in(c, slot), (size_t)loom_dp_slice_count(c, b), LOOM_F32, LOOM_SUM, dp->reduce));
    return loom_event_record(slot->moved, dp->reduce);

fail:
    return status;
}

loom_status loom_dp_begin_gradients(loom_dp *dp, int unit)
{
    loom_status status = loom_dp_check_in_step(dp, "loom_dp_begin_gradients");

    return status < 0 ? status : for_unit(dp, unit, LOOM_ZERO_GRADIENTS, begin_gradients);
}

loom_status loom_dp_scatter_gradients(loom_dp *dp, int unit)
{
    loom_status status = loom_dp_check_in_step(dp, "loom_dp_scatter_gradients");

    return status < 0 ? status : for_unit(dp, unit, LOOM_ZERO_GRADIENTS, scatter_gradients);
}

/* --- a step -------------------------------------------------------------------------------------------------------------------- */

/* Every step begins with the same places, so that each leaves its units where the others do, replays among them. */
void loom_dp_begin_units(loom_dp *dp)
{
    dp->used = 0;
    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++) {
        c->next_weights = c->next_sums = 0;
        for (int i = 0; i < LOOM_UNIT_PLACES; i++)
            c->weights[i].pending = c->sums[i].pending = false;
    }
}

void loom_dp_replay_units(loom_dp *dp)
{
    dp->used = dp->uses;
    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (int i = 0; i < LOOM_UNIT_PLACES; i++) {
            c->weights[i].pending = false;
            c->sums[i].pending = c->sums[i].pending_last;
        }
}

loom_status loom_dp_finish_units(loom_dp *dp)
{
    loom_status status;

    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (int i = 0; i < LOOM_UNIT_PLACES; i++) {
            c->sums[i].pending_last = c->sums[i].pending;
            if ((status = add_up(dp, c, &c->sums[i])) < 0)
                return status;
        }
    return LOOM_OK;
}
