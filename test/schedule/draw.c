/* The picture of a schedule: one bar an action, at its place; names are escaped. */
#include <rankloom/schedule.h>

#include "check.h"

static int count(const char *text, const char *word)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

static double unit_cost(void *context, int stage, const loom_action *a)
{
    return a->kind == LOOM_BACKWARD ? 2 : 1;
}

static char *picture(loom_schedule_kind kind, int p, int v, int m, const char *title)
{
    const loom_schedule_costs costs = {.action_us = unit_cost};
    loom_schedule *s;
    loom_timeline line;
    char *text;

    assert_ok(loom_schedule_generate(kind, p, v, m, &s));
    assert_ok(loom_schedule_add_comm(s));
    assert_ok(loom_schedule_simulate(s, &costs, &line));
    assert_ok(loom_schedule_svg(s, &line, title, false, &text));
    loom_timeline_free(&line);
    loom_schedule_free(s);
    return text;
}

static void every_compute_action_has_a_bar_and_every_stage_a_row(void **state)
{
    char *text = picture(LOOM_SCHEDULE_ZB_V, 3, 2, 6, "folded");

    assert_int_equal(count(text, "<rect class=\"k0\" x=\"") - 1, 3 * 2 * 6); /* one is the legend's */
    assert_int_equal(count(text, "<rect class=\"k2\" x=\"") - 1, 3 * 2 * 6);
    assert_int_equal(count(text, "<rect class=\"k3\" x=\"") - 1, 3 * 2 * 6);
    assert_int_equal(count(text, "<rect class=\"k1\""), 0);
    assert_int_equal(count(text, "<rect class=\"idle\""), 3);
    assert_int_equal(count(text, "<path class=\"held\""), 3);
    assert_int_equal(count(text, ">holds 6</text>"), 3);
    loom_text_free(text);
}

static void tooltips_tell_action_and_times(void **state)
{
    char *text = picture(LOOM_SCHEDULE_1F1B, 2, 1, 2, "plain");

    assert_non_null(strstr(text, "<title>F of micro-batch 1, chunk 0, 1 to 2</title>"));
    assert_non_null(strstr(text, "<title>B of micro-batch 0, chunk 1, 2 to 4</title>")); /* F took 1 to 2 */
    assert_non_null(strstr(text, "<title>stage 0 idle 33.3 % of the step</title>"));     /* 3 of 9 */
    loom_text_free(text);
}

static void titles_are_escaped(void **state)
{
    char *text = picture(LOOM_SCHEDULE_1F1B, 1, 1, 1, "<a & \"b\">\n");

    assert_int_equal(count(text, "&lt;a &amp; &quot;b&quot;&gt;?"), 2);
    assert_int_equal(count(text, "<a "), 0);
    loom_text_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_compute_action_has_a_bar_and_every_stage_a_row),
        cmocka_unit_test(tooltips_tell_action_and_times),
        cmocka_unit_test(titles_are_escaped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
