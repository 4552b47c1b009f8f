/* Weight files: safetensors, one or several with an index. What is read is checked completely before any tensor is handed out. */
#ifndef RANKLOOM_SAFETENSORS_H
#define RANKLOOM_SAFETENSORS_H

#include <rankloom/dtype.h>
#include <rankloom/status.h>
LOOM_BEGIN

enum { LOOM_TENSOR_DIMS = 8 };

/* --- reading ----------------------------------------------------------------------------------------------------------- */

typedef struct loom_safetensors loom_safetensors; /* open file or files; owns what the views point to */

typedef struct loom_tensor_view {
    const char *name;
    const char *type; /* as the file says: "BF16", "F32", "BOOL", … */
    loom_dtype dtype; /* LOOM_DTYPE_COUNT for types that we have no name for (BOOL, I16, U32, …): such tensors can only be copied */
    int dims;
    int64_t shape[LOOM_TENSOR_DIMS]; /* row-major, the last one fastest */
    int64_t count;                   /* elements */
    const void *data;                /* mapped from the file, little-endian; not aligned to anything */
    size_t bytes;
} loom_tensor_view;

/* `path`: a .safetensors file, an index (*.safetensors.index.json), or a folder that holds model.safetensors, model.safetensors.index.json or one
 * .safetensors file, looked for in this order. Refused with every broken rule in the message: a length field beyond the file or above 100,000,000, a header
 * that is not JSON or names a tensor twice, a size that does not follow from type and shape, ranges that overlap, leave a hole or do not end with the file, a
 * tensor that the index promises and no file has; and, by name, what is no weights at all: a Git LFS pointer, a zip archive, a GGUF file. The files must not
 * change while they are open. */
LOOM_API loom_status loom_safetensors_open(const char *path, loom_safetensors **file);
LOOM_API void loom_safetensors_close(loom_safetensors *file); /* accepts NULL */

LOOM_API size_t loom_safetensors_count(const loom_safetensors *file);
LOOM_API const loom_tensor_view *loom_safetensors_at(const loom_safetensors *file, size_t index); /* in ascending order of name; NULL behind the last */
LOOM_API const loom_tensor_view *loom_safetensors_find(const loom_safetensors *file, const char *name); /* NULL: not there */
/* A text of __metadata__ (of several files: of the index), or NULL. */
LOOM_API const char *loom_safetensors_metadata(const loom_safetensors *file, const char *key);

/* Elements [first, first + count) of a floating tensor as f32. LOOM_E_INVALID for other types and outside the tensor. */
LOOM_API loom_status loom_tensor_to_f32(const loom_tensor_view *tensor, int64_t first, int64_t count, float *out);

/* --- writing ------------------------------------------------------------------------------------------------------------- */

typedef struct loom_tensor_spec {
    const char *name;
    loom_dtype dtype;
    int dims;
    int64_t shape[LOOM_TENSOR_DIMS];
} loom_tensor_spec;

typedef struct loom_metadata {
    const char *key, *value;
} loom_metadata;

/* A file under way. The bytes of the tensors follow in the order of `tensors` (lent until the call returns), through loom_safetensors_write(). It is one file,
 * "DIR/NAME.safetensors", unless it would have more than `most_bytes` of tensors (0: any) or a header above 100,000,000 bytes: then "DIR/NAME-00001-of-00003.safetensors", …,
 * and "DIR/NAME.safetensors.index.json". `path` is that of the one file and ends in ".safetensors".
 *
 * All is written under temporary names and synced; loom_safetensors_commit() renames, the index last, and then removes what an earlier save in the other form
 * left. One file appears completely or not at all; several do so only in a folder of their own. */
typedef struct loom_safetensors_writer loom_safetensors_writer;
LOOM_API loom_status loom_safetensors_create(const char *path, const loom_tensor_spec *tensors, size_t count, const loom_metadata *metadata, size_t n_metadata,
                                             uint64_t most_bytes, loom_safetensors_writer **writer);
/* The next bytes of the stream, in pieces of any size; a piece may end inside a tensor or run over several. */
LOOM_API loom_status loom_safetensors_write(loom_safetensors_writer *writer, const void *data, size_t bytes);
/* The next `count` elements of the tensor that is due, rounded to its type (F32, BF16, F16, F8 or F64). They must not run over its end. */
LOOM_API loom_status loom_safetensors_write_f32(loom_safetensors_writer *writer, const float *values, size_t count);
/* LOOM_E_INVALID, and nothing is kept, when bytes are missing. Frees the writer in any case. */
LOOM_API loom_status loom_safetensors_commit(loom_safetensors_writer *writer);
LOOM_API void loom_safetensors_abandon(loom_safetensors_writer *writer); /* removes the temporary files; accepts NULL */

LOOM_END
#endif
