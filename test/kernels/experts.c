/* Mixture of experts: router, sorting, gathering, grouped products; each against f64 loops, and all together against the fixtures. */
#include "harness.h"

/* --- the router --- */

/* Choice and weights by the words of the rule, in f64. Everything is recomputed from logits, so that logits can also be varied. */
static void ref_router(const loom_router_rule *rule, const double *logit, const float *bias, double *score, int32_t *expert, double *weight)
{
    int64_t experts = rule->experts, groups = rule->groups > 1 ? rule->groups : 1, size = experts / groups;
    double choice[LOOM_ROUTER_EXPERTS_MAX], merit[LOOM_ROUTER_EXPERTS_MAX], largest = -INFINITY, sum = 0, kept = 0;

    for (int64_t i = 0; i < experts; i++)
        largest = fmax(largest, logit[i]);
    for (int64_t i = 0; i < experts; i++)
        sum += exp(logit[i] - largest);
    for (int64_t i = 0; i < experts; i++) {
        score[i] = rule->sigmoid ? 1 / (1 + exp(-logit[i])) : exp(logit[i] - largest) / sum;
        choice[i] = score[i] + (bias ? bias[i] : 0);
    }
    for (int64_t g = 0; g < groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (int64_t i = g * size; i < (g + 1) * size; i++) {
            second = fmax(second, fmin(best, choice[i]));
            best = fmax(best, choice[i]);
        }
        merit[g] = size > 1 ? best + second : best;
    }
    for (int64_t i = 0; i < experts; i++) {
        int64_t better = 0;
        for (int64_t g = 0; g < groups; g++)
            better += merit[g] > merit[i / size];
        if (groups > 1 && better >= rule->groups_kept)
            choice[i] = -INFINITY;
    }
    for (int64_t j = 0; j < rule->top_k; j++) {
        int64_t best = 0;
        for (int64_t i = 1; i < experts; i++)
            best = choice[i] > choice[best] ? i : best;
        expert[j] = (int32_t)best;
        weight[j] = score[best];
        kept += score[best];
        choice[best] = -INFINITY;
    }
    for (int64_t j = 0; j < rule->top_k; j++)
        weight[j] *= (rule->route_scale != 0 ? rule->route_scale : 1) / (rule->normalise ? kept : 1);
}

/* What the gradient of is checked: sum(weight dweight) + balance + z-loss, as a function of one token's logits; the choice stays as it is.
 */
typedef struct objective {
    loom_router_rule rule;
    const int32_t *expert;
    const float *dweight, *slope;
    bool share;
    double z; /* coefficient / tokens */
} objective;

static double objective_at(const objective *o, const double *logit)
{
    int64_t experts = o->rule.experts;
    double largest = -INFINITY, sum = 0, all = 0, kept = 0, value = 0, score[LOOM_ROUTER_EXPERTS_MAX];

    for (int64_t i = 0; i < experts; i++)
        largest = fmax(largest, logit[i]);
    for (int64_t i = 0; i < experts; i++)
        sum += exp(logit[i] - largest);
    for (int64_t i = 0; i < experts; i++) {
        score[i] = o->rule.sigmoid ? 1 / (1 + exp(-logit[i])) : exp(logit[i] - largest) / sum;
        all += score[i];
    }
    for (int64_t j = 0; j < o->rule.top_k; j++)
        kept += score[o->expert[j]];
    for (int64_t j = 0; j < o->rule.top_k; j++)
        value +=
            o->dweight[j] * score[o->expert[j]] * (o->rule.route_scale != 0 ? o->rule.route_scale : 1) / (o->rule.normalise ? kept : 1);
    for (int64_t i = 0; o->slope && i < experts; i++)
        value += o->slope[i] * score[i] / (o->share ? all : 1);
    return value + o->z * (largest + log(sum)) * (largest + log(sum));
}

static void check_router(loom_router_rule rule, int64_t tokens, bool biased, bool share, float z)
{
    int64_t experts = rule.experts, top_k = rule.top_k;
    float *logit = random_floats(tokens * experts, 1.5, 1), *bias = random_floats(experts, 0.1, 2),
          *dweight = random_floats(tokens * top_k, 1, 3);
    float *slope = random_floats(experts, 1, 4);
    double *score = doubles(tokens * experts), *weight = doubles(tokens * top_k), *dlogit = doubles(tokens * experts),
           x[LOOM_ROUTER_EXPERTS_MAX];
    int32_t *expert = calloc((size_t)(tokens * top_k), sizeof *expert), *got_expert = calloc((size_t)(tokens * top_k), sizeof *expert);

    for (int64_t t = 0; t < tokens; t++) {
        objective o = {rule, expert + t * top_k, dweight + t * top_k, slope, share, z};

        for (int64_t i = 0; i < experts; i++)
            x[i] = logit[t * experts + i];
        ref_router(&rule, x, biased ? bias : NULL, score + t * experts, expert + t * top_k, weight + t * top_k);
        for (int64_t i = 0; i < experts; i++) { /* central differences of the f64 objective: good to 1e-9 */
            double at = x[i], up, down;
            x[i] = at + 1e-5, up = objective_at(&o, x);
            x[i] = at - 1e-5, down = objective_at(&o, x);
            x[i] = at;
            dlogit[t * experts + i] = (up - down) / 2e-5;
        }
    }
    FOR_EACH_MAKER(m)
    {
        float *got_score = zero_floats(tokens * experts), *got_weight = zero_floats(tokens * top_k), *got = zero_floats(tokens * experts);
        float *lse = zero_floats(tokens);

        CALL(m, router,
             &(loom_router_args){.score_TE = got_score,
                                 .weight_TK = got_weight,
                                 .lse_T = lse,
                                 .expert_TK = got_expert,
                                 .logit_TE = logit,
                                 .bias_E = biased ? bias : NULL,
                                 .tokens = tokens,
                                 .rule = rule});
        assert_memory_equal(got_expert, expert, (size_t)(tokens * top_k) * sizeof *expert);
        assert_near(m->name, "scores", got_score, score, tokens * experts, 3e-7);
        assert_near(m->name, "weights", got_weight, weight, tokens * top_k, 5e-7);
        CALL(m, router_backward,
             &(loom_router_backward_args){.dlogit_TE = got,
                                          .dweight_TK = dweight,
                                          .score_TE = got_score,
                                          .expert_TK = expert,
                                          .slope_NE = slope,
                                          .logit_TE = logit,
                                          .lse_T = lse,
                                          .tokens = tokens,
                                          .share = share,
                                          .z_slope = 2 * z,
                                          .rule = rule});
        assert_near(m->name, "dlogit", got, dlogit, tokens * experts, 1e-6);
        free_floats(got_score);
        free_floats(got_weight);
        free_floats(got);
        free_floats(lse);
    }
    float *inputs[] = {logit, bias, dweight, slope};
    for (int i = 0; i < 4; i++)
        free_floats(inputs[i]);
    free(score);
    free(weight);
    free(dlogit);
    free(expert);
    free(got_expert);
}

static void routers_of_all_kinds_are_right(void **state)
{
    (void)state;
    check_router((loom_router_rule){.experts = 8, .top_k = 2, .normalise = true}, 30, false, false, 0);
    check_router((loom_router_rule){.experts = 8, .top_k = 2}, 30, false, false, 0.01f);
    check_router((loom_router_rule){.experts = 5, .top_k = 5, .normalise = true}, 7, true, true, 0);
    check_router((loom_router_rule){.experts = 1, .top_k = 1}, 3, false, false, 0);
    check_router((loom_router_rule){.experts = 64, .top_k = 6, .sigmoid = true, .normalise = true, .route_scale = 2.5f}, 20, true, true,
                 0.001f);
    check_router((loom_router_rule){.experts = 32, .top_k = 4, .sigmoid = true, .normalise = true, .groups = 8, .groups_kept = 3}, 40, true,
                 true, 0);
    check_router(
        (loom_router_rule){
            .experts = 256, .top_k = 8, .sigmoid = true, .normalise = true, .groups = 8, .groups_kept = 4, .route_scale = 2.5f},
        10, true, true, 0);
}

/* Tokens 2 .. 8 of sequences of 4 whose last is padding: numbers 3 and 7 choose nothing, and whatever their logits are, 0 is all that comes of them. */
static void padding_chooses_nothing_and_has_no_gradient(void **state)
{
    enum { E = 6, K = 2, T = 7 };
    float *logit = random_floats(T * E, 1, 1), *slope = random_floats(E, 1, 2), *dweight = random_floats(T * K, 1, 3);
    float score[T * E], weight[T * K], lse[T], dlogit[T * E], assigned[E], sums[E];
    int32_t expert[T * K];

    (void)state;
    for (int i = 0; i < E; i++)
        logit[E + i] = logit[5 * E + i] = i == 0 ? 1e30f : NAN;
    FOR_EACH_MAKER(m)
    {
        double all = 0, counted = 0;

        CALL(m, router,
             &(loom_router_args){.score_TE = score, .weight_TK = weight, .lse_T = lse, .expert_TK = expert, .logit_TE = logit, .tokens = T,
                                 .first = 2, .seq = 4, .counted = 3, .rule = {.experts = E, .top_k = K, .sigmoid = true, .normalise = true}});
        CALL(m, router_count,
             &(loom_router_count_args){.assigned_NE = assigned, .score_sum_NE = sums, .expert_TK = expert, .score_TE = score, .tokens = T, .experts = E,
                                       .top_k = K, .share = true});
        CALL(m, router_backward,
             &(loom_router_backward_args){.dlogit_TE = dlogit, .dweight_TK = dweight, .score_TE = score, .expert_TK = expert, .slope_NE = slope,
                                          .logit_TE = logit, .lse_T = lse, .tokens = T, .share = true, .z_slope = 0.1f,
                                          .rule = {.experts = E, .top_k = K, .sigmoid = true, .normalise = true}});
        for (int i = 0; i < E; i++) {
            all += sums[i];
            counted += assigned[i];
        }
        assert_true(fabs(all - (T - 2)) < 1e-5 && counted == (T - 2) * K);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < E; i++) {
                assert_true((expert[t * K + i % K] < 0) == (t == 1 || t == 5));
                assert_true((dlogit[t * E + i] == 0) == (t == 1 || t == 5));
            }
    }
    free_floats(logit);
    free_floats(slope);
    free_floats(dweight);
}

static void equal_scores_choose_the_lowest_index(void **state)
{
    enum { E = 20, K = 3 };
    float logit[E] = {0}, score[E], weight[K];
    int32_t expert[K];

    (void)state;
    logit[7] = logit[11] = 1;
    FOR_EACH_MAKER(m)
    {
        CALL(m, router,
             &(loom_router_args){.score_TE = score,
                                 .weight_TK = weight,
                                 .expert_TK = expert,
                                 .logit_TE = logit,
                                 .tokens = 1,
                                 .rule = {.experts = E, .top_k = K, .normalise = true}});
        assert_int_equal(expert[0], 7);
        assert_int_equal(expert[1], 11);
        assert_int_equal(expert[2], 0);
    }
}

static void a_nan_logit_chooses_real_experts_with_nan_weights(void **state)
{
    enum { E = 6, K = 3 };
    float logit[E], score[E], weight[K];
    int32_t expert[K];

    (void)state;
    for (int i = 0; i < E; i++)
        logit[i] = NAN;
    FOR_EACH_MAKER(m)
    {
        CALL(m, router,
             &(loom_router_args){.score_TE = score,
                                 .weight_TK = weight,
                                 .expert_TK = expert,
                                 .logit_TE = logit,
                                 .tokens = 1,
                                 .rule = {.experts = E, .top_k = K, .normalise = true}});
        for (int j = 0; j < K; j++) {
            assert_in_range(expert[j], 0, E - 1);
            assert_true(isnan(weight[j]));
            for (int i = 0; i < j; i++)
                assert_int_not_equal(expert[i], expert[j]);
        }
    }
}

/* --- sorting and gathering --- */

static void assignments_sort_stably_and_some_drop_out(void **state)
{
    enum { A = 200, E = 7, FIRST = 2 };
    int32_t expert[A], order[A], position[A], offset[E + 1];
    uint64_t random = 3;

    (void)state;
    for (int i = 0; i < A; i++)
        expert[i] = (int32_t)random_int(&random, -1, FIRST + E); /* dropped, other ranks', ours */
    FOR_EACH_MAKER(m)
    {
        int row = 0;

        CALL(m, sort_assignments,
             &(loom_sort_assignments_args){.order_R = order,
                                           .position_A = position,
                                           .offset_E1 = offset,
                                           .expert_A = expert,
                                           .assignments = A,
                                           .first = FIRST,
                                           .experts = E});
        for (int e = 0; e < E; e++) {
            assert_int_equal(offset[e], row);
            for (int i = 0; i < A; i++)
                if (expert[i] == FIRST + e) {
                    assert_int_equal(order[row], i);
                    assert_int_equal(position[i], row++);
                }
        }
        assert_int_equal(offset[E], row);
        for (; row < A; row++)
            assert_int_equal(order[row], -1);
        for (int i = 0; i < A; i++)
            if (expert[i] < FIRST || expert[i] >= FIRST + E)
                assert_int_equal(position[i], -1);
        CALL(m, sort_assignments, &(loom_sort_assignments_args){.offset_E1 = offset, .experts = E});
        for (int e = 0; e <= E; e++)
            assert_int_equal(offset[e], 0);
    }
}

static void rows_are_gathered_and_combined(void **state)
{
    enum { T = 9, K = 2, D = 37, R = T * K };
    float *x = random_floats(T * D, 1, 1), *weight = random_floats(R, 1, 2), *dy = random_floats(T * D, 1, 3);
    int32_t row[R];
    uint64_t random = 5;

    (void)state;
    for (int i = 0; i < R; i++)
        row[i] = (int32_t)random_int(&random, -1, R - 1);
    FOR_EACH_MAKER(m)
    {
        float *y = guarded_rows(R, D, D), *sum = copy_floats(dy, T * D), *dot = guarded_rows(1, R, R);
        double *expected = doubles(T * D), *dots = doubles(R);

        CALL(m, gather_rows,
             &(loom_gather_rows_args){.y_RD = y, .x_TD = x, .weight_A = weight, .row_R = row, .rows = R, .hidden = D, .divide = K});
        for (int i = 0; i < R * D; i++)
            assert_true(y[i] == (row[i / D] < 0 ? 0 : x[row[i / D] / K * D + i % D] * weight[row[i / D]]));
        assert_guards(m->name, "gather_rows", y, R, D, D);
        CALL(
            m, combine_rows,
            &(loom_combine_rows_args){
                .y_TD = sum, .x_RD = y, .weight_TK = weight, .position_TK = row, .tokens = T, .top_k = K, .hidden = D, .accumulate = true});
        CALL(m, combine_weights_backward,
             &(loom_combine_weights_backward_args){
                 .dweight_TK = dot, .dy_TD = dy, .x_RD = y, .position_TK = row, .tokens = T, .top_k = K, .hidden = D});
        for (int t = 0; t < T; t++)
            for (int d = 0; d < D; d++) {
                expected[t * D + d] = dy[t * D + d];
                for (int j = t * K; j < (t + 1) * K; j++)
                    if (row[j] >= 0) {
                        expected[t * D + d] += (double)weight[j] * y[row[j] * D + d];
                        dots[j] += (double)dy[t * D + d] * y[row[j] * D + d];
                    }
            }
        assert_near(m->name, "combine_rows", sum, expected, T * D, 3e-7);
        assert_near(m->name, "combine_weights_backward", dot, dots, R, 5e-7);
        assert_guards(m->name, "combine_weights_backward", dot, 1, R, R);
        free_floats(y);
        free_floats(sum);
        free_floats(dot);
        free(expected);
        free(dots);
    }
    free_floats(x);
    free_floats(weight);
    free_floats(dy);
}

/* --- grouped products --- */

static void check_grouped(const int32_t *offset, int64_t groups, int64_t n, int64_t k, int kind)
{
    bool transpose = kind & 1, accumulate = kind & 2;
    int64_t rows = offset[groups], pad = kind & 4 ? 3 : 0, lda = k + pad, ldb = (transpose ? k : n) + pad, ldc = n + pad;
    int64_t stride_b = (transpose ? n : k) * ldb;
    float *a = random_floats(rows * lda, 1, 1), *b = random_floats(groups * stride_b, 1, 2), *start = random_floats(rows * n, 1, 3);
    double *expected = doubles(rows * n);

    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = offset[g]; i < offset[g + 1]; i++)
            for (int64_t j = 0; j < n; j++) {
                const float *bg = b + g * stride_b;
                double sum = accumulate ? start[i * n + j] : 0;
                for (int64_t x = 0; x < k; x++)
                    sum += (double)a[i * lda + x] * bg[transpose ? j * ldb + x : x * ldb + j];
                expected[i * n + j] = sum;
            }
    FOR_EACH_MAKER(m)
    {
        float *c = guarded_rows(rows, n, ldc);

        for (int64_t i = 0; i < rows && accumulate; i++)
            memcpy(c + i * ldc, start + i * n, (size_t)n * sizeof *c);
        CALL(m, grouped_gemm,
             &(loom_grouped_gemm_args){.c = c,
                                       .a = a,
                                       .b = b,
                                       .offset_G1 = offset,
                                       .groups = groups,
                                       .n = n,
                                       .k = k,
                                       .lda = lda,
                                       .ldb = ldb,
                                       .ldc = ldc,
                                       .stride_b = stride_b,
                                       .transpose_b = transpose,
                                       .accumulate = accumulate});
        assert_rows_near(m->name, "grouped_gemm", c, ldc, expected, rows, n, 2e-6);
        assert_guards(m->name, "grouped_gemm", c, rows, n, ldc);
        free_floats(c);
    }
    free_floats(a);
    free_floats(b);
    free_floats(start);
    free(expected);
}

static void check_ragged_k(const int32_t *offset, int64_t groups, int64_t m_, int64_t n, bool accumulate)
{
    int64_t rows = offset[groups], size = m_ * n;
    float *a = random_floats(rows * m_, 1, 1), *b = random_floats(rows * n, 1, 2), *start = random_floats(groups * size, 1, 3);
    double *expected = doubles(groups * size);

    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < size; i++) {
            expected[g * size + i] = accumulate ? start[g * size + i] : 0;
            for (int64_t r = offset[g]; r < offset[g + 1]; r++)
                expected[g * size + i] += (double)a[r * m_ + i / n] * b[r * n + i % n];
        }
    FOR_EACH_MAKER(m)
    {
        float *c = copy_floats(start, groups * size);

        CALL(m, grouped_gemm,
             &(loom_grouped_gemm_args){.c = c,
                                       .a = a,
                                       .b = b,
                                       .offset_G1 = offset,
                                       .groups = groups,
                                       .m = m_,
                                       .n = n,
                                       .ragged_k = true,
                                       .stride_c = size,
                                       .accumulate = accumulate});
        assert_near(m->name, "grouped_gemm ragged_k", c, expected, groups * size, 2e-6);
        free_floats(c);
    }
    free_floats(a);
    free_floats(b);
    free_floats(start);
    free(expected);
}

static void grouped_products_are_right_for_any_group(void **state)
{
    static const int32_t few[] = {0, 3, 3, 20, 21}, one_takes_all[] = {0, 0, 0, 700, 700}, none[] = {0, 0, 0, 0, 0},
                         even[] = {0, 50, 100, 150, 200};

    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        check_grouped(few, 4, 37, 29, kind);
        check_grouped(even, 4, 300, 40, kind);
        check_grouped(none, 4, 5, 6, kind);
    }
    check_grouped(one_takes_all, 4, 40, 300, 1);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        check_ragged_k(few, 4, 37, 29, accumulate);
        check_ragged_k(one_takes_all, 4, 20, 30, accumulate);
        check_ragged_k(none, 4, 5, 6, accumulate);
        check_ragged_k(even, 4, 130, 270, accumulate);
    }
}

/* --- a whole layer, forward and backward, against the fixtures --- */

typedef struct layer {
    const char *operation;
    loom_router_rule rule;
    int64_t width; /* of an expert */
    bool biased, per_sequence;
} layer;

enum { T = 24, SEQUENCES = 2, D = 12, E = 8 };
static const double FEW = 4; /* times the distance of f32 PyTorch */

static const float *input_of(const layer *l, const char *name)
{
    char full[64];
    int64_t count;

    snprintf(full, sizeof full, "%s.in.%s", l->operation, name);
    return fixture(full, &count);
}

static void assert_output(const maker *m, const layer *l, const char *name, const float *got)
{
    char full[64];
    int64_t count;

    snprintf(full, sizeof full, "%s.out.%s", l->operation, name);
    double *expected = fixture_doubles(full, &count);
    double limit = FEW * fixture_distance(l->operation, name);
    if (count == 1)
        limit = fmax(limit, 3e-7); /* one number can lie near by luck: its limit is that of f32 sums */
    assert_near(m->name, full, got, expected, count, limit);
    free(expected);
}

static void assert_ints(const layer *l, const char *name, const int32_t *got)
{
    char full[64];
    int64_t count;

    snprintf(full, sizeof full, "%s.out.%s", l->operation, name);
    const int32_t *expected = fixture_ints(full, &count);
    assert_memory_equal(got, expected, (size_t)count * sizeof *got);
}

/* A SwiGLU of one dense expert over all tokens, added to y; its input gradient to dx. What the fixture calls shared. */
static void shared_expert(const maker *m, const layer *l, const float *x, const float *dy, float *y, float *dx)
{
    int64_t width = l->width;
    float *up = zero_floats(4 * T * width), *h = up + T * width, *dh = up + 2 * T * width, *gate = up + 3 * T * width;
    const float *wg = input_of(l, "shared_gate"), *wu = input_of(l, "shared_up"), *wd = input_of(l, "shared_down");

    CALL(m, gemm, &(loom_gemm_args){.c_MN = gate, .a_MK = x, .b_KN = wg, .m = T, .n = width, .k = D, .transpose_b = true});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = up, .a_MK = x, .b_KN = wu, .m = T, .n = width, .k = D, .transpose_b = true});
    CALL(m, swiglu, &(loom_swiglu_args){.y_TF = h, .gate_TF = gate, .up_TF = up, .tokens = T, .width = width});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = y, .a_MK = h, .b_KN = wd, .m = T, .n = D, .k = width, .transpose_b = true, .accumulate = true});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = dh, .a_MK = dy, .b_KN = wd, .m = T, .n = width, .k = D});
    CALL(m, swiglu_backward,
         &(loom_swiglu_backward_args){
             .dgate_TF = gate, .dup_TF = up, .dy_TF = dh, .gate_TF = gate, .up_TF = up, .tokens = T, .width = width});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = dx, .a_MK = gate, .b_KN = wg, .m = T, .n = D, .k = width, .accumulate = true});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = dx, .a_MK = up, .b_KN = wu, .m = T, .n = D, .k = width, .accumulate = true});
    free_floats(up);
}

static void check_balance(const maker *m, const layer *l, const float *x, const float *score, const int32_t *expert)
{
    float assigned[SEQUENCES * E], sums[SEQUENCES * E], slope[SEQUENCES * E], *dlogit = zero_floats(T * E), *dx = zero_floats(T * D),
                                                                              *drouter = zero_floats(E * D);
    int64_t segments = l->per_sequence ? SEQUENCES : 1, top_k = l->rule.top_k;
    double loss;

    CALL(m, router_count,
         &(loom_router_count_args){.assigned_NE = assigned,
                                   .score_sum_NE = sums,
                                   .expert_TK = expert,
                                   .score_TE = score,
                                   .tokens = T,
                                   .experts = E,
                                   .top_k = top_k,
                                   .segment = T / segments,
                                   .share = l->per_sequence});
    CALL(m, router_balance,
         &(loom_router_balance_args){.loss = &loss,
                                     .slope_NE = slope,
                                     .assigned_NE = assigned,
                                     .score_sum_NE = sums,
                                     .segments = segments,
                                     .experts = E,
                                     .top_k = top_k,
                                     .tokens = T / segments,
                                     .coefficient = 1});
    CALL(m, router_backward,
         &(loom_router_backward_args){.dlogit_TE = dlogit,
                                      .score_TE = score,
                                      .expert_TK = expert,
                                      .slope_NE = slope,
                                      .tokens = T,
                                      .segment = T / segments,
                                      .share = l->per_sequence,
                                      .rule = l->rule});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = dx, .a_MK = dlogit, .b_KN = input_of(l, "router"), .m = T, .n = D, .k = E});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = drouter, .a_MK = dlogit, .b_KN = x, .m = E, .n = D, .k = T, .transpose_a = true});
    float single = (float)loss;
    assert_output(m, l, "aux", &single);
    assert_output(m, l, "aux_dx", dx);
    assert_output(m, l, "aux_drouter", drouter);
    free_floats(dlogit);
    free_floats(dx);
    free_floats(drouter);
}

static void check_layer(const maker *m, const layer *l)
{
    int64_t top_k = l->rule.top_k, rows = T * top_k, width = l->width, matrix = width * D;
    const float *x = input_of(l, "x"), *dy = input_of(l, "dy"), *wr = input_of(l, "router");
    const float *wg = input_of(l, "gate"), *wu = input_of(l, "up"), *wd = input_of(l, "down");
    float *logit = zero_floats(T * E), *score = zero_floats(T * E), *weight = zero_floats(rows), *xs = zero_floats(rows * D),
          *gate = zero_floats(rows * width);
    float *up = zero_floats(rows * width), *h = zero_floats(rows * width), *ys = zero_floats(rows * D), *y = zero_floats(T * D),
          *dx = zero_floats(T * D);
    float *dys = zero_floats(rows * D), *dh = zero_floats(rows * width), *dweight = zero_floats(rows), *dxs = zero_floats(rows * D),
          *dlogit = zero_floats(T * E);
    float *dwg = zero_floats(E * matrix), *dwu = zero_floats(E * matrix), *dwd = zero_floats(E * matrix), *dwr = zero_floats(E * D);
    int32_t expert[T * 3], order[T * 3], position[T * 3], offset[E + 1], counts[E];

    CALL(m, gemm, &(loom_gemm_args){.c_MN = logit, .a_MK = x, .b_KN = wr, .m = T, .n = E, .k = D, .transpose_b = true});
    CALL(m, router,
         &(loom_router_args){.score_TE = score,
                             .weight_TK = weight,
                             .expert_TK = expert,
                             .logit_TE = logit,
                             .bias_E = l->biased ? input_of(l, "bias") : NULL,
                             .tokens = T,
                             .rule = l->rule});
    CALL(m, sort_assignments,
         &(loom_sort_assignments_args){
             .order_R = order, .position_A = position, .offset_E1 = offset, .expert_A = expert, .assignments = rows, .experts = E});
    CALL(m, gather_rows, &(loom_gather_rows_args){.y_RD = xs, .x_TD = x, .row_R = order, .rows = rows, .hidden = D, .divide = top_k});
    const loom_grouped_gemm_args in = {
        .a = xs, .offset_G1 = offset, .groups = E, .n = width, .k = D, .stride_b = matrix, .transpose_b = true};
    loom_grouped_gemm_args call = in;
    call.c = gate, call.b = wg;
    CALL(m, grouped_gemm, &call);
    call.c = up, call.b = wu;
    CALL(m, grouped_gemm, &call);
    CALL(m, swiglu, &(loom_swiglu_args){.y_TF = h, .gate_TF = gate, .up_TF = up, .tokens = rows, .width = width});
    CALL(m, grouped_gemm,
         &(loom_grouped_gemm_args){
             .c = ys, .a = h, .b = wd, .offset_G1 = offset, .groups = E, .n = D, .k = width, .stride_b = matrix, .transpose_b = true});
    CALL(m, combine_rows,
         &(loom_combine_rows_args){
             .y_TD = y, .x_RD = ys, .weight_TK = weight, .position_TK = position, .tokens = T, .top_k = top_k, .hidden = D});

    CALL(m, gather_rows,
         &(loom_gather_rows_args){.y_RD = dys, .x_TD = dy, .weight_A = weight, .row_R = order, .rows = rows, .hidden = D, .divide = top_k});
    CALL(m, combine_weights_backward,
         &(loom_combine_weights_backward_args){
             .dweight_TK = dweight, .dy_TD = dy, .x_RD = ys, .position_TK = position, .tokens = T, .top_k = top_k, .hidden = D});
    CALL(m, grouped_gemm,
         &(loom_grouped_gemm_args){.c = dwd,
                                   .a = dys,
                                   .b = h,
                                   .offset_G1 = offset,
                                   .groups = E,
                                   .m = D,
                                   .n = width,
                                   .ragged_k = true,
                                   .stride_c = matrix,
                                   .accumulate = true});
    CALL(m, grouped_gemm,
         &(loom_grouped_gemm_args){.c = dh, .a = dys, .b = wd, .offset_G1 = offset, .groups = E, .n = width, .k = D, .stride_b = matrix});
    CALL(m, swiglu_backward,
         &(loom_swiglu_backward_args){
             .dgate_TF = gate, .dup_TF = up, .dy_TF = dh, .gate_TF = gate, .up_TF = up, .tokens = rows, .width = width});
    CALL(m, grouped_gemm,
         &(loom_grouped_gemm_args){.c = dwg,
                                   .a = gate,
                                   .b = xs,
                                   .offset_G1 = offset,
                                   .groups = E,
                                   .m = width,
                                   .n = D,
                                   .ragged_k = true,
                                   .stride_c = matrix,
                                   .accumulate = true});
    CALL(m, grouped_gemm,
         &(loom_grouped_gemm_args){.c = dwu,
                                   .a = up,
                                   .b = xs,
                                   .offset_G1 = offset,
                                   .groups = E,
                                   .m = width,
                                   .n = D,
                                   .ragged_k = true,
                                   .stride_c = matrix,
                                   .accumulate = true});
    CALL(m, grouped_gemm,
         &(loom_grouped_gemm_args){.c = dxs, .a = gate, .b = wg, .offset_G1 = offset, .groups = E, .n = D, .k = width, .stride_b = matrix});
    CALL(m, grouped_gemm,
         &(loom_grouped_gemm_args){
             .c = dxs, .a = up, .b = wu, .offset_G1 = offset, .groups = E, .n = D, .k = width, .stride_b = matrix, .accumulate = true});
    CALL(m, combine_rows,
         &(loom_combine_rows_args){.y_TD = dx, .x_RD = dxs, .position_TK = position, .tokens = T, .top_k = top_k, .hidden = D});
    CALL(m, router_backward,
         &(loom_router_backward_args){
             .dlogit_TE = dlogit, .dweight_TK = dweight, .score_TE = score, .expert_TK = expert, .tokens = T, .rule = l->rule});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = dx, .a_MK = dlogit, .b_KN = wr, .m = T, .n = D, .k = E, .accumulate = true});
    CALL(m, gemm, &(loom_gemm_args){.c_MN = dwr, .a_MK = dlogit, .b_KN = x, .m = E, .n = D, .k = T, .transpose_a = true});
    if (l->biased)
        shared_expert(m, l, x, dy, y, dx);

    for (int e = 0; e < E; e++)
        counts[e] = offset[e + 1] - offset[e];
    assert_ints(l, "expert_ids", expert);
    assert_ints(l, "order", order);
    assert_ints(l, "tokens_per_expert", counts);
    const struct {
        const char *name;
        const float *got;
    } outputs[] = {{"logits", logit}, {"scores", score}, {"expert_weights", weight}, {"permuted_x", xs},
                   {"y", y},          {"dx", dx},        {"drouter", dwr},           {"dgate", dwg},
                   {"dup", dwu},      {"ddown", dwd}};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
        assert_output(m, l, outputs[i].name, outputs[i].got);
    check_balance(m, l, x, score, expert);
    float *all[] = {logit, score, weight, xs, gate, up, h, ys, y, dx, dys, dh, dweight, dxs, dlogit, dwg, dwu, dwd, dwr};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free_floats(all[i]);
}

static void the_fixtures_are_met_by_whole_layers(void **state)
{
    const layer mixtral = {.operation = "moe_softmax", .rule = {.experts = E, .top_k = 2, .normalise = true}, .width = 10};
    const layer deepseek = {
        .operation = "moe_sigmoid",
        .rule = {.experts = E, .top_k = 3, .groups = 4, .groups_kept = 2, .sigmoid = true, .normalise = true, .route_scale = 2.5f},
        .width = 6,
        .biased = true,
        .per_sequence = true};

    (void)state;
    FOR_EACH_MAKER(m)
    {
        check_layer(m, &mixtral);
        check_layer(m, &deepseek);
    }
}

static void wrong_rules_are_named(void **state)
{
    const maker *m = &makers[0];
    float x[64];
    int32_t ids[64];
    loom_router_args a = {.score_TE = x, .weight_TK = x, .expert_TK = ids, .logit_TE = x, .tokens = 1, .rule = {.experts = 8, .top_k = 9}};

    (void)state;
    assert_refused(m->kernels->router(m->kernels, &a, m->stream), LOOM_E_INVALID, "top_k=9", "8 experts");
    a.rule.top_k = 2, a.rule.groups = 3;
    assert_refused(m->kernels->router(m->kernels, &a, m->stream), LOOM_E_INVALID, "3 groups");
    a.rule.groups = 8, a.rule.groups_kept = 1;
    assert_refused(m->kernels->router(m->kernels, &a, m->stream), LOOM_E_INVALID, "1 of 8 groups", "leave no 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers_of_all_kinds_are_right),
        cmocka_unit_test(padding_chooses_nothing_and_has_no_gradient),
        cmocka_unit_test(equal_scores_choose_the_lowest_index),
        cmocka_unit_test(a_nan_logit_chooses_real_experts_with_nan_weights),
        cmocka_unit_test(assignments_sort_stably_and_some_drop_out),
        cmocka_unit_test(rows_are_gathered_and_combined),
        cmocka_unit_test(grouped_products_are_right_for_any_group),
        cmocka_unit_test(the_fixtures_are_met_by_whole_layers),
        cmocka_unit_test(wrong_rules_are_named),
    };

    return cmocka_run_group_tests(tests, open_makers, close_makers);
}
