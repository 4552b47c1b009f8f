/* The cases of class G that are about model files: what people really wrote, and what has to happen. */
#include "load.h"

static loom_model m;
static loom_train_shape train;

static loom_status load(const char *path)
{
    return loom_model_load(test_data(path), &m, &train);
}

static void exponents_are_numbers(void **state)
{
    static const struct {
        const char *text;
        double value;
    } rates[] = {{"1e-5", 1e-5}, {"1E-5", 1e-5}, {"+1e-5", 1e-5}, {".5e-3", 0.0005}, {"5.e-3", 0.005}, {"1.0e-5", 1e-5}};

    (void)state;
    assert_ok(load("cases/config/G01-scientific-notation-a.yaml"));
    assert_true(m.vocab == 1000 && train.learning_rate == 1e-5);
    assert_ok(load("cases/config/G01-scientific-notation-b.yaml"));
    assert_true(m.seq == 128 && train.learning_rate == 0.005);
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        char text[64];
        loom_config *config;
        loom_reader *reader;
        snprintf(text, sizeof text, "learning_rate: %s\n", rates[i].text);
        assert_ok(loom_config_parse("f", text, strlen(text), &config));
        assert_ok(loom_reader_open(config, &reader));
        loom_train_shape_read(reader, loom_config_root(config), &train);
        assert_ok(loom_reader_finish(reader));
        assert_true(train.learning_rate == rates[i].value);
        loom_config_free(config);
    }
}

static void unknown_keys_are_all_reported(void **state)
{
    (void)state;
    assert_refused(load("cases/config/G02-unknown-keys.yaml"), LOOM_E_INVALID, ":6:3: unknown key model.kvheads; did you mean model.kv_heads?",
                   ":13:5: unknown key model.experts.topk; did you mean model.experts.top_k?",
                   ":15:3: unknown key train.global-batch; did you mean train.global_batch?", ":19:1: unknown key heads; did you mean model.heads?");
}

static void a_key_twice_is_refused_with_both_lines(void **state)
{
    (void)state;
    assert_refused(load("cases/config/G03-duplicate-keys-a.yaml"), LOOM_E_INVALID, "on lines 9 and 10");
}

static void bombs_end_early(void **state)
{
    (void)state;
    assert_refused(load("cases/config/G04-alias-bomb.yaml"), LOOM_E_INVALID, "100000 values");
    assert_refused(load("cases/config/G06-deep-nesting-65.yaml"), LOOM_E_INVALID, "64 deep");
}

static void booleans_have_one_rule(void **state)
{
    static const char *const legal[] = {"true", "True", "TRUE"}, *const refused[] = {"\"no\"", "\"false\"", "nope", "2", "0", "1", "yes", "no", "on", "off"};
    char text[256];

    (void)state;
    assert_refused(load("cases/config/G08-boolean-forms-quoted-no.yaml"), LOOM_E_INVALID, ":10:20: model.tied_embeddings must be true or false, and is the quoted text \"no\"");
    assert_refused(load("cases/config/G08-boolean-forms-word.yaml"), LOOM_E_INVALID, ":10:20: model.tied_embeddings must be true or false, and is nope");
    assert_refused(load("cases/config/G08-boolean-forms-yes.yaml"), LOOM_E_INVALID, ":10:20: model.tied_embeddings must be true or false, and is yes");
    for (size_t i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "model: {layers: 1, hidden: 8, heads: 2, ffn: 8, vocab: 8, tied_embeddings: %s}\n", legal[i]);
        assert_ok(model_of("f", text, &m));
        assert_true(m.tied_embeddings);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        snprintf(text, sizeof text, "model: {layers: 1, hidden: 8, heads: 2, ffn: 8, vocab: 8, tied_embeddings: %s}\n", refused[i]);
        assert_refused(model_of("f", text, &m), LOOM_E_INVALID, "model.tied_embeddings must be true or false");
    }
}

static void a_tab_is_named(void **state)
{
    (void)state;
    assert_refused(load("cases/config/G11-tabs.yaml"), LOOM_E_INVALID, ":3:1: a tab");
}

static void large_and_grouped_numbers_are_read_or_refused_whole(void **state)
{
    static const char *const refused[] = {"1,000", "4k", "4096.5", "\"4096\""};
    char text[256];

    (void)state;
    assert_ok(load("cases/config/G12-large-and-grouped-numbers-a.yaml"));
    assert_int_equal(m.vocab, 128256);
    assert_ok(load("cases/config/G12-large-and-grouped-numbers-b.yaml"));
    assert_true(m.seq == 3000000000);
    assert_refused(load("cases/config/G12-large-and-grouped-numbers-c.yaml"), LOOM_E_INVALID, ":9:8: model.seq must be a whole number, and is 4k; write the number in full");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        snprintf(text, sizeof text, "model:\n  layers: 1\n  hidden: 8\n  heads: 2\n  ffn: 8\n  vocab: 8\n  seq: %s\n", refused[i]);
        assert_refused(model_of("f", text, &m), LOOM_E_INVALID, "f:7:8: model.seq must be a whole number");
    }
}

static void a_config_of_others_is_read_with_its_nulls(void **state)
{
    char *text;

    (void)state;
    assert_ok(load("cases/config/G14-hf-config-basics-a.json"));
    assert_true(m.kv_heads == 8 && m.head_dim == 8 && m.heads == 8);
    assert_int_equal(m.defaulted, LOOM_DEFAULTED_KV_HEADS | LOOM_DEFAULTED_HEAD_DIM | LOOM_DEFAULTED_TIED | LOOM_DEFAULTED_SEQ);
    assert_ok(loom_model_describe(&m, &text));
    assert_non_null(strstr(text, "kv_heads 8 (as many as heads), head_dim 8 (hidden / heads)"));
    assert_non_null(strstr(text, "tied_embeddings false (of llama)"));
    loom_text_free(text);

    assert_ok(load("cases/config/G14-hf-config-basics-b.json"));
    assert_true(m.head_dim == 128 && m.head_dim * m.heads == 512 && m.kv_heads == 1 && m.tied_embeddings);
    assert_int_equal(m.unmodelled, LOOM_UNMODELLED_FAMILY); /* model_type "x" */
}

static void references_are_not_text(void **state)
{
    (void)state;
    assert_refused(load("cases/config/G17-interpolation.yaml"), LOOM_E_INVALID, ":7:8:", "references");
}

/* C28: the width of the queries follows head_dim, not the hidden size. */
static void head_dim_is_taken_when_given(void **state)
{
    loom_param_counts counts;

    (void)state;
    assert_ok(load("cases/models/dense-headdim.yaml"));
    assert_true(m.heads * m.head_dim == 3072 && m.kv_heads * m.head_dim == 1024);
    loom_model_count(&m, &counts);
    assert_int_equal(counts.attention_per_layer, 14680064);
    assert_true(counts.total == 2316814080);
    assert_int_equal(m.defaulted, 0);
}

/* C15: parts of a model by stage. */
static void parts_add_up_by_stage(void **state)
{
    static const int64_t layers[4] = {1, 2, 2, 3}, expected[4] = {129664, 131328, 131328, 261056};
    loom_param_counts c;

    (void)state;
    assert_ok(load("cases/models/tiny-8l.yaml"));
    loom_model_count(&m, &c);
    assert_int_equal(c.total, 653376);
    for (int stage = 0; stage < 4; stage++) {
        int64_t sum = layers[stage] * (c.attention_per_layer + c.dense_mlp_per_layer + c.norms_per_layer);
        sum += stage == 0 ? c.embedding : stage == 3 ? c.final_norm + c.head : 0;
        assert_int_equal(sum, expected[stage]);
    }
}

static void every_model_file_of_the_cases_loads(void **state)
{
    static const char *const names[] = {"dense-152k", "dense-20l", "dense-28h", "dense-2kv",  "dense-40h", "dense-61l",
                                        "dense-8b",   "dense-headdim", "moe-128e", "moe-24l", "moe-256e",  "tiny-8l"};
    char path[128];

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "cases/models/%s.yaml", names[i]);
        assert_ok(load(path));
        assert_string_equal(m.name, names[i]);
        assert_true(train.global_batch > 0 && train.micro_batch == 1 && train.precision == LOOM_BF16);
        assert_string_equal(train.optimizer, "adamw");
    }
}

static void what_is_no_model_file_is_said(void **state)
{
    (void)state;
    assert_refused(load("fixtures/ops.json"), LOOM_E_INVALID, "key model is missing");
    assert_refused(load("none.yaml"), LOOM_E_IO, "none.yaml");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponents_are_numbers),
        cmocka_unit_test(unknown_keys_are_all_reported),
        cmocka_unit_test(a_key_twice_is_refused_with_both_lines),
        cmocka_unit_test(bombs_end_early),
        cmocka_unit_test(booleans_have_one_rule),
        cmocka_unit_test(a_tab_is_named),
        cmocka_unit_test(large_and_grouped_numbers_are_read_or_refused_whole),
        cmocka_unit_test(a_config_of_others_is_read_with_its_nulls),
        cmocka_unit_test(references_are_not_text),
        cmocka_unit_test(head_dim_is_taken_when_given),
        cmocka_unit_test(parts_add_up_by_stage),
        cmocka_unit_test(every_model_file_of_the_cases_loads),
        cmocka_unit_test(what_is_no_model_file_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
