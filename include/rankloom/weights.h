/* Sharded parameters to and from weight files: any layout reads and writes the same safetensors file, by the shard specs alone. */
#ifndef RANKLOOM_WEIGHTS_H
#define RANKLOOM_WEIGHTS_H

#include <rankloom/mesh.h>
#include <rankloom/shard.h>
LOOM_BEGIN

/* Fills the values of `params` with this rank's parts. `path`: a .safetensors file, a model.safetensors.index.json, or a folder with either.
 * F64, F32, BF16 and F16 become f32; padding becomes 0. Each rank reads by itself, nothing travels. A tensor that is missing or has another shape is
 * LOOM_E_INVALID; the message lists all of them. `alias` (NULL: none) is another name under which one tensor may be in the file: tied embeddings, of
 * which either name is enough; both there and different is an error. */
typedef struct loom_weights_alias {
    const char *name, *also;
} loom_weights_alias;
LOOM_API loom_status loom_weights_load(loom_mesh *mesh, const loom_param_list *params, const char *path, const loom_weights_alias *alias);

typedef enum loom_weights_what { LOOM_WEIGHTS_VALUES, LOOM_WEIGHTS_GRADIENTS } loom_weights_what;

/* Every global tensor once, by name in ascending order, whole, on world rank 0: visit(context, spec, data), where data (f32) has the spec's global shape and
 * the spec is one rank's. Collective over mesh->world: pieces come from the first holder, tied tensors from their owner. */
typedef loom_status loom_weights_visit_fn(void *context, const loom_shard *spec, const float *data);
LOOM_API loom_status loom_weights_gather(loom_mesh *mesh, const loom_param_list *params, loom_weights_what what, loom_weights_visit_fn *visit,
                                         void *context);

/* loom_weights_gather into one safetensors file (f32 or bf16), written under a temporary name, synced and renamed by world rank 0. Collective; the
 * result is the same on all ranks. */
LOOM_API loom_status loom_weights_save(loom_mesh *mesh, const loom_param_list *params, loom_weights_what what, loom_dtype dtype, const char *path);

LOOM_END
#endif
