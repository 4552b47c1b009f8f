/* GELU in the epilogue of cuBLASLt's products (its double multiplies): where it is asked for, where it may not be, and that both give the same. */
#include "harness.h"
#include "ref.h"
#include "shim_maker.h"

static const double TOLERANCE = 2e-6; /* the double sums in f64 */

static int open_maker(void **state)
{
    (void)state;
    open_one_cuda_maker(7, (loom_cuda_choice){.math = LOOM_GPU_TF32}, "cuBLASLt, tf32");
    return 0;
}

static int nothing_fails(void **state)
{
    (void)state;
    double_failing = NULL;
    unsetenv("LOOM_DOUBLE_HEURISTIC");
    return 0;
}

enum { M = 24, N = 40, K = 16, BATCH = 3 };

/* Matrices as far apart as cuBLASLt wants them: rows of 40, planes of 24 rows, from a boundary of 64 bytes. */
typedef struct matrices {
    float *a, *b, *bias, *before, *c, *other;
} matrices;

static float *aligned(int64_t count, uint64_t seed)
{
    float *x = aligned_alloc(64, (size_t)(count + 16) / 16 * 64), *from = random_floats(count, 1, seed);

    assert_non_null(x);
    memcpy(x, from, (size_t)count * sizeof *x);
    free_floats(from);
    return x;
}

static matrices make_matrices(void)
{
    return (matrices){aligned(BATCH * M * K, 1), aligned(BATCH * N * K, 2), aligned(N + 1, 3), aligned(BATCH * M * N, 4), aligned(BATCH * M * N, 5),
                      aligned(BATCH * M * N, 6)};
}

static void free_matrices(matrices *m)
{
    float *all[] = {m->a, m->b, m->bias, m->before, m->c, m->other};

    for (int i = 0; i < 6; i++)
        free(all[i]);
}

static loom_gemm_args forward(const matrices *m, bool bias, int64_t batch)
{
    return (loom_gemm_args){.c_MN = m->c, .a_MK = m->a, .b_KN = m->b, .bias_N = bias ? m->bias : NULL, .m = M, .n = N, .k = K, .transpose_b = true,
                            .batch = batch, .stride_a = M * K, .stride_b = N * K, .stride_c = M * N, .gelu_MN = m->other};
}

static loom_gemm_args backward(const matrices *m, int64_t batch)
{
    loom_gemm_args args = forward(m, false, batch);

    args.gelu_MN = NULL;
    args.gelu_input_MN = m->before;
    return args;
}

static loom_status multiply(const loom_gemm_args *args)
{
    return makers->kernels->gemm(makers->kernels, args, makers->stream);
}

static void check(const loom_gemm_args *args, const char *what)
{
    int64_t count = (args->batch ? args->batch : 1) * M * N;
    double *expected = doubles(count);

    ref_gemm(args, NULL, expected);
    for (int64_t i = 0; i < count && args->gelu_input_MN; i++)
        expected[i] *= ref_gelu_slope(args->gelu_input_MN[i]);
    assert_int_equal(multiply(args), LOOM_OK);
    assert_near(makers->name, what, args->c_MN, expected, count, TOLERANCE);
    for (int64_t i = 0; i < count && args->gelu_MN; i++)
        expected[i] = ref_gelu(expected[i]);
    if (args->gelu_MN)
        assert_near(makers->name, what, args->gelu_MN, expected, count, TOLERANCE);
    free(expected);
}

static void the_epilogue_has_gelu_and_its_slope(void **state)
{
    matrices m = make_matrices();

    (void)state;
    for (int64_t batch = 0; batch <= BATCH; batch += BATCH) {
        for (int bias = 0; bias < 2; bias++) {
            const loom_gemm_args args = forward(&m, bias, batch);
            check(&args, "forward");
        }
        const loom_gemm_args args = backward(&m, batch);
        check(&args, "backward");
    }
    const loom_gemm_args asked[] = {forward(&m, true, 0), forward(&m, false, BATCH), backward(&m, 0)};
    double_failing = "cublasLtMatmul with GELU"; /* which is what each of them calls */
    for (int i = 0; i < 3; i++)
        assert_int_equal(multiply(&asked[i]), LOOM_E_IO);
    free_matrices(&m);
}

/* Rows not a multiple of 8 apart, a matrix that begins where it likes, a C that is added to: a product, and a kernel after it. */
static void what_the_epilogue_does_not_take_is_done_after_it(void **state)
{
    matrices m = make_matrices();

    (void)state;
    double_failing = "cublasLtMatmul with GELU";
    for (int kind = 0; kind < 4; kind++) {
        loom_gemm_args args = kind % 2 ? backward(&m, 0) : forward(&m, true, 0);
        if (kind < 2)
            args.n = N - 3; /* tight: rows of 37 */
        else if (args.gelu_MN)
            args.gelu_MN++;
        else
            args.gelu_input_MN++;
        double *expected = doubles(M * N);
        ref_gemm(&args, NULL, expected);
        assert_int_equal(multiply(&args), LOOM_OK);
        for (int64_t i = 0; i < args.m * args.n; i++) {
            double slope = args.gelu_input_MN ? ref_gelu_slope(args.gelu_input_MN[i]) : 1;
            assert_true(fabs(args.c_MN[i] - expected[i] * slope) < 1e-5);
            assert_true(!args.gelu_MN || fabs(args.gelu_MN[i] - ref_gelu(expected[i])) < 1e-5);
        }
        free(expected);
    }
    loom_gemm_args added = forward(&m, true, 0);
    added.accumulate = true;
    assert_int_equal(multiply(&added), LOOM_OK);
    free_matrices(&m);
}

static void a_product_without_an_algorithm_with_gelu_is_finished_by_a_kernel(void **state)
{
    matrices m = make_matrices();

    (void)state;
    double_failing = "cublasLtMatmulAlgoGetHeuristic with GELU";
    loom_gemm_args asked[] = {forward(&m, true, 2), backward(&m, 2)}; /* a batch that was not asked for before: choices are kept */
    check(&asked[0], "forward");
    check(&asked[1], "backward");
    double_failing = "cublasLtMatmul with GELU";
    check(&asked[0], "forward again"); /* that there is none is kept, too */
    free_matrices(&m);
}

/* With the epilogue and without it, one product and several. */
static void a_bias_that_begins_where_it_likes_is_added(void **state)
{
    matrices m = make_matrices();

    (void)state;
    for (int64_t batch = 0; batch <= BATCH; batch += BATCH)
        for (int gelu = 0; gelu < 2; gelu++) {
            loom_gemm_args args = forward(&m, true, batch);
            args.gelu_MN = gelu ? m.other : NULL;
            check(&args, "bias at a boundary");
            args.bias_N++;
            check(&args, "bias off it");
        }
    free_matrices(&m);
}

/* What a device lacks the heuristics say in several ways, each with a batch of its own; a failure is a failure. */
static void whatever_the_heuristics_say_of_an_epilogue_it_is_done_without(void **state)
{
    static const char *const lacking[] = {"7", "8"}, *const failing[] = {"1", "3", "14"}; /* invalid value, other architecture; not initialised, no memory, internal */
    matrices m = make_matrices();

    (void)state;
    double_failing = "cublasLtMatmulAlgoGetHeuristic with GELU";
    for (int i = 0; i < 2; i++) {
        loom_gemm_args args = forward(&m, true, 0);
        args.m = M - 1 - i;
        setenv("LOOM_DOUBLE_HEURISTIC", lacking[i], 1);
        assert_int_equal(multiply(&args), LOOM_OK);
    }
    for (int i = 0; i < 3; i++) {
        loom_gemm_args args = forward(&m, true, 0);
        args.m = M - 3;
        setenv("LOOM_DOUBLE_HEURISTIC", failing[i], 1);
        assert_refused(multiply(&args), LOOM_E_IO, "cuBLASLt");
    }
    free_matrices(&m);
}

/* f32 means as the CPU does, and the manual does not say how exact the epilogue is. */
static void in_f32_gelu_stays_ours(void **state)
{
    matrices m = make_matrices();
    const loom_gemm_args asked[] = {forward(&m, true, 0), backward(&m, 0)};

    close_makers(state);
    open_one_cuda_maker(7, (loom_cuda_choice){.math = LOOM_GPU_F32}, "cuBLASLt, f32");
    double_failing = "cublasLtMatmul with GELU";
    check(&asked[0], "forward");
    check(&asked[1], "backward");
    free_matrices(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_epilogue_has_gelu_and_its_slope, nothing_fails),
        cmocka_unit_test_teardown(what_the_epilogue_does_not_take_is_done_after_it, nothing_fails),
        cmocka_unit_test_teardown(a_product_without_an_algorithm_with_gelu_is_finished_by_a_kernel, nothing_fails),
        cmocka_unit_test_teardown(a_bias_that_begins_where_it_likes_is_added, nothing_fails),
        cmocka_unit_test_teardown(whatever_the_heuristics_say_of_an_epilogue_it_is_done_without, nothing_fails),
        cmocka_unit_test_teardown(in_f32_gelu_stays_ours, nothing_fails),
    };

    return cmocka_run_group_tests(tests, open_maker, close_makers);
}
