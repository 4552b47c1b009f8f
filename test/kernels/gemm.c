/* Matrix products of every maker against f64 loops: all transposes, strides, edges of the blocks, batches. */
#include "harness.h"
#include "ref.h"

#include "device/stream.h"

static const double TOLERANCE = 2e-6; /* k up to 600: a chain of f32 additions */

static void check_shape(int64_t m, int64_t n, int64_t k, int kind, uint64_t seed)
{
    bool ta = kind & 1, tb = kind & 2, accumulate = kind & 4, bias = kind & 8;
    int64_t pad = kind & 16 ? 5 : 0, lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad;
    float *a = random_floats((ta ? k : m) * lda, 1, seed), *b = random_floats((tb ? n : k) * ldb, 1, seed + 1);
    float *bias_n = random_floats(n, 1, seed + 2), *start = random_floats(m * n, 1, seed + 3);
    double *expected = doubles(m * n);
    loom_gemm_args args = {.a_MK = a,
                           .b_KN = b,
                           .bias_N = bias ? bias_n : NULL,
                           .m = m,
                           .n = n,
                           .k = k,
                           .lda = pad ? lda : 0,
                           .ldb = pad ? ldb : 0,
                           .ldc = pad ? ldc : 0,
                           .transpose_a = ta,
                           .transpose_b = tb,
                           .accumulate = accumulate};

    ref_gemm(&args, accumulate ? start : NULL, expected);
    FOR_EACH_MAKER(made)
    {
        char what[96];
        float *c = guarded_rows(m, n, ldc);

        for (int64_t i = 0; i < m && accumulate; i++)
            memcpy(c + i * ldc, start + i * n, (size_t)n * sizeof *c);
        args.c_MN = c;
        CALL(made, gemm, &args);
        snprintf(what, sizeof what, "gemm %lldx%lldx%lld%s%s%s%s%s", (long long)m, (long long)n, (long long)k, ta ? " A'" : "",
                 tb ? " B'" : "", accumulate ? " +=" : "", bias ? " bias" : "", pad ? " strided" : "");
        assert_rows_near(made->name, what, c, ldc, expected, m, n, TOLERANCE);
        assert_guards(made->name, what, c, m, n, ldc);
        free_floats(c);
    }
    free_floats(a);
    free_floats(b);
    free_floats(bias_n);
    free_floats(start);
    free(expected);
}

/* A product with GELU after it (bits of kind: transposes, accumulate, bias, padding), or with its slope. */
static void check_gelu(int64_t m, int64_t n, int64_t k, int64_t batch, int kind, bool slope)
{
    bool ta = kind & 1, tb = kind & 2, accumulate = kind & 4 && !slope, bias = kind & 8 && !slope;
    int64_t ldc = n + (kind & 16 ? 5 : 0), rows = (batch ? batch : 1) * m;
    float *a = random_floats(rows * k, 1, 11), *b = random_floats(n * k, 1, 12), *bias_n = random_floats(n, 1, 13);
    float *start = random_floats(rows * ldc, 1, 14), *before = random_floats(rows * ldc, 3, 15);
    double *expected = doubles(rows * n), *active = doubles(rows * n);
    loom_gemm_args args = {.a_MK = a, .b_KN = b, .bias_N = bias ? bias_n : NULL, .m = m, .n = n, .k = k, .ldc = kind & 16 ? ldc : 0,
                           .transpose_a = ta, .transpose_b = tb, .accumulate = accumulate, .batch = batch, .stride_a = m * k, .stride_c = m * ldc,
                           .gelu_input_MN = slope ? before : NULL};

    ref_gemm(&args, NULL, expected);
    for (int64_t i = 0; i < rows * n; i++) {
        int64_t at = i / n * ldc + i % n;
        expected[i] += accumulate ? start[at] : 0;
        expected[i] *= slope ? ref_gelu_slope(before[at]) : 1;
        active[i] = ref_gelu(expected[i]);
    }
    FOR_EACH_MAKER(made)
    {
        float *c = guarded_rows(rows, n, ldc), *y = guarded_rows(rows, n, ldc);

        for (int64_t i = 0; i < rows && accumulate; i++)
            memcpy(c + i * ldc, start + i * ldc, (size_t)n * sizeof *c);
        args.c_MN = c;
        args.gelu_MN = slope ? NULL : y;
        CALL(made, gemm, &args);
        assert_rows_near(made->name, slope ? "gemm times GELU's slope" : "gemm before GELU", c, ldc, expected, rows, n, TOLERANCE);
        assert_guards(made->name, "gemm before GELU", c, rows, n, ldc);
        if (!slope)
            assert_rows_near(made->name, "gemm after GELU", y, ldc, active, rows, n, TOLERANCE);
        assert_guards(made->name, "gemm after GELU", y, rows, n, ldc);
        free_floats(c);
        free_floats(y);
    }
    float *all[] = {a, b, bias_n, start, before};
    for (int i = 0; i < 5; i++)
        free_floats(all[i]);
    free(expected);
    free(active);
}

static void gelu_and_its_slope_follow_a_product_of_any_kind(void **state)
{
    static const int64_t shapes[][4] = {{1, 1, 1, 0}, {13, 33, 7, 0}, {70, 130, 300, 0}, {5, 12, 0, 0}, {9, 17, 21, 4}, {0, 3, 5, 0}};

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < 32; kind += makers_are_slow ? 5 : 1)
            for (int slope = 0; slope < 2; slope++)
                check_gelu(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], kind, slope);
}

/* In the product or after it, an element is the same chain of operations. */
static void gelu_in_a_product_has_the_bits_of_gelu_after_it(void **state)
{
    enum { M = 37, N = 83, K = 270 };
    float *a = random_floats(M * K, 1, 1), *b = random_floats(N * K, 1, 2), *c = zero_floats(M * N), *y = zero_floats(M * N);
    float *other_c = zero_floats(M * N), *other_y = zero_floats(M * N);

    (void)state;
    FOR_EACH_MAKER(made)
    {
        CALL(made, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = M, .n = N, .k = K, .gelu_MN = y});
        CALL(made, gemm, &(loom_gemm_args){.c_MN = other_c, .a_MK = a, .b_KN = b, .m = M, .n = N, .k = K});
        CALL(made, gelu, &(loom_gelu_args){.y = other_y, .x = other_c, .count = M * N});
        assert_memory_equal(c, other_c, sizeof *c * M * N);
        assert_memory_equal(y, other_y, sizeof *c * M * N);
        CALL(made, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = M, .n = N, .k = K, .gelu_input_MN = y});
        CALL(made, gelu_backward, &(loom_gelu_backward_args){.dx = other_c, .dy = other_c, .x = y, .count = M * N});
        assert_memory_equal(c, other_c, sizeof *c * M * N);
    }
    float *all[] = {a, b, c, y, other_c, other_y};
    for (int i = 0; i < 6; i++)
        free_floats(all[i]);
}

static void products_of_all_kinds_are_right(void **state)
{
    static const int64_t shapes[][3] = {{1, 1, 1},     {2, 3, 4},      {13, 33, 7},  {12, 32, 64},
                                        {5, 100, 300}, {130, 70, 260}, {1, 77, 513}, {64, 1, 9}};

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < 32; kind += makers_are_slow && shapes[s][2] > 100 ? 3 : 1)
            check_shape(shapes[s][0], shapes[s][1], shapes[s][2], kind, 100 * s + (uint64_t)kind);
}

static void random_shapes_are_right(void **state)
{
    uint64_t random = 7;

    (void)state;
    for (int i = 0; i < (makers_are_slow ? 8 : 60); i++)
        check_shape(random_int(&random, 1, 150), random_int(&random, 1, 150), random_int(&random, 1, 300), (int)random_int(&random, 0, 31),
                    5000 + (uint64_t)i);
}

static void a_product_wider_than_a_block_is_right(void **state)
{
    (void)state;
    check_shape(14, 2100, 40, 0, 1);
    check_shape(14, 2100, 40, 2 + 8, 2);
}

static void an_empty_sum_is_the_bias_or_nothing(void **state)
{
    (void)state;
    check_shape(3, 5, 0, 0, 1);
    check_shape(3, 5, 0, 8, 1);
    check_shape(3, 5, 0, 4 + 8, 1);
    check_shape(0, 5, 3, 0, 1);
    check_shape(3, 0, 3, 0, 1);
}

static void batches_of_strided_matrices_are_right(void **state)
{
    enum { M = 9, N = 17, K = 21, BATCH = 5 };
    float *a = random_floats(BATCH * M * K, 1, 1), *b = random_floats(BATCH * N * K, 1, 2), *c = zero_floats(BATCH * M * N);
    double *expected = doubles(BATCH * M * N);

    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        loom_gemm_args args = {.c_MN = c,
                               .a_MK = a,
                               .b_KN = b,
                               .m = M,
                               .n = N,
                               .k = K,
                               .transpose_b = true,
                               .batch = BATCH,
                               .stride_a = M * K,
                               .stride_b = shared ? 0 : N * K,
                               .stride_c = M * N};
        ref_gemm(&args, NULL, expected);
        FOR_EACH_MAKER(made)
        {
            CALL(made, gemm, &args);
            assert_near(made->name, "batched gemm", c, expected, BATCH * M * N, TOLERANCE);
        }
    }
    free_floats(a);
    free_floats(b);
    free_floats(c);
    free(expected);
}

static void a_nan_stays_in_its_row(void **state)
{
    enum { SIZE = 40 };
    float *a = random_floats(SIZE * SIZE, 1, 1), *b = random_floats(SIZE * SIZE, 1, 2), *c = zero_floats(SIZE * SIZE);

    (void)state;
    a[3 * SIZE + 5] = NAN;
    FOR_EACH_MAKER(made)
    {
        CALL(made, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = SIZE, .n = SIZE, .k = SIZE});
        for (int i = 0; i < SIZE * SIZE; i++)
            assert_true(!!isnan(c[i]) == (i / SIZE == 3));
    }
    free_floats(a);
    free_floats(b);
    free_floats(c);
}

static void the_same_product_twice_has_the_same_bits(void **state)
{
    enum { M = 200, N = 150, K = 500 };
    float *a = random_floats(M * K, 1, 1), *b = random_floats(N * K, 1, 2), *c = zero_floats(M * N), *again = zero_floats(M * N);

    (void)state;
    FOR_EACH_MAKER(made)
    {
        CALL(made, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = b, .m = M, .n = N, .k = K, .transpose_b = true});
        for (int run = 0; run < 3; run++) {
            CALL(made, gemm, &(loom_gemm_args){.c_MN = again, .a_MK = a, .b_KN = b, .m = M, .n = N, .k = K, .transpose_b = true});
            assert_memory_equal(c, again, sizeof *c * M * N);
        }
    }
    free_floats(a);
    free_floats(b);
    free_floats(c);
    free_floats(again);
}

/* What our own maker promises: neither the rows nor the columns around an element change its bits, nor do the threads. */
static void own_product_has_the_same_bits_however_it_is_split(void **state)
{
    enum { M = 150, N = 90, K = 700 };
    float *a = random_floats(M * K, 1, 1), *b = random_floats(N * K, 1, 2), *whole = zero_floats(M * N), *part = zero_floats(M * N);

    (void)state;
    FOR_EACH_MAKER(made)
    {
        if (strcmp(made->kernels->gemm_library, "own") != 0)
            continue;
        CALL(made, gemm, &(loom_gemm_args){.c_MN = whole, .a_MK = a, .b_KN = b, .m = M, .n = N, .k = K, .transpose_b = true});
        for (int64_t row = 0; row < M; row += 37)
            for (int64_t column = 0; column < N; column += 41)
                CALL(made, gemm,
                     &(loom_gemm_args){.c_MN = part + row * N + column,
                                       .a_MK = a + row * K,
                                       .b_KN = b + column * K,
                                       .m = row + 37 < M ? 37 : M - row,
                                       .n = column + 41 < N ? 41 : N - column,
                                       .k = K,
                                       .ldc = N,
                                       .transpose_b = true});
        assert_memory_equal(whole, part, sizeof *whole * M * N);
    }
    free_floats(a);
    free_floats(b);
    free_floats(whole);
    free_floats(part);
}

static void the_linear_fixture_is_met(void **state)
{
    enum { T = 7, IN = 20, OUT = 13 };
    int64_t count;
    const float *x = fixture("linear.in.x", &count), *w = fixture("linear.in.w", &count), *b = fixture("linear.in.b", &count);
    const float *dy = fixture("linear.in.dy", &count);
    double *y = fixture_doubles("linear.out.y", &count), *dx = fixture_doubles("linear.out.dx", &count);
    double *dw = fixture_doubles("linear.out.dw", &count), *db = fixture_doubles("linear.out.db", &count);
    const double few = 4; /* times the distance of f32 PyTorch */

    (void)state;
    FOR_EACH_MAKER(m)
    {
        float *got = zero_floats(T * OUT), *got_dx = zero_floats(T * IN), *got_dw = zero_floats(OUT * IN), *got_db = zero_floats(OUT);

        CALL(m, gemm, &(loom_gemm_args){.c_MN = got, .a_MK = x, .b_KN = w, .bias_N = b, .m = T, .n = OUT, .k = IN, .transpose_b = true});
        CALL(m, gemm, &(loom_gemm_args){.c_MN = got_dx, .a_MK = dy, .b_KN = w, .m = T, .n = IN, .k = OUT});
        CALL(m, gemm,
             &(loom_gemm_args){.c_MN = got_dw, .a_MK = dy, .b_KN = x, .m = OUT, .n = IN, .k = T, .transpose_a = true, .accumulate = true});
        CALL(m, bias_backward, &(loom_bias_backward_args){.dbias_N = got_db, .dy_TN = dy, .tokens = T, .width = OUT});
        assert_near(m->name, "linear y", got, y, T * OUT, few * fixture_distance("linear", "y"));
        assert_near(m->name, "linear dx", got_dx, dx, T * IN, few * fixture_distance("linear", "dx"));
        assert_near(m->name, "linear dw", got_dw, dw, OUT * IN, few * fixture_distance("linear", "dw"));
        assert_near(m->name, "linear db", got_db, db, OUT, few * fixture_distance("linear", "db"));
        free_floats(got);
        free_floats(got_dx);
        free_floats(got_dw);
        free_floats(got_db);
    }
    free(y);
    free(dx);
    free(dw);
    free(db);
}

static void wrong_arguments_are_named(void **state)
{
    const maker *m = &makers[0];
    float x[16] = {0};

    (void)state;
    assert_refused(m->kernels->gemm(m->kernels, &(loom_gemm_args){.c_MN = x, .a_MK = x, .b_KN = x, .m = 2, .n = 2, .k = -1}, m->stream),
                   LOOM_E_INVALID, "negative", "-1");
    assert_refused(m->kernels->gemm(m->kernels, &(loom_gemm_args){.c_MN = x, .a_MK = x, .m = 2, .n = 2, .k = 2}, m->stream), LOOM_E_INVALID,
                   "NULL", "number 2");
    assert_refused(
        m->kernels->gemm(m->kernels, &(loom_gemm_args){.c_MN = x, .a_MK = x, .b_KN = x, .m = 2, .n = 3, .k = 2, .ldb = 2}, m->stream),
        LOOM_E_INVALID, "ldb=2", "3");
    assert_refused(m->kernels->gemm(m->kernels,
                                    &(loom_gemm_args){.c_MN = x, .a_MK = x, .b_KN = x, .m = 2, .n = 2, .k = 2, .batch = 2, .stride_c = 3},
                                    m->stream),
                   LOOM_E_INVALID, "overlap");
    loom_gemm_args both = {.c_MN = x, .a_MK = x, .b_KN = x, .m = 2, .n = 2, .k = 2, .gelu_MN = x + 4, .gelu_input_MN = x + 8};
    assert_refused(m->kernels->gemm(m->kernels, &both, m->stream), LOOM_E_INVALID, "gelu_MN and gelu_input_MN");
    both.gelu_MN = NULL;
    both.accumulate = true;
    assert_refused(m->kernels->gemm(m->kernels, &both, m->stream), LOOM_E_INVALID, "accumulate", "gelu_input_MN");
    both.accumulate = false;
    both.gelu_input_MN = x;
    assert_refused(m->kernels->gemm(m->kernels, &both, m->stream), LOOM_E_INVALID, "gelu_input_MN", "c_MN itself");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_all_kinds_are_right),
        cmocka_unit_test(random_shapes_are_right),
        cmocka_unit_test(a_product_wider_than_a_block_is_right),
        cmocka_unit_test(an_empty_sum_is_the_bias_or_nothing),
        cmocka_unit_test(batches_of_strided_matrices_are_right),
        cmocka_unit_test(a_nan_stays_in_its_row),
        cmocka_unit_test(gelu_and_its_slope_follow_a_product_of_any_kind),
        cmocka_unit_test(gelu_in_a_product_has_the_bits_of_gelu_after_it),
        cmocka_unit_test(the_same_product_twice_has_the_same_bits),
        cmocka_unit_test(own_product_has_the_same_bits_however_it_is_split),
        cmocka_unit_test(the_linear_fixture_is_met),
        cmocka_unit_test(wrong_arguments_are_named),
    };

    return cmocka_run_group_tests(tests, open_makers, close_makers);
}
