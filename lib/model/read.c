/* Our model YAML, and telling it from a Hugging Face file. */
#include "model/fields.h"

#include <stdio.h>
#include <string.h>

/* What a family does where the file is silent. `named`: the file names it; experts of an unnamed one are plain, whatever their names on disk. */
static void set_family_defaults(loom_model *m, loom_model_names family, bool named)
{
    bool gpt2 = family == LOOM_NAMES_GPT2;

    m->names = family;
    m->norm = gpt2 ? LOOM_LAYERNORM : LOOM_RMSNORM;
    m->norm_eps = 1e-5;
    m->positions = gpt2 ? LOOM_LEARNED : LOOM_ROPE;
    m->rope_theta = 10000;
    m->mlp = gpt2 ? LOOM_GELU_TANH : LOOM_SWIGLU;
    m->attention_bias = m->output_bias = m->mlp_bias = gpt2;
    m->tied_embeddings = gpt2;
    m->init_std = 0.02;
    m->moe = (loom_moe){.every = 1, .groups = 1, .normalise_top_k = true, .route_scale = 1};
    if (family == LOOM_NAMES_DEEPSEEK && named) {
        m->moe.router = LOOM_ROUTER_SIGMOID;
        m->moe.selection_bias = true;
        m->moe.bias_speed = 0.001;
    }
}

/* The family whose tensor names fit, when the file does not name one. */
static loom_model_names family_of(const loom_node *node)
{
    const loom_node *experts = loom_node_get(node, "experts");
    int64_t shared = 0, dense = 0;

    if (loom_node_get_kind(loom_node_get(node, "mla")) == LOOM_NODE_MAP)
        return LOOM_NAMES_DEEPSEEK;
    if (loom_node_get_kind(experts) != LOOM_NODE_MAP)
        return LOOM_NAMES_LLAMA;
    loom_node_as_i64(loom_node_get(experts, "shared"), &shared);
    loom_node_as_i64(loom_node_get(experts, "dense_layers"), &dense);
    return shared || dense ? LOOM_NAMES_DEEPSEEK : LOOM_NAMES_MIXTRAL;
}

static void read_name(loom_reader *reader, const loom_node *node, loom_model *model)
{
    const char *name = "model";

    loom_read_text(reader, node, "name", &name);
    if (strlen(name) >= sizeof model->name)
        loom_reader_problem(reader, loom_node_get(node, "name"), "the name has more than %zu bytes", sizeof model->name - 1);
    snprintf(model->name, sizeof model->name, "%s", name);
}

typedef struct place {
    loom_reader *reader;
    const loom_node *node;
} place;

/* A broken rule, reported where its key stands, or at the section when the key is not there. */
static void note_at(void *context, const char *path, const char *text)
{
    const place *p = context;
    const char *dot = strchr(path, '.');
    char section[16] = "";

    if (dot)
        snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
    const loom_node *map = dot ? loom_node_get(p->node, section) : p->node, *value = loom_node_get(map, dot ? dot + 1 : path);
    loom_reader_problem(p->reader, value ? value : map ? map : p->node, "%s", text);
}

static void require_shape(loom_reader *reader, const loom_node *node, const loom_model *model)
{
    const loom_node *experts = loom_node_get(node, "experts"), *mla = loom_node_get(node, "mla");

    loom_require(reader, node, "layers");
    loom_require(reader, node, "hidden");
    loom_require(reader, node, "heads");
    loom_require(reader, node, "vocab");
    if (!model->layers || loom_model_expert_layers(model) < model->layers)
        loom_require(reader, node, "ffn");
    if (loom_node_get_kind(experts) == LOOM_NODE_MAP) {
        loom_require(reader, experts, "count");
        loom_require(reader, experts, "top_k");
        loom_require(reader, experts, "ffn");
    }
    if (loom_node_get_kind(mla) == LOOM_NODE_MAP) {
        loom_require(reader, mla, "kv_rank");
        loom_require(reader, mla, "nope_dim");
        loom_require(reader, mla, "value_dim");
    }
}

static bool found(uint64_t fields, const char *path)
{
    return fields >> loom_model_field_index(path) & 1;
}

static void read_ours(loom_reader *reader, const loom_node *node, loom_model *model)
{
    const loom_model_field *field = &loom_model_fields[loom_model_field_index("family")];
    int family = (int)family_of(node);
    place where = {reader, node};

    bool named = loom_read_choice(reader, node, field->key, field->names, &family);
    set_family_defaults(model, (loom_model_names)family, named);
    read_name(reader, node, model);

    uint64_t fields = loom_model_fields_read(reader, node, model);
    if (!found(fields, "tied_embeddings"))
        model->defaulted |= LOOM_DEFAULTED_TIED;
    if (!found(fields, "seq")) {
        model->seq = 2048;
        model->defaulted |= LOOM_DEFAULTED_SEQ;
    }
    if (!model->moe.experts)
        model->moe = (loom_moe){0};
    require_shape(reader, node, model);
    loom_model_derive(model);
    loom_model_rules(model, note_at, &where);
}

bool loom_model_is_hf(const loom_node *node)
{
    return loom_node_get(node, "model_type") || loom_node_get(node, "architectures");
}

void loom_model_read(loom_reader *reader, const loom_node *node, loom_model *model)
{
    memset(model, 0, sizeof *model);
    if (loom_node_get_kind(node) != LOOM_NODE_MAP)
        loom_reader_problem(reader, node, "a model is a map of keys");
    else if (loom_model_is_hf(node))
        loom_model_read_hf(reader, node, model);
    else
        read_ours(reader, node, model);
}

static void read_precision(loom_reader *reader, const loom_node *node, loom_dtype *precision)
{
    const char *name;

    if (!loom_read_text(reader, node, "precision", &name) || loom_dtype_from_name(name, precision))
        return;
    loom_reader_problem(reader, loom_node_get(node, "precision"), "precision must be f32, bf16, f16 or fp8, and is %.40s", name);
}

void loom_train_shape_read(loom_reader *reader, const loom_node *node, loom_train_shape *train)
{
    static const char *const optimizers[] = {"adamw", "adam", "sgd", NULL};
    int optimizer = 0;

    memset(train, 0, sizeof *train);
    train->precision = LOOM_BF16;
    loom_read_i64(reader, node, "global_batch", 1, (int64_t)1e12, &train->global_batch);
    loom_read_i64(reader, node, "micro_batch", 1, (int64_t)1e12, &train->micro_batch);
    loom_read_i64(reader, node, "seq", 1, (int64_t)1e12, &train->seq);
    loom_read_f64(reader, node, "learning_rate", 0, 1e6, &train->learning_rate);
    loom_read_choice(reader, node, "optimizer", optimizers, &optimizer);
    snprintf(train->optimizer, sizeof train->optimizer, "%s", optimizers[optimizer]);
    read_precision(reader, node, &train->precision);
}

static void read_file(loom_reader *reader, const loom_node *root, loom_model *model, loom_train_shape *train)
{
    if (loom_model_is_hf(root)) {
        loom_model_read(reader, root, model);
        loom_train_shape_read(reader, NULL, train);
        return;
    }
    const loom_node *map = loom_read_map(reader, root, "model");
    loom_require(reader, root, "model");
    if (map)
        loom_model_read(reader, map, model);
    loom_train_shape_read(reader, loom_read_map(reader, root, "train"), train);
}

loom_status loom_model_load(const char *path, loom_model *model, loom_train_shape *train)
{
    loom_model read;
    loom_train_shape shape;
    loom_config *config;
    loom_reader *reader;
    loom_status status = loom_config_load(path, &config);

    if (status < 0)
        return status;
    status = loom_reader_open(config, &reader);
    if (status == LOOM_OK) {
        memset(&read, 0, sizeof read);
        read_file(reader, loom_config_root(config), &read, &shape);
        status = loom_reader_finish(reader);
    }
    loom_config_free(config);
    if (status < 0)
        return status;
    *model = read;
    if (train)
        *train = shape;
    return LOOM_OK;
}
