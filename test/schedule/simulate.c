/* Virtual time against closed forms: uneven stages, links with bandwidth and latency, blocking sends, gathered weights. */
#include <rankloom/schedule.h>

#include <math.h>

#include "check.h"

/* F 1 and B 2 on every stage, times a factor of the stage. */
typedef struct costs {
    double factor[16], transfer_us, latency_us, collective_us;
} costs;

static double action_us(void *context, int stage, const loom_action *a)
{
    const costs *c = context;

    if (a->kind == LOOM_UNSHARD || a->kind == LOOM_REDUCE_GRAD)
        return c->collective_us;
    return (a->kind == LOOM_BACKWARD ? 2 : 1) * c->factor[stage];
}

static double transfer_us(void *context, int from, int to, const loom_action *producer)
{
    return ((const costs *)context)->transfer_us;
}

static double latency_us(void *context, int from, int to)
{
    return ((const costs *)context)->latency_us;
}

static loom_timeline timeline_of(const loom_schedule *s, costs *c, double stall_share)
{
    const loom_schedule_costs hooks = {c, action_us, transfer_us, latency_us, stall_share};
    loom_timeline line;

    assert_ok(loom_schedule_simulate(s, &hooks, &line));
    return line;
}

static double makespan(loom_schedule_kind kind, int p, int m, costs *c, double stall_share)
{
    loom_schedule *s;
    loom_timeline line;
    double span;

    assert_ok(loom_schedule_generate(kind, p, 1, m, &s));
    line = timeline_of(s, c, stall_share);
    span = line.makespan_us;
    loom_timeline_free(&line);
    loom_schedule_free(s);
    return span;
}

static costs even(void)
{
    costs c = {{0}};

    for (int i = 0; i < 16; i++)
        c.factor[i] = 1;
    return c;
}

static void a_heavy_stage_costs_what_the_closed_form_says(void **state)
{
    static const struct { int stage; double span; } facts[] = {{0, 147.0}, {2, 149.4}, {7, 155.4}};

    for (size_t i = 0; i < 3; i++) {
        costs c = even();
        c.factor[facts[i].stage] = 1.4;
        assert_float_equal(makespan(LOOM_SCHEDULE_1F1B, 8, 32, &c, 0), facts[i].span, 1e-9);
    }
}

static void gpipe_is_filled_once_and_drained_once(void **state)
{
    for (int heavy = 0; heavy < 4; heavy++) {
        costs c = even();
        double sum = 3 + 2.5;

        c.factor[heavy] = 2.5;
        assert_float_equal(makespan(LOOM_SCHEDULE_GPIPE, 4, 8, &c, 0), 8 * 2.5 * 3 + (sum - 2.5) * 3, 1e-9); /* m max + sum - max, of F and of B */
    }
}

static void a_hop_of_one_micro_batch_adds_its_time_both_ways(void **state)
{
    costs c = even();

    c.transfer_us = 0.25;
    c.latency_us = 0.5;
    assert_float_equal(makespan(LOOM_SCHEDULE_1F1B, 4, 1, &c, 0), 4 * 3 + 6 * 0.75, 1e-12);
}

static void messages_of_a_link_go_one_after_another(void **state)
{
    costs c = even();

    c.transfer_us = 10; /* the link is what counts: 8 activations leave one after another, then F, B, and the last gradient comes back */
    c.latency_us = 1;
    assert_float_equal(makespan(LOOM_SCHEDULE_GPIPE, 2, 8, &c, 0), 1 + 8 * 10 + 1 + 1 /* last F */ + 8 * 10 + 2 + 1 + 2, 1e-9);
}

static void a_blocking_send_holds_its_stage_up(void **state)
{
    costs c = even();

    c.transfer_us = 0.5;
    /* the last activation is there at 8.5 or, after eight held-up forwards, at 12; the last gradient 8 B later, held up eight times more */
    assert_float_equal(makespan(LOOM_SCHEDULE_GPIPE, 2, 8, &c, 0), 8.5 + 1 + 8 * 2 + 0.5 + 2, 1e-12);
    assert_float_equal(makespan(LOOM_SCHEDULE_GPIPE, 2, 8, &c, 1), 8 * 1.5 + 1 + 8 * 2.5 + 2, 1e-12);
    assert_float_equal(makespan(LOOM_SCHEDULE_GPIPE, 1, 8, &c, 1), 24, 1e-12); /* nothing to send */
}

static loom_schedule *from_text(const char *text)
{
    loom_schedule *s;

    assert_ok(loom_schedule_parse_csv("orders", text, strlen(text), 0, 0, &s));
    return s;
}

static void gathered_weights_are_waited_for_and_reductions_run_beside(void **state)
{
    loom_schedule *s = from_text("0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n");
    costs c = even();
    loom_timeline line;

    c.collective_us = 5;
    line = timeline_of(s, &c, 0);
    assert_float_equal(line.at[0][2].start_us, 5, 1e-12);  /* F of chunk 0 waits for its weights */
    assert_float_equal(line.at[0][3].start_us, 10, 1e-12); /* chunk 1's were gathered while F ran */
    assert_int_equal(line.at[0][3].cause_index, 1);
    assert_float_equal(line.at[0][4].end_us, 13, 1e-12);
    assert_float_equal(line.at[0][6].end_us, 15, 1e-12); /* B of chunk 0 does not wait for the reduction beside it */
    assert_float_equal(line.makespan_us, 13 + 5 + 5, 1e-12);
    assert_float_equal(line.busy_us[0], 6, 1e-12);
    loom_timeline_free(&line);
    loom_schedule_free(s);
}

/* Every start is the end of its cause, or the cause's end plus the way; so the chain of causes leads to time 0. */
static void causes_chain_back_to_the_start(void **state)
{
    loom_schedule *s;
    costs c = even();
    loom_timeline line;
    int stage = 0, index;

    c.factor[2] = 1.7;
    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_ZB_H1, 5, 1, 12, &s));
    line = timeline_of(s, &c, 0);
    for (int i = 0; i < 5; i++)
        if (line.last_us[i] == line.makespan_us)
            stage = i;
    index = s->stage[stage].count - 1;
    for (int steps = 0; index >= 0; steps++) {
        const loom_action_time *at = &line.at[stage][index];
        assert_true(steps < 5 * 36);
        if (at->cause_index >= 0)
            assert_true(at->start_us == line.at[at->cause_stage][at->cause_index].end_us);
        else
            assert_true(at->start_us == 0);
        stage = at->cause_stage;
        index = at->cause_index;
    }
    loom_timeline_free(&line);
    loom_schedule_free(s);
}

static void an_order_that_cannot_run_is_refused(void **state)
{
    loom_schedule *s = from_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
    const loom_schedule_costs none = {0};
    loom_timeline line;

    assert_refused(loom_schedule_simulate(s, &none, &line), LOOM_E_INVALID, "stage 0 waits for ever in B of micro-batch 0");
    assert_refused(loom_schedule_add_comm(s), LOOM_E_INVALID, "waits for ever");
    loom_schedule_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_heavy_stage_costs_what_the_closed_form_says),
        cmocka_unit_test(gpipe_is_filled_once_and_drained_once),
        cmocka_unit_test(a_hop_of_one_micro_batch_adds_its_time_both_ways),
        cmocka_unit_test(messages_of_a_link_go_one_after_another),
        cmocka_unit_test(a_blocking_send_holds_its_stage_up),
        cmocka_unit_test(gathered_weights_are_waited_for_and_reductions_run_beside),
        cmocka_unit_test(causes_chain_back_to_the_start),
        cmocka_unit_test(an_order_that_cannot_run_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
