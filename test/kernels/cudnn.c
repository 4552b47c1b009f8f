/* Attention by cuDNN's graphs, executed operation by operation by a double of it, against f64 loops: what is asked for is attention and its gradient, and what
 * cuDNN does not take is done by our own kernels.
 *
 * Rounding to bf16 is off by 2^-9 of a number at most. o has four such: of q or k through the scores, of v, of the probabilities, of o itself. Gradients have
 * those of do, of their scores and of themselves besides, and a difference (do v' - delta) of two numbers that carry theirs. */
#include "harness.h"
#include "ref.h"
#include "shim_maker.h"

#include "device/stream.h"
#include "kernels/cuda/shim/alone.h"

static const double OUTPUT = 4 * 0x1p-9, GRADIENT = 8 * 0x1p-9;

static const loom_cuda_choice CUDNN = {.own_gemm = true, .math = LOOM_GPU_BF16, .attention = LOOM_GPU_ATTENTION_CUDNN};

static int open_maker(void **state)
{
    (void)state;
    open_one_cuda_maker(4321, CUDNN, "cuDNN");
    return 0;
}

static int nothing_fails(void **state)
{
    (void)state;
    double_failing = NULL;
    return 0;
}

/* q, k and v side by side in one row a token, as a trainer has them; their gradients likewise. */
typedef struct attention {
    loom_attention_args args;
    loom_attention_backward_args backward;
    float *qkv, *d_qkv, *d_out;
    int64_t row, rows;
} attention;

static attention make_attention(loom_attention_args a, uint64_t seed)
{
    attention t = {.args = a};
    int64_t q_width = a.heads * a.head_dim, kv_width = a.kv_heads * a.head_dim, longest = a.q_seq > a.k_seq ? a.q_seq : a.k_seq;

    t.row = q_width + 2 * kv_width;
    t.rows = a.batch * longest;
    t.qkv = random_floats(t.rows * t.row, 1, seed);
    t.d_qkv = zero_floats(t.rows * t.row);
    t.d_out = random_floats(a.batch * a.q_seq * q_width, 1, seed + 1);
    t.args.q_BSHK = t.qkv;
    t.args.k_BSGK = t.qkv + q_width;
    t.args.v_BSGK = t.qkv + q_width + kv_width;
    t.args.q_at = t.args.k_at = t.args.v_at = (loom_bshk){.token = t.row, .sequence = longest * t.row};
    t.args.o_BSHK = zero_floats(a.batch * a.q_seq * q_width);
    t.args.lse_BHS = aligned_alloc(64, (size_t)(a.batch * a.heads * a.q_seq + 15) / 16 * 64); /* which cuDNN writes itself */
    assert_non_null(t.args.lse_BHS);
    t.backward = (loom_attention_backward_args){.forward = t.args,
                                                .do_BSHK = t.d_out,
                                                .dq_BSHK = t.d_qkv,
                                                .dk_BSGK = t.d_qkv + q_width,
                                                .dv_BSGK = t.d_qkv + q_width + kv_width,
                                                .dq_at = t.args.q_at,
                                                .dk_at = t.args.q_at,
                                                .dv_at = t.args.q_at};
    return t;
}

static void free_attention(attention *t)
{
    float *all[] = {t->qkv, t->d_qkv, t->d_out, t->args.o_BSHK};

    for (int i = 0; i < 4; i++)
        free_floats(all[i]);
    free(t->args.lse_BHS);
}

static loom_status forward_of(const attention *t)
{
    return makers->kernels->attention(makers->kernels, &t->args, makers->stream);
}

static loom_status backward_of(const attention *t)
{
    return makers->kernels->attention_backward(makers->kernels, &t->backward, makers->stream);
}

/* One tensor out of the fused rows, less what was there before. */
static void check_gradient(const attention *t, const char *what, const float *got, const double *expected, int64_t seq, int64_t width, double before)
{
    float *tight = zero_floats(t->args.batch * seq * width);

    for (int64_t i = 0; i < t->args.batch * seq; i++)
        for (int64_t j = 0; j < width; j++)
            tight[i * width + j] = (float)(got[i / seq * t->args.q_at.sequence + i % seq * t->row + j] - before);
    assert_near(makers->name, what, tight, expected, t->args.batch * seq * width, GRADIENT);
    free_floats(tight);
}

static void check_backward(attention *t, double before)
{
    const loom_attention_args *a = &t->args;
    int64_t q_width = a->heads * a->head_dim, kv_width = a->kv_heads * a->head_dim;
    double *dq = doubles(a->batch * a->q_seq * q_width), *dk = doubles(a->batch * a->k_seq * kv_width), *dv = doubles(a->batch * a->k_seq * kv_width);

    ref_attention_backward(a, t->d_out, dq, dk, dv);
    for (int64_t i = 0; i < t->rows * t->row; i++)
        t->d_qkv[i] = (float)before;
    t->backward.accumulate_dq = t->backward.accumulate_dkv = before != 0;
    assert_int_equal(backward_of(t), LOOM_OK);
    check_gradient(t, "dq", t->backward.dq_BSHK, dq, a->q_seq, q_width, before);
    check_gradient(t, "dk", t->backward.dk_BSGK, dk, a->k_seq, kv_width, before);
    check_gradient(t, "dv", t->backward.dv_BSGK, dv, a->k_seq, kv_width, before);
    free(dq);
    free(dk);
    free(dv);
}

static void check(loom_attention_args args, uint64_t seed)
{
    attention t = make_attention(args, seed);
    int64_t rows = args.batch * args.heads * args.q_seq, count = rows * args.head_dim;
    double *o = doubles(count), *lse = doubles(rows);

    ref_attention(&t.args, o, lse);
    assert_int_equal(forward_of(&t), LOOM_OK);
    assert_near(makers->name, "o", t.args.o_BSHK, o, count, OUTPUT);
    assert_near(makers->name, "lse", t.args.lse_BHS, lse, rows, 0x1p-9); /* about the logarithm of how many keys there are: the scores' errors are small beside it */
    check_backward(&t, 0);
    check_backward(&t, 1);
    free(o);
    free(lse);
    free_attention(&t);
}

static loom_attention_args shape(int64_t batch, int64_t heads, int64_t kv_heads, int64_t head_dim, bool causal)
{
    return (loom_attention_args){
        .batch = batch, .heads = heads, .kv_heads = kv_heads, .q_seq = 128, .k_seq = 128, .head_dim = head_dim, .mask = {.causal = causal}};
}

static void attention_and_its_gradient_are_right(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        check(shape(2, 2, 2, 8, causal), 1);
        check(shape(1, 4, 2, 16, causal), 2); /* two queries' heads to each of keys and values */
        check(shape(1, 3, 1, 24, causal), 3);
    }
    loom_attention_args scaled = shape(1, 2, 1, 8, true);
    scaled.scale = 0.2f;
    scaled.mask.q_start = scaled.mask.k_start = 128; /* a later part of a sequence */
    check(scaled, 4);
}

/* Queries of a later part of the sequence see every key of an earlier one: another count of keys than of queries, and nothing hidden. */
static void a_block_of_earlier_keys_needs_no_mask(void **state)
{
    loom_attention_args earlier = shape(1, 2, 2, 8, true);

    (void)state;
    earlier.k_seq = 256;
    earlier.mask.q_start = 256;
    check(earlier, 5);
}

static void what_cudnn_takes_is_what_it_executes(void **state)
{
    attention t = make_attention(shape(1, 2, 2, 8, true), 6);

    (void)state;
    double_failing = "cudnnBackendExecute";
    assert_refused(forward_of(&t), LOOM_E_UNSUPPORTED, "execute", "RANKLOOM_CUDA_ATTENTION=own");
    assert_refused(backward_of(&t), LOOM_E_UNSUPPORTED, "execute");
    free_attention(&t);
}

static void what_it_does_not_take_is_ours(void **state)
{
    static const int32_t positions[256], documents[256];
    loom_attention_args windowed = shape(1, 2, 2, 8, true), of_documents = windowed, dropped = windowed, odd_head = windowed, odd_length = windowed,
                        half_hidden = windowed, shifted = windowed;
    const loom_attention_args *all[] = {&windowed, &of_documents, &dropped, &odd_head, &odd_length, &half_hidden, &shifted};

    (void)state;
    windowed.mask.window = 64;
    of_documents.mask.q_documents_BS = of_documents.mask.k_documents_BS = documents;
    dropped.mask.q_positions_S = dropped.mask.k_positions_S = positions;
    odd_head.head_dim = 12;
    odd_length.q_seq = odd_length.k_seq = 100;
    half_hidden.mask.q_start = 64;
    double_failing = "cudnnBackendExecute";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        attention t = make_attention(*all[i], 7);
        float *own_lse = t.args.lse_BHS, *lse = zero_floats(256); /* off every boundary */
        if (all[i] == &shifted)
            t.args.lse_BHS = t.backward.forward.lse_BHS = lse;
        assert_int_equal(forward_of(&t), LOOM_OK);
        assert_int_equal(backward_of(&t), LOOM_OK);
        t.args.lse_BHS = own_lse;
        free_floats(lse);
        free_attention(&t);
    }
}

/* No such graph, no engine, none with one order of sums, none that comes about: each with a shape of its own, since what was found is kept. */
static void a_shape_without_an_engine_is_ours(void **state)
{
    static const char *const reasons[] = {"cudnnBackendFinalize of a graph", "cudnnBackendGetAttribute of heuristics", "a deterministic engine",
                                          "cudnnBackendFinalize of a plan"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        attention t = make_attention(shape(1, 1, 1, 8 * (i + 2), false), 8);
        double_failing = reasons[i];
        assert_int_equal(forward_of(&t), LOOM_OK);
        assert_int_equal(backward_of(&t), LOOM_OK);
        double_failing = "cudnnBackendExecute";
        assert_int_equal(forward_of(&t), LOOM_OK);
        assert_int_equal(backward_of(&t), LOOM_OK);
        free_attention(&t);
    }
}

static void without_cudnn_attention_is_ours_unless_it_is_insisted_on(void **state)
{
    static const char *const reasons[] = {"libcudnn.so.9", "cudnnGetVersion", "cudnnCreate"};
    attention t = make_attention(shape(1, 2, 2, 8, true), 9);
    loom_cuda_choice automatic = CUDNN;
    loom_kernels *none;

    automatic.attention = LOOM_GPU_ATTENTION_AUTO;
    for (int i = 0; i < 3; i++) {
        double_failing = reasons[i];
        assert_refused(open_shim(makers->kernels->device, 1, CUDNN, &none), LOOM_E_UNSUPPORTED, "cuDNN");
        close_makers(state);
        open_one_cuda_maker(4321, automatic, "no cuDNN");
        assert_int_equal(forward_of(&t), LOOM_OK);
        assert_int_equal(backward_of(&t), LOOM_OK);
    }
    free_attention(&t);
}

/* Calls of the shape that are cuDNN's: they fail. */
static int calls_by_cudnn(const attention *t, int calls)
{
    int count = 0;

    double_failing = "cudnnBackendExecute";
    for (int i = 0; i < calls; i++)
        count += forward_of(t) != LOOM_OK;
    double_failing = NULL;
    return count;
}

/* Four calls by each in turn; then ours until the device has passed them; then the faster one's. */
static void the_faster_one_of_both_is_kept(void **state)
{
    loom_cuda_choice automatic = CUDNN;
    attention t = make_attention(shape(1, 2, 2, 8, true), 10);

    automatic.attention = LOOM_GPU_ATTENTION_AUTO;
    for (int cudnn_wins = 0; cudnn_wins < 2; cudnn_wins++) {
        close_makers(state);
        open_one_cuda_maker(4321, automatic, "cuDNN or ours");
        loom_shim_clock = (loom_shim_clock_state){.takes_ms = {2, cudnn_wins ? 1 : 3}, .pending = true, .capturing = true};
        assert_int_equal(calls_by_cudnn(&t, 3), 0); /* a graph is captured: no plan is made, nothing is tried */
        assert_int_equal(loom_shim_clock.events, 0);
        loom_shim_clock.capturing = false;
        assert_int_equal(calls_by_cudnn(&t, 1), 0);
        assert_int_equal(calls_by_cudnn(&t, 1), 1);
        assert_int_equal(calls_by_cudnn(&t, 1), 0);
        assert_int_equal(calls_by_cudnn(&t, 1), 1);
        assert_int_equal(loom_shim_clock.events, 8);
        assert_int_equal(calls_by_cudnn(&t, 3), 0);
        loom_shim_clock.pending = false;
        assert_int_equal(calls_by_cudnn(&t, 3), 3 * cudnn_wins);
        loom_shim_clock.capturing = true;
        assert_int_equal(calls_by_cudnn(&t, 2), 2 * cudnn_wins); /* what is decided is captured, too */
        assert_int_equal(loom_shim_clock.events, 8);
        loom_shim_clock.capturing = false;
    }
    free_attention(&t);
}

static void an_engine_that_does_not_answer_is_passed_over(void **state)
{
    attention t = make_attention(shape(1, 1, 1, 48, false), 11);

    (void)state;
    double_failing = "cudnnBackendGetAttribute of the first engine";
    assert_int_equal(forward_of(&t), LOOM_OK);
    assert_int_equal(calls_by_cudnn(&t, 1), 1);
    free_attention(&t);
}

/* A maker of its own, with environment variable `name` as it is to be. */
static void reopen(void **state, loom_gpu_attention_maker whose, const char *name, const char *value)
{
    loom_cuda_choice choice = CUDNN;

    choice.attention = whose;
    close_makers(state);
    setenv(name, value, 1);
    open_one_cuda_maker(4321, choice, "cuDNN or ours");
    loom_shim_clock = (loom_shim_clock_state){.takes_ms = {2, 1}};
}

static int insist_again(void **state)
{
    unsetenv("LOOM_DOUBLE_WORKSPACE");
    unsetenv("LOOM_DOUBLE_BLACKWELL");
    unsetenv("RANKLOOM_HEAP_BYTES");
    close_makers(state);
    nothing_fails(state);
    return open_maker(state);
}

static void a_plan_that_cannot_be_made_is_an_error_only_where_cudnn_is_insisted_on(void **state)
{
    attention t = make_attention(shape(1, 2, 2, 8, true), 12);

    reopen(state, LOOM_GPU_ATTENTION_CUDNN, "LOOM_DOUBLE_WORKSPACE", "4096");
    double_failing = "cudnnBackendCreateDescriptor";
    assert_refused(forward_of(&t), LOOM_E_UNSUPPORTED, "make a plan", "RANKLOOM_CUDA_ATTENTION=own");
    reopen(state, LOOM_GPU_ATTENTION_AUTO, "LOOM_DOUBLE_WORKSPACE", "4096");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(forward_of(&t), LOOM_OK);
        assert_int_equal(backward_of(&t), LOOM_OK);
    }
    assert_int_equal(loom_shim_clock.events, 0);
    free_attention(&t);
}

/* More than 512 MiB is not tried; what is tried and cannot be had makes the shape ours. Where cuDNN is insisted on both are wanted, and lacking. */
static void cudnn_gets_a_workspace_that_is_large_only_where_it_is_insisted_on(void **state)
{
    static const char *const workspaces[] = {"536870913", "536870912"}; /* the heap has neither */
    attention t = make_attention(shape(1, 2, 2, 8, true), 13);

    setenv("RANKLOOM_HEAP_BYTES", "16777216", 1);
    for (int fits = 0; fits < 2; fits++) {
        reopen(state, LOOM_GPU_ATTENTION_AUTO, "LOOM_DOUBLE_WORKSPACE", workspaces[fits]);
        loom_clear_error();
        for (int i = 0; i < 6; i++)
            assert_int_equal(backward_of(&t), LOOM_OK);
        assert_int_equal(loom_shim_clock.events, fits ? 3 : 0); /* one call was ours, one would have been cuDNN's */
        assert_string_equal(loom_last_error(), "");
        reopen(state, LOOM_GPU_ATTENTION_CUDNN, "LOOM_DOUBLE_WORKSPACE", workspaces[fits]);
        assert_refused(backward_of(&t), LOOM_E_MEMORY, "workspace");
    }
    free_attention(&t);
}

/* An engine that the heuristics do not offer, and that wants less. */
static void on_blackwell_the_gradient_has_an_engine_of_its_own(void **state)
{
    attention t = make_attention(shape(1, 2, 2, 8, true), 14);

    setenv("LOOM_DOUBLE_BLACKWELL", "1", 1);
    reopen(state, LOOM_GPU_ATTENTION_AUTO, "LOOM_DOUBLE_WORKSPACE", "536870913");
    double_failing = "cudnnBackendExecute";
    assert_int_equal(backward_of(&t), LOOM_OK);
    assert_refused(backward_of(&t), LOOM_E_UNSUPPORTED, "execute");
    for (int i = 0; i < 2; i++)
        assert_int_equal(forward_of(&t), LOOM_OK);
    double_failing = NULL;
    free_attention(&t);
    reopen(state, LOOM_GPU_ATTENTION_CUDNN, "LOOM_DOUBLE_WORKSPACE", "4096");
    check(shape(1, 4, 2, 16, true), 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(attention_and_its_gradient_are_right, nothing_fails),
        cmocka_unit_test_teardown(a_block_of_earlier_keys_needs_no_mask, nothing_fails),
        cmocka_unit_test_teardown(what_cudnn_takes_is_what_it_executes, nothing_fails),
        cmocka_unit_test_teardown(what_it_does_not_take_is_ours, nothing_fails),
        cmocka_unit_test_teardown(a_shape_without_an_engine_is_ours, nothing_fails),
        cmocka_unit_test_teardown(an_engine_that_does_not_answer_is_passed_over, nothing_fails),
        cmocka_unit_test_teardown(a_plan_that_cannot_be_made_is_an_error_only_where_cudnn_is_insisted_on, insist_again),
        cmocka_unit_test_teardown(cudnn_gets_a_workspace_that_is_large_only_where_it_is_insisted_on, insist_again),
        cmocka_unit_test_teardown(on_blackwell_the_gradient_has_an_engine_of_its_own, insist_again),
        cmocka_unit_test_teardown(the_faster_one_of_both_is_kept, nothing_fails),
        cmocka_unit_test_teardown(without_cudnn_attention_is_ours_unless_it_is_insisted_on, nothing_fails),
    };

    return cmocka_run_group_tests(tests, open_maker, close_makers);
}
