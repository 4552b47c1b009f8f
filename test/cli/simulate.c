/* Rehearsals: the same step as the prediction reaches by formulas, laws of slow ranks and links, who waits for whom, the trace. */
#include <rankloom/simulate.h>

#include "near.h"

static const loom_model dense = {.name = "dense", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 128256, .seq = 8192,
                                 .mlp = LOOM_SWIGLU};
static const loom_model moe = {.name = "moe", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 32000, .seq = 8192,
                               .mlp = LOOM_SWIGLU, .moe = {.experts = 8, .top_k = 2, .ffn = 14336, .every = 1}};
static const loom_model large = {.name = "405B", .layers = 126, .hidden = 16384, .heads = 128, .kv_heads = 8, .head_dim = 128, .ffn = 53248, .vocab = 128256, .seq = 8192,
                                 .mlp = LOOM_SWIGLU};

/* A request, its layout and its topology. */
typedef struct rehearsal_case {
    loom_topology *topology;
    loom_plan_request plan;
    loom_layout layout;
    loom_rehearsal_request request;
} rehearsal_case;

static void open_case_on(rehearsal_case *c, const char *cluster, const loom_model *model, int64_t batch, const char *layout)
{
    *c = (rehearsal_case){0};
    assert_ok(loom_topology_parse("cluster.yaml", cluster, strlen(cluster), &c->topology));
    c->plan = (loom_plan_request){.model = model, .topology = c->topology, .train = {.global_batch = batch, .seq = model->seq, .precision = LOOM_BF16}};
    assert_ok(loom_plan_layout(&c->plan, layout, &c->layout));
    c->request = (loom_rehearsal_request){.plan = &c->plan, .layout = &c->layout};
}

static void open_case(rehearsal_case *c, const loom_model *model, int nodes, int64_t batch, const char *layout)
{
    char cluster[160];

    snprintf(cluster, sizeof cluster, "cluster: {nodes: %d, gpus_per_node: 8, gpu: h100-80g, nvlink_domain: 8, nic_gbps_per_gpu: 400}", nodes);
    open_case_on(c, cluster, model, batch, layout);
}

static loom_rehearsal rehearsed(const rehearsal_case *c)
{
    loom_rehearsal h;
    double sum = 0;

    assert_ok(loom_rehearse(&c->request, &h));
    for (int i = 0; i < LOOM_TIME_PARTS; i++) {
        assert_true(h.part_s[i] >= -1e-12);
        sum += h.part_s[i];
    }
    assert_near(sum, h.step_s, 1e-9 * h.step_s); /* holds of every rehearsal */
    return h;
}

/* The step without anything injected; frees. */
static double step_of(const rehearsal_case *c)
{
    loom_rehearsal h = rehearsed(c);
    double step = h.step_s;

    loom_rehearsal_free(&h);
    return step;
}

static void undisturbed_it_is_the_predicted_step(void **state)
{
    static const char *const layouts[] = {"tp=8,pp=4,dp=2,mbs=1",         "tp=4,pp=2,dp=8,vpp=4,mbs=1",  "tp=2,cp=4,dp=8,zero=0", "dp=64,zero=3,mbs=1",
                                          "tp=8,pp=8,dp=1,schedule=zb-h1", "tp=2,pp=4,dp=8,vpp=2,schedule=zb-v", "tp=1,pp=8,dp=8,zero=2,recompute=full"};
    rehearsal_case c;
    loom_prediction *p = calloc(1, sizeof *p);

    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        open_case(&c, &dense, 8, 256, layouts[i]);
        assert_ok(loom_plan_predict(&c.plan, &c.layout, p));
        assert_near(step_of(&c), p->step_s, 0.01 * p->step_s); /* stages end one after another there, here as simulated */
        loom_topology_free(c.topology);
    }
    free(p);
}

/* Four ranks on two cores: a stage is quicker while others wait, in the prediction and here. */
static void on_shared_cores_it_is_the_predicted_step_too(void **state)
{
    static const loom_model small = {.name = "small", .layers = 8, .hidden = 512, .heads = 8, .kv_heads = 8, .head_dim = 64, .ffn = 2048, .vocab = 1000, .seq = 256, .mlp = LOOM_GELU_TANH};
    static const char *const layouts[] = {"pp=4,mbs=1", "pp=2,dp=2,mbs=1", "tp=4,mbs=4", "pp=4,mbs=1,schedule=gpipe", "tp=2,pp=2,vpp=4,mbs=1"};
    rehearsal_case c;
    loom_prediction *p = calloc(1, sizeof *p);

    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        open_case_on(&c, "cluster: {nodes: 1, cpu_ranks_per_node: 4, cores_per_node: 2, memory_gib_per_node: 16}", &small, 16, layouts[i]);
        c.plan.train.precision = LOOM_F32;
        assert_ok(loom_plan_predict(&c.plan, &c.layout, p));
        assert_near(step_of(&c), p->step_s, 0.001 * p->step_s);
        loom_topology_free(c.topology);
    }
    free(p);
}

/* One stage: a slow rank makes everybody's computing as much longer, and nothing else. */
static void without_pipeline_one_slow_rank_slows_all_by_its_factor(void **state)
{
    static const loom_handicap slow = {.rank = 5, .factor = 1.3};
    rehearsal_case c;
    loom_rehearsal before, after;

    open_case(&c, &dense, 1, 64, "tp=2,dp=4,pp=1,mbs=1");
    before = rehearsed(&c);
    c.request.slow = &slow, c.request.n_slow = 1;
    after = rehearsed(&c);
    assert_near(after.undisturbed_s, before.step_s, 1e-12);
    assert_near(after.stage[0].compute_s, 1.3 * before.stage[0].compute_s, 1e-9);
    assert_near(after.stage[0].tp_s, before.stage[0].tp_s, 1e-12);
    assert_near(after.slowdown.hidden_s, 0, 1e-9);
    assert_near(after.slowdown.passes_s, 0.3 * after.slowdown.compute_share * before.step_s, 1e-9);
    assert_int_equal(after.last_replica, 2); /* rank 5 is tp 1 of dp 2 */
    assert_int_equal(after.timelines, 2);    /* three pipelines are alike */
    assert_non_null(strstr(after.critical_path, "rank 5 there computes 1.3 times as long"));
    loom_rehearsal_free(&before);
    loom_rehearsal_free(&after);
    loom_topology_free(c.topology);
}

/* With very many micro-batches the slow stage sets the pace: computing of the step grows by the factor, the rest stays. */
static void in_a_long_pipeline_the_slow_stage_sets_the_pace(void **state)
{
    static const loom_handicap slow = {.rank = 17, .factor = 1.3}; /* tp 1 of stage 2 */
    rehearsal_case c;
    loom_rehearsal before, after;

    open_case(&c, &large, 16, 512, "tp=8,pp=16,dp=1,mbs=1");
    before = rehearsed(&c);
    c.request.slow = &slow, c.request.n_slow = 1;
    after = rehearsed(&c);
    assert_near(after.stage[2].compute_s, 1.3 * before.stage[2].compute_s, 1e-9);
    assert_int_equal(after.busiest, 2);
    /* it waits for nothing but filling and draining: 15 other stages against 512 micro-batches, and the messages */
    assert_true(after.stage[2].wait_s < 0.05 * after.stage[2].end_s);
    assert_true(after.step_s > 1.15 * before.step_s && after.step_s < 1.3 * before.step_s);
    assert_non_null(strstr(after.critical_path, "on stage 2; rank 17 there"));
    loom_rehearsal_free(&before);
    loom_rehearsal_free(&after);
    loom_topology_free(c.topology);
}

/* 1F1B on even stages, p of them and m micro-batches: stage s waits for those behind it while it warms up and while it drains, (p-1-s) times a
 * forward and a backward. A rank slower by less than forward over backward hides as many micro-batches' worth of its slowness in that, and the
 * other m - (p-1-s) are seen: all of it on the last stage, least on the first. */
static void in_1f1b_a_slow_stage_hides_as_many_micro_batches_as_it_warms_up(void **state)
{
    enum { P = 4, M = 16 };
    static const loom_model even = {.name = "even", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 64, .seq = 8192, .mlp = LOOM_SWIGLU};
    rehearsal_case c;

    open_case(&c, &even, 1, 2 * M, "tp=1,dp=2,pp=4,mbs=1,schedule=1f1b");
    c.plan.set = (const char *const[]){"h100.link_gather_2=1e18", "h100.link_start=0", NULL}; /* messages take no time */
    for (int s = 0; s < P; s++) {
        const loom_handicap slow = {.rank = loom_layout_rank(&c.layout, (const int[4]){0, 0, 1, s}), .factor = 1.2};
        loom_rehearsal plain = rehearsed(&c), h;
        c.request.slow = &slow, c.request.n_slow = 1;
        h = rehearsed(&c);
        c.request.n_slow = 0;
        double micro_batch = plain.stage[s].compute_s / M;
        const loom_slowdown *why = &h.slowdown;
        assert_int_equal(why->stage, s);
        assert_near(why->passes_s, 0.2 * micro_batch * M, 1e-9);
        /* the embedding makes stage 0 the busiest by a little: the others wait for it all along */
        assert_near(why->hidden_s, 0.2 * micro_batch * (P - 1 - s) + plain.stage[0].compute_s - plain.stage[s].compute_s, 0.01 * micro_batch);
        assert_near(why->compute_share, plain.stage[s].compute_s / plain.step_s, 1e-12);
        assert_near(why->passes_s + why->links_s - why->hidden_s + why->behind_s, h.step_s - h.undisturbed_s, 1e-9);
        assert_true(h.step_s / h.undisturbed_s - 1 <= 0.2 * why->compute_share + why->behind_s / h.undisturbed_s + 1e-9);
        assert_near(plain.slowdown.passes_s + plain.slowdown.compute_share, 0, 0);
        loom_rehearsal_free(&plain);
        loom_rehearsal_free(&h);
    }
    loom_topology_free(c.topology);
}

static void a_slow_link_lengthens_communication_alone(void **state)
{
    static const loom_handicap link = {.rank = 0, .factor = 3};
    rehearsal_case c;
    loom_rehearsal before, after;

    open_case(&c, &dense, 1, 64, "tp=2,dp=4,pp=1,mbs=1");
    before = rehearsed(&c);
    c.request.slow_link = &link, c.request.n_slow_link = 1;
    after = rehearsed(&c);
    assert_near(after.stage[0].compute_s, before.stage[0].compute_s, 1e-12);
    assert_near(after.stage[0].tp_s, 3 * before.stage[0].tp_s, 1e-9);
    assert_true(after.step_s > before.step_s);
    loom_rehearsal_free(&before);
    loom_rehearsal_free(&after);
    loom_topology_free(c.topology);
}

static void experts_and_zero_3_bind_pipelines_together(void **state)
{
    rehearsal_case c;
    loom_rehearsal h;
    const struct {
        const char *layout;
        int together;
    } cases[] = {{"tp=2,dp=8,ep=8,etp=1,zero=1", 4}, {"tp=2,dp=8,ep=4,etp=2,zero=1", 4}, {"tp=2,dp=8,ep=2,zero=1", 1}, {"tp=2,dp=8,ep=2,zero=3", 8}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_case(&c, &moe, 2, 64, cases[i].layout);
        h = rehearsed(&c);
        assert_int_equal(h.replicas_together, cases[i].together);
        assert_int_equal(h.replicas, 8 / cases[i].together);
        loom_rehearsal_free(&h);
        loom_topology_free(c.topology);
    }
}

static void jitter_is_a_function_of_its_seed_and_costs_more_on_more_ranks(void **state)
{
    rehearsal_case few, many;
    double grown[2];

    open_case(&few, &dense, 1, 32, "tp=2,dp=2,pp=2,mbs=1");
    open_case(&many, &dense, 8, 256, "tp=2,dp=16,pp=2,mbs=1");
    few.request.jitter = many.request.jitter = 0.05;
    few.request.seed = many.request.seed = 3;
    assert_true(step_of(&few) == step_of(&few)); /* to the bit */
    rehearsal_case *both[] = {&few, &many};
    for (int i = 0; i < 2; i++) {
        loom_rehearsal h = rehearsed(both[i]);
        grown[i] = h.step_s / h.undisturbed_s;
        assert_int_equal(h.timelines, h.replicas);
        loom_rehearsal_free(&h);
    }
    assert_true(grown[0] > 1 && grown[1] > grown[0]);
    double one = step_of(&few);
    few.request.seed = 4;
    assert_true(step_of(&few) != one);
    loom_topology_free(few.topology);
    loom_topology_free(many.topology);
}

static void sixteen_thousand_ranks_with_a_slow_one_are_two_timelines(void **state)
{
    static const loom_handicap slow = {.rank = 137, .factor = 1.3};
    rehearsal_case c;
    loom_rehearsal h;

    open_case(&c, &large, 2048, 2048, "tp=8,pp=16,dp=128,vpp=7,mbs=1");
    c.request.slow = &slow, c.request.n_slow = 1;
    h = rehearsed(&c);
    assert_int_equal(h.timelines, 2);
    assert_int_equal(h.last_replica, 17);
    assert_true(h.step_s > 1.05 * h.undisturbed_s && h.step_s < 1.3 * h.undisturbed_s);
    loom_rehearsal_free(&h);
    loom_topology_free(c.topology);
}

/* Valid JSON; of each rank every action once; events of a rank follow one another; the last ends with the step. */
static void the_trace_holds_every_action_of_the_chosen_ranks(void **state)
{
    static const int ranks[] = {0, 13};
    rehearsal_case c;
    loom_config *json;
    char *text;
    double last[2] = {0}, step;
    int events[2] = {0};
    loom_rehearsal h;

    open_case(&c, &dense, 2, 16, "tp=2,pp=4,dp=2,mbs=1");
    h = rehearsed(&c);
    step = h.step_s;
    assert_ok(loom_rehearsal_trace(&c.request, &h, ranks, 2, &text));
    assert_ok(loom_config_parse("trace.json", text, strlen(text), &json));
    const loom_node *list = loom_node_get(loom_config_root(json), "traceEvents");
    for (size_t i = 0; i < loom_node_count(list); i++) {
        const loom_node *e = loom_node_at(list, i);
        double start = 0, duration = 0, rank = 0;
        if (strcmp(loom_node_text(loom_node_get(e, "ph")), "X") != 0)
            continue;
        assert_true(loom_node_as_f64(loom_node_get(e, "ts"), &start) && loom_node_as_f64(loom_node_get(e, "dur"), &duration) && loom_node_as_f64(loom_node_get(e, "pid"), &rank));
        int which = rank == 13;
        assert_true(start >= last[which] - 0.01 && duration >= 0);
        last[which] = start + duration;
        events[which]++;
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(events[i], 2 * 8 + 8 + 2); /* 8 micro-batches forward and backward, as many sends, gradients, optimizer */
        assert_true(last[i] <= step * 1e6 + 0.01);
    }
    assert_refused(loom_rehearsal_trace(&c.request, &h, (const int[]){16}, 1, &text), LOOM_E_INVALID, "ranks are 0 to 15");
    loom_text_free(text);
    loom_config_free(json);
    loom_rehearsal_free(&h);
    loom_topology_free(c.topology);
}

/* The run's steps are those of the disturbed rehearsal, on the topology's nodes. */
static void a_run_with_failures_is_made_of_rehearsed_steps(void **state)
{
    static const loom_handicap slow = {.rank = 5, .factor = 1.3};
    static const loom_run_failure failure = {.rank = 13, .at_s = 5000};
    static const loom_run_request run = {.costs = {.checkpoint_s = 30, .restart_s = 100, .interval_s = 600}, .steps = 1000, .failures = &failure, .n_failures = 1, .spares = -1};
    rehearsal_case c;
    loom_config *json;
    char *text;
    double value;

    open_case(&c, &dense, 2, 64, "tp=2,dp=8,pp=1,mbs=1");
    c.request.slow = &slow, c.request.n_slow = 1;
    c.request.run = &run;
    loom_rehearsal h = rehearsed(&c);
    assert_true(h.step_s > h.undisturbed_s);
    assert_int_equal(h.run.interval_steps, (int64_t)round(600 / h.step_s));
    double saves = ceil(1000.0 / (double)h.run.interval_steps);
    assert_near(h.run.seconds, 1000 * h.step_s + saves * 30 + h.run.lost_s + 100, 1e-6);
    assert_int_equal(h.run.event[0].node, 1);
    assert_ok(loom_rehearsal_describe(&c.request, &h, &text));
    assert_non_null(strstr(text, "rank 13 (node 1) fails"));
    loom_text_free(text);
    assert_ok(loom_rehearsal_json(&c.request, &h, &text));
    assert_ok(loom_config_parse("step.json", text, strlen(text), &json));
    assert_true(loom_node_as_f64(loom_node_get(loom_node_get(loom_config_root(json), "run"), "lost_s"), &value) && value == h.run.lost_s);
    loom_config_free(json);
    loom_text_free(text);
    loom_rehearsal_free(&h);
    loom_topology_free(c.topology);
}

static void the_json_holds_the_figures(void **state)
{
    rehearsal_case c;
    loom_config *json;
    loom_rehearsal h;
    char *text;
    double value;

    open_case(&c, &dense, 2, 16, "tp=2,pp=4,dp=2,mbs=1");
    h = rehearsed(&c);
    assert_ok(loom_rehearsal_json(&c.request, &h, &text));
    assert_ok(loom_config_parse("step.json", text, strlen(text), &json));
    const loom_node *root = loom_config_root(json), *stages = loom_node_get(root, "stages");
    assert_true(loom_node_as_f64(loom_node_get(root, "step_s"), &value) && value == h.step_s);
    assert_true(loom_node_as_f64(loom_node_get(loom_node_get(root, "breakdown"), "bubble"), &value) && value == h.part_s[LOOM_TIME_BUBBLE]);
    assert_int_equal(loom_node_count(stages), 4);
    assert_true(loom_node_as_f64(loom_node_get(loom_node_at(stages, 3), "end_s"), &value) && value == h.stage[3].end_s);
    assert_string_equal(loom_node_text(loom_node_get(root, "critical_path")), h.critical_path);
    loom_config_free(json);
    loom_text_free(text);
    loom_rehearsal_free(&h);
    loom_topology_free(c.topology);
}

static void what_cannot_be_is_refused(void **state)
{
    static const loom_handicap nobody = {.rank = 16, .factor = 2}, faster = {.rank = 0, .factor = 0.5};
    rehearsal_case c;
    loom_rehearsal h;

    open_case(&c, &dense, 2, 16, "tp=2,pp=4,dp=2,mbs=1");
    c.request.slow = &nobody, c.request.n_slow = 1;
    assert_refused(loom_rehearse(&c.request, &h), LOOM_E_INVALID, "rank=16", "0 to 15");
    c.request.slow = &faster;
    assert_refused(loom_rehearse(&c.request, &h), LOOM_E_INVALID, "a factor is 1 or more");
    c.request.n_slow = 0, c.request.jitter = 2;
    assert_refused(loom_rehearse(&c.request, &h), LOOM_E_INVALID, "jitter=2");
    loom_topology_free(c.topology);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(undisturbed_it_is_the_predicted_step),
        cmocka_unit_test(on_shared_cores_it_is_the_predicted_step_too),
        cmocka_unit_test(without_pipeline_one_slow_rank_slows_all_by_its_factor),
        cmocka_unit_test(in_a_long_pipeline_the_slow_stage_sets_the_pace),
        cmocka_unit_test(in_1f1b_a_slow_stage_hides_as_many_micro_batches_as_it_warms_up),
        cmocka_unit_test(a_slow_link_lengthens_communication_alone),
        cmocka_unit_test(experts_and_zero_3_bind_pipelines_together),
        cmocka_unit_test(jitter_is_a_function_of_its_seed_and_costs_more_on_more_ranks),
        cmocka_unit_test(sixteen_thousand_ranks_with_a_slow_one_are_two_timelines),
        cmocka_unit_test(the_trace_holds_every_action_of_the_chosen_ranks),
        cmocka_unit_test(a_run_with_failures_is_made_of_rehearsed_steps),
        cmocka_unit_test(the_json_holds_the_figures),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
