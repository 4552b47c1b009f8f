/* The end of a step: norm, clip, AdamW, gather of the weights. */
#include "dp/dp.h"

#include "core/try.h"

#include <math.h>

/* The bucket that a run lies in, from its first element. */
static const loom_dp_bucket *bucket_at(const loom_dp_class *c, int64_t element)
{
    const loom_dp_bucket *b = c->bucket;

    while (element < b->begin)
        b++;
    return b;
}

/* Every rank adds up the squares of the elements it counts, class by class in order; over the world each weight is in exactly one rank's sum. */
static loom_status sum_of_squares(loom_dp *dp)
{
    loom_status status;
    bool accumulate = false;

    LOOM_TRY(loom_stream_fill_zero(dp->compute, dp->sums, sizeof *dp->sums));
    for (const loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (const loom_dp_run *r = c->counted; r < c->counted + c->counteds; r++) {
            const float *x = c->gradient + loom_dp_kept_index(c, bucket_at(c, r->begin), r->begin, c->cut_gradient);
            const loom_sum_args args = {.sum = dp->sums, .x = x, .count = r->count, .accumulate = accumulate};
            LOOM_TRY(dp->kernels->sum_squares(dp->kernels, &args, dp->compute));
            accumulate = true;
        }
    LOOM_TRY(loom_all_reduce(dp->mesh->world, dp->sums, dp->sums, 1, LOOM_F64, LOOM_SUM, dp->compute));
    return loom_stream_copy(dp->compute, dp->squares, dp->sums, sizeof *dp->squares);

fail:
    return status;
}

/* The first parameter of this rank whose part of the norm is no number, for the message. */
static loom_status name_the_cause(loom_dp *dp, double norm)
{
    for (const loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (int i = 0; i < c->params; i++) {
            loom_part part = loom_param_kept_gradient(c->param[i]);
            const loom_sum_args args = {.sum = dp->sums, .x = part.data, .count = part.count};
            double sum = 0;
            loom_status status = dp->kernels->sum_squares(dp->kernels, &args, dp->compute);
            if (status < 0 || (status = loom_stream_copy(dp->compute, &sum, dp->sums, sizeof sum)) < 0 ||
                (status = loom_stream_wait(dp->compute)) < 0)
                return status;
            if (!isfinite(sum))
                return loom_fail(LOOM_E_INVALID, "the gradient norm is %g; on this rank %s is the first gradient that is not finite", norm,
                                 c->param[i]->shard.name);
        }
    return loom_fail(LOOM_E_INVALID, "the gradient norm is %g; no gradient of this rank is the cause", norm);
}

/* What the device made of the squares, in the host's words: clip() has the same formula. All that was enqueued is over. */
static loom_status tell(loom_dp *dp, double divisor, loom_dp_result *result)
{
    *result = (loom_dp_result){.grad_norm = 0, .clip_scale = 1};
    if (divisor > 0)
        result->grad_norm = sqrt(*dp->squares) / divisor;
    if (!isfinite(result->grad_norm))
        return name_the_cause(dp, result->grad_norm);
    if (dp->adamw.clip > 0 && result->grad_norm > dp->adamw.clip)
        result->clip_scale = dp->adamw.clip / (result->grad_norm + 1e-6);
    return LOOM_OK;
}

static loom_status update_run(loom_dp *dp, const loom_dp_class *c, const loom_dp_run *run, double learning_rate, int64_t step)
{
    const loom_adamw_config *a = &dp->adamw;
    const loom_dp_bucket *b = bucket_at(c, run->begin);
    int64_t state = loom_dp_kept_index(c, b, run->begin, c->cut_state);
    const loom_adamw_args args = {
        .p = c->value + loom_dp_kept_index(c, b, run->begin, c->cut_value),
        .m = c->m + state,
        .v = c->v + state,
        .gradient = c->gradient + loom_dp_kept_index(c, b, run->begin, c->cut_gradient),
        .gradient_scale = dp->scale,
        .count = run->count,
        .lr = (float)learning_rate,
        .beta1 = (float)a->beta1,
        .beta2 = (float)a->beta2,
        .eps = (float)a->eps,
        .decay = run->decay ? (float)a->weight_decay : 0,
        .correction1 = (float)(1 - pow(a->beta1, (double)step)),
        .correction2 = (float)(1 - pow(a->beta2, (double)step)),
    };

    return dp->kernels->adamw(dp->kernels, &args, dp->compute);
}

/* Bucket by bucket, so that the weights of one travel while the next is computed. */
static loom_status update_class(loom_dp *dp, const loom_dp_class *c, double learning_rate, int64_t step)
{
    const loom_dp_run *run = c->update, *end = c->update + c->updates;
    loom_status status;

    for (const loom_dp_bucket *b = c->bucket; b < c->bucket + c->buckets; b++) {
        for (; run < end && run->begin >= b->begin; run++)
            if ((status = update_run(dp, c, run, learning_rate, step)) < 0)
                return status;
        if (c->cut_state && !c->cut_value && (status = loom_dp_gather_bucket(dp, c, b, c->value)) < 0)
            return status;
        loom_device_progress(dp->device);
    }
    return LOOM_OK;
}

/* One factor takes the place of both the mean over tokens and the clip; a norm that is no number makes it one, and the weights stay. */
static loom_status update(loom_dp *dp, double divisor, double learning_rate, int64_t step)
{
    const loom_clip_args clip = {.scale = dp->scale, .squares = dp->sums, .divisor = divisor, .clip = dp->adamw.clip};
    loom_status status;

    LOOM_TRY(dp->kernels->clip(dp->kernels, &clip, dp->compute));
    for (const loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        LOOM_TRY(update_class(dp, c, learning_rate, step));
    return loom_stream_follow(dp->compute, dp->reduce);

fail:
    return status;
}

/* The host waits once, at the end. */
loom_status loom_dp_finish(loom_dp *dp, double divisor, double learning_rate, int64_t step, loom_dp_result *result)
{
    loom_status status;

    LOOM_TRY(loom_dp_check_in_step(dp, "loom_dp_finish"));
    if (!(divisor >= 0) || step < 1)
        return loom_fail(LOOM_E_INVALID, "divisor %g and step %lld; the divisor is a count of tokens, steps count from 1", divisor, (long long)step);
    LOOM_TRY(loom_dp_reduce_rest(dp));
    LOOM_TRY(sum_of_squares(dp));
    if (divisor > 0)
        LOOM_TRY(update(dp, divisor, learning_rate, step));
    LOOM_TRY(loom_stream_wait(dp->compute));
    return tell(dp, divisor, result);

fail:
    return status;
}

loom_status loom_dp_reduce_only(loom_dp *dp, double divisor, loom_dp_result *result)
{
    loom_status status;

    LOOM_TRY(loom_dp_check_in_step(dp, "loom_dp_reduce_only"));
    LOOM_TRY(loom_dp_reduce_rest(dp));
    LOOM_TRY(sum_of_squares(dp));
    LOOM_TRY(loom_stream_wait(dp->compute));
    LOOM_TRY(tell(dp, divisor, result));
    for (const loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (const loom_dp_bucket *b = c->bucket; b < c->bucket + c->buckets && c->cut_state && !c->cut_gradient; b++)
            LOOM_TRY(loom_dp_gather_bucket(dp, c, b, c->gradient));
    return loom_stream_wait(dp->reduce);

fail:
    return status;
}

loom_status loom_dp_sum(loom_dp *dp, double *values, int count)
{
    loom_comm *const over[] = {dp->mesh->gradient, dp->mesh->axis[LOOM_AXIS_PP]};
    loom_status status;

    for (int done = 0; done < count; done += LOOM_REDUCTION_SUMS) {
        int n = count - done < LOOM_REDUCTION_SUMS ? count - done : LOOM_REDUCTION_SUMS;
        size_t bytes = (size_t)n * sizeof *values;
        LOOM_TRY(loom_stream_copy(dp->compute, dp->sums, values + done, bytes));
        for (int i = 0; i < 2; i++)
            if (loom_comm_size(over[i]) > 1)
                LOOM_TRY(loom_all_reduce(over[i], dp->sums, dp->sums, (size_t)n, LOOM_F64, LOOM_SUM, dp->compute));
        LOOM_TRY(loom_stream_copy(dp->compute, values + done, dp->sums, bytes));
        LOOM_TRY(loom_stream_wait(dp->compute));
    }
    return LOOM_OK;

fail:
    return status;
}
