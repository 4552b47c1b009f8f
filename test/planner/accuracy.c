/* Predictions against the table of published runs, and against limits that a change for the worse would break. */
#include "check.h"

#include <math.h>

#include <rankloom/planner.h>

static loom_config *scored;

static int score_all(void **state)
{
    char *text = NULL;

    if (loom_plan_score(test_data("reference/measured_runs.csv"), NULL, LOOM_PLAN_AS_JSON, &text) != LOOM_OK ||
        loom_config_parse("score.json", text, strlen(text), &scored) != LOOM_OK) {
        print_error("%s\n", loom_last_error());
        return -1;
    }
    loom_text_free(text);
    return 0;
}

static int forget_all(void **state)
{
    loom_config_free(scored);
    return 0;
}

static double number_of(const loom_node *map, const char *key)
{
    double value = NAN;

    loom_node_as_f64(loom_node_get(map, key), &value);
    return value;
}

static double summary(const char *key)
{
    return number_of(loom_node_get(loom_config_root(scored), "summary"), key);
}

static double choice(const char *where, const char *key)
{
    return number_of(loom_node_get(loom_node_get(loom_config_root(scored), "summary"), where), key);
}

#define assert_at_most(value, limit)                                                                                                       \
    do {                                                                                                                                   \
        double at_most_ = (value);                                                                                                         \
        if (!(at_most_ <= (limit)))                                                                                                        \
            fail_msg("%s is %.4f, more than %.4f", #value, at_most_, (double)(limit));                                                     \
    } while (0)

static void step_times_are_within_a_tenth_on_the_mean_of_sources_and_devices(void **state)
{
    assert_true(summary("predicted") > 950);
    assert_at_most(summary("mean_by_source_and_device"), 0.10);
    assert_at_most(summary("median"), 0.06);
}

static void one_measured_step_brings_them_closer(void **state)
{
    assert_at_most(summary("one_step_mean_by_source_and_device"), 0.07);
    assert_at_most(summary("one_step_median"), 0.042);
}

static void intervals_hold_for_about_four_rows_in_five(void **state)
{
    assert_true(summary("interval_holds") >= 0.75 && summary("interval_holds") <= 0.88);
}

static void the_layout_we_would_pick_is_nearly_the_fastest_that_was_measured(void **state)
{
    assert_at_most(choice("choice_one_node", "mean_regret"), 0.03);
    assert_at_most(choice("choice_several_nodes", "mean_regret"), 0.01);
    assert_true(choice("choice_one_node", "rank_correlation") > 0.8);
    assert_true(choice("choice_several_nodes", "rank_correlation") > 0.8);
}

static void allocated_memory_is_within_one_percent(void **state)
{
    const loom_node *groups = loom_node_get(loom_node_get(loom_config_root(scored), "summary"), "groups");
    bool found = false;

    for (size_t i = 0; i < loom_node_count(groups); i++) {
        const loom_node *group = loom_node_at(groups, i);
        if (strncmp(loom_node_text(loom_node_get(group, "source")), "SimuMax", 7) != 0)
            continue;
        found = true;
        assert_at_most(number_of(group, "memory_mean"), 0.01);
    }
    assert_true(found);
}

/* The five AMP runs that did not finish. */
static void what_did_not_run_is_not_said_to_fit(void **state)
{
    static const char *const failed[] = {"amp-002", "amp-046", "amp-048", "amp-051", "amp-052"};
    const loom_node *rows = loom_node_get(loom_config_root(scored), "rows");
    int seen = 0;

    for (size_t i = 0; i < loom_node_count(rows); i++)
        for (int j = 0; j < 5; j++)
            if (strcmp(loom_node_text(loom_node_get(loom_node_at(rows, i), "id")), failed[j]) == 0) {
                seen++;
                if (strcmp(loom_node_text(loom_node_get(loom_node_at(rows, i), "predicted_fits")), "false") != 0)
                    fail_msg("%s is said to fit", failed[j]);
            }
    assert_int_equal(seen, 5);
}

static void a_table_that_is_wrong_is_refused(void **state)
{
    char *text;
    const char *const unknown[] = {"h100.sustane=1", NULL}, *const nobody[] = {"h1000x.sustained=1", NULL},
                      *const word[] = {"h100.sustained=fast", NULL};

    assert_refused(loom_plan_score("no-such-table.csv", NULL, LOOM_PLAN_AS_TEXT, &text), LOOM_E_IO, "no-such-table.csv");
    assert_refused(loom_plan_score(test_data("reference/measured_runs.csv"), unknown, LOOM_PLAN_AS_TEXT, &text), LOOM_E_INVALID, "sustane");
    assert_refused(loom_plan_score(test_data("reference/measured_runs.csv"), nobody, LOOM_PLAN_AS_TEXT, &text), LOOM_E_INVALID, "h1000x");
    assert_refused(loom_plan_score(test_data("reference/measured_runs.csv"), word, LOOM_PLAN_AS_TEXT, &text), LOOM_E_INVALID, "fast");
}

static void a_constant_can_be_set(void **state)
{
    char *plain, *slower;
    const char *const set[] = {"h100.sustained=0.4", NULL};

    assert_ok(loom_plan_score(test_data("reference/measured_runs.csv"), NULL, LOOM_PLAN_AS_TEXT, &plain));
    assert_ok(loom_plan_score(test_data("reference/measured_runs.csv"), set, LOOM_PLAN_AS_TEXT, &slower));
    assert_string_not_equal(plain, slower);
    loom_text_free(plain);
    loom_text_free(slower);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_times_are_within_a_tenth_on_the_mean_of_sources_and_devices),
        cmocka_unit_test(one_measured_step_brings_them_closer),
        cmocka_unit_test(intervals_hold_for_about_four_rows_in_five),
        cmocka_unit_test(the_layout_we_would_pick_is_nearly_the_fastest_that_was_measured),
        cmocka_unit_test(allocated_memory_is_within_one_percent),
        cmocka_unit_test(what_did_not_run_is_not_said_to_fit),
        cmocka_unit_test(a_table_that_is_wrong_is_refused),
        cmocka_unit_test(a_constant_can_be_set),
    };
    return cmocka_run_group_tests(tests, score_all, forget_all);
}
