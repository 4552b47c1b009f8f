/* AdamW, clipping and the learning rate against numbers computed in float64 elsewhere (test/data/fixtures). */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"
#include "harness/tensors.h"

#include <rankloom/config.h>
#include <rankloom/dp.h>

#include <math.h>

static tensors ops;
static loom_config *table; /* ops.json */

static const loom_node *table_of(const char *op)
{
    return loom_node_get(loom_config_root(table), op);
}

static double number(const loom_node *node)
{
    double value = NAN;

    assert_true(loom_node_as_f64(node, &value));
    return value;
}

static loom_param plain_param(const char *name, int64_t count, bool decay)
{
    loom_param p = {.shard = {.dims = 1, .shape = {count}, .split_dim = -1, .holders = 1, .decay = decay}};

    snprintf(p.shard.name, sizeof p.shard.name, "%s", name);
    return p;
}

/* What float32 loses here is below 3e-7 of the largest value (ops.json, float32_distance); ten times that is still far from any mistake. */
static void assert_close(const float *value, const char *name, double scale)
{
    size_t count;
    const float *want = tensor(&ops, name, &count);

    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)value[i] - want[i]) <= 2e-6 * scale))
            fail_msg("%s[%zu] is %.9g, should be %.9g", name, i, (double)value[i], (double)want[i]);
}

/* Three steps, the gradient given as a sum over 4 tokens. */
static void three_steps(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = loom_comm_size(world), .zero = 1}, NULL);
    const loom_node *set = loom_node_get(table_of("adamw"), "parameters"), *betas = loom_node_get(set, "betas");
    loom_param p = plain_param("p", 64, true), *params[] = {&p};
    loom_param_list list = {.at = params, .count = 1};
    loom_dp_config config = {.adamw = {.beta1 = number(loom_node_at(betas, 0)), .beta2 = number(loom_node_at(betas, 1)), .eps = number(loom_node_get(set, "eps")),
                                       .weight_decay = number(loom_node_get(set, "weight_decay"))}};
    loom_dp *dp;
    loom_dp_result result;

    assert_ok(loom_dp_open(mesh, &list, &config, stream, &dp));
    memcpy(p.value, tensor(&ops, "adamw.in.p", NULL), 64 * sizeof(float));
    assert_ok(loom_dp_values_changed(dp));
    for (int step = 1; step <= 3; step++) {
        char name[32];
        snprintf(name, sizeof name, "adamw.in.g%d", step);
        const float *gradient = tensor(&ops, name, NULL);
        assert_ok(loom_dp_begin(dp));
        for (int i = 0; i < 64 && mesh->here.at[LOOM_AXIS_DP] == 0; i++)
            p.gradient[i] += 4 * gradient[i];
        assert_ok(loom_dp_finish(dp, 4, number(loom_node_get(set, "lr")), step, &result));
        snprintf(name, sizeof name, "adamw.out.p%d", step);
        assert_close(p.value, name, 1);
    }
    float *m, *v;
    int64_t first, count;
    assert_ok(loom_dp_state(dp, &p, &m, &v, &first, &count));
    if (loom_comm_size(world) == 1) {
        assert_close(m, "adamw.out.m3", 0.1);
        assert_close(v, "adamw.out.v3", 0.1);
    }
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void three_steps_of_adamw_land_on_the_float64_weights(void **state)
{
    (void)state;
    on_ranks(1, three_steps);
    on_ranks(3, three_steps);
}

/* The clipped gradient shows in m after one step with beta1 = 0.5: m = clipped / 2. */
static void clipped(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 1}, NULL);
    loom_param a = plain_param("a", 63, false), b = plain_param("b", 11, false), *params[] = {&a, &b};
    const char *const names[] = {"a", "b"};
    loom_param_list list = {.at = params, .count = 2};
    loom_dp_config config = {.adamw = {.beta1 = 0.5, .beta2 = 0.5, .eps = 1e-8, .clip = 1}};
    loom_dp *dp;
    loom_dp_result result;

    assert_ok(loom_dp_open(mesh, &list, &config, stream, &dp));
    assert_ok(loom_dp_begin(dp));
    memcpy(a.gradient, tensor(&ops, "clip_grad_norm.in.a", NULL), 63 * sizeof(float));
    memcpy(b.gradient, tensor(&ops, "clip_grad_norm.in.b", NULL), 11 * sizeof(float));
    assert_ok(loom_dp_finish(dp, 1, 1e-3, 1, &result));
    assert_close((float[]){(float)result.grad_norm}, "clip_grad_norm.out.norm", result.grad_norm);
    for (int i = 0; i < 2; i++) {
        float *m, *v, twice[63];
        int64_t first, count;
        char name[64];
        assert_ok(loom_dp_state(dp, params[i], &m, &v, &first, &count));
        for (int64_t e = 0; e < count; e++)
            twice[e] = 2 * m[e];
        snprintf(name, sizeof name, "clip_grad_norm.out.%s_clipped", names[i]);
        assert_close(twice, name, 0.2);
    }
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void clipping_scales_to_the_float64_gradients(void **state) { (void)state; on_ranks(1, clipped); }

static void the_learning_rate_follows_the_table(void **state)
{
    const loom_node *rates = loom_node_get(table_of("learning_rate"), "lr");

    (void)state;
    assert_in_range(loom_node_count(rates), 20, 100);
    for (size_t step = 0; step < loom_node_count(rates); step++) {
        double want = number(loom_node_at(rates, step)), rate = loom_warmup_cosine((int64_t)step, 5, 20, 3e-3, 3e-4);
        if (!(fabs(rate - want) <= 1e-15))
            fail_msg("step %zu: %.17g, should be %.17g", step, rate, want);
    }
    assert_true(loom_warmup_cosine(0, 0, 10, 1, 0.1) == 1);     /* no warm-up */
    assert_true(loom_warmup_cosine(10, 20, 10, 1, 0.1) == 0.55); /* warm-up longer than the run */
    assert_true(loom_warmup_cosine(1000000, 5, 20, 1, 0.1) == 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_steps_of_adamw_land_on_the_float64_weights),
        cmocka_unit_test(clipping_scales_to_the_float64_gradients),
        cmocka_unit_test(the_learning_rate_follows_the_table),
    };

    if (loom_config_load(test_data("fixtures/ops.json"), &table) < 0 || !tensors_load(&ops, test_data("fixtures/ops.safetensors"))) {
        fprintf(stderr, "%s\n", loom_last_error());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tensors_drop(&ops);
    loom_config_free(table);
    return failed;
}
