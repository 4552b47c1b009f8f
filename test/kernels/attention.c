/* Attention of every maker against f64 loops: lengths around the block edges, GQA, windows, documents, positions of a ring, fused buffers.
 */
#include "harness.h"
#include "ref.h"

/* Forward lands near 1e-7; backward sums more and subtracts. Both grow with the length. */
static const double FORWARD = 8e-7, BACKWARD = 2e-6;

typedef struct problem {
    loom_attention_args a;
    float *q, *k, *v, *dout;
    double *o, *lse, *dq, *dk, *dv;
    double factor; /* of the tolerances: scores of q and k `scale` times as large are off by more */
} problem;

static int64_t q_count(const loom_attention_args *a)
{
    return a->batch * a->q_seq * a->heads * a->head_dim;
}

static int64_t k_count(const loom_attention_args *a)
{
    return a->batch * a->k_seq * a->kv_heads * a->head_dim;
}

static problem make_problem(loom_attention_args a, double scale)
{
    problem p = {.a = a, .factor = scale};

    p.q = random_floats(q_count(&a), scale, 11);
    p.k = random_floats(k_count(&a), scale, 12);
    p.v = random_floats(k_count(&a), 1, 13);
    p.dout = random_floats(q_count(&a), 1, 14);
    p.a.q_BSHK = p.q;
    p.a.k_BSGK = p.k;
    p.a.v_BSGK = p.v;
    p.o = doubles(q_count(&a));
    p.lse = doubles(a.batch * a.heads * a.q_seq);
    p.dq = doubles(q_count(&a));
    p.dk = doubles(k_count(&a));
    p.dv = doubles(k_count(&a));
    ref_attention(&p.a, p.o, p.lse);
    ref_attention_backward(&p.a, p.dout, p.dq, p.dk, p.dv);
    return p;
}

static void free_problem(problem *p)
{
    free_floats(p->q);
    free_floats(p->k);
    free_floats(p->v);
    free_floats(p->dout);
    free(p->o);
    free(p->lse);
    free(p->dq);
    free(p->dk);
    free(p->dv);
}

static void run_problem(const problem *p, const maker *m)
{
    loom_attention_args a = p->a;
    int64_t q = q_count(&a), k = k_count(&a), rows = a.batch * a.heads * a.q_seq;
    float *o = guarded_rows(1, q, q), *lse = guarded_rows(1, rows, rows);
    float *dq = guarded_rows(1, q, q), *dk = guarded_rows(1, k, k), *dv = guarded_rows(1, k, k);

    a.o_BSHK = o;
    a.lse_BHS = lse;
    CALL(m, attention, &a);
    assert_near(m->name, "o", o, p->o, q, p->factor * FORWARD);
    assert_near(m->name, "lse", lse, p->lse, rows, p->factor * FORWARD);
    loom_attention_backward_args b = {.forward = a, .do_BSHK = p->dout, .dq_BSHK = dq, .dk_BSGK = dk, .dv_BSGK = dv};
    CALL(m, attention_backward, &b);
    assert_near(m->name, "dq", dq, p->dq, q, p->factor * BACKWARD);
    assert_near(m->name, "dk", dk, p->dk, k, p->factor * BACKWARD);
    assert_near(m->name, "dv", dv, p->dv, k, p->factor * BACKWARD);
    assert_guards(m->name, "o", o, 1, q, q);
    assert_guards(m->name, "lse", lse, 1, rows, rows);
    assert_guards(m->name, "dq", dq, 1, q, q);
    assert_guards(m->name, "dk", dk, 1, k, k);
    assert_guards(m->name, "dv", dv, 1, k, k);
    free_floats(o);
    free_floats(lse);
    free_floats(dq);
    free_floats(dk);
    free_floats(dv);
}

static void check(loom_attention_args a, double scale)
{
    problem p = make_problem(a, scale);

    FOR_EACH_MAKER(m)
    {
        run_problem(&p, m);
    }
    free_problem(&p);
}

static void lengths_around_block_edges_are_right(void **state)
{
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 257};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int causal = 0; causal < 2; causal++)
            check(
                (loom_attention_args){
                    .batch = 1, .heads = 2, .kv_heads = 2, .q_seq = lengths[i], .k_seq = lengths[i], .head_dim = 20, .mask.causal = causal},
                1);
}

static void head_sizes_and_groups_are_right(void **state)
{
    static const int64_t sizes[] = {1, 3, 8, 16, 24, 64, 80};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check(
            (loom_attention_args){
                .batch = 2, .heads = 6, .kv_heads = 2, .q_seq = 37, .k_seq = 37, .head_dim = sizes[i], .mask.causal = true},
            1);
}

static void long_rows_and_large_scores_are_right(void **state)
{
    (void)state;
    check((loom_attention_args){.batch = 1, .heads = 1, .kv_heads = 1, .q_seq = 300, .k_seq = 600, .head_dim = 16}, 1);
    check(
        (loom_attention_args){
            .batch = 1, .heads = 1, .kv_heads = 1, .q_seq = 300, .k_seq = 300, .head_dim = 16, .mask.causal = true, .scale = 0.3f},
        4);
}

static void windows_and_offsets_are_right(void **state)
{
    (void)state;
    check(
        (loom_attention_args){
            .batch = 2, .heads = 2, .kv_heads = 1, .q_seq = 150, .k_seq = 150, .head_dim = 16, .mask = {.causal = true, .window = 40}},
        1);
    check(
        (loom_attention_args){
            .batch = 1, .heads = 2, .kv_heads = 1, .q_seq = 70, .k_seq = 190, .head_dim = 16, .mask = {.causal = true, .q_start = 120}},
        1);
    check(
        (loom_attention_args){
            .batch = 1, .heads = 2, .kv_heads = 1, .q_seq = 90, .k_seq = 90, .head_dim = 16, .mask = {.causal = true, .k_start = 50}},
        1);
}

static void documents_do_not_see_each_other(void **state)
{
    enum { B = 2, S = 170 };
    int32_t documents[B * S];
    uint64_t random = 5;

    (void)state;
    for (int i = 0; i < B * S; i++)
        documents[i] = i % S == 0 ? 0 : documents[i - 1] + (random_int(&random, 0, 19) == 0);
    check((loom_attention_args){.batch = B,
                                .heads = 2,
                                .kv_heads = 1,
                                .q_seq = S,
                                .k_seq = S,
                                .head_dim = 16,
                                .mask = {.causal = true, .q_documents_BS = documents, .k_documents_BS = documents}},
          1);
}

/* A zigzag rank of a ring: two pieces of the sequence, in one buffer, against another rank's two pieces. */
static void positions_of_a_zigzag_ring_are_right(void **state)
{
    enum { PIECE = 45, S = 2 * PIECE };
    int32_t mine[S], theirs[S];

    (void)state;
    for (int i = 0; i < PIECE; i++) {
        mine[i] = PIECE + i, mine[PIECE + i] = 2 * PIECE + i;
        theirs[i] = i, theirs[PIECE + i] = 3 * PIECE + i;
    }
    check((loom_attention_args){.batch = 1,
                                .heads = 2,
                                .kv_heads = 2,
                                .q_seq = S,
                                .k_seq = S,
                                .head_dim = 16,
                                .mask = {.causal = true, .q_positions_S = mine, .k_positions_S = theirs}},
          1);
}

static void no_keys_at_all_is_legal(void **state)
{
    (void)state;
    check((loom_attention_args){.batch = 2, .heads = 2, .kv_heads = 1, .q_seq = 70, .k_seq = 0, .head_dim = 16, .mask.causal = true}, 1);
    check((loom_attention_args){.batch = 1, .heads = 2, .kv_heads = 1, .q_seq = 0, .k_seq = 5, .head_dim = 16, .mask.causal = true}, 1);
}

static void a_query_without_keys_gives_zero_and_minus_infinity(void **state)
{
    enum { S = 20, K = 8 };
    float *x = random_floats(S * K, 1, 1), *o = random_floats(S * K, 1, 2), *lse = zero_floats(S), *d = random_floats(3 * S * K, 1, 3);

    (void)state;
    FOR_EACH_MAKER(m)
    {
        loom_attention_args a = {.o_BSHK = o,
                                 .lse_BHS = lse,
                                 .q_BSHK = x,
                                 .k_BSGK = x,
                                 .v_BSGK = x,
                                 .batch = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .q_seq = S,
                                 .k_seq = S,
                                 .head_dim = K,
                                 .mask = {.causal = true, .k_start = 1000}};
        CALL(m, attention, &a);
        CALL(m, attention_backward,
             &(loom_attention_backward_args){.forward = a, .do_BSHK = x, .dq_BSHK = d, .dk_BSGK = d + S * K, .dv_BSGK = d + 2 * S * K});
        for (int i = 0; i < S; i++)
            assert_true(lse[i] == -INFINITY);
        for (int i = 0; i < S * K; i++)
            assert_true(o[i] == 0);
        for (int i = 0; i < 3 * S * K; i++)
            assert_true(d[i] == 0);
    }
    free_floats(x);
    free_floats(o);
    free_floats(lse);
    free_floats(d);
}

/* q, k, v side by side in one row, as one projection writes them; gradients into a buffer of the same form; then added to what is there. */
static void fused_buffers_are_read_and_written_in_place(void **state)
{
    enum { B = 2, S = 70, H = 4, G = 2, K = 24, ROW = (H + 2 * G) * K };
    loom_attention_args a = {.batch = B, .heads = H, .kv_heads = G, .q_seq = S, .k_seq = S, .head_dim = K, .mask.causal = true};
    problem p = make_problem(a, 1);
    float *qkv = zero_floats(B * S * ROW), *dqkv = zero_floats(B * S * ROW), *o = zero_floats(B * S * H * K), *lse = zero_floats(B * H * S);
    double *expected = doubles(B * S * ROW);
    const loom_bshk row = {.token = ROW};

    (void)state;
    for (int t = 0; t < B * S; t++) {
        memcpy(qkv + t * ROW, p.q + t * H * K, H * K * sizeof *qkv);
        memcpy(qkv + t * ROW + H * K, p.k + t * G * K, G * K * sizeof *qkv);
        memcpy(qkv + t * ROW + (H + G) * K, p.v + t * G * K, G * K * sizeof *qkv);
        memcpy(expected + t * ROW, p.dq + t * H * K, H * K * sizeof *expected);
        memcpy(expected + t * ROW + H * K, p.dk + t * G * K, G * K * sizeof *expected);
        memcpy(expected + t * ROW + (H + G) * K, p.dv + t * G * K, G * K * sizeof *expected);
    }
    a.q_BSHK = qkv, a.k_BSGK = qkv + H * K, a.v_BSGK = qkv + (H + G) * K, a.o_BSHK = o, a.lse_BHS = lse;
    a.q_at = a.k_at = a.v_at = row;
    FOR_EACH_MAKER(m)
    {
        loom_attention_backward_args b = {.forward = a,
                                          .do_BSHK = p.dout,
                                          .dq_BSHK = dqkv,
                                          .dk_BSGK = dqkv + H * K,
                                          .dv_BSGK = dqkv + (H + G) * K,
                                          .dq_at = row,
                                          .dk_at = row,
                                          .dv_at = row};
        CALL(m, attention, &a);
        assert_near(m->name, "o", o, p.o, B * S * H * K, FORWARD);
        CALL(m, attention_backward, &b);
        assert_near(m->name, "dqkv", dqkv, expected, B * S * ROW, BACKWARD);
        b.accumulate_dq = b.accumulate_dkv = true;
        CALL(m, attention_backward, &b);
        for (int i = 0; i < B * S * ROW; i++)
            dqkv[i] /= 2;
        assert_near(m->name, "dqkv, added twice", dqkv, expected, B * S * ROW, BACKWARD);
    }
    free_problem(&p);
    free_floats(qkv);
    free_floats(dqkv);
    free_floats(o);
    free_floats(lse);
    free(expected);
}

/* What a ring does: keys in three pieces, merged forward; backward piece by piece with the merged o and lse. */
static void pieces_of_the_keys_merge_to_the_whole(void **state)
{
    enum { B = 1, S = 90, H = 2, K = 16, PIECE = 30 };
    loom_attention_args a = {.batch = B, .heads = H, .kv_heads = H, .q_seq = S, .k_seq = S, .head_dim = K, .mask.causal = true};
    problem p = make_problem(a, 1);
    int64_t n = q_count(&a);
    float *o = zero_floats(n), *lse = zero_floats(B * H * S), *o2 = zero_floats(n), *lse2 = zero_floats(B * H * S);
    float *dq = zero_floats(n), *dk = zero_floats(n), *dv = zero_floats(n);

    (void)state;
    FOR_EACH_MAKER(m)
    {
        for (int piece = 0; piece < S / PIECE; piece++) {
            loom_attention_args part = p.a;
            part.k_BSGK += piece * PIECE * H * K, part.v_BSGK += piece * PIECE * H * K;
            part.k_seq = PIECE, part.mask.k_start = piece * PIECE;
            part.o_BSHK = piece ? o2 : o, part.lse_BHS = piece ? lse2 : lse;
            CALL(m, attention, &part);
            if (piece)
                CALL(m, attention_merge,
                     &(loom_attention_merge_args){
                         .o_BSHK = o, .lse_BHS = lse, .o2_BSHK = o2, .lse2_BHS = lse2, .batch = B, .heads = H, .seq = S, .head_dim = K});
        }
        assert_near(m->name, "merged o", o, p.o, n, FORWARD);
        assert_near(m->name, "merged lse", lse, p.lse, B * H * S, FORWARD);
        for (int piece = 0; piece < S / PIECE; piece++) {
            loom_attention_backward_args b = {.forward = p.a,
                                              .do_BSHK = p.dout,
                                              .dq_BSHK = dq,
                                              .dk_BSGK = dk + piece * PIECE * H * K,
                                              .dv_BSGK = dv + piece * PIECE * H * K,
                                              .accumulate_dq = piece > 0};
            b.forward.k_BSGK += piece * PIECE * H * K, b.forward.v_BSGK += piece * PIECE * H * K;
            b.forward.k_seq = PIECE, b.forward.mask.k_start = piece * PIECE;
            b.forward.o_BSHK = o, b.forward.lse_BHS = lse;
            CALL(m, attention_backward, &b);
        }
        assert_near(m->name, "dq in pieces", dq, p.dq, n, BACKWARD);
        assert_near(m->name, "dk in pieces", dk, p.dk, n, BACKWARD);
        assert_near(m->name, "dv in pieces", dv, p.dv, n, BACKWARD);
    }
    free_problem(&p);
    free_floats(o);
    free_floats(lse);
    free_floats(o2);
    free_floats(lse2);
    free_floats(dq);
    free_floats(dk);
    free_floats(dv);
}

static void a_nan_in_a_query_shows_in_its_row(void **state)
{
    enum { S = 40, K = 16 };
    float *x = random_floats(S * K, 1, 1), *q = random_floats(S * K, 1, 2), *o = zero_floats(S * K), *lse = zero_floats(S);

    (void)state;
    q[7 * K + 2] = NAN;
    FOR_EACH_MAKER(m)
    {
        CALL(m, attention,
             &(loom_attention_args){.o_BSHK = o,
                                    .lse_BHS = lse,
                                    .q_BSHK = q,
                                    .k_BSGK = x,
                                    .v_BSGK = x,
                                    .batch = 1,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .q_seq = S,
                                    .k_seq = S,
                                    .head_dim = K,
                                    .mask.causal = true});
        for (int i = 0; i < S; i++) {
            assert_true(!!isnan(lse[i]) == (i == 7));
            assert_true(!!isnan(o[i * K]) == (i == 7));
        }
    }
    free_floats(x);
    free_floats(q);
    free_floats(o);
    free_floats(lse);
}

static void the_same_call_twice_has_the_same_bits(void **state)
{
    enum { S = 260, H = 2, K = 16, N = S * H * K };
    float *x = random_floats(3 * N, 1, 1), *out[2];

    (void)state;
    FOR_EACH_MAKER(m)
    {
        for (int run = 0; run < 2; run++) {
            out[run] = zero_floats(4 * N + H * S);
            loom_attention_args a = {.o_BSHK = out[run],
                                     .lse_BHS = out[run] + 4 * N,
                                     .q_BSHK = x,
                                     .k_BSGK = x + N,
                                     .v_BSGK = x + 2 * N,
                                     .batch = 1,
                                     .heads = H,
                                     .kv_heads = H,
                                     .q_seq = S,
                                     .k_seq = S,
                                     .head_dim = K,
                                     .mask.causal = true};
            CALL(m, attention, &a);
            CALL(m, attention_backward,
                 &(loom_attention_backward_args){
                     .forward = a, .do_BSHK = x, .dq_BSHK = out[run] + N, .dk_BSGK = out[run] + 2 * N, .dv_BSGK = out[run] + 3 * N});
        }
        assert_memory_equal(out[0], out[1], (4 * N + H * S) * sizeof(float));
        free_floats(out[0]);
        free_floats(out[1]);
    }
    free_floats(x);
}

static void check_fixture(const char *operation, int64_t heads, int64_t kv_heads)
{
    enum { B = 2, S = 12, K = 8 };
    static const char *outputs[] = {"o", "lse", "dq", "dk", "dv"};
    int64_t q = B * S * heads * K, k = B * S * kv_heads * K, rows = B * heads * S, sizes[] = {q, rows, q, k, k}, count;
    char name[64];
    const float *in[4];
    const double few = 4; /* times the distance of f32 PyTorch */

    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s.in.%s", operation, (const char *[]){"q", "k", "v", "do"}[i]);
        in[i] = fixture(name, &count);
    }
    FOR_EACH_MAKER(m)
    {
        float *out[5];
        for (int i = 0; i < 5; i++)
            out[i] = zero_floats(sizes[i]);
        loom_attention_args a = {.o_BSHK = out[0],
                                 .lse_BHS = out[1],
                                 .q_BSHK = in[0],
                                 .k_BSGK = in[1],
                                 .v_BSGK = in[2],
                                 .batch = B,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .q_seq = S,
                                 .k_seq = S,
                                 .head_dim = K,
                                 .mask.causal = true};
        CALL(m, attention, &a);
        CALL(m, attention_backward,
             &(loom_attention_backward_args){.forward = a, .do_BSHK = in[3], .dq_BSHK = out[2], .dk_BSGK = out[3], .dv_BSGK = out[4]});
        for (int i = 0; i < 5; i++) {
            snprintf(name, sizeof name, "%s.out.%s", operation, outputs[i]);
            double *expected = fixture_doubles(name, &count);
            assert_int_equal(count, sizes[i]);
            assert_near(m->name, name, out[i], expected, count, few * fixture_distance(operation, outputs[i]));
            free(expected);
            free_floats(out[i]);
        }
    }
}

static void the_fixtures_are_met(void **state)
{
    (void)state;
    check_fixture("attention_mha", 3, 3);
    check_fixture("attention_gqa", 6, 2);
}

static void wrong_arguments_are_named(void **state)
{
    const maker *m = &makers[0];
    float x[64] = {0};
    int32_t ids[8] = {0};
    const loom_attention_args good = {.o_BSHK = x,
                                      .lse_BHS = x,
                                      .q_BSHK = x,
                                      .k_BSGK = x,
                                      .v_BSGK = x,
                                      .batch = 1,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .q_seq = 2,
                                      .k_seq = 2,
                                      .head_dim = 2};
    loom_attention_args a = good;

    (void)state;
    a.kv_heads = 3;
    assert_refused(m->kernels->attention(m->kernels, &a, m->stream), LOOM_E_INVALID, "3", "4 heads");
    a = good, a.mask.q_documents_BS = ids;
    assert_refused(m->kernels->attention(m->kernels, &a, m->stream), LOOM_E_INVALID, "documents");
    a = good, a.q_at.token = 7;
    assert_refused(m->kernels->attention(m->kernels, &a, m->stream), LOOM_E_INVALID, "q_at.token=7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_around_block_edges_are_right),
        cmocka_unit_test(head_sizes_and_groups_are_right),
        cmocka_unit_test(long_rows_and_large_scores_are_right),
        cmocka_unit_test(windows_and_offsets_are_right),
        cmocka_unit_test(documents_do_not_see_each_other),
        cmocka_unit_test(positions_of_a_zigzag_ring_are_right),
        cmocka_unit_test(no_keys_at_all_is_legal),
        cmocka_unit_test(a_query_without_keys_gives_zero_and_minus_infinity),
        cmocka_unit_test(fused_buffers_are_read_and_written_in_place),
        cmocka_unit_test(pieces_of_the_keys_merge_to_the_whole),
        cmocka_unit_test(a_nan_in_a_query_shows_in_its_row),
        cmocka_unit_test(the_same_call_twice_has_the_same_bits),
        cmocka_unit_test(the_fixtures_are_met),
        cmocka_unit_test(wrong_arguments_are_named),
    };

    return cmocka_run_group_tests(tests, open_makers, close_makers);
}
