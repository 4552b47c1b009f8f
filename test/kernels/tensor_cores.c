/* The CUDA kernels that multiply on tensor cores, on the host, against f64 loops. Factors that tf32 holds exactly make a product as exact
 * as in f32; attention rounds its probabilities as well, by 2^-11 at most. */
#include "harness.h"
#include "ref.h"
#include "shim_maker.h"

static const double EXACT_FACTORS = 2e-6, ROUNDED = 4e-4;

static int open_maker(void **state)
{
    (void)state;
    open_one_cuda_maker(12345, (loom_cuda_choice){.own_gemm = true, .math = LOOM_GPU_TF32}, "tf32");
    return 0;
}

/* Random numbers of ten bits of mantissa. */
static float *tf32_floats(int64_t count, uint64_t seed)
{
    float *x = random_floats(count, 1, seed);

    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= ~0x1fffu;
        memcpy(&x[i], &bits, sizeof bits);
    }
    return x;
}

/* --- products --- */

static void check_product(int64_t m, int64_t n, int64_t k, int kind)
{
    bool ta = kind & 1, tb = kind & 2, accumulate = kind & 4, bias = kind & 8;
    int64_t ldc = n + (kind & 16 ? 3 : 0);
    float *a = tf32_floats(m * k, 1), *b = tf32_floats(n * k, 2), *bias_n = random_floats(n, 1, 3), *start = random_floats(m * n, 1, 4);
    float *c = guarded_rows(m, n, ldc);
    double *expected = doubles(m * n);
    loom_gemm_args args = {.c_MN = c,
                           .a_MK = a,
                           .b_KN = b,
                           .bias_N = bias ? bias_n : NULL,
                           .m = m,
                           .n = n,
                           .k = k,
                           .ldc = ldc,
                           .transpose_a = ta,
                           .transpose_b = tb,
                           .accumulate = accumulate};

    ref_gemm(&args, accumulate ? start : NULL, expected);
    for (int64_t i = 0; i < m && accumulate; i++)
        memcpy(c + i * ldc, start + i * n, (size_t)n * sizeof *c);
    CALL(makers, gemm, &args);
    assert_rows_near(makers->name, "gemm", c, ldc, expected, m, n, EXACT_FACTORS);
    assert_guards(makers->name, "gemm", c, m, n, ldc);
    float *all[] = {a, b, bias_n, start, c};
    for (int i = 0; i < 5; i++)
        free_floats(all[i]);
    free(expected);
}

static void products_of_exact_factors_are_right(void **state)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {13, 33, 7}, {130, 70, 50}, {70, 200, 33}};

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < 32; kind += 1 + (int)s)
            check_product(shapes[s][0], shapes[s][1], shapes[s][2], kind);
}

static void factors_are_rounded_to_nearest(void **state)
{
    /* 1 + 2^-11 is half way to the next of ten bits and goes away from 0; a little less goes to 1. */
    float a[2] = {1 + 0x1p-11f, 1 + 0x1p-12f}, one = 1, c[2];

    (void)state;
    CALL(makers, gemm, &(loom_gemm_args){.c_MN = c, .a_MK = a, .b_KN = &one, .m = 2, .n = 1, .k = 1});
    assert_true(c[0] == 1 + 0x1p-10f && c[1] == 1);
}

static void groups_of_rows_are_right(void **state)
{
    enum { GROUPS = 4, N = 40, K = 24 };
    static const int32_t offset[GROUPS + 1] = {0, 3, 3, 140, 141};
    float *a = tf32_floats(141 * K, 1), *b = tf32_floats(GROUPS * N * K, 2), *c = zero_floats(141 * N), *cg = zero_floats(GROUPS * K * N);
    double *expected = doubles(141 * N), *expected_g = doubles(GROUPS * K * N);

    (void)state;
    for (int g = 0; g < GROUPS; g++)
        for (int i = offset[g]; i < offset[g + 1]; i++)
            for (int j = 0; j < N; j++)
                for (int k = 0; k < K; k++)
                    expected[i * N + j] += (double)a[i * K + k] * b[(g * N + j) * K + k];
    CALL(makers, grouped_gemm,
         &(loom_grouped_gemm_args){
             .c = c, .a = a, .b = b, .offset_G1 = offset, .groups = GROUPS, .n = N, .k = K, .stride_b = N * K, .transpose_b = true});
    assert_near(makers->name, "grouped_gemm", c, expected, 141 * N, EXACT_FACTORS);
    for (int i = 0; i < 141 * N; i++) /* the weights' gradient of factors that are exact again */
        c[i] = b[i % (GROUPS * N * K)];
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < K * N; i++)
            for (int r = offset[g]; r < offset[g + 1]; r++)
                expected_g[g * K * N + i] += (double)a[r * K + i / N] * c[r * N + i % N];
    CALL(makers, grouped_gemm,
         &(loom_grouped_gemm_args){
             .c = cg, .a = a, .b = c, .offset_G1 = offset, .groups = GROUPS, .m = K, .n = N, .ragged_k = true, .stride_c = K * N});
    assert_near(makers->name, "grouped_gemm ragged_k", cg, expected_g, GROUPS * K * N, EXACT_FACTORS);
    float *all[] = {a, b, c, cg};
    for (int i = 0; i < 4; i++)
        free_floats(all[i]);
    free(expected);
    free(expected_g);
}

/* --- attention --- */

static void check_attention(loom_attention_args a)
{
    int64_t nq = a.batch * a.q_seq * a.heads * a.head_dim, nk = a.batch * a.k_seq * a.kv_heads * a.head_dim,
            rows = a.batch * a.heads * a.q_seq;
    float *q = tf32_floats(nq, 11), *k = tf32_floats(nk, 12), *v = tf32_floats(nk, 13), *d = tf32_floats(nq, 14);
    float *o = guarded_rows(1, nq, nq), *lse = guarded_rows(1, rows, rows), *dq = guarded_rows(1, nq, nq), *dk = guarded_rows(1, nk, nk),
          *dv = guarded_rows(1, nk, nk);
    double *ref_o = doubles(nq), *ref_lse = doubles(rows), *ref_dq = doubles(nq), *ref_dk = doubles(nk), *ref_dv = doubles(nk);

    a.q_BSHK = q, a.k_BSGK = k, a.v_BSGK = v, a.o_BSHK = o, a.lse_BHS = lse;
    ref_attention(&a, ref_o, ref_lse);
    ref_attention_backward(&a, d, ref_dq, ref_dk, ref_dv);
    CALL(makers, attention, &a);
    assert_near(makers->name, "lse", lse, ref_lse, rows, EXACT_FACTORS);
    assert_near(makers->name, "o", o, ref_o, nq, ROUNDED);
    CALL(makers, attention_backward,
         &(loom_attention_backward_args){.forward = a, .do_BSHK = d, .dq_BSHK = dq, .dk_BSGK = dk, .dv_BSGK = dv});
    assert_near(makers->name, "dv", dv, ref_dv, nk, ROUNDED);
    assert_near(makers->name, "dk", dk, ref_dk, nk, 2 * ROUNDED); /* delta is of an o that was rounded */
    assert_near(makers->name, "dq", dq, ref_dq, nq, 2 * ROUNDED);
    float *all[] = {q, k, v, d, o, lse, dq, dk, dv};
    const int64_t sizes[] = {0, 0, 0, 0, nq, rows, nq, nk, nk};
    for (int i = 4; i < 9; i++)
        assert_guards(makers->name, "attention", all[i], 1, sizes[i], sizes[i]);
    for (int i = 0; i < 9; i++)
        free_floats(all[i]);
    double *refs[] = {ref_o, ref_lse, ref_dq, ref_dk, ref_dv};
    for (int i = 0; i < 5; i++)
        free(refs[i]);
}

static void lengths_around_tile_edges_are_right(void **state)
{
    static const int64_t lengths[] = {1, 2, 17, 63, 64, 65, 130};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int causal = 0; causal < 2; causal++)
            check_attention((loom_attention_args){
                .batch = 1, .heads = 2, .kv_heads = 2, .q_seq = lengths[i], .k_seq = lengths[i], .head_dim = 20, .mask.causal = causal});
}

static void head_sizes_and_groups_are_right(void **state)
{
    static const int64_t sizes[] = {1, 8, 24, 64, 80, 128, 200};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_attention((loom_attention_args){
            .batch = 2, .heads = 4, .kv_heads = 2, .q_seq = 37, .k_seq = 37, .head_dim = sizes[i], .mask.causal = true});
}

static void windows_offsets_and_documents_are_right(void **state)
{
    enum { S = 150 };
    int32_t documents[S];

    (void)state;
    for (int i = 0; i < S; i++)
        documents[i] = i / 23;
    check_attention((loom_attention_args){
        .batch = 1, .heads = 2, .kv_heads = 1, .q_seq = S, .k_seq = S, .head_dim = 16, .mask = {.causal = true, .window = 40}});
    check_attention((loom_attention_args){.batch = 1,
                                          .heads = 2,
                                          .kv_heads = 1,
                                          .q_seq = 70,
                                          .k_seq = S,
                                          .head_dim = 16,
                                          .mask = {.causal = true, .q_start = 60, .k_start = 10}});
    check_attention((loom_attention_args){.batch = 1,
                                          .heads = 2,
                                          .kv_heads = 1,
                                          .q_seq = S,
                                          .k_seq = S,
                                          .head_dim = 16,
                                          .mask = {.causal = true, .q_documents_BS = documents, .k_documents_BS = documents}});
    check_attention((loom_attention_args){.batch = 1, .heads = 2, .kv_heads = 1, .q_seq = 40, .k_seq = 0, .head_dim = 16});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_exact_factors_are_right),
        cmocka_unit_test(factors_are_rounded_to_nearest),
        cmocka_unit_test(groups_of_rows_are_right),
        cmocka_unit_test(lengths_around_tile_edges_are_right),
        cmocka_unit_test(head_sizes_and_groups_are_right),
        cmocka_unit_test(windows_offsets_and_documents_are_right),
    };

    return cmocka_run_group_tests(tests, open_maker, close_makers);
}
