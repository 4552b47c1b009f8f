/* A Hugging Face config.json: other people's keys, several generations of them, and defaults that depend on the family. Keys that mean nothing to
 * a layout are left alone; what changes the arithmetic and is not carried is marked. */
#include "model/fields.h"
#include "model/hf_family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PLACES = 32 };

typedef struct hf {
    loom_reader *reader;
    const loom_node *map;
    const loom_hf_family *family;
    loom_model *model;
    struct {
        const char *path, *key;
        const loom_node *node;
    } places[MOST_PLACES]; /* where our fields were found, for the rules */
    int n_places;
} hf;

static bool present(const loom_node *map, const char *key)
{
    return loom_node_get_kind(loom_node_get(map, key)) != LOOM_NODE_NULL;
}

/* The first of the keys that is there; if none is, the first. `keys` is NULL-terminated. */
static const char *first_present(const hf *h, const char *const *keys)
{
    for (int i = 0; keys[i]; i++)
        if (present(h->map, keys[i]))
            return keys[i];
    return keys[0];
}

/* Reads our field `path` from the first of `keys` that is there. */
static bool count_of(hf *h, const char *path, const char *const *keys, int64_t *value)
{
    const loom_model_field *field = &loom_model_fields[loom_model_field_index(path)];
    const char *key = first_present(h, keys);

    if (h->n_places < MOST_PLACES) {
        h->places[h->n_places].path = path;
        h->places[h->n_places].key = key;
        h->places[h->n_places++].node = loom_node_get(h->map, key);
    }
    return loom_read_i64(h->reader, h->map, key, (int64_t)field->low, (int64_t)field->high, value);
}

#define COUNT_OF(h, path, value, ...) count_of(h, path, (const char *const[]){__VA_ARGS__, NULL}, value)
#define REQUIRE_ONE(h, ...) loom_require((h)->reader, (h)->map, first_present(h, (const char *const[]){__VA_ARGS__, NULL}))

static void note_at_key(void *context, const char *path, const char *text)
{
    const hf *h = context;

    for (int i = 0; i < h->n_places; i++)
        if (!strcmp(h->places[i].path, path)) {
            loom_reader_problem(h->reader, h->places[i].node ? h->places[i].node : h->map, "%s: %s", h->places[i].key, text);
            return;
        }
    loom_reader_problem(h->reader, h->map, "%s", text);
}

static void mark(hf *h, bool needed, uint32_t bit)
{
    if (needed)
        h->model->unmodelled |= bit;
}

/* --- shape -------------------------------------------------------------------------------------------------------------- */

static void read_shape(hf *h)
{
    loom_model *m = h->model;

    COUNT_OF(h, "layers", &m->layers, "num_hidden_layers", "n_layer");
    COUNT_OF(h, "hidden", &m->hidden, "hidden_size", "n_embd");
    COUNT_OF(h, "heads", &m->heads, "num_attention_heads", "n_head");
    COUNT_OF(h, "kv_heads", &m->kv_heads, "num_key_value_heads");
    COUNT_OF(h, "vocab", &m->vocab, "vocab_size");
    REQUIRE_ONE(h, "num_hidden_layers", "n_layer");
    REQUIRE_ONE(h, "hidden_size", "n_embd");
    REQUIRE_ONE(h, "num_attention_heads", "n_head");
    REQUIRE_ONE(h, "vocab_size", "vocab_size");
    if (!COUNT_OF(h, "head_dim", &m->head_dim, "head_dim") && h->family->head_dim) {
        m->head_dim = h->family->head_dim;
        m->defaulted |= LOOM_DEFAULTED_HEAD_DIM;
    }
    if (!COUNT_OF(h, "seq", &m->seq, "max_position_embeddings", "n_positions", "n_ctx")) {
        m->seq = h->family->seq;
        m->defaulted |= LOOM_DEFAULTED_SEQ;
    }
    m->tied_embeddings = h->family->tied;
    if (!loom_read_bool(h->reader, h->map, "tie_word_embeddings", &m->tied_embeddings))
        m->defaulted |= LOOM_DEFAULTED_TIED;
}

/* The width of the dense MLP. GPT-2 has 4 * hidden where others must say. */
static void read_dense_width(hf *h)
{
    loom_model *m = h->model;
    bool read = h->family->experts == LOOM_HF_LLAMA4 ? COUNT_OF(h, "ffn", &m->ffn, "intermediate_size_mlp")
                                                     : COUNT_OF(h, "ffn", &m->ffn, "intermediate_size", "n_inner");

    if (!read && h->family->gpt2) {
        m->ffn = 4 * m->hidden;
        m->defaulted |= LOOM_DEFAULTED_FFN;
    } else if (!read && (!m->layers || loom_model_expert_layers(m) < m->layers)) {
        loom_require(h->reader, h->map, h->family->experts == LOOM_HF_LLAMA4 ? "intermediate_size_mlp" : "intermediate_size");
    }
}

/* --- norms, biases, activation --------------------------------------------------------------------------------------------- */

static void read_norm(hf *h)
{
    static const char *const keys[] = {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", NULL};
    loom_model *m = h->model;
    const char *key = first_present(h, keys);

    m->norm_eps = h->family->norm_eps;
    loom_read_f64(h->reader, h->map, key, 0, 1, &m->norm_eps);
    m->norm = h->family->gpt2 || (h->family == &loom_hf_unknown && present(h->map, key) && strcmp(key, "rms_norm_eps")) ? LOOM_LAYERNORM : LOOM_RMSNORM;
    m->qk_norm = h->family->qk_norm;
    loom_read_bool(h->reader, h->map, "use_qk_norm", &m->qk_norm);
    m->post_norms = h->family->post_norms;
}

static void read_biases(hf *h)
{
    loom_model *m = h->model;
    bool attention = h->family->biased;

    loom_read_bool(h->reader, h->map, present(h->map, "qkv_bias") ? "qkv_bias" : "attention_bias", &attention);
    m->attention_bias = attention;
    m->output_bias = attention && h->family->bias == LOOM_HF_BIAS_QKVO;
    m->mlp_bias = h->family->gpt2 || h->family->experts == LOOM_HF_OSS;
    loom_read_bool(h->reader, h->map, "mlp_bias", &m->mlp_bias);
    m->attention_sinks = h->family->experts == LOOM_HF_OSS;
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(text, *words))
            return true;
    return false;
}

static void read_activation(hf *h)
{
    static const char *const tanh_words[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", NULL}, *const silu_words[] = {"silu", "swish", NULL};
    static const char *const keys[] = {"hidden_activation", "hidden_act", "activation_function", NULL};
    const char *word = h->family->gpt2 ? "gelu_new" : "silu";
    bool gemma = !strncmp(h->family->type, "gemma", 5); /* says gelu and means the tanh form */

    if (gemma)
        word = "gelu_pytorch_tanh";
    loom_read_text(h->reader, h->map, first_present(h, keys), &word);
    bool gelu = is_one_of(word, tanh_words) || !strcmp(word, "gelu");
    if (h->family->gated) {
        h->model->mlp = gelu ? LOOM_GEGLU_TANH : LOOM_SWIGLU;
        mark(h, !gelu && !is_one_of(word, silu_words), LOOM_UNMODELLED_ACTIVATION);
    } else {
        h->model->mlp = !strcmp(word, "relu2") ? LOOM_RELU2 : LOOM_GELU_TANH;
        mark(h, !gelu && strcmp(word, "relu2"), LOOM_UNMODELLED_ACTIVATION);
    }
    mark(h, !strcmp(word, "gelu") && !gemma, LOOM_UNMODELLED_ACTIVATION);
}

/* --- positions and windows ---------------------------------------------------------------------------------------------------- */

/* transformers 5 has rope_parameters, in some families one for each kind of layer; 4 had rope_theta, rope_scaling and partial_rotary_factor. */
static void read_rope(hf *h)
{
    loom_model *m = h->model;
    const loom_node *rope = loom_read_map(h->reader, h->map, "rope_parameters"), *scaling = loom_read_map(h->reader, h->map, "rope_scaling");
    const loom_node *of_full = loom_read_map(h->reader, rope, "full_attention");
    const char *type = "default";
    double share = !strcmp(h->family->type, "glm4_moe") ? 0.5 : 1;

    m->positions = h->family->gpt2 ? LOOM_LEARNED : LOOM_ROPE;
    m->rope_theta = h->family->theta;
    mark(h, of_full != NULL, LOOM_UNMODELLED_FAMILY); /* more than one theta */
    rope = of_full ? of_full : rope;
    for (const loom_node *map = h->map; map; map = map == h->map ? rope : NULL) {
        loom_read_f64(h->reader, map, "rope_theta", 1, 1e12, &m->rope_theta);
        loom_read_f64(h->reader, map, "partial_rotary_factor", 0, 1, &share);
    }
    loom_read_text(h->reader, rope, "rope_type", &type);
    mark(h, scaling || strcmp(type, "default"), LOOM_UNMODELLED_ROPE_SCALING);
    mark(h, !h->family->gpt2 && share != 1, LOOM_UNMODELLED_PARTIAL_ROTARY);
    loom_reader_allow_unknown(h->reader, loom_node_get(h->map, "rope_parameters"));
    loom_reader_allow_unknown(h->reader, of_full);
    loom_reader_allow_unknown(h->reader, scaling);
}

/* Whether layer i (from 1) of `types` sees everything exactly when `every` divides i. */
static bool full_every(const loom_node *types, int64_t every)
{
    for (size_t i = 0; i < loom_node_count(types); i++) {
        const char *type = loom_node_text(loom_node_at(types, i));
        bool full = type && !strcmp(type, "full_attention");
        if (full != (every && (int64_t)(i + 1) % every == 0))
            return false;
    }
    return true;
}

/* layer_types says it for each layer. */
static void read_layer_types(hf *h, const loom_node *types)
{
    loom_model *m = h->model;

    for (int64_t every = 0; every <= (int64_t)loom_node_count(types); every++)
        if (full_every(types, every)) {
            m->full_attention_every = every == 1 ? 0 : every;
            m->sliding_window = every == 1 ? 0 : m->sliding_window;
            return;
        }
    m->sliding_window = m->full_attention_every = 0;
    mark(h, true, LOOM_UNMODELLED_WINDOWS);
}

static void read_windows(hf *h)
{
    loom_model *m = h->model;
    const loom_node *types = loom_read_list(h->reader, h->map, "layer_types");
    bool used = h->family->window != LOOM_HF_WINDOW_IF_USED;
    int64_t pattern = h->family->window == LOOM_HF_WINDOW_EVERY_2 ? 2 : h->family->window == LOOM_HF_WINDOW_EVERY_6 ? 6 : 0;

    loom_read_bool(h->reader, h->map, "use_sliding_window", &used);
    if (h->family->window != LOOM_HF_NO_WINDOW || h->family == &loom_hf_unknown)
        loom_read_i64(h->reader, h->map, "sliding_window", 0, (int64_t)1e12, &m->sliding_window);
    loom_read_i64(h->reader, h->map, "sliding_window_pattern", 1, (int64_t)1e5, &pattern);
    if (!used)
        m->sliding_window = 0;
    if (!m->sliding_window)
        return;
    m->full_attention_every = pattern;
    if (types)
        read_layer_types(h, types);
    else
        mark(h, h->family->window == LOOM_HF_WINDOW_IF_USED, LOOM_UNMODELLED_WINDOWS); /* max_window_layers: only the upper layers have it */
}

/* --- experts and latent attention ------------------------------------------------------------------------------------------------ */

static void read_router(hf *h)
{
    static const char *const scores[] = {"softmax", "sigmoid", NULL};
    loom_moe *moe = &h->model->moe;
    bool deepseek = h->family->experts == LOOM_HF_DEEPSEEK, v2 = !strcmp(h->family->type, "deepseek_v2");
    int score = deepseek && !v2 ? LOOM_ROUTER_SIGMOID : LOOM_ROUTER_SOFTMAX;

    moe->normalise_top_k = h->family->experts != LOOM_HF_QWEN && !v2;
    loom_read_choice(h->reader, h->map, "scoring_func", scores, &score);
    loom_read_bool(h->reader, h->map, "norm_topk_prob", &moe->normalise_top_k);
    loom_read_f64(h->reader, h->map, "routed_scaling_factor", 0, 1e6, &moe->route_scale);
    COUNT_OF(h, "experts.groups", &moe->groups, "n_group");
    COUNT_OF(h, "experts.groups_kept", &moe->groups_kept, "topk_group");
    moe->router = (loom_router_kind)score;
    moe->selection_bias = deepseek && moe->router == LOOM_ROUTER_SIGMOID;
    moe->bias_speed = moe->selection_bias ? 0.001 : 0;
}

static void read_balance(hf *h)
{
    loom_moe *moe = &h->model->moe;
    bool v2 = loom_read_f64(h->reader, h->map, "aux_loss_alpha", 0, 1e6, &moe->balance_coefficient);
    bool per_sequence = v2;

    if (!v2)
        loom_read_f64(h->reader, h->map, "router_aux_loss_coef", 0, 1e6, &moe->balance_coefficient);
    loom_read_bool(h->reader, h->map, "seq_aux", &per_sequence);
    moe->balance = moe->balance_coefficient == 0 ? LOOM_BALANCE_NONE : per_sequence ? LOOM_BALANCE_SEQUENCE : LOOM_BALANCE_SWITCH;
}

/* Layers 0 … n-1 listed in mlp_only_layers are the dense first ones; other lists have no place in loom_moe. */
static void read_mlp_only_layers(hf *h)
{
    const loom_node *list = loom_read_list(h->reader, h->map, "mlp_only_layers");

    for (size_t i = 0; i < loom_node_count(list); i++) {
        int64_t layer;
        if (!loom_node_as_i64(loom_node_at(list, i), &layer) || layer != (int64_t)i) {
            loom_reader_problem(h->reader, loom_node_at(list, i), "mlp_only_layers: only the first layers (0, 1, …) can be dense here");
            return;
        }
    }
    h->model->moe.dense_layers = (int64_t)loom_node_count(list);
}

static void read_shared(hf *h)
{
    loom_moe *moe = &h->model->moe;

    if (h->family->experts == LOOM_HF_DEEPSEEK)
        COUNT_OF(h, "experts.shared", &moe->shared, "n_shared_experts");
    if (h->family->experts == LOOM_HF_LLAMA4)
        moe->shared = 1;
    if (h->family->experts == LOOM_HF_QWEN && COUNT_OF(h, "experts.shared_ffn", &moe->shared_ffn, "shared_expert_intermediate_size")) {
        moe->shared = 1;
        moe->shared_gate = true;
    }
}

static void read_expert_layers(hf *h)
{
    loom_moe *moe = &h->model->moe;

    if (h->family->experts == LOOM_HF_DEEPSEEK) {
        moe->dense_layers = h->family->dense_layers;
        COUNT_OF(h, "experts.dense_layers", &moe->dense_layers, "first_k_dense_replace");
        COUNT_OF(h, "experts.every", &moe->every, "moe_layer_freq");
    }
    if (h->family->experts == LOOM_HF_QWEN) {
        COUNT_OF(h, "experts.every", &moe->every, "decoder_sparse_step");
        read_mlp_only_layers(h);
    }
    if (h->family->experts == LOOM_HF_LLAMA4)
        COUNT_OF(h, "experts.every", &moe->every, "interleave_moe_layer_step");
}

static void read_experts(hf *h)
{
    loom_moe *moe = &h->model->moe;

    *moe = (loom_moe){.every = 1, .groups = 1, .groups_kept = 1, .route_scale = 1};
    if (!COUNT_OF(h, "experts.count", &moe->experts, "num_local_experts", "num_experts", "n_routed_experts")) {
        *moe = (loom_moe){0};
        return;
    }
    COUNT_OF(h, "experts.top_k", &moe->top_k, "num_experts_per_tok");
    loom_require(h->reader, h->map, "num_experts_per_tok");
    bool of_mlp = h->family->experts == LOOM_HF_MIXTRAL || h->family->experts == LOOM_HF_OSS || h->family->experts == LOOM_HF_LLAMA4;
    COUNT_OF(h, "experts.ffn", &moe->ffn, of_mlp ? "intermediate_size" : "moe_intermediate_size");
    loom_require(h->reader, h->map, of_mlp ? "intermediate_size" : "moe_intermediate_size");
    read_shared(h);
    read_expert_layers(h);
    read_router(h);
    read_balance(h);
}

static void read_mla(hf *h)
{
    loom_mla *l = &h->model->mla;

    if (!COUNT_OF(h, "mla.kv_rank", &l->kv_rank, "kv_lora_rank"))
        return;
    COUNT_OF(h, "mla.q_rank", &l->q_rank, "q_lora_rank");
    COUNT_OF(h, "mla.rope_dim", &l->rope_dim, "qk_rope_head_dim");
    COUNT_OF(h, "mla.nope_dim", &l->nope_dim, "qk_nope_head_dim");
    COUNT_OF(h, "mla.value_dim", &l->value_dim, "v_head_dim");
    loom_require(h->reader, h->map, "qk_rope_head_dim");
    loom_require(h->reader, h->map, "qk_nope_head_dim");
    loom_require(h->reader, h->map, "v_head_dim");
}

/* --- the rest ----------------------------------------------------------------------------------------------------------------------- */

static void read_unmodelled(hf *h)
{
    static const char *const dropouts[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout", NULL};
    static const char *const softcaps[] = {"attn_logit_softcapping", "final_logit_softcapping", NULL};
    int64_t mtp = 0;

    mark(h, true, h->family->unmodelled);
    for (int i = 0; dropouts[i]; i++) {
        double share = 0;
        mark(h, loom_read_f64(h->reader, h->map, dropouts[i], 0, 1, &share) && share > 0, LOOM_UNMODELLED_DROPOUT);
    }
    for (int i = 0; softcaps[i]; i++)
        mark(h, present(h->map, softcaps[i]), LOOM_UNMODELLED_SOFTCAP);
    loom_read_i64(h->reader, h->map, "num_nextn_predict_layers", 0, 1000, &mtp);
    mark(h, mtp > 0, LOOM_UNMODELLED_MTP);
}

/* Our own keys, under "rankloom": any of the table, and three names that our fixtures use. They override what the rest of the file says. */
static void read_own_keys(hf *h)
{
    static const char *const forms[] = {"none", "switch", "sequence", NULL};
    const loom_node *own = loom_read_map(h->reader, h->map, "rankloom");
    loom_moe *moe = &h->model->moe;
    int form = (int)moe->balance;

    if (!own)
        return;
    loom_model_fields_read(h->reader, own, h->model);
    loom_read_f64(h->reader, own, "aux_coef", 0, 1e6, &moe->balance_coefficient);
    if (loom_read_choice(h->reader, own, "aux_form", forms, &form))
        moe->balance = (loom_balance_kind)form;
}

static const char *type_of(loom_reader *reader, const loom_node *map)
{
    const char *type = "";

    loom_read_text(reader, map, "model_type", &type);
    return type;
}

static void read_names(hf *h, const char *type)
{
    const char *name = *type ? type : "model";

    loom_read_text(h->reader, h->map, "_name_or_path", &name);
    snprintf(h->model->name, sizeof h->model->name, "%s", *name ? name : type);
    snprintf(h->model->hf_type, sizeof h->model->hf_type, "%s", type);
    h->model->names = h->family->names;
}

void loom_model_read_hf(loom_reader *reader, const loom_node *node, loom_model *model)
{
    const loom_node *text = loom_read_map(reader, node, "text_config"); /* models that also see: the language part stands inside */
    hf h = {.reader = reader, .map = text && !present(node, "hidden_size") ? text : node, .model = model};
    const char *type = type_of(reader, node);

    if (h.map != node) {
        const char *inner = type_of(reader, h.map);
        type = *inner ? inner : type;
        loom_reader_allow_unknown(reader, h.map);
    }
    loom_reader_allow_unknown(reader, node);
    const loom_hf_family *family = loom_hf_family_of(type);
    h.family = family ? family : &loom_hf_unknown;

    read_names(&h, type);
    read_shape(&h);
    read_norm(&h);
    read_biases(&h);
    read_activation(&h);
    read_rope(&h);
    read_windows(&h);
    read_experts(&h);
    read_mla(&h);
    read_dense_width(&h);
    model->init_std = 0.02;
    loom_read_f64(reader, h.map, "initializer_range", 0, 1e3, &model->init_std);
    read_unmodelled(&h);
    read_own_keys(&h);
    loom_model_derive(model);
    loom_model_rules(model, note_at_key, &h);
}
