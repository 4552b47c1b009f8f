/* gpt_3d with graphs and without: the same bits, whatever the layout and however replays and steps that are enqueued take turns; and the same bytes sent. */
#include "check.h"
#include "harness/on_ranks.h"
#include "parallel/truth.h"
#include "trainer.h"

#include <sys/mman.h>

enum { STEPS = 6, MOST_PARAMS = 200 };

static const rank_options on_cuda = {.device = LOOM_CUDA, .deadline_s = 160, .comm_deadline_s = 100};

/* What a run leaves behind. */
typedef struct outcome {
    double loss[STEPS], grad_norm[STEPS];
    int n_weights;
    uint64_t weights[MOST_PARAMS]; /* a hash of each parameter's bits */
    loom_traffic traffic[STEPS];   /* of rank 0, all its axes */
    bool replayed[STEPS], captured;
} outcome;

static truth expected;
static gpt_run *run;
static outcome *results; /* shared with the ranks */
static int result;

/* Which steps are enqueued although they could be replayed. */
typedef bool eager_fn(int step);
static eager_fn *eagerly;

static bool always(int step)
{
    (void)step;
    return true;
}

static bool never(int step)
{
    (void)step;
    return false;
}

static bool every_third(int step)
{
    return step % 3 == 2;
}

/* --- a run ------------------------------------------------------------------------------------------------------------------- */

static loom_status keep_weight(void *context, const loom_shard *spec, const float *data)
{
    outcome *out = context;
    int64_t count = loom_shard_global_count(spec);
    uint64_t hash = 0xcbf29ce484222325u;

    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &data[i], sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    assert_true(out->n_weights < MOST_PARAMS);
    out->weights[out->n_weights++] = hash;
    return LOOM_OK;
}

static void add_traffic(const gpt_trainer *t, loom_traffic *sum)
{
    memset(sum, 0, sizeof *sum);
    for (int axis = 0; axis < LOOM_AXES; axis++) {
        loom_traffic traffic;
        if (!t->mesh->axis[axis])
            continue;
        loom_comm_traffic(t->mesh->axis[axis], &traffic);
        for (int kind = 0; kind < LOOM_CALL_KINDS; kind++) {
            sum->calls[kind] += traffic.calls[kind];
            sum->bytes[kind] += traffic.bytes[kind];
        }
    }
}

static void reset_traffic(gpt_trainer *t)
{
    for (int axis = 0; axis < LOOM_AXES; axis++)
        if (t->mesh->axis[axis])
            loom_comm_reset_traffic(t->mesh->axis[axis]);
}

/* Text is generated in the middle: its shapes and its memory are others, and the graph does not notice. */
static void generate(gpt_trainer *t)
{
    int32_t tokens[TRUTH_SEQ], targets[TRUTH_SEQ];
    float *logits = calloc((size_t)run->model.vocab, sizeof *logits);

    assert_non_null(logits);
    assert_ok(gpt_data_sample(&t->data, 0, tokens, targets));
    assert_ok(gpt_stage_logits(t->stage, tokens, 1, TRUTH_SEQ, TRUTH_SEQ - 1, 1, logits));
    free(logits);
}

static void train_step(gpt_trainer *t, int step, outcome *out)
{
    gpt_step now;

    run->train.eager = eagerly(step);
    reset_traffic(t);
    assert_ok(gpt_trainer_step(t, step, &now));
    out->loss[step] = now.loss;
    out->grad_norm[step] = now.grad_norm;
    add_traffic(t, &out->traffic[step]);
    out->replayed[step] = t->replay.replayed;
    if (step == STEPS / 2)
        generate(t);
}

static void train(loom_comm *world, loom_stream *stream)
{
    static outcome unused; /* what other ranks than the first keep */
    outcome *out = loom_comm_rank(world) == 0 ? &results[result] : &unused;
    gpt_trainer *t;

    (void)stream;
    assert_ok(gpt_trainer_open(run, world, &t));
    for (int step = 0; step < STEPS; step++)
        train_step(t, step, out);
    out->captured = t->replay.graph != NULL;
    assert_ok(loom_weights_gather(t->mesh, &t->stage->params, LOOM_WEIGHTS_VALUES, keep_weight, out));
    gpt_trainer_close(t);
}

static void train_into(int place, eager_fn *fn)
{
    result = place;
    eagerly = fn;
    memset(&results[place], 0, sizeof results[place]);
    on_ranks_with(&on_cuda, loom_layout_world(&run->layout), train);
}

/* --- layouts ------------------------------------------------------------------------------------------------------------------- */

static void open_run(const char *model)
{
    truth_open(model, &expected);
    run = truth_run(&expected);
    run->train.steps = STEPS;
    run->train.warmup = 0;
    run->train.min_lr = run->train.lr;
}

static void close_run(void)
{
    free(run);
    truth_close(&expected);
}

static void expect_same(const outcome *want, const outcome *got)
{
    char text[256];

    loom_layout_describe(&run->layout, text, sizeof text);
    for (int i = 0; i < STEPS; i++) {
        if (got->loss[i] != want->loss[i] || got->grad_norm[i] != want->grad_norm[i])
            fail_msg("%s %s step %d: loss %.17g and gradient norm %.17g, not %.17g and %.17g", run->model.name, text, i, got->loss[i], got->grad_norm[i],
                     want->loss[i], want->grad_norm[i]);
        if (memcmp(&got->traffic[i], &want->traffic[i], sizeof got->traffic[i]) != 0)
            fail_msg("%s %s step %d: other bytes or calls were counted", run->model.name, text, i);
    }
    assert_int_equal(got->n_weights, want->n_weights);
    assert_memory_equal(got->weights, want->weights, sizeof got->weights);
}

/* The first step is enqueued, the second is captured and launched, the third is the first replay. */
static void expect_replays(const outcome *out, eager_fn *fn)
{
    assert_true(out->captured);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(out->replayed[i], i >= 2 && !fn(i));
}

static const loom_layout dense[] = {
    {.tp = 1},
    {.dp = 2, .zero = 1},
    {.tp = 2, .sequence_parallel = true, .recompute = LOOM_RECOMPUTE_FULL},
    {.pp = 2, .dp = 2},
    {.pp = 2, .schedule = LOOM_SCHEDULE_ZB_V},
    {.pp = 2, .dp = 4, .zero = 3}, /* stage 0 uses three units a step: an odd count for two places */
    {.cp = 2, .cp_kind = LOOM_CP_RING, .tp = 2},
    {.cp = 2, .cp_kind = LOOM_CP_ULYSSES, .zero = 1},
};

static void in_layouts(const char *model, int first, int last)
{
    open_run(model);
    for (int i = first; i <= last; i++) {
        truth_use_layout(run, dense[i]);
        train_into(0, always);
        assert_false(results[0].captured);
        train_into(1, never);
        expect_replays(&results[1], never);
        expect_same(&results[0], &results[1]);
        train_into(1, every_third);
        expect_replays(&results[1], every_third);
        expect_same(&results[0], &results[1]);
    }
    close_run();
}

static void gpt2_has_the_same_bits_with_graphs(void **state)
{
    (void)state;
    in_layouts("gpt2_tiny", 0, 3);
}

static void llama_has_the_same_bits_with_graphs(void **state)
{
    (void)state;
    in_layouts("llama_tiny", 3, 7);
}

static void experts_are_enqueued_anew(void **state)
{
    (void)state;
    open_run("mixtral_tiny");
    truth_use_layout(run, (loom_layout){.tp = 1});
    train_into(0, never);
    assert_false(results[0].captured);
    close_run();
}

/* A capture that fails says how to do without; the run ends there on every rank. */
static void fails_to_capture(loom_comm *world, loom_stream *stream)
{
    gpt_trainer *t;
    gpt_step now;

    (void)stream;
    assert_ok(gpt_trainer_open(run, world, &t));
    assert_ok(gpt_trainer_step(t, 0, &now));
    setenv("LOOM_DOUBLE_FAIL", "cudaGraphInstantiate:1", 1);
    assert_refused(gpt_trainer_step(t, 1, &now), LOOM_E_IO, "cudaGraphInstantiate", "train.graphs=false enqueues each step anew");
    gpt_trainer_close(t);
}

static void a_capture_that_fails_says_how_to_do_without(void **state)
{
    (void)state;
    open_run("gpt2_tiny");
    truth_use_layout(run, (loom_layout){.tp = 2});
    run->train.eager = false;
    on_ranks_with(&on_cuda, 2, fails_to_capture);
    close_run();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_has_the_same_bits_with_graphs),
        cmocka_unit_test(llama_has_the_same_bits_with_graphs),
        cmocka_unit_test(experts_are_enqueued_anew),
        cmocka_unit_test(a_capture_that_fails_says_how_to_do_without),
    };

    results = mmap(NULL, 2 * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return results == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
