/* Every layout gives the numbers of the independent float64 implementation: logits, every gradient, and the loss and gradient norm of 20
 * steps.
 *
 *   test_parallel_layouts [--part K/N] [--most N] [--seed S] [--steps N] [--world RANKS] [--model NAME] [--axes tp,pp,dp,cp,ep] [--schedules zb-h1,zb-v]
 *                         [--zero 2,3] [--device cuda]
 *
 * --axes takes only layouts whose other degrees are 1 (ep stands for etp, too), --schedules and --zero only layouts with one of these.
 * --part takes every N-th of all legal layouts, from the K-th (0 to N - 1); 0/1 is all of them. Without it: a seeded sample that holds
 * every pair of features (tp, pp, vpp, dp, cp, cp kind, ep, etp, ZeRO, sequence parallelism, schedule, micro-batch and recompute, split of
 * the layers and starved pipelines) that any legal layout on 1, 2, 3, 4, 6 or 8 ranks has. */
#include "check.h"
#include "enumerate.h"
#include "harness/on_ranks.h"
#include "trainer.h"
#include "truth.h"

#include <math.h>

static const int worlds[] = {1, 2, 3, 4, 6, 8};

enum { BATCH = 16 /* layouts that one set of ranks goes through */ };

static struct {
    int part, parts; /* parts 0: the sample */
    int most;        /* layouts of a model; 0: no limit */
    uint64_t seed;
    int steps;         /* of the curve */
    int world;       /* 0: all */
    const char *axes, *schedules, *zero; /* NULL: all */
    const char *model; /* NULL: all */
    loom_device_kind device;
    double patience; /* how much longer than CPU ranks it may take */
} settings = {.seed = 1, .steps = TRUTH_STEPS, .patience = 1};

/* What the ranks of one check read: set before they are forked. */
static truth expected;
static gpt_run *run;
static const loom_layout *batch;
static int batch_count;

static void check_logits(gpt_trainer *t)
{
    int32_t tokens[TRUTH_SEQ], targets[TRUTH_SEQ];
    int64_t vocab = run->model.vocab;
    float *logits = calloc((size_t)(TRUTH_SEQ * vocab), sizeof *logits);
    float *want = truth_tensor(expected.expected, "logits", TRUTH_SEQ * vocab);

    assert_non_null(logits);
    assert_ok(gpt_data_sample(&t->data, 0, tokens, targets));
    assert_ok(gpt_stage_logits(t->stage, tokens, 1, TRUTH_SEQ, 0, TRUTH_SEQ, logits));
    for (int64_t i = 0; i < TRUTH_SEQ * vocab; i++) {
        if (!(fabs((double)logits[i] - want[i]) <= TRUTH_LOGITS))
            fail_msg("logit %lld is %.9g, not %.9g", (long long)i, logits[i], want[i]);
    }
    free(want);
    free(logits);
}

/* The middle third of GPT-2's fused bias (that of the keys) has a gradient of exactly 0: what a float32 run finds there is rounding. */
static bool has_no_gradient(const char *name, int64_t index, int64_t count)
{
    return strstr(name, "attn.c_attn.bias") && index >= count / 3 && index < 2 * count / 3;
}

/* The router's selection bias is steered, not trained: it has no gradient. */
static bool is_steered(const loom_shard *spec)
{
    return strstr(spec->name, "e_score_correction_bias") != NULL;
}

static loom_status check_gradient(void *context, const loom_shard *spec, const float *data)
{
    double scale = *(double *)context, distance = 0, norm = 0;
    int64_t count = loom_shard_global_count(spec);
    float *want;

    if (is_steered(spec))
        return LOOM_OK;
    want = truth_tensor(expected.gradients, spec->name, count);
    for (int64_t i = 0; i < count; i++) {
        double d = has_no_gradient(spec->name, i, count) ? 0 : data[i] * scale - want[i];

        distance += d * d;
        norm += (double)want[i] * want[i];
    }
    free(want);
    if (!(sqrt(distance) <= TRUTH_GRADIENT * sqrt(norm)))
        fail_msg("gradient of %s: relative distance %.3g, limit %.3g", spec->name, sqrt(distance / norm), TRUTH_GRADIENT);
    return LOOM_OK;
}

static void check_gradients(gpt_trainer *t)
{
    double divisor = (double)gpt_trainer_tokens(t), scale = 1 / divisor;
    loom_dp_result result;

    assert_ok(gpt_trainer_load_batch(t, 0));
    assert_ok(gpt_trainer_forward_backward(t));
    assert_ok(loom_dp_reduce_only(t->dp, divisor, &result));
    if (!(fabs(result.grad_norm / expected.first_grad_norm - 1) <= TRUTH_GRAD_NORM))
        fail_msg("gradient norm %.9g, not %.9g", result.grad_norm, expected.first_grad_norm);
    assert_ok(loom_weights_gather(t->mesh, &t->stage->params, LOOM_WEIGHTS_GRADIENTS, check_gradient, &scale));
}

static void check_curve(gpt_trainer *t)
{
    for (int step = 0; step < settings.steps; step++) {
        gpt_step result;

        assert_ok(gpt_trainer_step(t, step, &result));
        if (!(fabs(result.loss - expected.loss[step]) <= TRUTH_LOSS))
            fail_msg("step %d: loss %.9f, not %.9f", step, result.loss, expected.loss[step]);
        if (!(fabs(result.grad_norm / expected.grad_norm[step] - 1) <= TRUTH_GRAD_NORM))
            fail_msg("step %d: gradient norm %.9f, not %.9f", step, result.grad_norm, expected.grad_norm[step]);
    }
}

static void check_layout(loom_comm *world)
{
    gpt_trainer *t;
    char text[256];

    if (loom_comm_rank(world) == 0)
        printf("%s %s\n", run->model.name, loom_layout_describe(&run->layout, text, sizeof text));
    assert_ok(gpt_trainer_open(run, world, &t));
    check_logits(t);
    check_gradients(t);
    check_curve(t);
    gpt_trainer_close(t);
}

static void check_batch(loom_comm *world, loom_stream *stream)
{
    (void)stream;
    for (int i = 0; i < batch_count; i++) {
        run->layout = batch[i];
        check_layout(world);
    }
}

/* Ranks are forked once for several layouts of their number: the GEMM library compiles its kernels anew in each process. */
static void check_layouts(loom_layout *layouts, int count)
{
    sort_by_world(layouts, count);
    for (int done = 0; done < count; done += batch_count) {
        batch = &layouts[done];
        batch_count = same_world(batch, count - done < BATCH ? count - done : BATCH);
        on_ranks_with(&(rank_options){.deadline_s = (40 + 20 * batch_count) * settings.patience,
                                      .comm_deadline_s = 20 * settings.patience,
                                      .device = settings.device}, loom_layout_world(batch), check_batch);
    }
}

static bool is_of_interest(const loom_layout *l)
{
    const struct {
        const char *axis;
        bool used;
    } axes[] = {{"tp", l->tp > 1}, {"pp", l->pp > 1}, {"dp", l->dp > 1}, {"cp", l->cp > 1}, {"ep", l->ep > 1 || l->etp > 1}};

    for (size_t i = 0; settings.axes && i < sizeof axes / sizeof *axes; i++) {
        if (axes[i].used && !strstr(settings.axes, axes[i].axis))
            return false;
    }
    if (settings.zero && !strchr(settings.zero, '0' + l->zero))
        return false;
    return !settings.schedules || strstr(settings.schedules, loom_schedule_kind_name(l->schedule));
}

static void keep_those_of_interest(layout_list *list)
{
    int kept = 0;

    for (int i = 0; i < list->count; i++) {
        if (is_of_interest(&list->at[i]))
            list->at[kept++] = list->at[i];
    }
    list->count = kept;
}

/* Brings the layouts that are asked for to the front of the list; how many they are. */
static int choose(layout_list *list)
{
    int count = 0;

    cover_pairs(list, settings.seed, &count);
    if (settings.parts > 0) {
        count = 0;
        for (int i = settings.part; i < list->count; i += settings.parts)
            list->at[count++] = list->at[i];
    }
    return settings.most > 0 && count > settings.most ? settings.most : count;
}

static void check_model(const char *name)
{
    layout_list list = {0};
    int legal, count;

    if (settings.model && strcmp(settings.model, name) != 0)
        return;
    truth_open(name, &expected);
    run = truth_run(&expected);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        if (settings.world == 0 || settings.world == worlds[i])
            enumerate_layouts(&expected.model, worlds[i], TRUTH_BATCH, TRUTH_SEQ, &list);
    keep_those_of_interest(&list);
    legal = list.count;
    count = choose(&list);
    print_message("%s: %d of %d legal layouts\n", expected.model.name, count, legal);
    check_layouts(list.at, count);
    layout_list_free(&list);
    free(run);
    truth_close(&expected);
}

static void gpt2_is_the_same_in_every_layout(void **state)
{
    (void)state;
    check_model("gpt2_tiny");
}

static void llama_is_the_same_in_every_layout(void **state)
{
    (void)state;
    check_model("llama_tiny");
}

static void mixtral_is_the_same_in_every_layout(void **state)
{
    (void)state;
    check_model("mixtral_tiny");
}

static void deepseek_is_the_same_in_every_layout(void **state)
{
    (void)state;
    check_model("deepseek_tiny");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_is_the_same_in_every_layout),
        cmocka_unit_test(llama_is_the_same_in_every_layout),
        cmocka_unit_test(mixtral_is_the_same_in_every_layout),
        cmocka_unit_test(deepseek_is_the_same_in_every_layout),
    };

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--part") == 0)
            assert_int_equal(sscanf(argv[i + 1], "%d/%d", &settings.part, &settings.parts), 2);
        else if (strcmp(argv[i], "--most") == 0)
            settings.most = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seed") == 0)
            settings.seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--world") == 0)
            settings.world = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--steps") == 0)
            settings.steps = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--model") == 0)
            settings.model = argv[i + 1];
        else if (strcmp(argv[i], "--axes") == 0)
            settings.axes = argv[i + 1];
        else if (strcmp(argv[i], "--zero") == 0)
            settings.zero = argv[i + 1];
        else if (strcmp(argv[i], "--schedules") == 0)
            settings.schedules = argv[i + 1];
        else if (strcmp(argv[i], "--device") == 0 && strcmp(argv[i + 1], "cuda") == 0)
            settings.device = LOOM_CUDA, settings.patience = 8; /* kernels run on fibers */
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
