/* The smallest program that embeds Rankloom: somebody's own model (a residual MLP that learns a smooth function) with two tensor-parallel layers on
 * each of two pipeline stages, and data parallelism over what is left of the world.
 *
 *   rankloom run -n 4 -- embed      tp2 x pp2
 *   rankloom run -n 8 -- embed      tp2 x pp2 x dp2          */
#include <rankloom/rankloom.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                                                        \
    do {                                                                                                                                   \
        loom_status check = (call);                                                                                                        \
        if (check < 0) {                                                                                                                   \
            fprintf(stderr, "embed: %s\n", loom_last_error());                                                                             \
            exit(loom_exit_code(check));                                                                                                   \
        }                                                                                                                                  \
    } while (0)

enum { FEATURES = 16, WIDE = 64, TOKENS = 32, MICRO_BATCHES = 4, STEPS = 200 };

typedef struct my_stage {
    loom_tp *tp;
    loom_linear up, down; /* column-parallel, then row-parallel */
    float wide[MICRO_BATCHES][TOKENS * WIDE], active[MICRO_BATCHES][TOKENS * WIDE], d_wide[TOKENS * WIDE]; /* by slot */
    float x[MICRO_BATCHES][TOKENS * FEATURES], error[MICRO_BATCHES][TOKENS * FEATURES], out[TOKENS * FEATURES];
    bool first, last;
    double loss;
} my_stage;

/* out = x + down(gelu(up(x))); the last stage compares with the goal of the first stage's x, which it can recompute from the seed. */
static loom_status forward(void *context, int chunk, int micro_batch, int slot, const float *input, float *output)
{
    my_stage *s = context;
    loom_kernels *k = s->tp->kernels;
    const float *x = s->first ? s->x[micro_batch] : input;
    float *out = s->last ? s->out : output;

    CHECK(loom_linear_forward(&s->up, x, TOKENS, s->wide[slot], 0));
    CHECK(k->gelu(k, &(loom_gelu_args){.y = s->active[slot], .x = s->wide[slot], .count = TOKENS * s->up.out}, s->tp->compute));
    CHECK(loom_linear_forward(&s->down, s->active[slot], TOKENS, out, 0));
    CHECK(loom_tp_leave(s->tp, out, TOKENS, FEATURES, out));
    CHECK(loom_linear_add_bias(&s->down, out, TOKENS));
    CHECK(k->add(k, &(loom_add_args){.y = out, .a = out, .b = x, .count = TOKENS * FEATURES}, s->tp->compute));
    for (int i = 0; s->last && i < TOKENS * FEATURES; i++) {
        float error = out[i] - sinf(3 * s->x[micro_batch][i]) / 2;
        s->loss += error * error / 2;
        s->error[slot][i] = error;
    }
    return LOOM_OK;
}

static loom_status backward(void *context, int chunk, int micro_batch, int slot, const float *input, const float *d_output, float *d_input)
{
    my_stage *s = context;
    loom_kernels *k = s->tp->kernels;
    const float *x = s->first ? s->x[micro_batch] : input, *d = s->last ? s->error[slot] : d_output;

    CHECK(loom_linear_bias_gradient(&s->down, d, TOKENS));
    CHECK(loom_linear_backward_weight(&s->down, s->active[slot], d, 0, TOKENS));
    CHECK(loom_linear_backward_input(&s->down, d, 0, TOKENS, s->d_wide, false));
    CHECK(k->gelu_backward(k, &(loom_gelu_backward_args){s->d_wide, s->d_wide, s->wide[slot], TOKENS * s->up.out}, s->tp->compute));
    CHECK(loom_linear_backward_weight(&s->up, x, s->d_wide, 0, TOKENS));
    if (s->first)
        return LOOM_OK;
    CHECK(loom_linear_backward_input(&s->up, s->d_wide, 0, TOKENS, d_input, false));
    CHECK(loom_tp_enter_backward_begin(s->tp, d_input, TOKENS, FEATURES, d_input));
    CHECK(loom_tp_enter_backward_end(s->tp));
    return k->add(k, &(loom_add_args){.y = d_input, .a = d_input, .b = d, .count = TOKENS * FEATURES}, s->tp->compute);
}

static void open_stage(my_stage *s, loom_mesh *mesh, loom_tp *tp, loom_param_list *params)
{
    bool last = mesh->here.at[LOOM_AXIS_PP] == mesh->layout.pp - 1;

    s->tp = tp;
    s->first = mesh->here.at[LOOM_AXIS_PP] == 0;
    s->last = last;
    CHECK(loom_linear_init(&s->up, tp, &(loom_linear_config){LOOM_LINEAR_COLUMN, last ? "b.up" : "a.up", FEATURES, WIDE, true, .init_std = 0.2}));
    CHECK(loom_linear_init(&s->down, tp, &(loom_linear_config){LOOM_LINEAR_ROW, last ? "b.down" : "a.down", WIDE, FEATURES, true, .init_std = 0.1}));
    CHECK(loom_linear_declare(&s->up, params));
    CHECK(loom_linear_declare(&s->down, params));
}

/* Every rank of a data-parallel index draws the same numbers. */
static void draw_data(my_stage *s, int step, int dp)
{
    uint32_t state = (uint32_t)(step * 1000 + dp * 100 + 1);

    s->loss = 0;
    for (int m = 0; m < MICRO_BATCHES; m++)
        for (int i = 0; i < TOKENS * FEATURES; i++) {
            state = state * 1664525u + 1013904223u;
            s->x[m][i] = (float)(state >> 8) / (1 << 23) - 1;
        }
}

static void train(my_stage *s, loom_mesh *mesh, loom_dp *dp, loom_pipeline *pipeline)
{
    double divisor = (double)TOKENS * MICRO_BATCHES * mesh->layout.dp;
    loom_dp_result update;

    for (int step = 0; step < STEPS; step++) {
        draw_data(s, step, mesh->here.at[LOOM_AXIS_DP]);
        CHECK(loom_dp_begin(dp));
        CHECK(loom_pipeline_step(pipeline));
        CHECK(loom_dp_finish(dp, divisor, loom_warmup_cosine(step, 10, STEPS, 1e-2, 1e-3), step + 1, &update));
        CHECK(loom_dp_sum(dp, &s->loss, 1));
        if (loom_comm_rank(mesh->world) == 0 && (step % 50 == 0 || step == STEPS - 1))
            printf("step %3d  loss %.5f  gradient %.4f\n", step, s->loss / divisor, update.grad_norm);
    }
}

int main(void)
{
    static my_stage stage;
    loom_launch launch; loom_store *store; loom_device *device; loom_comm *world; loom_mesh *mesh; loom_kernels *kernels; loom_stream *compute;
    loom_tp *tp; loom_schedule *schedule; loom_dp *dp; loom_pipeline *pipeline; loom_param_list params = {0}; loom_layout layout;

    loom_launch_prepare_process();
    CHECK(loom_launch_from_env(&launch));
    loom_layout_default(NULL, &layout);
    layout.pp = launch.size >= 2 ? 2 : 1;
    layout.tp = launch.size >= 4 ? 2 : 1;
    layout.dp = 0; /* what is left */
    layout.micro_batch = TOKENS;
    layout.global_batch = (int64_t)TOKENS * MICRO_BATCHES * launch.size / (layout.pp * layout.tp);
    CHECK(loom_layout_check(&layout, NULL, launch.size));
    CHECK(loom_store_open(&launch, 60, &store));
    CHECK(loom_device_open(LOOM_CPU, NULL, &device));
    CHECK(loom_comm_open_world(&launch, store, device, NULL, &world));
    CHECK(loom_mesh_open(world, &layout, NULL, &mesh));
    CHECK(loom_kernels_open(device, NULL, &kernels));
    CHECK(loom_stream_open(device, LOOM_STREAM_INLINE, "compute", &compute));
    CHECK(loom_tp_open(mesh, kernels, compute, &tp));
    open_stage(&stage, mesh, tp, &params);
    CHECK(loom_dp_open(mesh, &params, &(loom_dp_config){.adamw = {0.9, 0.95, 1e-8, 0, 1}}, compute, &dp));
    CHECK(loom_dp_init(dp, 1));
    CHECK(loom_schedule_for_layout(&layout, &schedule));
    loom_stage_ops ops = {.context = &stage, .forward = forward, .backward = backward};
    CHECK(loom_pipeline_open(mesh, schedule, TOKENS * FEATURES, &ops, compute, &pipeline));
    train(&stage, mesh, dp, pipeline);
    return 0; /* closing in reverse order is for programs that go on: see docs/embedding.md */
}
