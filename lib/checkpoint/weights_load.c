/* This rank's parts of the tensors of a weight file, found by their shard specs. */
#include <rankloom/safetensors.h>
#include <rankloom/weights.h>

#include "core/text.h"
#include "core/try.h"

#include <stdlib.h>
#include <string.h>

typedef struct loading {
    loom_device *device;
    loom_stream *stream;
    const loom_safetensors *file;
    const char *path;
    const loom_weights_alias *alias;
    loom_text problems;
} loading;

static bool same_shape(const loom_shard *shard, const loom_tensor_view *tensor)
{
    if (tensor->dims != shard->dims)
        return false;
    for (int d = 0; d < shard->dims; d++)
        if (tensor->shape[d] != shard->shape[d])
            return false;
    return true;
}

static void add_shape(loom_text *text, int dims, const int64_t *shape)
{
    loom_text_add(text, "[");
    for (int d = 0; d < dims; d++)
        loom_text_add(text, "%s%lld", d ? ", " : "", (long long)shape[d]);
    loom_text_add(text, "]");
}

static void note_shape(loading *l, const loom_shard *shard, const loom_tensor_view *tensor)
{
    loom_text_add(&l->problems, "\n%s: shape ", tensor->name);
    add_shape(&l->problems, tensor->dims, tensor->shape);
    loom_text_add(&l->problems, " in the file, ");
    add_shape(&l->problems, shard->dims, shard->shape);
    loom_text_add(&l->problems, " in the model");
}

/* Under either name; both is fine when they are equal. */
static const loom_tensor_view *find(loading *l, const loom_shard *shard)
{
    const loom_tensor_view *tensor = loom_safetensors_find(l->file, shard->name), *also;

    if (!l->alias || strcmp(shard->name, l->alias->name) != 0)
        return tensor;
    also = loom_safetensors_find(l->file, l->alias->also);
    if (tensor && also && (tensor->bytes != also->bytes || memcmp(tensor->data, also->data, tensor->bytes) != 0))
        loom_text_add(&l->problems, "\n%s and %s differ in the file, and the model ties them: one is enough, or say that it does not tie them",
                      tensor->name, also->name);
    return tensor ? tensor : also;
}

typedef struct placing {
    const loom_tensor_view *tensor;
    float *value;
} placing;

static loom_status place_run(void *context, int64_t local, int64_t global, int64_t count)
{
    placing *p = context;

    return loom_tensor_to_f32(p->tensor, global, count, p->value + local);
}

/* By way of the host's memory: the parameter may lie where it cannot write, and only a part of it may be kept. Padding is zeros. */
static loom_status fill(loading *l, const loom_param *param, const loom_tensor_view *tensor)
{
    size_t bytes = (size_t)loom_shard_local_count(&param->shard) * sizeof *param->value;
    loom_part part = loom_param_kept_value(param);
    float *host = NULL;
    loom_status status;

    LOOM_TRY(loom_alloc_host(l->device, bytes, (void **)&host));
    LOOM_TRY(loom_shard_visit(&param->shard, place_run, &(placing){tensor, host}));
    LOOM_TRY(loom_stream_copy(l->stream, part.data, host + part.first, (size_t)part.count * sizeof *host));
    status = loom_stream_wait(l->stream);

fail:
    loom_free_host(l->device, host);
    return status;
}

static loom_status load_param(loading *l, const loom_param *param)
{
    const loom_tensor_view *tensor = find(l, &param->shard);

    if (!tensor) {
        loom_text_add(&l->problems, "\n%s: not in the file", param->shard.name);
        return LOOM_OK;
    }
    if (!same_shape(&param->shard, tensor)) {
        note_shape(l, &param->shard, tensor);
        return LOOM_OK;
    }
    return fill(l, param, tensor);
}

loom_status loom_weights_load(loom_mesh *mesh, const loom_param_list *params, const char *path, const loom_weights_alias *alias)
{
    loading l = {.path = path, .alias = alias, .device = loom_comm_device(mesh->world)};
    loom_safetensors *file;
    loom_status status = loom_safetensors_open(path, &file);

    if (status < 0)
        return status;
    l.file = file;
    status = loom_stream_open(l.device, LOOM_STREAM_INLINE, "weights", &l.stream);
    for (int i = 0; i < params->count && status == LOOM_OK; i++)
        status = load_param(&l, params->at[i]);
    if (status == LOOM_OK && l.problems.length > 0)
        status = loom_fail(LOOM_E_INVALID, "%s does not fit the model:%s", path, loom_text_so_far(&l.problems));
    loom_stream_close(l.stream);
    loom_text_drop(&l.problems);
    loom_safetensors_close(file);
    return status;
}
