/* torch's CSV, read and written: both forms, both ways, and what is refused. */
#include <rankloom/schedule.h>

#include <unistd.h>

#include "check.h"

static const char *temporary(void)
{
    static char path[64];

    snprintf(path, sizeof path, "/tmp/loom_schedule_%d.csv", getpid());
    return path;
}

static bool same(const loom_schedule *a, const loom_schedule *b)
{
    if (a->stages != b->stages || a->chunks_per_stage != b->chunks_per_stage || a->micro_batches != b->micro_batches || a->has_comm != b->has_comm)
        return false;
    for (int c = 0; c < a->stages * a->chunks_per_stage; c++)
        if (a->stage_of_chunk[c] != b->stage_of_chunk[c])
            return false;
    for (int i = 0; i < a->stages; i++) {
        if (a->stage[i].count != b->stage[i].count)
            return false;
        for (int k = 0; k < a->stage[i].count; k++) {
            const loom_action *x = &a->stage[i].at[k], *y = &b->stage[i].at[k];
            if (x->kind != y->kind || x->peer != y->peer || x->chunk != y->chunk || x->micro_batch != y->micro_batch)
                return false;
        }
    }
    return true;
}

static void what_is_written_is_read_back(void **state)
{
    static const struct { loom_schedule_kind kind; int v; } kinds[] = {{LOOM_SCHEDULE_GPIPE, 1}, {LOOM_SCHEDULE_1F1B, 1},
        {LOOM_SCHEDULE_INTERLEAVED, 3}, {LOOM_SCHEDULE_ZB_H1, 1}, {LOOM_SCHEDULE_ZB_V, 2}};

    for (int p = 1; p <= 5; p++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (int lowered = 0; lowered < 2; lowered++) {
                loom_schedule *written, *read;

                assert_ok(loom_schedule_generate(kinds[k].kind, p, kinds[k].v, 2 * p, &written));
                if (lowered)
                    assert_ok(loom_schedule_add_comm(written));
                assert_ok(loom_schedule_save_csv(written, temporary()));
                assert_ok(loom_schedule_load_csv(temporary(), 0, 0, &read));
                written->has_comm &= p > 1; /* one stage has no sends that could tell */
                assert_true(same(written, read));
                loom_schedule_free(written);
                loom_schedule_free(read);
            }
    unlink(temporary());
}

static void assert_written(const loom_schedule *s, const char *expected)
{
    char found[1024] = "";
    FILE *file;

    assert_ok(loom_schedule_save_csv(s, temporary()));
    file = fopen(temporary(), "r");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
    unlink(temporary());
    assert_string_equal(found, expected);
}

static void both_forms_are_those_of_torch(void **state)
{
    loom_schedule *s;

    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_1F1B, 2, 1, 2, &s));
    assert_written(s, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    assert_ok(loom_schedule_add_comm(s));
    assert_written(s, "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0WAIT_SEND_F0,0B1,0WAIT_SEND_F1\n"
                      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n");
    loom_schedule_free(s);
}

static loom_status parse(const char *text, int stages, int chunks, loom_schedule **s)
{
    return loom_schedule_parse_csv("s.csv", text, strlen(text), stages, chunks, s);
}

static void idle_slots_overlaps_and_collectives_are_read(void **state)
{
    static const struct { loom_action_kind kind; int chunk, micro_batch; } expected[] = {
        {LOOM_UNSHARD, 0, 0}, {LOOM_FORWARD, 0, 0}, {LOOM_FORWARD, 0, 1}, {LOOM_BACKWARD_INPUT, 0, 0}, {LOOM_BACKWARD_WEIGHT, 0, 0},
        {LOOM_BACKWARD, 0, 1}, {LOOM_RESHARD, 0, 0}, {LOOM_REDUCE_GRAD, 0, 0}};
    loom_schedule *s;

    assert_ok(parse("0UNSHARD,0F0,,(0F1;0I0)OVERLAP_F_B, 0W0 ,\"0B1\",0RESHARD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,\r\n", 0, 0, &s));
    assert_int_equal(s->stages, 1);
    assert_int_equal(s->micro_batches, 2);
    assert_int_equal(s->stage[0].count, sizeof expected / sizeof *expected);
    for (int i = 0; i < s->stage[0].count; i++) {
        assert_int_equal(s->stage[0].at[i].kind, expected[i].kind);
        assert_int_equal(s->stage[0].at[i].micro_batch, expected[i].micro_batch);
    }
    assert_ok(loom_schedule_verify(s, -1, NULL));
    loom_schedule_free(s);
}

static void chunks_sit_where_they_are_computed(void **state)
{
    loom_schedule *s;

    assert_ok(parse("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", 2, 2, &s));
    assert_memory_equal(s->stage_of_chunk, ((int[]){0, 1, 1, 0}), 4 * sizeof(int));
    loom_schedule_free(s);
}

static void all_problems_of_a_file_are_told_at_once(void **state)
{
    loom_schedule *s;

    assert_refused(parse("0F0,0X0,F1\n1F0,1F,(1F0;1B0)OVERLAP\n", 0, 0, &s), LOOM_E_INVALID, "s.csv: row 1, cell 2: '0X0' is no action",
                   "row 1, cell 3: 'F1'", "row 2, cell 2: '1F'", "row 2, cell 3: a cell in brackets ends in )OVERLAP_F_B");
    assert_refused(parse("0F0,1F0\n1B0,0B0,3F0,\n", 0, 0, &s), LOOM_E_INVALID, "row 2 computes on chunk 0, which row 1 has",
                   "row 2 computes on chunk 1, which row 1 has", "no row computes on chunk 2");
    assert_refused(parse("0F0,0B0\n1F0,1B0\n", 3, 1, &s), LOOM_E_INVALID, "2 rows, 3 stages are wanted");
    assert_refused(parse("0F0,0B0\n1F0,1B0\n", 2, 2, &s), LOOM_E_INVALID, "1 chunks a stage, 2 are wanted");
    assert_refused(parse("0F0,1F0,2F0\n\n", 0, 0, &s), LOOM_E_INVALID, "3 chunks on 2 stages");
    assert_refused(parse("", 0, 0, &s), LOOM_E_INVALID, "no action");
    assert_refused(parse("0F0,0RECV_F0\n1F0,1SEND_F0\n", 0, 0, &s), LOOM_E_INVALID, "0RECV_F0", "1SEND_F0", "no such neighbour");
    assert_refused(parse("99999999999999999999F0\n", 0, 0, &s), LOOM_E_INVALID, "is no action");
    assert_refused(parse("0F999999999,0B0\n", 0, 0, &s), LOOM_E_INVALID, "1000000000 micro-batches", "only 2 actions");
    assert_refused(loom_schedule_load_csv("/nonexistent/s.csv", 0, 0, &s), LOOM_E_IO, "/nonexistent/s.csv");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(both_forms_are_those_of_torch),
        cmocka_unit_test(idle_slots_overlaps_and_collectives_are_read),
        cmocka_unit_test(chunks_sit_where_they_are_computed),
        cmocka_unit_test(all_problems_of_a_file_are_told_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
