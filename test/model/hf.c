/* Hugging Face config.json in and out. */
#include "load.h"
#include "model/fields.h"

#include <unistd.h>

static void the_fixtures_load_with_our_own_keys(void **state)
{
    loom_model m;

    (void)state;
    assert_ok(loom_model_load(test_data("fixtures/gpt2_tiny/config.json"), &m, NULL));
    assert_true(m.names == LOOM_NAMES_GPT2 && m.layers == 4 && m.hidden == 64 && m.heads == 4 && m.ffn == 128 && m.vocab == 128 && m.seq == 32);
    assert_true(m.norm == LOOM_LAYERNORM && m.norm_eps == 1e-5 && m.positions == LOOM_LEARNED && m.mlp == LOOM_GELU_TANH && m.tied_embeddings);
    assert_true(m.attention_bias && m.output_bias && m.mlp_bias && m.init_std == 0.08 && m.init_jitter == 0.1 && m.unmodelled == 0);

    assert_ok(loom_model_load(test_data("fixtures/llama_tiny/config.json"), &m, NULL));
    assert_true(m.names == LOOM_NAMES_LLAMA && m.kv_heads == 2 && m.head_dim == 8 && m.ffn == 96 && !m.tied_embeddings && m.init_std == 0.08);
    assert_true(m.norm == LOOM_RMSNORM && m.positions == LOOM_ROPE && m.rope_theta == 1e4 && !m.attention_bias && m.unmodelled == 0);

    assert_ok(loom_model_load(test_data("fixtures/mixtral_tiny/config.json"), &m, NULL));
    assert_true(m.names == LOOM_NAMES_MIXTRAL && m.moe.experts == 8 && m.moe.top_k == 2 && m.moe.ffn == 32 && m.moe.router == LOOM_ROUTER_SOFTMAX);
    assert_true(m.moe.normalise_top_k && m.moe.balance == LOOM_BALANCE_SWITCH && m.moe.balance_coefficient == 0.02 && m.sliding_window == 0);
    assert_true(!m.moe.selection_bias && m.unmodelled == 0);

    assert_ok(loom_model_load(test_data("fixtures/deepseek_tiny/config.json"), &m, NULL));
    assert_true(m.names == LOOM_NAMES_DEEPSEEK && m.moe.experts == 8 && m.moe.ffn == 16 && m.moe.shared == 1 && m.moe.shared_ffn == 16 && m.ffn == 64);
    assert_true(m.moe.dense_layers == 1 && m.moe.router == LOOM_ROUTER_SIGMOID && m.moe.groups == 4 && m.moe.groups_kept == 2 && m.moe.route_scale == 2.5);
    assert_true(m.moe.balance == LOOM_BALANCE_SEQUENCE && m.moe.balance_coefficient == 0.01 && m.moe.bias_speed == 0.001 && m.moe.selection_bias);
    assert_true(!m.qk_norm && m.unmodelled == 0);
}

/* Saves and loads; every field of the description must come back. */
static void round_trip(const loom_model *model)
{
    char path[] = "/tmp/loom-model-XXXXXX.json";
    loom_model back;
    int file = mkstemps(path, 5);

    assert_true(file >= 0);
    close(file);
    assert_ok(loom_model_save_hf(model, path));
    assert_ok(loom_model_load(path, &back, NULL));
    unlink(path);
    assert_string_equal(back.name, model->name);
    assert_true(!*model->hf_type || !strcmp(back.hf_type, model->hf_type));
    assert_int_equal(back.unmodelled, model->unmodelled);
    for (int i = 0; i < loom_model_field_count; i++)
        if (!loom_model_field_equal(&loom_model_fields[i], model, &back))
            fail_msg("%s %s did not come back", loom_model_fields[i].section, loom_model_fields[i].key);
}

static void files_are_written_and_read_back(void **state)
{
    static const char *const texts[] = {
        "model: {layers: 4, hidden: 64, heads: 8, ffn: 256, vocab: 1000}",
        "model: {name: 'a \"b\"', layers: 4, hidden: 64, heads: 8, kv_heads: 2, head_dim: 24, ffn: 256, vocab: 1000, seq: 77, rope_theta: 5e5, norm_eps: 1e-6}",
        "model: {family: gpt2, layers: 4, hidden: 64, heads: 8, ffn: 300, vocab: 1000, tied_embeddings: false, mlp: relu2, mlp_bias: false}",
        "model: {layers: 4, hidden: 64, heads: 8, ffn: 256, vocab: 1000, norm: layernorm, positions: learned, mlp: gelu_tanh, output_bias: true}",
        "model: {layers: 4, hidden: 64, heads: 8, ffn: 256, vocab: 1000, sliding_window: 16, full_attention_every: 3, qk_norm: true}",
        "model: {layers: 4, hidden: 64, heads: 8, ffn: 256, vocab: 1000, attention_bias: true, post_norms: true, attention_sinks: true, positions: none}",
        "model: {layers: 4, hidden: 64, heads: 8, ffn: 200, vocab: 1000, experts: {count: 8, top_k: 2, ffn: 32, every: 2, balance: switch, balance_coefficient: 0.01}}",
        "model: {layers: 4, hidden: 64, heads: 8, ffn: 200, vocab: 1000, init_std: 0.006, init_jitter: 0.1, experts: {count: 8, top_k: 2, ffn: 32, shared: 2, shared_ffn: 48, z_coefficient: 1e-3}}",
        "model: {family: deepseek, layers: 5, hidden: 64, heads: 8, ffn: 200, vocab: 1000, experts: {count: 8, top_k: 2, ffn: 32, shared: 1, dense_layers: 2, groups: 4, groups_kept: 2, "
        "balance: sequence, balance_coefficient: 1e-4}, mla: {q_rank: 24, kv_rank: 16, rope_dim: 4, nope_dim: 8, value_dim: 10}}",
        "model: {family: deepseek, layers: 5, hidden: 64, heads: 8, ffn: 200, vocab: 1000, experts: {count: 8, top_k: 2, ffn: 32, router: softmax, selection_bias: false, bias_speed: 0, "
        "normalise_top_k: false, shared_gate: true}, mla: {kv_rank: 16, rope_dim: 4, nope_dim: 8, value_dim: 10}}",
    };
    static const char *const fixtures[] = {"gpt2_tiny", "llama_tiny", "mixtral_tiny", "deepseek_tiny"};
    loom_model m;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_ok(model_of("f", texts[i], &m));
        round_trip(&m);
    }
    for (size_t i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "fixtures/%s/config.json", fixtures[i]);
        assert_ok(loom_model_load(test_data(path), &m, NULL));
        round_trip(&m);
    }
}

#define BASE "\"num_hidden_layers\": 4, \"hidden_size\": 64, \"num_attention_heads\": 8, \"intermediate_size\": 256, \"vocab_size\": 100"

static loom_model read_json(const char *text)
{
    loom_model m;

    assert_ok(model_of("config.json", text, &m));
    return m;
}

static void families_differ_in_what_they_leave_unsaid(void **state)
{
    loom_model m;

    (void)state;
    m = read_json("{\"model_type\": \"qwen2\", " BASE "}");
    assert_true(m.attention_bias && !m.output_bias && !m.mlp_bias && m.norm_eps == 1e-6);
    round_trip(&m);
    m = read_json("{\"model_type\": \"qwen3\", " BASE "}");
    assert_true(m.qk_norm && m.head_dim == 128 && !m.attention_bias);
    round_trip(&m);
    m = read_json("{\"model_type\": \"llama\", \"attention_bias\": true, " BASE "}");
    assert_true(m.attention_bias && m.output_bias);
    round_trip(&m);
    m = read_json("{\"model_type\": \"gemma\", \"hidden_act\": \"gelu\", " BASE "}");
    assert_true(m.tied_embeddings && m.mlp == LOOM_GEGLU_TANH && m.head_dim == 256 && m.unmodelled == LOOM_UNMODELLED_FAMILY);
    round_trip(&m);
    m = read_json("{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 64, \"n_head\": 4, \"vocab_size\": 100, \"n_inner\": null}");
    assert_true(m.ffn == 256 && m.defaulted & LOOM_DEFAULTED_FFN && m.seq == 1024 && m.tied_embeddings);
    m = read_json("{\"architectures\": [\"Whatever\"], " BASE "}");
    assert_int_equal(m.unmodelled, LOOM_UNMODELLED_FAMILY);
}

static void both_generations_of_rope_keys_are_read(void **state)
{
    loom_model m;

    (void)state;
    m = read_json("{\"model_type\": \"llama\", \"rope_theta\": 5e5, " BASE "}");
    assert_true(m.rope_theta == 5e5 && m.unmodelled == 0);
    m = read_json("{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}, " BASE "}");
    assert_true(m.rope_theta == 5e5 && m.unmodelled == 0);
    m = read_json("{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"llama3\", \"factor\": 8}, " BASE "}");
    assert_int_equal(m.unmodelled, LOOM_UNMODELLED_ROPE_SCALING);
    m = read_json("{\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, " BASE "}");
    assert_int_equal(m.unmodelled, LOOM_UNMODELLED_ROPE_SCALING);
    assert_refused(loom_model_save_hf(&m, "/nowhere"), LOOM_E_UNSUPPORTED, "scaling of rotary positions");
    m = read_json("{\"model_type\": \"glm4_moe\", " BASE "}");
    assert_int_equal(m.unmodelled, LOOM_UNMODELLED_PARTIAL_ROTARY); /* 0.5 unless the file says 1 */
}

static void windows_are_read_as_each_family_means_them(void **state)
{
    loom_model m;

    (void)state;
    m = read_json("{\"model_type\": \"mistral\", \"sliding_window\": 16, " BASE "}");
    assert_true(m.sliding_window == 16 && m.full_attention_every == 0);
    round_trip(&m);
    m = read_json("{\"model_type\": \"qwen2\", \"sliding_window\": 16, \"use_sliding_window\": false, " BASE "}");
    assert_true(m.sliding_window == 0);
    m = read_json("{\"model_type\": \"gemma2\", \"sliding_window\": 16, " BASE "}");
    assert_true(m.sliding_window == 16 && m.full_attention_every == 2);
    m = read_json("{\"model_type\": \"gemma3_text\", \"sliding_window\": 16, \"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\", \"sliding_attention\"], " BASE "}");
    assert_true(m.full_attention_every == 3);
    m = read_json("{\"model_type\": \"gemma3_text\", \"sliding_window\": 16, \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", \"sliding_attention\"], " BASE "}");
    assert_true(m.sliding_window == 0 && m.unmodelled & LOOM_UNMODELLED_WINDOWS);
}

static void experts_of_each_family_are_read(void **state)
{
    loom_model m;

    (void)state;
    m = read_json("{\"model_type\": \"qwen3_moe\", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"decoder_sparse_step\": 2, \"norm_topk_prob\": true, "
                  "\"router_aux_loss_coef\": 0.001, " BASE "}");
    assert_true(m.moe.every == 2 && m.moe.normalise_top_k && m.moe.balance == LOOM_BALANCE_SWITCH && m.names == LOOM_NAMES_DEEPSEEK && !m.moe.selection_bias);
    round_trip(&m);
    m = read_json("{\"model_type\": \"qwen2_moe\", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"shared_expert_intermediate_size\": 80, "
                  "\"mlp_only_layers\": [0, 1], " BASE "}");
    assert_true(m.moe.shared == 1 && m.moe.shared_ffn == 80 && m.moe.shared_gate && m.moe.dense_layers == 2 && !m.moe.normalise_top_k);
    round_trip(&m);
    m = read_json("{\"model_type\": \"deepseek_v2\", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"n_shared_experts\": 2, \"aux_loss_alpha\": 0.001, "
                  "\"kv_lora_rank\": 16, \"q_lora_rank\": null, \"qk_rope_head_dim\": 4, \"qk_nope_head_dim\": 8, \"v_head_dim\": 8, " BASE "}");
    assert_true(m.moe.router == LOOM_ROUTER_SOFTMAX && m.moe.balance == LOOM_BALANCE_SEQUENCE && m.mla.q_rank == 0 && m.head_dim == 12 && m.moe.shared_ffn == 32);
    round_trip(&m);
}

static void problems_name_the_keys_of_the_file(void **state)
{
    loom_model m;

    (void)state;
    assert_refused(model_of("config.json", "{\"model_type\": \"llama\",\n \"hidden_size\": 64,\n \"num_attention_heads\": 8,\n \"num_key_value_heads\": 3,\n \"vocab_size\": \"big\",\n \"whatever\": 5}", &m),
                   LOOM_E_INVALID, "config.json:1:1: key num_hidden_layers is missing", "config.json:4:25: num_key_value_heads: kv_heads=3 does not divide heads=8; 2 and 4 do",
                   "config.json:5:16: vocab_size must be a whole number", "key intermediate_size is missing");
    assert_null(strstr(loom_last_error(), "whatever"));
    assert_refused(model_of("config.json", "{\"model_type\": \"llama\", \"rankloom\": {\"init_jiter\": 0.1}, " BASE "}", &m), LOOM_E_INVALID,
                   "unknown key rankloom.init_jiter; did you mean rankloom.init_jitter?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fixtures_load_with_our_own_keys),
        cmocka_unit_test(files_are_written_and_read_back),
        cmocka_unit_test(families_differ_in_what_they_leave_unsaid),
        cmocka_unit_test(both_generations_of_rope_keys_are_read),
        cmocka_unit_test(windows_are_read_as_each_family_means_them),
        cmocka_unit_test(experts_of_each_family_are_read),
        cmocka_unit_test(problems_name_the_keys_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
