/* Weight files know nothing of layouts: what one layout saved another loads and saves again, byte for byte; the vocabulary's padding is in no file; either name of
 * tied embeddings is enough. */
#include "check.h"
#include "harness/on_ranks.h"
#include "trainer.h"
#include "truth.h"

#include <unistd.h>

static gpt_run *run;
static char folder[] = "/tmp/rankloom-weights-XXXXXX";
static char save_to[256];

static void make_run(const loom_model *model, loom_layout layout)
{
    char text[256];

    memset(run, 0, sizeof *run);
    run->model = *model;
    snprintf(run->data.path, sizeof run->data.path, "%s", test_data("fixtures/tokens.bin"));
    run->data.tokenizer = GPT_UINT16;
    run->train.steps = 3;
    run->train.lr = 1e-3;
    run->train.seed = 5;
    run->train.adamw = (loom_adamw_config){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
    loom_layout_default(model, &run->layout);
    run->layout.tp = layout.tp;
    run->layout.pp = layout.pp;
    run->layout.dp = layout.dp;
    run->layout.zero = layout.zero;
    run->layout.micro_batch = 1;
    run->layout.global_batch = TRUTH_BATCH;
    run->layout.seq = TRUTH_SEQ;
    assert_ok(loom_layout_check(&run->layout, model, layout.tp * layout.pp * layout.dp));
    print_message("%s %s\n", model->name, loom_layout_describe(&run->layout, text, sizeof text));
}

/* Starts from run->init or the seed, takes run->train.steps steps, saves. */
static void train_and_save(loom_comm *world, loom_stream *stream)
{
    gpt_trainer *t;
    gpt_step result;

    (void)stream;
    assert_ok(gpt_trainer_open(run, world, &t));
    for (int64_t step = 0; step < run->train.steps; step++)
        assert_ok(gpt_trainer_step(t, step, &result));
    assert_ok(loom_weights_save(t->mesh, &t->stage->params, LOOM_WEIGHTS_VALUES, LOOM_F32, save_to));
    gpt_trainer_close(t);
}

static void in_folder(char path[256], const char *name)
{
    snprintf(path, 256, "%s/%s", folder, name);
}

static void assert_same_file(const char *a, const char *b)
{
    FILE *left = fopen(a, "rb"), *right = fopen(b, "rb");
    int from_left, from_right;

    assert_non_null(left);
    assert_non_null(right);
    do {
        from_left = fgetc(left);
        from_right = fgetc(right);
        if (from_left != from_right)
            fail_msg("%s and %s differ at byte %ld", a, b, ftell(left) - 1);
    } while (from_left != EOF);
    fclose(left);
    fclose(right);
}

static const loom_layout layouts[] = {
    {.tp = 2, .pp = 2, .dp = 2, .zero = 1}, {.tp = 1, .pp = 1, .dp = 1}, {.tp = 4, .pp = 1, .dp = 1}, {.tp = 1, .pp = 4, .dp = 1},
    {.tp = 1, .pp = 1, .dp = 8, .zero = 1}, {.tp = 2, .pp = 1, .dp = 4, .zero = 3}, {.tp = 2, .pp = 3, .dp = 1},
};

static void through_every_layout(const char *name, int64_t vocab)
{
    truth t;
    char first[256];

    truth_open(name, &t);
    t.model.vocab = vocab;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char path[256], file[32];

        make_run(&t.model, layouts[i]);
        snprintf(file, sizeof file, "%zu.safetensors", i);
        in_folder(path, file);
        strcpy(save_to, path);
        if (i == 0) {
            strcpy(first, path);
        } else {
            snprintf(run->init, sizeof run->init, "%s", first);
            run->train.steps = 0;
        }
        on_ranks(layouts[i].tp * layouts[i].pp * layouts[i].dp, train_and_save);
        assert_same_file(first, path);
        if (i > 0)
            unlink(path);
    }
    unlink(first);
    truth_close(&t);
}

static void llama_goes_through_every_layout_unchanged(void **state)
{
    (void)state;
    through_every_layout("llama_tiny", 131); /* no degree but 1 divides it: padding must stay out of the file */
}

static void gpt2_with_tied_embeddings_goes_through_every_layout_unchanged(void **state)
{
    (void)state;
    through_every_layout("gpt2_tiny", 131);
}

/* --- tied names ------------------------------------------------------------------------------------------------------------------------ */

typedef struct copying {
    loom_tensor_spec specs[64];
    const loom_tensor_view *from[64];
    float shift[64]; /* added to every element */
    size_t count;
} copying;

/* A file with the tensors of `source`, the embedding under one, the other or both names, the second one perhaps changed. */
static void write_variant(const char *source, const char *path, bool embedding, bool head, float shift)
{
    loom_safetensors *file;
    loom_safetensors_writer *writer;
    copying c = {0};

    assert_ok(loom_safetensors_open(source, &file));
    for (size_t i = 0; i < loom_safetensors_count(file); i++) {
        const loom_tensor_view *view = loom_safetensors_at(file, i);
        bool tied = strcmp(view->name, "transformer.wte.weight") == 0;

        for (int copy = 0; copy < (tied ? 2 : 1); copy++) {
            if (tied && !(copy == 0 ? embedding : head))
                continue;
            c.specs[c.count] = (loom_tensor_spec){copy == 1 ? "lm_head.weight" : view->name, LOOM_F32, view->dims, {0}};
            memcpy(c.specs[c.count].shape, view->shape, sizeof view->shape);
            c.shift[c.count] = copy == 1 ? shift : 0;
            c.from[c.count++] = view;
        }
    }
    assert_ok(loom_safetensors_create(path, c.specs, c.count, NULL, 0, 0, &writer));
    for (size_t i = 0; i < c.count; i++) {
        float *values = malloc((size_t)c.from[i]->count * sizeof *values);

        assert_non_null(values);
        assert_ok(loom_tensor_to_f32(c.from[i], 0, c.from[i]->count, values));
        for (int64_t e = 0; e < c.from[i]->count; e++)
            values[e] += c.shift[i];
        assert_ok(loom_safetensors_write_f32(writer, values, (size_t)c.from[i]->count));
        free(values);
    }
    assert_ok(loom_safetensors_commit(writer));
    loom_safetensors_close(file);
}

static void must_be_refused(loom_comm *world, loom_stream *stream)
{
    gpt_trainer *t = NULL;

    (void)world;
    (void)stream;
    assert_int_equal(gpt_trainer_open(run, world, &t), LOOM_E_INVALID);
    assert_in_message(loom_layout_world(&run->layout) == 1 || strstr(loom_last_error(), "wte") ? "wte" : "lm_head");
}

static void try_variant(const truth *t, const char *source, bool embedding, bool head, float shift, bool loads)
{
    char path[256], again[256];

    for (int pp = 1; pp <= 2; pp++) {
        in_folder(path, "variant.safetensors");
        in_folder(again, "again.safetensors");
        write_variant(source, path, embedding, head, shift);
        make_run(&t->model, (loom_layout){.tp = 1, .pp = pp, .dp = 1});
        run->train.steps = 0;
        snprintf(run->init, sizeof run->init, "%s", path);
        strcpy(save_to, again);
        if (loads) {
            on_ranks(pp, train_and_save);
            assert_same_file(source, again);
        } else {
            on_ranks(pp, must_be_refused);
        }
        unlink(path);
        unlink(again);
    }
}

static void either_name_of_tied_embeddings_is_enough(void **state)
{
    truth t;
    char source[256];

    (void)state;
    truth_open("gpt2_tiny", &t);
    make_run(&t.model, (loom_layout){.tp = 1, .pp = 1, .dp = 1});
    in_folder(source, "source.safetensors");
    strcpy(save_to, source);
    on_ranks(1, train_and_save);
    try_variant(&t, source, true, false, 0, true);
    try_variant(&t, source, false, true, 0, true);
    try_variant(&t, source, true, true, 0, true);
    try_variant(&t, source, true, true, 0.5f, false);
    try_variant(&t, source, false, false, 0, false);
    unlink(source);
    truth_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_goes_through_every_layout_unchanged),
        cmocka_unit_test(gpt2_with_tied_embeddings_goes_through_every_layout_unchanged),
        cmocka_unit_test(either_name_of_tied_embeddings_is_enough),
    };
    int failed;

    run = calloc(1, sizeof *run);
    if (!run || !mkdtemp(folder))
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    free(run);
    return failed;
}
