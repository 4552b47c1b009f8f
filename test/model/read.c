/* Our model YAML: defaults, derived numbers, rules, all problems at once. */
#include "load.h"

#define SHAPE "  layers: 4\n  hidden: 64\n  heads: 8\n  ffn: 256\n  vocab: 1000\n"

static void a_short_description_has_llamas_defaults(void **state)
{
    loom_model m;

    (void)state;
    assert_ok(model_of("f", "model:\n" SHAPE, &m));
    assert_true(m.layers == 4 && m.hidden == 64 && m.heads == 8 && m.ffn == 256 && m.vocab == 1000);
    assert_true(m.kv_heads == 8 && m.head_dim == 8 && m.seq == 2048 && !m.tied_embeddings);
    assert_int_equal(m.defaulted, LOOM_DEFAULTED_KV_HEADS | LOOM_DEFAULTED_HEAD_DIM | LOOM_DEFAULTED_SEQ | LOOM_DEFAULTED_TIED);
    assert_true(m.norm == LOOM_RMSNORM && m.positions == LOOM_ROPE && m.mlp == LOOM_SWIGLU && m.names == LOOM_NAMES_LLAMA);
    assert_true(!m.attention_bias && !m.output_bias && !m.mlp_bias && m.rope_theta == 10000 && m.norm_eps == 1e-5 && m.init_std == 0.02);
    assert_true(m.moe.experts == 0 && m.mla.kv_rank == 0 && m.unmodelled == 0);
    assert_string_equal(m.name, "model");
}

static void gpt2_is_a_family(void **state)
{
    loom_model m;

    (void)state;
    assert_ok(model_of("f", "model:\n  name: g\n  family: gpt2\n  seq: 32\n" SHAPE, &m));
    assert_true(m.norm == LOOM_LAYERNORM && m.positions == LOOM_LEARNED && m.mlp == LOOM_GELU_TANH && m.names == LOOM_NAMES_GPT2);
    assert_true(m.attention_bias && m.output_bias && m.mlp_bias && m.tied_embeddings);
    assert_string_equal(m.name, "g");
    assert_ok(model_of("f", "model:\n  family: gpt2\n  mlp_bias: false\n  tied_embeddings: false\n" SHAPE, &m));
    assert_true(m.output_bias && !m.mlp_bias && !m.tied_embeddings && !(m.defaulted & LOOM_DEFAULTED_TIED));
}

static void experts_choose_their_tensor_names(void **state)
{
    loom_model m;

    (void)state;
    assert_ok(model_of("f", "model:\n" SHAPE "  experts: {count: 8, top_k: 2, ffn: 32}\n", &m));
    assert_true(m.names == LOOM_NAMES_MIXTRAL && m.moe.router == LOOM_ROUTER_SOFTMAX && m.moe.normalise_top_k && m.moe.every == 1 && m.moe.groups == 1);
    assert_ok(model_of("f", "model:\n" SHAPE "  experts: {count: 8, top_k: 2, ffn: 32, shared: 1}\n", &m));
    assert_true(m.names == LOOM_NAMES_DEEPSEEK && m.moe.router == LOOM_ROUTER_SOFTMAX && m.moe.shared_ffn == 32 && !m.moe.selection_bias);
    assert_ok(model_of("f", "model:\n  family: deepseek\n" SHAPE "  experts: {count: 8, top_k: 2, ffn: 32, groups: 4, groups_kept: 2, route_scale: 2.5}\n", &m));
    assert_true(m.moe.router == LOOM_ROUTER_SIGMOID && m.moe.selection_bias && m.moe.bias_speed == 0.001 && m.moe.route_scale == 2.5);
}

static void experts_stand_on_the_layers_that_the_file_says(void **state)
{
    loom_model m;

    (void)state;
    assert_ok(model_of("f", "model:\n" SHAPE "  experts: {count: 8, top_k: 2, ffn: 32, every: 2}\n", &m));
    for (int64_t layer = 0; layer < 4; layer++)
        assert_int_equal(loom_model_layer_has_experts(&m, layer), layer % 2 == 1); /* the second, fourth, … */
    assert_int_equal(loom_model_expert_layers(&m), 2);
    assert_ok(model_of("f", "model:\n" SHAPE "  experts: {count: 8, top_k: 2, ffn: 32, dense_layers: 1}\n", &m));
    for (int64_t layer = 0; layer < 4; layer++)
        assert_int_equal(loom_model_layer_has_experts(&m, layer), layer >= 1);
    assert_int_equal(loom_model_expert_layers(&m), 3);
    assert_ok(model_of("f", "model:\n" SHAPE, &m));
    assert_false(loom_model_layer_has_experts(&m, 1));
}

static void a_model_of_experts_alone_needs_no_dense_width(void **state)
{
    loom_model m;

    (void)state;
    assert_ok(model_of("f", "model: {layers: 2, hidden: 8, heads: 2, vocab: 9, experts: {count: 4, top_k: 2, ffn: 32}}\n", &m));
    assert_refused(model_of("f", "model: {layers: 2, hidden: 8, heads: 2, vocab: 9, experts: {count: 4, top_k: 2, ffn: 32, every: 2}}\n", &m), LOOM_E_INVALID,
                   "model.ffn is missing");
}

static void every_broken_rule_is_said_with_what_would_be_legal(void **state)
{
    loom_model m;

    (void)state;
    assert_refused(model_of("f",
                            "model:\n  layers: 4\n  hidden: 1792\n  heads: 24\n  kv_heads: 5\n  ffn: 256\n  vocab: 1000\n"
                            "  experts: {count: 30, top_k: 31, ffn: 32, groups: 4, groups_kept: 5, dense_layers: 9, balance_coefficient: 0.1, bias_speed: 0.1}\n"
                            "  full_attention_every: 2\n",
                            &m),
                   LOOM_E_INVALID, "f:4:10: heads=24 does not divide hidden=1792; 16 and 28 do. Or give head_dim", "f:5:13: kv_heads=5 does not divide heads=24; 4 and 6 do",
                   "f:8:31: top_k=31 is more than count=30", "groups=4 does not divide count=30; 3 and 5 do", "groups_kept=5 is more than groups=4",
                   "dense_layers=9 is more than layers=4", "balance_coefficient=0.1 with balance none", "bias_speed=0.1 without selection_bias",
                   "f:9:25: full_attention_every=2 without a sliding_window");
    assert_refused(model_of("f", "model:\n  head_dim: 9\n" SHAPE, &m), LOOM_E_INVALID, "f:2:13: head_dim=9 is odd, and rotary positions turn pairs; 10 is even");
    assert_ok(model_of("f", "model:\n  head_dim: 9\n  positions: learned\n" SHAPE, &m));
    assert_refused(model_of("f", "model: {layers: 1e5, hidden: 1e7, heads: 1e6, head_dim: 1e6, ffn: 1e8, vocab: 1e9}", &m), LOOM_E_INVALID, "parameters");
}

static void every_missing_key_is_named(void **state)
{
    loom_model m;

    (void)state;
    assert_refused(model_of("f", "model:\n  name: x\n  experts: {shared: 1}\n  mla: {q_rank: 4}\n", &m), LOOM_E_INVALID, "key model.layers is missing", "key model.hidden is missing",
                   "key model.heads is missing", "key model.vocab is missing", "key model.ffn is missing", "key model.experts.count is missing",
                   "key model.experts.top_k is missing", "key model.experts.ffn is missing", "key model.mla.kv_rank is missing");
    assert_refused(model_of("f", "model: [1]\n", &m), LOOM_E_INVALID, "f:1:8: model must be a map of keys, and is a list");
}

static void latent_attention_sets_the_head_size(void **state)
{
    loom_model m;

    (void)state;
    assert_ok(model_of("f", "model:\n" SHAPE "  mla: {q_rank: 24, kv_rank: 16, rope_dim: 4, nope_dim: 8, value_dim: 8}\n", &m));
    assert_true(m.mla.kv_rank == 16 && m.head_dim == 12 && m.names == LOOM_NAMES_DEEPSEEK);
}

static void a_description_says_what_was_defaulted(void **state)
{
    loom_model m;
    char *text;

    (void)state;
    assert_ok(model_of("f", "model:\n" SHAPE "  experts: {count: 8, top_k: 2, ffn: 32}\n", &m));
    assert_ok(loom_model_describe(&m, &text));
    assert_non_null(strstr(text, "4 layers, hidden 64, 8 heads over 8 kv heads of 8"));
    assert_non_null(strstr(text, "8 experts of width 32, top-2, on 4 layers"));
    assert_non_null(strstr(text, "defaulted: kv_heads 8 (as many as heads), head_dim 8 (hidden / heads), seq 2048 (of mixtral), tied_embeddings false (of mixtral)"));
    loom_text_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_description_has_llamas_defaults),
        cmocka_unit_test(gpt2_is_a_family),
        cmocka_unit_test(experts_choose_their_tensor_names),
        cmocka_unit_test(experts_stand_on_the_layers_that_the_file_says),
        cmocka_unit_test(a_model_of_experts_alone_needs_no_dense_width),
        cmocka_unit_test(every_broken_rule_is_said_with_what_would_be_legal),
        cmocka_unit_test(every_missing_key_is_named),
        cmocka_unit_test(latent_attention_sets_the_head_size),
        cmocka_unit_test(a_description_says_what_was_defaulted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
