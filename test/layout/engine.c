/* What the engine runs: one table, in its two forms. */
#include "check.h"

#include <rankloom/engine.h>

static void a_layout_is_refused_with_all_that_is_missing_and_what_there_is(void **state)
{
    loom_layout l;

    loom_layout_default(NULL, &l);
    assert_ok(loom_engine_check_layout(&l));
    l.recompute = LOOM_RECOMPUTE_SELECTIVE;
    assert_refused(loom_engine_check_layout(&l), LOOM_E_UNSUPPORTED, "recompute=selective", "none and full work");
}

static bool excluded(const char *condition)
{
    for (const char *const *at = loom_engine_excluded(); *at; at++)
        if (strcmp(*at, condition) == 0)
            return true;
    return false;
}

static void check_value(const loom_layout *l, const char *field, const char *value)
{
    char condition[64];

    snprintf(condition, sizeof condition, "%s=%s", field, value);
    assert_int_equal(loom_engine_check_layout(l) < 0, excluded(condition));
}

/* A plan that keeps to the conditions is what the trainer takes, and nothing else is kept from it. */
static void conditions_exclude_what_the_check_refuses(void **state)
{
    loom_layout l;

    loom_layout_default(NULL, &l);
    for (l.zero = 0; l.zero <= 3; l.zero++)
        check_value(&l, "zero", (const char *[]){"0", "1", "2", "3"}[l.zero]);
    l.zero = 0;
    for (int i = LOOM_RECOMPUTE_NONE; i <= LOOM_RECOMPUTE_FULL; i++) {
        l.recompute = i;
        check_value(&l, "recompute", loom_recompute_name(i));
    }
    l.recompute = LOOM_RECOMPUTE_NONE;
    for (int i = 0; i < LOOM_SCHEDULE_KINDS; i++) {
        l.schedule = i;
        check_value(&l, "schedule", loom_schedule_kind_name(i));
    }
    l.schedule = LOOM_SCHEDULE_1F1B;
    for (int i = LOOM_CP_RING; i <= LOOM_CP_AUTO; i++) {
        l.cp_kind = i;
        check_value(&l, "cp_kind", loom_cp_kind_name(i));
    }
}

static void a_model_is_refused_with_all_that_it_asks_for(void **state)
{
    loom_model m = {.name = "odd", .mlp = LOOM_SWIGLU};

    assert_ok(loom_engine_check_model(&m));
    m.unmodelled = LOOM_UNMODELLED_DROPOUT; /* of the training, not of the model */
    assert_ok(loom_engine_check_model(&m));
    m.qk_norm = true;
    m.mla.kv_rank = 512;
    m.unmodelled |= LOOM_UNMODELLED_ROPE_SCALING;
    assert_refused(loom_engine_check_model(&m), LOOM_E_UNSUPPORTED, "odd", "norms on queries and keys", "latent attention",
                   loom_model_unmodelled_name(LOOM_UNMODELLED_ROPE_SCALING));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layout_is_refused_with_all_that_is_missing_and_what_there_is),
        cmocka_unit_test(conditions_exclude_what_the_check_refuses),
        cmocka_unit_test(a_model_is_refused_with_all_that_it_asks_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
