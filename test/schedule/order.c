/* Megatron's order: what ours is in it, and back. */
#include <rankloom/schedule.h>

#include "check.h"

static char *text_of(loom_schedule_kind kind, int p, int v, int m)
{
    loom_schedule *s;
    char *text = NULL;

    assert_ok(loom_schedule_generate(kind, p, v, m, &s));
    assert_ok(loom_schedule_add_comm(s));
    assert_ok(loom_schedule_order_text(s, &text));
    loom_schedule_free(s);
    return text;
}

static void interleaved_is_told_by_signed_chunks(void **state)
{
    char *text = text_of(LOOM_SCHEDULE_INTERLEAVED, 2, 2, 4);

    /* warm-up of stage 0: 2 (stages below) + 2 (one more chunk) = 4, of stage 1: 2 */
    assert_string_equal(text, "1 1 2 2 1 -2 1 -2 2 -1 2 -1 -2 -2 -1 -1\n"
                              "1 1 2 -2 2 -2 1 -1 1 -1 2 -2 2 -2 -1 -1\n");
    loom_text_free(text);
}

static void what_is_told_is_read_back(void **state)
{
    static const struct { loom_schedule_kind kind; int v; } kinds[] = {{LOOM_SCHEDULE_GPIPE, 2}, {LOOM_SCHEDULE_1F1B, 1}, {LOOM_SCHEDULE_INTERLEAVED, 3}};

    for (size_t k = 0; k < 3; k++)
        for (int p = 1; p <= 4; p++) {
            char *text = text_of(kinds[k].kind, p, kinds[k].v, 2 * p), *again;
            loom_schedule *s;

            assert_ok(loom_schedule_parse_order("o", text, strlen(text), &s));
            assert_ok(loom_schedule_verify(s, -1, NULL));
            assert_int_equal(s->micro_batches, 2 * p);
            assert_int_equal(s->chunks_per_stage, kinds[k].v);
            assert_ok(loom_schedule_order_text(s, &again));
            assert_string_equal(text, again);
            loom_text_free(text);
            loom_text_free(again);
            loom_schedule_free(s);
        }
}

static void what_it_cannot_say_is_refused(void **state)
{
    static const char folded[] = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n";
    static const char backwards_descend[] = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n";
    loom_schedule *s;
    char *text;

    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_ZB_H1, 2, 1, 2, &s));
    assert_refused(loom_schedule_order_text(s, &text), LOOM_E_UNSUPPORTED, "no I (input gradient)");
    loom_schedule_free(s);
    assert_ok(loom_schedule_parse_csv("c", folded, strlen(folded), 0, 0, &s));
    assert_refused(loom_schedule_order_text(s, &text), LOOM_E_UNSUPPORTED, "has chunk 3 on stage 1, the schedule on 0");
    loom_schedule_free(s);
    assert_ok(loom_schedule_parse_csv("c", backwards_descend, strlen(backwards_descend), 0, 0, &s));
    assert_refused(loom_schedule_order_text(s, &text), LOOM_E_UNSUPPORTED, "B of micro-batch 1, chunk 0 is out of turn");
    loom_schedule_free(s);
}

static loom_status parse(const char *text, loom_schedule **s)
{
    return loom_schedule_parse_order("o.txt", text, strlen(text), s);
}

static void nonsense_is_refused(void **state)
{
    loom_schedule *s;

    assert_refused(parse("1 2 x\n", &s), LOOM_E_INVALID, "o.txt: line of stage 0: 'x' is no action");
    assert_refused(parse("# one\n1 -1\n1 0\n", &s), LOOM_E_INVALID, "line of stage 1: '0'");
    assert_refused(parse("1 1.5\n", &s), LOOM_E_INVALID, "'1.5'");
    assert_refused(parse("1 -9999999999\n", &s), LOOM_E_INVALID, "is no action");
    assert_refused(parse("# nothing\n", &s), LOOM_E_INVALID, "no action");
    assert_refused(parse("1 1000\n1 1000\n", &s), LOOM_E_INVALID, "2 stages x 1000 chunks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleaved_is_told_by_signed_chunks),
        cmocka_unit_test(what_is_told_is_read_back),
        cmocka_unit_test(what_it_cannot_say_is_refused),
        cmocka_unit_test(nonsense_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
