/* Expert parallelism by itself: a layer of experts gives the numbers of the float64 fixtures however tokens, experts and their columns lie on ranks. */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"
#include "harness/tensors.h"

#include <rankloom/dp.h>
#include <rankloom/ep.h>
#include <rankloom/weights.h>

#include <math.h>

/* --- a layer on this rank ---------------------------------------------------------------------------------------------------------- */

typedef struct fixture {
    loom_mesh *mesh;
    loom_kernels *kernels;
    loom_stream *stream;
    loom_ep *ep;
    loom_moe_layer *layer;
    loom_moe_record *record;
    loom_param_list params;
    loom_dp *dp;
} fixture;

/* How the layers of a test send their tokens: set before ranks are forked. */
static loom_ep_config ep_config;

static fixture open_layer(loom_comm *world, loom_stream *stream, loom_layout layout, const loom_moe *moe, int64_t hidden, int64_t sequences,
                          int64_t seq)
{
    fixture f = {.stream = stream};
    loom_moe_layer_config config = {.moe = moe,
                                    .hidden = hidden,
                                    .router = "router.weight",
                                    .selection_bias = "router.bias",
                                    .experts = "e",
                                    .gate = "gate",
                                    .up = "up",
                                    .down = "down",
                                    .init_std = 0.3,
                                    .init_std_down = 0.3};

    layout.seq = 24;
    f.mesh = test_mesh(world, layout, NULL);
    assert_ok(loom_kernels_open(loom_comm_device(world), NULL, &f.kernels));
    assert_ok(loom_ep_open(f.mesh, f.kernels, stream, &ep_config, &f.ep));
    assert_ok(loom_ep_reshape(f.ep, &(loom_ep_shape){.sequences = sequences, .seq = seq}));
    assert_ok(loom_moe_layer_open(f.ep, &config, &f.params, &f.layer));
    assert_ok(loom_moe_record_open(f.layer, sequences * seq, &f.record));
    assert_ok(loom_dp_open(f.mesh, &f.params, &(loom_dp_config){.adamw = {0.9, 0.95, 1e-8, 0, 0}}, stream, &f.dp));
    assert_ok(loom_dp_init(f.dp, 5));
    return f;
}

static void close_layer(fixture *f)
{
    loom_dp_close(f->dp);
    loom_moe_record_close(f->record);
    loom_moe_layer_close(f->layer);
    loom_ep_close(f->ep);
    loom_param_list_free(&f->params);
    loom_kernels_close(f->kernels);
    loom_mesh_close(f->mesh);
}

static void forward(fixture *f, const float *x, int64_t tokens, int64_t first, float *y)
{
    assert_ok(loom_moe_dispatch(f->layer, f->record, x, tokens, first));
    assert_ok(loom_moe_compute(f->layer, f->record));
    assert_ok(loom_moe_combine(f->layer, f->record, y, false));
    assert_ok(loom_stream_wait(f->stream));
}

static void backward(fixture *f, const float *x, const float *dy, float *dx)
{
    assert_ok(loom_moe_dispatch_backward(f->layer, f->record, x, dy));
    assert_ok(loom_moe_compute_backward(f->layer, f->record));
    assert_ok(loom_moe_combine_backward(f->layer, f->record, dx, false));
    assert_ok(loom_stream_wait(f->stream));
}

static void assert_close(const char *what, const float *got, const double *want, int64_t count, double limit)
{
    double distance = 0, norm = 0;

    for (int64_t i = 0; i < count; i++) {
        distance += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    if (!(sqrt(distance) <= limit * sqrt(norm)))
        fail_msg("%s: relative distance %.3g, limit %.3g", what, sqrt(distance / norm), limit);
}

/* --- the fixtures of operations ------------------------------------------------------------------------------------------------------ */

enum { B = 2, S = 12, T = B * S, D = 12, E = 8 };

/* PyTorch's float32 is at most 3e-7 from float64 here, 8e-7 in the balance loss's gradient. */
static const double LIMIT = 1.5e-6, BALANCE_LIMIT = 4e-6;

static const loom_moe softmax_moe = {.experts = E, .top_k = 2, .ffn = 10, .normalise_top_k = true, .groups = 1, .groups_kept = 1, .route_scale = 1,
                                     .balance = LOOM_BALANCE_SWITCH};
static const loom_moe sigmoid_moe = {.experts = E, .top_k = 3, .ffn = 6, .router = LOOM_ROUTER_SIGMOID, .normalise_top_k = true, .groups = 4,
                                     .groups_kept = 2, .route_scale = 2.5, .selection_bias = true, .balance = LOOM_BALANCE_SEQUENCE};

/* What the ranks of a check share: set before they are forked. */
static struct {
    const char *name; /* of the operation */
    loom_moe moe;
    loom_layout layout;
    tensors file;
    double y[T * D], dx[T * D]; /* of the routed experts alone */
} op;

static const float *op_tensor(const char *what)
{
    char name[64];

    snprintf(name, sizeof name, "%s.%s", op.name, what);
    return tensor(&op.file, name, NULL);
}

/* The fixture's results have those of a shared expert in them, which is a dense MLP: not this layer's. In f64 loops. */
static void take_out_shared(void)
{
    int64_t F = op.moe.ffn;
    const float *x = op_tensor("in.x"), *dy = op_tensor("in.dy"), *gate = op_tensor("in.shared_gate"), *up = op_tensor("in.shared_up"),
                *down = op_tensor("in.shared_down");

    for (int64_t t = 0; t < T; t++)
        for (int64_t f = 0; f < F; f++) {
            double g = 0, u = 0, d = 0, sigmoid;

            for (int64_t i = 0; i < D; i++) {
                g += (double)gate[f * D + i] * x[t * D + i];
                u += (double)up[f * D + i] * x[t * D + i];
                d += (double)down[i * F + f] * dy[t * D + i];
            }
            sigmoid = 1 / (1 + exp(-g));
            for (int64_t i = 0; i < D; i++) {
                op.y[t * D + i] -= g * sigmoid * u * down[i * F + f];
                op.dx[t * D + i] -= d * u * sigmoid * (1 + g * (1 - sigmoid)) * gate[f * D + i] + d * g * sigmoid * up[f * D + i];
            }
        }
}

static void open_op(const char *name, const loom_moe *moe)
{
    op.name = name;
    op.moe = *moe;
    assert_true(tensors_load(&op.file, test_data("fixtures/ops.safetensors")));
    for (int64_t i = 0; i < T * D; i++) {
        op.y[i] = op_tensor("out.y")[i];
        op.dx[i] = op_tensor("out.dx")[i];
    }
    if (moe->selection_bias)
        take_out_shared();
}

static const float *op_values(const char *parameter, int64_t *first)
{
    int expert;
    char what[8], path[24];

    *first = 0;
    if (strcmp(parameter, "router.weight") == 0)
        return op_tensor("in.router");
    if (strcmp(parameter, "router.bias") == 0)
        return op_tensor("in.bias");
    assert_int_equal(sscanf(parameter, "e.%d.%7[a-z]", &expert, what), 2);
    *first = expert * op.moe.ffn * D;
    snprintf(path, sizeof path, "in.%s", what);
    return op_tensor(path);
}

static void set_weights(fixture *f)
{
    for (int i = 0; i < f->params.count; i++) {
        loom_param *param = f->params.at[i];
        int64_t count = loom_shard_local_count(&param->shard), first;
        const float *values = op_values(param->shard.name, &first);

        for (int64_t j = 0; j < count; j++)
            param->value[j] = values[first + loom_shard_global_index(&param->shard, j)];
    }
}

/* `context`: NULL for the gradients of the output, else the scale of the balance loss's. */
static loom_status check_gradient(void *context, const loom_shard *spec, const float *data)
{
    int64_t count = loom_shard_global_count(spec), first = 0;
    const float *want;
    double *wide, scale = context ? *(double *)context : 1;
    char what[8], path[24];
    int expert;

    if (strcmp(spec->name, "router.bias") == 0 || (context && strcmp(spec->name, "router.weight") != 0)) {
        for (int64_t i = 0; i < count; i++)
            assert_true(data[i] == 0);
        return LOOM_OK;
    }
    snprintf(path, sizeof path, context ? "out.aux_drouter" : "out.drouter");
    if (sscanf(spec->name, "e.%d.%7[a-z]", &expert, what) == 2) {
        snprintf(path, sizeof path, "out.d%s", what);
        first = expert * op.moe.ffn * D;
    }
    want = op_tensor(path);
    wide = malloc((size_t)count * sizeof *wide);
    assert_non_null(wide);
    for (int64_t i = 0; i < count; i++)
        wide[i] = want[first + i] * scale;
    assert_close(spec->name, data, wide, count, context ? BALANCE_LIMIT : LIMIT);
    free(wide);
    return LOOM_OK;
}

/* Which of the fixture's T tokens this rank routes: its data-parallel part, and of that its tp share. */
static loom_range my_tokens(const fixture *f, int64_t *first)
{
    int dp = f->mesh->layout.dp;
    loom_range part = loom_cut(T, dp, f->mesh->here.at[LOOM_AXIS_DP]), own = loom_moe_own_tokens(f->ep, part.end - part.begin);

    *first = own.begin;
    return (loom_range){part.begin + own.begin, part.begin + own.end};
}

/* Another micro-batch passes first, forwards and backwards, and leaves its rows in all that micro-batches share. Its gradients are 0. */
static void make_weights_gradients_late(fixture *f, const float *x, int64_t tokens, int64_t first)
{
    float y[T * D], dx[T * D], zeros[T * D] = {0};
    loom_moe_record *kept = f->record;

    assert_ok(loom_moe_record_open(f->layer, B / op.layout.dp * S, &f->record));
    forward(f, x, tokens, first, y);
    backward(f, x, zeros, dx);
    assert_ok(loom_moe_backward_weight(f->layer, f->record));
    loom_moe_record_close(f->record);
    f->record = kept;
    assert_ok(loom_moe_backward_weight(f->layer, kept));
    assert_ok(loom_stream_wait(f->stream));
}

static void check_op(loom_comm *world, loom_stream *stream)
{
    int64_t sequences = B / op.layout.dp, first;
    fixture f = open_layer(world, stream, op.layout, &op.moe, D, sequences, S);
    loom_range mine = my_tokens(&f, &first);
    int64_t count = (mine.end - mine.begin) * D;
    const float *x = op_tensor("in.x") + mine.begin * D, *dy = op_tensor("in.dy") + mine.begin * D;
    float y[T * D], dx[T * D];
    loom_dp_result result;

    set_weights(&f);
    assert_ok(loom_dp_begin(f.dp));
    forward(&f, x, mine.end - mine.begin, first, y);
    assert_memory_equal(loom_moe_ids(f.record), (const int32_t *)(const void *)op_tensor("out.expert_ids") + mine.begin * op.moe.top_k,
                        (size_t)((mine.end - mine.begin) * op.moe.top_k) * sizeof(int32_t));
    assert_close("y", y, op.y + mine.begin * D, count, LIMIT);
    backward(&f, x, dy, dx);
    assert_close("dx", dx, op.dx + mine.begin * D, count, LIMIT);
    if (ep_config.split_backward)
        make_weights_gradients_late(&f, x, mine.end - mine.begin, first);
    assert_ok(loom_dp_reduce_only(f.dp, 1, &result));
    assert_ok(loom_weights_gather(f.mesh, &f.params, LOOM_WEIGHTS_GRADIENTS, check_gradient, NULL));
    close_layer(&f);
}

/* The balance loss alone: dy is 0. Gradients are those of the mean times the count of tokens whose loss counts. */
static void check_op_balance(loom_comm *world, loom_stream *stream)
{
    fixture f = open_layer(world, stream, op.layout, &op.moe, D, B / op.layout.dp, S);
    int64_t first;
    loom_range mine = my_tokens(&f, &first);
    int64_t tokens = mine.end - mine.begin;
    const float *x = op_tensor("in.x") + mine.begin * D;
    float y[T * D], dx[T * D], zeros[T * D] = {0};
    double want[T * D], value, sum, losses = 7.5, scale = losses * op.layout.dp;
    loom_dp_result result;

    set_weights(&f);
    assert_ok(loom_dp_begin(f.dp));
    assert_ok(loom_ep_begin(f.ep, losses));
    forward(&f, x, tokens, first, y);
    backward(&f, x, zeros, dx);
    for (int64_t i = 0; i < tokens * D; i++)
        want[i] = scale * (double)op_tensor("out.aux_dx")[mine.begin * D + i];
    assert_close("dx of the balance loss", dx, want, tokens * D, BALANCE_LIMIT);
    assert_ok(loom_moe_balance(f.layer, f.record, &value));
    sum = value / op.layout.dp;
    assert_ok(loom_all_reduce(f.mesh->axis[LOOM_AXIS_DP], &sum, &sum, 1, LOOM_F64, LOOM_SUM, stream));
    assert_ok(loom_stream_wait(stream));
    assert_true(fabs(sum - op_tensor("out.aux")[0]) < 1e-6);
    assert_ok(loom_dp_reduce_only(f.dp, 1, &result));
    assert_ok(loom_weights_gather(f.mesh, &f.params, LOOM_WEIGHTS_GRADIENTS, check_gradient, &scale));
    close_layer(&f);
}

/* Alone there is nothing to dispatch. */
static void by_both_dispatchers(int ranks, rank_fn *check)
{
    on_ranks(ranks, check);
    if (op.layout.ep * op.layout.etp == 1)
        return;
    ep_config.dispatcher = LOOM_EP_ALLGATHER;
    on_ranks(ranks, check);
    ep_config.dispatcher = LOOM_EP_ALLTOALL;
}

/* Every fold of the experts over tp x dp ranks, by one or both dispatchers (the balance loss travels by neither). The switch loss is that of one micro-batch, so it is checked where one rank of dp has it all. */
static void in_every_fold(rank_fn *check, int most_dp, bool both)
{
    for (int tp = 1; tp <= 4; tp *= 2)
        for (int dp = 1; dp <= most_dp && tp * dp <= 4; dp *= 2)
            for (int ep = 1; ep <= tp * dp; ep *= 2)
                for (int etp = 1; ep * etp <= tp * dp; etp++) {
                    if (tp * dp % (ep * etp) != 0)
                        continue;
                    op.layout = (loom_layout){.tp = tp, .dp = dp, .ep = ep, .etp = etp};
                    if (both)
                        by_both_dispatchers(tp * dp, check);
                    else
                        on_ranks(tp * dp, check);
                }
}

static void softmax_layer_meets_the_fixture_in_every_fold(void **state)
{
    (void)state;
    open_op("moe_softmax", &softmax_moe);
    in_every_fold(check_op, 2, true);
    op.moe.balance_coefficient = 1;
    in_every_fold(check_op_balance, 1, false);
    tensors_drop(&op.file);
}

static void sigmoid_layer_meets_the_fixture_in_every_fold(void **state)
{
    (void)state;
    open_op("moe_sigmoid", &sigmoid_moe);
    in_every_fold(check_op, 2, true);
    op.moe.balance_coefficient = 1;
    in_every_fold(check_op_balance, 2, false);
    tensors_drop(&op.file);
}

static void weights_that_come_later_meet_the_fixture_in_every_fold(void **state)
{
    (void)state;
    ep_config.split_backward = true;
    open_op("moe_softmax", &softmax_moe);
    in_every_fold(check_op, 2, true);
    tensors_drop(&op.file);
    ep_config.split_backward = false;
}

static void whole_backward(loom_comm *world, loom_stream *stream)
{
    fixture f = open_layer(world, stream, (loom_layout){0}, &softmax_moe, D, 1, S);

    assert_refused(loom_moe_backward_weight(f.layer, f.record), LOOM_E_INVALID, "split_backward");
    close_layer(&f);
}

static void weights_of_a_whole_backward_are_not_made_twice(void **state)
{
    (void)state;
    on_ranks(1, whole_backward);
}

/* --- case A12: the unit of the balance loss ---------------------------------------------------------------------------------------------- */

static loom_moe a12 = {.experts = 2, .top_k = 1, .ffn = 4, .groups = 1, .groups_kept = 1, .route_scale = 1, .balance_coefficient = 1};

static void balance_of_eight_tokens(loom_comm *world, loom_stream *stream)
{
    static const double p0[8] = {0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2, 0.1};
    bool sequence = a12.balance == LOOM_BALANCE_SEQUENCE;
    fixture f = open_layer(world, stream, (loom_layout){.tp = loom_comm_size(world)}, &a12, 2, 2, 4);
    loom_range own = loom_moe_own_tokens(f.ep, 8);
    float x[16], y[16], dx[16], zeros[16] = {0};
    double value;

    assert_ok(loom_dp_begin(f.dp));
    memcpy(f.params.at[0]->value, (float[]){1, 0, 0, 1}, 4 * sizeof(float)); /* logits are x */
    for (int t = 0; t < 8; t++) {
        x[2 * t] = (float)log(p0[t]);
        x[2 * t + 1] = (float)log(1 - p0[t]);
    }
    forward(&f, x + 2 * own.begin, own.end - own.begin, own.begin, y);
    backward(&f, x + 2 * own.begin, zeros, dx);
    assert_ok(loom_moe_balance(f.layer, f.record, &value));
    assert_true(fabs(value - (sequence ? 1.5 : 1.0)) < 1e-6);
    for (int64_t t = own.begin; t < own.end; t++) { /* of tokens x 2/unit^2 x sum over experts of n_e sum of p_e */
        double n0 = sequence ? (t < 4 ? 4 : 0) : 4, unit = sequence ? 4 : 8, n1 = unit - n0;
        double want = 2 / unit * p0[t] * (1 - p0[t]) * (n0 - n1);

        assert_true(fabs(dx[2 * (t - own.begin)] - want) < 1e-6);
        assert_true(fabs(dx[2 * (t - own.begin) + 1] + want) < 1e-6);
    }
    close_layer(&f);
}

static void balance_loss_has_the_value_of_its_definition_however_tokens_are_split(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        a12.balance = LOOM_BALANCE_SWITCH;
        on_ranks(ranks, balance_of_eight_tokens);
        a12.balance = LOOM_BALANCE_SEQUENCE;
        on_ranks(ranks, balance_of_eight_tokens);
    }
}

/* --- case B05: ranks whose experts get no token, ranks that have none ------------------------------------------------------------------------ */

enum { HIDDEN = 6, FFN = 5, TOKENS = 8, RANKS = 4 };

static const loom_moe b05 = {.experts = RANKS, .top_k = 1, .ffn = FFN, .router = LOOM_ROUTER_SIGMOID, .groups = 1, .groups_kept = 1, .route_scale = 1,
                             .selection_bias = true, .bias_speed = 0.001};

static float token_value(int rank, int64_t i)
{
    return 0.1f + (float)((rank * 31 + i * 17) % 23) / 23; /* positive, so that all go to expert 0 */
}

static fixture open_b05(loom_comm *world, loom_stream *stream, int ep)
{
    fixture f = open_layer(world, stream, (loom_layout){.dp = RANKS, .ep = ep}, &b05, HIDDEN, 1, TOKENS);

    for (int64_t i = 0; i < RANKS * HIDDEN; i++)
        f.params.at[0]->value[i] = i < HIDDEN ? 1.0f : -1.0f;
    assert_ok(loom_dp_begin(f.dp));
    assert_ok(loom_ep_begin(f.ep, 0));
    return f;
}

static void run_b05(fixture *f, int64_t tokens, float *y, float *dx)
{
    float x[TOKENS * HIDDEN], dy[TOKENS * HIDDEN];
    int rank = loom_comm_rank(f->mesh->world);

    for (int64_t i = 0; i < TOKENS * HIDDEN; i++) {
        x[i] = token_value(rank, i);
        dy[i] = token_value(rank + 7, i);
    }
    forward(f, x, tokens, 0, y);
    backward(f, x, dy, dx);
}

static loom_status only_expert_0_has_gradients(void *context, const loom_shard *spec, const float *data)
{
    double sum = 0;

    for (int64_t i = 0; i < loom_shard_global_count(spec); i++)
        sum += fabs(data[i]);
    ++*(int *)context;
    if (strncmp(spec->name, "e.", 2) == 0)
        assert_true(strncmp(spec->name, "e.0.", 4) == 0 ? sum > 0 : sum == 0);
    return LOOM_OK;
}

static void check_calls(const fixture *f)
{
    loom_traffic traffic;
    int64_t calls[2] = {0, 0}, most[2];

    loom_comm_traffic(f->mesh->axis[LOOM_AXIS_EP], &traffic);
    for (int kind = 0; kind < LOOM_CALL_KINDS; kind++)
        calls[0] += (int64_t)traffic.calls[kind];
    calls[1] = -calls[0];
    assert_ok(loom_all_reduce(f->mesh->world, calls, most, 2, LOOM_I64, LOOM_MAX, f->stream));
    assert_ok(loom_stream_wait(f->stream));
    assert_true(calls[0] > 0 && most[0] == -most[1]);
}

/* Every token goes to each of the others, with its choice and its weight, and so do gradients; sums come back, and the gradients of weights. */
static void check_gathered_traffic(const fixture *f, const int64_t tokens[RANKS])
{
    int64_t own = tokens[loom_comm_rank(f->mesh->world)], others = tokens[0] + tokens[1] + tokens[2] + tokens[3] - own;
    loom_traffic traffic;

    loom_comm_traffic(f->mesh->axis[LOOM_AXIS_EP], &traffic);
    assert_int_equal(traffic.bytes[LOOM_CALL_ALL_TO_ALL_V], 4 * ((RANKS - 1) * own * (2 * HIDDEN + 2) + others * (2 * HIDDEN + 1)));
    assert_int_equal(traffic.bytes[LOOM_CALL_ALL_TO_ALL], 0);
    assert_int_equal(traffic.bytes[LOOM_CALL_ALL_GATHER], (RANKS - 1) * (int64_t)sizeof(int32_t));
}

/* Rows of others cross over, each way in forward and in backward; nothing else but counts. */
static void check_traffic(const fixture *f, const int64_t tokens[RANKS])
{
    int rank = loom_comm_rank(f->mesh->world);
    int64_t away = rank == 0 ? tokens[1] + tokens[2] + tokens[3] : tokens[rank];
    loom_traffic traffic;

    loom_comm_traffic(f->mesh->axis[LOOM_AXIS_EP], &traffic);
    assert_int_equal(traffic.bytes[LOOM_CALL_ALL_TO_ALL_V], 2 * away * HIDDEN * (int64_t)sizeof(float));
    assert_int_equal(traffic.bytes[LOOM_CALL_ALL_TO_ALL], (RANKS - 1) * (int64_t)sizeof(int32_t));
}

static void all_to_expert_0(loom_comm *world, loom_stream *stream, const int64_t tokens[RANKS])
{
    int rank = loom_comm_rank(world), tensors_seen = 0;
    bool gathers = ep_config.dispatcher == LOOM_EP_ALLGATHER;
    float y[2][TOKENS * HIDDEN], dx[2][TOKENS * HIDDEN];
    fixture spread = open_b05(world, stream, RANKS), alone;
    loom_dp_result result;
    loom_ep_load load;

    run_b05(&spread, tokens[rank], y[0], dx[0]);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(loom_moe_sent(spread.record)[r], r == 0 || gathers ? tokens[rank] : 0);
        assert_int_equal(loom_moe_received(spread.record)[r], rank == 0 || gathers ? tokens[r] : 0);
    }
    check_calls(&spread);
    if (gathers)
        check_gathered_traffic(&spread, tokens);
    else
        check_traffic(&spread, tokens);
    assert_ok(loom_dp_reduce_only(spread.dp, 1, &result));
    assert_ok(loom_weights_gather(spread.mesh, &spread.params, LOOM_WEIGHTS_GRADIENTS, only_expert_0_has_gradients, &tensors_seen));
    assert_int_equal(tensors_seen, rank == 0 ? 2 + 3 * RANKS : 0);
    assert_ok(loom_ep_finish(spread.ep, &load));
    assert_true(load.most == RANKS && load.idle == 1 - 1.0 / RANKS);
    for (int e = 0; e < RANKS; e++)
        assert_true(fabs(spread.params.at[1]->value[e] - (e == 0 ? -0.001 : 0.001)) < 1e-9);
    close_layer(&spread);

    alone = open_b05(world, stream, 1);
    run_b05(&alone, tokens[rank], y[1], dx[1]);
    for (int64_t i = 0; i < tokens[rank] * HIDDEN; i++) {
        assert_true(fabs(y[0][i] - y[1][i]) <= 1e-6);
        assert_true(fabs(dx[0][i] - dx[1][i]) <= 1e-6);
    }
    close_layer(&alone);
}

static void every_rank_has_tokens(loom_comm *world, loom_stream *stream)
{
    all_to_expert_0(world, stream, (int64_t[]){8, 8, 8, 8});
}

static void one_rank_has_none(loom_comm *world, loom_stream *stream)
{
    all_to_expert_0(world, stream, (int64_t[]){8, 0, 8, 8});
}

static void no_rank_has_any(loom_comm *world, loom_stream *stream)
{
    fixture f = open_b05(world, stream, RANKS);
    float nothing[TOKENS * HIDDEN];

    run_b05(&f, 0, nothing, nothing);
    close_layer(&f);
}

static void a_rank_without_tokens_takes_part_in_every_call(void **state)
{
    (void)state;
    op.layout = (loom_layout){.ep = RANKS, .etp = 1};
    by_both_dispatchers(RANKS, every_rank_has_tokens);
    by_both_dispatchers(RANKS, one_rank_has_none);
    by_both_dispatchers(RANKS, no_rank_has_any);
}

/* --- the drop rule -------------------------------------------------------------------------------------------------------------------------- */

/* The weights of a token's choices by the fixture's softmax router. */
static void weigh(const double *x, const int32_t *ids, double *weight)
{
    const float *router = op_tensor("in.router");
    double sum = 0;

    for (int64_t j = 0; j < op.moe.top_k; j++) {
        weight[j] = 0;
        for (int64_t i = 0; i < D; i++)
            weight[j] += router[ids[j] * D + i] * x[i];
        weight[j] = exp(weight[j]);
        sum += weight[j];
    }
    for (int64_t j = 0; j < op.moe.top_k; j++)
        weight[j] /= sum;
}

/* y += weight * what expert e makes of x. */
static void add_expert(const double *x, int32_t e, double weight, double *y)
{
    int64_t F = op.moe.ffn;
    const float *gate = op_tensor("in.gate") + e * F * D, *up = op_tensor("in.up") + e * F * D, *down = op_tensor("in.down") + e * F * D;

    for (int64_t f = 0; f < F; f++) {
        double g = 0, u = 0;

        for (int64_t i = 0; i < D; i++) {
            g += gate[f * D + i] * x[i];
            u += up[f * D + i] * x[i];
        }
        for (int64_t i = 0; i < D; i++)
            y[i] += weight * g / (1 + exp(-g)) * u * down[i * F + f];
    }
}

static void token_result(const double *x, const int32_t *ids, const int32_t *kept, double *y)
{
    double weight[8];

    memset(y, 0, D * sizeof *y);
    weigh(x, ids, weight);
    for (int64_t j = 0; j < op.moe.top_k; j++)
        if (kept[j] >= 0)
            add_expert(x, ids[j], weight[j], y);
}

/* dx by central differences of sum(dy y), the choice staying as it is. */
static void token_gradient(double *x, const int32_t *ids, const int32_t *kept, const float *dy, double *dx)
{
    for (int64_t i = 0; i < D; i++) {
        double at = x[i], y[2][D];

        dx[i] = 0;
        x[i] = at + 1e-5, token_result(x, ids, kept, y[0]);
        x[i] = at - 1e-5, token_result(x, ids, kept, y[1]);
        x[i] = at;
        for (int64_t d = 0; d < D; d++)
            dx[i] += dy[d] * (y[0][d] - y[1][d]) / 2e-5;
    }
}

/* The rule, in so many words: each sequence in order, each token's best choice first, and an expert takes what it has room for. */
static int64_t drop(const int32_t *ids, int64_t room, int32_t *kept)
{
    int64_t dropped = 0;

    for (int64_t b = 0; b < B; b++) {
        int64_t taken[E] = {0};

        for (int64_t i = b * S * op.moe.top_k; i < (b + 1) * S * op.moe.top_k; i++) {
            kept[i] = taken[ids[i]]++ < room ? ids[i] : -1;
            dropped += kept[i] < 0;
        }
    }
    return dropped;
}

enum { MOST_CHOICES = T * 3 };

/* Zigzag over cp: of rank r the chunks r and 2 cp - 1 - r. */
static void zigzag(int cp, int32_t *positions)
{
    int chunk = S / (2 * cp), at = 0;

    for (int r = 0; r < cp && cp > 1; r++)
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < chunk; i++)
                positions[at++] = (half == 0 ? r : 2 * cp - 1 - r) * chunk + i;
    for (int i = 0; i < S && cp == 1; i++)
        positions[i] = i;
}

static void check_drop(loom_comm *world, loom_stream *stream)
{
    const loom_layout *l = &op.layout;
    int64_t sequences = B / l->dp, local = S / l->cp, first = 0, tokens, K = op.moe.top_k;
    fixture f = open_layer(world, stream, *l, &op.moe, D, sequences, local);
    const int32_t *ids = (const int32_t *)(const void *)op_tensor("out.expert_ids");
    int32_t positions[S], kept[MOST_CHOICES], want_kept[MOST_CHOICES];
    int64_t dropped = drop(ids, 3, kept); /* ceil(0.75 x 12 x 2 / 8) */
    float x[T * D], dy[T * D], y[T * D], dx[T * D];
    double want_y[T * D], want_dx[T * D];
    loom_range own = loom_moe_own_tokens(f.ep, sequences * local);
    loom_dp_result result;
    loom_ep_load load;

    if (l->sequence_parallel)
        own = loom_cut(sequences * local, l->tp, f.mesh->here.at[LOOM_AXIS_TP]);
    zigzag(l->cp, positions);
    assert_ok(loom_ep_reshape(f.ep, &(loom_ep_shape){.sequences = sequences, .seq = local, .positions_CS = positions}));
    set_weights(&f);
    assert_ok(loom_dp_begin(f.dp));
    assert_ok(loom_ep_begin(f.ep, 0));
    tokens = own.end - own.begin;
    first = own.begin;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t row = first + t, b = f.mesh->here.at[LOOM_AXIS_DP] * sequences + row / local;
        int64_t global = b * S + positions[f.mesh->here.at[LOOM_AXIS_CP] * local + row % local];
        double wide[D];

        for (int64_t i = 0; i < D; i++) {
            wide[i] = x[t * D + i] = op_tensor("in.x")[global * D + i];
            dy[t * D + i] = op_tensor("in.dy")[global * D + i];
        }
        memcpy(want_kept + t * K, kept + global * K, (size_t)K * sizeof *kept);
        token_result(wide, ids + global * K, kept + global * K, want_y + t * D);
        token_gradient(wide, ids + global * K, kept + global * K, dy + t * D, want_dx + t * D);
    }
    forward(&f, x, tokens, first, y);
    for (int64_t i = 0; i < tokens * K; i++)
        assert_int_equal(loom_moe_kept(f.record)[i], want_kept[i]);
    assert_close("y", y, want_y, tokens * D, LIMIT);
    backward(&f, x, dy, dx);
    assert_close("dx", dx, want_dx, tokens * D, LIMIT);
    assert_ok(loom_dp_reduce_only(f.dp, 1, &result));
    assert_ok(loom_ep_finish(f.ep, &load));
    assert_true(dropped > 0 && fabs(load.dropped - (double)dropped / (double)(T * K)) < 1e-12);
    close_layer(&f);
}

static void what_is_dropped_depends_on_the_order_of_the_sequence_alone(void **state)
{
    static const loom_layout layouts[] = {
        {.tp = 1, .cp = 1, .dp = 1, .ep = 1, .etp = 1},
        {.tp = 1, .cp = 2, .dp = 1, .ep = 2, .etp = 1},
        {.tp = 2, .cp = 1, .dp = 1, .ep = 2, .etp = 1},
        {.tp = 1, .cp = 3, .dp = 1, .ep = 1, .etp = 3},
        {.tp = 2, .cp = 2, .dp = 1, .ep = 2, .etp = 2},
        {.tp = 2, .cp = 1, .dp = 2, .ep = 4, .etp = 1, .sequence_parallel = true},
        {.tp = 2, .cp = 2, .dp = 1, .ep = 4, .etp = 1, .sequence_parallel = true},
    };

    (void)state;
    open_op("moe_softmax", &softmax_moe);
    op.moe.balance = LOOM_BALANCE_NONE;
    ep_config.capacity_factor = 0.75;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        op.layout = layouts[i];
        by_both_dispatchers(op.layout.tp * op.layout.cp * op.layout.dp, check_drop);
    }
    ep_config.capacity_factor = 0;
    tensors_drop(&op.file);
}

/* --- growth, repetition, refusals --------------------------------------------------------------------------------------------------------- */

static void same_bits_twice(loom_comm *world, loom_stream *stream)
{
    float y[2][TOKENS * HIDDEN], dx[2][TOKENS * HIDDEN];

    for (int run = 0; run < 2; run++) {
        fixture f = open_b05(world, stream, 2);

        run_b05(&f, 3 + loom_comm_rank(world), y[run], dx[run]);
        close_layer(&f);
    }
    assert_memory_equal(y[0], y[1], (size_t)(3 + loom_comm_rank(world)) * HIDDEN * sizeof(float));
    assert_memory_equal(dx[0], dx[1], (size_t)(3 + loom_comm_rank(world)) * HIDDEN * sizeof(float));
}

static void two_runs_agree_to_the_bit(void **state)
{
    (void)state;
    op.layout = (loom_layout){.ep = 2, .etp = 1};
    by_both_dispatchers(RANKS, same_bits_twice);
}

static void three_do_not_share_eight(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 3, .ep = 3, .seq = 24}, NULL);
    loom_kernels *kernels;
    loom_ep *ep;
    loom_moe_layer *layer;
    loom_param_list params = {0};

    assert_ok(loom_kernels_open(loom_comm_device(world), NULL, &kernels));
    assert_ok(loom_ep_open(mesh, kernels, stream, NULL, &ep));
    assert_refused(loom_moe_layer_open(ep, &(loom_moe_layer_config){.moe = &softmax_moe, .hidden = D, .experts = "layer"}, &params, &layer),
                   LOOM_E_INVALID, "layer", "ep=3", "8 experts");
    loom_ep_close(ep);
    loom_kernels_close(kernels);
    loom_mesh_close(mesh);
}

static void experts_that_ranks_cannot_share_are_refused(void **state)
{
    (void)state;
    on_ranks(3, three_do_not_share_eight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_layer_meets_the_fixture_in_every_fold),
        cmocka_unit_test(sigmoid_layer_meets_the_fixture_in_every_fold),
        cmocka_unit_test(weights_that_come_later_meet_the_fixture_in_every_fold),
        cmocka_unit_test(weights_of_a_whole_backward_are_not_made_twice),
        cmocka_unit_test(balance_loss_has_the_value_of_its_definition_however_tokens_are_split),
        cmocka_unit_test(a_rank_without_tokens_takes_part_in_every_call),
        cmocka_unit_test(what_is_dropped_depends_on_the_order_of_the_sequence_alone),
        cmocka_unit_test(two_runs_agree_to_the_bit),
        cmocka_unit_test(experts_that_ranks_cannot_share_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
