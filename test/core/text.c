/* The growing string and what it writes for JSON. */
#include "check.h"
#include "core/text.h"

#include <locale.h>
#include <math.h>

static void assert_json(const char *value, const char *expected)
{
    loom_text text = {0};
    char *written;

    loom_text_add_json(&text, value);
    assert_ok(loom_text_take(&text, &written));
    assert_string_equal(written, expected);
    loom_text_free(written);
}

static void grows_over_many_additions(void **state)
{
    loom_text text = {0};
    char *written;

    (void)state;
    for (int i = 0; i < 5000; i++)
        loom_text_add(&text, "%d,", i);
    assert_ok(loom_text_take(&text, &written));
    assert_int_equal(strlen(written), 10 * 2 + 90 * 3 + 900 * 4 + 4000 * 5);
    assert_memory_equal(written, "0,1,2,3,", 8);
    assert_string_equal(written + strlen(written) - 10, "4998,4999,");
    assert_int_equal(text.length, 0);
    loom_text_free(written);
}

static void an_empty_text_is_a_text(void **state)
{
    loom_text text = {0};
    char *written;

    (void)state;
    assert_string_equal(loom_text_so_far(&text), "");
    assert_ok(loom_text_take(&text, &written));
    assert_string_equal(written, "");
    loom_text_free(written);
    loom_text_free(NULL);
}

static void json_strings_are_escaped(void **state)
{
    (void)state;
    assert_json("a \"b\" \\c/\n\t\x01\x7f", "\"a \\\"b\\\" \\\\c/\\n\\t\\u0001\\u007f\"");
    assert_json("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\"");
    assert_json(NULL, "null");
}

static void bytes_that_are_no_utf8_become_the_replacement_character(void **state)
{
    (void)state;
    assert_json("a\xff"
                "b",
                "\"a\xef\xbf\xbd"
                "b\"");
    assert_json("\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\"");                 /* overlong */
    assert_json("\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""); /* a surrogate */
    assert_json("\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\"");                 /* cut off */
}

static void numbers_are_the_shortest_that_read_back(void **state)
{
    static const double values[] = {0.1, 1.0 / 3, 1e-5, 1e300, 5e-324, 123456789012345678.0, -0.0, 2.5};
    loom_text text = {0};

    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        loom_text_add_number(&text, values[i]);
        assert_true(strtod(loom_text_so_far(&text), NULL) == values[i]);
        loom_text_drop(&text);
    }
    loom_text_add_number(&text, 0.1);
    loom_text_add_number(&text, NAN);
    assert_string_equal(loom_text_so_far(&text), "0.1null");
    loom_text_drop(&text);
}

static void numbers_have_a_point_in_every_locale(void **state)
{
    static const char *const with_comma[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    loom_text text = {0};
    bool found = false;

    (void)state;
    for (size_t i = 0; i < sizeof with_comma / sizeof with_comma[0] && !found; i++)
        found = setlocale(LC_NUMERIC, with_comma[i]) != NULL;
    if (!found)
        skip(); /* this machine has no such locale */
    loom_text_add_number(&text, 2.5);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(loom_text_so_far(&text), "2.5");
    loom_text_drop(&text);
}

static void long_lines_break_at_spaces_and_hang(void **state)
{
    loom_text text = {0};

    (void)state;
    loom_text_add_wrapped(&text, "  head  one two three four\n\nshort\na-word-that-is-wider-than-the-line then more\n", 16, 4);
    assert_string_equal(loom_text_so_far(&text),
                        "  head  one two\n    three four\n\nshort\na-word-that-is-wider-than-the-line\n    then more\n");
    loom_text_drop(&text);
    loom_text_add_wrapped(&text, "\xc3\xa4\xc3\xb6\xc3\xbc \xc3\x9f\xe2\x82\xac end", 6, 2); /* characters count, not bytes */
    assert_string_equal(loom_text_so_far(&text), "\xc3\xa4\xc3\xb6\xc3\xbc \xc3\x9f\xe2\x82\xac\n  end");
    loom_text_drop(&text);
}

static void a_whole_text_is_handed_out_wrapped(void **state)
{
    loom_text text = {0};
    char *written;

    (void)state;
    loom_text_add(&text, "one two three\n");
    assert_ok(loom_text_take_wrapped(&text, 8, 2, &written));
    assert_string_equal(written, "one two\n  three\n");
    assert_string_equal(loom_text_so_far(&text), ""); /* empty and usable again */
    loom_text_free(written);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_lines_break_at_spaces_and_hang),
        cmocka_unit_test(a_whole_text_is_handed_out_wrapped),
        cmocka_unit_test(grows_over_many_additions),
        cmocka_unit_test(an_empty_text_is_a_text),
        cmocka_unit_test(json_strings_are_escaped),
        cmocka_unit_test(bytes_that_are_no_utf8_become_the_replacement_character),
        cmocka_unit_test(numbers_are_the_shortest_that_read_back),
        cmocka_unit_test(numbers_have_a_point_in_every_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
