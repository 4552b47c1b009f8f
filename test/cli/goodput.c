/* What failures cost: figures to the digit, laws, a second method (failures drawn one by one), published records. */
#include <rankloom/config.h>
#include <rankloom/goodput.h>

#include "near.h"


static loom_goodput goodput_of(loom_goodput_request request)
{
    loom_goodput goodput;

    assert_ok(loom_goodput_of(&request, &goodput));
    return goodput;
}

static void thousand_devices_fail_every_44_hours_and_sixteen_thousand_every_2_75(void **state)
{
    assert_near(goodput_of((loom_goodput_request){.devices = 1000, .device_hours = 44000}).run.mtbf_s, 44 * 3600, 0);
    assert_near(goodput_of((loom_goodput_request){.devices = 16000, .device_hours = 44000}).run.mtbf_s, 2.75 * 3600, 0);
}

/* 419 in 54 days on 16,384: one in 50,677 device-hours, every 3.09 hours; at 44,000 device-hours it would have been 482.6. */
static void the_default_is_the_record_of_llama_3(void **state)
{
    loom_failure_record r;
    loom_goodput g = goodput_of((loom_goodput_request){.devices = 16384});

    assert_ok(loom_failure_record_find("llama3", &r));
    assert_near(loom_failure_device_hours(&r), 16384.0 * 54 * 24 / 419, 1e-9);
    assert_near(54 * 86400 / g.run.mtbf_s, 419, 1e-9);
    assert_near(g.run.mtbf_s / 3600, 3.09, 0.005); /* as the table of published facts derives */
    assert_near(r.devices * r.hours / 44000, 482.6, 0.05);
    assert_string_equal(g.origin, r.what);
    assert_refused(loom_failure_record_find("llama4", &r), LOOM_E_INVALID, "llama3, rsc1 and bloom");
}

/* Fields of the line that has both texts: gpus, days, value. */
static void read_fact(const char *source, const char *category, double *gpus, double *days, double *value)
{
    char line[1024], *at;
    FILE *file = fopen(test_data("reference/failures.csv"), "r");

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, source, strlen(source)) == 0 && (at = strstr(line, category))) {
            char *quote = strstr(line, "\","); /* the system is quoted: "…, H100",gpus,days */
            *gpus = strtod(quote + 2, &quote);
            *days = strtod(quote + 1, NULL);
            *value = strtod(at + strlen(category), NULL);
            fclose(file);
            return;
        }
    fclose(file);
    fail_msg("%s has no %s", source, category);
}

static void records_are_those_of_the_table(void **state)
{
    loom_failure_record r;
    double gpus, days, value;

    assert_true(loom_failure_record_at(0, &r));
    read_fact("Llama 3 paper", "\"unexpected, all\",", &gpus, &days, &value);
    assert_near(r.devices, gpus, 0);
    assert_near(r.hours, days * 24, 0);
    assert_near(r.failures, value, 0);
    assert_true(loom_failure_record_at(1, &r));
    read_fact("Meta RSC", "failures per 1000 node-days,", &gpus, &days, &value);
    assert_near(r.failures, value, 0);
    assert_near(r.devices * r.hours, 8 * 1000 * 24, 0);
    assert_true(loom_failure_record_at(2, &r));
    read_fact("BLOOM", "GPU failures,about ", &gpus, &days, &value);
    assert_near(r.devices, gpus, 0);
    assert_near(r.failures * 7 * 24 / r.hours, value, 0);
    assert_false(loom_failure_record_at(3, &r));
}

static void young_daly_and_the_exact_interval_agree_for_short_checkpoints(void **state)
{
    for (double mtbf = 3600; mtbf < 1e7; mtbf *= 3) {
        double d = mtbf * 1e-5, young = loom_interval_young(mtbf, d), exact = loom_interval_exact(mtbf, d);
        assert_near(young, sqrt(2 * d * mtbf), 1e-9 * young);
        assert_near(loom_interval_daly(mtbf, d), exact, 1e-5 * exact);
        assert_near(young, exact, 0.01 * exact);
    }
}

static void no_interval_beats_the_exact_one(void **state)
{
    static const double shares[] = {1e-6, 1e-4, 1e-2, 0.3, 3};

    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        double mtbf = 10000, d = mtbf * shares[i], best = loom_interval_exact(mtbf, d), top = loom_goodput_share(mtbf, best, d, 60);
        double x = best / mtbf;
        assert_near((1 - x) * exp(x), exp(-d / mtbf), 1e-12);
        for (double factor = 0.25; factor < 4; factor *= 1.05)
            assert_true(loom_goodput_share(mtbf, best * factor, d, 60) <= top * (1 + 1e-12));
    }
}

static double draw(uint64_t *seed, double mean)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return -mean * log(((double)(*seed >> 11) + 0.5) * 0x1p-53);
}

/* The second method: failures drawn one by one, pieces of work done again, restarts that fail too. */
static void drawn_failures_give_the_same_goodput(void **state)
{
    enum { PIECES = 400000 };
    const double mtbf = 5000, d = 60, restart = 700, interval = 800;
    uint64_t seed = 7;
    double now = 0, failure = draw(&seed, mtbf);

    for (int piece = 0; piece < PIECES;) {
        if (now + interval + d <= failure) {
            now += interval + d;
            piece++;
            continue;
        }
        do { /* the failure, and those during its restart */
            now = failure;
            failure = now + draw(&seed, mtbf);
        } while (failure < now + restart);
        now += restart;
    }
    /* a piece fails at most every so often: the mean of 400,000 is good to about 0.2 % */
    assert_near(PIECES * interval / now, loom_goodput_share(mtbf, interval, d, restart), 0.002);
}

static void detection_is_part_of_the_restart(void **state)
{
    loom_goodput apart = goodput_of((loom_goodput_request){.devices = 1024, .detect_s = 100, .restart_s = 300}), whole = goodput_of((loom_goodput_request){.devices = 1024, .restart_s = 400});

    assert_near(apart.run.useful, whole.run.useful, 0);
    assert_near(apart.run.restart, whole.run.restart, 0);
}

static void shares_sum_to_one_and_first_order_is_near(void **state)
{
    loom_goodput g = goodput_of((loom_goodput_request){.devices = 1024, .checkpoint_s = 30, .write_s = 60, .restart_s = 300});

    assert_near(g.run.useful + g.run.checkpoint + g.run.rework + g.run.restart, 1, 1e-12);
    assert_near(g.run.useful, g.first_order, 0.001);
    assert_true(g.run.rework > 0 && g.run.restart > 0);
}

static void spares_cover_the_poisson_tail(void **state)
{
    assert_int_equal(loom_spares(0, 0.01), 0);
    /* mean 1: P(X > 3) = 1 - 2.6667/e = 0.01899, P(X > 4) = 0.00366 */
    assert_int_equal(loom_spares(1, 0.02), 3);
    assert_int_equal(loom_spares(1, 0.01), 4);
    int many = loom_spares(2000, 0.01); /* near the normal law: 2000 + 2.326 * sqrt(2000) = 2104 */
    assert_in_range(many, 2102, 2108);
}

static void a_plan_that_outlasts_its_reservation_is_refused(void **state)
{
    loom_goodput_request r = {.devices = 16384, .tokens = 15e12, .tokens_per_s = 3.4e6, .reserved_s = 54 * 86400};
    loom_goodput g;
    int devices;

    assert_refused(loom_goodput_of(&r, &g), LOOM_E_INVALID, "take 58.7 days", "ends after 54.0", "tokens fit", "devices as fast each would do");
    assert_int_equal(sscanf(strstr(loom_last_error(), ", or ") + 5, "%d", &devices), 1);
    r.tokens_per_s *= devices / 16384.0;
    r.devices = devices;
    g = goodput_of(r); /* what the message names works … */
    r.devices -= 400;
    r.tokens_per_s *= (devices - 400.0) / devices;
    assert_int_equal(loom_goodput_of(&r, &g), LOOM_E_INVALID); /* … and clearly fewer do not */
}

static void days_and_money_follow_from_the_share(void **state)
{
    loom_goodput g = goodput_of((loom_goodput_request){.devices = 64, .tokens = 1e12, .tokens_per_s = 5e5, .price = 2});

    assert_near(g.days, 1e12 / 5e5 / 86400 / g.run.useful, 1e-9);
    assert_near(g.cost, g.days * 24 * 64 * 2, 1e-6);
}

static void notice_makes_a_reclaim_cheaper_and_break_even_is_where_both_cost_the_same(void **state)
{
    loom_goodput_request r = {.devices = 64, .tokens = 1e12, .tokens_per_s = 5e5, .price = 2, .spot_price = 1, .reclaims_per_hour = 0.005, .notice_s = 120};
    loom_goodput with = goodput_of(r), without, even;

    r.notice_s = 10;
    without = goodput_of(r);
    assert_true(with.spot_graceful && !without.spot_graceful);
    assert_true(with.spot.useful > without.spot.useful && with.spot.useful < with.run.useful);
    assert_near(with.spot.useful + with.spot.checkpoint + with.spot.rework + with.spot.restart, 1, 1e-12);
    r.spot_price = without.spot_break_even;
    even = goodput_of(r);
    assert_near(even.spot_cost, even.cost, 1e-9 * even.cost);
    r.reclaims_per_hour = 0; /* never taken away: like reserved */
    assert_near(goodput_of(r).spot.useful, even.run.useful, 1e-12);
}

static void what_cannot_be_is_refused(void **state)
{
    loom_goodput g;

    assert_refused(loom_goodput_of(&(loom_goodput_request){0}, &g), LOOM_E_INVALID, "0 devices");
    assert_refused(loom_goodput_of(&(loom_goodput_request){.devices = 8, .restart_s = -1}, &g), LOOM_E_INVALID, "restart = -1");
    assert_refused(loom_goodput_of(&(loom_goodput_request){.devices = 8, .tokens = 1e9}, &g), LOOM_E_INVALID, "without tokens a second");
    assert_refused(loom_goodput_of(&(loom_goodput_request){.devices = 8, .price = NAN}, &g), LOOM_E_INVALID, "price");
}

/* --- a run, failure by failure ------------------------------------------------------------------------------------------------ */

static loom_run played(const loom_run_request *request)
{
    loom_run run;

    assert_ok(loom_run_play(request, &run));
    assert_near(run.useful_s + run.checkpoint_s + run.lost_s + run.detect_s + run.restart_s + run.spare_s, run.seconds, 1e-9 * run.seconds); /* holds of every run */
    return run;
}

/* 16 devices in nodes of 8; steps of 10 s, a checkpoint of 20 s every 5: pieces of 70 s. A failure costs 3 s + 50 s on top of what is lost. */
static const loom_run_request small = {.costs = {.devices = 16, .checkpoint_s = 20, .interval_s = 50, .detect_s = 3, .restart_s = 50, .repair_s = 1000}, .step_s = 10, .steps = 12, .spares = -1};
enum { SMALL_S = 12 * 10 + 3 * 20 }; /* the last two steps are saved as well */

static void a_run_without_failures_is_its_steps_and_checkpoints(void **state)
{
    loom_run run = played(&small);

    assert_near(run.seconds, SMALL_S, 1e-9);
    assert_near(run.useful_s, 120, 1e-9);
    assert_int_equal(run.steps, 12);
    assert_int_equal(run.interval_steps, 5);
    assert_int_equal(run.failures, 0);
    assert_true(isnan(run.expected));
    loom_run_free(&run);
}

static void one_failure_costs_what_is_unsafe_detection_and_restart(void **state)
{
    static const struct {
        double at_s, write_s, lost_s;
        loom_run_doing doing;
        int64_t step, safe_step;
    } cases[] = {
        {45, 0, 45, LOOM_RUN_STEP, 5, 0},        /* in the fifth step: nothing is safe yet */
        {60, 0, 60, LOOM_RUN_CHECKPOINT, 5, 0},  /* in the first checkpoint */
        {75, 0, 5, LOOM_RUN_STEP, 6, 5},         /* behind it */
        {75, 15, 75, LOOM_RUN_STEP, 6, 0},       /* behind it, but it is being written until 85 */
        {86, 15, 16, LOOM_RUN_STEP, 7, 5},       /* … and now is safe */
        {170, 0, 30, LOOM_RUN_CHECKPOINT, 12, 10}, /* in the last, of the two steps that are left */
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const loom_run_failure failure = {.rank = 11, .at_s = cases[i].at_s};
        loom_run_request request = small;
        request.costs.write_s = cases[i].write_s;
        request.failures = &failure, request.n_failures = 1;
        loom_run run = played(&request);
        assert_near(run.lost_s, cases[i].lost_s, 1e-9);
        assert_near(run.seconds, SMALL_S + cases[i].lost_s + 3 + 50, 1e-9);
        assert_int_equal(run.steps, 12);
        assert_int_equal(run.n_events, 1);
        assert_int_equal(run.event[0].node, 1);
        assert_int_equal(run.event[0].doing, cases[i].doing);
        assert_int_equal(run.event[0].step, cases[i].step);
        assert_int_equal(run.event[0].safe_step, cases[i].safe_step);
        loom_run_free(&run);
    }
}

static void a_failure_during_a_restart_begins_it_anew(void **state)
{
    static const loom_run_failure failures[] = {{3, 75 + 40}, {11, 75}}; /* in any order */
    loom_run_request request = small;

    request.failures = failures, request.n_failures = 2;
    loom_run run = played(&request);
    assert_int_equal(run.event[0].rank, 11);
    assert_int_equal(run.event[1].doing, LOOM_RUN_RESTART);
    assert_near(run.lost_s, 5, 1e-9);
    assert_near(run.detect_s, 3 + 3, 1e-9);
    assert_near(run.restart_s, 37 + 50, 1e-9);
    assert_near(run.seconds, SMALL_S + 5 + 40 + 53, 1e-9);
    assert_int_equal(run.most_away, 2);
    loom_run_free(&run);
}

static void without_a_spare_the_run_waits_for_the_repair(void **state)
{
    static const loom_run_failure failures[] = {{11, 75}, {12, 75}, {3, 300}}; /* two ranks of one node, and later another node */
    loom_run_request request = small;

    request.failures = failures, request.n_failures = 3;
    request.spares = 1, request.steps = 120;
    loom_run run = played(&request);
    assert_int_equal(run.most_away, 2);
    assert_near(run.event[2].spare_s, 1075 - 303, 1e-9); /* until the first is back */
    assert_near(run.spare_s, 1075 - 303, 1e-9);
    loom_run_free(&run);
    request.spares = 2;
    run = played(&request);
    assert_near(run.spare_s, 0, 0);
    loom_run_free(&run);
    request.spares = 0, request.n_failures = 1;
    run = played(&request);
    assert_near(run.spare_s, 1000 - 3, 1e-9);
    loom_run_free(&run);
}

static void a_period_ends_a_run_wherever_it_is(void **state)
{
    static const loom_run_failure failure = {0, 75};
    loom_run_request request = small;

    request.steps = 0, request.period_s = 1000;
    loom_run run = played(&request);
    assert_near(run.seconds, 1000, 0);
    assert_int_equal(run.steps, 14 * 5 + 2); /* 14 pieces of 70 s and 20 s */
    loom_run_free(&run);
    request.failures = &failure, request.n_failures = 1, request.period_s = 100; /* in the restart */
    run = played(&request);
    assert_near(run.restart_s, 100 - 78, 1e-9);
    assert_int_equal(run.steps, 5);
    loom_run_free(&run);
}

/* Exponential failures: their number and the goodput meet the formulas. 40,000 failures are good to about half a per cent. */
static void drawn_runs_meet_the_formula_of_goodput(void **state)
{
    loom_run_request request = {.costs = {.devices = 1000, .device_hours = 1000, .checkpoint_s = 60, .restart_s = 500, .detect_s = 200, .interval_s = 800}, .step_s = 8, .drawn = true,
                                .period_s = 40000 * 3600.0, .spares = -1};

    for (int written = 0; written < 2; written++) {
        request.costs.write_s = written ? 60 : 0;
        request.seed = 5;
        loom_run run = played(&request);
        assert_near(run.mtbf_s, 3600, 1e-9);
        assert_near((double)run.failures, 40000, 4 * 200); /* four standard deviations */
        if (!written)
            assert_near(run.expected, loom_goodput_share(3600, 800, 60, 700), 1e-12);
        assert_near(run.goodput, run.expected, 0.005);
        assert_int_equal(run.n_events, LOOM_RUN_EVENTS);
        loom_run again = played(&request), other;
        assert_true(again.useful_s == run.useful_s); /* to the bit */
        request.seed = 6;
        other = played(&request);
        assert_true(other.useful_s != run.useful_s);
        loom_run_free(&run);
        loom_run_free(&again);
        loom_run_free(&other);
    }
}

static void a_run_is_told_and_its_json_holds_the_figures(void **state)
{
    static const loom_run_failure failure = {11, 75};
    loom_run_request request = small;
    loom_config *json;
    char *text;
    double value;

    request.failures = &failure, request.n_failures = 1;
    loom_run run = played(&request);
    assert_ok(loom_run_describe(&request, &run, &text));
    assert_non_null(strstr(text, "12 steps of 10.0000 s, a checkpoint of 20 s every 5 steps (50 s), 1 failure\n"));
    assert_non_null(strstr(text, "at 75 s rank 11 (node 1) fails in step 6; back to step 5: 5 s lost"));
    loom_text_free(text);
    assert_ok(loom_run_json(&request, &run, &text));
    assert_ok(loom_config_parse("run.json", text, strlen(text), &json));
    const loom_node *root = loom_config_root(json), *event = loom_node_at(loom_node_get(root, "events"), 0);
    assert_true(loom_node_as_f64(loom_node_get(root, "seconds"), &value) && value == run.seconds);
    assert_true(loom_node_as_f64(loom_node_get(event, "lost_s"), &value) && value == run.event[0].lost_s);
    assert_string_equal(loom_node_text(loom_node_get(event, "doing")), "step");
    loom_text_free(text);
    loom_config_free(json);
    loom_run_free(&run);
}

static void runs_that_cannot_be_are_refused(void **state)
{
    static const loom_run_failure nobody = {16, 1}, early = {0, -1}, late = {0, 1000};
    loom_run_request r = small;
    loom_run run;

    r.failures = &nobody, r.n_failures = 1;
    assert_refused(loom_run_play(&r, &run), LOOM_E_INVALID, "rank 16 cannot fail: ranks are 0 to 15");
    r.failures = &early;
    assert_refused(loom_run_play(&r, &run), LOOM_E_INVALID, "at -1 s");
    r.failures = &late;
    assert_refused(loom_run_play(&r, &run), LOOM_E_INVALID, "rank 0 fails at 1000 s", "ends after 180 s");
    r = small, r.period_s = 5;
    assert_refused(loom_run_play(&r, &run), LOOM_E_INVALID, "12 steps and 5 s");
    r = small, r.step_s = 0;
    assert_refused(loom_run_play(&r, &run), LOOM_E_INVALID, "steps of 0 s");
    r = small, r.drawn = true, r.costs.device_hours = 0.01; /* a failure every 2.25 s, restarts of 53 */
    assert_refused(loom_run_play(&r, &run), LOOM_E_INVALID, "after 1000000 failures 0 steps are safe");
}

/* --- calculator --------------------------------------------------------------------------------------------------------------- */

static const loom_model gpt3 = {.name = "GPT-3", .layers = 96, .hidden = 12288, .heads = 96, .kv_heads = 96, .head_dim = 128, .ffn = 49152, .vocab = 51200,
                                .seq = 2048, .norm = LOOM_LAYERNORM, .mlp = LOOM_GELU_TANH, .positions = LOOM_LEARNED, .tied_embeddings = true,
                                .attention_bias = true, .output_bias = true, .mlp_bias = true};

/* Narayanan 2021: 72 B s L h^2 (1 + s/6h + V/12Lh); a GPT-3 step of 1536 sequences is 3.386e18 flop without recompute. */
static void flop_of_a_token_is_the_published_formula(void **state)
{
    double h = 12288, l = 96, s = 2048, v = 51200, want = 72 * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
    char *text;
    double whole, causal, tokens, seconds;

    assert_near(loom_flop_per_token(&gpt3, 2048, false), want, 1e-9 * want);
    assert_near(loom_flop_per_token(&gpt3, 2048, false) * 1536 * 2048, 3.386e18, 0.0005e18);
    loom_calculation c = {.model = &gpt3, .devices = 1024, .peak = 312e12, .tokens_per_s = 140000};
    assert_ok(loom_calculate_mfu(&c, &whole, &causal, &text));
    assert_near(whole, 140000 * want / (1024 * 312e12), 1e-12);
    assert_true(causal < whole);
    assert_non_null(strstr(text, "PaLM"));
    loom_text_free(text);
    /* there and back: the MFU of that speed gives the time of that speed, and the budget of that time gives the tokens */
    loom_calculation back = {.model = &gpt3, .devices = 1024, .peak = 312e12, .mfu = whole, .tokens = 300e9};
    assert_ok(loom_calculate_time(&back, &seconds, &text));
    assert_near(seconds, 300e9 / 140000, 1e-6 * seconds);
    loom_text_free(text);
    back.seconds = seconds;
    assert_ok(loom_calculate_tokens(&back, &tokens, &text));
    assert_near(tokens, 300e9, 1e-6 * tokens);
    loom_text_free(text);
    back.money = 1; /* the tightest budget counts */
    back.price = 2;
    assert_ok(loom_calculate_tokens(&back, &tokens, &text));
    assert_near(tokens, 1800 * 312e12 * whole / want, 1e-6 * tokens);
    loom_text_free(text);
}

static void state_of_a_parameter_is_18_down_to_0_28_bytes(void **state)
{
    loom_calculation c = {.model = &gpt3, .devices = 64};
    loom_param_counts counts;
    double bytes[4];
    static const double each[] = {18, 6.1875, 2.25, 0.28125};
    char *text;

    loom_model_count(&gpt3, &counts);
    assert_ok(loom_calculate_memory(&c, bytes, &text));
    for (int i = 0; i < 4; i++)
        assert_near(bytes[i] / (double)counts.total, each[i], 1e-9);
    loom_text_free(text);
}

static void calculations_name_what_they_lack(void **state)
{
    loom_calculation c = {.model = &gpt3};
    double value, other;
    char *text;

    assert_refused(loom_calculate_mfu(&c, &value, &other, &text), LOOM_E_INVALID, "tokens a second");
    assert_refused(loom_calculate_time(&c, &value, &text), LOOM_E_INVALID, "token count");
    assert_refused(loom_calculate_tokens(&c, &value, &text), LOOM_E_INVALID, "mfu");
    c.mfu = 0.4, c.peak = 1e15;
    assert_refused(loom_calculate_tokens(&c, &value, &text), LOOM_E_INVALID, "budget");
}

static double number_at(const loom_node *map, const char *name)
{
    double value;

    assert_true(loom_node_as_f64(loom_node_get(map, name), &value));
    return value;
}

static void the_json_holds_the_figures(void **state)
{
    loom_goodput_request r = {.devices = 1000, .device_hours = 44000, .price = 2, .spot_price = 1, .reclaims_per_hour = 1e-4, .notice_s = 120};
    loom_goodput g = goodput_of(r);
    loom_config *json;
    char *text;

    assert_ok(loom_goodput_json(&r, &g, &text));
    assert_ok(loom_config_parse("goodput.json", text, strlen(text), &json));
    const loom_node *root = loom_config_root(json), *run = loom_node_get(root, "run"), *spot = loom_node_get(root, "spot");
    assert_true(number_at(run, "mtbf_s") == 44 * 3600);
    assert_true(number_at(run, "exact_s") == g.run.exact_s && number_at(run, "useful") == g.run.useful);
    assert_true(number_at(spot, "useful") == g.spot.useful && number_at(root, "useful_price") == g.useful_price);
    assert_true(number_at(root, "spares") == g.spares);
    assert_non_null(strstr(text, "\"days\":null")); /* no tokens were named */
    loom_config_free(json);
    loom_text_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_json_holds_the_figures),
        cmocka_unit_test(thousand_devices_fail_every_44_hours_and_sixteen_thousand_every_2_75),
        cmocka_unit_test(the_default_is_the_record_of_llama_3),
        cmocka_unit_test(records_are_those_of_the_table),
        cmocka_unit_test(young_daly_and_the_exact_interval_agree_for_short_checkpoints),
        cmocka_unit_test(no_interval_beats_the_exact_one),
        cmocka_unit_test(drawn_failures_give_the_same_goodput),
        cmocka_unit_test(detection_is_part_of_the_restart),
        cmocka_unit_test(shares_sum_to_one_and_first_order_is_near),
        cmocka_unit_test(spares_cover_the_poisson_tail),
        cmocka_unit_test(a_plan_that_outlasts_its_reservation_is_refused),
        cmocka_unit_test(days_and_money_follow_from_the_share),
        cmocka_unit_test(notice_makes_a_reclaim_cheaper_and_break_even_is_where_both_cost_the_same),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_run_without_failures_is_its_steps_and_checkpoints),
        cmocka_unit_test(one_failure_costs_what_is_unsafe_detection_and_restart),
        cmocka_unit_test(a_failure_during_a_restart_begins_it_anew),
        cmocka_unit_test(without_a_spare_the_run_waits_for_the_repair),
        cmocka_unit_test(a_period_ends_a_run_wherever_it_is),
        cmocka_unit_test(drawn_runs_meet_the_formula_of_goodput),
        cmocka_unit_test(a_run_is_told_and_its_json_holds_the_figures),
        cmocka_unit_test(runs_that_cannot_be_are_refused),
        cmocka_unit_test(flop_of_a_token_is_the_published_formula),
        cmocka_unit_test(state_of_a_parameter_is_18_down_to_0_28_bytes),
        cmocka_unit_test(calculations_name_what_they_lack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
