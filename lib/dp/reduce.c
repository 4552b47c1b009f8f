/* Gradient reduction. A bucket goes on its way when its last gradient is complete, on a stream of its own, so that it travels under the backward of
 * earlier layers. Order of the sum of one element: over the ranks with other tokens, then over its holders, then over the two tied copies; inside
 * each group in rank order, so the bits are the same in every run, and the same under ZeRO as without. */
#include "dp/dp.h"

#include "core/try.h"

loom_status loom_dp_check_in_step(const loom_dp *dp, const char *call)
{
    return dp->in_step ? LOOM_OK : loom_fail(LOOM_E_INVALID, "%s() outside a step; loom_dp_begin() opens one", call);
}

static int64_t row_length(const loom_shard *shard)
{
    int64_t length = 1;

    for (int d = shard->split_dim + 1; d < shard->dims; d++)
        length *= shard->shape[d];
    return length;
}

/* Padding exists in no file and counts in no norm. */
static loom_status clear_padding(loom_dp *dp, const loom_param *param)
{
    const loom_shard *shard = &param->shard;
    loom_status status;

    if (shard->padding == 0 || shard->split_dim < 0)
        return LOOM_OK;
    int64_t inner = row_length(shard), extent = loom_shard_local_extent(shard, shard->split_dim);
    int64_t rows = loom_shard_local_count(shard) / (inner * extent);
    for (int64_t row = 0; row < rows; row++) {
        float *end = param->gradient + (row + 1) * inner * extent;
        size_t padding = (size_t)(shard->padding * inner);
        if ((status = loom_stream_fill_zero(dp->compute, end - padding, padding * sizeof(float))) < 0)
            return status;
    }
    return LOOM_OK;
}

loom_status loom_dp_clear_padding(loom_dp *dp, const loom_dp_class *c, const loom_dp_bucket *b)
{
    loom_status status;

    for (int i = b->first; i < b->last; i++)
        if ((status = clear_padding(dp, c->param[i])) < 0)
            return status;
    return LOOM_OK;
}

loom_status loom_dp_follow_compute(loom_dp *dp)
{
    loom_status status = loom_event_record(dp->gradients_at, dp->compute);

    return status < 0 ? status : loom_stream_wait_event(dp->reduce, dp->gradients_at);
}

static loom_status sum_in_place(loom_comm *comm, float *at, int64_t count, loom_stream *stream)
{
    if (!comm || loom_comm_size(comm) == 1)
        return LOOM_OK;
    return loom_all_reduce(comm, at, at, (size_t)count, LOOM_F32, LOOM_SUM, stream);
}

static loom_status launch(loom_dp *dp, loom_dp_class *c, loom_dp_bucket *b)
{
    int64_t keep = c->cut_state ? loom_dp_slice_count(c, b) : b->count;
    float *all = c->gradient + b->begin, *kept = c->cut_state ? c->gradient + loom_dp_slice_begin(c, b) : all;
    loom_status status;

    b->launched = true;
    LOOM_TRY(loom_dp_clear_padding(dp, c, b));
    LOOM_TRY(loom_dp_follow_compute(dp));
    if (c->cut_state)
        LOOM_TRY(loom_reduce_scatter(c->reduce, all, kept, (size_t)keep, LOOM_F32, LOOM_SUM, dp->reduce));
    else
        LOOM_TRY(sum_in_place(c->reduce, all, b->count, dp->reduce));
    LOOM_TRY(sum_in_place(c->holders, kept, keep, dp->reduce));
    return sum_in_place(c->tied, kept, keep, dp->reduce);

fail:
    return status;
}

loom_status loom_dp_begin(loom_dp *dp)
{
    loom_status status;

    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++) {
        LOOM_TRY(loom_stream_fill_zero(dp->compute, c->gradient, (size_t)loom_dp_kept_count(c, c->cut_gradient) * sizeof(float)));
        for (int i = 0; i < c->params; i++)
            c->complete[i] = false;
        for (loom_dp_bucket *b = c->bucket; b < c->bucket + c->buckets; b++) {
            b->waiting = b->last - b->first;
            b->launched = b->early = false;
        }
    }
    loom_dp_begin_units(dp);
    dp->in_step = true;
    return LOOM_OK;

fail:
    return status;
}

/* Those that need another axis wait for the end of backward: tp would be held up in the middle of its own calls, and the other tied stage may
 * not even have begun. What is cut was reduced as it came. */
static bool may_start_early(const loom_dp *dp, const loom_dp_class *c)
{
    return dp->overlap && !c->holders && !c->tied && !c->cut_gradient;
}

static loom_status ready(loom_dp *dp, const loom_param *param)
{
    const loom_dp_place *place = loom_dp_find(dp, param);

    if (!place)
        return LOOM_E_INVALID;
    loom_dp_class *c = &dp->class_[place->class_];
    loom_dp_bucket *b = loom_dp_bucket_of(c, place->index);
    if (c->complete[place->index])
        return loom_fail(LOOM_E_INVALID, "%s was said to be complete twice in one step", param->shard.name);
    c->complete[place->index] = true;
    b->early = --b->waiting == 0 && may_start_early(dp, c);
    return b->early ? launch(dp, c, b) : LOOM_OK;
}

loom_status loom_dp_ready(loom_dp *dp, loom_param *const *params, int count)
{
    loom_status status = loom_dp_check_in_step(dp, "loom_dp_ready");

    if (status < 0)
        return status;
    for (int i = 0; i < count; i++)
        if ((status = ready(dp, params[i])) < 0)
            return status;
    return LOOM_OK;
}

loom_status loom_dp_replayed(loom_dp *dp)
{
    if (dp->in_step)
        return loom_fail(LOOM_E_INVALID, "loom_dp_replayed() in a step; the graph begins one");
    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (loom_dp_bucket *b = c->bucket; b < c->bucket + c->buckets; b++)
            b->launched = b->early;
    loom_dp_replay_units(dp);
    dp->in_step = true;
    return LOOM_OK;
}

/* Early classes first and late ones after them, each from its last bucket: all ranks alike. */
static loom_status launch_rest(loom_dp *dp, bool late)
{
    loom_status status;

    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (loom_dp_bucket *b = c->bucket; b < c->bucket + c->buckets; b++)
            if (!c->cut_gradient && (c->holders || c->tied) == late && !b->launched && (status = launch(dp, c, b)) < 0)
                return status;
    return LOOM_OK;
}

loom_status loom_dp_reduce_rest(loom_dp *dp)
{
    loom_status status;

    LOOM_TRY(launch_rest(dp, false));
    LOOM_TRY(launch_rest(dp, true));
    LOOM_TRY(loom_dp_finish_units(dp));
    LOOM_TRY(loom_stream_follow(dp->compute, dp->reduce));
    dp->in_step = false;
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_dp_gather_bucket(loom_dp *dp, const loom_dp_class *c, const loom_dp_bucket *b, float *buffer)
{
    loom_status status = loom_dp_follow_compute(dp);

    if (status < 0)
        return status;
    return loom_all_gather(c->reduce, buffer + loom_dp_slice_begin(c, b), buffer + b->begin, (size_t)loom_dp_slice_count(c, b), LOOM_F32, dp->reduce);
}
