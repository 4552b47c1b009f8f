#include "truth.h"

#include "check.h"

static void read_numbers(const loom_node *list, int count, double *values)
{
    assert_int_equal(loom_node_count(list), count);
    for (int i = 0; i < count; i++)
        assert_true(loom_node_as_f64(loom_node_at(list, (size_t)i), &values[i]));
}

static void read_expected(truth *t)
{
    char path[1100];
    loom_config *config;
    const loom_node *curve, *first;

    snprintf(path, sizeof path, "%s/expected.json", t->folder);
    assert_ok(loom_config_load(path, &config));
    curve = loom_node_get(loom_config_root(config), "curve");
    first = loom_node_get(loom_config_root(config), "first_batch");
    read_numbers(loom_node_get(curve, "loss_f64"), TRUTH_STEPS, t->loss);
    read_numbers(loom_node_get(curve, "grad_norm_f64"), TRUTH_STEPS, t->grad_norm);
    assert_true(loom_node_as_f64(loom_node_get(first, "grad_norm"), &t->first_grad_norm));
    loom_config_free(config);
}

void truth_open(const char *name, truth *t)
{
    char path[1100];

    memset(t, 0, sizeof *t);
    snprintf(path, sizeof path, "fixtures/%s", name);
    assert_true(snprintf(t->folder, sizeof t->folder, "%s", test_data(path)) < (int)sizeof t->folder);
    snprintf(path, sizeof path, "%s/config.json", t->folder);
    assert_ok(loom_model_load(path, &t->model, NULL));
    read_expected(t);
    snprintf(path, sizeof path, "%s/grads.safetensors", t->folder);
    assert_ok(loom_safetensors_open(path, &t->gradients));
    snprintf(path, sizeof path, "%s/expected.safetensors", t->folder);
    assert_ok(loom_safetensors_open(path, &t->expected));
}

void truth_close(truth *t)
{
    loom_safetensors_close(t->gradients);
    loom_safetensors_close(t->expected);
}

gpt_run *truth_run(const truth *t)
{
    gpt_run *run = calloc(1, sizeof *run);

    assert_non_null(run);
    run->model = t->model;
    snprintf(run->init, sizeof run->init, "%s/weights.safetensors", t->folder);
    snprintf(run->data.path, sizeof run->data.path, "%s", test_data("fixtures/tokens.bin"));
    run->data.tokenizer = GPT_UINT16;
    run->train.steps = TRUTH_STEPS;
    run->train.warmup = 5;
    run->train.lr = 3e-3;
    run->train.min_lr = 3e-4;
    run->train.adamw = (loom_adamw_config){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
    run->layout.seq = TRUTH_SEQ;
    run->layout.global_batch = TRUTH_BATCH;
    return run;
}

void truth_use_layout(gpt_run *run, loom_layout l)
{
    loom_layout layout;

    loom_layout_default(&run->model, &layout);
    for (int *to = &layout.tp, *from = &l.tp; to <= &layout.etp; to++, from++)
        *to = *from ? *from : 1;
    layout.cp_kind = l.cp_kind;
    layout.zero = l.zero;
    layout.sequence_parallel = l.sequence_parallel;
    layout.recompute = l.recompute;
    layout.schedule = l.schedule ? l.schedule : LOOM_SCHEDULE_1F1B;
    layout.vpp = l.schedule == LOOM_SCHEDULE_ZB_V ? 2 : 1;
    layout.seq = run->layout.seq;
    layout.pad_seq = true;
    layout.global_batch = run->layout.global_batch;
    layout.micro_batch = 2;
    assert_ok(loom_layout_check(&layout, &run->model, layout.tp * layout.cp * layout.dp * layout.pp));
    run->layout = layout;
}

float *truth_tensor(const loom_safetensors *file, const char *name, int64_t count)
{
    const loom_tensor_view *view = loom_safetensors_find(file, name);
    float *values = malloc((size_t)count * sizeof *values);

    assert_non_null(values);
    if (!view || view->count != count)
        fail_msg("the fixture has no tensor %s of %lld elements", name, (long long)count);
    assert_ok(loom_tensor_to_f32(view, 0, count, values));
    return values;
}
