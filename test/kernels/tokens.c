/* Rotary positions, embeddings, cross-entropy and argmax of every maker. */
#include "harness.h"

static void check_rope_fixture(const char *suffix, int64_t start, double theta)
{
    enum { B = 2, S = 6, H = 3, K = 16, N = B * S * H * K };
    static const char *outputs[] = {"cos", "sin", "y", "dx"};
    const double few = 4; /* times the distance of f32 PyTorch */
    char name[64], key[32];
    int64_t count;
    const float *x = fixture("rope.in.x", &count), *dy = fixture("rope.in.dy", &count);

    FOR_EACH_MAKER(m)
    {
        float *got[4] = {zero_floats(S * K / 2), zero_floats(S * K / 2), zero_floats(N), zero_floats(N)};
        loom_rope_args a = {.y_THK = got[2],
                            .x_THK = x,
                            .cos_PK = got[0],
                            .sin_PK = got[1],
                            .tokens = B * S,
                            .heads = H,
                            .head_dim = K,
                            .positions = S,
                            .seq = S};

        CALL(m, rope_table,
             &(loom_rope_table_args){.cos_PK = got[0], .sin_PK = got[1], .positions = S, .head_dim = K, .start = start, .theta = theta});
        CALL(m, rope, &a);
        a.y_THK = got[3], a.x_THK = dy, a.inverse = true;
        CALL(m, rope, &a);
        for (int i = 0; i < 4; i++) {
            snprintf(key, sizeof key, "%s%s", outputs[i], suffix);
            snprintf(name, sizeof name, "rope.out.%s", key);
            double *expected = fixture_doubles(name, &count);
            assert_near(m->name, name, got[i], expected, count, few * fixture_distance("rope", key));
            free(expected);
            free_floats(got[i]);
        }
    }
}

static void rope_meets_the_fixtures(void **state)
{
    (void)state;
    check_rope_fixture("", 0, 10000);
    check_rope_fixture("_at_4090", 4090, 500000);
}

/* In place, inside a fused row, by explicit table rows; then back again. */
static void rope_turns_in_place_and_back(void **state)
{
    enum { T = 7, H = 3, K = 10, ROW = H * K + 9, P = 20 };
    static const int32_t rows[T] = {0, 19, 3, 3, 7, 11, 2};
    float *x = random_floats(T * ROW, 1, 1), *c = zero_floats(P * K / 2), *s = zero_floats(P * K / 2);
    double *expected = doubles(T * H * K), *original = doubles(T * H * K);

    (void)state;
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < K / 2; i++) {
                double angle = rows[t] * pow(100.0, -2.0 * i / K), low = x[t * ROW + h * K + i], high = x[t * ROW + h * K + K / 2 + i];
                double *e = expected + (t * H + h) * K, *o = original + (t * H + h) * K;
                e[i] = low * cos(angle) - high * sin(angle);
                e[K / 2 + i] = high * cos(angle) + low * sin(angle);
                o[i] = low, o[K / 2 + i] = high;
            }
    FOR_EACH_MAKER(m)
    {
        float *y = copy_floats(x, T * ROW);
        loom_rope_args a = {.y_THK = y,
                            .x_THK = y,
                            .cos_PK = c,
                            .sin_PK = s,
                            .tokens = T,
                            .heads = H,
                            .head_dim = K,
                            .positions = P,
                            .rows_T = rows,
                            .y_token = ROW,
                            .x_token = ROW};

        CALL(m, rope_table, &(loom_rope_table_args){.cos_PK = c, .sin_PK = s, .positions = P, .head_dim = K, .theta = 100});
        CALL(m, rope, &a);
        assert_rows_near(m->name, "rope", y, ROW, expected, T, H * K, 3e-7);
        a.inverse = true;
        CALL(m, rope, &a);
        assert_rows_near(m->name, "rope and back", y, ROW, original, T, H * K, 4e-7);
        for (int t = 0; t < T; t++)
            assert_memory_equal(y + t * ROW + H * K, x + t * ROW + H * K, (ROW - H * K) * sizeof *y);
        free_floats(y);
    }
    free_floats(x);
    free_floats(c);
    free_floats(s);
    free(expected);
    free(original);
}

static void embedding_meets_the_fixture(void **state)
{
    enum { T = 9, V = 11, D = 12 };
    int64_t count;
    const float *w = fixture("embedding.in.w", &count), *dy = fixture("embedding.in.dy", &count), *y = fixture("embedding.out.y", &count);
    const int32_t *ids = fixture_ints("embedding.in.ids", &count);
    double *dw = fixture_doubles("embedding.out.dw", &count);
    const double few = 4; /* times the distance of f32 PyTorch */

    (void)state;
    FOR_EACH_MAKER(m)
    {
        float *got = zero_floats(T * D), *got_dw = zero_floats(V * D);

        /* the vocabulary in two shards, the first of 4 rows, whose results add up to the whole */
        CALL(m, embedding,
             &(loom_embedding_args){.y_TD = got, .table_VD = w, .ids_T = ids, .tokens = T, .hidden = D, .first = 0, .rows = 4});
        for (int t = 0; t < T; t++)
            for (int d = 0; d < D; d++)
                assert_true(got[t * D + d] == (ids[t] < 4 ? y[t * D + d] : 0));
        CALL(
            m, embedding,
            &(loom_embedding_args){
                .y_TD = got, .table_VD = w + 4 * D, .ids_T = ids, .tokens = T, .hidden = D, .first = 4, .rows = V - 4, .accumulate = true});
        assert_memory_equal(got, y, T * D * sizeof *got);
        CALL(m, embedding_backward,
             &(loom_embedding_backward_args){
                 .dtable_VD = got_dw, .dy_TD = dy, .ids_T = ids, .tokens = T, .hidden = D, .first = 0, .rows = 4});
        CALL(m, embedding_backward,
             &(loom_embedding_backward_args){
                 .dtable_VD = got_dw + 4 * D, .dy_TD = dy, .ids_T = ids, .tokens = T, .hidden = D, .first = 4, .rows = V - 4});
        assert_near(m->name, "embedding dw", got_dw, dw, V * D, few * fixture_distance("embedding", "dw"));
        free_floats(got);
        free_floats(got_dw);
    }
    free(dw);
}

static void equal_ids_add_up_in_token_order(void **state)
{
    enum { T = 300, V = 3, D = 150 };
    int32_t ids[T];
    float *dy = random_floats(T * D, 1, 1), *expected = zero_floats(V * D);
    uint64_t random = 3;

    (void)state;
    for (int t = 0; t < T; t++) {
        ids[t] = (int32_t)random_int(&random, -1, V); /* -1 and V: of another shard */
        for (int d = 0; d < D && ids[t] >= 0 && ids[t] < V; d++)
            expected[ids[t] * D + d] += dy[t * D + d];
    }
    FOR_EACH_MAKER(m)
    {
        float *got = guarded_rows(V, D, D);

        CALL(m, embedding_backward,
             &(loom_embedding_backward_args){.dtable_VD = got, .dy_TD = dy, .ids_T = ids, .tokens = T, .hidden = D, .rows = V});
        assert_memory_equal(got, expected, V * D * sizeof *got);
        assert_guards(m->name, "embedding_backward", got, V, D, D);
        free_floats(got);
    }
    free_floats(dy);
    free_floats(expected);
}

static void positions_are_added_and_their_gradients_too(void **state)
{
    enum { B = 3, S = 5, P = 9, D = 33, START = 2 };
    float *table = random_floats(P * D, 1, 1), *x = random_floats(B * S * D, 1, 2), *dtable = zero_floats(P * D);

    (void)state;
    for (int t = 0; t < B * S; t++)
        for (int d = 0; d < D; d++)
            dtable[(START + t % S) * D + d] += x[t * D + d];
    FOR_EACH_MAKER(m)
    {
        float *y = copy_floats(x, B * S * D), *got = zero_floats(P * D);

        CALL(m, position,
             &(loom_position_args){.y_TD = y, .table_PD = table, .tokens = B * S, .hidden = D, .positions = P, .start = START, .seq = S});
        for (int i = 0; i < B * S * D; i++)
            assert_true(y[i] == x[i] + table[(START + i / D % S) * D + i % D]);
        CALL(m, position_backward,
             &(loom_position_backward_args){
                 .dtable_PD = got, .dy_TD = x, .tokens = B * S, .hidden = D, .positions = P, .start = START, .seq = S});
        assert_memory_equal(got, dtable, P * D * sizeof *got);
        free_floats(y);
        free_floats(got);
    }
    assert_refused(
        makers->kernels->position(makers->kernels,
                                  &(loom_position_args){.y_TD = x, .table_PD = table, .tokens = 8, .hidden = D, .positions = 9, .start = 3},
                                  makers->stream),
        LOOM_E_INVALID, "3 to 10", "table of 9");
    assert_refused(makers->kernels->position(
                       makers->kernels,
                       &(loom_position_args){
                           .y_TD = x, .table_PD = table, .rows_T = (const int32_t[]){0, 9}, .tokens = 2, .hidden = D, .positions = 9},
                       makers->stream),
                   LOOM_E_INVALID, "token 1", "row 9", "table of 9");
    free_floats(table);
    free_floats(x);
    free_floats(dtable);
}

/* --- cross-entropy --- */

/* The whole thing in f64: losses and gradients, both weighted as the kernels do it. */
static void ref_xent(const float *logits, int64_t ld, const int32_t *targets, const float *weight, int64_t tokens, int64_t cols,
                     double *loss, double *gradient)
{
    for (int64_t t = 0; t < tokens; t++) {
        const float *x = logits + t * ld;
        double largest = -INFINITY, sum = 0;

        for (int64_t j = 0; j < cols; j++)
            largest = fmax(largest, x[j]);
        for (int64_t j = 0; j < cols; j++)
            sum += exp(x[j] - largest);
        loss[t] = targets[t] == LOOM_IGNORE_INDEX ? 0 : log(sum) + largest - x[targets[t]];
        for (int64_t j = 0; j < cols; j++)
            gradient[t * cols + j] =
                targets[t] == LOOM_IGNORE_INDEX ? 0 : (exp(x[j] - largest) / sum - (j == targets[t])) * (weight ? weight[t] : 1);
    }
}

static void assert_padding_is_zero(const float *gradient, int64_t rows, int64_t cols, int64_t ld)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = cols; j < ld; j++)
            assert_true(gradient[i * ld + j] == 0);
}

/* The three steps over `ranks` shards of the columns, the reductions done here. Padding of each shard holds NaN: it must not be read. */
static void split_xent(const maker *m, const float *logits, int64_t ld, const int32_t *targets, const float *weight, int64_t tokens,
                       int64_t cols, int ranks, float *loss, float *gradient)
{
    int64_t per = (cols + ranks - 1) / ranks, pad = per + 2, n = tokens;
    float *shard = zero_floats(ranks * n * pad), *largest = zero_floats(n), *sum = zero_floats(n), *target = zero_floats(n);
    float *local = zero_floats(ranks * 3 * n);

    for (int r = 0; r < ranks; r++) {
        int64_t width = r * per + per < cols ? per : cols - r * per;
        float *x = shard + r * n * pad, *l = local + r * 3 * n;

        for (int64_t t = 0; t < n; t++)
            for (int64_t j = 0; j < pad; j++)
                x[t * pad + j] = j < width ? logits[t * ld + r * per + j] : NAN;
        CALL(m, xent_local,
             &(loom_xent_local_args){.max_T = l,
                                     .sum_T = l + n,
                                     .target_T = l + 2 * n,
                                     .logits_TV = x,
                                     .targets_T = targets,
                                     .tokens = n,
                                     .cols = width,
                                     .ld = pad,
                                     .first = r * per});
        for (int64_t t = 0; t < n; t++)
            largest[t] = r == 0 || l[t] > largest[t] ? l[t] : largest[t];
    }
    for (int r = 0; r < ranks; r++) {
        float *l = local + r * 3 * n;
        CALL(m, xent_rebase, &(loom_xent_rebase_args){.sum_T = l + n, .local_max_T = l, .global_max_T = largest, .tokens = n});
        for (int64_t t = 0; t < n; t++)
            sum[t] += l[n + t], target[t] += l[2 * n + t];
    }
    for (int r = 0; r < ranks; r++) {
        int64_t width = r * per + per < cols ? per : cols - r * per;
        float *x = shard + r * n * pad;

        CALL(m, xent_gradient,
             &(loom_xent_gradient_args){.logits_TV = x,
                                        .loss_T = loss,
                                        .max_T = largest,
                                        .sum_T = sum,
                                        .target_T = target,
                                        .targets_T = targets,
                                        .weight_T = weight,
                                        .tokens = n,
                                        .cols = width,
                                        .ld = pad,
                                        .first = r * per});
        assert_padding_is_zero(x, n, width, pad);
        for (int64_t t = 0; t < n; t++)
            memcpy(gradient + t * cols + r * per, x + t * pad, (size_t)width * sizeof *gradient);
    }
    free_floats(shard);
    free_floats(largest);
    free_floats(sum);
    free_floats(target);
    free_floats(local);
}

static void check_xent(int64_t tokens, int64_t cols, double scale)
{
    int64_t ld = cols + 5;
    float *logits = random_floats(tokens * ld, scale, 1), *weight = random_floats(tokens, 1, 2);
    int32_t *targets = calloc((size_t)tokens, sizeof *targets);
    double *loss = doubles(tokens), *gradient = doubles(tokens * cols);
    uint64_t random = 9;

    for (int64_t t = 0; t < tokens; t++) {
        targets[t] = t % 4 == 3 ? LOOM_IGNORE_INDEX : (int32_t)random_int(&random, 0, cols - 1);
        for (int64_t j = cols; j < ld; j++)
            logits[t * ld + j] = NAN;
    }
    ref_xent(logits, ld, targets, weight, tokens, cols, loss, gradient);
    FOR_EACH_MAKER(m)
    {
        float *x = copy_floats(logits, tokens * ld), *got = zero_floats(tokens), *split = zero_floats(tokens * cols);
        loom_xent_args a = {.loss_T = got,
                            .logits_TV = x,
                            .targets_T = targets,
                            .weight_T = weight,
                            .tokens = tokens,
                            .cols = cols,
                            .ld = ld,
                            .forward_only = true};

        CALL(m, xent, &a);
        assert_memory_equal(x, logits, (size_t)(tokens * ld) * sizeof *x);
        assert_near(m->name, "loss", got, loss, tokens, 2e-7);
        a.forward_only = false;
        CALL(m, xent, &a);
        assert_near(m->name, "loss", got, loss, tokens, 2e-7);
        assert_rows_near(m->name, "gradient", x, ld, gradient, tokens, cols, 6e-7);
        assert_padding_is_zero(x, tokens, cols, ld);
        for (int ranks = 1; ranks <= 3; ranks++) {
            split_xent(m, logits, ld, targets, weight, tokens, cols, ranks, got, split);
            assert_near(m->name, "split loss", got, loss, tokens, 6e-7);
            assert_near(m->name, "split gradient", split, gradient, tokens * cols, 1e-6);
        }
        free_floats(x);
        free_floats(got);
        free_floats(split);
    }
    free_floats(logits);
    free_floats(weight);
    free(targets);
    free(loss);
    free(gradient);
}

static void cross_entropy_is_right_whole_and_split(void **state)
{
    (void)state;
    check_xent(6, 7, 1);
    check_xent(9, 131, 2);
    check_xent(4, 5003, 3);
    check_xent(5, 100, 100);
}

static void cross_entropy_meets_the_fixtures(void **state)
{
    enum { T = 10, V = 131 };
    const double few = 4; /* times the distance of f32 PyTorch */
    int64_t count;
    const float *logits = fixture("softmax_xent.in.logits", &count), *mean = fixture("softmax_xent.out.loss", &count);
    const int32_t *targets = fixture_ints("softmax_xent.in.targets", &count);
    double *gradient = fixture_doubles("softmax_xent.out.dlogits", &count);
    const float *logits2 = fixture("vocab_parallel_xent.in.logits", &count);
    const int32_t *targets2 = fixture_ints("vocab_parallel_xent.in.targets", &count);
    double *loss2 = fixture_doubles("vocab_parallel_xent.out.loss", &count),
           *gradient2 = fixture_doubles("vocab_parallel_xent.out.dlogits", &count);
    int counted = 0;

    (void)state;
    for (int t = 0; t < T; t++)
        counted += targets[t] != LOOM_IGNORE_INDEX;
    FOR_EACH_MAKER(m)
    {
        float *x = copy_floats(logits, T * V), *loss = zero_floats(T), *split = zero_floats(T * V), share[T];
        double total = 0;

        for (int t = 0; t < T; t++)
            share[t] = 1.0f / (float)counted;
        CALL(m, xent, &(loom_xent_args){.loss_T = loss, .logits_TV = x, .targets_T = targets, .weight_T = share, .tokens = T, .cols = V});
        for (int t = 0; t < T; t++)
            total += loss[t];
        assert_true(fabs(total / counted - *mean) <= few * fixture_distance("softmax_xent", "loss") * *mean);
        assert_near(m->name, "softmax_xent.dlogits", x, gradient, T * V, few * fixture_distance("softmax_xent", "dlogits"));
        for (int t = 0; t < T; t++)
            share[t] = 1.0f / T;
        for (int ranks = 2; ranks <= 4; ranks++) {
            split_xent(m, logits2, V, targets2, share, T, V, ranks, loss, split);
            assert_near(m->name, "vocab_parallel_xent.loss", loss, loss2, T, few * fixture_distance("vocab_parallel_xent", "loss"));
            assert_near(m->name, "vocab_parallel_xent.dlogits", split, gradient2, T * V,
                        few * fixture_distance("vocab_parallel_xent", "dlogits"));
        }
        free_floats(x);
        free_floats(loss);
        free_floats(split);
    }
    free(gradient);
    free(loss2);
    free(gradient2);
}

static void a_nan_logit_shows_in_the_loss(void **state)
{
    enum { T = 3, V = 50 };
    const int32_t targets[T] = {1, 2, 3};

    (void)state;
    FOR_EACH_MAKER(m)
    {
        float *x = random_floats(T * V, 1, 1), loss[T];

        x[V + 40] = NAN;
        CALL(m, xent, &(loom_xent_args){.loss_T = loss, .logits_TV = x, .targets_T = targets, .tokens = T, .cols = V});
        for (int t = 0; t < T; t++)
            assert_true(!!isnan(loss[t]) == (t == 1) && !!isnan(x[t * V]) == (t == 1));
        free_floats(x);
    }
}

static void a_target_outside_the_vocabulary_shows_in_the_loss(void **state)
{
    enum { T = 2, V = 10 };
    const int32_t targets[T] = {3, V};

    (void)state;
    FOR_EACH_MAKER(m)
    {
        float *x = random_floats(T * V, 1, 1), loss[T];

        CALL(m, xent, &(loom_xent_args){.loss_T = loss, .logits_TV = x, .targets_T = targets, .tokens = T, .cols = V});
        assert_false(isnan(loss[0]));
        assert_true(isnan(loss[1]));
        free_floats(x);
    }
}

static void argmax_takes_the_first_of_equals(void **state)
{
    enum { T = 4, LD = 60 };

    (void)state;
    FOR_EACH_MAKER(m)
    {
        for (int64_t cols = 1; cols <= LD; cols++) {
            float *x = random_floats(T * LD, 1, (uint64_t)cols), value[T];
            int32_t index[T];

            x[2 * LD + cols / 2] = x[2 * LD + cols - 1] = 100;
            x[3 * LD + cols - 1] = INFINITY;
            CALL(m, argmax, &(loom_argmax_args){.index_T = index, .value_T = value, .x_TV = x, .tokens = T, .cols = cols, .ld = LD});
            for (int t = 0; t < T; t++) {
                assert_in_range(index[t], 0, cols - 1);
                for (int64_t j = 0; j < cols; j++)
                    assert_true(x[t * LD + j] < value[t] || (x[t * LD + j] == value[t] && j >= index[t]));
                assert_true(x[t * LD + index[t]] == value[t]);
            }
            assert_int_equal(index[2], cols / 2);
            free_floats(x);
        }
        int32_t none;
        CALL(m, argmax, &(loom_argmax_args){.index_T = &none, .tokens = 1});
        assert_int_equal(none, -1);
    }
}

/* --- the handle --- */

static void a_dry_device_checks_and_does_nothing(void **state)
{
    loom_device *device;
    loom_stream *stream;
    loom_kernels *k;
    void *never;

    (void)state;
    assert_ok(loom_device_open(LOOM_DRY, NULL, &device));
    assert_ok(loom_stream_open(device, LOOM_STREAM_INLINE, "dry", &stream));
    assert_ok(loom_kernels_open(device, NULL, &k));
    assert_ok(loom_alloc(device, (size_t)1 << 40, LOOM_MEM_LOGITS, &never));
    assert_ok(k->fill(k, &(loom_fill_args){.y = never, .count = (int64_t)1 << 38}, stream));
    assert_refused(k->fill(k, &(loom_fill_args){.y = never, .count = -4}, stream), LOOM_E_INVALID, "-4");
    loom_free(device, never);
    loom_kernels_close(k);
    loom_stream_close(stream);
    loom_device_close(device);
}

static void what_is_not_here_is_refused_by_name(void **state)
{
    loom_device *device = makers->kernels->device;
    loom_kernels *k = NULL;

    (void)state;
    assert_refused(loom_kernels_open(device, &(loom_kernels_config){.isa = "sse9"}, &k), LOOM_E_UNSUPPORTED, "sse9");
    assert_refused(loom_kernels_open(device, &(loom_kernels_config){.gemm_library = "mkl"}, &k), LOOM_E_UNSUPPORTED, "mkl", "onednn");
    assert_null(k);
    assert_ok(loom_kernels_open(device, &(loom_kernels_config){.isa = "portable", .gemm_library = "own"}, &k));
    assert_string_equal(k->isa, "portable");
    assert_string_equal(k->gemm_library, "own");
    loom_kernels_close(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_meets_the_fixtures),
        cmocka_unit_test(rope_turns_in_place_and_back),
        cmocka_unit_test(embedding_meets_the_fixture),
        cmocka_unit_test(equal_ids_add_up_in_token_order),
        cmocka_unit_test(positions_are_added_and_their_gradients_too),
        cmocka_unit_test(cross_entropy_is_right_whole_and_split),
        cmocka_unit_test(cross_entropy_meets_the_fixtures),
        cmocka_unit_test(a_nan_logit_shows_in_the_loss),
        cmocka_unit_test(a_target_outside_the_vocabulary_shows_in_the_loss),
        cmocka_unit_test(argmax_takes_the_first_of_equals),
        cmocka_unit_test(a_dry_device_checks_and_does_nothing),
        cmocka_unit_test(what_is_not_here_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, open_makers, close_makers);
}
