/* Activations, simple arithmetic, sums, casts and AdamW of every maker against f64. */
#include "harness.h"
#include "ref.h"

static const int64_t counts[] = {0, 1, 3, 15, 16, 17, 31, 100, 1000, 40001};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static void gelu_and_its_gradient_are_right(void **state)
{
    static const float edges[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 3.0f,  -3.0f, 5.5f,   -5.5f, 10,
                                  -10,  30,    -30,    1e3f,    -1e3f, 1e10f, -1e10f, 1e30f, -1e30f};
    enum { EDGES = sizeof edges / sizeof edges[0] };

    (void)state;
    for (int c = 0; c < COUNTS; c++) {
        int64_t n = counts[c];
        float *x = random_floats(n, 3, 1), *dy = random_floats(n, 1, 2);
        double *y = doubles(n), *dx = doubles(n);

        for (int64_t i = 0; i < n && n > EDGES; i++)
            x[i] = i < EDGES ? edges[i] : x[i];
        for (int64_t i = 0; i < n; i++) {
            y[i] = ref_gelu(x[i]);
            dx[i] = dy[i] * (fabs(x[i]) > 1e9 ? x[i] > 0 : ref_gelu_slope(x[i])); /* beyond, the formula's own cube overflows in f32 */
        }
        FOR_EACH_MAKER(m)
        {
            float *got = guarded_rows(1, n, n), *got_dx = guarded_rows(1, n, n);

            CALL(m, gelu, &(loom_gelu_args){.y = got, .x = x, .count = n});
            CALL(m, gelu_backward, &(loom_gelu_backward_args){.dx = got_dx, .dy = dy, .x = x, .count = n});
            for (int64_t i = 0; i < n; i++) {
                double exponent = 1.6 * fabs(x[i]) + 0.0714 * pow(fabs(x[i]), 3); /* its rounding is an error of the exponential */
                assert_true(fabs(got[i] - y[i]) <= (4e-7 + 1.5e-7 * exponent) * fabs(y[i]) + 1e-37);
                assert_true(fabs(got_dx[i] - dx[i]) <= 1e-6 * fabs(dy[i]));
            }
            assert_guards(m->name, "gelu", got, 1, n, n);
            assert_guards(m->name, "gelu_backward", got_dx, 1, n, n);
            free_floats(got);
            free_floats(got_dx);
        }
        free_floats(x);
        free_floats(dy);
        free(y);
        free(dx);
    }
}

static void swiglu_and_its_gradients_are_right(void **state)
{
    enum { T = 5 };

    (void)state;
    for (int64_t width = 1; width < 70; width += 11) {
        int64_t ld = 2 * width, n = T * width; /* gate and up side by side */
        float *fused = random_floats(T * ld, 4, 1), *dy = random_floats(n, 1, 2);
        double *y = doubles(n), *dgate = doubles(n), *dup = doubles(n);

        fused[0] = 100, fused[ld] = -100, fused[2 * ld] = -1e30f;
        for (int64_t i = 0; i < n; i++) {
            double gate = fused[i / width * ld + i % width], up = fused[i / width * ld + width + i % width], s = ref_sigmoid(gate);
            y[i] = gate * s * up;
            dup[i] = dy[i] * gate * s;
            dgate[i] = dy[i] * up * s * (1 + gate * (1 - s));
        }
        FOR_EACH_MAKER(m)
        {
            float *got = guarded_rows(T, width, width + 3), *d = guarded_rows(T, ld, ld);

            CALL(m, swiglu,
                 &(loom_swiglu_args){.y_TF = got,
                                     .gate_TF = fused,
                                     .up_TF = fused + width,
                                     .tokens = T,
                                     .width = width,
                                     .ldy = width + 3,
                                     .ld_gate = ld,
                                     .ld_up = ld});
            CALL(m, swiglu_backward,
                 &(loom_swiglu_backward_args){.dgate_TF = d,
                                              .dup_TF = d + width,
                                              .dy_TF = dy,
                                              .gate_TF = fused,
                                              .up_TF = fused + width,
                                              .tokens = T,
                                              .width = width,
                                              .ld_dgate = ld,
                                              .ld_dup = ld,
                                              .ld_gate = ld,
                                              .ld_up = ld});
            assert_rows_near(m->name, "swiglu", got, width + 3, y, T, width, 4e-7);
            assert_rows_near(m->name, "dgate", d, ld, dgate, T, width, 4e-7);
            assert_rows_near(m->name, "dup", d + width, ld, dup, T, width, 4e-7);
            assert_guards(m->name, "swiglu", got, T, width, width + 3);
            assert_guards(m->name, "dgate, dup", d, T, ld, ld);
            free_floats(got);
            free_floats(d);
        }
        free_floats(fused);
        free_floats(dy);
        free(y);
        free(dgate);
        free(dup);
    }
}

static void a_nan_goes_through_activations(void **state)
{
    float x[40], one[40], y[40], dx[40], other[40];

    (void)state;
    for (int i = 0; i < 40; i++)
        x[i] = i == 21 ? NAN : 1, one[i] = 1;
    FOR_EACH_MAKER(m)
    {
        CALL(m, gelu, &(loom_gelu_args){.y = y, .x = x, .count = 40});
        CALL(m, gelu_backward, &(loom_gelu_backward_args){.dx = dx, .dy = one, .x = x, .count = 40});
        for (int i = 0; i < 40; i++)
            assert_true(!!isnan(y[i]) == (i == 21) && !!isnan(dx[i]) == (i == 21));
        CALL(m, swiglu, &(loom_swiglu_args){.y_TF = y, .gate_TF = x, .up_TF = one, .tokens = 1, .width = 40});
        CALL(m, swiglu_backward,
             &(loom_swiglu_backward_args){
                 .dgate_TF = dx, .dup_TF = other, .dy_TF = one, .gate_TF = x, .up_TF = one, .tokens = 1, .width = 40});
        for (int i = 0; i < 40; i++)
            assert_true(!!isnan(y[i]) == (i == 21) && !!isnan(dx[i]) == (i == 21) && !!isnan(other[i]) == (i == 21));
    }
}

static void arithmetic_is_exact(void **state)
{
    (void)state;
    for (int c = 0; c < COUNTS; c++) {
        int64_t n = counts[c];
        float *a = random_floats(n, 1, 1), *b = random_floats(n, 1, 2), two = 2;

        FOR_EACH_MAKER(m)
        {
            float *y = guarded_rows(1, n, n);

            CALL(m, add, &(loom_add_args){.y = y, .a = a, .b = b, .count = n});
            for (int64_t i = 0; i < n; i++)
                assert_true(y[i] == a[i] + b[i]);
            CALL(m, axpy, &(loom_axpy_args){.y = y, .x = b, .alpha = -1, .count = n});
            for (int64_t i = 0; i < n; i++)
                assert_true(y[i] == (a[i] + b[i]) - b[i]);
            CALL(m, scale, &(loom_scale_args){.y = y, .x = a, .alpha = 3, .alpha_at = &two, .count = n});
            for (int64_t i = 0; i < n; i++)
                assert_true(y[i] == 2 * a[i]);
            CALL(m, scale, &(loom_scale_args){.y = y, .x = y, .alpha = 0.25f, .count = n});
            for (int64_t i = 0; i < n; i++)
                assert_true(y[i] == 0.5f * a[i]);
            CALL(m, fill, &(loom_fill_args){.y = y, .value = 7, .count = n});
            for (int64_t i = 0; i < n; i++)
                assert_true(y[i] == 7);
            assert_guards(m->name, "arithmetic", y, 1, n, n);
            free_floats(y);
        }
        free_floats(a);
        free_floats(b);
    }
}

static void bias_and_its_gradient_are_right(void **state)
{
    static const int64_t shapes[][2] = {{1, 1}, {7, 13}, {33, 100}, {130, 64}, {9, 700}};

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int64_t rows = shapes[s][0], cols = shapes[s][1], ld = cols + 3;
        float *bias = random_floats(cols, 1, 1), *dy = random_floats(rows * ld, 1, 2);

        FOR_EACH_MAKER(m)
        {
            float *y = guarded_rows(rows, cols, ld), *dbias = guarded_rows(1, cols, cols);

            CALL(m, bias, &(loom_bias_args){.y_TN = y, .bias_N = bias, .tokens = rows, .width = cols, .ldy = ld});
            CALL(m, bias_backward, &(loom_bias_backward_args){.dbias_N = dbias, .dy_TN = dy, .tokens = rows, .width = cols, .ld_dy = ld});
            for (int64_t i = 0; i < rows * cols; i++)
                assert_true(y[i / cols * ld + i % cols] == bias[i % cols]);
            for (int64_t j = 0; j < cols; j++) {
                float sum = 0; /* in row order, in f32: the promise */
                for (int64_t i = 0; i < rows; i++)
                    sum += dy[i * ld + j];
                assert_true(dbias[j] == sum);
            }
            assert_guards(m->name, "bias", y, rows, cols, ld);
            assert_guards(m->name, "bias_backward", dbias, 1, cols, cols);
            free_floats(y);
            free_floats(dbias);
        }
        free_floats(bias);
        free_floats(dy);
    }
}

/* [part][T][width] as ranks gather it, to [T][part * width] and back. */
static void copies_pack_and_unpack(void **state)
{
    enum { PARTS = 3, T = 5, WIDTH = 21, N = PARTS * T * WIDTH };
    float *parts = random_floats(N, 1, 1);

    (void)state;
    FOR_EACH_MAKER(m)
    {
        float *rows = guarded_rows(T, PARTS * WIDTH, PARTS * WIDTH), *back = zero_floats(N);
        const loom_copy_args pack = {
            .y = rows, .x = parts, .planes = PARTS, .rows = T, .cols = WIDTH, .y_plane = WIDTH, .y_row = PARTS * WIDTH};
        loom_copy_args unpack = {.y = back, .x = rows, .planes = PARTS, .rows = T, .cols = WIDTH, .x_plane = WIDTH, .x_row = PARTS * WIDTH};

        CALL(m, copy, &pack);
        for (int p = 0; p < PARTS; p++)
            for (int t = 0; t < T; t++)
                assert_memory_equal(rows + t * PARTS * WIDTH + p * WIDTH, parts + (p * T + t) * WIDTH, WIDTH * sizeof *rows);
        CALL(m, copy, &unpack);
        assert_memory_equal(back, parts, N * sizeof *back);
        unpack.accumulate = true;
        CALL(m, copy, &unpack);
        for (int i = 0; i < N; i++)
            assert_true(back[i] == 2 * parts[i]);
        assert_guards(m->name, "copy", rows, T, PARTS * WIDTH, PARTS * WIDTH);
        free_floats(rows);
        free_floats(back);
    }
    free_floats(parts);
}

/* Against the scalar conversions of core, which have a test of their own: every kind of number, and many of them. */
static void casts_round_as_core_does(void **state)
{
    enum { N = 5003 };
    float *x = random_floats(N, 100, 1), *back = zero_floats(N);
    uint16_t y[N];

    (void)state;
    for (int i = 0; i < 3000; i++) {
        uint32_t bits = (uint32_t)i * 1431655u;
        memcpy(&x[i], &bits, sizeof bits);
    }
    x[3000] = NAN, x[3001] = INFINITY, x[3002] = -INFINITY, x[3003] = 65504, x[3004] = 65520, x[3005] = 1e-8f, x[3006] = 3.4e38f;
    FOR_EACH_MAKER(m)
    {
        CALL(m, cast, &(loom_cast_args){.y = y, .x = x, .y_dtype = LOOM_BF16, .x_dtype = LOOM_F32, .count = N});
        for (int i = 0; i < N; i++)
            assert_true(isnan(x[i]) ? isnan(loom_f32_from_bf16(y[i])) : y[i] == loom_bf16_from_f32(x[i]));
        CALL(m, cast, &(loom_cast_args){.y = back, .x = y, .y_dtype = LOOM_F32, .x_dtype = LOOM_BF16, .count = N});
        for (int i = 0; i < N; i++)
            assert_true(isnan(back[i]) ? isnan(x[i]) : back[i] == loom_f32_from_bf16(y[i]));
        CALL(m, cast, &(loom_cast_args){.y = y, .x = x, .y_dtype = LOOM_F16, .x_dtype = LOOM_F32, .count = N});
        for (int i = 0; i < N; i++)
            assert_true(isnan(x[i]) ? isnan(loom_f32_from_f16(y[i])) : y[i] == loom_f16_from_f32(x[i]));
        CALL(m, cast, &(loom_cast_args){.y = back, .x = y, .y_dtype = LOOM_F32, .x_dtype = LOOM_F16, .count = N});
        for (int i = 0; i < N; i++)
            assert_true(isnan(back[i]) ? isnan(x[i]) : back[i] == loom_f32_from_f16(y[i]));
    }
    free_floats(x);
    free_floats(back);
}

/* Every maker and every count of threads: one order, so one result to the last bit. */
static void sums_are_the_same_bits_everywhere(void **state)
{
    (void)state;
    for (int c = 0; c < COUNTS; c++) {
        int64_t n = counts[c];
        float *x = random_floats(n, 1, 1);
        double expected = 0, squares = 0, first = 0, first_squares = 0;

        for (int64_t i = 0; i < n; i++)
            expected += x[i], squares += (double)x[i] * x[i];
        FOR_EACH_MAKER(m)
        {
            double sum = 5, square = 5;

            CALL(m, sum, &(loom_sum_args){.sum = &sum, .x = x, .count = n});
            CALL(m, sum_squares, &(loom_sum_args){.sum = &square, .x = x, .count = n});
            assert_true(fabs(sum - expected) <= 1e-12 * (squares + 1) && fabs(square - squares) <= 1e-13 * squares);
            if (m == makers)
                first = sum, first_squares = square;
            assert_true(sum == first && square == first_squares);
            CALL(m, sum_squares, &(loom_sum_args){.sum = &square, .x = x, .count = n, .accumulate = true});
            assert_true(square == 2 * first_squares);
        }
        free_floats(x);
    }
}

static void adamw_follows_the_fixture(void **state)
{
    enum { N = 64, STEPS = 3 };
    const double few = 4; /* times the distance of f32 PyTorch */
    int64_t count;
    const float *p0 = fixture("adamw.in.p", &count);

    (void)state;
    assert_int_equal(count, N);
    FOR_EACH_MAKER(m)
    {
        float *p = copy_floats(p0, N), *moment = zero_floats(N), *variance = zero_floats(N);

        for (int step = 1; step <= STEPS; step++) {
            char name[32];

            snprintf(name, sizeof name, "adamw.in.g%d", step);
            CALL(m, adamw,
                 &(loom_adamw_args){.p = p,
                                    .m = moment,
                                    .v = variance,
                                    .gradient = fixture(name, &count),
                                    .count = N,
                                    .lr = 0.01,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .decay = 0.1,
                                    .correction1 = 1 - pow(0.9, step),
                                    .correction2 = 1 - pow(0.95, step)});
            for (int i = 0; i < 3; i++) {
                char key[8];
                snprintf(key, sizeof key, "%c%d", "pmv"[i], step);
                snprintf(name, sizeof name, "adamw.out.%s", key);
                double *expected = fixture_doubles(name, &count);
                assert_near(m->name, name, (float *[]){p, moment, variance}[i], expected, N, few * fixture_distance("adamw", key));
                free(expected);
            }
        }
        free_floats(p);
        free_floats(moment);
        free_floats(variance);
    }
}

static void adamw_scales_the_gradient_first(void **state)
{
    (void)state;
    for (int c = 0; c < COUNTS; c++) {
        int64_t n = counts[c];
        float *p0 = random_floats(n, 1, 1), *m0 = random_floats(n, 0.1, 2), *v0 = random_floats(n, 0.1, 3), *g = random_floats(n, 1, 4),
              scale = 0.37f;
        double *p = doubles(n), *m1 = doubles(n), *v1 = doubles(n);

        for (int64_t i = 0; i < n; i++) {
            v0[i] = fabsf(v0[i]);
            double x = (double)g[i] * scale;
            m1[i] = 0.9 * m0[i] + 0.1 * x;
            v1[i] = 0.999 * v0[i] + 0.001 * x * x;
            p[i] = p0[i] * (1 - 1e-3 * 0.01) - 1e-3 * (m1[i] / 0.3) / (sqrt(v1[i] / 0.2) + 1e-8);
        }
        FOR_EACH_MAKER(m)
        {
            float *got = guarded_rows(1, n, n), *moment = copy_floats(m0, n), *variance = copy_floats(v0, n);

            memcpy(got, p0, (size_t)n * sizeof *got);
            CALL(m, adamw,
                 &(loom_adamw_args){.p = got,
                                    .m = moment,
                                    .v = variance,
                                    .gradient = g,
                                    .gradient_scale = &scale,
                                    .count = n,
                                    .lr = 1e-3,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .decay = 0.01,
                                    .correction1 = 0.3,
                                    .correction2 = 0.2});
            assert_near(m->name, "p", got, p, n, 3e-7);
            assert_near(m->name, "m", moment, m1, n, 3e-7);
            assert_near(m->name, "v", variance, v1, n, 3e-7);
            assert_guards(m->name, "p", got, 1, n, n);
            free_floats(got);
            free_floats(moment);
            free_floats(variance);
        }
        free_floats(p0);
        free_floats(m0);
        free_floats(v0);
        free_floats(g);
        free(p);
        free(m1);
        free(v1);
    }
}

static void a_norm_that_is_no_number_leaves_weights_and_state(void **state)
{
    static const double squares[] = {INFINITY, NAN};
    float scale = NAN;

    (void)state;
    for (int c = 0; c < COUNTS; c++) {
        float *p = random_floats(counts[c], 1, 1), *g = random_floats(counts[c], 1, 4);
        FOR_EACH_MAKER(m)
        {
            float *got = copy_floats(p, counts[c]), *moment = zero_floats(counts[c]), *variance = zero_floats(counts[c]), *zeros = zero_floats(counts[c]);

            scale = 0;
            CALL(m, clip, &(loom_clip_args){.scale = &scale, .squares = &squares[c % 2], .divisor = 3, .clip = 1});
            assert_true(isnan(scale));
            CALL(m, adamw,
                 &(loom_adamw_args){.p = got, .m = moment, .v = variance, .gradient = g, .gradient_scale = &scale, .count = counts[c], .lr = 1, .correction1 = 1,
                                    .correction2 = 1});
            assert_memory_equal(got, p, (size_t)counts[c] * sizeof *p);
            assert_memory_equal(moment, zeros, (size_t)counts[c] * sizeof *p);
            assert_memory_equal(variance, zeros, (size_t)counts[c] * sizeof *p);
            free_floats(got);
            free_floats(moment);
            free_floats(variance);
            free_floats(zeros);
        }
        free_floats(p);
        free_floats(g);
    }
}

/* squares, divisor and clip, and what comes of them by hand. */
static void the_clips_factor_is_that_of_its_formula(void **state)
{
    static const double cases[][4] = {{16, 2, 0, 0.5}, {16, 2, 3, 0.5}, {16, 2, 2, 0.5}, {16, 2, 1, 0.5 / (2 + 1e-6)}, {0, 7, 1, 1.0 / 7}, {1e-300, 1, 1e-200, 1}};

    (void)state;
    FOR_EACH_MAKER(m)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float scale = -1;

        CALL(m, clip, &(loom_clip_args){.scale = &scale, .squares = &cases[i][0], .divisor = cases[i][1], .clip = cases[i][2]});
        if (i + 1 < sizeof cases / sizeof *cases)
            assert_true(scale == (float)cases[i][3]);
        else /* a clip below the 1e-6 that the norm is guarded by */
            assert_true(scale == (float)(1e-200 / (1e-150 + 1e-6)));
    }
}

static void clipping_meets_the_fixture(void **state)
{
    int64_t na, nb, count;
    const float *a = fixture("clip_grad_norm.in.a", &na), *b = fixture("clip_grad_norm.in.b", &nb),
                *norm = fixture("clip_grad_norm.out.norm", &count);
    double *clipped = fixture_doubles("clip_grad_norm.out.a_clipped", &count);

    (void)state;
    FOR_EACH_MAKER(m)
    {
        double squares;
        float *got = zero_floats(na), factor;

        CALL(m, sum_squares, &(loom_sum_args){.sum = &squares, .x = a, .count = na});
        CALL(m, sum_squares, &(loom_sum_args){.sum = &squares, .x = b, .count = nb, .accumulate = true});
        assert_true(fabs(sqrt(squares) - *norm) <= 1e-7 * *norm);
        CALL(m, clip, &(loom_clip_args){.scale = &factor, .squares = &squares, .divisor = 1, .clip = 1});
        CALL(m, scale, &(loom_scale_args){.y = got, .x = a, .alpha = factor, .count = na});
        assert_near(m->name, "clipped", got, clipped, na, 2e-7);
        free_floats(got);
    }
    free(clipped);
}

static void the_activation_fixtures_are_met(void **state)
{
    const double few = 4; /* times the distance of f32 PyTorch */
    int64_t n, count;
    const float *x = fixture("gelu_tanh.in.x", &n), *dy = fixture("gelu_tanh.in.dy", &n);
    double *y = fixture_doubles("gelu_tanh.out.y", &count), *dx = fixture_doubles("gelu_tanh.out.dx", &count);

    (void)state;
    FOR_EACH_MAKER(m)
    {
        float *got = zero_floats(n);

        CALL(m, gelu, &(loom_gelu_args){.y = got, .x = x, .count = n});
        assert_near(m->name, "gelu", got, y, n, few * fixture_distance("gelu_tanh", "y"));
        CALL(m, gelu_backward, &(loom_gelu_backward_args){.dx = got, .dy = dy, .x = x, .count = n});
        assert_near(m->name, "gelu dx", got, dx, n, few * fixture_distance("gelu_tanh", "dx"));
        free_floats(got);
    }
    free(y);
    free(dx);

    const float *gate = fixture("swiglu.in.gate", &n), *up = fixture("swiglu.in.up", &n);
    double *dgate = fixture_doubles("swiglu.out.dgate", &count), *dup = fixture_doubles("swiglu.out.dup", &count);
    dy = fixture("swiglu.in.dy", &n);
    y = fixture_doubles("swiglu.out.y", &count);
    FOR_EACH_MAKER(m)
    {
        float *got = zero_floats(n), *got2 = zero_floats(n);

        CALL(m, swiglu, &(loom_swiglu_args){.y_TF = got, .gate_TF = gate, .up_TF = up, .tokens = 1, .width = n});
        assert_near(m->name, "swiglu", got, y, n, few * fixture_distance("swiglu", "y"));
        CALL(m, swiglu_backward,
             &(loom_swiglu_backward_args){
                 .dgate_TF = got, .dup_TF = got2, .dy_TF = dy, .gate_TF = gate, .up_TF = up, .tokens = 1, .width = n});
        assert_near(m->name, "dgate", got, dgate, n, few * fixture_distance("swiglu", "dgate"));
        assert_near(m->name, "dup", got2, dup, n, few * fixture_distance("swiglu", "dup"));
        free_floats(got);
        free_floats(got2);
    }
    free(y);
    free(dgate);
    free(dup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_and_its_gradient_are_right), cmocka_unit_test(swiglu_and_its_gradients_are_right),
        cmocka_unit_test(a_nan_goes_through_activations),  cmocka_unit_test(arithmetic_is_exact),
        cmocka_unit_test(bias_and_its_gradient_are_right), cmocka_unit_test(copies_pack_and_unpack),
        cmocka_unit_test(casts_round_as_core_does),        cmocka_unit_test(sums_are_the_same_bits_everywhere),
        cmocka_unit_test(adamw_follows_the_fixture),       cmocka_unit_test(adamw_scales_the_gradient_first),
        cmocka_unit_test(clipping_meets_the_fixture),      cmocka_unit_test(the_clips_factor_is_that_of_its_formula),
        cmocka_unit_test(a_norm_that_is_no_number_leaves_weights_and_state),
        cmocka_unit_test(the_activation_fixtures_are_met),
    };

    return cmocka_run_group_tests(tests, open_makers, close_makers);
}
