/* Layout files: read, written, read again; all problems at once. */
#include <rankloom/layout.h>

#include <unistd.h>

#include "check.h"

static const loom_model model = {.layers = 8, .hidden = 64, .heads = 16, .kv_heads = 16, .head_dim = 4, .ffn = 128, .vocab = 131, .seq = 64};
static const loom_model moe = {.layers = 8, .hidden = 64, .heads = 16, .kv_heads = 16, .head_dim = 4, .ffn = 128, .vocab = 131, .seq = 64,
                               .moe = {.experts = 8, .top_k = 2, .ffn = 32, .every = 1}};

static loom_status read_text(const char *text, const loom_model *m, int world, loom_layout *layout)
{
    loom_config *config;
    loom_reader *reader;
    loom_status status;

    loom_layout_default(m, layout);
    assert_ok(loom_config_parse("run.yaml", text, strlen(text), &config));
    assert_ok(loom_reader_open(config, &reader));
    loom_layout_read(reader, loom_config_root(config), m, world, layout);
    status = loom_reader_finish(reader);
    loom_config_free(config);
    return status;
}

static void absent_degrees_are_one_and_dp_is_what_is_left(void **state)
{
    loom_layout layout;

    assert_ok(read_text("{tp: 2, pp: 2}", &model, 8, &layout));
    assert_int_equal(layout.dp, 2);
    assert_int_equal(layout.cp, 1);
    assert_int_equal(layout.vpp, 1);
    assert_int_equal(layout.n_chunks, 2);
    assert_int_equal(layout.chunk_layers[0], 4);
    assert_ok(read_text("{tp: 2, pp: 2, dp: auto}", &model, 8, &layout));
    assert_int_equal(layout.dp, 2);
    assert_ok(read_text("{tp: 2, pp: auto}", &model, 8, &layout));
    assert_int_equal(layout.pp, 4);
    assert_int_equal(layout.dp, 1);
    assert_ok(read_text("{}", &model, 4, &layout));
    assert_int_equal(layout.dp, 4);
}

static void two_autos_and_a_world_that_does_not_divide_are_refused(void **state)
{
    loom_layout layout;

    assert_refused(read_text("{tp: auto, pp: auto}", &model, 8, &layout), LOOM_E_INVALID, "run.yaml:1", "auto", "only one");
    assert_refused(read_text("{tp: 2, pp: 2, dp: 4}", &model, 8, &layout), LOOM_E_INVALID, "tp=2 x pp=2 x cp=1 x dp=4 = 16", "world has 8");
    assert_refused(read_text("{tp: automatic}", &model, 8, &layout), LOOM_E_INVALID, "tp");
}

static void what_the_file_gives_is_told_from_what_it_leaves(void **state)
{
    loom_layout layout;

    assert_refused(read_text("{tp: 4, ep: 4, etp: 4}", &moe, 4, &layout), LOOM_E_INVALID, "ep=4 (given) x etp=4 (given) = 16", "tp=4 (given)",
                   "cp=1 (default)", "dp=1 (what is left of the world)");
    assert_ok(read_text("{tp: 4, ep: 4, etp: 1}", &moe, 4, &layout));
    assert_ok(read_text("{tp: 4, ep: 4}", &moe, 4, &layout));
}

static void all_problems_of_a_section_come_together(void **state)
{
    loom_layout layout;

    assert_refused(read_text("tp: 2\nschedul: 1f1b\nzero: 7\nsequence_parallel: maybe\norder: [tp, dp, xx, pp]\n", &model, 4, &layout), LOOM_E_INVALID,
                   "run.yaml:2", "schedule", "run.yaml:3", "run.yaml:4", "run.yaml:5", "'xx'");
    assert_refused(read_text("tp: 3\npp: 16\nvpp: 2\nschedule: 1f1b\n", &model, 48, &layout), LOOM_E_INVALID, "16 heads", "8 layers", "schedule=1f1b");
}

static void several_chunks_are_interleaved_unless_said_otherwise(void **state)
{
    loom_layout layout;

    assert_ok(read_text("{pp: 2, vpp: 2}", &model, 2, &layout));
    assert_int_equal(layout.schedule, LOOM_SCHEDULE_INTERLEAVED);
    assert_ok(read_text("{pp: 2, vpp: 2, schedule: zb-v}", &model, 2, &layout));
    assert_int_equal(layout.schedule, LOOM_SCHEDULE_ZB_V);
    assert_int_equal(loom_layout_stage_of_chunk(&layout, 2), 1);
}

static void an_absent_section_is_one_rank_or_dp(void **state)
{
    loom_config *config;
    loom_reader *reader;
    loom_layout layout;

    loom_layout_default(&model, &layout);
    assert_ok(loom_config_parse("run.yaml", "{}", 2, &config));
    assert_ok(loom_reader_open(config, &reader));
    loom_layout_read(reader, NULL, &model, 2, &layout);
    assert_ok(loom_reader_finish(reader));
    assert_int_equal(layout.dp, 2);
    loom_config_free(config);
}

static void a_saved_layout_reads_back_the_same(void **state)
{
    static const char *const texts[] = {
        "{tp: 2, pp: 2, dp: 3, zero: 1, sequence_parallel: true, micro_batch: 2, global_batch: 12, seq: 32, layers_per_stage: [3, 5]}",
        "{pp: 2, vpp: 2, cp: 2, cp_kind: ulysses, recompute: selective, order: [dp, pp, cp, tp], schedule: zb-v}",
        "{tp: 4, ep: 4, etp: 2, dp: 2, zero: 3, recompute: full}",
        "{cp: 4, cp_kind: hybrid, cp_inner: 2}",
    };
    char path[64], again[4096];
    FILE *file;

    snprintf(path, sizeof path, "/tmp/loom_layout_%d.yaml", getpid());
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        loom_layout layout, read;

        assert_ok(read_text(texts[i], i == 2 ? &moe : &model, 0, &layout));
        assert_ok(loom_layout_save(&layout, path));
        file = fopen(path, "r");
        again[fread(again, 1, sizeof again - 1, file)] = '\0';
        fclose(file);
        assert_ok(read_text(again, i == 2 ? &moe : &model, 0, &read));
        read.given = layout.given; /* a saved file names every degree */
        assert_memory_equal(&read, &layout, sizeof layout);
    }
    unlink(path);
    loom_layout layout;
    loom_layout_default(&model, &layout);
    assert_refused(loom_layout_save(&layout, "/nonexistent/layout.yaml"), LOOM_E_IO, "/nonexistent/layout.yaml");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_degrees_are_one_and_dp_is_what_is_left),
        cmocka_unit_test(two_autos_and_a_world_that_does_not_divide_are_refused),
        cmocka_unit_test(what_the_file_gives_is_told_from_what_it_leaves),
        cmocka_unit_test(all_problems_of_a_section_come_together),
        cmocka_unit_test(several_chunks_are_interleaved_unless_said_otherwise),
        cmocka_unit_test(an_absent_section_is_one_rank_or_dp),
        cmocka_unit_test(a_saved_layout_reads_back_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
