/* A model file of anybody, ours or Hugging Face's: what is accepted has counts that make sense. */
#include "fuzz.h"

#include <rankloom/model.h>

#include <math.h>

static void check(const loom_model *m)
{
    loom_param_counts counts;
    char *text;

    loom_model_count(m, &counts);
    PROMISE(counts.total > 0 && counts.active > 0 && counts.active <= counts.total);
    PROMISE(counts.embedding == m->vocab * m->hidden);
    PROMISE(m->heads % m->kv_heads == 0 && m->head_dim > 0 && loom_model_expert_layers(m) <= m->layers);
    double causal = loom_model_flop(m, 1, m->seq, true), full = loom_model_flop(m, 1, m->seq, false);
    PROMISE(isfinite(full) && causal > 0 && causal <= full);
    if (loom_model_describe(m, &text) == LOOM_OK)
        loom_text_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    loom_train_shape train;
    loom_config *config;
    loom_reader *reader;
    loom_model model;

    if (loom_config_parse("f", (const char *)data, size, &config) != LOOM_OK)
        return 0;
    if (loom_reader_open(config, &reader) == LOOM_OK) {
        const loom_node *root = loom_config_root(config), *inner = loom_read_map(reader, root, "model");
        loom_model_read(reader, inner ? inner : root, &model);
        loom_train_shape_read(reader, loom_read_map(reader, root, "train"), &train);
        if (loom_reader_finish(reader) == LOOM_OK)
            check(&model);
    }
    loom_config_free(config);
    return 0;
}
