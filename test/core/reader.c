/* Typed reading: one rule for all fields, all problems at once, no key ignored. */
#include "check.h"

#include <rankloom/config.h>

#include <math.h>

static loom_config *config;
static loom_reader *reader;

static const loom_node *open_text(const char *text)
{
    assert_ok(loom_config_parse("f", text, strlen(text), &config));
    assert_ok(loom_reader_open(config, &reader));
    return loom_config_root(config);
}

static loom_status finish(void)
{
    loom_status status = loom_reader_finish(reader);

    loom_config_free(config);
    return status;
}

static void fields_are_read_by_their_type(void **state)
{
    static const char *const words[] = {"adam", "sgd", NULL};
    const loom_node *root = open_text("i: 1e3\nr: 5.e-3\nt: 42\nq: \"yes\"\nb: True\nw: sgd\nl: [1, 2_0, 3.0]\nf: [1, 2.5]\nm: {k: -7}\n");
    int64_t i = 0, list[4];
    double r = 0, reals[2];
    int k = 0, word = -1;
    bool b = false;
    const char *t = NULL, *q = NULL;
    size_t n = 0;

    (void)state;
    assert_true(loom_read_i64(reader, root, "i", 1, INT64_MAX, &i) && i == 1000);
    assert_true(loom_read_f64(reader, root, "r", 0, 1, &r) && r == 0.005);
    assert_true(loom_read_text(reader, root, "t", &t) && !strcmp(t, "42"));
    assert_true(loom_read_text(reader, root, "q", &q) && !strcmp(q, "yes"));
    assert_true(loom_read_bool(reader, root, "b", &b) && b);
    assert_true(loom_read_choice(reader, root, "w", words, &word) && word == 1);
    assert_true(loom_read_i64_list(reader, root, "l", 0, 100, 4, list, &n) && n == 3 && list[1] == 20 && list[2] == 3);
    assert_true(loom_read_f64_list(reader, root, "f", 0, 100, 2, reals, &n) && n == 2 && reals[1] == 2.5);
    assert_true(loom_read_int(reader, loom_read_map(reader, root, "m"), "k", -10, 10, &k) && k == -7);
    assert_int_equal(loom_reader_problems(reader), 0);
    assert_ok(finish());
}

static void absent_and_null_leave_the_default(void **state)
{
    const loom_node *root = open_text("a: null\nb: ~\nc:\n");
    int64_t value = 5;
    bool flag = true;

    (void)state;
    assert_false(loom_read_i64(reader, root, "a", 0, 1, &value));
    assert_false(loom_read_bool(reader, root, "b", &flag));
    assert_null(loom_read_map(reader, root, "c"));
    assert_false(loom_read_i64(reader, loom_read_map(reader, root, "none"), "x", 0, 1, &value));
    assert_false(loom_read_i64(reader, NULL, "x", 0, 1, &value));
    assert_true(value == 5 && flag);
    assert_ok(finish());
}

static void every_wrong_field_is_reported_with_its_line(void **state)
{
    static const char *const words[] = {"softmax", "sigmoid", NULL};
    const loom_node *root = open_text("model:\n  a: 4k\n  b: 4096.5\n  c: \"4096\"\n  d: [1]\n  e: \"no\"\n  f: nope\n  g: 0\n  h: softmx\n"
                                      "  i: 1,000\n  j: .nan\n  k: {x: 1}\n  l: [1, b, 3]\n  m: 5\n  n: [1, 2, 3]\n  o: yes\n  p: 0x10\n");
    const loom_node *model = loom_read_map(reader, root, "model");
    int64_t value = 9, values[3];
    int word = -1;
    double real = 9;
    bool flag;
    const char *text;
    size_t count = 0;

    (void)state;
    for (const char *key = "abcdi"; *key; key++) {
        char name[2] = {*key, 0};
        assert_false(loom_read_i64(reader, model, name, 0, 1000000, &value));
    }
    assert_false(loom_read_i64(reader, model, "g", 1, INT64_MAX, &value));
    assert_false(loom_read_i64(reader, model, "p", 1, INT64_MAX, &value));
    assert_false(loom_read_bool(reader, model, "e", &flag));
    assert_false(loom_read_bool(reader, model, "f", &flag));
    assert_false(loom_read_bool(reader, model, "o", &flag));
    assert_false(loom_read_choice(reader, model, "h", words, &word));
    assert_false(loom_read_f64(reader, model, "j", -INFINITY, INFINITY, &real));
    assert_false(loom_read_text(reader, model, "k", &text));
    assert_false(loom_read_i64_list(reader, model, "l", 0, 9, 3, values, &count));
    assert_null(loom_read_list(reader, model, "m"));
    assert_false(loom_read_i64_list(reader, model, "n", 0, 9, 2, values, &count));
    assert_true(value == 9 && real == 9 && word == -1 && count == 0);
    assert_int_equal(loom_reader_problems(reader), 16);
    assert_refused(finish(), LOOM_E_INVALID, "f:2:6: model.a must be a whole number, and is 4k; write the number in full", "f:3:6: model.b must be a whole number, and is 4096.5",
                   "f:4:6: model.c must be a whole number, and is the quoted text \"4096\"; leave the quotes away", "f:5:6: model.d must be a whole number, and is a list",
                   "f:6:6: model.e must be true or false, and is the quoted text \"no\"", "f:7:6: model.f must be true or false, and is nope",
                   "f:8:6: model.g must be at least 1, and is 0", "f:9:6: model.h must be softmax or sigmoid, and is softmx; did you mean softmax?",
                   "f:10:6: model.i must be a whole number, and is 1,000; write 1000 or 1_000", "f:11:6: model.j", "f:12:6: model.k must be a text",
                   "f:13:10: model.l must be a whole number, and is b", "f:14:6: model.m must be a list", "f:15:6: model.n must be a list of at most 2",
                   "f:16:6: model.o must be true or false, and is yes", "f:17:6: model.p must be a whole number, and is 0x10");
}

static void unknown_keys_are_refused_with_what_was_meant(void **state)
{
    const loom_node *root = open_text("model:\n  kvheads: 4\n  x-note: free\n  experts: {topk: 2}\ntrain: {global-batch: 16}\nheads: 8\nwhat: {a: {b: c}}\n");
    const loom_node *model = loom_read_map(reader, root, "model"), *experts = loom_read_map(reader, model, "experts");
    const loom_node *train = loom_read_map(reader, root, "train");
    int64_t value = 0;

    (void)state;
    loom_read_i64(reader, model, "kv_heads", 1, 9, &value);
    loom_read_i64(reader, model, "heads", 1, 9, &value);
    loom_read_i64(reader, experts, "top_k", 1, 9, &value);
    loom_read_i64(reader, train, "global_batch", 1, 99, &value);
    assert_refused(finish(), LOOM_E_INVALID, "f:2:3: unknown key model.kvheads; did you mean model.kv_heads?",
                   "f:4:13: unknown key model.experts.topk; did you mean model.experts.top_k?", "f:5:9: unknown key train.global-batch; did you mean train.global_batch?",
                   "f:6:1: unknown key heads; did you mean model.heads?", "f:7:1: unknown key what");
    assert_null(strstr(loom_last_error(), "x-note"));
    assert_null(strstr(loom_last_error(), "a.b")); /* below an unknown key nothing is said */
}

static void a_map_of_others_may_hold_unknown_keys(void **state)
{
    const loom_node *root = open_text("a: 1\nb: 2\nours: {c: 1}\n");
    int64_t value;

    (void)state;
    loom_reader_allow_unknown(reader, root);
    loom_read_i64(reader, root, "a", 0, 9, &value);
    loom_read_map(reader, root, "ours");
    assert_refused(finish(), LOOM_E_INVALID, "f:3:8: unknown key ours.c");
    assert_null(strstr(loom_last_error(), "key b"));
}

static void maps_in_lists_are_checked_too(void **state)
{
    const loom_node *root = open_text("nodes:\n- {gpus: 2}\n- {gpu: 3}\n");
    const loom_node *nodes = loom_read_list(reader, root, "nodes");
    int64_t value;

    (void)state;
    for (size_t i = 0; i < loom_node_count(nodes); i++)
        loom_read_i64(reader, loom_node_at(nodes, i), "gpus", 0, 9, &value);
    assert_refused(finish(), LOOM_E_INVALID, "f:3:4: unknown key nodes[1].gpu; did you mean nodes[1].gpus?");
}

static void missing_keys_are_named_at_their_map(void **state)
{
    const loom_node *root = open_text("model:\n  a: 1\n  c:\n");
    const loom_node *model = loom_read_map(reader, root, "model");
    int64_t value;

    (void)state;
    loom_require(reader, model, "a");
    loom_require(reader, model, "b");
    loom_require(reader, model, "c");
    loom_require(reader, root, "train");
    loom_require(reader, NULL, "nothing");
    loom_read_i64(reader, model, "a", 0, 9, &value);
    assert_refused(finish(), LOOM_E_INVALID, "f:2:3: key model.b is missing", "key model.c has no value", "f:1:1: key train is missing");
}

static void a_file_that_is_no_map_is_said_once(void **state)
{
    const loom_node *root = open_text("[1, 2]");
    int64_t value;

    (void)state;
    loom_read_i64(reader, root, "a", 0, 9, &value);
    loom_read_i64(reader, root, "b", 0, 9, &value);
    assert_int_equal(loom_reader_problems(reader), 1);
    assert_refused(finish(), LOOM_E_INVALID, "f:1:1: the file must be a map of keys, and is a list");
}

static void overrides_set_replace_and_create(void **state)
{
    static const char text[] = "base: &b {lr: 1, clip: 2}\ntrain: *b\nlayout: {tp: 2}\n";
    int64_t value = 0;
    double real = 0;
    const char *word = NULL;

    (void)state;
    assert_ok(loom_config_parse("f", text, strlen(text), &config));
    assert_ok(loom_config_override(config, "train.lr=3e-3"));
    assert_ok(loom_config_override(config, "layout=auto"));
    assert_ok(loom_config_override(config, "output.metrics.file=a=b.jsonl"));
    assert_ok(loom_config_override(config, "list=[1, 2]"));
    assert_ok(loom_reader_open(config, &reader));
    const loom_node *root = loom_config_root(config), *train = loom_read_map(reader, root, "train"), *base = loom_read_map(reader, root, "base");
    assert_true(loom_read_f64(reader, train, "lr", 0, 1, &real) && real == 3e-3);
    assert_true(loom_read_i64(reader, train, "clip", 0, 9, &value) && value == 2);
    assert_true(loom_read_i64(reader, base, "lr", 0, 9, &value) && value == 1); /* what shared it by an alias is unchanged */
    loom_read_i64(reader, base, "clip", 0, 9, &value);
    assert_true(loom_read_text(reader, root, "layout", &word) && !strcmp(word, "auto"));
    const loom_node *output = loom_read_map(reader, root, "output"), *metrics = loom_read_map(reader, output, "metrics");
    assert_true(loom_read_text(reader, metrics, "file", &word) && !strcmp(word, "a=b.jsonl"));
    assert_int_equal(loom_node_count(loom_read_list(reader, root, "list")), 2);
    assert_ok(finish());
}

static void wrong_overrides_are_named(void **state)
{
    static const char *const bad[] = {"lr", "=3", ".a=1", "a.=1", "a..b=1", ""};
    int64_t value;

    (void)state;
    assert_ok(loom_config_parse("f", "train: {lr: 1}\n", 15, &config));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(loom_config_override(config, bad[i]), LOOM_E_INVALID, "train.lr=3e-3");
    assert_refused(loom_config_override(config, "train.lr.x=1"), LOOM_E_INVALID, "train.lr.x=1: train.lr is 1, so nothing can be set inside it");
    assert_refused(loom_config_override(config, "train.lr=[1"), LOOM_E_INVALID, "train.lr=[1: ");
    char deep[2 * 65 + 8] = "a"; /* 64 maps are the most: 62 and a list of one list fit */
    for (int key = 1; key < 62; key++)
        strcat(deep, ".a");
    strcat(deep, "=[[]]");
    assert_ok(loom_config_override(config, deep));
    strcpy(strchr(deep, '='), "=[[[]]]");
    assert_refused(loom_config_override(config, deep), LOOM_E_INVALID, "[[[]]]: lists and maps", "64 deep");
    assert_ok(loom_config_override(config, "train.lr=4k"));
    assert_ok(loom_config_override(config, "train.lrr=4"));
    assert_ok(loom_reader_open(config, &reader));
    loom_read_i64(reader, loom_read_map(reader, loom_config_root(config), "train"), "lr", 0, 9, &value);
    assert_refused(finish(), LOOM_E_INVALID, "train.lr=4k: train.lr must be a whole number", "train.lrr=4: unknown key train.lrr; did you mean train.lr?");
}

static void nearest_names_are_near(void **state)
{
    static const char *const names[] = {"layers", "hidden", "heads", "kv_heads", NULL};

    (void)state;
    assert_string_equal(loom_nearest_name("kvheads", names), "kv_heads");
    assert_string_equal(loom_nearest_name("KV-Heads", names), "kv_heads");
    assert_string_equal(loom_nearest_name("haeds", names), "heads");
    assert_string_equal(loom_nearest_name("layer", names), "layers");
    assert_null(loom_nearest_name("optimizer", names));
    assert_null(loom_nearest_name("zz", names));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_read_by_their_type),
        cmocka_unit_test(absent_and_null_leave_the_default),
        cmocka_unit_test(every_wrong_field_is_reported_with_its_line),
        cmocka_unit_test(unknown_keys_are_refused_with_what_was_meant),
        cmocka_unit_test(a_map_of_others_may_hold_unknown_keys),
        cmocka_unit_test(maps_in_lists_are_checked_too),
        cmocka_unit_test(missing_keys_are_named_at_their_map),
        cmocka_unit_test(a_file_that_is_no_map_is_said_once),
        cmocka_unit_test(overrides_set_replace_and_create),
        cmocka_unit_test(wrong_overrides_are_named),
        cmocka_unit_test(nearest_names_are_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
