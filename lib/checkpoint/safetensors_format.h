/* The safetensors format inside one file: 8 bytes of header length (little-endian), a JSON header, the data. */
#ifndef LOOM_CHECKPOINT_SAFETENSORS_FORMAT_H
#define LOOM_CHECKPOINT_SAFETENSORS_FORMAT_H

#include "core/text.h"

#include <rankloom/config.h>
#include <rankloom/safetensors.h>

enum { LOOM_SAFETENSORS_LENGTH = 8, LOOM_SAFETENSORS_HEADER_MAX = 100000000 };

/* Type names of the format. */
const char *loom_safetensors_type(loom_dtype dtype); /* NULL: the format has no such type */
/* Bits of one element, 0: unknown type. *dtype becomes LOOM_DTYPE_COUNT where we have no name for it. */
int loom_safetensors_type_bits(const char *type, loom_dtype *dtype);

/* Checks all of the file image `at` of `bytes` bytes and hands out one view a tensor, by ascending offset. `name` is for messages. Views and *header (which
 * holds their names, and "__metadata__") are the caller's: free() and loom_config_free(). */
loom_status loom_safetensors_parse(const char *name, const void *at, size_t bytes, loom_config **header, loom_tensor_view **views, size_t *count);

/* JSON of an index or header, under the bounds of this format rather than those of files that people write. */
loom_status loom_safetensors_json(const char *name, const char *text, size_t bytes, loom_config **config);

#endif
