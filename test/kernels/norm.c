/* RMSNorm and LayerNorm of every maker against f64 loops and the fixtures. */
#include "harness.h"
#include "ref.h"

static const double FORWARD = 3e-7, BACKWARD = 1.2e-6;
static const double EPS = 1e-5;

static void check_norm(int64_t tokens, int64_t hidden, bool centred, double offset)
{
    int64_t n = tokens * hidden;
    float *x = random_floats(n, 1, 1), *weight = random_floats(hidden, 1, 2), *bias = random_floats(hidden, 1, 3),
          *dy = random_floats(n, 1, 4);
    double *y = doubles(n), *dx = doubles(n), *dweight = doubles(hidden), *dbias = doubles(hidden);

    for (int64_t i = 0; i < n; i++)
        x[i] += (float)offset;
    ref_norm(x, weight, centred ? bias : NULL, tokens, hidden, EPS, centred, y);
    ref_norm_backward(dy, x, weight, tokens, hidden, EPS, centred, dx, dweight, dbias);
    FOR_EACH_MAKER(m)
    {
        float *got = guarded_rows(1, n, n), *got_dx = guarded_rows(1, n, n), *mean = zero_floats(tokens), *rstd = zero_floats(tokens);
        float *got_dw = guarded_rows(1, hidden, hidden), *got_db = guarded_rows(1, hidden, hidden);
        double loose = 1 + fabs(offset); /* x - mean is a difference of numbers that large */

        if (centred) {
            CALL(m, layernorm,
                 &(loom_layernorm_args){.y_TD = got,
                                        .mean_T = mean,
                                        .rstd_T = rstd,
                                        .x_TD = x,
                                        .weight_D = weight,
                                        .bias_D = bias,
                                        .tokens = tokens,
                                        .hidden = hidden,
                                        .eps = (float)EPS});
            CALL(m, layernorm_backward,
                 &(loom_layernorm_backward_args){.dx_TD = got_dx,
                                                 .dweight_D = got_dw,
                                                 .dbias_D = got_db,
                                                 .dy_TD = dy,
                                                 .x_TD = x,
                                                 .weight_D = weight,
                                                 .mean_T = mean,
                                                 .rstd_T = rstd,
                                                 .tokens = tokens,
                                                 .hidden = hidden});
            assert_near(m->name, "dbias", got_db, dbias, hidden, BACKWARD);
        } else {
            CALL(m, rmsnorm,
                 &(loom_rmsnorm_args){
                     .y_TD = got, .rstd_T = rstd, .x_TD = x, .weight_D = weight, .tokens = tokens, .hidden = hidden, .eps = (float)EPS});
            CALL(m, rmsnorm_backward,
                 &(loom_rmsnorm_backward_args){.dx_TD = got_dx,
                                               .dweight_D = got_dw,
                                               .dy_TD = dy,
                                               .x_TD = x,
                                               .weight_D = weight,
                                               .rstd_T = rstd,
                                               .tokens = tokens,
                                               .hidden = hidden});
        }
        assert_near(m->name, "y", got, y, n, loose * FORWARD);
        assert_near(m->name, "dx", got_dx, dx, n, loose * BACKWARD);
        assert_near(m->name, "dweight", got_dw, dweight, hidden, loose * BACKWARD);
        assert_guards(m->name, "y", got, 1, n, n);
        assert_guards(m->name, "dx", got_dx, 1, n, n);
        assert_guards(m->name, "dweight", got_dw, 1, hidden, hidden);
        assert_guards(m->name, "dbias", got_db, 1, hidden, hidden);
        float *outputs[] = {got, got_dx, mean, rstd, got_dw, got_db};
        for (int i = 0; i < 6; i++)
            free_floats(outputs[i]);
    }
    free_floats(x);
    free_floats(weight);
    free_floats(bias);
    free_floats(dy);
    free(y);
    free(dx);
    free(dweight);
    free(dbias);
}

static void norms_of_all_widths_are_right(void **state)
{
    static const int64_t widths[] = {3, 7, 16, 17, 48, 63, 64, 65, 130, 384, 777};

    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        for (int centred = 0; centred < 2; centred++) {
            check_norm(5, widths[i], centred, 0);
            check_norm(130, widths[i], centred, 0); /* more rows than a block of the parameter gradients, and not a multiple */
        }
}

static void a_large_mean_loses_few_digits(void **state)
{
    (void)state;
    check_norm(9, 384, true, 50);
}

static void the_residual_is_added_on_the_way(void **state)
{
    enum { T = 6, D = 37 };
    float *x = random_floats(T * D, 1, 1), *add = random_floats(T * D, 1, 2), *weight = random_floats(D, 1, 3),
          *bias = random_floats(D, 1, 4);
    float *both = zero_floats(T * D), *y = zero_floats(T * D);
    double *expected = doubles(T * D);

    (void)state;
    for (int i = 0; i < T * D; i++)
        both[i] = x[i] + add[i];
    FOR_EACH_MAKER(m)
    {
        float *stream = copy_floats(x, T * D);

        CALL(m, layernorm,
             &(loom_layernorm_args){.y_TD = y,
                                    .x_TD = stream,
                                    .add_TD = add,
                                    .sum_TD = stream,
                                    .weight_D = weight,
                                    .bias_D = bias,
                                    .tokens = T,
                                    .hidden = D,
                                    .eps = (float)EPS});
        ref_norm(both, weight, bias, T, D, EPS, true, expected);
        assert_memory_equal(stream, both, sizeof *both * T * D);
        assert_near(m->name, "layernorm(x + add)", y, expected, T * D, FORWARD);
        memcpy(stream, x, sizeof *x * T * D);
        CALL(m, rmsnorm,
             &(loom_rmsnorm_args){.y_TD = y,
                                  .x_TD = stream,
                                  .add_TD = add,
                                  .sum_TD = stream,
                                  .weight_D = weight,
                                  .tokens = T,
                                  .hidden = D,
                                  .eps = (float)EPS});
        ref_norm(both, weight, NULL, T, D, EPS, false, expected);
        assert_memory_equal(stream, both, sizeof *both * T * D);
        assert_near(m->name, "rmsnorm(x + add)", y, expected, T * D, FORWARD);
        free_floats(stream);
    }
    free_floats(x);
    free_floats(add);
    free_floats(weight);
    free_floats(bias);
    free_floats(both);
    free_floats(y);
    free(expected);
}

static void gradients_join_what_is_there(void **state)
{
    enum { T = 5, D = 20 };
    float *x = random_floats(T * D, 1, 1), *weight = random_floats(D, 1, 2), *dy = random_floats(T * D, 1, 3),
          *start = random_floats(T * D, 1, 4);
    float *y = zero_floats(T * D), *mean = zero_floats(T), *rstd = zero_floats(T);
    double *dx = doubles(T * D), *dweight = doubles(D), *dbias = doubles(D);

    (void)state;
    ref_norm_backward(dy, x, weight, T, D, EPS, true, dx, dweight, dbias);
    for (int i = 0; i < T * D; i++)
        dx[i] += start[i];
    for (int i = 0; i < D; i++)
        dweight[i] += start[i], dbias[i] += start[D + i];
    FOR_EACH_MAKER(m)
    {
        float *got = copy_floats(start, T * D), *got_dw = copy_floats(start, D), *got_db = copy_floats(start + D, D);

        CALL(m, layernorm,
             &(loom_layernorm_args){
                 .y_TD = y, .mean_T = mean, .rstd_T = rstd, .x_TD = x, .weight_D = weight, .tokens = T, .hidden = D, .eps = (float)EPS});
        CALL(m, layernorm_backward,
             &(loom_layernorm_backward_args){.dx_TD = got,
                                             .dweight_D = got_dw,
                                             .dbias_D = got_db,
                                             .dy_TD = dy,
                                             .x_TD = x,
                                             .weight_D = weight,
                                             .mean_T = mean,
                                             .rstd_T = rstd,
                                             .tokens = T,
                                             .hidden = D,
                                             .accumulate = true});
        assert_near(m->name, "dx", got, dx, T * D, BACKWARD);
        assert_near(m->name, "dweight", got_dw, dweight, D, BACKWARD);
        assert_near(m->name, "dbias", got_db, dbias, D, BACKWARD);
        free_floats(got);
        free_floats(got_dw);
        free_floats(got_db);
    }
    free_floats(x);
    free_floats(weight);
    free_floats(dy);
    free_floats(start);
    free_floats(y);
    free_floats(mean);
    free_floats(rstd);
    free(dx);
    free(dweight);
    free(dbias);
}

static void a_nan_stays_in_its_row(void **state)
{
    enum { T = 4, D = 40 };
    float *x = random_floats(T * D, 1, 1), *weight = random_floats(D, 1, 2), *y = zero_floats(T * D);

    (void)state;
    x[2 * D + 39] = NAN;
    FOR_EACH_MAKER(m)
    {
        CALL(m, rmsnorm, &(loom_rmsnorm_args){.y_TD = y, .x_TD = x, .weight_D = weight, .tokens = T, .hidden = D, .eps = (float)EPS});
        for (int i = 0; i < T * D; i++)
            assert_true(!!isnan(y[i]) == (i / D == 2));
        CALL(m, layernorm, &(loom_layernorm_args){.y_TD = y, .x_TD = x, .weight_D = weight, .tokens = T, .hidden = D, .eps = (float)EPS});
        for (int i = 0; i < T * D; i++)
            assert_true(!!isnan(y[i]) == (i / D == 2));
    }
    free_floats(x);
    free_floats(weight);
    free_floats(y);
}

/* Threads share rows, never a sum: any count of them gives the same bits. */
static void threads_do_not_change_the_bits(void **state)
{
    enum { T = 300, D = 96 };
    float *x = random_floats(T * D, 1, 1), *weight = random_floats(D, 1, 2), *dy = random_floats(T * D, 1, 3);
    float *rstd = zero_floats(T), *y = zero_floats(T * D), *dx = zero_floats(T * D), *first = zero_floats(D);

    (void)state;
    for (int i = 0; i < n_makers; i++) {
        const maker *m = &makers[i];
        float *dweight = zero_floats(D);

        CALL(m, rmsnorm,
             &(loom_rmsnorm_args){.y_TD = y, .rstd_T = rstd, .x_TD = x, .weight_D = weight, .tokens = T, .hidden = D, .eps = (float)EPS});
        CALL(m, rmsnorm_backward,
             &(loom_rmsnorm_backward_args){
                 .dx_TD = dx, .dweight_D = dweight, .dy_TD = dy, .x_TD = x, .weight_D = weight, .rstd_T = rstd, .tokens = T, .hidden = D});
        for (int j = 0; j < i; j++)
            if (strcmp(makers[j].kernels->isa, m->kernels->isa) == 0) {
                float *other = zero_floats(D);
                CALL(&makers[j], rmsnorm_backward,
                     &(loom_rmsnorm_backward_args){.dx_TD = dx,
                                                   .dweight_D = other,
                                                   .dy_TD = dy,
                                                   .x_TD = x,
                                                   .weight_D = weight,
                                                   .rstd_T = rstd,
                                                   .tokens = T,
                                                   .hidden = D});
                assert_memory_equal(dweight, other, sizeof *other * D);
                free_floats(other);
            }
        free_floats(dweight);
    }
    free_floats(x);
    free_floats(weight);
    free_floats(dy);
    free_floats(rstd);
    free_floats(y);
    free_floats(dx);
    free_floats(first);
}

static void the_fixtures_are_met(void **state)
{
    enum { T = 6, D = 48 };
    const double few = 4; /* times the distance of f32 PyTorch */
    int64_t count;

    (void)state;
    FOR_EACH_MAKER(m)
    {
        for (int centred = 0; centred < 2; centred++) {
            const char *operation = centred ? "layernorm" : "rmsnorm", *outputs[] = {"y", "dx", "dw", "db"};
            const float *in[4];
            float *got[4] = {zero_floats(T * D), zero_floats(T * D), zero_floats(D), zero_floats(D)}, mean[T], rstd[T];
            char name[64];

            for (int i = 0; i < 3 + centred; i++) {
                snprintf(name, sizeof name, "%s.in.%s", operation, (const char *[]){"x", "w", "dy", "b"}[i]);
                in[i] = fixture(name, &count);
            }
            if (centred) {
                CALL(m, layernorm,
                     &(loom_layernorm_args){.y_TD = got[0],
                                            .mean_T = mean,
                                            .rstd_T = rstd,
                                            .x_TD = in[0],
                                            .weight_D = in[1],
                                            .bias_D = in[3],
                                            .tokens = T,
                                            .hidden = D,
                                            .eps = 1e-5f});
                CALL(m, layernorm_backward,
                     &(loom_layernorm_backward_args){.dx_TD = got[1],
                                                     .dweight_D = got[2],
                                                     .dbias_D = got[3],
                                                     .dy_TD = in[2],
                                                     .x_TD = in[0],
                                                     .weight_D = in[1],
                                                     .mean_T = mean,
                                                     .rstd_T = rstd,
                                                     .tokens = T,
                                                     .hidden = D});
            } else {
                CALL(m, rmsnorm,
                     &(loom_rmsnorm_args){
                         .y_TD = got[0], .rstd_T = rstd, .x_TD = in[0], .weight_D = in[1], .tokens = T, .hidden = D, .eps = 1e-5f});
                CALL(m, rmsnorm_backward,
                     &(loom_rmsnorm_backward_args){.dx_TD = got[1],
                                                   .dweight_D = got[2],
                                                   .dy_TD = in[2],
                                                   .x_TD = in[0],
                                                   .weight_D = in[1],
                                                   .rstd_T = rstd,
                                                   .tokens = T,
                                                   .hidden = D});
            }
            for (int i = 0; i < 3 + centred; i++) {
                snprintf(name, sizeof name, "%s.out.%s", operation, outputs[i]);
                double *expected = fixture_doubles(name, &count);
                assert_near(m->name, name, got[i], expected, count, few * fixture_distance(operation, outputs[i]));
                free(expected);
            }
            for (int i = 0; i < 4; i++)
                free_floats(got[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_all_widths_are_right),
        cmocka_unit_test(a_large_mean_loses_few_digits),
        cmocka_unit_test(the_residual_is_added_on_the_way),
        cmocka_unit_test(gradients_join_what_is_there),
        cmocka_unit_test(a_nan_stays_in_its_row),
        cmocka_unit_test(threads_do_not_change_the_bits),
        cmocka_unit_test(the_fixtures_are_met),
    };

    return cmocka_run_group_tests(tests, open_makers, close_makers);
}
