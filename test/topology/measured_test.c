/* Laws found again in points made from them; lookups that prefer what was measured; what the links alone promise. */
#include "topology_test.h"

#include "topology/fit.h"

#include <math.h>

static void least_squares_finds_the_law_and_never_goes_below_zero(void **state)
{
    double rows[20 * 3], seconds[20], c[LOOM_FIT_TERMS];

    (void)state;
    for (int i = 0; i < 20; i++) {
        rows[3 * i] = 1;
        rows[3 * i + 1] = i + 1;
        rows[3 * i + 2] = (i % 5) * 1e9;
        seconds[i] = 3 + 0.5 * rows[3 * i + 1] + 2e-9 * rows[3 * i + 2];
    }
    assert_true(loom_fit(rows, seconds, 20, 3, c));
    assert_true(fabs(c[0] - 3) < 1e-6 && fabs(c[1] - 0.5) < 1e-6 && fabs(c[2] - 2e-9) < 1e-15);

    for (int i = 0; i < 20; i++)
        seconds[i] = 3 - 0.1 * rows[3 * i + 1]; /* falls: the best rising law is flat */
    assert_true(loom_fit(rows, seconds, 20, 3, c));
    assert_true(c[1] == 0 && c[2] == 0 && c[0] > 1 && c[0] < 3);
}

static double true_gemm_s(double m, double n, double k)
{
    return 2 * m * n * k * (1 + 14 / m + 24 / n + 45 / k) / (0.833 * 312e12) + 20e-6; /* cost_model.md, the A100's row */
}

static loom_topology *with_measured_gemms(void)
{
    loom_topology *t = topology_of("cluster: {nodes: 1, gpus_per_node: 8, gpu: a100-80g, memory_gb_s: 1e9}"); /* memory never binds */
    loom_gemm_point points[64];
    int count = 0;

    for (int m = 512; m <= 8192; m *= 2)
        for (int n = 512; n <= 8192; n *= 4)
            for (int k = 512; k <= 8192; k *= 4)
                points[count++] = (loom_gemm_point){0, LOOM_MATH_16, m, n, k, true_gemm_s(m, n, k)};
    assert_ok(loom_topology_add_gemms(t, points, count));
    assert_int_equal(t->n_gemms, count);
    assert_ok(loom_topology_fit(t));
    return t;
}

static void the_gemm_law_is_found_again(void **state)
{
    loom_topology *t = with_measured_gemms();
    const loom_gemm_law *law = &t->chips[0].gemm[LOOM_MATH_16];

    (void)state;
    assert_true(fabs(law->share.value - 0.833) < 1e-6);
    assert_true(fabs(law->m0.value - 14) < 1e-3 && fabs(law->n0.value - 24) < 1e-3 && fabs(law->k0.value - 45) < 1e-3);
    assert_true(fabs(law->start_s.value - 20e-6) < 1e-10);
    assert_int_equal(law->share.origin, LOOM_ORIGIN_MEASURED);
    assert_int_equal(t->chips[0].peak[LOOM_MATH_16].origin, LOOM_ORIGIN_ASSUMED); /* the sheet's peak stays */
    assert_figure(loom_topology_gemm_s(t, 0, LOOM_MATH_16, 50000, 50000, 50000),
                  loom_gemm_law_s(&t->chips[0], LOOM_MATH_16, 50000, 50000, 50000).value);
    assert_false(loom_known(loom_topology_gemm_s(t, 0, LOOM_MATH_8, 512, 512, 512)));
    loom_topology_free(t);
}

static void a_measured_shape_beats_the_law_and_mends_its_neighbours(void **state)
{
    loom_topology *t = with_measured_gemms();
    double law = loom_gemm_law_s(&t->chips[0], LOOM_MATH_16, 3000, 3000, 3000).value;
    loom_gemm_point odd = {0, LOOM_MATH_16, 3000, 3000, 3000, 3 * law};

    (void)state;
    assert_figure(loom_topology_gemm_s(t, 0, LOOM_MATH_16, 1024, 2048, 2048), true_gemm_s(1024, 2048, 2048));
    assert_ok(loom_topology_add_gemms(t, &odd, 1));
    assert_figure(loom_topology_gemm_s(t, 0, LOOM_MATH_16, 3000, 3000, 3000), 3 * law); /* to the bit, not by the law */
    double next = loom_topology_gemm_s(t, 0, LOOM_MATH_16, 3100, 3000, 3000).value;
    assert_true(next > 2 * law && next < 4 * law);
    double far = loom_topology_gemm_s(t, 0, LOOM_MATH_16, 100000, 3000, 3000).value;
    assert_true(fabs(far / loom_gemm_law_s(&t->chips[0], LOOM_MATH_16, 100000, 3000, 3000).value - 1) < 1e-9);

    odd.seconds = 2 * law; /* measured again: the new figure replaces the old */
    int before = t->n_gemms;
    assert_ok(loom_topology_add_gemms(t, &odd, 1));
    assert_int_equal(t->n_gemms, before);
    assert_figure(loom_topology_gemm_s(t, 0, LOOM_MATH_16, 3000, 3000, 3000), 2 * law);
    loom_topology_free(t);
}

static void memory_bounds_a_thin_product(void **state)
{
    loom_topology *t = with_measured_gemms();
    loom_chip chip = t->chips[0];

    (void)state;
    chip.memory_bandwidth = loom_given(2e12);
    chip.memory_reach = loom_given(0.5);
    chip.gemm[LOOM_MATH_16] = (loom_gemm_law){loom_given(0.8), loom_given(0), loom_given(0), loom_given(0), loom_given(1e-6)};
    assert_figure(loom_gemm_law_s(&chip, LOOM_MATH_16, 1, 4096, 4096), 2.0 * (4096 + 4096.0 * 4096 + 4096) / 1e12 + 1e-6);
    loom_topology_free(t);
}

/* --- collectives ------------------------------------------------------------------------------------------------------------ */

static void volumes_are_those_of_the_textbook(void **state)
{
    (void)state;
    assert_true(loom_pattern_volume(LOOM_PATTERN_ALL_REDUCE, 8, 1) == 1.75); /* cost_model.md, section 19 */
    assert_true(loom_pattern_volume(LOOM_PATTERN_ALL_GATHER, 4, 8) == 6);
    assert_true(loom_pattern_volume(LOOM_PATTERN_SEND, 2, 5) == 5);
    assert_true(loom_pattern_volume(LOOM_PATTERN_ALL_REDUCE, 1, 5) == 0);
}

static loom_group_link group_of(int ranks, loom_level level)
{
    return (loom_group_link){.ranks = ranks,
                             .in_domain = ranks,
                             .in_node = ranks,
                             .domains = 1,
                             .nodes = 1,
                             .level = level,
                             .bandwidth = loom_unknown(),
                             .latency_s = loom_unknown()};
}

static void the_law_of_collectives_is_found_again(void **state)
{
    loom_topology *t = topology_file("clusters/h100-1x8.yaml");
    const int ranks[] = {2, 4, 8};
    const double rate[] = {318e9, 350e9, 445e9}; /* one bandwidth for each size of group: a single one for all would miss by 11 to 21 % */

    (void)state;
    for (int i = 0; i < 3; i++)
        for (double bytes = 1024; bytes <= 1 << 29; bytes *= 8) {
            double seconds = 9e-6 + 0.5e-6 * (ranks[i] - 1) + loom_pattern_volume(LOOM_PATTERN_ALL_REDUCE, ranks[i], bytes) / rate[i];
            loom_pattern_point point = {LOOM_PATTERN_ALL_REDUCE, LOOM_LEVEL_DOMAIN, ranks[i], ranks[i], bytes, seconds};
            assert_ok(loom_topology_add_points(t, &point, 1));
        }
    assert_ok(loom_topology_fit(t));
    assert_int_equal(t->n_laws, 3);
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(t->laws[i].bandwidth.value / rate[i] - 1) < 1e-6);
        assert_true(fabs(t->laws[i].fixed_s.value - 9e-6) < 1e-10 && fabs(t->laws[i].step_s.value - 0.5e-6) < 1e-10);
    }
    loom_group_link eight = group_of(8, LOOM_LEVEL_DOMAIN), six = group_of(6, LOOM_LEVEL_DOMAIN);
    assert_figure(loom_topology_pattern_s(t, LOOM_PATTERN_ALL_REDUCE, &eight, 8192), t->points[14 + 1].seconds);
    double six_s = loom_topology_pattern_s(t, LOOM_PATTERN_ALL_REDUCE, &six, 1 << 20).value; /* no such group: the law of 8, the nearest */
    assert_true(fabs(six_s - (9e-6 + 0.5e-6 * 5 + 5.0 / 3 * (1 << 20) / 445e9)) < 1e-10);
    double before = 0;
    for (double bytes = 100; bytes < 4e9; bytes *= 1.3) { /* more bytes never take less */
        double seconds = loom_topology_pattern_s(t, LOOM_PATTERN_ALL_REDUCE, &eight, bytes).value;
        assert_true(seconds >= before);
        before = seconds;
    }
    loom_topology_free(t);
}

static void tensor_parallelism_over_slow_links_is_costed_so(void **state) /* H07 */
{
    static const double rate[] = {149.7, 8.13}, milliseconds[] = {57.4, 1056.6};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char yaml[256];
        snprintf(yaml, sizeof yaml,
                 "cluster: {nodes: 1, gpus_per_node: 2, gpu: generic-24g, nvlink_domain: 2, link_gb_s: %g, latency_us: {domain: 0}}",
                 rate[i]);
        loom_topology *t = topology_of(yaml);
        loom_group_link pair = loom_topology_axis(t, 2, 1);
        double seconds = 128 * loom_topology_pattern_s(t, LOOM_PATTERN_ALL_REDUCE, &pair, 67108864).value;
        assert_true(fabs(seconds * 1e3 - milliseconds[i]) < 0.05);
        loom_topology_free(t);
    }
}

static void swapped_order_costs_more(void **state) /* C31 */
{
    loom_topology *t = topology_file("clusters/h100-2x8.yaml");
    loom_group_link neighbours = loom_topology_axis(t, 8, 1), strided = loom_topology_axis(t, 8, 2);

    (void)state;
    assert_true(loom_topology_pattern_s(t, LOOM_PATTERN_ALL_REDUCE, &strided, 1 << 26).value >
                2 * loom_topology_pattern_s(t, LOOM_PATTERN_ALL_REDUCE, &neighbours, 1 << 26).value);
    loom_topology_free(t);
}

static void an_exchange_leaves_the_node_with_what_is_not_its_own(void **state)
{
    loom_topology *t = topology_of("cluster: {nodes: 4, gpus_per_node: 4, gpu: h100, nic_gbps_per_gpu: 400, latency_us: {rack: 0}}");
    loom_group_link all = loom_topology_axis(t, 16, 1);

    (void)state;
    assert_figure(loom_topology_pattern_s(t, LOOM_PATTERN_ALL_TO_ALL, &all, 16e9), 12e9 / 50e9); /* H01: 12 of 16 parts cross */
    loom_topology_free(t);
}

static void unknown_links_give_unknown_times(void **state) /* D13: no division by a zero that meant "not told" */
{
    loom_topology *t = topology_file("clusters/single-3x24g.yaml");
    loom_group_link all = loom_topology_axis(t, 3, 1);

    (void)state;
    assert_false(loom_known(loom_topology_pattern_s(t, LOOM_PATTERN_ALL_REDUCE, &all, 1e6)));
    loom_topology_free(t);
}

static void what_cannot_be_measured_is_refused(void **state)
{
    loom_topology *t = topology_file("clusters/h100-1x8.yaml");
    loom_gemm_point gemm = {1, LOOM_MATH_16, 1, 1, 1, 1};
    loom_pattern_point point = {LOOM_PATTERN_SEND, LOOM_LEVEL_DOMAIN, 2, 2, 1, 0};

    (void)state;
    assert_refused(loom_topology_add_gemms(t, &gemm, 1), LOOM_E_INVALID, "chip 1 of 1");
    assert_refused(loom_topology_add_points(t, &point, 1), LOOM_E_INVALID, "send", "in 0 s");
    loom_topology_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_squares_finds_the_law_and_never_goes_below_zero),
        cmocka_unit_test(the_gemm_law_is_found_again),
        cmocka_unit_test(a_measured_shape_beats_the_law_and_mends_its_neighbours),
        cmocka_unit_test(memory_bounds_a_thin_product),
        cmocka_unit_test(volumes_are_those_of_the_textbook),
        cmocka_unit_test(the_law_of_collectives_is_found_again),
        cmocka_unit_test(tensor_parallelism_over_slow_links_is_costed_so),
        cmocka_unit_test(swapped_order_costs_more),
        cmocka_unit_test(an_exchange_leaves_the_node_with_what_is_not_its_own),
        cmocka_unit_test(unknown_links_give_unknown_times),
        cmocka_unit_test(what_cannot_be_measured_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
