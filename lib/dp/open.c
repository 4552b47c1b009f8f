/* Opening, closing, first values, and the optimizer's state for checkpoints. */
#include "dp/dp.h"

#include "core/settings.h"
#include "core/try.h"

#include <stdlib.h>

/* --- open ------------------------------------------------------------------------------------------------------------------- */

static loom_status check_config(const loom_mesh *mesh, const loom_dp_config *config)
{
    const loom_adamw_config *a = &config->adamw;

    if (mesh->layout.zero < 0 || mesh->layout.zero > LOOM_ZERO_WEIGHTS)
        return loom_fail(LOOM_E_INVALID, "zero=%d; 0 to 3 are known", mesh->layout.zero);
    if (!(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1))
        return loom_fail(LOOM_E_INVALID, "AdamW betas %g and %g; each is at least 0 and below 1, such as 0.9 and 0.95", a->beta1, a->beta2);
    if (!(a->eps >= 0 && a->weight_decay >= 0 && a->clip >= 0))
        return loom_fail(LOOM_E_INVALID, "AdamW eps %g, weight decay %g, clip %g; none may be negative", a->eps, a->weight_decay, a->clip);
    return LOOM_OK;
}

static loom_status choose_bucket(loom_dp *dp, size_t bytes)
{
    int64_t setting = 0;
    loom_status status;

    if (bytes == 0) {
        if ((status = loom_setting_i64(LOOM_SETTING_BUCKET_BYTES, &setting)) < 0)
            return status;
        bytes = (size_t)setting;
    }
    dp->bucket_elements = bytes / sizeof(float);
    return LOOM_OK;
}

typedef loom_status alloc_fn(loom_device *device, size_t bytes, loom_memory_use use, void **memory);

static loom_status allocate_kept(loom_dp *dp, const loom_dp_class *c, alloc_fn *alloc, bool cut, loom_memory_use use, float **memory)
{
    return alloc(dp->device, (size_t)loom_dp_kept_count(c, cut) * sizeof(float), use, (void **)memory);
}

/* Where a whole bucket of what is cut is to be. */
static void point_to(const loom_dp_class *c)
{
    for (int i = 0; i < c->params; i++) {
        loom_param *param = c->param[i];
        int64_t in_bucket = c->offset[i] - loom_dp_bucket_of(c, i)->begin;

        param->value = c->cut_value ? c->weights[0].memory + in_bucket : c->value + c->offset[i];
        param->gradient = c->cut_gradient ? c->sums[0].memory + in_bucket : c->gradient + c->offset[i];
        param->value_cut = c->cut_value;
        param->gradient_cut = c->cut_gradient;
        param->value_part = loom_dp_kept_part(c, i, c->value, c->cut_value);
        param->gradient_part = loom_dp_kept_part(c, i, c->gradient, c->cut_gradient);
    }
}

/* For comms: the gradients that are reduced, the values that are gathered. */
static loom_status allocate(loom_dp *dp, loom_dp_class *c)
{
    loom_status status;

    LOOM_TRY(allocate_kept(dp, c, c->cut_state ? loom_alloc_for_comm : loom_alloc, c->cut_value, LOOM_MEM_WEIGHTS, &c->value));
    LOOM_TRY(allocate_kept(dp, c, c->cut_gradient ? loom_alloc : loom_alloc_for_comm, c->cut_gradient, LOOM_MEM_GRADIENTS, &c->gradient));
    LOOM_TRY(allocate_kept(dp, c, loom_alloc, c->cut_state, LOOM_MEM_OPTIMIZER, &c->m));
    LOOM_TRY(allocate_kept(dp, c, loom_alloc, c->cut_state, LOOM_MEM_OPTIMIZER, &c->v));
    LOOM_TRY(loom_dp_open_slots(dp, c));
    point_to(c);
    return LOOM_OK;

fail:
    return status;
}

static loom_status register_with(loom_comm *comm, float *memory, bool symmetric)
{
    return comm ? loom_comm_register(comm, memory, symmetric) : LOOM_OK;
}

/* Under ZeRO slices are reduced and gathered in place; of tied copies the two stages may have other classes before them in memory. */
static loom_status register_class(const loom_dp_class *c)
{
    loom_status status;

    for (int i = 0; i < LOOM_UNIT_PLACES && c->cut_gradient; i++)
        LOOM_TRY(register_with(c->reduce, c->sums[i].memory, false));
    for (int i = 0; i < LOOM_UNIT_PLACES && c->cut_value; i++)
        LOOM_TRY(register_with(c->reduce, c->weights[i].memory, false));
    if (!c->cut_gradient) {
        LOOM_TRY(register_with(c->reduce, c->gradient, !c->cut_state));
        LOOM_TRY(register_with(c->holders, c->gradient, true));
        LOOM_TRY(register_with(c->tied, c->gradient, false));
    }
    return c->cut_state ? register_with(c->reduce, c->value, false) : LOOM_OK;

fail:
    return status;
}

loom_status loom_dp_open(loom_mesh *mesh, const loom_param_list *params, const loom_dp_config *config, loom_stream *compute, loom_dp **out)
{
    loom_status status = check_config(mesh, config);
    loom_dp *dp;

    if (status < 0)
        return status;
    if (!(dp = calloc(1, sizeof *dp)))
        return loom_fail(LOOM_E_MEMORY, "no memory for data parallelism itself");
    dp->mesh = mesh;
    dp->device = loom_stream_device(compute);
    dp->compute = compute;
    dp->adamw = config->adamw;
    dp->overlap = !config->no_overlap;
    dp->kernels = config->kernels;
    dp->own_kernels = !config->kernels;
    if (dp->own_kernels)
        LOOM_TRY(loom_kernels_open(dp->device, NULL, &dp->kernels));
    LOOM_TRY(choose_bucket(dp, config->bucket_bytes));
    LOOM_TRY(loom_dp_lay_out(dp, params));
    for (int i = 0; i < dp->classes; i++)
        LOOM_TRY(allocate(dp, &dp->class_[i]));
    for (int i = 0; i < dp->classes; i++)
        LOOM_TRY(register_class(&dp->class_[i]));
    LOOM_TRY(loom_alloc(dp->device, LOOM_REDUCTION_SUMS * sizeof(double), LOOM_MEM_OTHER, (void **)&dp->sums));
    LOOM_TRY(loom_alloc(dp->device, sizeof(float), LOOM_MEM_OTHER, (void **)&dp->scale));
    LOOM_TRY(loom_alloc_host(dp->device, sizeof *dp->squares, (void **)&dp->squares));
    LOOM_TRY(loom_stream_open(dp->device, LOOM_STREAM_INLINE, "dp", &dp->reduce));
    LOOM_TRY(loom_event_open(dp->device, &dp->gradients_at));
    *out = dp;
    return LOOM_OK;

fail:
    loom_dp_close(dp);
    return status;
}

void loom_dp_close(loom_dp *dp)
{
    if (!dp)
        return;
    loom_stream_close(dp->reduce);
    loom_event_close(dp->gradients_at);
    for (loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++) {
        loom_free(dp->device, c->value);
        loom_free(dp->device, c->gradient);
        loom_free(dp->device, c->m);
        loom_free(dp->device, c->v);
        loom_dp_close_slots(dp, c);
    }
    loom_free(dp->device, dp->sums);
    loom_free(dp->device, dp->scale);
    loom_free_host(dp->device, dp->squares);
    loom_dp_forget_layout(dp);
    free(dp->use);
    if (dp->own_kernels)
        loom_kernels_close(dp->kernels);
    free(dp);
}

/* --- first values ----------------------------------------------------------------------------------------------------------- */

/* The generator writes the whole of it to host memory; to another device, or of a part, it goes through a copy. */
static loom_status init_param(loom_dp *dp, const loom_param *param, uint64_t seed)
{
    size_t bytes = (size_t)loom_shard_local_count(&param->shard) * sizeof(float);
    loom_part part = loom_param_kept_value(param);
    loom_status status;

    if (loom_device_get_kind(dp->device) == LOOM_CPU && !param->value_cut) {
        loom_init_fill(&param->shard, seed, param->value);
        return LOOM_OK;
    }
    float *host = malloc(bytes ? bytes : 1);
    if (!host)
        return loom_fail(LOOM_E_MEMORY, "no memory to make the first values of %s (%zu bytes)", param->shard.name, bytes);
    loom_init_fill(&param->shard, seed, host);
    status = loom_stream_copy(dp->compute, part.data, host + part.first, (size_t)part.count * sizeof *host);
    if (status >= 0)
        status = loom_stream_wait(dp->compute);
    free(host);
    return status;
}

loom_status loom_dp_init(loom_dp *dp, uint64_t seed)
{
    loom_status status;

    if (loom_device_get_kind(dp->device) == LOOM_DRY)
        return LOOM_OK; /* nothing to write to */
    for (const loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (int i = 0; i < c->params; i++)
            if ((status = init_param(dp, c->param[i], seed)) < 0)
                return status;
    return LOOM_OK;
}

/* --- optimizer state -------------------------------------------------------------------------------------------------------- */

loom_status loom_dp_state(loom_dp *dp, const loom_param *param, float **m, float **v, int64_t *first, int64_t *count)
{
    const loom_dp_place *place = loom_dp_find(dp, param);

    if (!place)
        return LOOM_E_INVALID;
    const loom_dp_class *c = &dp->class_[place->class_];
    loom_part part = loom_dp_kept_part(c, place->index, c->m, c->cut_state);

    *first = part.first;
    *count = part.count;
    *m = part.data;
    *v = loom_dp_kept_part(c, place->index, c->v, c->cut_state).data;
    return LOOM_OK;
}
