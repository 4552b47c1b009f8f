/* Writing a Hugging Face config.json that loads back to the same model. What the family's own keys cannot say goes under "rankloom": the text is
 * read back without it, and every field that came out different is written there. */
#include "core/file.h"
#include "core/text.h"
#include "model/fields.h"
#include "model/hf_family.h"

#include <string.h>

/* The model_type and class to write: where it came from, else the family whose formulas fit. */
static const char *type_for(const loom_model *m)
{
    if (*m->hf_type)
        return m->hf_type;
    switch (m->names) {
    case LOOM_NAMES_GPT2:
        return "gpt2";
    case LOOM_NAMES_MIXTRAL:
        return "mixtral";
    case LOOM_NAMES_DEEPSEEK:
        return !m->mla.kv_rank ? "glm4_moe" : m->moe.router == LOOM_ROUTER_SOFTMAX ? "deepseek_v2" : "deepseek_v3";
    case LOOM_NAMES_LLAMA:
        break;
    }
    return m->qk_norm ? "qwen3" : m->attention_bias && !m->output_bias ? "qwen2" : "llama";
}

static const char *class_for(const char *type)
{
    static const char *const classes[][2] = {
        {"gpt2", "GPT2LMHeadModel"},          {"llama", "LlamaForCausalLM"},         {"mistral", "MistralForCausalLM"},
        {"mixtral", "MixtralForCausalLM"},    {"qwen2", "Qwen2ForCausalLM"},         {"qwen3", "Qwen3ForCausalLM"},
        {"qwen2_moe", "Qwen2MoeForCausalLM"}, {"qwen3_moe", "Qwen3MoeForCausalLM"},  {"gemma", "GemmaForCausalLM"},
        {"gemma2", "Gemma2ForCausalLM"},      {"gemma3_text", "Gemma3ForCausalLM"},  {"deepseek_v2", "DeepseekV2ForCausalLM"},
        {"deepseek_v3", "DeepseekV3ForCausalLM"}, {"glm4_moe", "Glm4MoeForCausalLM"}, {"gpt_oss", "GptOssForCausalLM"},
    };

    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (!strcmp(classes[i][0], type))
            return classes[i][1];
    return NULL;
}

static void count(loom_text *t, const char *key, int64_t value)
{
    loom_text_add(t, ",\n  \"%s\": %lld", key, (long long)value);
}

static void number(loom_text *t, const char *key, double value)
{
    loom_text_add(t, ",\n  \"%s\": ", key);
    loom_text_add_number(t, value);
}

static void flag(loom_text *t, const char *key, bool value)
{
    loom_text_add(t, ",\n  \"%s\": %s", key, value ? "true" : "false");
}

static void word(loom_text *t, const char *key, const char *value)
{
    loom_text_add(t, ",\n  \"%s\": ", key);
    loom_text_add_json(t, value);
}

static void write_gpt2(loom_text *t, const loom_model *m)
{
    count(t, "n_layer", m->layers);
    count(t, "n_embd", m->hidden);
    count(t, "n_head", m->heads);
    count(t, "n_inner", m->ffn);
    count(t, "n_positions", m->seq);
    number(t, "layer_norm_epsilon", m->norm_eps);
    word(t, "activation_function", "gelu_new");
    number(t, "resid_pdrop", 0);
    number(t, "embd_pdrop", 0);
    number(t, "attn_pdrop", 0);
}

static void write_llama(loom_text *t, const loom_model *m, const loom_hf_family *family)
{
    bool experts_only = family->experts == LOOM_HF_MIXTRAL || family->experts == LOOM_HF_OSS;

    count(t, "num_hidden_layers", m->layers);
    count(t, "hidden_size", m->hidden);
    count(t, "num_attention_heads", m->heads);
    count(t, "num_key_value_heads", m->kv_heads);
    if (!m->mla.kv_rank)
        count(t, "head_dim", m->head_dim);
    if (m->ffn || (experts_only && m->moe.experts))
        count(t, "intermediate_size", experts_only && m->moe.experts ? m->moe.ffn : m->ffn);
    count(t, "max_position_embeddings", m->seq);
    number(t, "rms_norm_eps", m->norm_eps);
    number(t, "rope_theta", m->rope_theta);
    if (!strcmp(family->type, "glm4_moe"))
        number(t, "partial_rotary_factor", 1);
    word(t, "hidden_act", m->mlp == LOOM_SWIGLU ? "silu" : m->mlp == LOOM_RELU2 ? "relu2" : "gelu_pytorch_tanh");
    flag(t, family->experts == LOOM_HF_QWEN && family->biased ? "qkv_bias" : "attention_bias", m->attention_bias);
    flag(t, "mlp_bias", m->mlp_bias);
    if (!strcmp(family->type, "glm4_moe"))
        flag(t, "use_qk_norm", m->qk_norm);
    if (family->window == LOOM_HF_WINDOW_IF_USED)
        flag(t, "use_sliding_window", m->sliding_window > 0);
    if (m->sliding_window)
        count(t, "sliding_window", m->sliding_window);
}

/* Which layers the window leaves out, layer by layer: the form that every family reads. */
static void write_layer_types(loom_text *t, const loom_model *m)
{
    loom_text_add(t, ",\n  \"layer_types\": [");
    for (int64_t layer = 0; layer < m->layers; layer++) {
        bool full = m->full_attention_every && (layer + 1) % m->full_attention_every == 0;
        loom_text_add(t, "%s\"%s\"", layer ? ", " : "", full ? "full_attention" : "sliding_attention");
    }
    loom_text_add(t, "]");
}

static void write_experts(loom_text *t, const loom_model *m, const loom_hf_family *family)
{
    const loom_moe *moe = &m->moe;
    bool deepseek = family->experts == LOOM_HF_DEEPSEEK, qwen = family->experts == LOOM_HF_QWEN;

    count(t, deepseek ? "n_routed_experts" : qwen ? "num_experts" : "num_local_experts", moe->experts);
    count(t, "num_experts_per_tok", moe->top_k);
    if (deepseek || qwen)
        count(t, "moe_intermediate_size", moe->ffn);
    flag(t, "norm_topk_prob", moe->normalise_top_k);
    if (qwen) {
        count(t, "decoder_sparse_step", moe->every);
        if (moe->shared)
            count(t, "shared_expert_intermediate_size", moe->shared_ffn);
    }
    if (deepseek) {
        count(t, "n_shared_experts", moe->shared);
        count(t, "first_k_dense_replace", moe->dense_layers);
        count(t, "n_group", moe->groups);
        count(t, "topk_group", moe->groups_kept);
        number(t, "routed_scaling_factor", moe->route_scale);
        word(t, "scoring_func", moe->router == LOOM_ROUTER_SIGMOID ? "sigmoid" : "softmax");
    }
    if (moe->balance == LOOM_BALANCE_SEQUENCE) {
        number(t, "aux_loss_alpha", moe->balance_coefficient);
        flag(t, "seq_aux", true);
    } else {
        number(t, "router_aux_loss_coef", moe->balance_coefficient);
    }
}

static void write_mla(loom_text *t, const loom_model *m)
{
    if (m->mla.q_rank)
        count(t, "q_lora_rank", m->mla.q_rank);
    count(t, "kv_lora_rank", m->mla.kv_rank);
    count(t, "qk_rope_head_dim", m->mla.rope_dim);
    count(t, "qk_nope_head_dim", m->mla.nope_dim);
    count(t, "v_head_dim", m->mla.value_dim);
}

static void write_family_keys(loom_text *t, const loom_model *m)
{
    const char *type = type_for(m), *class = class_for(type);
    const loom_hf_family *family = loom_hf_family_of(type);

    if (!family)
        family = &loom_hf_unknown;
    loom_text_add(t, "{\n  \"model_type\": ");
    loom_text_add_json(t, type);
    if (class)
        loom_text_add(t, ",\n  \"architectures\": [\"%s\"]", class);
    word(t, "_name_or_path", m->name);
    count(t, "vocab_size", m->vocab);
    flag(t, "tie_word_embeddings", m->tied_embeddings);
    number(t, "initializer_range", m->init_std);
    if (family->gpt2)
        write_gpt2(t, m);
    else
        write_llama(t, m, family);
    if (m->sliding_window)
        write_layer_types(t, m);
    if (m->moe.experts)
        write_experts(t, m, family);
    if (m->mla.kv_rank)
        write_mla(t, m);
}

/* --- what those keys cannot say --------------------------------------------------------------------------------------------- */

static void write_field(loom_text *t, const loom_model_field *f, const loom_model *m)
{
    const char *at = (const char *)m + f->offset;
    int64_t whole;
    double real;
    int choice;

    loom_text_add(t, "\"%s\": ", f->key);
    switch (f->kind) {
    case LOOM_FIELD_I64:
        memcpy(&whole, at, sizeof whole);
        loom_text_add(t, "%lld", (long long)whole);
        break;
    case LOOM_FIELD_F64:
        memcpy(&real, at, sizeof real);
        loom_text_add_number(t, real);
        break;
    case LOOM_FIELD_BOOL:
        loom_text_add(t, "%s", *(const bool *)at ? "true" : "false");
        break;
    case LOOM_FIELD_CHOICE:
        memcpy(&choice, at, sizeof choice);
        loom_text_add(t, "\"%s\"", f->names[choice]);
        break;
    }
}

/* The fields of one section in which `read` differs from `m`. */
static void write_differences(loom_text *t, const char *section, const loom_model *m, const loom_model *read)
{
    const char *before = "";

    for (int i = 0; i < loom_model_field_count; i++) {
        const loom_model_field *f = &loom_model_fields[i];
        if (strcmp(f->section, section) || loom_model_field_equal(f, m, read))
            continue;
        loom_text_add(t, "%s", before);
        write_field(t, f, m);
        before = ", ";
    }
}

/* Reads `text` as loom_model_load() would, without judging it: a model that its own family cannot express may break a rule there. */
static loom_status read_back(const char *text, size_t bytes, loom_model *model)
{
    loom_config *config;
    loom_reader *reader;
    loom_status status = loom_config_parse("config.json", text, bytes, &config);

    if (status < 0)
        return status;
    status = loom_reader_open(config, &reader);
    if (status == LOOM_OK) {
        loom_model_read(reader, loom_config_root(config), model);
        loom_reader_finish(reader);
    }
    loom_config_free(config);
    return status;
}

static void add_section(loom_text *own, const char *name, const loom_text *fields)
{
    if (fields->length)
        loom_text_add(own, "%s\"%s\": {%s}", own->length ? ", " : "", name, loom_text_so_far(fields));
}

static void write_own_keys(loom_text *t, const loom_model *m, const loom_model *read)
{
    static const char *const sections[] = {"experts", "mla"};
    loom_text own = {0};

    write_differences(&own, "", m, read);
    for (int i = 0; i < 2; i++) {
        loom_text fields = {0};
        write_differences(&fields, sections[i], m, read);
        add_section(&own, sections[i], &fields);
        t->failed |= fields.failed;
        loom_text_drop(&fields);
    }
    if (own.length)
        loom_text_add(t, ",\n  \"rankloom\": {%s}", loom_text_so_far(&own));
    t->failed |= own.failed;
    loom_text_drop(&own);
}

/* What neither the family's keys as we write them nor our own can say: it would be lost. */
static const uint32_t lost = LOOM_UNMODELLED_ROPE_SCALING | LOOM_UNMODELLED_PARTIAL_ROTARY | LOOM_UNMODELLED_ACTIVATION | LOOM_UNMODELLED_MTP |
                             LOOM_UNMODELLED_SOFTCAP | LOOM_UNMODELLED_WINDOWS;

loom_status loom_model_save_hf(const loom_model *model, const char *path)
{
    loom_text text = {0};
    loom_model read;
    char *written;

    for (uint32_t bit = 1; bit && bit <= lost; bit <<= 1)
        if (model->unmodelled & lost & bit)
            return loom_fail(LOOM_E_UNSUPPORTED, "%s: %s has %s, which would be lost in the file", path, model->name, loom_model_unmodelled_name(bit));
    write_family_keys(&text, model);
    size_t length = text.length;
    loom_text_add(&text, "\n}\n");
    loom_status status = text.failed ? LOOM_OK : read_back(loom_text_so_far(&text), text.length, &read);
    if (status < 0) {
        loom_text_drop(&text);
        return status;
    }
    if (!text.failed) {
        text.length = length; /* the closing brace again, behind our own keys */
        write_own_keys(&text, model, &read);
        loom_text_add(&text, "\n}\n");
    }
    length = text.length;
    status = loom_text_take(&text, &written);
    if (status < 0)
        return status;
    status = loom_file_replace(path, written, length);
    loom_text_free(written);
    return status;
}
