/* The f32 tensors of a fixture file, for tests: just enough of safetensors to read files that are known to be right. */
#ifndef TEST_HARNESS_TENSORS_H
#define TEST_HARNESS_TENSORS_H

#include "check.h"

#include <rankloom/config.h>

typedef struct tensors {
    char *bytes;
    loom_config *header;
    const char *data;
} tensors;

static inline bool tensors_load(tensors *file, const char *path)
{
    FILE *in = fopen(path, "rb");
    uint64_t header = 0;
    long size;

    if (!in || fseek(in, 0, SEEK_END) || (size = ftell(in)) < 8 || fseek(in, 0, SEEK_SET) || !(file->bytes = malloc((size_t)size)) ||
        fread(file->bytes, 1, (size_t)size, in) != (size_t)size) {
        loom_fail(LOOM_E_IO, "%s cannot be read", path);
        return false;
    }
    fclose(in);
    memcpy(&header, file->bytes, sizeof header);
    file->data = file->bytes + 8 + header;
    return loom_config_parse(path, file->bytes + 8, header, &file->header) == LOOM_OK;
}

/* Aligned to 4; lent until tensors_drop(). `count` may be NULL. */
static inline const float *tensor(const tensors *file, const char *name, size_t *count)
{
    const loom_node *offsets = loom_node_get(loom_node_get(loom_config_root(file->header), name), "data_offsets");
    int64_t begin = 0, end = 0;

    if (!loom_node_as_i64(loom_node_at(offsets, 0), &begin) || !loom_node_as_i64(loom_node_at(offsets, 1), &end))
        fail_msg("no tensor %s in the fixture", name);
    if (count)
        *count = (size_t)(end - begin) / sizeof(float);
    return (const float *)(const void *)(file->data + begin);
}

static inline void tensors_drop(tensors *file)
{
    loom_config_free(file->header);
    free(file->bytes);
}

#endif
