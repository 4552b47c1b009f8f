/* How parameters lie in memory. What holds of a class:
 *   (1) parameters follow each other in the caller's order, each at a multiple of LOOM_ALIGN_F32 elements, with no other gap; only the end is
 *       padded, to a multiple of LOOM_ALIGN_F32 * parts. Where gradients are cut they follow each other unit by unit, and each unit's end is padded;
 *   (2) buckets tile the class, end between parameters, and have a length that cuts into `parts` aligned slices. They are formed from the end, because
 *       backward completes the last parameters first. Where gradients are cut each is a unit;
 *   (3) every rank that shares a gradient makes the same classes in the same order. */
#include "dp/dp.h"

#include "core/try.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- classes ------------------------------------------------------------------------------------------------------------ */

loom_status loom_dp_holders(const loom_mesh *mesh, const loom_shard *shard, loom_comm **holders)
{
    loom_comm *axis = mesh->axis[shard->split_axis];

    *holders = NULL;
    if (shard->holders <= 1)
        return LOOM_OK;
    if (loom_comm_size(axis) == shard->holders)
        *holders = axis;
    else if (shard->split_axis == LOOM_AXIS_TP && mesh->kv && loom_comm_size(mesh->kv) == shard->holders)
        *holders = mesh->kv;
    else
        return loom_fail(LOOM_E_INVALID, "%s: %d ranks hold the same part of it, but the %s group has %d ranks and the kv group %d", shard->name,
                         shard->holders, loom_axis_name(shard->split_axis), loom_comm_size(axis), mesh->kv ? loom_comm_size(mesh->kv) : 0);
    return LOOM_OK;
}

static void cut(loom_dp_class *c, int zero)
{
    bool alone = !c->holders && !c->tied;

    c->cut_state = loom_zero_cuts(zero, LOOM_ZERO_STATE, c->parts, alone);
    c->cut_gradient = loom_zero_cuts(zero, LOOM_ZERO_GRADIENTS, c->parts, alone);
    c->cut_value = loom_zero_cuts(zero, LOOM_ZERO_WEIGHTS, c->parts, alone);
}

static loom_status class_of(loom_dp *dp, const loom_shard *shard, int *index)
{
    loom_comm *reduce = shard->expert ? dp->mesh->axis[LOOM_AXIS_EDP] : dp->mesh->gradient;
    loom_comm *tied = shard->tied ? dp->mesh->tied : NULL, *holders;
    loom_status status = loom_dp_holders(dp->mesh, shard, &holders);
    loom_dp_class *c;

    if (status < 0)
        return status;
    if (shard->gradient != LOOM_GRADIENT_PARTIAL)
        holders = NULL; /* each has the whole gradient */
    for (*index = 0; *index < dp->classes; ++*index) {
        c = &dp->class_[*index];
        if (c->reduce == reduce && c->holders == holders && c->tied == tied)
            return LOOM_OK;
    }
    if (!(c = realloc(dp->class_, (size_t)(dp->classes + 1) * sizeof *c)))
        return loom_fail(LOOM_E_MEMORY, "no memory for the classes of gradient reduction");
    dp->class_ = c;
    c[dp->classes++] = (loom_dp_class){
        .reduce = reduce, .holders = holders, .tied = tied, .parts = loom_comm_size(reduce), .part = loom_comm_rank(reduce)};
    cut(&dp->class_[*index], dp->mesh->layout.zero);
    return LOOM_OK;
}

static loom_status class_add(loom_dp_class *c, loom_param *param)
{
    size_t n = (size_t)c->params + 1;
    loom_param **params = realloc(c->param, n * sizeof *params);
    if (params)
        c->param = params;
    int64_t *offsets = realloc(c->offset, n * sizeof *offsets);
    if (offsets)
        c->offset = offsets;
    if (!params || !offsets)
        return loom_fail(LOOM_E_MEMORY, "no memory to lay out %d parameters", c->params);
    if (c->cut_gradient && c->params > 0 && c->param[c->params - 1]->unit != param->unit)
        c->count = loom_flat_elements(c->count, c->parts);
    c->param[c->params] = param;
    c->offset[c->params++] = c->count; /* (1) */
    c->count += loom_aligned(loom_shard_local_count(&param->shard));
    return LOOM_OK;
}

/* --- buckets -------------------------------------------------------------------------------------------------------------- */

/* Whether a bucket may begin with parameter `i`, when the one behind it begins at `end`. */
static bool begins_bucket(const loom_dp *dp, const loom_dp_class *c, int i, int64_t end)
{
    bool in_one = c->holders || c->tied; /* few and small: one collective */

    if (i == 0)
        return true;
    if (c->cut_gradient)
        return c->param[i - 1]->unit != c->param[i]->unit;
    return !in_one && (size_t)(end - c->offset[i]) >= dp->bucket_elements && c->offset[i] % ((int64_t)LOOM_ALIGN_F32 * c->parts) == 0; /* (2) */
}

static loom_status form_buckets(loom_dp *dp, loom_dp_class *c)
{
    int64_t end;

    end = c->count = loom_flat_elements(c->count, c->parts);
    if (!(c->bucket = calloc((size_t)c->params, sizeof *c->bucket)) || !(c->complete = calloc((size_t)c->params, sizeof *c->complete)))
        return loom_fail(LOOM_E_MEMORY, "no memory for the buckets of %d parameters", c->params);
    for (int i = c->params - 1, last = c->params; i >= 0; i--) {
        int64_t begin = c->offset[i];
        if (begins_bucket(dp, c, i, end)) {
            c->bucket[c->buckets++] = (loom_dp_bucket){.begin = begin, .count = end - begin, .first = i, .last = last, .unit = c->param[i]->unit};
            c->largest = larger(end - begin, c->largest);
            end = begin;
            last = i;
        }
    }
    assert(end == 0);
    return LOOM_OK;
}

loom_dp_bucket *loom_dp_bucket_of(const loom_dp_class *c, int index)
{
    loom_dp_bucket *b = c->bucket;

    while (index < b->first)
        b++; /* from the end of the class to its begin */
    return b;
}

int64_t loom_dp_slice_count(const loom_dp_class *c, const loom_dp_bucket *bucket)
{
    return bucket->count / c->parts;
}

int64_t loom_dp_slice_begin(const loom_dp_class *c, const loom_dp_bucket *bucket)
{
    return bucket->begin + c->part * loom_dp_slice_count(c, bucket);
}

int64_t loom_dp_kept_index(const loom_dp_class *c, const loom_dp_bucket *bucket, int64_t element, bool is_cut)
{
    return is_cut ? bucket->begin / c->parts + element - loom_dp_slice_begin(c, bucket) : element;
}

int64_t loom_dp_kept_count(const loom_dp_class *c, bool is_cut)
{
    return is_cut ? c->count / c->parts : c->count;
}

loom_part loom_dp_kept_part(const loom_dp_class *c, int index, float *memory, bool is_cut)
{
    const loom_dp_bucket *b = loom_dp_bucket_of(c, index);
    int64_t begin = c->offset[index], end = begin + loom_shard_local_count(&c->param[index]->shard), first = begin;

    if (is_cut) {
        first = larger(begin, loom_dp_slice_begin(c, b));
        end = smaller(end, loom_dp_slice_begin(c, b) + loom_dp_slice_count(c, b));
    }
    if (first >= end)
        return (loom_part){NULL, 0, 0};
    return (loom_part){memory + loom_dp_kept_index(c, b, first, is_cut), first - begin, end - first};
}

/* --- runs ------------------------------------------------------------------------------------------------------------------ */

static bool is_counted(const loom_shard *shard)
{
    return shard->holder == 0 && (!shard->tied || shard->tied_owner);
}

static void add_run(loom_dp_run *run, int *runs, int64_t begin, int64_t end, bool decay, bool bucket_starts)
{
    if (begin >= end)
        return;
    if (*runs && !bucket_starts && run[*runs - 1].decay == decay && run[*runs - 1].begin + run[*runs - 1].count == begin)
        run[*runs - 1].count += end - begin;
    else
        run[(*runs)++] = (loom_dp_run){begin, end - begin, decay};
}

/* A parameter's run reaches to the next one: the gap between them holds zeros, which change nothing. */
static loom_status form_runs(loom_dp_class *c)
{
    if (!(c->update = calloc((size_t)c->params, sizeof *c->update)) || !(c->counted = calloc((size_t)c->params, sizeof *c->counted)))
        return loom_fail(LOOM_E_MEMORY, "no memory for the runs of %d parameters", c->params);
    for (const loom_dp_bucket *b = c->bucket; b < c->bucket + c->buckets; b++) {
        int64_t slice = loom_dp_slice_begin(c, b), slice_end = slice + loom_dp_slice_count(c, b);
        int updates_before = c->updates, counteds_before = c->counteds;
        for (int i = b->first; i < b->last; i++) {
            const loom_shard *shard = &c->param[i]->shard;
            int64_t begin = c->offset[i], end = i + 1 < b->last ? c->offset[i + 1] : b->begin + b->count;
            int64_t mine = larger(begin, slice), mine_end = smaller(end, slice_end);
            add_run(c->update, &c->updates, c->cut_state ? mine : begin, c->cut_state ? mine_end : end, shard->decay, c->updates == updates_before);
            if (is_counted(shard))
                add_run(c->counted, &c->counteds, mine, mine_end, false, c->counteds == counteds_before);
        }
    }
    return LOOM_OK;
}

/* --- finding one ----------------------------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const loom_dp_place *)a)->param, y = (uintptr_t)((const loom_dp_place *)b)->param;

    return (x > y) - (x < y);
}

const loom_dp_place *loom_dp_find(const loom_dp *dp, const loom_param *param)
{
    const loom_dp_place key = {.param = param};
    const loom_dp_place *place = dp->places ? bsearch(&key, dp->place, (size_t)dp->places, sizeof key, by_address) : NULL;

    if (!place)
        loom_fail(LOOM_E_INVALID, "%s is not among the %d parameters that were laid out", param ? param->shard.name : "(no parameter)", dp->places);
    return place;
}

static loom_status check_distinct(const loom_dp *dp)
{
    for (int i = 1; i < dp->places; i++)
        if (dp->place[i].param == dp->place[i - 1].param)
            return loom_fail(LOOM_E_INVALID, "%s stands twice in the list of parameters", dp->place[i].param->shard.name);
    return LOOM_OK;
}

static loom_status place_param(loom_dp *dp, loom_param *param)
{
    loom_dp_place *place = &dp->place[dp->places++];
    loom_status status;

    place->param = param;
    LOOM_TRY(class_of(dp, &param->shard, &place->class_));
    place->index = dp->class_[place->class_].params;
    return class_add(&dp->class_[place->class_], param);

fail:
    return status;
}

/* The smallest unit above `unit`, or `unit` when there is none. */
static int next_unit(const loom_param_list *params, int unit)
{
    int next = unit;

    for (int i = 0; i < params->count; i++)
        if (params->at[i]->unit > unit && (next == unit || params->at[i]->unit < next))
            next = params->at[i]->unit;
    return next;
}

/* Unit by unit, in the caller's order inside each. */
static loom_status place_units(loom_dp *dp, const loom_param_list *params)
{
    loom_status status;

    for (int unit = INT_MIN, next; (next = next_unit(params, unit)) != unit; unit = next)
        for (int i = 0; i < params->count; i++)
            if (params->at[i]->unit == next && (status = place_param(dp, params->at[i])) < 0)
                return status;
    return LOOM_OK;
}

loom_status loom_dp_lay_out(loom_dp *dp, const loom_param_list *params)
{
    loom_status status;

    if (!(dp->place = calloc((size_t)params->count + 1, sizeof *dp->place)))
        return loom_fail(LOOM_E_MEMORY, "no memory to lay out %d parameters", params->count);
    if (dp->mesh->layout.zero >= LOOM_ZERO_GRADIENTS)
        LOOM_TRY(place_units(dp, params));
    for (int i = 0; i < params->count && dp->mesh->layout.zero < LOOM_ZERO_GRADIENTS; i++)
        LOOM_TRY(place_param(dp, params->at[i]));
    qsort(dp->place, (size_t)dp->places, sizeof *dp->place, by_address);
    LOOM_TRY(check_distinct(dp));
    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++) {
        LOOM_TRY(form_buckets(dp, c));
        LOOM_TRY(form_runs(c));
    }
    return LOOM_OK;

fail:
    return status;
}

void loom_dp_forget_layout(loom_dp *dp)
{
    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++) {
        free(c->param);
        free(c->offset);
        free(c->complete);
        free(c->bucket);
        free(c->update);
        free(c->counted);
    }
    free(dp->class_);
    free(dp->place);
}
