/* Shard specs: extents, the map from local to global elements, and the one walk over both. */
#include <rankloom/shard.h>

#include <assert.h>
#include <stdlib.h>

loom_status loom_param_list_add(loom_param_list *list, loom_param *param)
{
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        loom_param **at = realloc(list->at, (size_t)capacity * sizeof *at);
        if (!at)
            return loom_fail(LOOM_E_MEMORY, "no memory for a list of %d parameters", capacity);
        list->at = at;
        list->capacity = capacity;
    }
    list->at[list->count++] = param;
    return LOOM_OK;
}

void loom_param_list_free(loom_param_list *list)
{
    free(list->at);
    *list = (loom_param_list){0};
}

static loom_part kept(const loom_param *param, float *whole, bool cut, loom_part part)
{
    return cut ? part : (loom_part){whole, 0, loom_shard_local_count(&param->shard)};
}

loom_part loom_param_kept_value(const loom_param *param)
{
    return kept(param, param->value, param->value_cut, param->value_part);
}

loom_part loom_param_kept_gradient(const loom_param *param)
{
    return kept(param, param->gradient, param->gradient_cut, param->gradient_part);
}

/* Indices that this rank really has along the split dimension. */
static int64_t held_extent(const loom_shard *shard)
{
    int64_t held = 0;

    for (int i = 0; i < shard->n_ranges; i++)
        held += shard->ranges[i].end - shard->ranges[i].begin;
    return held;
}

int64_t loom_shard_local_extent(const loom_shard *shard, int dim)
{
    return dim == shard->split_dim ? held_extent(shard) + shard->padding : shard->shape[dim];
}

int64_t loom_shard_local_count(const loom_shard *shard)
{
    int64_t count = 1;

    for (int d = 0; d < shard->dims; d++)
        count *= loom_shard_local_extent(shard, d);
    return count;
}

int64_t loom_shard_global_count(const loom_shard *shard)
{
    int64_t count = 1;

    for (int d = 0; d < shard->dims; d++)
        count *= shard->shape[d];
    return count;
}

/* A shard as rows x split x columns: what lies outside and inside of the split dimension is whole. */
typedef struct split_view {
    int64_t rows, split, columns; /* global */
    int64_t local_split;          /* with padding */
} split_view;

static split_view view_of(const loom_shard *shard)
{
    split_view view = {1, 1, 1, 1};

    assert(shard->split_dim < shard->dims && shard->n_ranges <= LOOM_SHARD_RANGES);
    for (int d = 0; d < shard->dims; d++)
        *(d < shard->split_dim ? &view.rows : d == shard->split_dim ? &view.split : &view.columns) *= shard->shape[d];
    if (shard->split_dim >= 0)
        view.local_split = loom_shard_local_extent(shard, shard->split_dim);
    return view;
}

int64_t loom_shard_global_index(const loom_shard *shard, int64_t local)
{
    split_view view = view_of(shard);
    int64_t column = local % view.columns, index = local / view.columns % view.local_split, row = local / view.columns / view.local_split;

    if (shard->split_dim < 0)
        return local;
    for (int i = 0; i < shard->n_ranges; i++) {
        int64_t length = shard->ranges[i].end - shard->ranges[i].begin;
        if (index < length)
            return (row * view.split + shard->ranges[i].begin + index) * view.columns + column;
        index -= length;
    }
    return -1;
}

/* Holds a run back until one comes that does not continue it. */
typedef struct run {
    int64_t local, global, count;
} run;

static loom_status add_run(run *held, run next, loom_shard_visit_fn *visit, void *context)
{
    loom_status status = LOOM_OK;

    if (next.count == 0)
        return LOOM_OK;
    if (held->local + held->count == next.local && held->global + held->count == next.global && held->count > 0) {
        held->count += next.count;
        return LOOM_OK;
    }
    if (held->count > 0)
        status = visit(context, held->local, held->global, held->count);
    *held = next;
    return status;
}

loom_status loom_shard_visit(const loom_shard *shard, loom_shard_visit_fn *visit, void *context)
{
    split_view view = view_of(shard);
    run held = {0, 0, 0};

    if (shard->split_dim < 0)
        held.count = loom_shard_global_count(shard);
    for (int64_t row = 0; shard->split_dim >= 0 && row < view.rows; row++) {
        int64_t local = row * view.local_split * view.columns;
        for (int i = 0; i < shard->n_ranges; i++) {
            loom_range range = shard->ranges[i];
            int64_t count = (range.end - range.begin) * view.columns;
            loom_status status = add_run(&held, (run){local, (row * view.split + range.begin) * view.columns, count}, visit, context);
            if (status < 0)
                return status;
            local += count;
        }
    }
    return held.count > 0 ? visit(context, held.local, held.global, held.count) : LOOM_OK;
}
