/* Models from texts and files, for the tests. */
#ifndef TEST_MODEL_LOAD_H
#define TEST_MODEL_LOAD_H

#include "check.h"

#include <rankloom/model.h>

/* Reads `text` as a whole model file named `source`. */
static inline loom_status model_of(const char *source, const char *text, loom_model *model)
{
    loom_config *config;
    loom_reader *reader;
    loom_status status = loom_config_parse(source, text, strlen(text), &config);

    if (status < 0)
        return status;
    assert_ok(loom_reader_open(config, &reader));
    const loom_node *root = loom_config_root(config), *inner = loom_node_get(root, "model");
    loom_model_read(reader, inner ? loom_read_map(reader, root, "model") : root, model);
    status = loom_reader_finish(reader);
    loom_config_free(config);
    return status;
}

static inline int64_t parameters_of(const loom_model *model)
{
    loom_param_counts counts;

    loom_model_count(model, &counts);
    return counts.total;
}

#endif
