/* Pictures: cells of the map, curves of memory that end where the prediction says, the sample of layouts. */
#include <rankloom/draw.h>

#include "check.h"

#include <math.h>
#include <stdlib.h>

static const loom_model dense = {.name = "dense", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 128256, .seq = 8192,
                                 .mlp = LOOM_SWIGLU};

/* tp 2, dp 2, pp 4 */
static loom_layout sixteen_ranks(void)
{
    loom_layout l;

    loom_layout_default(&dense, &l);
    l.tp = 2, l.dp = 2, l.pp = 4, l.global_batch = 64, l.micro_batch = 1, l.seq = 8192;
    assert_ok(loom_layout_check(&l, &dense, 16));
    return l;
}

static void the_map_has_a_cell_a_rank_in_its_node(void **state)
{
    loom_layout layout = sixteen_ranks();
    loom_topology *topology;
    char *text;

    assert_ok(loom_map_svg(&layout, NULL, 100, &text));
    assert_int_equal(times_in(text, "<title>rank "), 16);
    assert_int_equal(times_in(text, ">stage "), 4);
    assert_non_null(strstr(text, "<title>rank 6: tp0 cp0 dp1 pp1 etp0 ep0 edp2</title>"));
    loom_text_free(text);

    assert_ok(loom_topology_load(test_data("clusters/h100-2x8.yaml"), &topology));
    assert_ok(loom_map_svg(&layout, topology, 100, &text));
    assert_int_equal(times_in(text, "<title>rank "), 16);
    assert_int_equal(times_in(text, ">node "), 2);
    loom_text_free(text);
    loom_topology_free(topology);

    assert_ok(loom_topology_load(test_data("clusters/h100-1x8.yaml"), &topology));
    assert_refused(loom_map_svg(&layout, topology, 100, &text), LOOM_E_INVALID, "16 ranks", "8 devices");
    loom_topology_free(topology);
}

/* The least y that a path goes to up or down. */
static double highest_point(const char *path)
{
    double least = INFINITY;

    for (; *path && *path != '"'; path++)
        if (*path == 'V')
            least = fmin(least, strtod(path + 1, NULL));
    return least;
}

static void memory_curves_end_where_the_prediction_says(void **state)
{
    loom_layout layout = sixteen_ranks();
    loom_plan_request request = {.model = &dense, .train = {.global_batch = 64, .seq = 8192, .precision = LOOM_BF16}};
    loom_prediction *p = malloc(sizeof *p);
    loom_topology *topology;
    double most;
    char *text, *at;

    assert_ok(loom_topology_load(test_data("clusters/h100-2x8.yaml"), &topology));
    request.topology = topology;
    assert_ok(loom_plan_predict(&request, &layout, p));
    most = fmax(p->memory_limit, p->memory[p->fullest].total); /* the top of a strip */
    for (int micro_batches = 0; micro_batches <= 8; micro_batches += 8) { /* all 32, and the first 8 */
        assert_ok(loom_memory_svg(&request, &layout, micro_batches, &text));
        assert_int_equal(strstr(text, "the first 8 of 32 micro-batches") != NULL, micro_batches == 8);
        at = text;
        for (int stage = 0; stage < 4; stage++) {
            assert_non_null(at = strstr(at, "<path class=\"kept\" d=\""));
            at += strlen("<path class=\"kept\" d=\"");
            double floor = 64 + stage * 60 + 52, unit = 52 / most; /* strips of 52, 8 apart */
            assert_true(fabs(floor - highest_point(at) - p->memory[stage].total * unit) < 0.06); /* one decimal */
        }
        assert_null(strstr(at, "<path"));
        loom_text_free(text);
    }
    loom_topology_free(topology);
    free(p);
}

static void the_sample_holds_legal_layouts_and_is_the_same_each_time(void **state)
{
    enum { COUNT = 200 };
    static const char *const fix[] = {"tp=2", "zero<2", NULL}, *const exclude[] = {"pp=1", NULL};
    static loom_plan_point first[COUNT], second[COUNT];
    loom_plan_request request = {.model = &dense, .train = {.global_batch = 64, .seq = 8192, .precision = LOOM_BF16}, .fix = fix, .exclude = exclude};
    loom_topology *topology;
    int found, again, fit = 0;

    assert_ok(loom_topology_load(test_data("clusters/h100-2x8.yaml"), &topology));
    request.topology = topology;
    assert_ok(loom_plan_sample(&request, COUNT, first, &found));
    assert_ok(loom_plan_sample(&request, COUNT, second, &again));
    assert_int_equal(found, COUNT);
    assert_int_equal(again, COUNT);
    assert_memory_equal(first, second, sizeof first);
    for (int i = 0; i < COUNT; i++) {
        const loom_plan_point *q = &first[i];
        assert_true(q->tp == 2 && q->zero <= 2 && q->pp > 1 && q->tp * q->cp * q->pp * q->dp == 16);
        assert_int_equal(64 % (q->micro_batch * q->dp), 0);
        assert_true(q->step_s > 0 && q->bytes > 0);
        fit += q->fits;
    }
    assert_true(fit > 0 && fit < COUNT);
    loom_topology_free(topology);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_map_has_a_cell_a_rank_in_its_node),
        cmocka_unit_test(memory_curves_end_where_the_prediction_says),
        cmocka_unit_test(the_sample_holds_legal_layouts_and_is_the_same_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
