/* Products of factors in fewer bits, `narrow fp8` or `narrow bf16`: the CUDA kernels that make them, on the host, and cuBLASLt's double, which multiplies them,
 * against the law written out: each number to the nearest that there is (in fp8 by a scale that the matrix' largest number gives), multiplied in f64. */
#include "harness.h"
#include "ref.h"
#include "shim_maker.h"

#include <rankloom/dtype.h>

static const double EXACT_FACTORS = 2e-6;

static bool in_fp8;

static int open_maker(void **state)
{
    (void)state;
    if (in_fp8)
        open_one_cuda_maker(777, (loom_cuda_choice){.math = LOOM_GPU_FP8}, "fp8");
    else
        open_one_cuda_maker(778, (loom_cuda_choice){.math = LOOM_GPU_BF16, .always_narrow = true}, "bf16");
    return 0;
}

/* What is left of a rows x cols matrix, its rows ld apart. Gaps are copied. */
static float *narrowed(const float *x, int64_t rows, int64_t cols, int64_t ld)
{
    float *y = copy_floats(x, rows * ld), most = 0, scale;

    for (int64_t i = 0; i < rows * cols; i++)
        most = fmaxf(most, fabsf(x[i / cols * ld + i % cols]));
    scale = most >= 1e-35f ? most / 448 : 1; /* smaller ones all become 0 */
    for (int64_t i = 0; i < rows * cols; i++) {
        float *at = &y[i / cols * ld + i % cols];
        *at = in_fp8 ? loom_f32_from_f8e4m3(loom_f8e4m3_from_f32(*at / scale)) * scale : loom_f32_from_bf16(loom_bf16_from_f32(*at));
    }
    return y;
}

/* `batch` products, the second factor the same for all where `shared`. */
static void check_product(int64_t m, int64_t n, int64_t k, int64_t batch, int kind)
{
    bool ta = kind & 1, tb = kind & 2, accumulate = kind & 4, bias = kind & 8, shared = kind & 2;
    int64_t pad = kind & 16 ? 5 : 0, lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + (kind & 16 ? 4 : 0);
    int64_t rows_a = ta ? k : m, rows_b = tb ? n : k, others = shared ? 1 : batch;
    float *a = random_floats(batch * rows_a * lda, 3, 1), *b = random_floats(others * rows_b * ldb, 0.01, 2), *bias_n = random_floats(n, 1, 3);
    float *start = random_floats(batch * m * n, 1, 4), *rounded_a = narrowed(a, batch * rows_a, ta ? m : k, lda), *rounded_b = narrowed(b, others * rows_b, tb ? k : n, ldb);
    float *c = aligned_alloc(16, (size_t)(batch * m * ldc + 4) / 4 * 16); /* as a device's memory: it is the results' */
    double *expected = doubles(m * n);
    loom_gemm_args args = {.bias_N = bias ? bias_n : NULL, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, .transpose_a = ta, .transpose_b = tb,
                           .accumulate = accumulate};
    loom_gemm_args call = args;

    for (int64_t i = 0; i < batch * m; i++)
        memcpy(c + i * ldc, start + i * n, (size_t)n * sizeof *c);
    call.a_MK = a, call.b_KN = b, call.c_MN = c;
    call.batch = batch, call.stride_a = rows_a * lda, call.stride_b = shared ? 0 : rows_b * ldb, call.stride_c = m * ldc;
    CALL(makers, gemm, &call);
    for (int64_t i = 0; i < batch; i++) {
        args.a_MK = rounded_a + i * rows_a * lda, args.b_KN = rounded_b + (shared ? 0 : i) * rows_b * ldb;
        ref_gemm(&args, accumulate ? start + i * m * n : NULL, expected);
        assert_rows_near(makers->name, "gemm of narrow factors", c + i * m * ldc, ldc, expected, m, n, EXACT_FACTORS);
    }
    float *all[] = {a, b, bias_n, start, rounded_a, rounded_b};
    for (int i = 0; i < 6; i++)
        free_floats(all[i]);
    free(c);
    free(expected);
}

static void products_are_those_of_the_codes(void **state)
{
    static const int64_t shapes[][3] = {{16, 16, 16}, {48, 16, 80}, {80, 144, 32}, {16, 80, 144}};

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < 32; kind++)
            check_product(shapes[s][0], shapes[s][1], shapes[s][2], 1, kind);
}

/* Times the unit matrix a product shows the codes: every number of e4m3, the middles between neighbours and both sides of these, on a scale of 1. */
static void codes_are_rounded_to_nearest_even(void **state)
{
    enum { N = 16, COUNT = 126 * 4, ROWS = (COUNT + N - 1) / N / 16 * 16 + 16 };
    float *x = zero_floats(ROWS * N), *unit = zero_floats(N * N), *y = aligned_alloc(16, ROWS * N * sizeof *y);

    (void)state;
    for (int code = 0; code < 126; code++) {
        float low = loom_f32_from_f8e4m3((uint8_t)code), high = loom_f32_from_f8e4m3((uint8_t)(code + 1)), middle = (low + high) / 2;
        float near[4] = {low, nextafterf(middle, 0), middle, nextafterf(middle, 500)};
        for (int i = 0; i < 4; i++)
            x[4 * code + i] = code % 2 ? -near[i] : near[i];
    }
    x[ROWS * N - 1] = 448; /* the largest: the scale is 1 */
    for (int i = 0; i < N; i++)
        unit[i * N + i] = 448;
    CALL(makers, gemm, &(loom_gemm_args){.c_MN = y, .a_MK = x, .b_KN = unit, .m = ROWS, .n = N, .k = N});
    for (int i = 0; i < ROWS * N; i++)
        if (!(y[i] == loom_f32_from_f8e4m3(loom_f8e4m3_from_f32(x[i])) * 448))
            fail_msg("%.9g becomes %.9g, not %.9g", x[i], y[i] / 448, loom_f32_from_f8e4m3(loom_f8e4m3_from_f32(x[i])));
    free_floats(x);
    free_floats(unit);
    free(y);
}

/* Nothing but zeros has a scale, too, and so have numbers whose scale would be none of f32's normal ones; a NaN stays in its row; what does not fit fp8 is multiplied in more bits. */
static void edges_are_kept(void **state)
{
    enum { N = 32 };
    float *a = zero_floats(N * N), *b = random_floats(N * N, 1, 9), *c = aligned_alloc(16, N * N * sizeof *c);

    (void)state;
    CALL(makers, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = N, .n = N, .k = N});
    for (int i = 0; i < N * N; i++)
        assert_true(c[i] == 0);
    a[5 * N + 3] = 1e-44f;
    CALL(makers, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = N, .n = N, .k = N});
    for (int i = 0; i < N * N; i++)
        assert_true(c[i] == 0);
    a[5 * N + 3] = 2e-35f;
    CALL(makers, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = N, .n = N, .k = N});
    for (int j = 0; j < N; j++)
        assert_true(fabsf(c[5 * N + j] / 2e-35f - b[3 * N + j]) <= 0.07f * fabsf(b[3 * N + j]) + 1e-4f);
    a[5 * N + 3] = NAN;
    CALL(makers, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = N, .n = N, .k = N});
    for (int i = 0; i < N * N; i++)
        assert_true(isnan(c[i]) == (i / N == 5));
    a[5 * N + 3] = 1;
    CALL(makers, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = N, .n = N - 1, .k = N, .ldb = N}); /* 31 columns */
    for (int j = 0; j < N - 1; j++)
        assert_true(c[5 * (N - 1) + j] == b[3 * N + j]);
    free_floats(a);
    free_floats(b);
    free(c);
}

/* A device without it: the heuristics have several words for that, and each is for a shape of its own, since what was found is kept. */
static void without_fp8_a_product_has_more_bits(void **state)
{
    static const char *const statuses[] = {"7", "8", "15"}; /* invalid value, other architecture, not supported */
    enum { N = 32 };

    (void)state;
    double_failing = "cublasLtMatmulAlgoGetHeuristic of fp8";
    for (int i = 0; i < 3; i++) {
        float *a = random_floats(16 * N, 1, 10), *b = random_floats(N * N, 1, 11), *c = aligned_alloc(16, 16 * N * sizeof *c);
        loom_gemm_args args = {.c_MN = c, .a_MK = a, .b_KN = b, .m = 16, .n = N, .k = 16 * (i % 2 + 1), .ldb = N, .transpose_a = i == 2};
        double *expected = doubles(16 * N);

        setenv("LOOM_DOUBLE_HEURISTIC", statuses[i], 1);
        ref_gemm(&args, NULL, expected);
        CALL(makers, gemm, &args);
        assert_near(makers->name, "gemm without fp8", c, expected, 16 * N, EXACT_FACTORS);
        free_floats(a);
        free_floats(b);
        free(c);
        free(expected);
    }
    unsetenv("LOOM_DOUBLE_HEURISTIC");
    double_failing = NULL;
}

/* Any size and any batch: rows of copies are padded, and what all share is copied once. */
static void products_are_those_of_the_halves(void **state)
{
    static const int64_t shapes[][4] = {{16, 16, 16, 1}, {1, 1, 1, 1}, {5, 7, 3, 2}, {33, 17, 9, 3}, {8, 24, 40, 2}};

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < 32; kind++)
            check_product(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], kind);
}

static void a_nan_stays_in_its_row(void **state)
{
    enum { N = 32 };
    float *a = random_floats(N * N, 1, 8), *b = random_floats(N * N, 1, 9), *c = aligned_alloc(16, N * N * sizeof *c);

    (void)state;
    a[5 * N + 3] = NAN;
    CALL(makers, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = N, .n = N, .k = N});
    for (int i = 0; i < N * N; i++)
        assert_true(!!isnan(c[i]) == (i / N == 5));
    free_floats(a);
    free_floats(b);
    free(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest fp8[] = {
        cmocka_unit_test(products_are_those_of_the_codes),
        cmocka_unit_test(codes_are_rounded_to_nearest_even),
        cmocka_unit_test(edges_are_kept),
        cmocka_unit_test(without_fp8_a_product_has_more_bits),
    };
    const struct CMUnitTest bf16[] = {
        cmocka_unit_test(products_are_those_of_the_halves),
        cmocka_unit_test(a_nan_stays_in_its_row),
    };

    in_fp8 = argc > 1 && strcmp(argv[1], "fp8") == 0;
    return in_fp8 ? cmocka_run_group_tests(fp8, open_maker, close_makers) : cmocka_run_group_tests(bf16, open_maker, close_makers);
}
