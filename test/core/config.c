/* YAML and JSON become one strict tree; what is refused is refused at its line and column. */
#include "check.h"

#include <rankloom/config.h>

static loom_status parse(const char *source, const char *text)
{
    loom_config *config = NULL;
    loom_status status = loom_config_parse(source, text, strlen(text), &config);

    if (status == LOOM_OK)
        loom_config_free(config);
    else
        assert_null(config);
    return status;
}

static loom_status load(const char *path)
{
    loom_config *config = NULL;
    loom_status status = loom_config_load(test_data(path), &config);

    loom_config_free(config);
    return status;
}

/* The same data in both languages. */
static const char yaml_text[] = "# a comment\n"
                                "model:\n"
                                "  name: \"t\"\n"
                                "  layers: 4   # of them\n"
                                "  empty:\n"
                                "  list: [1, two, [3]]\n"
                                "rate: 1e-5\n";
static const char json_text[] = "{\n"
                                "  \"model\": {\"name\": \"t\", \"layers\": 4, \"empty\": null,\n"
                                "    \"list\": [1, \"two\", [3]]},\n"
                                "  \"rate\": 1e-5\n"
                                "}\n";

static void check_tree(const loom_config *config)
{
    const loom_node *root = loom_config_root(config), *model = loom_node_get(root, "model"), *list = loom_node_get(model, "list");
    int64_t layers = 0;
    double rate = 0;

    assert_int_equal(loom_node_get_kind(root), LOOM_NODE_MAP);
    assert_int_equal(loom_node_count(root), 2);
    assert_string_equal(loom_node_key_at(root, 1), "rate");
    assert_string_equal(loom_node_text(loom_node_get(model, "name")), "t");
    assert_true(loom_node_quoted(loom_node_get(model, "name")));
    assert_true(loom_node_as_i64(loom_node_get(model, "layers"), &layers) && layers == 4);
    assert_true(loom_node_as_f64(loom_node_get(root, "rate"), &rate) && rate == 1e-5);
    assert_int_equal(loom_node_get_kind(loom_node_get(model, "empty")), LOOM_NODE_NULL);
    assert_int_equal(loom_node_get_kind(list), LOOM_NODE_LIST);
    assert_int_equal(loom_node_count(list), 3);
    assert_string_equal(loom_node_text(loom_node_at(list, 1)), "two");
    assert_int_equal(loom_node_count(loom_node_at(list, 2)), 1);
    assert_null(loom_node_at(list, 3));
    assert_null(loom_node_get(root, "none"));
    assert_null(loom_node_get(list, "none"));
}

static void yaml_and_json_give_the_same_tree(void **state)
{
    loom_config *config;

    (void)state;
    assert_ok(loom_config_parse("a.yaml", yaml_text, strlen(yaml_text), &config));
    check_tree(config);
    assert_int_equal(loom_node_line(loom_node_get(loom_config_root(config), "rate")), 7);
    assert_int_equal(loom_node_column(loom_node_get(loom_config_root(config), "rate")), 7);
    loom_config_free(config);
    assert_ok(loom_config_parse("text", json_text, strlen(json_text), &config)); /* begins with '{' */
    check_tree(config);
    assert_int_equal(loom_node_line(loom_node_get(loom_config_root(config), "rate")), 4);
    assert_int_equal(loom_node_column(loom_node_get(loom_config_root(config), "rate")), 11);
    assert_string_equal(loom_config_source(config), "text");
    loom_config_free(config);
    assert_ok(loom_config_parse("a.yaml", json_text, strlen(json_text), &config)); /* YAML 1.2 takes JSON */
    check_tree(config);
    loom_config_free(config);
}

static void an_empty_file_is_nothing(void **state)
{
    loom_config *config;

    (void)state;
    assert_ok(loom_config_parse("a.yaml", "# only a comment\n", 17, &config));
    assert_int_equal(loom_node_get_kind(loom_config_root(config)), LOOM_NODE_NULL);
    loom_config_free(config);
    assert_refused(parse("a.json", ""), LOOM_E_INVALID, "a.json:1:1", "ends");
}

static void a_key_twice_is_refused_with_both_lines(void **state)
{
    (void)state;
    assert_refused(load("cases/config/G03-duplicate-keys-a.yaml"), LOOM_E_INVALID, ":10:3: key seq is given twice, on lines 9 and 10");
    assert_refused(parse("a.json", "{\"a\": 1,\n \"b\": {\"c\": 1, \"c\": 2},\n \"a\": 3}"), LOOM_E_INVALID, "a.json:2:16: key c is given twice, on lines 2 and 2",
                   "a.json:3:2: key a is given twice, on lines 1 and 3");
    assert_refused(parse("x", "a: 1\nb: 1\nc: 1\nd: 1\ne: 1\nf: 1\ng: 1\nh: 1\ni: 1\nj: 1\nk: 1\nd: 2\n"), LOOM_E_INVALID,
                   "x:12:1: key d is given twice, on lines 4 and 12");
}

static void an_explicit_key_overrides_a_merged_one(void **state)
{
    static const char text[] = "base: &base {a: 1, b: 2}\n"
                               "more: &more {b: 3, c: 4}\n"
                               "one: {<<: *base, a: 10}\n"
                               "two:\n"
                               "  <<: [*more, *base]\n"
                               "  d: 5\n"
                               "quoted: {\"<<\": text}\n";
    loom_config *config;

    (void)state;
    assert_ok(loom_config_parse("m.yaml", text, strlen(text), &config));
    const loom_node *one = loom_node_get(loom_config_root(config), "one"), *two = loom_node_get(loom_config_root(config), "two");
    assert_int_equal(loom_node_count(one), 2);
    assert_string_equal(loom_node_text(loom_node_get(one, "a")), "10");
    assert_string_equal(loom_node_text(loom_node_get(one, "b")), "2");
    assert_int_equal(loom_node_count(two), 4);
    assert_string_equal(loom_node_text(loom_node_get(two, "a")), "1");
    assert_string_equal(loom_node_text(loom_node_get(two, "b")), "3"); /* the earlier merge wins */
    assert_string_equal(loom_node_text(loom_node_get(loom_node_get(loom_config_root(config), "quoted"), "<<")), "text");
    loom_config_free(config);
    assert_refused(parse("m.yaml", "a: {<<: 5}"), LOOM_E_INVALID, "m.yaml:1:9", "<< takes a map");
    assert_refused(parse("m.yaml", "a: &a {b: 1}\nc: {<<: *a, <<: *a}"), LOOM_E_INVALID, "m.yaml:2:13", "<< is given twice");
}

/* More keys than are searched one by one: the index must know the merged keys too. */
static void a_large_merge_finds_every_key(void **state)
{
    char text[4096] = "base: &base\n";
    loom_config *config;

    (void)state;
    for (int i = 0; i < 60; i++)
        sprintf(text + strlen(text), "  k%d: %d\n", i, i);
    strcat(text, "all:\n  k7: own\n");
    for (int i = 60; i < 100; i++)
        sprintf(text + strlen(text), "  k%d: %d\n", i, i);
    strcat(text, "  <<: *base\n");
    assert_ok(loom_config_parse("m.yaml", text, strlen(text), &config));
    const loom_node *all = loom_node_get(loom_config_root(config), "all");
    assert_int_equal(loom_node_count(all), 100);
    for (int i = 0; i < 100; i++) {
        char key[8], value[8];
        sprintf(key, "k%d", i);
        sprintf(value, "%d", i);
        assert_string_equal(loom_node_text(loom_node_get(all, key)), i == 7 ? "own" : value);
    }
    loom_config_free(config);
}

static void an_alias_bomb_is_refused_where_it_passes_the_bound(void **state)
{
    (void)state;
    /* a: 10 nodes, b: 91, c: 820, d: 7381, e: 66430; the first e inside f is the one too many */
    assert_refused(load("cases/config/G04-alias-bomb.yaml"), LOOM_E_INVALID, ":6:8: more than 100000 values");
    assert_refused(parse("a", "a: &a [*a]"), LOOM_E_INVALID, "a:1:8", "no end");
    assert_refused(parse("a", "a: *b"), LOOM_E_INVALID, "a:1:4", "*b has no anchor");
}

static void nesting_above_64_is_refused_at_its_65th_level(void **state)
{
    enum { LEVELS = 100000 };
    char *text = malloc(2 * LEVELS + 1), name[8];
    loom_config *config;

    (void)state;
    assert_refused(load("cases/config/G06-deep-nesting-65.yaml"), LOOM_E_INVALID, ":1:65: lists and maps inside one another more than 64 deep");
    for (int i = 0; i < 2; i++) { /* YAML, JSON; libyaml alone would take minutes for this */
        sprintf(name, i ? "a.json" : "a.yaml");
        memset(text, '[', LEVELS);
        memset(text + LEVELS, ']', LEVELS);
        assert_refused(loom_config_parse(name, text, 2 * LEVELS, &config), LOOM_E_INVALID, ":1:65: lists and maps", "64 deep");
        memset(text + 64, ']', 64);
        assert_ok(loom_config_parse(name, text, 128, &config));
        loom_config_free(config);
    }
    free(text);
}

/* The bound is on what a walk meets: 40 levels that an alias stands for, inside n of its own. */
static void levels_behind_an_alias_count(void **state)
{
    enum { BEHIND = 40 };
    char text[256];
    loom_config *config;

    (void)state;
    for (int inside = 23; inside <= 24; inside++) { /* and the map at the top is one level */
        char *at = text + sprintf(text, "a: &a ");
        at += sprintf(at, "%.*s%.*s\nb: ", BEHIND, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", BEHIND, "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]");
        sprintf(at, "%.*s*a%.*s\n", inside, "[[[[[[[[[[[[[[[[[[[[[[[[", inside, "]]]]]]]]]]]]]]]]]]]]]]]]");
        loom_status status = loom_config_parse("f", text, strlen(text), &config);
        if (inside == 24) {
            assert_refused(status, LOOM_E_INVALID, "f:2:28: lists and maps", "64 deep");
        } else {
            assert_ok(status);
            loom_config_free(config);
        }
    }
}

static void a_tab_as_indentation_is_named(void **state)
{
    (void)state;
    assert_refused(load("cases/config/G11-tabs.yaml"), LOOM_E_INVALID, ":3:1: a tab in the indentation");
    assert_refused(parse("a", "a:\n  b: 1\n  \tc: 2\n"), LOOM_E_INVALID, "a:3:3: a tab in the indentation");
    assert_refused(parse("a", "a:\n\tb: 1\n"), LOOM_E_INVALID, "a:2:1: a tab in the indentation");
    assert_refused(parse("a", "a:\n\t- b\n"), LOOM_E_INVALID, "a:2:1: a tab in the indentation");
    assert_refused(parse("a", "\ta: 1\n"), LOOM_E_INVALID, "a:1:1: a tab in the indentation");
    assert_ok(parse("a", "a: 1\t# a comment\nb: \"x\ty\"\nc:\t5\n"));
}

static void references_of_other_tools_are_refused(void **state)
{
    (void)state;
    assert_refused(load("cases/config/G17-interpolation.yaml"), LOOM_E_INVALID, ":7:8: ${multiply:4, ${.hidden}}", "not resolved");
    assert_refused(parse("a", "a: ${oc.env:X}\nb: \"x${y}\"\n"), LOOM_E_INVALID, "a:1:4", "a:2:4");
    assert_refused(parse("a", "a: [1, ${b}]\n"), LOOM_E_INVALID, "a:1:", "not resolved");
    assert_refused(parse("a.json", "{\"a\": \"${b}\"}"), LOOM_E_INVALID, "a.json:1:7", "not resolved");
}

static void other_oddities_of_yaml_are_refused(void **state)
{
    (void)state;
    assert_refused(parse("a", "a: 1\n---\nb: 2\n"), LOOM_E_INVALID, "a:2:1", "second document");
    assert_refused(parse("a", "a: !!python/object:os.system x\n"), LOOM_E_INVALID, "a:1:4", "tag");
    assert_refused(parse("a", "? [a]\n: 1\n"), LOOM_E_INVALID, "a:1:3", "as a key");
    assert_refused(parse("a", "\"\": 1\n"), LOOM_E_INVALID, "a:1:1", "key without a name");
    assert_refused(parse("a", "a: \"x\\0y\"\n"), LOOM_E_INVALID, "a:1:4", "zero byte");
    assert_refused(parse("a", "a: [1, 2\n"), LOOM_E_INVALID, "a:2:1");
    assert_refused(parse("a", "a: 'x\n"), LOOM_E_INVALID, "a:2:1", "line 1");
    assert_refused(parse("a", "a: \xff\n"), LOOM_E_INVALID, "UTF-8");
    assert_refused(load("cases/config"), LOOM_E_INVALID, "directory");
    assert_refused(load("cases/config/none.yaml"), LOOM_E_IO, "none.yaml");
}

static void json_is_read_strictly(void **state)
{
    static const struct {
        const char *text, *place;
    } bad[] = {
        {"{\"a\": 1,}", "a.json:1:9"},
        {"[1, 2,]", "a.json:1:7"},
        {"{\"a\" 1}", "a.json:1:6"},
        {"{a: 1}", "a.json:1:2"},
        {"{'a': 1}", "a.json:1:2"},
        {"[1 2]", "a.json:1:4"},
        {"[01]", "a.json:1:2"},
        {"[+1]", "a.json:1:2"},
        {"[.5]", "a.json:1:2"},
        {"[5.]", "a.json:1:2"},
        {"[1e]", "a.json:1:2"},
        {"[NaN]", "a.json:1:2"},
        {"[True]", "a.json:1:2"},
        {"[nul]", "a.json:1:2"},
        {"// no\n[1]", "a.json:1:1"},
        {"[\"a\nb\"]", "a.json:1:3"},
        {"[\"a\\x\"]", "a.json:1:"},
        {"[\"\\u12g4\"]", "a.json:1:"},
        {"[\"\\ud800\"]", "a.json:1:"},
        {"[\"\\ud800\\u0041\"]", "a.json:1:"},
        {"[\"\\udc00\"]", "a.json:1:"},
        {"[\"\\u0000\"]", "a.json:1:"},
        {"[\"\x01\"]", "a.json:1:3"},
        {"[\"\xc0\xaf\"]", "a.json:1:3"},
        {"[1]\n[2]", "a.json:2:1"},
        {"[1", "a.json:1:3"},
        {"{\"a\": ", "a.json:1:7"},
        {"\"abc", "a.json:1:2"},
        {"[\n\n  \"\xc3\xa4\xc3\xb6\", x]", "a.json:3:9"}, /* columns are characters */
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse("a.json", bad[i].text) != LOOM_E_INVALID)
            fail_msg("%s was not refused", bad[i].text);
        assert_in_message(bad[i].place);
    }
}

static void json_texts_are_unescaped(void **state)
{
    static const char text[] = "\xef\xbb\xbf[\"a\\\"b\\\\c\\/\\b\\f\\n\\r\\t\\u00e4\\u20AC\\ud83d\\ude00\", -0, 1.5E+3, true, false, null]";
    loom_config *config;

    (void)state;
    assert_ok(loom_config_parse("a.json", text, strlen(text), &config));
    const loom_node *root = loom_config_root(config);
    assert_string_equal(loom_node_text(loom_node_at(root, 0)), "a\"b\\c/\b\f\n\r\t\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
    assert_string_equal(loom_node_text(loom_node_at(root, 2)), "1.5E+3");
    assert_string_equal(loom_node_text(loom_node_at(root, 3)), "true");
    assert_false(loom_node_quoted(loom_node_at(root, 3)));
    assert_int_equal(loom_node_get_kind(loom_node_at(root, 5)), LOOM_NODE_NULL);
    loom_config_free(config);
}

static void a_file_with_too_many_values_is_refused(void **state)
{
    enum { VALUES = 100001 };
    char *text = malloc(2 * VALUES + 3);
    loom_config *config;

    (void)state;
    text[0] = '[';
    for (int i = 0; i < VALUES; i++)
        memcpy(text + 1 + 2 * i, "1,", 2);
    text[2 * VALUES] = ']';
    assert_refused(loom_config_parse("a.json", text, 2 * VALUES + 1, &config), LOOM_E_INVALID, "more than 100000 values");
    assert_refused(loom_config_parse("a.yaml", text, 2 * VALUES + 1, &config), LOOM_E_INVALID, "more than 100000 values");
    free(text);
}

static void a_file_with_many_problems_lists_them_and_counts_the_rest(void **state)
{
    char text[8192] = "";

    (void)state;
    for (int i = 0; i < 150; i++)
        sprintf(text + strlen(text), "- {a: 1, a: 2}\n");
    assert_refused(parse("a", text), LOOM_E_INVALID, "a:1:10: key a", "a:100:10: key a", "and 50 more");
    assert_null(strstr(loom_last_error(), "a:101:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_and_json_give_the_same_tree),
        cmocka_unit_test(an_empty_file_is_nothing),
        cmocka_unit_test(a_key_twice_is_refused_with_both_lines),
        cmocka_unit_test(an_explicit_key_overrides_a_merged_one),
        cmocka_unit_test(a_large_merge_finds_every_key),
        cmocka_unit_test(an_alias_bomb_is_refused_where_it_passes_the_bound),
        cmocka_unit_test(nesting_above_64_is_refused_at_its_65th_level),
        cmocka_unit_test(levels_behind_an_alias_count),
        cmocka_unit_test(a_tab_as_indentation_is_named),
        cmocka_unit_test(references_of_other_tools_are_refused),
        cmocka_unit_test(other_oddities_of_yaml_are_refused),
        cmocka_unit_test(json_is_read_strictly),
        cmocka_unit_test(json_texts_are_unescaped),
        cmocka_unit_test(a_file_with_too_many_values_is_refused),
        cmocka_unit_test(a_file_with_many_problems_lists_them_and_counts_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
