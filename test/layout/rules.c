/* The rule checker against the facts of reported cases: what is legal, and which values a message has to name. */
#include <rankloom/layout.h>

#include "check.h"

static const loom_model dense_8b = {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 128256, .seq = 8192};

enum { MOST = 16 };
static loom_rule_breach breaches[MOST];

static loom_layout layout_of(const loom_model *model)
{
    loom_layout layout;

    loom_layout_default(model, &layout);
    return layout;
}

static int broken_rules(loom_layout *layout, const loom_model *model, int world)
{
    return loom_layout_resolve(layout, model, world, breaches, MOST);
}

/* The text of the breach of `rule`, or NULL. */
static const char *breach_of(int count, const char *rule)
{
    for (int i = 0; i < count && i < MOST; i++)
        if (strcmp(breaches[i].rule, rule) == 0)
            return breaches[i].text;
    return NULL;
}

static void assert_breach(int count, const char *rule, const char *words[])
{
    const char *text = breach_of(count, rule);

    if (!text)
        fail_msg("rule %s is not reported; %d others are, the first: %s", rule, count, count ? breaches[0].text : "-");
    for (int i = 0; words[i]; i++)
        if (!strstr(text, words[i]))
            fail_msg("'%s' is not in: %s", words[i], text);
}
#define WORDS(...) (const char *[]){__VA_ARGS__, NULL}

static void heads_that_tp_does_not_divide_are_refused_with_the_legal_values(void **state)
{
    const loom_model model = {.layers = 28, .hidden = 3584, .heads = 28, .kv_heads = 4, .ffn = 18944, .vocab = 152064, .seq = 4096};
    loom_layout layout;

    for (int tp = 1; tp <= 8; tp++) {
        bool legal = tp == 1 || tp == 2 || tp == 4;
        layout = layout_of(&model);
        layout.tp = tp;
        layout.dp = 8 % tp == 0 ? 0 : 1;
        assert_int_equal(broken_rules(&layout, &model, 8) == 0, legal);
    }
    layout = layout_of(&model);
    layout.tp = 8;
    assert_breach(broken_rules(&layout, &model, 8), "tp-heads", WORDS("tp=8", "28 heads", "1, 2, 4 and 28 do", "1, 2 and 4 fit a world of 8"));
}

static void fewer_kv_heads_than_tp_are_legal_when_one_divides_the_other(void **state)
{
    const loom_model model = {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 2, .ffn = 13696, .vocab = 65024, .seq = 8192};
    const loom_model three = {.layers = 4, .hidden = 96, .heads = 12, .kv_heads = 3, .ffn = 96, .vocab = 64, .seq = 32};
    loom_layout layout = layout_of(&model);

    layout.tp = 4;
    layout.dp = 2;
    assert_int_equal(broken_rules(&layout, &model, 8), 0);

    layout = layout_of(&three);
    layout.tp = 2;
    assert_breach(broken_rules(&layout, &three, 2), "tp-kv-heads", WORDS("tp=2", "3 kv heads", "1, 3, 6 and 12 do"));
}

static void every_pp_up_to_the_layers_is_legal_and_no_layer_is_lost(void **state)
{
    static const int pairs[][2] = {{30, 4}, {10, 3}, {61, 4}, {61, 8}, {7, 2}, {43, 4}, {78, 5}, {12, 5}, {32, 3}, {40, 3}, {40, 6}, {61, 61}};

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        loom_model model = dense_8b;
        loom_layout layout;
        int64_t sum = 0;

        model.layers = pairs[i][0];
        layout = layout_of(&model);
        layout.pp = pairs[i][1];
        assert_int_equal(broken_rules(&layout, &model, 0), 0);
        for (int c = 0; c < layout.n_chunks; c++) { /* contiguous by construction: each begins where the sum before it ends */
            assert_int_equal(loom_layout_first_layer(&layout, c), sum);
            assert_in_range(layout.chunk_layers[c], model.layers / layout.pp, (model.layers + layout.pp - 1) / layout.pp);
            assert_true(c == 0 || layout.chunk_layers[c] <= layout.chunk_layers[c - 1]);
            sum += layout.chunk_layers[c];
        }
        assert_int_equal(sum, model.layers);
    }
}

static void more_stages_than_layers_are_refused(void **state)
{
    loom_model model = dense_8b;
    loom_layout layout;

    model.layers = 61;
    layout = layout_of(&model);
    layout.pp = 62;
    assert_breach(broken_rules(&layout, &model, 0), "pp-layers", WORDS("pp=62", "61 layers", "pp 1 to 61"));
    layout = layout_of(&model);
    layout.pp = 8;
    layout.vpp = 8;
    layout.schedule = LOOM_SCHEDULE_INTERLEAVED;
    assert_breach(broken_rules(&layout, &model, 0), "pp-layers", WORDS("pp=8 x vpp=8 = 64", "61 layers", "vpp 1 to 7"));
}

static void listed_layers_are_taken_and_have_to_sum_up(void **state)
{
    const loom_model model = {.layers = 8, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 128, .seq = 32};
    loom_layout layout = layout_of(&model);

    layout.pp = 4;
    layout.n_chunks = 4;
    memcpy(layout.chunk_layers, (int64_t[]){0, 3, 3, 2}, 4 * sizeof(int64_t)); /* a stage of its own for the embedding */
    assert_int_equal(broken_rules(&layout, &model, 4), 0);
    assert_int_equal(layout.chunk_layers[1], 3);

    layout.chunk_layers[3] = 1;
    assert_breach(broken_rules(&layout, &model, 4), "stage-layers", WORDS("sums to 7", "8 layers"));
    layout.n_chunks = 3;
    layout.chunk_layers[2] = 5;
    assert_breach(broken_rules(&layout, &model, 4), "stage-layers", WORDS("3 entries", "pp=4"));
}

static void layers_of_a_stage_are_spread_over_its_chunks(void **state)
{
    const loom_model model = {.layers = 9, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 128, .seq = 32};
    static const int64_t interleaved[] = {2, 3, 1, 3}, folded[] = {2, 3, 3, 1};
    loom_layout layout = layout_of(&model);

    layout.pp = 2;
    layout.vpp = 2;
    layout.schedule = LOOM_SCHEDULE_INTERLEAVED;
    layout.n_chunks = 2;
    memcpy(layout.chunk_layers, (int64_t[]){3, 6}, 2 * sizeof(int64_t));
    assert_int_equal(broken_rules(&layout, &model, 2), 0);
    assert_memory_equal(layout.chunk_layers, interleaved, sizeof interleaved);
    assert_int_equal(broken_rules(&layout, &model, 2), 0); /* resolving a resolved layout changes nothing */
    assert_memory_equal(layout.chunk_layers, interleaved, sizeof interleaved);

    layout.schedule = LOOM_SCHEDULE_ZB_V;
    layout.n_chunks = 2;
    memcpy(layout.chunk_layers, (int64_t[]){3, 6}, 2 * sizeof(int64_t));
    assert_int_equal(broken_rules(&layout, &model, 2), 0);
    assert_memory_equal(layout.chunk_layers, folded, sizeof folded); /* stage 0 has chunks 0 and 3 */
}

static void interleaved_wants_pp_to_divide_the_micro_batches(void **state)
{
    static const struct { int64_t micro_batches; bool legal; const char *nearest; } facts[] = {
        {3, false, "; 4 do"}, {4, true, ""}, {6, false, "; 4 and 8 do"}, {8, true, ""}, {10, false, "; 8 and 12 do"}, {12, true, ""}};
    loom_layout layout;

    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        int count;

        layout = layout_of(&dense_8b);
        layout.pp = 4;
        layout.vpp = 2;
        layout.dp = 2;
        layout.schedule = LOOM_SCHEDULE_INTERLEAVED;
        layout.global_batch = 2 * facts[i].micro_batches;
        count = broken_rules(&layout, &dense_8b, 8);
        assert_int_equal(count, !facts[i].legal);
        if (count)
            assert_breach(count, "vpp-micro-batches", WORDS("pp=4", "vpp=2", facts[i].nearest));
    }
    layout = layout_of(&dense_8b);
    layout.pp = 6;
    layout.vpp = 2;
    layout.schedule = LOOM_SCHEDULE_INTERLEAVED;
    layout.global_batch = 3;
    assert_breach(broken_rules(&layout, &dense_8b, 6), "vpp-micro-batches", WORDS("3 micro-batches", "; 6 do"));
}

static void a_schedule_says_how_many_chunks_it_wants(void **state)
{
    static const bool legal[LOOM_SCHEDULE_KINDS][4] = {
        [LOOM_SCHEDULE_GPIPE] = {[1] = true, true, true},
        [LOOM_SCHEDULE_1F1B] = {[1] = true},
        [LOOM_SCHEDULE_INTERLEAVED] = {[1] = true, true, true},
        [LOOM_SCHEDULE_ZB_H1] = {[1] = true},
        [LOOM_SCHEDULE_ZB_V] = {[2] = true},
    };

    for (int kind = 0; kind < LOOM_SCHEDULE_KINDS; kind++)
        for (int vpp = 1; vpp <= 3; vpp++) {
            loom_layout layout = layout_of(&dense_8b);
            int count;

            layout.pp = 2;
            layout.vpp = vpp;
            layout.schedule = (loom_schedule_kind)kind;
            layout.global_batch = 4;
            count = broken_rules(&layout, &dense_8b, 2);
            assert_int_equal(count, !legal[kind][vpp]);
            if (count)
                assert_breach(count, "schedule", WORDS(loom_schedule_kind_name((loom_schedule_kind)kind)));
        }
}

static void a_batch_is_refused_with_the_nearest_two_and_with_micro_batches_that_work(void **state)
{
    loom_layout layout = layout_of(&dense_8b);

    layout.dp = 8;
    layout.micro_batch = 3;
    layout.global_batch = 100;
    assert_breach(broken_rules(&layout, &dense_8b, 8), "batch",
                  WORDS("global_batch=100", "micro_batch=3", "dp=8", "= 24", "96 and 120", "at dp=8: none", "at dp=4 1, 5 and 25"));

    layout = layout_of(&dense_8b); /* case B07, a tail of one sample: ranks never disagree about the number of steps */
    layout.dp = 2;
    layout.micro_batch = 2;
    layout.global_batch = 5;
    assert_breach(broken_rules(&layout, &dense_8b, 2), "batch", WORDS("global_batch=5", "micro_batch=2", "dp=2", "= 4", "4 and 8"));

    layout = layout_of(&dense_8b);
    layout.dp = 3;
    layout.global_batch = 256;
    assert_breach(broken_rules(&layout, &dense_8b, 3), "batch", WORDS("255 and 258"));
    layout.global_batch = 240;
    assert_int_equal(broken_rules(&layout, &dense_8b, 3), 0);
    assert_int_equal(loom_layout_micro_batches(&layout), 80);
}

static void a_sequence_is_cut_in_pairs_of_chunks(void **state)
{
    loom_layout layout = layout_of(&dense_8b);

    layout.cp = 4;
    layout.seq = 4098;
    assert_breach(broken_rules(&layout, &dense_8b, 4), "seq", WORDS("seq=4098", "2 x cp=4", "= 8", "4096 and 4104"));
    layout.tp = 2;
    layout.sequence_parallel = true;
    assert_breach(broken_rules(&layout, &dense_8b, 8), "seq", WORDS("tp=2", "= 16", "4096 and 4112"));
    assert_int_equal(loom_layout_padded_seq(&layout, 4098), 4112);
    assert_int_equal(loom_layout_padded_seq(&layout, 4096), 4096);
    layout.pad_seq = true;
    assert_int_equal(broken_rules(&layout, &dense_8b, 8), 0);
    layout.pad_seq = false;
    layout.seq = 4096;
    assert_int_equal(broken_rules(&layout, &dense_8b, 8), 0);
}

static void a_learned_position_table_bounds_the_sequence(void **state)
{
    loom_model model = dense_8b;
    loom_layout layout;

    model.positions = LOOM_LEARNED;
    model.seq = 1024;
    layout = layout_of(&model);
    assert_int_equal(broken_rules(&layout, &model, 1), 0);
    layout.seq = 2048;
    assert_breach(broken_rules(&layout, &model, 1), "positions", WORDS("seq=2048", "1024"));
}

static const loom_model moe_128 = {.layers = 48, .hidden = 2048, .heads = 32, .kv_heads = 4, .head_dim = 128, .ffn = 6144, .vocab = 151936, .seq = 4096,
                                   .moe = {.experts = 128, .top_k = 8, .ffn = 768, .every = 1}};

static void expert_degrees_are_judged_with_every_factor_in_sight(void **state)
{
    loom_layout layout = layout_of(&moe_128);

    layout.tp = 4;
    layout.ep = 4;
    assert_int_equal(broken_rules(&layout, &moe_128, 4), 0); /* etp is 1 unless given: no default follows tp */
    assert_int_equal(layout.etp, 1);

    layout.etp = 4;
    layout.given = 1u << LOOM_AXIS_TP | 1u << LOOM_AXIS_EP | 1u << LOOM_AXIS_ETP;
    assert_breach(broken_rules(&layout, &moe_128, 4), "expert-ranks",
                  WORDS("ep=4 (given)", "etp=4 (given)", "= 16", "tp=4 (given)", "cp=1 (default)", "dp=1 (default)", "= 4 ranks", "pp=1",
                        "16 ranks are needed", "ep 1 would do"));
}

static void all_broken_rules_are_listed(void **state)
{
    const loom_model moe_256 = {.layers = 61, .hidden = 7168, .heads = 64, .kv_heads = 64, .ffn = 18432, .vocab = 129280, .seq = 4096,
                                .moe = {.experts = 256, .top_k = 8, .ffn = 2048, .every = 1}};
    loom_layout layout = layout_of(&moe_256);
    int count;

    layout.tp = 3;
    layout.ep = 3;
    count = broken_rules(&layout, &moe_256, 3);
    assert_breach(count, "experts", WORDS("ep=3", "256 experts", "1, 2, 4, 8, 16, 32, 64"));
    assert_breach(count, "tp-heads", WORDS("tp=3", "64 heads"));
    assert_int_equal(loom_layout_check(&layout, &moe_256, 3), LOOM_E_INVALID);
    assert_non_null(strstr(loom_last_error(), "256 experts"));
    assert_non_null(strstr(loom_last_error(), "64 heads"));
}

static void experts_on_72_ranks(void **state)
{
    static const int legal[] = {1, 2, 4, 8};
    size_t found = 0;

    for (int ep = 1; ep <= 72; ep++) {
        loom_layout layout = layout_of(&moe_128);
        layout.dp = 72;
        layout.ep = ep;
        if (broken_rules(&layout, &moe_128, 72) == 0) {
            assert_true(found < 4);
            assert_int_equal(ep, legal[found++]);
        }
    }
    assert_int_equal(found, 4);
}

static void experts_need_a_model_that_has_some(void **state)
{
    loom_layout layout = layout_of(&dense_8b);

    layout.dp = 2;
    layout.ep = 2;
    assert_breach(broken_rules(&layout, &dense_8b, 2), "experts", WORDS("ep=2", "no experts"));
}

static void the_world_is_compared_with_the_product(void **state)
{
    loom_layout layout = layout_of(&dense_8b);

    layout.tp = 2;
    layout.pp = 2;
    layout.dp = 4;
    assert_breach(broken_rules(&layout, &dense_8b, 8), "world", WORDS("tp=2 x pp=2 x cp=1 x dp=4 = 16", "world has 8"));
    layout.dp = 2;
    assert_breach(broken_rules(&layout, &dense_8b, 4), "world", WORDS("= 8 ranks needed", "has 4", "tp2 pp2 dp1, tp2 pp1 dp2 or tp1 pp2 dp2 would fit"));
}

static void one_degree_may_be_open(void **state)
{
    loom_layout layout = layout_of(&dense_8b);

    layout.tp = layout.pp = 2;
    layout.dp = 0;
    assert_int_equal(broken_rules(&layout, &dense_8b, 8), 0);
    assert_int_equal(layout.dp, 2);

    layout = layout_of(&dense_8b);
    layout.tp = 3;
    layout.pp = 0;
    assert_breach(broken_rules(&layout, &dense_8b, 8), "auto", WORDS("pp=auto", "tp=3", "= 3", "world of 8"));

    layout = layout_of(&dense_8b);
    layout.tp = layout.pp = 0;
    assert_breach(broken_rules(&layout, &dense_8b, 8), "auto", WORDS("2 of tp, cp, pp and dp are auto"));
}

/* heads 32, kv heads 8: 1, 2, 4 and 8 ranks can share them. */
static void cp_kind_auto_keeps_the_all_to_all_inside_a_fast_domain(void **state)
{
    static const struct {
        int tp, cp, fast_ranks;
        loom_axis order[4];
        loom_cp_kind kind;
        int inner;
    } cases[] = {
        {1, 4, 0, {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}, LOOM_CP_ULYSSES, 0},
        {1, 8, 4, {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}, LOOM_CP_HYBRID, 4},
        {2, 4, 4, {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}, LOOM_CP_HYBRID, 2}, /* tp takes half the domain */
        {4, 2, 4, {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}, LOOM_CP_RING, 0},
        {4, 2, 4, {LOOM_AXIS_CP, LOOM_AXIS_TP, LOOM_AXIS_DP, LOOM_AXIS_PP}, LOOM_CP_ULYSSES, 0}, /* cp neighbours are next to each other */
        {1, 6, 6, {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}, LOOM_CP_HYBRID, 2},  /* 3 and 6 do not split the heads */
        {1, 3, 0, {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}, LOOM_CP_RING, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        loom_layout layout;

        loom_layout_default(&dense_8b, &layout);
        layout.tp = cases[i].tp;
        layout.cp = cases[i].cp;
        layout.seq = 48 * 128;
        layout.fast_ranks = cases[i].fast_ranks;
        memcpy(layout.order, cases[i].order, sizeof layout.order);
        layout.cp_kind = LOOM_CP_AUTO;
        assert_int_equal(broken_rules(&layout, &dense_8b, layout.tp * layout.cp), 0);
        assert_int_equal(layout.cp_kind, cases[i].kind);
        assert_int_equal(layout.cp_inner, cases[i].inner);
    }
}

static void an_inner_degree_that_nothing_uses_is_refused(void **state)
{
    loom_layout layout;

    (void)state;
    loom_layout_default(&dense_8b, &layout);
    layout.cp = 4;
    layout.cp_inner = 2;
    assert_breach(broken_rules(&layout, &dense_8b, 4), "cp-heads", WORDS("cp_inner=2", "ring", "hybrid"));
    layout.cp_kind = LOOM_CP_HYBRID;
    assert_int_equal(broken_rules(&layout, &dense_8b, 4), 0);
    layout.cp_inner = 3;
    assert_breach(broken_rules(&layout, &dense_8b, 4), "cp-heads", WORDS("cp_inner", "cp=4"));
}

static void ulysses_splits_heads(void **state)
{
    loom_layout layout = layout_of(&dense_8b);

    layout.cp = 4;
    layout.tp = 2;
    layout.cp_kind = LOOM_CP_ULYSSES;
    assert_int_equal(broken_rules(&layout, &dense_8b, 8), 0);
    layout.cp = 3;
    layout.seq = 6144;
    assert_breach(broken_rules(&layout, &dense_8b, 6), "cp-heads", WORDS("cp=3 x tp=2 = 6", "32 heads", "1, 2, 4, 8 and 16 do"));
    layout.cp_kind = LOOM_CP_RING;
    assert_int_equal(broken_rules(&layout, &dense_8b, 6), 0);
    layout.cp_kind = LOOM_CP_HYBRID;
    assert_breach(broken_rules(&layout, &dense_8b, 6), "cp-heads", WORDS("hybrid", "cp=3"));
    layout.cp = 6;
    assert_int_equal(broken_rules(&layout, &dense_8b, 12), 0); /* 2 inside, 3 around */
}

static void nonsense_is_refused_before_it_is_divided_by(void **state)
{
    loom_layout layout = layout_of(&dense_8b);
    int count;

    layout.tp = -2;
    layout.zero = 4;
    layout.micro_batch = 0;
    layout.order[1] = LOOM_AXIS_TP;
    count = broken_rules(&layout, &dense_8b, 8);
    assert_breach(count, "range", WORDS("tp=-2"));
    assert_breach(count, "order", WORDS("once each"));
    assert_int_equal(count, 4);
}

static void breaches_are_counted_beyond_the_room_for_them(void **state)
{
    loom_layout layout = layout_of(&dense_8b), same;

    layout.tp = 3;
    layout.global_batch = 7;
    layout.micro_batch = 2;
    same = layout;
    assert_int_equal(broken_rules(&layout, &dense_8b, 4), 4); /* world, heads, kv heads, batch */
    assert_int_equal(loom_layout_resolve(&same, &dense_8b, 4, NULL, 0), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_that_tp_does_not_divide_are_refused_with_the_legal_values),
        cmocka_unit_test(fewer_kv_heads_than_tp_are_legal_when_one_divides_the_other),
        cmocka_unit_test(every_pp_up_to_the_layers_is_legal_and_no_layer_is_lost),
        cmocka_unit_test(more_stages_than_layers_are_refused),
        cmocka_unit_test(listed_layers_are_taken_and_have_to_sum_up),
        cmocka_unit_test(layers_of_a_stage_are_spread_over_its_chunks),
        cmocka_unit_test(interleaved_wants_pp_to_divide_the_micro_batches),
        cmocka_unit_test(a_schedule_says_how_many_chunks_it_wants),
        cmocka_unit_test(a_batch_is_refused_with_the_nearest_two_and_with_micro_batches_that_work),
        cmocka_unit_test(cp_kind_auto_keeps_the_all_to_all_inside_a_fast_domain),
        cmocka_unit_test(an_inner_degree_that_nothing_uses_is_refused),
        cmocka_unit_test(a_sequence_is_cut_in_pairs_of_chunks),
        cmocka_unit_test(a_learned_position_table_bounds_the_sequence),
        cmocka_unit_test(expert_degrees_are_judged_with_every_factor_in_sight),
        cmocka_unit_test(all_broken_rules_are_listed),
        cmocka_unit_test(experts_on_72_ranks),
        cmocka_unit_test(experts_need_a_model_that_has_some),
        cmocka_unit_test(the_world_is_compared_with_the_product),
        cmocka_unit_test(one_degree_may_be_open),
        cmocka_unit_test(ulysses_splits_heads),
        cmocka_unit_test(nonsense_is_refused_before_it_is_divided_by),
        cmocka_unit_test(breaches_are_counted_beyond_the_room_for_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
