/* Ranks on CPUs: what a probe timed is what a prediction says, ranks that share cores take turns, and memory is this engine's to the byte. */
#include "check.h"

#include <math.h>

#include <rankloom/forecast.h>
#include <rankloom/planner.h>

#include "planner/cost.h"

static loom_model model;
static loom_prediction *prediction;

static int setup(void **state)
{
    (void)state;
    prediction = calloc(1, sizeof *prediction);
    return !prediction || loom_model_load(test_data("fixtures/gpt2_tiny/config.json"), &model, NULL) != LOOM_OK;
}

static int teardown(void **state)
{
    (void)state;
    free(prediction);
    return 0;
}

/* Four ranks on one host. */
static loom_topology *host(int cores)
{
    char text[160];
    loom_topology *t;

    snprintf(text, sizeof text, "cluster: {nodes: 1, cpu_ranks_per_node: 4, cores_per_node: %d, memory_gib_per_node: 16}\n", cores);
    assert_ok(loom_topology_parse("room.yaml", text, strlen(text), &t));
    return t;
}

/* Every linear layer of the model on `tokens`, a tp rank of one: forward, input gradient, weight gradient, of so many seconds each. Returns the sum. */
static double time_products(loom_topology *t, int64_t tokens)
{
    int64_t h = model.hidden, qkv = (model.heads + 2 * model.kv_heads) * model.head_dim;
    const int64_t linear[][2] = {{h, qkv}, {model.heads * model.head_dim, h}, {h, model.ffn}, {model.ffn, h}, {h, model.vocab}};
    double sum = 0;

    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
        int64_t in = linear[i][0], out = linear[i][1];
        const int64_t shape[3][3] = {{tokens, out, in}, {tokens, in, out}, {out, in, tokens}};

        for (int k = 0; k < 3; k++) {
            loom_gemm_point point = {0, LOOM_MATH_F32, shape[k][0], shape[k][1], shape[k][2], 1e-3};
            assert_ok(loom_topology_add_gemms(t, &point, 1));
            sum += (i < 4 ? (double)model.layers : 1) * point.seconds;
        }
    }
    return sum;
}

static void predict(const loom_topology *t, const char *text, loom_layout *layout)
{
    loom_plan_request request = {.model = &model, .topology = t, .train = {.global_batch = 8, .seq = 32, .precision = LOOM_F32}};

    assert_ok(loom_plan_layout(&request, text, layout));
    assert_ok(loom_plan_predict(&request, layout, prediction));
}

static void products_are_those_that_were_timed(void **state)
{
    loom_layout layout;

    (void)state;
    for (int cores = 2; cores <= 4; cores += 2) {
        loom_topology *t = host(cores);
        double sum = time_products(t, 32), sustained = loom_device_kind_find("cpu")->at[LOOM_DEV_SUSTAINED].value;

        predict(t, "dp=4,mbs=1,zero=0", &layout); /* two micro-batches a rank */
        double wanted = 2 * sum / sustained * (4 / cores);
        if (fabs(prediction->part_s[LOOM_TIME_GEMM] / wanted - 1) > 1e-9)
            fail_msg("%d cores: products take %.9g s, not %.9g", cores, prediction->part_s[LOOM_TIME_GEMM], wanted);
        loom_topology_free(t);
    }
}

/* With two cores one stage of two keeps them busy: what fills and drains the pipeline costs nothing. With four it is a whole micro-batch. */
static void stages_that_wait_leave_their_cores(void **state)
{
    double without[2], step[2];
    loom_layout layout;

    (void)state;
    for (int i = 0; i < 2; i++) {
        loom_topology *t = host(i == 0 ? 2 : 4);

        time_products(t, 32);
        predict(t, "pp=2,dp=2,mbs=1", &layout);
        step[i] = prediction->step_s;
        without[i] = prediction->part_s[LOOM_TIME_BUBBLE];
        loom_topology_free(t);
    }
    assert_true(without[0] < 0.02 * step[0]);
    assert_true(without[1] > 0.15 * step[1]); /* (p - 1) / m = 1/4 of the work */
}

static void a_ramp_of_four_stages_idles_below_two(void **state)
{
    const loom_machine machine = {.crowd = 2}, roomy = {.crowd = 1};

    (void)state;
    assert_true(fabs(loom_crowded_bubble(&machine, 4, 6) - 1) < 1e-12); /* of ramps 1, 2, 3 only the first is short of work: by half, at twice the speed */
    assert_true(loom_crowded_bubble(&machine, 2, 6) == 0);
    assert_true(loom_crowded_bubble(&roomy, 4, 6) == 6);
}

static void memory_is_the_forecast(void **state)
{
    static const char *const layouts[] = {"dp=4,mbs=2,zero=1", "tp=2,pp=2,mbs=1", "tp=4,mbs=1", "pp=4,mbs=1,schedule=gpipe", "cp=2,pp=2,mbs=2,recompute=full"};
    loom_topology *t = host(4);

    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        loom_layout layout;
        uint64_t most[LOOM_MAX_STAGES] = {0};

        predict(t, layouts[i], &layout);
        for (int rank = 0; rank < 4; rank++) {
            loom_rank_forecast f;
            int stage = loom_layout_coords(&layout, rank).at[LOOM_AXIS_PP];

            assert_ok(loom_forecast_rank(&model, &layout, rank, NULL, &f));
            most[stage] = f.memory_total > most[stage] ? f.memory_total : most[stage];
        }
        for (int stage = 0; stage < layout.pp; stage++)
            assert_true(prediction->memory[stage].allocated == (double)most[stage]);
    }
    loom_topology_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_that_were_timed),
        cmocka_unit_test(stages_that_wait_leave_their_cores),
        cmocka_unit_test(a_ramp_of_four_stages_idles_below_two),
        cmocka_unit_test(memory_is_the_forecast),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
