/* Every generator for 1-16 stages x 1-64 micro-batches x 1-4 chunks: proved, in-flight peaks and bubble as the papers say. */
#include <rankloom/schedule.h>

#include <math.h>

#include "check.h"

enum { MOST_STAGES = 16, MOST_MICRO_BATCHES = 64, MOST_CHUNKS = 4 };

typedef struct shape {
    loom_schedule_kind kind;
    int p, v, m;
} shape;

static int least(int a, int b)
{
    return a < b ? a : b;
}

static bool is_legal(shape s)
{
    switch (s.kind) {
    case LOOM_SCHEDULE_GPIPE:
        return true;
    case LOOM_SCHEDULE_INTERLEAVED:
        return s.v == 1 || s.m % s.p == 0;
    case LOOM_SCHEDULE_ZB_V:
        return s.v == 2;
    default:
        return s.v == 1;
    }
}

/* Micro-batch-chunks that stage i holds until its gradients are done (until_weight) or until its input gradient is. */
static int peak_of(shape s, int i, bool until_weight)
{
    switch (s.kind) {
    case LOOM_SCHEDULE_GPIPE:
        return s.m * s.v;
    case LOOM_SCHEDULE_INTERLEAVED:
        if (s.v > 1)
            return least(s.m * s.v, 2 * (s.p - i - 1) + (s.v - 1) * s.p + 1);
        return least(s.m, s.p - i);
    case LOOM_SCHEDULE_ZB_H1:
        return least(s.m, until_weight ? s.p : s.p - i);
    default:
        return least(s.m, s.p - i);
    }
}

static void check_peaks(shape s, const loom_schedule_facts *facts)
{
    for (int i = 0; i < s.p; i++) {
        if (s.kind != LOOM_SCHEDULE_ZB_V) {
            assert_int_equal(facts->peak_in_flight[i], peak_of(s, i, true));
            assert_int_equal(facts->peak_before_input[i], peak_of(s, i, false));
        } else if (s.m >= 2 * s.p - 1) {
            assert_int_equal(facts->peak_in_flight[i], 2 * s.p); /* p whole stages */
        } else {
            assert_in_range(facts->peak_in_flight[i], 1, 2 * s.p);
        }
    }
}

static double unit_cost(void *context, int stage, const loom_action *a)
{
    return a->kind == LOOM_BACKWARD ? 2 : 1;
}

static void check_bubble(shape s, const loom_schedule *schedule)
{
    const loom_schedule_costs costs = {.action_us = unit_cost};
    double theory = loom_schedule_ideal_bubble(s.kind, s.p, s.v, s.m);
    loom_timeline line;

    assert_ok(loom_schedule_simulate(schedule, &costs, &line));
    for (int i = 0; i < s.p; i++) {
        double bubble = (line.makespan_us - line.busy_us[i]) / line.busy_us[i];
        bool exact = s.kind != LOOM_SCHEDULE_ZB_V || s.m >= 2 * s.p - 1;
        if (exact ? !(fabs(bubble - theory) < 1e-12) : !(bubble >= theory - 1e-12))
            fail_msg("%s p%d v%d m%d stage %d: bubble %g, theory %g", loom_schedule_kind_name(s.kind), s.p, s.v, s.m, i, bubble, theory);
    }
    loom_timeline_free(&line);
}

/* Backwards and weight gradients of a chunk ascend, so gradients are summed in one order whatever the schedule. */
static void check_ascending(const loom_schedule *schedule)
{
    for (int stage = 0; stage < schedule->stages; stage++)
        for (int kind = LOOM_FORWARD; kind <= LOOM_BACKWARD_WEIGHT; kind++) {
            int next[MOST_STAGES * MOST_CHUNKS] = {0};
            for (int i = 0; i < schedule->stage[stage].count; i++) {
                const loom_action *a = &schedule->stage[stage].at[i];
                if (a->kind == kind)
                    assert_int_equal(a->micro_batch, next[a->chunk]++);
            }
        }
}

static void check_shape(shape s)
{
    loom_schedule *schedule;
    loom_schedule_facts facts;
    loom_status status = loom_schedule_generate(s.kind, s.p, s.v, s.m, &schedule);

    assert_int_equal(status, is_legal(s) ? LOOM_OK : LOOM_E_INVALID);
    if (status < 0)
        return;
    assert_ok(loom_schedule_verify(schedule, -1, &facts));
    check_peaks(s, &facts);
    loom_schedule_facts_free(&facts);
    check_ascending(schedule);
    check_bubble(s, schedule);
    assert_ok(loom_schedule_add_comm(schedule));
    assert_ok(loom_schedule_verify(schedule, 0, NULL)); /* our posting of receives needs no buffer at all */
    check_bubble(s, schedule);
    loom_schedule_free(schedule);
}

static void check_kind(loom_schedule_kind kind)
{
    for (int p = 1; p <= MOST_STAGES; p++)
        for (int v = 1; v <= MOST_CHUNKS; v++)
            for (int m = 1; m <= MOST_MICRO_BATCHES; m++)
                check_shape((shape){kind, p, v, m});
}

static void gpipe_is_proved(void **state) { check_kind(LOOM_SCHEDULE_GPIPE); }
static void one_f_one_b_is_proved(void **state) { check_kind(LOOM_SCHEDULE_1F1B); }
static void interleaved_is_proved(void **state) { check_kind(LOOM_SCHEDULE_INTERLEAVED); }
static void zb_h1_is_proved(void **state) { check_kind(LOOM_SCHEDULE_ZB_H1); }
static void zb_v_is_proved(void **state) { check_kind(LOOM_SCHEDULE_ZB_V); }

static void published_figures_hold(void **state)
{
    loom_schedule *schedule;
    loom_schedule_facts facts;

    assert_float_equal(loom_schedule_ideal_bubble(LOOM_SCHEDULE_1F1B, 8, 1, 32), 0.21875, 1e-12);
    assert_float_equal(loom_schedule_ideal_bubble(LOOM_SCHEDULE_INTERLEAVED, 8, 2, 32), 0.109375, 1e-12);
    assert_float_equal(loom_schedule_ideal_bubble(LOOM_SCHEDULE_INTERLEAVED, 4, 3, 8), 0.125, 1e-12);
    assert_float_equal(loom_schedule_ideal_bubble(LOOM_SCHEDULE_ZB_H1, 8, 1, 32) / loom_schedule_ideal_bubble(LOOM_SCHEDULE_1F1B, 8, 1, 32), 1 / 3.0, 1e-12);
    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_INTERLEAVED, 8, 3, 32, &schedule));
    assert_ok(loom_schedule_verify(schedule, -1, &facts));
    assert_float_equal(facts.peak_in_flight[0] / 3.0, 10.333, 1e-3);
    loom_schedule_facts_free(&facts);
    loom_schedule_free(schedule);
}

static void the_in_flight_counts_of_the_reported_case(void **state)
{
    static const struct { loom_schedule_kind kind; int m, peak[4]; } facts[] = {
        {LOOM_SCHEDULE_1F1B, 8, {4, 3, 2, 1}}, {LOOM_SCHEDULE_1F1B, 2, {2, 2, 2, 1}}, {LOOM_SCHEDULE_GPIPE, 8, {8, 8, 8, 8}}};

    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        loom_schedule *schedule;
        loom_schedule_facts found;

        assert_ok(loom_schedule_generate(facts[i].kind, 4, 1, facts[i].m, &schedule));
        assert_ok(loom_schedule_verify(schedule, -1, &found));
        assert_memory_equal(found.peak_in_flight, facts[i].peak, sizeof facts[i].peak);
        loom_schedule_facts_free(&found);
        loom_schedule_free(schedule);
    }
}

static void wrong_numbers_are_refused_with_the_nearest(void **state)
{
    loom_schedule *schedule;

    assert_refused(loom_schedule_generate(LOOM_SCHEDULE_INTERLEAVED, 4, 2, 6, &schedule), LOOM_E_INVALID, "pp=4", "4 and 8");
    assert_refused(loom_schedule_generate(LOOM_SCHEDULE_1F1B, 4, 2, 8, &schedule), LOOM_E_INVALID, "vpp=1");
    assert_refused(loom_schedule_generate(LOOM_SCHEDULE_1F1B, 0, 1, 8, &schedule), LOOM_E_INVALID, "0 stages");
    assert_refused(loom_schedule_generate(LOOM_SCHEDULE_1F1B, 4, 1, 0, &schedule), LOOM_E_INVALID, "0 micro-batches");
    assert_refused(loom_schedule_generate((loom_schedule_kind)99, 4, 1, 8, &schedule), LOOM_E_INVALID, "schedule=99");
}

static void a_layout_gives_its_schedule_with_comm(void **state)
{
    loom_layout layout;
    loom_schedule *schedule;

    loom_layout_default(NULL, &layout);
    layout.pp = 2;
    layout.vpp = 2;
    layout.dp = 3;
    layout.schedule = LOOM_SCHEDULE_INTERLEAVED;
    assert_refused(loom_schedule_for_layout(&layout, &schedule), LOOM_E_INVALID, "0 micro-batches");
    layout.global_batch = 12;
    assert_ok(loom_schedule_for_layout(&layout, &schedule));
    assert_true(schedule->has_comm);
    assert_int_equal(schedule->micro_batches, 4);
    assert_ok(loom_schedule_verify(schedule, 0, NULL));
    assert_refused(loom_schedule_add_comm(schedule), LOOM_E_INVALID, "already");
    loom_schedule_free(schedule);
}

/* Two receives are enough for 1F1B: one in use, the next on its way. */
static void receives_are_posted_one_ahead(void **state)
{
    loom_schedule *s;
    loom_schedule_facts facts;

    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_1F1B, 4, 1, 8, &s));
    assert_ok(loom_schedule_add_comm(s));
    for (int stage = 0; stage < 4; stage++) {
        int posted[2] = {0}, used[2] = {0};
        for (int i = 0; i < s->stage[stage].count; i++) {
            const loom_action *a = &s->stage[stage].at[i];
            int direction = a->kind == LOOM_BACKWARD;
            posted[0] += a->kind == LOOM_RECV_F;
            posted[1] += a->kind == LOOM_RECV_B;
            if (a->kind <= LOOM_BACKWARD && loom_action_source(s, a) >= 0) {
                assert_true(posted[direction] >= least(used[direction] + 2, 8));
                used[direction]++;
            }
        }
    }
    assert_ok(loom_schedule_verify(s, 0, &facts));
    for (int stage = 0; stage < 4; stage++)
        assert_in_range(facts.peak_receives[stage], 2, 4); /* of each direction at most two; the end stages have one direction */
    loom_schedule_facts_free(&facts);
    loom_schedule_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpipe_is_proved),
        cmocka_unit_test(one_f_one_b_is_proved),
        cmocka_unit_test(interleaved_is_proved),
        cmocka_unit_test(zb_h1_is_proved),
        cmocka_unit_test(zb_v_is_proved),
        cmocka_unit_test(published_figures_hold),
        cmocka_unit_test(the_in_flight_counts_of_the_reported_case),
        cmocka_unit_test(wrong_numbers_are_refused_with_the_nearest),
        cmocka_unit_test(a_layout_gives_its_schedule_with_comm),
        cmocka_unit_test(receives_are_posted_one_ahead),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
