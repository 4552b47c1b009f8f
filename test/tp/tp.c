/* Tensor parallelism by itself: what is split by columns, rows and vocabulary gives what one rank gives, and misuse is refused. */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"

#include <rankloom/dp.h>
#include <rankloom/tp.h>

#include <math.h>

typedef struct fixture {
    loom_mesh *mesh;
    loom_kernels *kernels;
    loom_stream *stream;
    loom_tp *tp;
} fixture;

static fixture open_tp(loom_comm *world, loom_stream *stream, bool sequence_parallel)
{
    fixture f = {.stream = stream};

    f.mesh = test_mesh(world, (loom_layout){.tp = loom_comm_size(world), .seq = 12, .sequence_parallel = sequence_parallel}, NULL);
    assert_ok(loom_kernels_open(loom_comm_device(world), NULL, &f.kernels));
    assert_ok(loom_tp_open(f.mesh, f.kernels, stream, &f.tp));
    return f;
}

static void close_tp(fixture *f)
{
    loom_tp_close(f->tp);
    loom_kernels_close(f->kernels);
    loom_mesh_close(f->mesh);
}

static void assert_near(double value, double want, double tolerance)
{
    if (!(fabs(value - want) <= tolerance))
        fail_msg("%.9g is not %.9g (within %.2g)", value, want, tolerance);
}

/* --- cross-entropy: cases A03 and A04 ---------------------------------------------------------------------------------------------- */

static void sharded_logits(loom_comm *world, loom_stream *stream)
{
    static const float logits[4] = {1, -1, 0.5f, 2};
    static const double gradient[4] = {0.224207818, 0.0303432286, -0.8640110842, 0.6094600376};
    fixture f = open_tp(world, stream, false);
    int64_t columns = loom_tp_vocab_rows(f.tp, 4), first = f.tp->rank * columns;
    float mine[4], loss, scratch[4];

    for (int64_t i = 0; i < columns; i++)
        mine[i] = first + i < 4 ? logits[first + i] : 1e30f; /* padding must not be read */
    assert_ok(loom_tp_cross_entropy(f.tp, 4, columns, mine, &(int32_t){2}, 1, NULL, &loss, scratch));
    assert_ok(loom_stream_wait(stream));
    assert_near(loss, 1.9951818981, 2e-6);
    for (int64_t i = 0; i < columns && first + i < 4; i++)
        assert_near(mine[i], gradient[first + i], 1e-6);
    close_tp(&f);
}

static void cross_entropy_of_sharded_logits_is_that_of_one_rank(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        on_ranks(ranks, sharded_logits);
}

static void gathered_logits(loom_comm *world, loom_stream *stream)
{
    fixture f = open_tp(world, stream, false);
    float whole[4] = {1, -1, 0.5f, 2}, loss, scratch[4];

    assert_refused(loom_tp_cross_entropy(f.tp, 4, 4, whole, &(int32_t){2}, 1, NULL, &loss, scratch), LOOM_E_INVALID, "4 columns", "tp=2", "has 2");
    close_tp(&f);
}

static void gathered_logits_are_refused(void **state)
{
    (void)state;
    on_ranks(2, gathered_logits);
}

static void zero_logits_of_five(loom_comm *world, loom_stream *stream)
{
    static const int64_t padded[5] = {0, 5, 6, 6, 8};
    fixture f = open_tp(world, stream, false);
    int64_t columns = loom_tp_vocab_rows(f.tp, 5);
    float mine[5] = {0}, loss, scratch[4];

    assert_int_equal(columns * f.tp->size, padded[f.tp->size]);
    assert_ok(loom_tp_cross_entropy(f.tp, 5, columns, mine, &(int32_t){3}, 1, NULL, &loss, scratch));
    assert_ok(loom_stream_wait(stream));
    assert_near(loss, 1.6094379124, 1e-6);
    close_tp(&f);
}

static void padding_does_not_enter_the_softmax(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        on_ranks(ranks, zero_logits_of_five);
}

/* --- linear layers -------------------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 12, IN = 10, WIDE = 7 }; /* 7 columns over 2 and 3 ranks: uneven shards */

static float element(int seed, int64_t index)
{
    uint32_t z = (uint32_t)(index + 1) * 2654435761u + (uint32_t)seed * 40503u;

    z = (z ^ (z >> 15)) * 2246822519u;
    return (float)((z ^ (z >> 13)) % 2001) / 1000 - 1;
}

static double weight1(int64_t out, int64_t in)
{
    return element(1, out * IN + in);
}

static double weight2(int64_t out, int64_t in)
{
    return element(2, out * WIDE + in);
}

static void fill(loom_param *param, int seed)
{
    int64_t count = loom_shard_local_count(&param->shard);

    for (int64_t i = 0; i < count; i++)
        param->value[i] = element(seed, loom_shard_global_index(&param->shard, i));
}

/* y = W2 (W1 x) in f64 loops, and dx for dy = element(4). */
static double reference_y(int64_t t, int64_t out)
{
    double y = 0;

    for (int64_t w = 0; w < WIDE; w++) {
        double h = 0;

        for (int64_t i = 0; i < IN; i++)
            h += weight1(w, i) * element(3, t * IN + i);
        y += weight2(out, w) * h;
    }
    return y;
}

static double reference_dx(int64_t t, int64_t in)
{
    double dx = 0;

    for (int64_t w = 0; w < WIDE; w++) {
        double dh = 0;

        for (int64_t o = 0; o < IN; o++)
            dh += weight2(o, w) * element(4, t * IN + o);
        dx += weight1(w, in) * dh;
    }
    return dx;
}

/* A layer by columns and one by rows behind it, with weights 1 and 2. */
static void open_pair(const fixture *f, loom_stream *stream, loom_linear *up, loom_linear *down, loom_param_list *params, loom_dp **dp)
{
    assert_ok(loom_linear_init(up, f->tp, &(loom_linear_config){LOOM_LINEAR_COLUMN, "up", IN, WIDE}));
    assert_ok(loom_linear_init(down, f->tp, &(loom_linear_config){LOOM_LINEAR_ROW, "down", WIDE, IN}));
    assert_ok(loom_linear_declare(up, params));
    assert_ok(loom_linear_declare(down, params));
    assert_ok(loom_dp_open(f->mesh, params, &(loom_dp_config){.adamw = {0.9, 0.95, 1e-8, 0, 0}}, stream, dp));
    fill(&up->weight, 1);
    fill(&down->weight, 2);
}

/* Rows of x and of the gradient of y, from row `first` on. */
static void fill_rows(float *x, float *dy, int64_t first, int64_t rows)
{
    for (int64_t i = 0; i < rows * IN; i++) {
        x[i] = element(3, first * IN + i);
        dy[i] = element(4, first * IN + i);
    }
}

static void column_then_row(loom_comm *world, loom_stream *stream, bool sequence_parallel)
{
    fixture f = open_tp(world, stream, sequence_parallel);
    loom_linear up, down;
    loom_param_list params = {0};
    loom_dp *dp;
    float x[TOKENS * IN], full[TOKENS * IN], partial[TOKENS * IN], wide[TOKENS * WIDE], y[TOKENS * IN], dy[TOKENS * IN], dx[TOKENS * IN];
    int64_t local = loom_tp_local_tokens(f.tp, TOKENS), first = sequence_parallel ? f.tp->rank * local : 0;
    const float *seen;

    open_pair(&f, stream, &up, &down, &params, &dp);
    fill_rows(x, dy, first, local);
    assert_ok(loom_tp_enter(f.tp, x, TOKENS, IN, full, &seen));
    assert_ok(loom_linear_forward(&up, seen, TOKENS, wide, 0));
    assert_ok(loom_linear_forward(&down, wide, TOKENS, partial, 0));
    assert_ok(loom_tp_leave(f.tp, partial, TOKENS, IN, y));
    assert_ok(loom_stream_wait(stream));
    for (int64_t i = 0; i < local * IN; i++)
        assert_near(y[i], reference_y(first + i / IN, i % IN), 1e-5);

    assert_ok(loom_tp_leave_backward(f.tp, dy, TOKENS, IN, full, &seen));
    assert_ok(loom_linear_backward_input(&down, seen, 0, TOKENS, wide, false));
    assert_ok(loom_linear_backward_input(&up, wide, 0, TOKENS, partial, false));
    assert_ok(loom_tp_enter_backward_begin(f.tp, partial, TOKENS, IN, dx));
    assert_ok(loom_tp_enter_backward_end(f.tp));
    assert_ok(loom_stream_wait(stream));
    for (int64_t i = 0; i < local * IN; i++)
        assert_near(dx[i], reference_dx(first + i / IN, i % IN), 1e-5);
    loom_dp_close(dp);
    loom_param_list_free(&params);
    close_tp(&f);
}

/* Weight gradients, in f64 loops over all tokens. */
static double reference_dw(const loom_shard *shard, int64_t index)
{
    int64_t columns = shard->shape[1], out = index / columns, in = index % columns;
    bool up = shard->shape[0] == WIDE;
    double dw = 0;

    for (int64_t t = 0; t < TOKENS; t++) {
        double dy = 0, x = 0;

        for (int64_t i = 0; i < IN; i++) {
            dy += up ? weight2(i, out) * element(4, t * IN + i) : 0;
            x += up ? 0 : weight1(in, i) * element(3, t * IN + i);
        }
        dw += up ? dy * element(3, t * IN + in) : element(4, t * IN + out) * x;
    }
    return dw;
}

static void check_weight_gradient(const loom_param *param)
{
    for (int64_t i = 0; i < loom_shard_local_count(&param->shard); i++)
        assert_near(param->gradient[i], reference_dw(&param->shard, loom_shard_global_index(&param->shard, i)), 3e-5);
}

/* The way in, the way out, and the way out's backward: chunks send together what one call would, (n-1)/n of [TOKENS, IN] each, twice that where whole rows are
 * summed and nothing is gathered. Six or four tokens of a rank are not cut into four or three: the next smaller number is taken. */
static void check_border_traffic(const fixture *f, bool sequence_parallel, int chunks)
{
    int n = f->tp->size, tokens = sequence_parallel ? TOKENS / n : TOKENS;
    size_t whole = (size_t)(TOKENS * IN) * sizeof(float) * (size_t)(n - 1) / (size_t)n;
    loom_traffic traffic;
    uint64_t calls = 0, bytes = 0;

    for (; tokens % chunks != 0; chunks--)
        ;
    loom_comm_traffic(f->mesh->axis[LOOM_AXIS_TP], &traffic);
    for (int kind = 0; kind < LOOM_CALL_KINDS; kind++) {
        calls += traffic.calls[kind];
        bytes += traffic.bytes[kind];
    }
    assert_in_range(bytes, (sequence_parallel ? 3 : 2) * whole - calls, (sequence_parallel ? 3 : 2) * whole); /* each call rounds down */
    assert_int_equal(calls, n == 1 ? 0 : sequence_parallel ? 3 * chunks : chunks);
}

/* The same by the calls that take the border of a region and the product beside it together, in up to `chunks` chunks; and the weight gradients. */
static void borders_with_products(loom_comm *world, loom_stream *stream, bool sequence_parallel, int chunks)
{
    fixture f = open_tp(world, stream, sequence_parallel);
    loom_linear up, down, *ups[] = {&up};
    loom_param_list params = {0};
    loom_dp *dp;
    float x[TOKENS * IN], full[TOKENS * IN], d_full[TOKENS * IN], partial[TOKENS * IN], wide[TOKENS * WIDE], d_wide[TOKENS * WIDE], y[TOKENS * IN],
        dy[TOKENS * IN], dx[TOKENS * IN];
    int64_t local = loom_tp_local_tokens(f.tp, TOKENS), first = sequence_parallel ? f.tp->rank * local : 0;
    const float *x_full, *dy_full;

    assert_int_equal(f.tp->chunks, chunks);
    open_pair(&f, stream, &up, &down, &params, &dp);
    loom_comm_reset_traffic(f.mesh->axis[LOOM_AXIS_TP]);
    fill_rows(x, dy, first, local);
    assert_ok(loom_tp_columns_forward(ups, 1, x, TOKENS, full, wide));
    assert_ok(loom_tp_row_forward(&down, wide, TOKENS, partial, y));
    assert_ok(loom_tp_row_backward(&down, dy, TOKENS, d_full, &dy_full, d_wide));
    check_border_traffic(&f, sequence_parallel, chunks);
    assert_ok(loom_linear_backward_weight(&down, wide, dy_full, 0, TOKENS));
    assert_ok(loom_tp_enter_begin(f.tp, x, TOKENS, IN, full, &x_full));
    assert_ok(loom_linear_backward_input(&up, d_wide, 0, TOKENS, partial, false));
    assert_ok(loom_tp_enter_end(f.tp));
    assert_ok(loom_tp_enter_backward_begin(f.tp, partial, TOKENS, IN, dx));
    assert_ok(loom_linear_backward_weight(&up, x_full, d_wide, 0, TOKENS));
    assert_ok(loom_tp_enter_backward_end(f.tp));
    assert_ok(loom_stream_wait(stream));
    for (int64_t i = 0; i < local * IN; i++) {
        assert_near(y[i], reference_y(first + i / IN, i % IN), 1e-5);
        assert_near(dx[i], reference_dx(first + i / IN, i % IN), 1e-5);
    }
    check_weight_gradient(&up.weight);
    check_weight_gradient(&down.weight);
    loom_dp_close(dp);
    loom_param_list_free(&params);
    close_tp(&f);
}

static void in_chunks(loom_comm *world, loom_stream *stream)
{
    char text[8];

    for (int chunks = 1; chunks <= 4; chunks++) {
        snprintf(text, sizeof text, "%d", chunks);
        assert_int_equal(setenv("RANKLOOM_TP_CHUNKS", text, 1), 0);
        borders_with_products(world, stream, false, chunks);
        borders_with_products(world, stream, loom_comm_size(world) > 1, chunks);
    }
}

static void borders_in_chunks_equal_two_plain_products(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        on_ranks(ranks, in_chunks);
}

static double sigmoid_of_gelu(double x)
{
    return 1 / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* GELU between the two layers as part of both products, borders of the region included, against its formula on what they give without it. */
static void gelu_between(loom_comm *world, loom_stream *stream, bool sequence_parallel)
{
    fixture f = open_tp(world, stream, sequence_parallel);
    loom_linear up, down, *ups[] = {&up};
    loom_param_list params = {0};
    loom_dp *dp;
    float x[TOKENS * IN], dy[TOKENS * IN], full[TOKENS * IN], plain[TOKENS * WIDE], before[TOKENS * WIDE], after[TOKENS * WIDE], d_plain[TOKENS * WIDE],
        d_before[TOKENS * WIDE];
    int64_t local = loom_tp_local_tokens(f.tp, TOKENS), first = sequence_parallel ? f.tp->rank * local : 0;
    const float *dy_full;

    open_pair(&f, stream, &up, &down, &params, &dp);
    fill_rows(x, dy, first, local);
    assert_ok(loom_tp_columns_forward(ups, 1, x, TOKENS, full, plain));
    assert_ok(loom_tp_column_forward_gelu(&up, x, TOKENS, full, before, after));
    assert_ok(loom_tp_row_backward(&down, dy, TOKENS, full, &dy_full, d_plain));
    assert_ok(loom_tp_row_backward_gelu(&down, dy, TOKENS, full, &dy_full, before, d_before));
    assert_ok(loom_stream_wait(stream));
    for (int64_t i = 0; i < TOKENS * up.out; i++) {
        double h = plain[i], s = sigmoid_of_gelu(h), slope = s + h * s * (1 - s) * 2 * 0.79788456080286535588 * (1 + 3 * 0.044715 * h * h);

        assert_near(before[i], h, 0);
        assert_near(after[i], h * s, 1e-6);
        assert_near(d_before[i], d_plain[i] * slope, 3e-6);
    }
    loom_dp_close(dp);
    loom_param_list_free(&params);
    close_tp(&f);
}

static void gelu_in_chunks(loom_comm *world, loom_stream *stream)
{
    for (int chunks = 1; chunks <= 2; chunks++) {
        assert_int_equal(setenv("RANKLOOM_TP_CHUNKS", chunks == 1 ? "1" : "2", 1), 0);
        gelu_between(world, stream, false);
        gelu_between(world, stream, loom_comm_size(world) > 1);
    }
}

static void gelu_is_part_of_the_products_around_it(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        on_ranks(ranks, gelu_in_chunks);
}

static void whole_rows(loom_comm *world, loom_stream *stream)
{
    column_then_row(world, stream, false);
}

static void own_rows(loom_comm *world, loom_stream *stream)
{
    column_then_row(world, stream, true);
}

static void columns_then_rows_equal_two_plain_products(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        on_ranks(ranks, whole_rows);
}

static void columns_then_rows_equal_two_plain_products_with_sequence_parallelism(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++)
        on_ranks(ranks, own_rows);
}

/* A backward in halves, of two micro-batches: weight gradients after the input gradients of both. What the weights' half multiplies is kept by
 * the caller: the wide layer's input, and both gradients. */
static void weights_after_inputs(loom_comm *world, loom_stream *stream)
{
    enum { HALF = TOKENS / 2 };
    fixture f = open_tp(world, stream, false);
    loom_linear up, down;
    loom_param_list params = {0};
    loom_dp *dp;
    float x[2][HALF * IN], wide[2][HALF * WIDE], d_wide[2][HALF * WIDE], dy[2][HALF * IN], dx[HALF * IN];

    open_pair(&f, stream, &up, &down, &params, &dp);
    for (int m = 0; m < 2; m++) {
        for (int64_t i = 0; i < HALF * IN; i++) {
            x[m][i] = element(3, m * HALF * IN + i);
            dy[m][i] = element(4, m * HALF * IN + i);
        }
        assert_ok(loom_linear_forward(&up, x[m], HALF, wide[m], 0));
        assert_ok(loom_linear_backward_input(&down, dy[m], 0, HALF, d_wide[m], false));
        assert_ok(loom_linear_backward_input(&up, d_wide[m], 0, HALF, dx, false));
    }
    for (int m = 0; m < 2; m++) {
        assert_ok(loom_linear_backward_weight(&down, wide[m], dy[m], 0, HALF));
        assert_ok(loom_linear_backward_weight(&up, x[m], d_wide[m], 0, HALF));
    }
    assert_ok(loom_stream_wait(stream));
    check_weight_gradient(&up.weight);
    check_weight_gradient(&down.weight);
    loom_dp_close(dp);
    loom_param_list_free(&params);
    close_tp(&f);
}

static void weight_gradients_may_come_after_all_input_gradients(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        on_ranks(ranks, weights_after_inputs);
}

static void eleven_tokens(loom_comm *world, loom_stream *stream)
{
    fixture f = open_tp(world, stream, true);
    float x[24] = {0}, full[24];
    const float *seen;

    assert_refused(loom_tp_enter(f.tp, x, 11, 2, full, &seen), LOOM_E_INVALID, "tp=2", "11 tokens", "10 and 12");
    close_tp(&f);
}

static void tokens_that_cannot_be_split_are_refused(void **state)
{
    (void)state;
    on_ranks(2, eleven_tokens);
}

static void kv_blocks(loom_comm *world, loom_stream *stream)
{
    fixture f = open_tp(world, stream, false);
    loom_linear k;
    loom_tp_block block = {4, 2}; /* two kv heads of two over four ranks */
    loom_range range = loom_tp_block_range(f.tp, &block);

    assert_int_equal(range.begin, f.tp->rank / 2 * 2);
    assert_int_equal(range.end, range.begin + 2);
    assert_ok(loom_linear_init(&k, f.tp, &(loom_linear_config){LOOM_LINEAR_COLUMN, "k", 3, 4, .blocks = {block}, .n_blocks = 1}));
    assert_int_equal(k.weight.shard.holders, 2);
    assert_int_equal(k.weight.shard.holder, f.tp->rank % 2);
    assert_int_equal(k.weight.shard.gradient, LOOM_GRADIENT_PARTIAL);
    assert_int_equal(k.weight.shard.shape[0], 4); /* the global size is carried, not rebuilt from local times ranks */
    close_tp(&f);
}

static void fewer_kv_heads_than_ranks_are_shared(void **state)
{
    (void)state;
    on_ranks(4, kv_blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_of_sharded_logits_is_that_of_one_rank),
        cmocka_unit_test(gathered_logits_are_refused),
        cmocka_unit_test(padding_does_not_enter_the_softmax),
        cmocka_unit_test(columns_then_rows_equal_two_plain_products),
        cmocka_unit_test(columns_then_rows_equal_two_plain_products_with_sequence_parallelism),
        cmocka_unit_test(borders_in_chunks_equal_two_plain_products),
        cmocka_unit_test(gelu_is_part_of_the_products_around_it),
        cmocka_unit_test(weight_gradients_may_come_after_all_input_gradients),
        cmocka_unit_test(tokens_that_cannot_be_split_are_refused),
        cmocka_unit_test(fewer_kv_heads_than_ranks_are_shared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
