/* Reported cases that concern the planner (classes C and H): what a plan must offer, must refuse, and must show. */
#include "check.h"

#include <math.h>

#include <rankloom/engine.h>
#include <rankloom/planner.h>

#include "planner/cost.h"

typedef struct room {
    loom_model model;
    loom_topology *topology;
    loom_plan_request request;
    loom_plan *plan;
} room;

static void open_room(room *r, const char *model, const char *cluster)
{
    char path[256];

    memset(r, 0, sizeof *r);
    snprintf(path, sizeof path, "cases/models/%s.yaml", model);
    assert_ok(loom_model_load(test_data(path), &r->model, &r->request.train));
    snprintf(path, sizeof path, "clusters/%s.yaml", cluster);
    assert_ok(loom_topology_load(test_data(path), &r->topology));
    r->request.model = &r->model;
    r->request.topology = r->topology;
    r->request.train.micro_batch = 0;
}

static void search(room *r)
{
    loom_plan_free(r->plan);
    r->plan = NULL;
    assert_ok(loom_plan_search(&r->request, &r->plan));
}

static void close_room(room *r)
{
    loom_plan_free(r->plan);
    loom_topology_free(r->topology);
}

static loom_prediction predict(room *r, const char *text)
{
    static loom_layout layout;
    static loom_prediction prediction;

    assert_ok(loom_plan_layout(&r->request, text, &layout));
    assert_ok(loom_plan_predict(&r->request, &layout, &prediction));
    return prediction;
}

static void c01_tp_that_does_not_divide_the_heads_is_never_planned_and_refused_when_asked(void **state)
{
    room r;
    loom_layout layout;

    open_room(&r, "dense-28h", "h100-1x8");
    r.request.keep = 31;
    search(&r);
    assert_true(r.plan->n_best > 0);
    for (int i = 0; i < r.plan->n_best; i++) {
        int tp = r.plan->best[i].layout.tp;
        assert_true(tp == 1 || tp == 2 || tp == 4);
    }
    assert_refused(loom_plan_layout(&r.request, "tp=8", &layout), LOOM_E_INVALID, "tp=8", "28 heads", "1, 2 and 4");
    char *text;
    assert_ok(loom_plan_explain(&r.request, "tp=8", &text));
    assert_non_null(strstr(text, "28 heads"));
    loom_text_free(text);
    close_room(&r);
}

static void c02_copies_of_kv_heads_count_as_memory(void **state)
{
    room r;

    open_room(&r, "dense-2kv", "h100-1x8");
    double whole = predict(&r, "tp=2,dp=4").memory[0].parameters * 2, copied = predict(&r, "tp=4,dp=2").memory[0].parameters * 4;
    /* norms and the final norm are whole on every rank; so are 2 of the 4 copies of the two kv heads */
    double norms = (2.0 * r.model.layers + 1) * r.model.hidden * 2;
    assert_true(fabs(copied - whole - norms - 2097152.0 * r.model.layers) < 1);
    close_room(&r);
}

static void c04_layers_that_pp_does_not_divide_are_split_unevenly_and_none_is_lost(void **state)
{
    static const char *const fixes[] = {"pp=4", "pp=8", "pp=16"};
    room r;

    for (int i = 0; i < 3; i++) {
        const char *fix[] = {fixes[i], "vpp=1", NULL};
        open_room(&r, "dense-61l", "h100-2x8");
        r.request.fix = fix;
        search(&r);
        if (r.plan->n_best) {
            int64_t sum = 0;
            const loom_layout *l = &r.plan->best[0].layout;
            for (int c = 0; c < l->n_chunks; c++)
                sum += l->chunk_layers[c];
            assert_int_equal(sum, 61);
            assert_int_equal(l->n_chunks, l->pp);
        }
        close_room(&r);
    }
}

/* --- what is refused, in one sentence with the numbers and what would be legal ------------------------------------------------------ */

static void c06_expert_degrees_are_judged_against_the_ranks_of_a_stage(void **state)
{
    room r;
    loom_layout layout;

    open_room(&r, "moe-128e", "h100-1x8");
    r.request.max_gpus = 4;
    assert_ok(loom_plan_layout(&r.request, "tp=4,ep=4,etp=1", &layout));
    assert_ok(loom_plan_layout(&r.request, "tp=4,ep=4", &layout)); /* etp is 1 unless given, whatever tp is */
    assert_int_equal(layout.etp, 1);
    assert_refused(loom_plan_layout(&r.request, "tp=4,ep=4,etp=4", &layout), LOOM_E_INVALID, "ep=4", "etp=4", "16");
    close_room(&r);
}

static void c07_all_broken_rules_of_a_request_are_told(void **state)
{
    room r;
    loom_layout layout;

    open_room(&r, "moe-256e", "single-3x24g");
    r.request.train.global_batch = 255;
    assert_refused(loom_plan_layout(&r.request, "ep=3,tp=3", &layout), LOOM_E_INVALID, "256 experts", "64 heads");
    close_room(&r);
    open_room(&r, "moe-256e", "a100-1x6");
    r.request.train.global_batch = 240;
    assert_refused(loom_plan_layout(&r.request, "ep=6", &layout), LOOM_E_INVALID, "ep=6", "256 experts", "1, 2, 4");
    close_room(&r);
}

/* Our rule is that of pp: micro-batches in rounds of pp. */
static void c09_interleaving_wants_rounds_of_pp_micro_batches(void **state)
{
    static const struct {
        int micro_batches;
        bool legal;
    } requests[] = {{3, false}, {4, true}, {6, false}, {8, true}, {10, false}, {12, true}};
    room r;
    loom_layout layout;

    open_room(&r, "dense-8b", "h100-1x8");
    for (int i = 0; i < 6; i++) {
        r.request.train.global_batch = 2 * requests[i].micro_batches; /* dp = 2 */
        loom_status status = loom_plan_layout(&r.request, "pp=4,vpp=2", &layout);
        assert_int_equal(status == LOOM_OK, requests[i].legal);
        if (!requests[i].legal)
            assert_non_null(strstr(loom_last_error(), "pp=4"));
    }
    close_room(&r);
}

static void c10_a_batch_that_does_not_divide_comes_with_its_neighbours(void **state)
{
    room r;
    loom_layout layout;

    open_room(&r, "dense-8b", "h100-1x8");
    r.request.train.global_batch = 100;
    assert_refused(loom_plan_layout(&r.request, "dp=8,mbs=3", &layout), LOOM_E_INVALID, "96 and 120");
    for (int micro_batch = 1; micro_batch <= 25; micro_batch++) {
        char text[32];
        snprintf(text, sizeof text, "tp=2,dp=4,mbs=%d", micro_batch);
        bool works = micro_batch == 1 || micro_batch == 5 || micro_batch == 25;
        assert_int_equal(loom_plan_layout(&r.request, text, &layout) == LOOM_OK, works);
    }
    close_room(&r);
}

static void c12_a_sequence_is_a_multiple_of_twice_cp_or_told_its_neighbours(void **state)
{
    room r;
    loom_layout layout;

    open_room(&r, "dense-8b", "h100-1x8");
    r.request.train.seq = 4098;
    assert_refused(loom_plan_layout(&r.request, "cp=4,sp=false", &layout), LOOM_E_INVALID, "4096 and 4104");
    assert_refused(loom_plan_layout(&r.request, "cp=4,tp=2,sp=true", &layout), LOOM_E_INVALID, "4096 and 4112");
    close_room(&r);
}

static void c28_a_given_head_size_counts(void **state)
{
    room r;

    open_room(&r, "dense-headdim", "h100-1x8");
    assert_true(predict(&r, "tp=1,dp=8").memory[0].parameters == 2316814080);
    close_room(&r);
}

static void c30_the_product_of_degrees_is_told_beside_the_world(void **state)
{
    room r;
    loom_layout layout;

    open_room(&r, "dense-8b", "h100-1x8");
    assert_refused(loom_plan_layout(&r.request, "tp=2,pp=2,dp=4", &layout), LOOM_E_INVALID, "tp=2", "pp=2", "dp=4", "16", "world has 8");
    assert_ok(loom_plan_layout(&r.request, "tp=2,pp=2", &layout));
    assert_int_equal(layout.dp, 2);
    assert_refused(loom_plan_layout(&r.request, "tp=3", &layout), LOOM_E_INVALID, "tp=3", "world of 8");
    close_room(&r);
}

static void c15_every_stage_is_shown_and_the_heaviest_decides(void **state)
{
    room r;
    loom_layout layout;
    static loom_prediction p;
    static const double parameters[] = {129664, 131328, 131328, 261056};
    static const int64_t layers[] = {1, 2, 2, 3};

    open_room(&r, "tiny-8l", "h100-1x8");
    r.request.max_gpus = 4;
    assert_ok(loom_plan_layout(&r.request, "pp=4,dp=1", &layout));
    memcpy(layout.chunk_layers, layers, sizeof layers);
    assert_ok(loom_plan_predict(&r.request, &layout, &p));
    for (int stage = 0; stage < 4; stage++)
        assert_true(p.memory[stage].parameters == parameters[stage]);
    assert_int_equal(p.fullest, 3);
    double state_bytes =
        p.memory[3].part[LOOM_MEMORY_WEIGHTS] + p.memory[3].part[LOOM_MEMORY_GRADIENTS] + p.memory[3].part[LOOM_MEMORY_OPTIMIZER];
    assert_true(state_bytes == 4699008);
    close_room(&r);
}

static double logits_gib(room *r, const char *layout)
{
    loom_prediction p = predict(r, layout);
    const loom_stage_memory *last = &p.memory[p.stages - 1];

    assert_true(last->part[LOOM_MEMORY_LOSS] > 0); /* the softmax's working set is a line of its own */
    return last->part[LOOM_MEMORY_LOGITS] / 0x1p30;
}

static void c16_logits_of_the_last_stage_are_a_line_of_their_own(void **state)
{
    room r;

    open_room(&r, "dense-152k", "h100-1x8");
    assert_true(fabs(logits_gib(&r, "tp=1,dp=8") - 4.6367) < 1e-4); /* 4 bytes each: 16-bit logits and their gradient, or fp32 ones */
    assert_true(fabs(logits_gib(&r, "tp=4,dp=2") - 1.1592) < 1e-4);
    close_room(&r);
}

static void c19_activations_in_flight_differ_by_stage_and_schedule(void **state)
{
    static const int m8[] = {4, 3, 2, 1}, m2[] = {2, 2, 2, 1};
    loom_degrees g = {.pp = 4, .vpp = 1, .pipeline = LOOM_PIPE_1F1B};

    for (int stage = 0; stage < 4; stage++) {
        assert_true(loom_in_flight(&g, stage, 8) == m8[stage]);
        assert_true(loom_in_flight(&g, stage, 2) == m2[stage]);
    }
    g.pipeline = LOOM_PIPE_GPIPE;
    for (int stage = 0; stage < 4; stage++)
        assert_true(loom_in_flight(&g, stage, 8) == 8);
}

static void c21_three_cards_are_used_or_the_plan_says_in_numbers_why_not(void **state)
{
    room r;
    loom_layout layout;

    open_room(&r, "dense-8b", "single-3x24g");
    r.request.train.global_batch = 255;
    search(&r);
    assert_int_equal(r.plan->n_best, 0); /* 18 bytes a parameter are 144.5 GB, the cards have 72 */
    assert_non_null(strstr(r.plan->hopeless, "GiB"));
    assert_non_null(strstr(r.plan->hopeless, "no layout fits"));
    assert_refused(loom_plan_layout(&r.request, "tp=3", &layout), LOOM_E_INVALID, "tp=3", "32 heads");
    assert_ok(loom_plan_layout(&r.request, "pp=3", &layout));
    assert_int_equal(layout.chunk_layers[0], 11);
    assert_int_equal(layout.chunk_layers[2], 10);
    close_room(&r);
}

static void c22_six_cards_and_forty_heads(void **state)
{
    room r;
    loom_layout layout;

    open_room(&r, "dense-40h", "a100-1x6");
    r.request.train.global_batch = 240;
    r.request.keep = 31;
    search(&r);
    for (int i = 0; i < r.plan->n_best; i++)
        assert_true(r.plan->best[i].layout.tp <= 2);
    r.request.train.global_batch = 256;
    assert_refused(loom_plan_layout(&r.request, "tp=2,dp=3", &layout), LOOM_E_INVALID, "255 and 258");
    close_room(&r);
}

static void c24_on_uneven_nodes_a_tensor_parallel_pair_stays_inside_a_node(void **state)
{
    const char *fix[] = {"tp=2", NULL};
    room r;

    open_room(&r, "dense-20l", "uneven-2-3-3");
    r.request.train.global_batch = 240;
    r.request.memory_margin = 0.05;
    r.request.fix = fix;
    search(&r);
    if (r.plan->n_best) {
        const loom_layout *l = &r.plan->best[0].layout;
        assert_int_equal(loom_layout_world(l), 6); /* nodes of 2, 3, 3 hold three pairs */
    } else {
        assert_non_null(strstr(r.plan->hopeless, "GiB"));
    }
    close_room(&r);
}

static void c26_expert_groups_may_be_as_large_as_the_nvlink_domain(void **state)
{
    room r;
    const char *fix[] = {"ep=64", NULL};

    open_room(&r, "moe-128e", "nvl72-1rack");
    r.request.fix = fix;
    search(&r);
    assert_true(r.plan->n_best > 0);
    assert_int_equal(loom_layout_world(&r.plan->best[0].layout), 64); /* 64 of 72 */
    char *text;
    assert_ok(loom_plan_describe(&r.request, r.plan, LOOM_PLAN_AS_TEXT, &text));
    loom_text_free(text);
    close_room(&r);
}

static void c31_neighbouring_ranks_make_tensor_parallelism_cheap(void **state)
{
    room r;
    loom_layout layout;
    static loom_prediction near, far;
    static const loom_axis strided[4] = {LOOM_AXIS_DP, LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_PP};

    open_room(&r, "dense-8b", "h100-2x8");
    assert_ok(loom_plan_layout(&r.request, "tp=8,dp=2", &layout));
    assert_ok(loom_plan_predict(&r.request, &layout, &near));
    memcpy(layout.order, strided, sizeof layout.order);
    assert_ok(loom_plan_predict(&r.request, &layout, &far));
    assert_true(far.part_s[LOOM_TIME_TP] > 1.5 * near.part_s[LOOM_TIME_TP]);

    char *map;
    assert_ok(loom_plan_layout(&r.request, "tp=8,dp=2", &layout));
    assert_ok(loom_plan_map(&r.request, &layout, &map));
    assert_non_null(strstr(map, "tp groups of 8:\n  0-7"));
    assert_non_null(strstr(map, "  0, 8"));
    loom_text_free(map);
    close_room(&r);
}

static void h01_experts_are_exchanged_inside_the_node_when_the_network_is_slow(void **state)
{
    room r;

    open_room(&r, "moe-24l", "a100-4x4");
    double across = predict(&r, "ep=16,dp=16").part_s[LOOM_TIME_EP], inside = predict(&r, "ep=4,dp=16").part_s[LOOM_TIME_EP];
    assert_true(across > 5 * inside);
    close_room(&r);
}

/* Over two nodes ulysses sends queries and outputs across the network, a hybrid only keys and values, under attention; */
static void heads_are_exchanged_inside_the_node_and_keys_between(void **state)
{
    room r;

    open_room(&r, "dense-8b", "h100-2x8");
    double across = predict(&r, "cp=16,cp_kind=ulysses").part_s[LOOM_TIME_CP], hybrid = predict(&r, "cp=16,cp_kind=hybrid").part_s[LOOM_TIME_CP];
    double inside = predict(&r, "cp=8,dp=2,cp_kind=ulysses").part_s[LOOM_TIME_CP];
    assert_true(hybrid < across / 2);
    assert_true(inside < across / 2);
    close_room(&r);
}

static double idle_of(int pp, int vpp, int64_t m)
{
    double f[8], b[8], w[8];

    for (int i = 0; i < pp; i++)
        f[i] = 1, b[i] = 2, w[i] = 1;
    loom_pipe pipe = {pp, vpp, m, vpp > 1 ? LOOM_PIPE_INTERLEAVED : LOOM_PIPE_1F1B, f, b, w, 0};
    return 1 - 3.0 * m / loom_pipe_seconds(&pipe);
}

static void h02_idle_shares_and_the_fewest_micro_batches_for_a_tenth(void **state)
{
    int64_t m;

    assert_true(fabs(idle_of(2, 1, 1) - 0.5) < 1e-9);
    assert_true(fabs(idle_of(4, 1, 8) - 0.2727) < 1e-4);
    assert_true(fabs(idle_of(4, 2, 8) - 0.1579) < 1e-4);
    assert_true(fabs(idle_of(8, 1, 64) - 0.0986) < 1e-4);
    for (m = 1; idle_of(4, 1, m) > 0.1 + 1e-12; m++)
        ;
    assert_int_equal(m, 27);
    for (m = 1; idle_of(8, 1, m) > 0.1 + 1e-12; m++)
        ;
    assert_int_equal(m, 63);
}

/* Overlaps do not exclude one another: what hides the reduction of gradients leaves the exposure of tp as it is, and the other way round. */
static void h04_each_kind_of_communication_is_exposed_or_hidden_by_itself(void **state)
{
    static const char *const no_dp[] = {"all.dp_window=0", "all.gather_window=0", NULL}, *const hidden_tp[] = {"all.tp_hidden=0.5", NULL};
    static const char layout[] = "tp=2,dp=2,zero=1,sp=1";
    room r;

    open_room(&r, "dense-8b", "h100-1x8");
    r.request.max_gpus = 4;
    loom_prediction both = predict(&r, layout);
    r.request.set = no_dp;
    loom_prediction bare = predict(&r, layout);
    r.request.set = hidden_tp;
    loom_prediction less_tp = predict(&r, layout);
    assert_true(both.part_s[LOOM_TIME_TP] > 0 && both.part_s[LOOM_TIME_DP] > 0 && both.hidden_dp_s > 0);
    assert_true(bare.hidden_dp_s == 0 && bare.part_s[LOOM_TIME_DP] >= both.hidden_dp_s);
    assert_true(bare.part_s[LOOM_TIME_TP] == both.part_s[LOOM_TIME_TP]);
    assert_true(less_tp.part_s[LOOM_TIME_TP] < both.part_s[LOOM_TIME_TP] && less_tp.hidden_dp_s > 0);

    r.request.set = NULL;
    char *text = NULL;
    assert_ok(loom_prediction_describe(&r.request, &both, LOOM_PLAN_AS_JSON, &text));
    for (loom_time_part kind = LOOM_TIME_TP; kind <= LOOM_TIME_PP; kind++) { /* tp, cp, ep, dp, pp */
        char field[32];
        snprintf(field, sizeof field, "\"%s\":", loom_time_part_name(kind));
        assert_non_null(strstr(text, field));
    }
    assert_non_null(strstr(text, "\"hidden_dp\":"));
    loom_text_free(text);
    close_room(&r);
}

static void h07_tensor_parallelism_stays_off_slow_links(void **state)
{
    room r;

    open_room(&r, "dense-8b", "h100-2x8");
    search(&r);
    const loom_layout *l = &r.plan->best[0].layout;
    if (l->tp > 1) {
        int stride = 1;
        for (int i = 0; i < 4 && l->order[i] != LOOM_AXIS_TP; i++)
            stride *= loom_layout_degree(l, l->order[i]);
        assert_true(loom_topology_axis(r.topology, l->tp, stride).domains == 1);
    }
    /* and asked for over the network, it is told that it crosses, and costs several times as much */
    double inside = predict(&r, "tp=8,dp=2").part_s[LOOM_TIME_TP], across = predict(&r, "tp=16,dp=1").part_s[LOOM_TIME_TP];
    assert_true(across > 2 * inside);
    close_room(&r);
}

static void measure(room *r, loom_measured_step *measured)
{
    r->request.measured = measured;
    r->request.n_measured = measured ? 1 : 0;
}

static double width(const loom_prediction *p)
{
    return log(p->high_s / p->low_s);
}

static void a_measured_step_moves_predictions_and_narrows_them(void **state)
{
    room r;

    open_room(&r, "dense-8b", "h100-1x8");
    loom_prediction before = predict(&r, "tp=2,dp=4,zero=1");
    loom_measured_step slow = {"tp=2,dp=4,zero=1", 1.2 * before.step_s}, as_said = {"tp=2,dp=4,zero=1", before.step_s};
    measure(&r, &slow);
    loom_prediction after = predict(&r, "tp=2,dp=4,zero=1");
    assert_true(after.step_s > 1.15 * before.step_s && after.step_s < 1.2 * before.step_s); /* some of it was that run's luck */
    assert_true(width(&after) < 0.8 * width(&before));
    measure(&r, &as_said);
    after = predict(&r, "tp=2,dp=4,zero=1");
    assert_true(fabs(after.step_s / before.step_s - 1) < 1e-3);
    assert_true(width(&after) < 0.8 * width(&before));
    close_room(&r);
}

/* The truth is a machine whose network is slower than the tables say; one step on it is timed. */
static void a_measured_step_moves_what_it_speaks_of(void **state)
{
    static const char *const slower[] = {"h100.net_share=0.35", NULL};
    static const char heavy[] = "tp=1,dp=16,zero=3", alike[] = "tp=2,dp=8,zero=3", inside[] = "tp=8,pp=2,dp=1";
    room r;

    open_room(&r, "dense-8b", "h100-2x8");
    loom_prediction alike_before = predict(&r, alike), inside_before = predict(&r, inside);
    r.request.set = slower;
    loom_measured_step measured = {heavy, predict(&r, heavy).step_s};
    loom_prediction alike_truth = predict(&r, alike);
    r.request.set = NULL;
    measure(&r, &measured);
    loom_prediction alike_after = predict(&r, alike), inside_after = predict(&r, inside);

    double off_before = log(alike_truth.step_s / alike_before.step_s), off_after = log(alike_truth.step_s / alike_after.step_s);
    assert_true(off_before > 0.1 && fabs(off_after) < 0.35 * off_before);              /* sharded weights over the network: most of it is explained */
    assert_true(fabs(log(inside_after.step_s / inside_before.step_s)) < 0.02);         /* hardly any traffic there: nothing is said about it */
    assert_true(alike_after.part_s[LOOM_TIME_DP] > 1.5 * alike_before.part_s[LOOM_TIME_DP]);
    assert_true(fabs(log(alike_after.part_s[LOOM_TIME_GEMM] / alike_before.part_s[LOOM_TIME_GEMM])) < 0.03);
    close_room(&r);
}

static void a_step_that_no_constant_explains_is_left_to_its_layout(void **state)
{
    room r;

    open_room(&r, "dense-8b", "h100-2x8");
    loom_prediction same = predict(&r, "tp=8,dp=2,zero=1"), other = predict(&r, "tp=1,dp=16,zero=1");
    loom_measured_step odd = {"tp=8,dp=2,zero=1", 4 * same.step_s};
    measure(&r, &odd);
    assert_true(predict(&r, "tp=8,dp=2,zero=1").step_s > 2.5 * same.step_s);
    assert_true(predict(&r, "tp=1,dp=16,zero=1").step_s < 1.2 * other.step_s);
    close_room(&r);
}

static void two_measured_steps_tell_apart_what_one_cannot(void **state)
{
    static const char *const slower[] = {"h100.sustained=0.75", NULL};
    static const char first[] = "tp=8,dp=2,zero=1", second[] = "tp=1,dp=16,zero=1", asked[] = "tp=2,dp=8,zero=1";
    room r;

    open_room(&r, "dense-8b", "h100-2x8");
    r.request.set = slower;
    double truth = predict(&r, asked).step_s;
    loom_measured_step measured[] = {{first, predict(&r, first).step_s}, {second, predict(&r, second).step_s}};
    r.request.set = NULL;
    measure(&r, measured);
    loom_prediction one = predict(&r, asked);
    r.request.n_measured = 2;
    loom_prediction two = predict(&r, asked);
    assert_true(fabs(log(two.step_s / truth)) < fabs(log(one.step_s / truth)) && fabs(log(two.step_s / truth)) < 0.04);
    assert_true(width(&two) < width(&one));
    close_room(&r);
}

/* Six chunks a stage for 32 layers on 4 stages: the closed form thinks them fastest, in virtual time three are. */
static void chunks_are_chosen_in_virtual_time(void **state)
{
    static const char *const fix[] = {"pp=4", "schedule=interleaved", NULL};
    room r;

    open_room(&r, "dense-8b", "h100-2x8");
    r.request.fix = fix;
    search(&r);
    assert_true(r.plan->n_best > 0 && r.plan->simulated > 1);
    for (int vpp = 2; vpp <= 8; vpp++) {
        char layout[64];
        snprintf(layout, sizeof layout, "tp=1,pp=4,dp=4,zero=1,vpp=%d", vpp);
        assert_true(predict(&r, layout).step_s >= r.plan->best[0].step_s * (1 - 1e-9));
    }
    close_room(&r);
}

/* What a forecast does not know of a run makes no figure to the byte. */
static void memory_is_exact_for_the_runs_that_the_forecast_knows(void **state)
{
    static const char layout[] = "tp=2,pp=2,dp=2,zero=1,schedule=zb-h1";
    const loom_run_options unknown[] = {{.packed = true}, {.gathers_experts = true}, {.capacity_factor = 1.25}};
    room r;

    open_room(&r, "tiny-8l", "h100-1x8");
    assert_false(predict(&r, layout).memory_exact); /* in bf16 */
    r.request.train.precision = LOOM_F32;
    loom_prediction exact = predict(&r, layout);
    loom_rank_forecast f;
    assert_true(exact.memory_exact);
    assert_ok(loom_forecast_rank(&r.model, &exact.layout, 0, NULL, &f));
    assert_true(exact.memory[0].allocated == (double)f.memory_total);
    for (int i = 0; i < 3; i++) {
        r.request.run = unknown[i];
        assert_false(predict(&r, layout).memory_exact);
        assert_refused(loom_forecast_check(&unknown[i]), LOOM_E_UNSUPPORTED, "does not know");
    }
    close_room(&r);
}

static void a_plan_for_this_engine_is_one_that_it_runs(void **state)
{
    static const char *const selective[] = {"recompute=selective", NULL};
    room r;

    open_room(&r, "dense-8b", "h100-2x8");
    r.request.train.precision = LOOM_F32;
    r.request.keep = 31;
    search(&r);
    assert_true(r.plan->n_best > 0);
    for (int i = 0; i < r.plan->n_best; i++)
        assert_ok(loom_engine_check_layout(&r.plan->best[i].layout));
    loom_plan_free(r.plan);
    r.plan = NULL;
    r.request.framework = "megatron-core"; /* has what this engine lacks */
    r.request.fix = selective;
    search(&r);
    assert_true(r.plan->n_best > 0 && r.plan->best[0].layout.recompute == LOOM_RECOMPUTE_SELECTIVE);
    loom_plan_free(r.plan);
    r.plan = NULL;
    r.request.framework = NULL;
    search(&r);
    assert_true(r.plan->n_best == 0);
    assert_non_null(strstr(r.plan->hopeless, "recompute=selective"));
    r.request.fix = NULL;
    r.model.mla.kv_rank = 512;
    loom_plan *none = NULL;
    assert_refused(loom_plan_search(&r.request, &none), LOOM_E_UNSUPPORTED, "latent attention");
    close_room(&r);
}

static void parts_of_a_step_sum_to_the_step_and_json_is_whole(void **state)
{
    room r;
    char *text;
    loom_config *config;

    open_room(&r, "moe-128e", "h100-2x8");
    search(&r);
    for (int i = 0; i < r.plan->n_best; i++) {
        double sum = 0;
        for (int part = 0; part < LOOM_TIME_PARTS; part++)
            sum += r.plan->best[i].part_s[part];
        assert_true(fabs(sum / r.plan->best[i].step_s - 1) < 1e-9);
        assert_true(r.plan->best[i].fits);
    }
    assert_ok(loom_plan_describe(&r.request, r.plan, LOOM_PLAN_AS_JSON, &text));
    assert_ok(loom_config_parse("plan.json", text, strlen(text), &config));
    const loom_node *layouts = loom_node_get(loom_config_root(config), "layouts");
    assert_int_equal(loom_node_count(layouts), r.plan->n_best);
    const loom_node *first = loom_node_at(layouts, 0), *stages = loom_node_get(first, "layers_per_stage");
    assert_int_equal(loom_node_count(stages), r.plan->best[0].stages);
    assert_int_equal(loom_node_count(loom_node_get(first, "layers_per_chunk")), r.plan->best[0].layout.n_chunks);
    assert_int_equal(loom_node_count(loom_node_get(first, "memory_gib_per_stage")), r.plan->best[0].stages);
    int64_t layers = 0, of_stage;
    for (size_t i = 0; i < loom_node_count(stages); i++) {
        assert_true(loom_node_as_i64(loom_node_at(stages, i), &of_stage));
        layers += of_stage;
    }
    assert_int_equal(layers, r.model.layers);
    loom_config_free(config);
    loom_text_free(text);
    close_room(&r);
}

static void conditions_are_kept_and_nonsense_is_refused(void **state)
{
    room r;
    const char *fix[] = {"tp=2", "zero=1", NULL}, *exclude[] = {"cp>1", "schedule=gpipe", NULL}, *wrong[] = {"tq=2", NULL};

    open_room(&r, "dense-8b", "h100-2x8");
    r.request.fix = fix;
    r.request.exclude = exclude;
    r.request.keep = 31;
    search(&r);
    assert_true(r.plan->n_best > 0);
    for (int i = 0; i < r.plan->n_best; i++) {
        const loom_layout *l = &r.plan->best[i].layout;
        assert_true(l->tp == 2 && l->cp == 1 && (l->zero == 1 || l->dp == 1) && l->schedule != LOOM_SCHEDULE_GPIPE);
    }
    r.request.fix = wrong;
    loom_plan *none = NULL;
    assert_refused(loom_plan_search(&r.request, &none), LOOM_E_INVALID, "tq=2", "expected tp");
    close_room(&r);
}

static void conditions_that_leave_nothing_are_named(void **state)
{
    room r;
    const char *heads[] = {"tp=3", NULL}, *both[] = {"recompute=full", NULL};

    open_room(&r, "dense-8b", "h100-2x8");
    r.request.fix = heads;
    search(&r);
    assert_int_equal(r.plan->n_best, 0);
    assert_non_null(strstr(r.plan->hopeless, "tp=3"));
    assert_non_null(strstr(r.plan->hopeless, "tp 1, 2, 4, 8 or 16"));
    r.request.fix = r.request.exclude = both;
    search(&r);
    assert_non_null(strstr(r.plan->hopeless, "recompute=full"));
    char *text;
    assert_refused(loom_plan_explain(&r.request, "tp=4,pq=2", &text), LOOM_E_INVALID, "pq=2");
    close_room(&r);
}

static void none_of_the_front_is_beaten_in_time_memory_and_ranks(void **state)
{
    room r;

    open_room(&r, "moe-128e", "nvl72-1rack");
    r.request.train.global_batch = 576;
    r.request.pareto = r.request.fewer_gpus = true;
    search(&r);
    assert_true(r.plan->n_front > 3);
    for (int i = 0; i < r.plan->n_front; i++)
        for (int j = 0; j < r.plan->n_front; j++) {
            const loom_prediction *a = &r.plan->front[i], *b = &r.plan->front[j];
            bool beaten = a->step_s <= b->step_s && a->memory[a->fullest].total <= b->memory[b->fullest].total &&
                          loom_layout_world(&a->layout) <= loom_layout_world(&b->layout);
            assert_true(i == j || !beaten);
        }
    close_room(&r);
}

static void no_line_is_wider_than_a_hundred_columns(void **state)
{
    room r;
    char *text;

    open_room(&r, "moe-128e", "nvl72-1rack");
    r.request.train.global_batch = 576;
    r.request.pareto = r.request.advise = true;
    search(&r);
    assert_ok(loom_plan_describe(&r.request, r.plan, LOOM_PLAN_AS_TEXT, &text));
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 100);
    loom_text_free(text);
    close_room(&r);
}

static void software_is_found_by_whole_words(void **state)
{
    room r;
    static loom_prediction p;
    static loom_layout layout;

    open_room(&r, "dense-8b", "h100-1x8");
    assert_ok(loom_plan_layout(&r.request, "tp=2", &layout));
    r.request.framework = "NVIDIA NeMo 25.04";
    assert_ok(loom_plan_predict(&r.request, &layout, &p));
    r.request.framework = "nemoo";
    assert_refused(loom_plan_predict(&r.request, &layout, &p), LOOM_E_INVALID, "nemoo", "torchtitan");
    close_room(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c01_tp_that_does_not_divide_the_heads_is_never_planned_and_refused_when_asked),
        cmocka_unit_test(c02_copies_of_kv_heads_count_as_memory),
        cmocka_unit_test(c04_layers_that_pp_does_not_divide_are_split_unevenly_and_none_is_lost),
        cmocka_unit_test(c06_expert_degrees_are_judged_against_the_ranks_of_a_stage),
        cmocka_unit_test(c07_all_broken_rules_of_a_request_are_told),
        cmocka_unit_test(c09_interleaving_wants_rounds_of_pp_micro_batches),
        cmocka_unit_test(c10_a_batch_that_does_not_divide_comes_with_its_neighbours),
        cmocka_unit_test(c12_a_sequence_is_a_multiple_of_twice_cp_or_told_its_neighbours),
        cmocka_unit_test(c28_a_given_head_size_counts),
        cmocka_unit_test(c30_the_product_of_degrees_is_told_beside_the_world),
        cmocka_unit_test(c15_every_stage_is_shown_and_the_heaviest_decides),
        cmocka_unit_test(c16_logits_of_the_last_stage_are_a_line_of_their_own),
        cmocka_unit_test(c19_activations_in_flight_differ_by_stage_and_schedule),
        cmocka_unit_test(c21_three_cards_are_used_or_the_plan_says_in_numbers_why_not),
        cmocka_unit_test(c22_six_cards_and_forty_heads),
        cmocka_unit_test(c24_on_uneven_nodes_a_tensor_parallel_pair_stays_inside_a_node),
        cmocka_unit_test(c26_expert_groups_may_be_as_large_as_the_nvlink_domain),
        cmocka_unit_test(c31_neighbouring_ranks_make_tensor_parallelism_cheap),
        cmocka_unit_test(heads_are_exchanged_inside_the_node_and_keys_between),
        cmocka_unit_test(h01_experts_are_exchanged_inside_the_node_when_the_network_is_slow),
        cmocka_unit_test(h02_idle_shares_and_the_fewest_micro_batches_for_a_tenth),
        cmocka_unit_test(h04_each_kind_of_communication_is_exposed_or_hidden_by_itself),
        cmocka_unit_test(h07_tensor_parallelism_stays_off_slow_links),
        cmocka_unit_test(chunks_are_chosen_in_virtual_time),
        cmocka_unit_test(memory_is_exact_for_the_runs_that_the_forecast_knows),
        cmocka_unit_test(a_plan_for_this_engine_is_one_that_it_runs),
        cmocka_unit_test(a_measured_step_moves_predictions_and_narrows_them),
        cmocka_unit_test(a_measured_step_moves_what_it_speaks_of),
        cmocka_unit_test(a_step_that_no_constant_explains_is_left_to_its_layout),
        cmocka_unit_test(two_measured_steps_tell_apart_what_one_cannot),
        cmocka_unit_test(parts_of_a_step_sum_to_the_step_and_json_is_whole),
        cmocka_unit_test(conditions_that_leave_nothing_are_named),
        cmocka_unit_test(none_of_the_front_is_beaten_in_time_memory_and_ranks),
        cmocka_unit_test(no_line_is_wider_than_a_hundred_columns),
        cmocka_unit_test(software_is_found_by_whole_words),
        cmocka_unit_test(conditions_are_kept_and_nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
