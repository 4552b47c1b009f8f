/* The table of our model keys. */
#include "model/fields.h"

#include <assert.h>
#include <string.h>

static const char *const norms[] = {"rmsnorm", "layernorm", NULL};
static const char *const positions[] = {"rope", "learned", "none", NULL};
static const char *const mlps[] = {"swiglu", "gelu_tanh", "geglu_tanh", "relu2", NULL};
static const char *const routers[] = {"softmax", "sigmoid", NULL};
static const char *const balances[] = {"none", "switch", "sequence", NULL};
static const char *const families[] = {"llama", "gpt2", "mixtral", "deepseek", NULL};

#define AT(member) offsetof(loom_model, member)
#define COUNT(section, key, member, low, high) {section, key, LOOM_FIELD_I64, AT(member), low, high, NULL}
#define REAL(section, key, member, low, high) {section, key, LOOM_FIELD_F64, AT(member), low, high, NULL}
#define FLAG(section, key, member) {section, key, LOOM_FIELD_BOOL, AT(member), 0, 1, NULL}
#define CHOICE(section, key, member, names) {section, key, LOOM_FIELD_CHOICE, AT(member), 0, 0, names}

const loom_model_field loom_model_fields[] = {
    COUNT("", "layers", layers, 1, 1e5),
    COUNT("", "hidden", hidden, 1, 1e7),
    COUNT("", "heads", heads, 1, 1e6),
    COUNT("", "kv_heads", kv_heads, 1, 1e6),
    COUNT("", "head_dim", head_dim, 1, 1e6),
    COUNT("", "ffn", ffn, 1, 1e8),
    COUNT("", "vocab", vocab, 1, 1e9),
    COUNT("", "seq", seq, 1, 1e12),
    FLAG("", "tied_embeddings", tied_embeddings),
    CHOICE("", "family", names, families),
    CHOICE("", "norm", norm, norms),
    REAL("", "norm_eps", norm_eps, 0, 1),
    CHOICE("", "positions", positions, positions),
    REAL("", "rope_theta", rope_theta, 1, 1e12),
    CHOICE("", "mlp", mlp, mlps),
    FLAG("", "attention_bias", attention_bias),
    FLAG("", "output_bias", output_bias),
    FLAG("", "mlp_bias", mlp_bias),
    FLAG("", "qk_norm", qk_norm),
    FLAG("", "post_norms", post_norms),
    FLAG("", "attention_sinks", attention_sinks),
    COUNT("", "sliding_window", sliding_window, 0, 1e12),
    COUNT("", "full_attention_every", full_attention_every, 0, 1e5),
    REAL("", "init_std", init_std, 0, 1e3),
    REAL("", "init_jitter", init_jitter, 0, 1e3),
    COUNT("experts", "count", moe.experts, 1, 1e6),
    COUNT("experts", "top_k", moe.top_k, 1, 1e6),
    COUNT("experts", "ffn", moe.ffn, 1, 1e8),
    COUNT("experts", "shared", moe.shared, 0, 1e4),
    COUNT("experts", "shared_ffn", moe.shared_ffn, 1, 1e8),
    COUNT("experts", "every", moe.every, 1, 1e5),
    COUNT("experts", "dense_layers", moe.dense_layers, 0, 1e5),
    CHOICE("experts", "router", moe.router, routers),
    FLAG("experts", "normalise_top_k", moe.normalise_top_k),
    COUNT("experts", "groups", moe.groups, 1, 1e6),
    COUNT("experts", "groups_kept", moe.groups_kept, 1, 1e6),
    REAL("experts", "route_scale", moe.route_scale, 0, 1e6),
    CHOICE("experts", "balance", moe.balance, balances),
    REAL("experts", "balance_coefficient", moe.balance_coefficient, 0, 1e6),
    REAL("experts", "z_coefficient", moe.z_coefficient, 0, 1e6),
    FLAG("experts", "selection_bias", moe.selection_bias),
    REAL("experts", "bias_speed", moe.bias_speed, 0, 1e6),
    FLAG("experts", "shared_gate", moe.shared_gate),
    COUNT("mla", "q_rank", mla.q_rank, 0, 1e7),
    COUNT("mla", "kv_rank", mla.kv_rank, 1, 1e7),
    COUNT("mla", "rope_dim", mla.rope_dim, 0, 1e6),
    COUNT("mla", "nope_dim", mla.nope_dim, 1, 1e6),
    COUNT("mla", "value_dim", mla.value_dim, 1, 1e6),
};
const int loom_model_field_count = sizeof loom_model_fields / sizeof loom_model_fields[0];
_Static_assert(sizeof loom_model_fields / sizeof loom_model_fields[0] <= 64, "a bit each in loom_model_fields_read()");

static bool read_field(loom_reader *reader, const loom_node *map, const loom_model_field *f, loom_model *model)
{
    void *at = (char *)model + f->offset;
    int choice;

    switch (f->kind) {
    case LOOM_FIELD_I64:
        return loom_read_i64(reader, map, f->key, (int64_t)f->low, (int64_t)f->high, at);
    case LOOM_FIELD_F64:
        return loom_read_f64(reader, map, f->key, f->low, f->high, at);
    case LOOM_FIELD_BOOL:
        return loom_read_bool(reader, map, f->key, at);
    case LOOM_FIELD_CHOICE:
        if (!loom_read_choice(reader, map, f->key, f->names, &choice))
            return false;
        memcpy(at, &choice, sizeof choice); /* every choice is an enum of the size of int */
        return true;
    }
    return false;
}

uint64_t loom_model_fields_read(loom_reader *reader, const loom_node *node, loom_model *model)
{
    const loom_node *experts = loom_read_map(reader, node, "experts"), *mla = loom_read_map(reader, node, "mla");
    uint64_t found = 0;

    for (int i = 0; i < loom_model_field_count; i++) {
        const loom_model_field *f = &loom_model_fields[i];
        const loom_node *map = !*f->section ? node : !strcmp(f->section, "experts") ? experts : mla;
        if (read_field(reader, map, f, model))
            found |= (uint64_t)1 << i;
    }
    return found;
}

int loom_model_field_index(const char *path)
{
    const char *dot = strchr(path, '.');
    size_t section = dot ? (size_t)(dot - path) : 0;

    for (int i = 0; i < loom_model_field_count; i++) {
        const loom_model_field *f = &loom_model_fields[i];
        if (strlen(f->section) == section && !strncmp(f->section, path, section) && !strcmp(f->key, dot ? dot + 1 : path))
            return i;
    }
    assert(!"a path that the table does not have");
    return -1;
}

bool loom_model_field_equal(const loom_model_field *field, const loom_model *a, const loom_model *b)
{
    static const size_t sizes[] = {
        [LOOM_FIELD_I64] = sizeof(int64_t), [LOOM_FIELD_F64] = sizeof(double), [LOOM_FIELD_BOOL] = sizeof(bool), [LOOM_FIELD_CHOICE] = sizeof(int)};

    return !memcmp((const char *)a + field->offset, (const char *)b + field->offset, sizes[field->kind]);
}
