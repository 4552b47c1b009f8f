/* Gradient reduction, norm, clip and AdamW on one to four ranks. Gradients are small whole numbers where a sum is checked, so that it is exact. */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"

#include <rankloom/dp.h>

#include <math.h>

static const loom_adamw_config adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

static loom_param param_of(const char *name, int64_t rows, int64_t cols)
{
    loom_param p = {.shard = {.dims = cols ? 2 : 1, .shape = {rows, cols}, .split_dim = -1, .holders = 1, .decay = cols > 0}};

    snprintf(p.shard.name, sizeof p.shard.name, "%s", name);
    p.shard.init = (loom_init){LOOM_INIT_NORMAL, 0.02};
    return p;
}

/* Whole on each of `holders` tp ranks. */
static loom_param replicated(const char *name, int64_t rows, const loom_mesh *mesh, loom_gradient_form form)
{
    loom_param p = param_of(name, rows, 0);

    p.shard.split_axis = LOOM_AXIS_TP;
    p.shard.holders = mesh->layout.tp;
    p.shard.holder = mesh->here.at[LOOM_AXIS_TP];
    p.shard.gradient = form;
    return p;
}

/* Rows cut over `axis`. */
static loom_param split(const char *name, int64_t rows, int64_t cols, const loom_mesh *mesh, loom_axis axis)
{
    loom_param p = param_of(name, rows, cols);

    p.shard.split_dim = 0;
    p.shard.split_axis = axis;
    p.shard.n_ranges = 1;
    p.shard.ranges[0] = loom_cut(rows, loom_comm_size(mesh->axis[axis]), mesh->here.at[axis]);
    return p;
}

static loom_dp *open_dp(loom_mesh *mesh, loom_param **params, int count, size_t bucket_bytes, double clip, loom_stream *stream)
{
    loom_param_list list = {.at = params, .count = count};
    loom_dp_config config = {.bucket_bytes = bucket_bytes, .adamw = adamw};
    loom_dp *dp;

    config.adamw.clip = clip;
    assert_ok(loom_dp_open(mesh, &list, &config, stream, &dp));
    return dp;
}

static void add(loom_param *p, const float *gradient, int count)
{
    for (int i = 0; i < count; i++)
        p->gradient[i] += gradient[i];
}

static void assert_gradient(const loom_param *p, const float *want, int count)
{
    for (int i = 0; i < count; i++)
        if (!(p->gradient[i] == want[i]))
            fail_msg("%s[%d] is %.9g, should be %.9g", p->shard.name, i, (double)p->gradient[i], (double)want[i]);
}

static void assert_near(double value, double want, double relative)
{
    if (!(fabs(value - want) <= relative * fabs(want)))
        fail_msg("%.12g, should be %.12g", value, want);
}

/* Reproducible, different for every rank, step, parameter and element. */
static float noise(int rank, int step, int param, int64_t i)
{
    uint64_t x = ((uint64_t)rank * 1000003 + (uint64_t)step * 10007 + (uint64_t)param * 101 + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u;

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (float)((double)(x >> 40) / (1 << 24) - 0.5);
}

static void add_noise(loom_param *p, int rank, int step, int index)
{
    for (int64_t i = 0; i < loom_shard_local_count(&p->shard); i++)
        p->gradient[i] += noise(rank, step, index, i);
}

/* --- sums and counts ------------------------------------------------------------------------------------------------------------- */

/* A06: (tokens, loss sum) = (1, 4), (3, 3) on one rank and (2, 6), (0, 0) on the other. With weights w = 1 the loss sum is also the gradient. */
static void unequal_tokens(loom_comm *world, loom_stream *stream)
{
    static const double of_rank[2][2][2] = {{{1, 4}, {3, 3}}, {{2, 6}, {0, 0}}};
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 2}, NULL);
    loom_param w = param_of("w", 1, 0), *params[] = {&w};
    loom_dp *dp = open_dp(mesh, params, 1, 0, 0, stream);
    double sums[2] = {0, 0};
    loom_dp_result result;

    assert_ok(loom_dp_begin(dp));
    for (int m = 0; m < 2; m++) {
        const double *micro_batch = of_rank[mesh->here.at[LOOM_AXIS_DP]][m];
        sums[0] += micro_batch[0];
        sums[1] += micro_batch[1];
        w.gradient[0] += (float)micro_batch[1];
    }
    assert_ok(loom_dp_ready(dp, params, 1));
    assert_ok(loom_dp_sum(dp, sums, 2));
    assert_true(sums[0] == 6 && sums[1] == 13);
    assert_ok(loom_dp_reduce_only(dp, sums[0], &result));
    assert_gradient(&w, (float[]){13}, 1);
    assert_near(result.grad_norm, 13.0 / 6, 1e-12);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void the_mean_is_over_all_tokens_not_over_means(void **state) { (void)state; on_ranks(2, unequal_tokens); }

static void no_tokens(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 2, .zero = 1}, NULL);
    loom_param w = param_of("w", 40, 3), *params[] = {&w};
    loom_dp *dp = open_dp(mesh, params, 1, 0, 1, stream);
    float before[120];
    loom_dp_result result;

    assert_ok(loom_dp_init(dp, 1));
    memcpy(before, w.value, sizeof before);
    assert_ok(loom_dp_begin(dp));
    assert_ok(loom_dp_finish(dp, 0, 1e-3, 1, &result));
    assert_true(result.grad_norm == 0 && result.clip_scale == 1);
    assert_memory_equal(w.value, before, sizeof before);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void a_batch_without_tokens_changes_nothing(void **state) { (void)state; on_ranks(2, no_tokens); }

/* --- who adds what --------------------------------------------------------------------------------------------------------------- */

/* A01: an RMSNorm weight under sequence parallelism, tokens 0-1 on one tp rank and 2-3 on the other. */
static void partial_gradient(loom_comm *world, loom_stream *stream)
{
    static const float part[2][4] = {{1, 3, 3, 3}, {4, -2, 2, -2}};
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 2}, NULL);
    loom_param norm = replicated("norm.weight", 4, mesh, LOOM_GRADIENT_PARTIAL), whole = replicated("whole", 4, mesh, LOOM_GRADIENT_WHOLE);
    loom_param *params[] = {&norm, &whole};
    loom_dp *dp = open_dp(mesh, params, 2, 0, 0, stream);
    loom_dp_result result;

    assert_ok(loom_dp_begin(dp));
    add(&norm, part[mesh->here.at[LOOM_AXIS_TP]], 4);
    add(&whole, (float[]){2, 0, 0, 0}, 4);
    assert_ok(loom_dp_ready(dp, params, 2));
    assert_ok(loom_dp_reduce_only(dp, 1, &result));
    assert_gradient(&norm, (float[]){5, 1, 5, 1}, 4);
    assert_gradient(&whole, (float[]){2, 0, 0, 0}, 4);
    assert_near(result.grad_norm, sqrt(25 + 1 + 25 + 1 + 4), 1e-12);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void a_partial_gradient_is_added_over_its_holders(void **state) { (void)state; on_ranks(2, partial_gradient); }

/* However many norms there are, sequence parallelism costs one small all_reduce over tp a step. */
static void many_norms(loom_comm *world, loom_stream *stream)
{
    enum { NORMS = 9 };
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 2, .dp = 2, .zero = 1}, NULL);
    loom_param norm[NORMS], weight = split("weight", 64, 64, mesh, LOOM_AXIS_TP), *params[NORMS + 1];
    loom_dp_result result;
    loom_traffic traffic;

    for (int i = 0; i < NORMS; i++) {
        char name[16];
        snprintf(name, sizeof name, "norm%d", i);
        norm[i] = replicated(name, 64, mesh, LOOM_GRADIENT_PARTIAL);
        params[i] = &norm[i];
    }
    params[NORMS] = &weight;
    loom_dp *dp = open_dp(mesh, params, NORMS + 1, 256, 0, stream);
    assert_ok(loom_dp_begin(dp));
    loom_comm_reset_traffic(mesh->axis[LOOM_AXIS_TP]);
    for (int i = NORMS; i >= 0; i--)
        assert_ok(loom_dp_ready(dp, &params[i], 1));
    assert_ok(loom_dp_finish(dp, 1, 1e-3, 1, &result));
    loom_comm_traffic(mesh->axis[LOOM_AXIS_TP], &traffic);
    assert_int_equal(traffic.calls[LOOM_CALL_ALL_REDUCE], 1);
    assert_int_equal(traffic.bytes[LOOM_CALL_ALL_REDUCE], NORMS * 64 * sizeof(float) / 2); /* 2 (n-1)/n of this rank's half under ZeRO */
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void all_partial_gradients_travel_in_one_collective(void **state) { (void)state; on_ranks(4, many_norms); }

/* Two kv heads on four tp ranks: ranks 0 and 1 share the first, 2 and 3 the second, and each of a pair has a part of its gradient. */
static void shared_kv_heads(loom_comm *world, loom_stream *stream)
{
    const loom_model model = {.layers = 1, .heads = 4, .kv_heads = 2, .hidden = 8, .head_dim = 2, .ffn = 8, .vocab = 8, .seq = 4};
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 4, .seq = 4}, &model);
    int tp = mesh->here.at[LOOM_AXIS_TP];
    loom_param k = param_of("k", 4, 3), *params[] = {&k};
    float want = tp < 2 ? 1 + 2 : 3 + 4;
    loom_dp_result result;

    k.shard.split_dim = 0;
    k.shard.split_axis = LOOM_AXIS_TP;
    k.shard.n_ranges = 1;
    k.shard.ranges[0] = loom_cut(4, 2, tp / 2);
    k.shard.holders = 2;
    k.shard.holder = tp % 2;
    k.shard.gradient = LOOM_GRADIENT_PARTIAL;
    loom_dp *dp = open_dp(mesh, params, 1, 0, 0, stream);
    assert_ok(loom_dp_begin(dp));
    for (int i = 0; i < 6; i++)
        k.gradient[i] = (float)(tp + 1);
    assert_ok(loom_dp_reduce_only(dp, 1, &result));
    assert_gradient(&k, (float[]){want, want, want, want, want, want}, 6);
    assert_near(result.grad_norm, sqrt(6 * 9 + 6 * 49), 1e-12);
    loom_dp_close(dp);
    k.shard.holders = 3;
    loom_param_list list = {.at = params, .count = 1};
    loom_dp_config config = {.adamw = adamw};
    assert_refused(loom_dp_open(mesh, &list, &config, stream, &dp), LOOM_E_INVALID, "k: 3 ranks", "tp group has 4");
    loom_mesh_close(mesh);
}

static void kv_heads_are_added_over_the_ranks_that_share_them(void **state) { (void)state; on_ranks(4, shared_kv_heads); }

/* Four ranks of one stage: dense weights are shared by all four, each of two experts by two, and ZeRO cuts accordingly. */
static void experts(loom_comm *world, loom_stream *stream)
{
    enum { DENSE = 128, EXPERT = 64 };
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 4, .ep = 2, .zero = 1}, NULL);
    int rank = loom_comm_rank(world), ep = mesh->here.at[LOOM_AXIS_EP];
    loom_param dense = param_of("dense", DENSE, 0), expert = param_of(ep ? "expert1" : "expert0", EXPERT, 0), *params[] = {&dense, &expert};
    loom_dp_result result;
    loom_traffic traffic;
    float *m, *v;
    int64_t first, count;

    expert.shard.expert = true;
    loom_dp *dp = open_dp(mesh, params, 2, 0, 0, stream);
    assert_ok(loom_dp_state(dp, &dense, &m, &v, &first, &count));
    assert_true(count == DENSE / 4 && first == rank * DENSE / 4);
    assert_ok(loom_dp_state(dp, &expert, &m, &v, &first, &count));
    assert_true(count == EXPERT / 2 && first == mesh->here.at[LOOM_AXIS_EDP] * EXPERT / 2);
    assert_ok(loom_dp_begin(dp));
    for (int i = 0; i < DENSE; i++)
        dense.gradient[i] = (float)(rank + 1);
    for (int i = 0; i < EXPERT; i++)
        expert.gradient[i] = 1;
    assert_ok(loom_dp_ready(dp, params, 2));
    assert_ok(loom_dp_reduce_only(dp, 1, &result));
    for (int i = 0; i < DENSE; i++)
        assert_true(dense.gradient[i] == 1 + 2 + 3 + 4);
    for (int i = 0; i < EXPERT; i++)
        assert_true(expert.gradient[i] == 2);
    assert_near(result.grad_norm, sqrt(DENSE * 100 + 2 * EXPERT * 4), 1e-12);
    loom_comm_traffic(mesh->axis[LOOM_AXIS_EDP], &traffic);
    assert_int_equal(traffic.bytes[LOOM_CALL_REDUCE_SCATTER], EXPERT * sizeof(float) / 2);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void experts_are_reduced_over_the_ranks_that_hold_them(void **state) { (void)state; on_ranks(4, experts); }

/* A14: vocabulary 3, hidden 2; the first stage has the input part, the last one the output part. Also that both copies stay equal. */
static void tied(loom_comm *world, loom_stream *stream)
{
    static const float input[6] = {0, 0, 5, -8, 0, 0}, output[6] = {2, 0, 5, 0, -7, 0}, sum[6] = {2, 0, 10, -8, -7, 0};
    const loom_model model = {.layers = 3, .heads = 1, .kv_heads = 1, .tied_embeddings = true, .hidden = 2, .head_dim = 2, .ffn = 2, .vocab = 3, .seq = 2};
    int stages = loom_comm_size(world) / 2;
    loom_mesh *mesh = test_mesh(world, (loom_layout){.pp = stages, .dp = 2, .zero = 1, .seq = 2}, &model);
    int stage = mesh->here.at[LOOM_AXIS_PP];
    bool first = stage == 0, last = stage == stages - 1;
    loom_param e = param_of("embedding", 3, 2), body = param_of("body", 5, 0), *params[2] = {&body, &e};
    loom_dp_result result;

    e.shard.tied = stages > 1;
    e.shard.tied_owner = first;
    loom_dp *dp = open_dp(mesh, params, first || last ? 2 : 1, 0, 0, stream);
    assert_ok(loom_dp_init(dp, 3));
    for (int step = 1; step <= 3; step++) {
        assert_ok(loom_dp_begin(dp));
        add(&body, (float[]){1, 0, 0, 0, 0}, 5);
        if (first)
            add(&e, input, 6);
        if (last)
            add(&e, output, 6);
        if (step == 1) {
            assert_ok(loom_dp_reduce_only(dp, 1, &result));
            float twice[6]; /* both dp ranks gave the same */
            for (int i = 0; i < 6; i++)
                twice[i] = 2 * sum[i];
            if (first || last)
                assert_gradient(&e, twice, 6);
            assert_near(result.grad_norm, 2 * sqrt(4 + 100 + 64 + 49 + stages), 1e-12);
        } else {
            assert_ok(loom_dp_finish(dp, 4, 1e-2, step - 1, &result));
        }
    }
    assert_ok(loom_dp_values_changed(dp)); /* the same bits on both stages */
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void tied_copies_on_one_stage_are_one(void **state) { (void)state; on_ranks(2, tied); }
static void tied_copies_on_two_stages_stay_equal(void **state) { (void)state; on_ranks(4, tied); }
static void the_middle_stage_takes_no_part_in_tying(void **state) { (void)state; on_ranks(6, tied); }

/* A10: every weight counts once whatever tp, ep and pp do with it. */
static void norm_of_all(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 2, .pp = 2, .ep = 2}, NULL);
    int tp = mesh->here.at[LOOM_AXIS_TP];
    loom_dp_result result;
    loom_param sharded, replica, expert, *params[3] = {&sharded, &replica, &expert};

    if (mesh->here.at[LOOM_AXIS_PP] == 0) {
        sharded = split("embedding", 4, 0, mesh, LOOM_AXIS_TP);
        replica = replicated("norm", 2, mesh, LOOM_GRADIENT_WHOLE);
    } else {
        sharded = split("head", 2, 0, mesh, LOOM_AXIS_TP);
        replica = replicated("router", 1, mesh, LOOM_GRADIENT_WHOLE);
        expert = param_of(mesh->here.at[LOOM_AXIS_EP] ? "expert1" : "expert0", 2, 0);
        expert.shard.expert = true;
    }
    loom_dp *dp = open_dp(mesh, params, mesh->here.at[LOOM_AXIS_PP] ? 3 : 2, 0, 1.5, stream);
    assert_ok(loom_dp_begin(dp));
    if (mesh->here.at[LOOM_AXIS_PP] == 0) {
        add(&sharded, tp ? (float[]){2, 0} : (float[]){1, 2}, 2);
        add(&replica, (float[]){2, 1}, 2);
    } else {
        add(&sharded, tp ? (float[]){3} : (float[]){1}, 1);
        add(&replica, (float[]){1}, 1);
        add(&expert, mesh->here.at[LOOM_AXIS_EP] ? (float[]){1, 1} : (float[]){3, 0}, 2);
    }
    assert_ok(loom_dp_finish(dp, 1, 1e-3, 1, &result));
    assert_near(result.grad_norm, 6, 1e-12);
    assert_near(result.clip_scale, 0.25, 1e-6);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void the_norm_counts_every_weight_once(void **state) { (void)state; on_ranks(4, norm_of_all); }

/* Three vocabulary rows over two ranks, padded to two each; a careless layer adds to the padding's gradient. */
static void padding(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 2}, NULL);
    bool padded = mesh->here.at[LOOM_AXIS_TP] == 0; /* loom_cut gives 1 and 2 rows */
    loom_param rows = split("embedding", 3, 2, mesh, LOOM_AXIS_TP), cols = param_of("down", 2, 3), *params[] = {&rows, &cols};
    loom_dp_result result;

    rows.shard.padding = padded;
    cols.shard.split_dim = 1;
    cols.shard.split_axis = LOOM_AXIS_TP;
    cols.shard.n_ranges = 1;
    cols.shard.ranges[0] = rows.shard.ranges[0];
    cols.shard.padding = padded;
    loom_dp *dp = open_dp(mesh, params, 2, 0, 0, stream);
    assert_ok(loom_dp_init(dp, 1));
    assert_ok(loom_dp_begin(dp));
    add(&rows, (float[]){1, 1, 1, 1}, 4);
    add(&cols, (float[]){1, 1, 1, 1}, 4);
    assert_ok(loom_dp_finish(dp, 1, 1e-2, 1, &result));
    assert_near(result.grad_norm, sqrt(2 * 6), 1e-12);
    if (padded)
        assert_true(rows.value[2] == 0 && rows.value[3] == 0 && cols.value[1] == 0 && cols.value[3] == 0);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void padding_counts_nowhere_and_stays_zero(void **state) { (void)state; on_ranks(2, padding); }

/* --- ZeRO -------------------------------------------------------------------------------------------------------------------------- */

enum { N_PARAMS = 6 };

/* Sizes that neither buckets nor ranks divide; the second and third lie side by side. Of three units the first has the ends of the list, as tied embeddings do. */
enum { UNITS = 3 };
static const int64_t shape[N_PARAMS][2] = {{37, 5}, {16, 16}, {16, 8}, {7, 0}, {33, 31}, {11, 0}};
static const int unit_of[N_PARAMS] = {0, 1, 1, 2, 2, 0};

static void many_params(loom_param p[N_PARAMS], loom_param *list[N_PARAMS])
{

    for (int i = 0; i < N_PARAMS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        p[i] = param_of(name, shape[i][0], shape[i][1]);
        p[i].unit = unit_of[i];
        list[i] = &p[i];
    }
}

typedef struct zero_run {
    float value[N_PARAMS][37 * 31];
    double norm, seen; /* seen: in forward */
    loom_ledger ledger;
    uint64_t reduced, gathered, scattered;
} zero_run;

/* For the host's eyes: what comes next on the stream would see them without a wait. */
static void gather_weights(loom_dp *dp, int unit, loom_stream *stream)
{
    assert_ok(loom_dp_gather_weights(dp, unit));
    assert_ok(loom_stream_wait(stream));
}

static void begin_gradients(loom_dp *dp, int unit, loom_stream *stream)
{
    assert_ok(loom_dp_begin_gradients(dp, unit));
    assert_ok(loom_stream_wait(stream));
}

/* Backward of a unit: it adds to its gradients, and says that they are complete. */
static void backward_unit(loom_dp *dp, loom_param p[N_PARAMS], loom_param *list[N_PARAMS], int unit, int seed, loom_stream *stream)
{
    gather_weights(dp, unit, stream);
    begin_gradients(dp, unit, stream);
    for (int i = N_PARAMS - 1; i >= 0; i--)
        if (unit_of[i] == unit)
            add_noise(&p[i], seed, 0, i);
    assert_ok(loom_dp_scatter_gradients(dp, unit));
    for (int i = N_PARAMS - 1; i >= 0; i--)
        if (unit_of[i] == unit)
            assert_ok(loom_dp_ready(dp, &list[i], 1));
}

static void use_all(loom_dp *dp, const loom_param p[N_PARAMS], loom_stream *stream, zero_run *run)
{
    for (int unit = 0; unit < UNITS; unit++) {
        gather_weights(dp, unit, stream);
        for (int i = 0; i < N_PARAMS; i++)
            for (int64_t e = 0; e < loom_shard_local_count(&p[i].shard) && unit_of[i] == unit; e++)
                run->seen += p[i].value[e] * (double)(i + e);
    }
}

static void keep_values(loom_dp *dp, const loom_param p[N_PARAMS], loom_stream *stream, zero_run *run)
{
    for (int i = 0; i < N_PARAMS; i++) {
        gather_weights(dp, unit_of[i], stream);
        memcpy(run->value[i], p[i].value, (size_t)loom_shard_local_count(&p[i].shard) * sizeof(float));
    }
}

static void train(loom_mesh *mesh, int zero, size_t bucket_bytes, loom_stream *stream, zero_run *run)
{
    enum { STEPS = 4 };
    loom_param p[N_PARAMS], *list[N_PARAMS];
    loom_ledger before, opened, first, after;
    loom_dp_result result;
    loom_traffic traffic;

    many_params(p, list);
    mesh->layout.zero = zero;
    loom_device_ledger(loom_stream_device(stream), &before);
    loom_dp *dp = open_dp(mesh, list, N_PARAMS, bucket_bytes, 0.5, stream);
    assert_ok(loom_dp_init(dp, 7));
    assert_ptr_equal(p[2].value, p[1].value + 256);
    assert_ptr_equal(p[2].gradient, p[1].gradient + 256);
    loom_device_ledger(loom_stream_device(stream), &opened);
    loom_comm_reset_traffic(mesh->gradient);
    run->seen = 0;
    for (int step = 1; step <= STEPS; step++) {
        assert_ok(loom_dp_begin(dp));
        use_all(dp, p, stream, run);
        for (int unit = UNITS - 1; unit >= 0; unit--)
            backward_unit(dp, p, list, unit, step * 4 + loom_comm_rank(mesh->world), stream);
        assert_ok(loom_dp_finish(dp, 17, 1e-2, step, &result));
        if (step == 1)
            loom_device_ledger(loom_stream_device(stream), &first); /* kernels have met their largest shapes */
    }
    loom_device_ledger(loom_stream_device(stream), &after);
    assert_int_equal(after.allocations, first.allocations); /* none in a step */
    run->norm = result.grad_norm;
    for (int use = 0; use < LOOM_MEM_USES; use++)
        run->ledger.live[use] = opened.live[use] - before.live[use];
    loom_comm_traffic(mesh->gradient, &traffic);
    run->reduced = traffic.bytes[LOOM_CALL_ALL_REDUCE] / STEPS;
    run->scattered = traffic.bytes[LOOM_CALL_REDUCE_SCATTER] / STEPS;
    run->gathered = traffic.bytes[LOOM_CALL_ALL_GATHER] / STEPS;
    assert_ok(loom_dp_values_changed(dp));
    keep_values(dp, p, stream, run);
    loom_dp_close(dp);
}

/* What `parts` ranks share of the parameters above, unit by unit, in bytes; *largest: of one unit. */
static uint64_t bytes_by_unit(int parts, uint64_t *largest)
{
    uint64_t sum = 0, cut = 64 * (uint64_t)parts;

    *largest = 0;
    for (int unit = 0; unit < UNITS; unit++) {
        uint64_t bytes = 0;
        for (int i = 0; i < N_PARAMS; i++)
            if (unit_of[i] == unit)
                bytes += ((uint64_t)(shape[i][0] * (shape[i][1] ? shape[i][1] : 1)) * sizeof(float) + 63) / 64 * 64;
        bytes = (bytes + cut - 1) / cut * cut;
        *largest = bytes > *largest ? bytes : *largest;
        sum += bytes;
    }
    return sum;
}

/* Weights are gathered twice where they are cut, in forward and in backward, else once when they are new. */
static void check_promise(const zero_run *run, int zero, int n)
{
    uint64_t largest, all = bytes_by_unit(n, &largest), part = all / (uint64_t)n;
    bool cut = zero == 3;

    assert_int_equal(run->ledger.live[LOOM_MEM_OPTIMIZER], 2 * part);
    assert_int_equal(run->ledger.live[LOOM_MEM_GRADIENTS], part + 2 * largest);
    assert_int_equal(run->ledger.live[LOOM_MEM_WEIGHTS], cut ? part + 2 * largest : all);
    assert_int_equal(run->scattered, part * (uint64_t)(n - 1));
    assert_int_equal(run->gathered, (cut ? 2 : 1) * part * (uint64_t)(n - 1));
    assert_int_equal(run->reduced, 0);
}

static void units_against_none(loom_comm *world, loom_stream *stream)
{
    static zero_run none, cut;
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = loom_comm_size(world)}, NULL);

    train(mesh, 0, 0, stream, &none);
    for (int zero = 2; zero <= 3; zero++) {
        train(mesh, zero, 0, stream, &cut);
        assert_memory_equal(none.value, cut.value, sizeof none.value);
        assert_true(none.seen == cut.seen);
        assert_near(cut.norm, none.norm, 1e-12);
        if (loom_comm_size(world) > 1)
            check_promise(&cut, zero, loom_comm_size(world));
    }
    loom_mesh_close(mesh);
}

static void zero_2_and_3_give_the_bits_of_zero_0_with_the_memory_and_traffic_they_promise(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        on_ranks(ranks, units_against_none);
}

/* Of three micro-batches each rank keeps its part of the sum, and that part alone. */
static void micro_batches_of_units(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 2, .zero = 2}, NULL);
    loom_param a = param_of("a", 50, 0), b = param_of("b", 30, 0), *params[] = {&a, &b};
    loom_dp_result result;

    b.unit = 1;
    loom_dp *dp = open_dp(mesh, params, 2, 0, 0, stream);
    assert_ok(loom_dp_begin(dp));
    for (int m = 0; m < 3; m++)
        for (int unit = 1; unit >= 0; unit--) {
            begin_gradients(dp, unit, stream);
            for (int64_t i = 0; i < loom_shard_local_count(&params[unit]->shard); i++)
                params[unit]->gradient[i] += (float)(i + 100 * m + 1000 * mesh->here.at[LOOM_AXIS_DP]);
            assert_ok(loom_dp_scatter_gradients(dp, unit));
        }
    assert_ok(loom_dp_reduce_only(dp, 1, &result));
    for (int p = 0; p < 2; p++) {
        loom_part part = loom_param_kept_gradient(params[p]);
        double counts[2] = {(double)part.count, (double)part.first};
        for (int64_t i = 0; i < part.count; i++)
            assert_true(part.data[i] == (float)(6 * (part.first + i) + 2 * 300 + 3 * 1000));
        assert_ok(loom_dp_sum(dp, counts, 2));
        assert_true(counts[0] == loom_shard_local_count(&params[p]->shard)); /* no gap, no overlap */
    }
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void gradients_of_micro_batches_add_up_where_they_are_kept(void **state) { (void)state; on_ranks(2, micro_batches_of_units); }

static void zero_against_none(loom_comm *world, loom_stream *stream)
{
    static const size_t buckets[] = {0, 64, 1200, 5000};
    static zero_run none, again, zero;
    uint64_t n = (uint64_t)loom_comm_size(world);
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = (int)n}, NULL);

    train(mesh, 0, 0, stream, &none);
    train(mesh, 0, 0, stream, &again);
    assert_memory_equal(none.value, again.value, sizeof none.value);
    assert_true(none.norm == again.norm);
    for (size_t i = 0; i < sizeof buckets / sizeof *buckets; i++) {
        train(mesh, 1, buckets[i], stream, &zero);
        assert_memory_equal(none.value, zero.value, sizeof none.value);
        if (i == 0)
            assert_true(none.norm == zero.norm);
        assert_near(zero.norm, none.norm, 1e-12); /* other buckets, other order of the f64 sum */

        uint64_t all = zero.ledger.live[LOOM_MEM_WEIGHTS];
        assert_int_equal(zero.ledger.live[LOOM_MEM_GRADIENTS], all);
        assert_int_equal(zero.ledger.live[LOOM_MEM_OPTIMIZER], 2 * all / n);
        assert_int_equal(zero.scattered, all * (n - 1) / n);
        assert_int_equal(zero.gathered, all * (n - 1) / n);
        assert_int_equal(zero.reduced, 0);
    }
    assert_int_equal(none.ledger.live[LOOM_MEM_OPTIMIZER], 2 * none.ledger.live[LOOM_MEM_WEIGHTS]);
    assert_int_equal(none.reduced, 2 * none.ledger.live[LOOM_MEM_WEIGHTS] * (n - 1) / n);
    assert_int_equal(none.scattered + none.gathered, 0);
    loom_mesh_close(mesh);
}

static void zero_1_gives_the_bits_of_zero_0_with_the_memory_and_traffic_it_promises(void **state)
{
    (void)state;
    on_ranks(1, zero_against_none);
    on_ranks(2, zero_against_none);
    on_ranks(3, zero_against_none);
    on_ranks(4, zero_against_none);
}

/* Buckets of one parameter each: the last parameter's leaves before the first one's gradient is even there. */
static void early_bucket(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 2, .zero = 1}, NULL);
    loom_param first = param_of("first", 64, 0), last = param_of("last", 64, 0), *params[] = {&first, &last}, *done[] = {&last};
    loom_dp *dp = open_dp(mesh, params, 2, 64, 0, stream);
    loom_dp_result result;
    loom_traffic traffic;

    assert_ok(loom_dp_begin(dp));
    last.gradient[0] = 1;
    loom_comm_reset_traffic(mesh->gradient);
    assert_ok(loom_dp_ready(dp, done, 1));
    loom_comm_traffic(mesh->gradient, &traffic);
    assert_int_equal(traffic.calls[LOOM_CALL_REDUCE_SCATTER], 1);
    first.gradient[0] = 3; /* still ours to write */
    assert_ok(loom_dp_reduce_only(dp, 1, &result));
    assert_true(first.gradient[0] == 6 && last.gradient[0] == 2);
    loom_comm_traffic(mesh->gradient, &traffic);
    assert_int_equal(traffic.calls[LOOM_CALL_REDUCE_SCATTER], 2);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void a_bucket_leaves_when_its_last_gradient_is_complete(void **state) { (void)state; on_ranks(2, early_bucket); }

/* The parts of all ranks are disjoint and cover the parameter, and hold what plain AdamW keeps: m = (1 - beta1) g after one step. */
static void state_parts(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 3, .zero = 1}, NULL);
    loom_param p[N_PARAMS], *list[N_PARAMS];
    loom_dp_result result;

    many_params(p, list);
    loom_dp *dp = open_dp(mesh, list, N_PARAMS, 600, 0, stream);
    assert_ok(loom_dp_init(dp, 7));
    assert_ok(loom_dp_begin(dp));
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < loom_shard_local_count(&p[i].shard); e++)
            p[i].gradient[e] = mesh->here.at[LOOM_AXIS_DP] == 0 ? (float)(e + 1) : 0;
    assert_ok(loom_dp_finish(dp, 1, 1e-3, 1, &result));
    for (int i = 0; i < N_PARAMS; i++) {
        float *m, *v;
        int64_t first, count;
        double held[2];
        assert_ok(loom_dp_state(dp, &p[i], &m, &v, &first, &count));
        held[0] = (double)count;
        held[1] = 0;
        for (int64_t e = first; e < first + count; e++) {
            assert_near(m[e - first], 0.1 * (double)(e + 1), 1e-6);
            held[1] += (double)e;
        }
        assert_ok(loom_dp_sum(dp, held, 2));
        double n = (double)loom_shard_local_count(&p[i].shard);
        assert_true(held[0] == n && held[1] == n * (n - 1) / 2);
    }
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void optimizer_state_is_cut_without_gap_or_overlap(void **state) { (void)state; on_ranks(3, state_parts); }

/* tp ranks hold the same norm weights; their gradients are partial, and random. */
static void hundred_steps(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 2, .dp = 2, .zero = 1}, NULL);
    loom_param norm = replicated("norm", 33, mesh, LOOM_GRADIENT_PARTIAL), weight = split("weight", 19, 7, mesh, LOOM_AXIS_TP);
    loom_param *params[] = {&norm, &weight};
    loom_dp *dp = open_dp(mesh, params, 2, 0, 0.1, stream);
    loom_dp_result result;

    assert_ok(loom_dp_init(dp, 5));
    for (int step = 1; step <= 100; step++) {
        assert_ok(loom_dp_begin(dp));
        add_noise(&norm, loom_comm_rank(world), step, 0);
        add_noise(&weight, loom_comm_rank(world), step, 1);
        assert_ok(loom_dp_finish(dp, 3, 1e-2, step, &result));
    }
    assert_ok(loom_dp_values_changed(dp));
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void replicated_weights_are_equal_to_the_bit_after_100_steps(void **state) { (void)state; on_ranks(4, hundred_steps); }

/* --- what goes wrong ------------------------------------------------------------------------------------------------------------------ */

static void not_finite(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 2}, NULL);
    loom_param a = param_of("a", 3, 0), b = param_of("b", 3, 0), *params[] = {&a, &b};
    loom_dp *dp = open_dp(mesh, params, 2, 0, 1, stream);
    loom_dp_result result;

    assert_ok(loom_dp_begin(dp));
    if (mesh->here.at[LOOM_AXIS_DP] == 1)
        b.gradient[2] = NAN;
    assert_refused(loom_dp_finish(dp, 1, 1e-3, 1, &result), LOOM_E_INVALID, "nan", "b is the first");
    assert_true(b.value[2] == 0);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void a_norm_that_is_no_number_stops_every_rank_and_names_the_parameter(void **state) { (void)state; on_ranks(2, not_finite); }

static void peer_leaves(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 3, .zero = 1}, NULL);
    loom_param a = param_of("a", 1000, 0), *params[] = {&a};
    loom_dp *dp = open_dp(mesh, params, 1, 0, 1, stream);
    loom_dp_result result;

    assert_ok(loom_dp_begin(dp));
    if (loom_comm_rank(world) != 1)
        assert_refused(loom_dp_finish(dp, 1, 1e-3, 1, &result), LOOM_E_PEER, "rank 1");
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void a_rank_that_leaves_ends_the_step_of_the_others(void **state) { (void)state; on_ranks(3, peer_leaves); }

/* Where weights are cut over dp they have no copies there, but the tp ranks of each part have. */
static void other_file_of_a_part(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 2, .dp = 2, .zero = 3}, NULL);
    loom_param b = replicated("b", 70000, mesh, LOOM_GRADIENT_WHOLE), *params[] = {&b};
    loom_dp *dp = open_dp(mesh, params, 1, 0, 1, stream);

    assert_ok(loom_dp_init(dp, 3));
    assert_ok(loom_dp_values_changed(dp));
    if (loom_comm_rank(world) == 3)
        loom_param_kept_value(&b).data[5] = 100;
    assert_refused(loom_dp_values_changed(dp), LOOM_E_MISMATCH, "b: ", "the tp group are not the same bits");
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void other_file(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 2, .dp = 2}, NULL);
    loom_param a = param_of("a", 3, 0), b = replicated("b", 70000, mesh, LOOM_GRADIENT_WHOLE), *params[] = {&a, &b};
    loom_dp *dp = open_dp(mesh, params, 2, 0, 1, stream);

    a.shard.split_axis = LOOM_AXIS_TP;
    assert_ok(loom_dp_values_changed(dp));
    if (loom_comm_rank(world) == 3)
        b.value[69999] = 1;
    if (mesh->here.at[LOOM_AXIS_TP] == 1 || mesh->here.at[LOOM_AXIS_DP] == 1)
        assert_refused(loom_dp_values_changed(dp), LOOM_E_MISMATCH, "b: ", "not the same bits");
    else
        assert_ok(loom_dp_values_changed(dp));
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void copies_that_differ_after_a_load_are_found(void **state)
{
    (void)state;
    on_ranks(4, other_file);
    on_ranks(4, other_file_of_a_part);
}

static void misuse_of_units(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 2, .zero = 3}, NULL);
    loom_param a = param_of("a", 3, 0), b = param_of("b", 3, 0), *params[] = {&a, &b};

    b.unit = 7;
    loom_dp *dp = open_dp(mesh, params, 2, 0, 0, stream);
    assert_refused(loom_dp_begin_gradients(dp, 0), LOOM_E_INVALID, "loom_dp_begin_gradients() outside a step", "loom_dp_begin()");
    assert_refused(loom_dp_scatter_gradients(dp, 0), LOOM_E_INVALID, "outside a step");
    assert_ok(loom_dp_begin(dp));
    assert_refused(loom_dp_scatter_gradients(dp, 7), LOOM_E_INVALID, "unit 7", "loom_dp_begin_gradients() of it comes before");
    assert_ok(loom_dp_begin_gradients(dp, 7));
    assert_refused(loom_dp_scatter_gradients(dp, 0), LOOM_E_INVALID, "unit 0");
    assert_ok(loom_dp_scatter_gradients(dp, 7));
    assert_refused(loom_dp_scatter_gradients(dp, 7), LOOM_E_INVALID, "unit 7");
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void misuse_of_units_is_refused_in_words(void **state) { (void)state; on_ranks(2, misuse_of_units); }

static void misuse(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 1}, NULL);
    loom_param a = param_of("a", 3, 0), stranger = param_of("stranger", 3, 0), *params[] = {&a}, *twice[] = {&a, &a}, *other[] = {&stranger};
    loom_param_list list = {.at = twice, .count = 2};
    loom_dp_config config = {.adamw = adamw};
    loom_dp *dp = NULL;
    loom_dp_result result;

    assert_refused(loom_dp_open(mesh, &list, &config, stream, &dp), LOOM_E_INVALID, "a stands twice");
    list.count = 1;
    config.adamw.beta2 = 1;
    assert_refused(loom_dp_open(mesh, &list, &config, stream, &dp), LOOM_E_INVALID, "0.9 and 1");
    config.adamw.beta2 = 0.95;
    mesh->layout.zero = 4;
    assert_refused(loom_dp_open(mesh, &list, &config, stream, &dp), LOOM_E_INVALID, "zero=4", "0 to 3");
    assert_null(dp);
    mesh->layout.zero = 0;
    dp = open_dp(mesh, params, 1, 0, 0, stream);
    assert_refused(loom_dp_ready(dp, params, 1), LOOM_E_INVALID, "loom_dp_begin");
    assert_refused(loom_dp_finish(dp, 1, 1e-3, 1, &result), LOOM_E_INVALID, "loom_dp_begin");
    assert_ok(loom_dp_begin(dp));
    assert_refused(loom_dp_ready(dp, other, 1), LOOM_E_INVALID, "stranger");
    assert_ok(loom_dp_ready(dp, params, 1));
    assert_refused(loom_dp_ready(dp, params, 1), LOOM_E_INVALID, "twice");
    assert_refused(loom_dp_finish(dp, -1, 1e-3, 1, &result), LOOM_E_INVALID, "divisor -1");
    assert_ok(loom_dp_finish(dp, 1, 1e-3, 1, &result));
    loom_dp_close(dp);
    loom_mesh_close(mesh);
}

static void misuse_is_refused_in_words(void **state) { (void)state; on_ranks(1, misuse); }

/* A rank of a world of 64, on a device whose memory is only counted. */
static void any_rank_can_be_rehearsed_dry(void **state)
{
    enum { DP = 8, PP = 8, RANK = 29 };
    loom_param p[N_PARAMS], *list[N_PARAMS];
    loom_device *device;
    loom_stream *stream;
    loom_comm *world;
    loom_ledger ledger;
    loom_dp_result result;

    (void)state;
    many_params(p, list);
    assert_ok(loom_device_open(LOOM_DRY, NULL, &device));
    assert_ok(loom_stream_open(device, LOOM_STREAM_INLINE, "compute", &stream));
    assert_ok(loom_comm_open_dry(RANK, DP * PP, device, &world));
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = DP, .pp = PP, .zero = 1}, NULL);
    loom_dp *dp = open_dp(mesh, list, N_PARAMS, 0, 1, stream);
    assert_ok(loom_dp_init(dp, 1));
    assert_ok(loom_dp_begin(dp));
    assert_ok(loom_dp_ready(dp, list, N_PARAMS));
    assert_ok(loom_dp_finish(dp, 10, 1e-3, 1, &result));
    loom_device_ledger(device, &ledger);
    assert_int_equal(ledger.live[LOOM_MEM_OPTIMIZER], 2 * ledger.live[LOOM_MEM_WEIGHTS] / DP);
    loom_dp_close(dp);
    loom_mesh_close(mesh);
    loom_comm_free(world);
    loom_stream_close(stream);
    loom_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_is_over_all_tokens_not_over_means),
        cmocka_unit_test(a_batch_without_tokens_changes_nothing),
        cmocka_unit_test(a_partial_gradient_is_added_over_its_holders),
        cmocka_unit_test(all_partial_gradients_travel_in_one_collective),
        cmocka_unit_test(kv_heads_are_added_over_the_ranks_that_share_them),
        cmocka_unit_test(experts_are_reduced_over_the_ranks_that_hold_them),
        cmocka_unit_test(tied_copies_on_one_stage_are_one),
        cmocka_unit_test(tied_copies_on_two_stages_stay_equal),
        cmocka_unit_test(the_middle_stage_takes_no_part_in_tying),
        cmocka_unit_test(the_norm_counts_every_weight_once),
        cmocka_unit_test(padding_counts_nowhere_and_stays_zero),
        cmocka_unit_test(zero_1_gives_the_bits_of_zero_0_with_the_memory_and_traffic_it_promises),
        cmocka_unit_test(zero_2_and_3_give_the_bits_of_zero_0_with_the_memory_and_traffic_they_promise),
        cmocka_unit_test(gradients_of_micro_batches_add_up_where_they_are_kept),
        cmocka_unit_test(a_bucket_leaves_when_its_last_gradient_is_complete),
        cmocka_unit_test(optimizer_state_is_cut_without_gap_or_overlap),
        cmocka_unit_test(replicated_weights_are_equal_to_the_bit_after_100_steps),
        cmocka_unit_test(a_norm_that_is_no_number_stops_every_rank_and_names_the_parameter),
        cmocka_unit_test(a_rank_that_leaves_ends_the_step_of_the_others),
        cmocka_unit_test(copies_that_differ_after_a_load_are_found),
        cmocka_unit_test(misuse_is_refused_in_words),
        cmocka_unit_test(misuse_of_units_is_refused_in_words),
        cmocka_unit_test(any_rank_can_be_rehearsed_dry),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
