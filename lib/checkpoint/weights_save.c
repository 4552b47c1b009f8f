/* All weights into one file, written by world rank 0 as they arrive. */
#include <rankloom/safetensors.h>
#include <rankloom/weights.h>

#include "checkpoint/gather.h"

#include <stdlib.h>
#include <string.h>

typedef struct saving {
    const char *path;
    loom_dtype dtype;
    loom_safetensors_writer *writer;
    int left; /* tensors still to come */
} saving;

static loom_status create(saving *s, const loom_gathering *gathering)
{
    int count = loom_gathering_tensors(gathering, NULL);
    const loom_shard **specs = malloc(((size_t)count + 1) * sizeof *specs);
    loom_tensor_spec *tensors = calloc((size_t)count + 1, sizeof *tensors);
    loom_status status = specs && tensors ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "%s: no memory for the names of %d tensors", s->path, count);

    if (status == LOOM_OK) {
        loom_gathering_tensors(gathering, specs);
        for (int i = 0; i < count; i++) {
            tensors[i] = (loom_tensor_spec){.name = specs[i]->name, .dtype = s->dtype, .dims = specs[i]->dims};
            memcpy(tensors[i].shape, specs[i]->shape, (size_t)specs[i]->dims * sizeof *specs[i]->shape);
        }
        s->left = count;
        status = loom_safetensors_create(s->path, tensors, (size_t)count, &(loom_metadata){"format", "pt"}, 1, 0, &s->writer);
    }
    free(tensors);
    free(specs);
    return status;
}

/* Commits with the last tensor, so that the result of the commit is shared with the other ranks like that of every write. */
static loom_status write_tensor(void *context, const loom_shard *spec, const float *data)
{
    saving *s = context;
    loom_safetensors_writer *writer = s->writer;
    loom_status status = loom_safetensors_write_f32(writer, data, (size_t)loom_shard_global_count(spec));

    if (status < 0 || --s->left > 0)
        return status;
    s->writer = NULL;
    return loom_safetensors_commit(writer);
}

/* Stands for the writer when it could not be made: the pieces still have to be taken. */
static loom_status refuse_tensor(void *context, const loom_shard *spec, const float *data)
{
    (void)spec;
    (void)data;
    return *(loom_status *)context;
}

loom_status loom_weights_save(loom_mesh *mesh, const loom_param_list *params, loom_weights_what what, loom_dtype dtype, const char *path)
{
    saving s = {.path = path, .dtype = dtype};
    loom_gathering *gathering;
    loom_status status = loom_gathering_open(mesh, params, what, &gathering), created = LOOM_OK;

    if (status < 0)
        return status;
    if (loom_comm_rank(mesh->world) == 0)
        created = create(&s, gathering);
    status = created < 0 ? loom_gathering_run(gathering, refuse_tensor, &created) : loom_gathering_run(gathering, write_tensor, &s);
    loom_safetensors_abandon(s.writer);
    loom_gathering_close(gathering);
    return status;
}
