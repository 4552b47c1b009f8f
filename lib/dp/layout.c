/* How parameters lie in memory. What holds of a class:
 *   (1) parameters follow each other in the caller's order, each at a multiple of LOOM_ALIGN_F32 elements, with no other gap; only the end is
 *       padded, to a multiple of LOOM_ALIGN_F32 * parts;
 *   (2) buckets tile the class, end between parameters, and have a length that cuts into `parts` aligned slices. They are formed from the end, because
 *       backward completes the last parameters first;
 *   (3) every rank that shares a gradient makes the same classes in the same order. */
#include "dp/dp.h"

#include "core/try.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
    c->param[c->params] = param;
    c->offset[c->params++] = c->count; /* (1) */
    c->count += loom_aligned(loom_shard_local_count(&param->shard));
    return LOOM_OK;
}

/* --- buckets -------------------------------------------------------------------------------------------------------------- */

static loom_status form_buckets(loom_dp *dp, loom_dp_class *c)
{
    int64_t unit = (int64_t)LOOM_ALIGN_F32 * c->parts, end;
    bool in_one = c->holders || c->tied; /* few and small: one collective */

    end = c->count = loom_flat_elements(c->count, c->parts);
    if (!(c->bucket = calloc((size_t)c->params, sizeof *c->bucket)) || !(c->complete = calloc((size_t)c->params, sizeof *c->complete)))
        return loom_fail(LOOM_E_MEMORY, "no memory for the buckets of %d parameters", c->params);
    for (int i = c->params - 1, last = c->params; i >= 0; i--) {
        int64_t begin = c->offset[i];
        bool full = !in_one && (size_t)(end - begin) >= dp->bucket_elements && begin % unit == 0; /* (2) */
        if (full || i == 0) {
            c->bucket[c->buckets++] = (loom_dp_bucket){.begin = begin, .count = end - begin, .first = i, .last = last};
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

int64_t loom_dp_state_index(const loom_dp *dp, const loom_dp_class *c, const loom_dp_bucket *bucket, int64_t element)
{
    return dp->zero1 ? bucket->begin / c->parts + element - loom_dp_slice_begin(c, bucket) : element;
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

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A parameter's run reaches to the next one: the gap between them holds zeros, which change nothing. */
static loom_status form_runs(const loom_dp *dp, loom_dp_class *c)
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
            add_run(c->update, &c->updates, dp->zero1 ? mine : begin, dp->zero1 ? mine_end : end, shard->decay, c->updates == updates_before);
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

loom_status loom_dp_lay_out(loom_dp *dp, const loom_param_list *params)
{
    loom_status status;

    if (!(dp->place = calloc((size_t)params->count + 1, sizeof *dp->place)))
        return loom_fail(LOOM_E_MEMORY, "no memory to lay out %d parameters", params->count);
    for (int i = 0; i < params->count; i++) {
        loom_dp_place *place = &dp->place[dp->places++];
        place->param = params->at[i];
        LOOM_TRY(class_of(dp, &place->param->shard, &place->class_));
        place->index = dp->class_[place->class_].params;
        LOOM_TRY(class_add(&dp->class_[place->class_], params->at[i]));
    }
    qsort(dp->place, (size_t)dp->places, sizeof *dp->place, by_address);
    LOOM_TRY(check_distinct(dp));
    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++) {
        LOOM_TRY(form_buckets(dp, c));
        LOOM_TRY(form_runs(dp, c));
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
