/* Predictions against the table of published runs, and against limits that a change for the worse would break. */
#include "check.h"

#include <math.h>
#include <unistd.h>

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
    assert_at_most(summary("mean_by_source_and_device"), 0.09);
    assert_at_most(summary("median"), 0.06);
}

static void one_measured_step_brings_them_closer(void **state)
{
    assert_at_most(summary("one_step_mean_by_source_and_device"), 0.07);
    assert_at_most(summary("one_step_median"), 0.042);
}

static void intervals_hold_for_about_four_rows_in_five(void **state)
{
    assert_true(summary("interval_holds") >= 0.75 && summary("interval_holds") <= 0.9);
    assert_true(summary("one_step_interval_holds") >= 0.75 && summary("one_step_interval_holds") <= 0.9);
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

/* --- words of other tables ------------------------------------------------------------------------------------------------------------ */

typedef struct words {
    const char *gpu, *network, *framework;
    int year;
} words;

/* The predicted step of one row that is described with these words; NaN: it was skipped. */
static double step_of(words w)
{
    char path[] = "/tmp/loom_score_XXXXXX", *text;
    loom_config *config;
    FILE *file = fdopen(mkstemp(path), "w");

    assert_non_null(file);
    fprintf(file, "id,source,model,layers,hidden,heads,ffn_hidden,ffn_mats,vocab,seq_len,gpu,gpus,gpus_per_node,inter_node,framework,year,"
                  "precision_class,tp,pp,vpp,cp,dp,zero_stage,mbs,gbs,recompute_class,seq_par,step_time_s\n");
    fprintf(file, "x-1,test,Some 7B,32,4096,32,11008,3,32000,4096,%s,64,8,%s,%s,%d,bf16,2,2,1,1,16,1,1,256,none,yes,10\n", w.gpu, w.network,
            w.framework, w.year);
    fclose(file);
    assert_ok(loom_plan_score(path, NULL, LOOM_PLAN_AS_JSON, &text));
    remove(path);
    assert_ok(loom_config_parse("row.json", text, strlen(text), &config));
    double seconds = number_of(loom_node_at(loom_node_get(loom_config_root(config), "rows"), 0), "predicted_step_time_s");
    loom_config_free(config);
    loom_text_free(text);
    return seconds;
}

static void a_network_is_read_in_the_words_people_use(void **state)
{
    static const char *const same[] = {
        "400 Gb/s per GPU", "8x400Gb/s IB per node", "3200 Gbps EFA per node", "NDR", "InfiniBand NDR 400Gbit per GPU",
        "8 x 400 Gb/s",     "50 GB/s a GPU",         "3.2 Tb/s per node"};
    double wanted = step_of((words){"H100", same[0], "NeMo 25.04", 2025});

    assert_true(wanted > 0);
    for (size_t i = 1; i < sizeof same / sizeof same[0]; i++)
        if (step_of((words){"H100", same[i], "NeMo 25.04", 2025}) != wanted)
            fail_msg("\"%s\" is not read as 400 Gb/s a device", same[i]);
    assert_true(step_of((words){"H100", "100 GbE per node", "NeMo 25.04", 2025}) > 1.2 * wanted);
}

static void devices_and_software_are_found_by_other_names(void **state)
{
    const char *ib = "8x400Gb/s IB per node";
    double h100 = step_of((words){"H100-SXM5-80GB", ib, "NeMo", 2025});

    assert_true(step_of((words){"NVIDIA H100 80GB HBM3", ib, "NVIDIA NeMo 25.04", 2025}) == h100);
    assert_true(step_of((words){"RTX 4090", ib, "NeMo", 2025}) > 2 * h100); /* from the catalogue alone */
    assert_true(isnan(step_of((words){"no such card", ib, "NeMo", 2025})));
    assert_true(step_of((words){"H100", ib, "PyTorch FSDP", 2025}) > step_of((words){"H100", ib, "NeMo", 2025})); /* eager, unfused */
    /* scores in memory until Megatron-Core */
    assert_true(step_of((words){"A100-SXM4-80GB", ib, "Megatron-LM", 2021}) > step_of((words){"A100-SXM4-80GB", ib, "Megatron-LM", 2024}));
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
        cmocka_unit_test(a_network_is_read_in_the_words_people_use),
        cmocka_unit_test(devices_and_software_are_found_by_other_names),
        cmocka_unit_test(a_table_that_is_wrong_is_refused),
        cmocka_unit_test(a_constant_can_be_set),
    };
    return cmocka_run_group_tests(tests, score_all, forget_all);
}
