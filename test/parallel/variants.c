/* What a run may ask for besides its layout: packed documents, sequences of any length, an odd vocabulary, dropped choices, another dispatcher of tokens. What one rank
 * makes of it, every layout makes; padding and the dispatcher change nothing; documents packed into one sequence give what each gives alone; and every
 * layout chooses the same experts. */
#include "check.h"
#include "harness/on_ranks.h"
#include "trainer.h"
#include "truth.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STEPS = 3, TEXT = 2048, SEPARATOR = 10, MOST_PARAMS = 200 };

/* What a run leaves behind. Gradients are those of the first step, summed squares of each tensor. */
typedef struct outcome {
    int64_t counted;
    double loss[STEPS], grad_norm[STEPS];
    double dropped[STEPS];
    int n_gradients;
    double gradient[MOST_PARAMS];
} outcome;

static truth expected;
static gpt_run *run;
static outcome *results; /* shared with the ranks: [0] what is expected, [1] what came */
static int result;
static char text_path[64];

/* --- texts ------------------------------------------------------------------------------------------------------------------------------- */

/* Whether a document ends at token i. */
typedef bool ends_fn(int64_t i);

static bool nowhere(int64_t i)
{
    (void)i;
    return false;
}

static bool everywhere(int64_t i)
{
    (void)i;
    return true;
}

/* Long documents and short ones, empty ones among them, and a stretch of nothing but separators: of its ranks one counts hardly a token. */
static bool unevenly(int64_t i)
{
    return (i * i + 3 * i) % 37 < 4 || (i % 27 >= 7 && i % 27 < 14);
}

static bool every_eighth(int64_t i)
{
    return i % 8 == 7;
}

static void write_text(ends_fn *ends)
{
    FILE *file = fopen(text_path, "wb");

    assert_non_null(file);
    for (int64_t i = 0; i < TEXT; i++)
        assert_int_not_equal(fputc(ends(i) ? SEPARATOR : (int)(32 + i * i % 89), file), EOF);
    assert_int_equal(fclose(file), 0);
}

/* --- a run ------------------------------------------------------------------------------------------------------------------------------- */

static loom_status keep_gradient(void *context, const loom_shard *spec, const float *data)
{
    outcome *out = context;
    double sum = 0;

    assert_true(out->n_gradients < MOST_PARAMS);
    for (int64_t i = 0; i < loom_shard_global_count(spec); i++)
        sum += (double)data[i] * data[i];
    out->gradient[out->n_gradients++] = sqrt(sum);
    return LOOM_OK;
}

static void train(loom_comm *world, loom_stream *stream)
{
    outcome *out = &results[result], unused;
    loom_dp_result reduced;
    gpt_trainer *t;
    gpt_step step = {0};

    (void)stream;
    if (loom_comm_rank(world) != 0)
        out = &unused;
    out->n_gradients = 0;
    assert_ok(gpt_trainer_open(run, world, &t));
    assert_ok(gpt_trainer_load_batch(t, 0));
    assert_ok(gpt_trainer_forward_backward(t));
    assert_ok(loom_dp_reduce_only(t->dp, (double)gpt_trainer_tokens(t), &reduced));
    assert_ok(loom_weights_gather(t->mesh, &t->stage->params, LOOM_WEIGHTS_GRADIENTS, keep_gradient, out));
    out->counted = gpt_trainer_tokens(t);
    for (int i = 0; i < STEPS; i++) {
        assert_ok(gpt_trainer_step(t, i, &step));
        out->loss[i] = step.loss;
        out->grad_norm[i] = step.grad_norm;
        out->dropped[i] = step.load.dropped;
    }
    gpt_trainer_close(t);
}

static void open_run(const char *model, int64_t seq)
{
    truth_open(model, &expected);
    run = truth_run(&expected);
    snprintf(run->data.path, sizeof run->data.path, "%s", text_path);
    run->data.tokenizer = GPT_BYTES;
    run->data.packed = true;
    run->data.separator = SEPARATOR;
    run->layout.seq = seq;
}

static void close_run(void)
{
    free(run);
    truth_close(&expected);
}

static void train_into(int place)
{
    result = place;
    on_ranks(loom_layout_world(&run->layout), train);
}

/* Limits as in truth.h. A gradient that is 0 but for rounding is compared with all of them. */
static void compare(void)
{
    const outcome *want = &results[0], *got = &results[1];
    char text[256];

    loom_layout_describe(&run->layout, text, sizeof text);
    assert_int_equal(got->counted, want->counted);
    assert_int_equal(got->n_gradients, want->n_gradients);
    for (int i = 0; i < want->n_gradients; i++)
        if (!(fabs(got->gradient[i] - want->gradient[i]) <= TRUTH_GRADIENT * (want->gradient[i] + 1e-3 * want->grad_norm[0] * (double)want->counted)))
            fail_msg("%s %s: gradient %d has norm %.9g, not %.9g", run->model.name, text, i, got->gradient[i], want->gradient[i]);
    for (int i = 0; i < STEPS; i++) {
        assert_true(got->dropped[i] == want->dropped[i]);
        if (!(fabs(got->loss[i] - want->loss[i]) <= TRUTH_LOSS))
            fail_msg("%s %s step %d: loss %.9f, not %.9f", run->model.name, text, i, got->loss[i], want->loss[i]);
        if (!(fabs(got->grad_norm[i] - want->grad_norm[i]) <= TRUTH_GRAD_NORM * want->grad_norm[i]))
            fail_msg("%s %s step %d: gradient norm %.9f, not %.9f", run->model.name, text, i, got->grad_norm[i], want->grad_norm[i]);
    }
}

static void open_truth_run(const char *model)
{
    truth_open(model, &expected);
    run = truth_run(&expected);
}

/* What is expected is the fixture's curve; gradients of single tensors are those of one rank. */
static void read_truth_of(const char *model)
{
    open_truth_run(model);
    truth_use_layout(run, (loom_layout){0});
    train_into(0);
    for (int i = 0; i < STEPS; i++) {
        results[0].loss[i] = expected.loss[i];
        results[0].grad_norm[i] = expected.grad_norm[i];
    }
    assert_int_equal(results[0].counted, TRUTH_BATCH * TRUTH_SEQ);
}

/* --- every layout gives what one rank gives ------------------------------------------------------------------------------------------------ */

static const loom_layout dense[] = {
    {.cp = 2, .cp_kind = LOOM_CP_RING},
    {.cp = 2, .cp_kind = LOOM_CP_ALLGATHER, .dp = 2},
    {.cp = 4, .cp_kind = LOOM_CP_ULYSSES},
    {.cp = 4, .cp_kind = LOOM_CP_HYBRID, .recompute = LOOM_RECOMPUTE_FULL},
    {.tp = 2, .cp = 2, .sequence_parallel = true, .zero = 1},
    {.pp = 2, .cp = 2, .cp_kind = LOOM_CP_ULYSSES},
    {.tp = 2, .pp = 2},
    {.pp = 2, .cp = 2, .schedule = LOOM_SCHEDULE_ZB_H1},
    {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = LOOM_SCHEDULE_ZB_V},
};

static const loom_layout with_experts[] = {
    {.cp = 2, .ep = 2, .cp_kind = LOOM_CP_RING},
    {.tp = 2, .cp = 2, .ep = 2, .etp = 2, .sequence_parallel = true},
    {.tp = 2, .dp = 2, .ep = 4},
};

static void in_layouts(const char *model, int64_t seq, ends_fn *ends, const loom_layout *layouts, int count)
{
    write_text(ends);
    open_run(model, seq);
    truth_use_layout(run, (loom_layout){0});
    train_into(0);
    for (int i = 0; i < count; i++) {
        truth_use_layout(run, layouts[i]);
        train_into(1);
        compare();
    }
    close_run();
}

static void uneven_documents_are_the_same_in_every_layout(void **state)
{
    (void)state;
    in_layouts("llama_tiny", 27, unevenly, dense, sizeof dense / sizeof *dense);
    in_layouts("gpt2_tiny", 32, unevenly, dense, 4);
    in_layouts("mixtral_tiny", 27, unevenly, with_experts, 3);
    in_layouts("deepseek_tiny", 27, unevenly, with_experts, 3);
}

static void one_document_over_all_shards(void **state)
{
    (void)state;
    in_layouts("llama_tiny", 32, nowhere, dense, 4);
    assert_int_equal(results[0].counted, TRUTH_BATCH * 32);
}

/* Nothing counts: the loss is 0, gradients are 0, and no rank waits for another. */
static void documents_of_one_token_have_no_loss(void **state)
{
    (void)state;
    in_layouts("llama_tiny", 32, everywhere, dense, 4);
    assert_true(results[0].loss[0] == 0 && results[0].grad_norm[0] == 0);
}

/* --- a vocabulary that no degree divides -------------------------------------------------------------------------------------------------- */

static const loom_layout splits[] = {
    {.tp = 2},
    {.tp = 4, .sequence_parallel = true},
    {.tp = 2, .pp = 2, .dp = 2, .zero = 1},
    {.tp = 4, .pp = 2, .sequence_parallel = true, .zero = 1},
};

/* Tied and not: the embedding and the head have padding rows on the last rank, which no token, softmax, norm or update may meet. */
static void an_odd_vocabulary_is_the_same_in_every_layout(void **state)
{
    static const char *const models[] = {"gpt2_tiny", "llama_tiny"};

    (void)state;
    for (int m = 0; m < 2; m++) {
        open_truth_run(models[m]);
        run->init[0] = '\0';
        run->train.seed = 7;
        run->model.vocab = 131;
        truth_use_layout(run, (loom_layout){0});
        train_into(0);
        for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
            truth_use_layout(run, splits[i]);
            train_into(1);
            compare();
        }
        close_run();
    }
}

/* --- experts ------------------------------------------------------------------------------------------------------------------------------- */

static const loom_layout folds[] = {
    {.dp = 2, .ep = 2},
    {.tp = 2, .cp = 2, .ep = 2, .etp = 2, .sequence_parallel = true},
    {.tp = 2, .dp = 2, .ep = 4, .zero = 1},
    {.pp = 2, .cp = 2, .ep = 2, .recompute = LOOM_RECOMPUTE_FULL},
    {.pp = 2, .dp = 2, .ep = 2, .schedule = LOOM_SCHEDULE_ZB_H1, .recompute = LOOM_RECOMPUTE_FULL},
    {.tp = 2, .pp = 2, .ep = 2, .schedule = LOOM_SCHEDULE_ZB_H1},
};
enum { FOLDS = sizeof folds / sizeof *folds };

static void the_gathering_dispatcher_meets_the_fixtures(void **state)
{
    static const char *const models[] = {"mixtral_tiny", "deepseek_tiny"};

    (void)state;
    for (int m = 0; m < 2; m++) {
        read_truth_of(models[m]);
        run->experts.dispatcher = LOOM_EP_ALLGATHER;
        for (int i = 0; i < FOLDS; i++) {
            truth_use_layout(run, folds[i]);
            train_into(1);
            compare();
        }
        close_run();
    }
}

/* Room for three quarters of an even share: some are dropped however even the load. Uneven documents, padding and recompute besides. */
static void dropped_choices_are_the_same_in_every_layout(void **state)
{
    static const char *const models[] = {"mixtral_tiny", "deepseek_tiny"};

    (void)state;
    write_text(unevenly);
    for (int m = 0; m < 2; m++) {
        open_run(models[m], 27);
        run->experts.capacity_factor = 0.75;
        truth_use_layout(run, (loom_layout){0});
        train_into(0);
        assert_true(results[0].dropped[0] >= 0.25 && results[0].dropped[0] < 1);
        for (int i = 0; i < FOLDS; i++) {
            run->experts.dispatcher = i % 2 ? LOOM_EP_ALLGATHER : LOOM_EP_ALLTOALL;
            truth_use_layout(run, folds[i]);
            train_into(1);
            compare();
        }
        close_run();
    }
}

/* The chosen experts of every layer, by sequence and position; -1 where a rank has none to say. */
enum { ROUTED = 2 * TRUTH_SEQ, MOST_LAYERS = 4, MOST_CHOICES = 2 };
static int32_t (*routes)[2][MOST_LAYERS][ROUTED][MOST_CHOICES]; /* shared with the ranks */

static void keep_routes(const gpt_trainer *t, const gpt_chunk *chunk, int64_t l, int32_t route[ROUTED][MOST_CHOICES])
{
    const gpt_shape *s = &t->stage->shape;
    loom_range own = loom_moe_own_tokens(s->ep, s->Tl);
    int64_t first = s->tp->sequence_parallel ? s->tp->rank * s->Tl : own.begin, top_k = run->model.moe.top_k;
    const int32_t *ids = loom_moe_ids(chunk->slot[0].saved[l].experts), *positions = loom_cp_positions(s->cp);

    for (int64_t i = 0; i < own.end - own.begin; i++) {
        int64_t t_local = first + i, at = t_local / s->local_seq * TRUTH_SEQ + positions[t_local];

        memcpy(route[at], ids + i * top_k, (size_t)top_k * sizeof *ids);
    }
}

static void route_once(loom_comm *world, loom_stream *stream)
{
    gpt_trainer *t;

    (void)stream;
    assert_ok(gpt_trainer_open(run, world, &t));
    assert_ok(gpt_trainer_load_batch(t, 0));
    assert_ok(gpt_trainer_forward_backward(t));
    for (int c = 0; c < t->stage->n_chunks; c++)
        for (int64_t l = 0; l < t->stage->chunks[c].layers; l++)
            if (t->stage->chunks[c].blocks[l].experts)
                keep_routes(t, &t->stage->chunks[c], l, (*routes)[result][t->stage->chunks[c].first_layer + l]);
    gpt_trainer_close(t);
}

static void every_layout_chooses_the_same_experts(void **state)
{
    static const char *const models[] = {"mixtral_tiny", "deepseek_tiny"};
    static const loom_layout layouts[] = {{0}, {.cp = 2, .ep = 2}, {.tp = 2, .ep = 2}, {.tp = 2, .cp = 2, .ep = 4, .sequence_parallel = true},
                                          {.pp = 2, .cp = 4, .ep = 2, .etp = 2, .cp_kind = LOOM_CP_HYBRID}};

    (void)state;
    for (int m = 0; m < 2; m++) {
        open_truth_run(models[m]);
        run->layout.global_batch = 2; /* one micro-batch: all its routes are there at the end */
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            result = i > 0;
            memset((*routes)[result], 0xff, sizeof(*routes)[result]);
            truth_use_layout(run, layouts[i]);
            on_ranks(loom_layout_world(&run->layout), route_once);
            assert_true((*routes)[result][run->model.layers - 1][ROUTED - 1][0] >= 0);
            assert_memory_equal((*routes)[result], (*routes)[0], sizeof(*routes)[0]);
        }
        close_run();
    }
}

/* --- packed or apart ------------------------------------------------------------------------------------------------------------------------ */

static void packed_documents_give_what_each_gives_alone(void **state)
{
    static const char *const models[] = {"llama_tiny", "gpt2_tiny"};

    (void)state;
    write_text(every_eighth);
    for (int i = 0; i < 2; i++) {
        open_run(models[i], 8);
        run->layout.global_batch = 4 * TRUTH_BATCH;
        truth_use_layout(run, (loom_layout){0});
        train_into(0);
        assert_int_equal(results[0].counted, 4 * TRUTH_BATCH * 7);
        run->layout.seq = 32;
        run->layout.global_batch = TRUTH_BATCH;
        truth_use_layout(run, (loom_layout){.cp = 2});
        train_into(1);
        compare();
        close_run();
    }
}

/* --- padding against the fixtures ------------------------------------------------------------------------------------------------------------ */

static const loom_layout uneven[] = {
    {.cp = 3},                                              /* 36 for 32 */
    {.cp = 3, .cp_kind = LOOM_CP_ALLGATHER, .recompute = LOOM_RECOMPUTE_FULL},
    {.cp = 6, .cp_kind = LOOM_CP_HYBRID},                   /* 36, of which the last chunk is all padding */
    {.tp = 2, .cp = 3, .sequence_parallel = true, .zero = 1},
    {.cp = 7},                                              /* 42: five chunks of three hold nothing */
};

static void padding_changes_nothing(void **state)
{
    static const char *const models[] = {"gpt2_tiny", "llama_tiny", "mixtral_tiny", "deepseek_tiny"};

    (void)state;
    for (int m = 0; m < 4; m++) {
        read_truth_of(models[m]);
        for (size_t i = 0; i < sizeof uneven / sizeof *uneven; i++) {
            loom_layout layout = uneven[i];

            if (run->model.moe.experts > 0)
                layout.ep = layout.tp == 2 ? 2 : 1;
            truth_use_layout(run, layout);
            assert_true(loom_layout_padded_seq(&run->layout, TRUTH_SEQ) > TRUTH_SEQ);
            train_into(1);
            compare();
        }
        close_run();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uneven_documents_are_the_same_in_every_layout),
        cmocka_unit_test(an_odd_vocabulary_is_the_same_in_every_layout),
        cmocka_unit_test(one_document_over_all_shards),
        cmocka_unit_test(documents_of_one_token_have_no_loss),
        cmocka_unit_test(the_gathering_dispatcher_meets_the_fixtures),
        cmocka_unit_test(dropped_choices_are_the_same_in_every_layout),
        cmocka_unit_test(every_layout_chooses_the_same_experts),
        cmocka_unit_test(packed_documents_give_what_each_gives_alone),
        cmocka_unit_test(padding_changes_nothing),
    };
    int failed;

    results = mmap(NULL, 2 * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    routes = mmap(NULL, sizeof *routes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED || (void *)routes == MAP_FAILED)
        return 1;
    snprintf(text_path, sizeof text_path, "/tmp/loom_variants_%d.txt", (int)getpid());
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(text_path);
    return failed;
}
