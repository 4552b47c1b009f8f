/* The search against brute force on spaces small enough to walk whole, and its splits against all compositions. */
#include "check.h"

#include <math.h>

#include "planner/constants/kinds.h"
#include "planner/finalists.h"
#include "planner/predict.h"

static uint64_t random_state = 88172645463325252ull;

static uint64_t random_below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

static loom_job small_job(const char *gpu, int domain, bool experts)
{
    static const int heads[] = {4, 8, 12};
    loom_job job = {.bits = 16, .element = 2, .imbalance = 1, .repeat = LOOM_REPEAT_NORM | LOOM_REPEAT_ACT};
    int a = heads[random_below(3)];

    job.model = (loom_model){.layers = 3 + (int)random_below(4),
                             .hidden = 128 * a,
                             .heads = a,
                             .kv_heads = a == 12 ? 4 : a / 2,
                             .head_dim = 128,
                             .ffn = 512 * a,
                             .vocab = 32000,
                             .seq = 2048,
                             .tied_embeddings = random_below(2)};
    if (experts)
        job.model.moe = (loom_moe){
            .experts = 4, .top_k = 2, .ffn = 256 * a, .dense_layers = random_below(2), .every = 1, .groups = 1, .groups_kept = 1};
    job.seq = 2048;
    job.global_batch = 8 << random_below(2);
    loom_device_constants(loom_device_kind_find(gpu), job.machine.dev);
    loom_software_constants(loom_framework_find("rankloom"), job.soft);
    job.machine.domain = job.machine.node = domain;
    job.machine.crowd = 1;
    return job;
}

/* --- every layout, one by one ---------------------------------------------------------------------------------------------------- */

typedef struct walkthrough {
    const loom_space *space;
    double limit;
    uint64_t count, illegal;
    double best;
    loom_degrees best_degrees;
    bool simulates; /* instead: each schedule in virtual time */
    double best_simulated;
} walkthrough;

static double simulated_s(const loom_job *job, const loom_found *found)
{
    loom_step_cost cost;

    loom_step_simulate(job, &found->degrees, found->chunk_layers, &cost);
    return cost.seconds;
}

static void simulate_it(walkthrough *w, const loom_degrees *g)
{
    static loom_found found;
    loom_degrees placed = *g;

    if (!loom_search_evaluate(w->space->job, &placed, w->limit, &found))
        return;
    double seconds = simulated_s(w->space->job, &found);
    w->best_simulated = fmin(w->best_simulated, seconds);
    double above = found.seconds / seconds - 1, most = loom_closed_form_above(loom_micro_batches_of(w->space->job, g), g->pp);
    if (g->pp > 1 && above > most)
        fail_msg("pp%d vpp%d pipeline %d, %lld micro-batches: the closed form says %.6g s, the simulation %.6g s", g->pp, g->vpp, g->pipeline, (long long)loom_micro_batches_of(w->space->job, g),
                 found.seconds, seconds);
}

static void look_at(walkthrough *w, loom_degrees g)
{
    static loom_found found;
    loom_layout layout;
    loom_rule_breach breach;
    const loom_job *job = w->space->job;

    w->count++;
    if (w->simulates) {
        simulate_it(w, &g);
        return;
    }
    if (loom_search_evaluate(job, &g, w->limit, &found) && found.seconds < w->best) {
        w->best = found.seconds;
        w->best_degrees = g;
    }
    /* and the rules agree that it is legal */
    loom_layout_default(&job->model, &layout);
    layout.tp = g.tp, layout.cp = g.cp, layout.dp = g.dp, layout.pp = g.pp, layout.vpp = g.vpp, layout.ep = g.ep, layout.etp = g.etp,
    layout.zero = g.zero;
    layout.sequence_parallel = g.sequence_parallel, layout.recompute = g.recompute, layout.cp_kind = g.cp_kind,
    layout.micro_batch = g.micro_batch;
    layout.global_batch = job->global_batch, layout.seq = job->seq;
    layout.schedule = g.pipeline == LOOM_PIPE_GPIPE         ? LOOM_SCHEDULE_GPIPE
                      : g.pipeline == LOOM_PIPE_ZB_H1       ? LOOM_SCHEDULE_ZB_H1
                      : g.pipeline == LOOM_PIPE_ZB_V        ? LOOM_SCHEDULE_ZB_V
                      : g.pipeline == LOOM_PIPE_INTERLEAVED ? LOOM_SCHEDULE_INTERLEAVED
                                                            : LOOM_SCHEDULE_1F1B;
    memcpy(layout.order, g.order, sizeof layout.order);
    if (loom_layout_resolve(&layout, &job->model, w->space->world, &breach, 1) != 0)
        w->illegal++;
}

static void with_schedules(walkthrough *w, loom_degrees g)
{
    loom_schedules schedules;
    loom_choices zero;
    loom_orders orders;

    loom_space_schedules(w->space, g.pp, w->space->job->global_batch / (g.micro_batch * g.dp), &schedules);
    loom_space_zero(w->space, g.dp * g.cp, &zero);
    loom_space_orders(g.tp, g.cp, g.dp, g.pp, &orders);
    for (int i = 0; i < schedules.count; i++)
        for (int j = 0; j < zero.count; j++)
            for (int k = 0; k < orders.count; k++) {
                g.pipeline = schedules.pipeline[i];
                g.vpp = schedules.vpp[i];
                g.zero = zero.at[j];
                memcpy(g.order, orders.at[k], sizeof g.order);
                look_at(w, g);
            }
}

static void with_experts(walkthrough *w, loom_degrees g)
{
    loom_choices etp, ep, micro_batch;
    int stage_ranks = g.tp * g.cp * g.dp;

    loom_space_etp(w->space, stage_ranks, &etp);
    loom_space_micro_batch(w->space, g.dp, &micro_batch);
    for (int i = 0; i < etp.count; i++) {
        loom_space_ep(w->space, etp.at[i], stage_ranks, &ep);
        for (int j = 0; j < ep.count; j++)
            for (int k = 0; k < micro_batch.count; k++) {
                g.etp = etp.at[i];
                g.ep = ep.at[j];
                g.micro_batch = micro_batch.at[k];
                with_schedules(w, g);
            }
    }
}

static void walk_all(walkthrough *w)
{
    loom_choices tp, cp, sp, kind, recompute, pp;

    loom_space_tp(w->space, &tp);
    loom_space_recompute(w->space, &recompute);
    for (int a = 0; a < tp.count; a++) {
        loom_space_cp(w->space, tp.at[a], &cp);
        for (int b = 0; b < cp.count; b++) {
            loom_space_sequence_parallel(w->space, tp.at[a], cp.at[b], &sp);
            loom_space_cp_kind(w->space, tp.at[a], cp.at[b], &kind);
            loom_space_pp(w->space, tp.at[a], cp.at[b], &pp);
            for (int c = 0; c < sp.count * kind.count * recompute.count * pp.count; c++) {
                int rest = c;
                loom_degrees g = {.tp = tp.at[a], .cp = cp.at[b], .vpp = 1};
                g.sequence_parallel = sp.at[rest % sp.count], rest /= sp.count;
                g.cp_kind = kind.at[rest % kind.count], rest /= kind.count;
                g.recompute = recompute.at[rest % recompute.count], rest /= recompute.count;
                g.pp = pp.at[rest];
                g.dp = w->space->world / (g.tp * g.cp * g.pp);
                with_experts(w, g);
            }
        }
    }
}

static void compare(const char *gpu, int domain, int world, bool experts, double limit)
{
    static loom_found found[LOOM_MOST_FOUND + 1];
    loom_job job = small_job(gpu, domain, experts);
    loom_limits limits = {.count = 0};
    loom_space space = {&job, &limits, world};
    walkthrough w = {.space = &space, .limit = limit, .best = INFINITY};
    loom_search search = {.space = space, .limit = limit, .below = INFINITY, .keep = 1, .found = found};

    walk_all(&w);
    assert_ok(loom_search_run(&search));
    assert_int_equal(w.illegal, 0);
    assert_int_equal(loom_space_count(&space), w.count);
    if (search.n_found == 0) {
        assert_true(isinf(w.best));
        return;
    }
    if (search.found[0].seconds != w.best)
        fail_msg("%s x %d%s: searched %.9g s, brute force over %llu layouts %.9g s (tp%d cp%d pp%d vpp%d dp%d ep%d etp%d zero%d mb%d "
                 "pipeline %d)",
                 gpu, world, experts ? " with experts" : "", search.found[0].seconds, (unsigned long long)w.count, w.best,
                 w.best_degrees.tp, w.best_degrees.cp, w.best_degrees.pp, w.best_degrees.vpp, w.best_degrees.dp, w.best_degrees.ep,
                 w.best_degrees.etp, w.best_degrees.zero, w.best_degrees.micro_batch, w.best_degrees.pipeline);
}

static void the_search_finds_what_brute_force_finds(void **state)
{
    static const char *const gpus[] = {"A100", "H100", "T4", "L40S"};

    for (int i = 0; i < 12; i++)
        compare(gpus[i % 4], 2 << random_below(2), 4 << random_below(2), i % 3 == 2, 1e12);
}

static void also_when_memory_decides(void **state)
{
    for (int i = 0; i < 12; i++)
        compare("H100", 4, 8, i % 3 == 2, (2.2 + 0.35 * i) * 0x1p30);
}

static void and_on_six_ranks(void **state)
{
    for (int i = 0; i < 4; i++)
        compare("A100", 6, 6, false, 1e12);
}

/* --- the schedules in virtual time -------------------------------------------------------------------------------------------------- */

/* Every layout is simulated; and what a plan does: the search by closed forms, then the schedules of its finalists. */
static void compare_simulated(const char *gpu, int domain, int world, bool experts)
{
    static loom_found found[LOOM_MOST_FOUND + 1];
    loom_job job = small_job(gpu, domain, experts);
    loom_limits limits = {.count = 0};
    loom_space space = {&job, &limits, world};
    walkthrough w = {.space = &space, .limit = 1e12, .best = INFINITY, .simulates = true, .best_simulated = INFINITY};
    loom_search search = {.space = space, .limit = 1e12, .below = INFINITY, .keep = 4, .found = found};
    int64_t actions = 1000000;
    double best = INFINITY;

    walk_all(&w);
    assert_ok(loom_search_run(&search));
    for (int i = 0; i < search.n_found; i++) {
        loom_finalist_refine(&space, 1e12, &actions, &search.found[i]);
        best = fmin(best, simulated_s(&job, &search.found[i]));
    }
    if (best > w.best_simulated * (1 + 1e-9))
        fail_msg("%s x %d%s: the plan takes %.9g s, simulating all layouts finds %.9g s", gpu, world, experts ? " with experts" : "", best, w.best_simulated);
}

static void what_a_plan_hands_out_is_what_simulating_everything_would(void **state)
{
    static const char *const gpus[] = {"A100", "H100", "T4", "L40S"};

    for (int i = 0; i < 12; i++)
        compare_simulated(gpus[i % 4], 2 << random_below(2), 4 << random_below(2), i % 3 == 2);
}

/* --- the space against the rules: every combination of values, judged by loom_layout_resolve() alone --------------------------------- */

/* Says the same as another combination: degrees of 1 leave nothing to choose. */
static bool is_repetition(const loom_layout *l, bool experts)
{
    bool one_stage = l->pp == 1 && (l->schedule != LOOM_SCHEDULE_1F1B || l->vpp > 1);
    bool chunks = l->schedule == LOOM_SCHEDULE_INTERLEAVED ? l->vpp < 2 : l->schedule == LOOM_SCHEDULE_ZB_V ? l->vpp != 2 : l->vpp > 1;

    return one_stage || chunks || (l->cp == 1 && l->cp_kind != LOOM_CP_RING) || (l->dp * l->cp == 1 && l->zero > 0) ||
           (l->tp == 1 && l->sequence_parallel) || (!experts && (l->ep > 1 || l->etp > 1));
}

static uint64_t count_choices(loom_layout *l, const loom_job *job, int world)
{
    static const loom_schedule_kind kinds[] = {LOOM_SCHEDULE_1F1B, LOOM_SCHEDULE_GPIPE, LOOM_SCHEDULE_ZB_H1, LOOM_SCHEDULE_ZB_V,
                                               LOOM_SCHEDULE_INTERLEAVED};
    loom_orders orders;
    loom_rule_breach breach;
    uint64_t count = 0;

    loom_space_orders(l->tp, l->cp, l->dp, l->pp, &orders);
    for (int choice = 0; choice < 5 * 4 * 3 * 2 * 4; choice++)
        for (l->vpp = 1; l->vpp <= job->model.layers; l->vpp++)
            for (l->micro_batch = 1; l->micro_batch <= job->global_batch; l->micro_batch++) {
                loom_layout whole = *l;
                whole.schedule = kinds[choice % 5];
                whole.cp_kind = choice / 5 % 4;
                whole.recompute = choice / 20 % 3;
                whole.sequence_parallel = choice / 60 % 2;
                whole.zero = choice / 120;
                if (!is_repetition(&whole, job->model.moe.experts > 0) && loom_layout_resolve(&whole, &job->model, world, &breach, 1) == 0)
                    count += (uint64_t)orders.count;
            }
    return count;
}

static uint64_t count_by_the_rules(const loom_job *job, int world)
{
    uint64_t count = 0;
    loom_layout layout;

    for (int i = 0; i < world * world * world * world * world; i++) {
        int degree[5], rest = i;
        for (int j = 0; j < 5; j++, rest /= world)
            degree[j] = 1 + rest % world;
        int ranks = degree[0] * degree[1] * degree[2];
        if (world % ranks)
            continue;
        loom_layout_default(&job->model, &layout);
        layout.tp = degree[0], layout.cp = degree[1], layout.pp = degree[2], layout.dp = world / ranks;
        layout.ep = degree[3], layout.etp = degree[4];
        layout.global_batch = job->global_batch, layout.seq = job->seq;
        count += count_choices(&layout, job, world);
    }
    return count;
}

static void the_space_holds_what_the_rules_allow_and_nothing_else(void **state)
{
    for (int i = 0; i < 4; i++) {
        loom_job job = small_job("H100", 4, i % 2);
        loom_limits limits = {.count = 0};
        loom_space space = {&job, &limits, 4};
        uint64_t wanted = count_by_the_rules(&job, 4), found = loom_space_count(&space);
        if (wanted != found)
            fail_msg("%llu layouts are legal, the space has %llu (%lld layers, %lld heads, batch %lld, %d experts)",
                     (unsigned long long)wanted, (unsigned long long)found, (long long)job.model.layers, (long long)job.model.heads,
                     (long long)job.global_batch, (int)job.model.moe.experts);
    }
}

/* --- splits ------------------------------------------------------------------------------------------------------------------ */

/* The fastest pipeline over all ways to give `left` layers to stages from `stage` on. */
static double best_of_compositions(const loom_job *job, const loom_degrees *g, const loom_layer_table *layers,
                                   const loom_memory_table *memory, double limit, int stage, int left, int *chunk_layers)
{
    double best = INFINITY;

    if (stage == g->pp - 1) {
        double f[8], b[8], w[8] = {0};
        int layer = 0;
        chunk_layers[stage] = left;
        if (!loom_split_fits(job, g, memory, limit, chunk_layers))
            return INFINITY;
        for (int i = 0; i < g->pp; i++) {
            f[i] = (i == 0 ? layers->embedding_forward : 0) + (i == g->pp - 1 ? layers->head_forward : 0);
            b[i] = (i == 0 ? layers->embedding_backward : 0) + (i == g->pp - 1 ? layers->head_backward : 0);
            for (int n = 0; n < chunk_layers[i]; n++) {
                loom_layer_kind kind = loom_layer_kind_of(&job->model, layer++);
                f[i] += layers->forward[kind];
                b[i] += layers->backward[kind];
            }
        }
        loom_pipe pipe = {g->pp, 1, job->global_batch / (g->micro_batch * g->dp), LOOM_PIPE_1F1B, f, b, w, 0};
        return loom_pipe_seconds(&pipe);
    }
    for (int n = 0; n <= left; n++) {
        chunk_layers[stage] = n;
        best = fmin(best, best_of_compositions(job, g, layers, memory, limit, stage + 1, left - n, chunk_layers));
    }
    return best;
}

static void a_split_is_the_best_of_all_compositions(void **state)
{
    for (int i = 0; i < 60; i++) {
        loom_job job = small_job("A100", 8, i % 3 == 1);
        int chunk_layers[8] = {0}, brute[8] = {0};
        double limit = i % 2 ? 1e12 : (1.9 + 0.02 * i) * 0x1p30;
        job.model.layers = 5 + (int)random_below(5);
        job.global_batch = 4 << random_below(4);
        loom_degrees g = {.tp = 1,
                          .cp = 1,
                          .dp = 1,
                          .pp = 2 + (int)random_below(3),
                          .vpp = 1,
                          .ep = 1,
                          .etp = 1,
                          .micro_batch = 1,
                          .pipeline = LOOM_PIPE_1F1B,
                          .order = {0, 1, 2, 3}};
        loom_layer_table layers;
        loom_degrees_place(&g, &job.machine);
        loom_memory_table memory = loom_memory_table_of(&job, &g);
        loom_layer_table_make(&job, &g, &layers);
        double best = best_of_compositions(&job, &g, &layers, &memory, limit, 0, (int)job.model.layers, brute);
        if (!loom_split_best(&job, &g, &layers, &memory, limit, INFINITY, chunk_layers)) {
            assert_true(isinf(best));
            continue;
        }
        loom_step_cost cost;
        job.soft[LOOM_SOFT_JITTER].value = job.soft[LOOM_SOFT_FIXED].value = job.soft[LOOM_SOFT_P2P_EXPOSED].value = 0;
        loom_step_cost_of(&job, &g, &layers, &memory, chunk_layers, &cost);
        double found = cost.seconds - cost.part[LOOM_TIME_OPTIMIZER] - cost.part[LOOM_TIME_DP];
        assert_true(fabs(found / best - 1) < 1e-9);
        assert_true(loom_split_fits(&job, &g, &memory, limit, chunk_layers));
    }
}

static void several_chunks_a_stage_sum_to_the_layers_and_are_even(void **state)
{
    for (int layers = 12; layers <= 126; layers += 19) {
        loom_job job = small_job("H100", 8, false);
        int chunk_layers[64] = {0}, sum = 0, most = 0;
        job.model.layers = layers;
        job.global_batch = 64;
        loom_degrees g = {.tp = 1,
                          .cp = 1,
                          .dp = 1,
                          .pp = 4,
                          .vpp = 3,
                          .ep = 1,
                          .etp = 1,
                          .micro_batch = 1,
                          .pipeline = LOOM_PIPE_INTERLEAVED,
                          .order = {0, 1, 2, 3}};
        loom_layer_table table;
        loom_degrees_place(&g, &job.machine);
        loom_memory_table memory = loom_memory_table_of(&job, &g);
        loom_layer_table_make(&job, &g, &table);
        assert_true(loom_split_best(&job, &g, &table, &memory, 1e13, INFINITY, chunk_layers));
        for (int c = 0; c < 12; c++) {
            sum += chunk_layers[c];
            most = chunk_layers[c] > most ? chunk_layers[c] : most;
        }
        assert_int_equal(sum, layers);
        assert_true(most <= (layers + 11) / 12 + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_brute_force_finds),
        cmocka_unit_test(also_when_memory_decides),
        cmocka_unit_test(and_on_six_ranks),
        cmocka_unit_test(what_a_plan_hands_out_is_what_simulating_everything_would),
        cmocka_unit_test(the_space_holds_what_the_rules_allow_and_nothing_else),
        cmocka_unit_test(a_split_is_the_best_of_all_compositions),
        cmocka_unit_test(several_chunks_a_stage_sum_to_the_layers_and_are_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
