/* Groups are made while a trainer opens, in one order on every rank, and never inside a step: whoever makes them on first use hangs as soon as
 * two ranks come to their first use in different orders. */
#include "check.h"
#include "harness/on_ranks.h"
#include "trainer.h"
#include "truth.h"

static gpt_run *run;

static void make_run(const loom_model *model)
{
    run = calloc(1, sizeof *run);
    assert_non_null(run);
    run->model = *model;
    run->model.layers = 8; /* a layer for every chunk */
    snprintf(run->data.path, sizeof run->data.path, "%s", test_data("fixtures/tokens.bin"));
    run->data.tokenizer = GPT_UINT16;
    run->train.steps = 3;
    run->train.lr = 3e-3;
    run->train.adamw = (loom_adamw_config){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1.0};
}

/* Case B17: four stages of two chunks, tp of 2, two micro-batches a step, three steps. */
static void lay_out_b17(void)
{
    loom_layout_default(&run->model, &run->layout);
    run->layout.tp = 2;
    run->layout.pp = 4;
    run->layout.vpp = 2;
    run->layout.schedule = LOOM_SCHEDULE_GPIPE;
    run->layout.micro_batch = 1;
    run->layout.global_batch = 2;
    run->layout.seq = TRUTH_SEQ;
    assert_ok(loom_layout_check(&run->layout, &run->model, 8));
}

static void train(loom_comm *world, loom_stream *stream)
{
    gpt_trainer *t;
    gpt_step result;
    int before = loom_comm_made(world), made;

    (void)stream;
    assert_ok(gpt_trainer_open(run, world, &t));
    made = loom_comm_made(world);
    assert_true(made > before);
    for (int step = 0; step < run->train.steps; step++) {
        assert_ok(gpt_trainer_step(t, step, &result));
        assert_int_equal(loom_comm_made(world), made);
    }
    gpt_trainer_close(t);
}

static void no_group_is_made_inside_a_step(void **state)
{
    truth expected;

    (void)state;
    truth_open("gpt2_tiny", &expected);
    make_run(&expected.model);
    lay_out_b17();
    on_ranks(8, train);
    free(run);
    truth_close(&expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_group_is_made_inside_a_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
