/* What comes beside and after the plan, as commands: rankloom simulate and what its options refuse; answers of verify, calc and collective
 * as JSON. */
#include "cli/rankloom.h"

#include <rankloom/config.h>

static const char model[] = "model: {name: small, layers: 8, hidden: 1024, heads: 8, ffn: 4096, vocab: 1000, seq: 1024}\n"
                            "train: {global_batch: 64, precision: bf16}\n";
static const char cluster[] = "cluster: {nodes: 2, gpus_per_node: 8, gpu: h100-80g, nvlink_domain: 8, nic_gbps_per_gpu: 400}\n";

/* rankloom simulate on both files. */
static int simulate(const char *options)
{
    char path[256];

    snprintf(path, sizeof path, "%s", rankloom_file("model.yaml", model));
    return rankloom("simulate tp=2,dp=8 -m %s -t %s %s", path, rankloom_file("cluster.yaml", cluster), options);
}

static int remove_files(void **state)
{
    unlink(rankloom_file("model.yaml", NULL));
    unlink(rankloom_file("cluster.yaml", NULL));
    return 0;
}

/* What was said, as JSON; the caller frees it. */
static loom_config *said_as_json(void)
{
    loom_config *json;

    assert_ok(loom_config_parse("said.json", rankloom_said, strlen(rankloom_said), &json));
    return json;
}

static double number_at(const loom_node *map, const char *name)
{
    double value;

    assert_true(loom_node_as_f64(loom_node_get(map, name), &value));
    return value;
}

static void simulate_plays_a_run_with_failures(void **state)
{
    assert_int_equal(simulate("--fail rank=3,at=2h --fail node=1,at=180min --detect 20s --restart 5min --checkpoint 10s --interval 1h "
                              "--spares 0 --repair 30min"),
                     0);
    assert_said("a run of 24 h: ");
    assert_said("at 2 h rank 3 (node 0) fails");
    assert_said("at 3 h rank 8 (node 1) fails");
    assert_said("no spare for 29.67 min"); /* 30 minutes of repair less 20 s */
    assert_said("0 spare nodes; at most 1 away at a time");
}

static void simulate_says_the_run_as_json(void **state)
{
    assert_int_equal(simulate("--failures --record bloom --period 5d --slow rank=5,factor=1.5 --format json"), 0);
    loom_config *json = said_as_json();
    const loom_node *root = loom_config_root(json), *run = loom_node_get(root, "run");
    assert_true(number_at(run, "seconds") == 5 * 86400);
    assert_true(number_at(run, "mtbf_s") == 384.0 * 7 * 24 / 16 * 3600);
    assert_true(number_at(run, "step_s") == number_at(root, "step_s"));
    assert_true(number_at(loom_node_get(root, "slowdown"), "passes_s") > 0);
    loom_config_free(json);
}

static void simulate_says_why_a_slow_rank_costs_what_it_costs(void **state)
{
    assert_int_equal(simulate("--slow rank=5,factor=1.5"), 0);
    assert_said("% less throughput");
    assert_said("injected: rank 5 (tp 1 cp 0 dp 2 pp 0) computes 1.5 times as long");
    assert_said("why: on stage 0, which computes during ");
}

static void simulate_refuses_runs_that_cannot_be(void **state)
{
    static const char *const cases[][2] = {
        {"--fail rank=3", "is written rank=137,at=3h or node=17,at=3h"},
        {"--fail rank=3,at=soon", "soon is no time"},
        {"--fail node=2,at=3h", "there is no such node"},
        {"--fail rank=16,at=3h", "ranks are 0 to 15"},
        {"--fail rank=3,at=25h", "when the run is over"},
        {"--restart 5min", "no run that could have any"},
        {"--failures --record llama3 --device-hours 5", "one of them does"},
        {"--steps 5 --period 1h", "both end the run"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(simulate(cases[i][0]), 2);
        assert_said(cases[i][1]);
    }
}

static void verify_says_the_proof_as_json(void **state)
{
    assert_int_equal(
        rankloom("verify %s --format json", rankloom_file("layout.yaml", "{tp: 2, pp: 4, dp: 1, global_batch: 8, schedule: 1f1b}")), 0);
    loom_config *json = said_as_json();
    const loom_node *root = loom_config_root(json), *peak = loom_node_get(root, "peak_in_flight");
    assert_true(number_at(root, "schema") == 1 && number_at(root, "stages") == 4 && number_at(root, "micro_batches") == 8);
    assert_string_equal(loom_node_text(loom_node_get(root, "proved")), "true");
    assert_string_equal(loom_node_text(loom_node_get(root, "layout")), "tp2 pp4 dp1 1f1b mb1");
    assert_int_equal(loom_node_count(peak), 4);
    for (size_t stage = 0; stage < 4; stage++) { /* 1F1B: stage i keeps 4 - i micro-batches */
        double held;
        assert_true(loom_node_as_f64(loom_node_at(peak, stage), &held) && held == 4 - (double)stage);
    }
    loom_config_free(json);
    unlink(rankloom_file("layout.yaml", NULL));
}

/* Standard output alone: the message for people goes to standard error. */
static void verify_says_the_cycle_as_json(void **state)
{
    assert_int_equal(
        rankloom("verify %s --format json 2>/dev/null; exit", rankloom_file("order.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")), 2);
    loom_config *json = said_as_json();
    const loom_node *root = loom_config_root(json);
    assert_string_equal(loom_node_text(loom_node_get(root, "proved")), "false");
    assert_non_null(strstr(loom_node_text(loom_node_get(root, "reason")), "stage 0 waits in B of micro-batch 0, chunk 0 for stage 1"));
    loom_config_free(json);
    assert_int_equal(rankloom("verify %s --buffers 3 --format json", rankloom_file("order.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")), 0);
    json = said_as_json();
    assert_true(number_at(loom_config_root(json), "buffers") == 3 && number_at(loom_config_root(json), "least_buffers") == 1);
    loom_config_free(json);
    unlink(rankloom_file("order.csv", NULL));
}

static void calc_says_its_answers_as_json(void **state)
{
    static const struct {
        const char *arguments, *member;
        double value;
    } cases[] = {
        {"time --tokens 8.64e10 --tokens-per-s 1e6 -n 4 --price 2", "days", 1},
        {"time --tokens 8.64e10 --tokens-per-s 1e6 -n 4 --price 2", "cost", 4 * 24 * 2},
        {"tokens --flop 1e20 --device H100", "seq", 1024},
        {"memory -n 8", "devices", 8},
        {"mfu --tokens-per-s 1e6 --device H100", "devices", 1},
    };
    char path[256];

    snprintf(path, sizeof path, "%s", rankloom_file("model.yaml", model));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(rankloom("calc %s -m %s --format json", cases[i].arguments, path), 0);
        loom_config *json = said_as_json();
        const loom_node *root = loom_config_root(json);
        assert_true(number_at(root, "schema") == 1);
        assert_true(number_at(root, cases[i].member) == cases[i].value);
        assert_true(loom_node_count(loom_node_get(root, "lines")) >= 2);
        loom_config_free(json);
    }
    assert_int_equal(rankloom("calc memory -n 8 -m %s --format json", path), 0); /* 18 bytes of a parameter, over 8 devices */
    loom_config *json = said_as_json();
    double zero3, parameters = number_at(loom_config_root(json), "parameters");
    assert_true(loom_node_as_f64(loom_node_at(loom_node_get(loom_config_root(json), "state_bytes_by_zero"), 3), &zero3) &&
                zero3 == parameters * 18 / 8);
    loom_config_free(json);
}

static void predict_and_plan_number_their_schema(void **state)
{
    char path[256];

    snprintf(path, sizeof path, "%s", rankloom_file("model.yaml", model));
    assert_int_equal(rankloom("predict %s -t %s --layout tp=2,dp=8 --format json", path, rankloom_file("cluster.yaml", cluster)), 0);
    loom_config *json = said_as_json();
    assert_true(number_at(loom_config_root(json), "schema") == 1 && number_at(loom_config_root(json), "dp") == 8);
    loom_config_free(json);
    assert_int_equal(rankloom("plan %s -t %s --format json", path, rankloom_file("cluster.yaml", NULL)), 0);
    json = said_as_json();
    assert_true(number_at(loom_config_root(json), "schema") == 1);
    assert_null(loom_node_get(loom_node_at(loom_node_get(loom_config_root(json), "layouts"), 0), "schema")); /* of the object, once */
    loom_config_free(json);
}

static void collective_says_its_answer_as_json(void **state)
{
    assert_int_equal(rankloom("collective all_reduce --bytes 16GB -n 8 --bandwidth 400GB/s --format json"), 0);
    loom_config *json = said_as_json();
    assert_true(number_at(loom_config_root(json), "sent_per_rank") == 2.0 * 7 / 8 * 16e9);
    assert_true(number_at(loom_config_root(json), "seconds") == 2.0 * 7 / 8 * 16e9 / 400e9);
    loom_config_free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verify_says_the_proof_as_json),        cmocka_unit_test(verify_says_the_cycle_as_json),
        cmocka_unit_test(calc_says_its_answers_as_json),        cmocka_unit_test(predict_and_plan_number_their_schema),
        cmocka_unit_test(collective_says_its_answer_as_json),   cmocka_unit_test(simulate_plays_a_run_with_failures),
        cmocka_unit_test(simulate_says_the_run_as_json),        cmocka_unit_test(simulate_says_why_a_slow_rank_costs_what_it_costs),
        cmocka_unit_test(simulate_refuses_runs_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
