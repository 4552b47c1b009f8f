/* Shard specs: the walk over runs against the plain index, and every cut of a tensor put together again. */
#include <rankloom/shard.h>

#include "check.h"

typedef struct walk {
    const loom_shard *shard;
    int64_t next_local, runs;
    int *held; /* [global count] how often an element was visited */
} walk;

static loom_status check_run(void *context, int64_t local, int64_t global, int64_t count)
{
    walk *w = context;

    assert_true(count > 0);
    for (int64_t l = w->next_local; l < local; l++) /* what was skipped is padding */
        assert_int_equal(loom_shard_global_index(w->shard, l), -1);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(loom_shard_global_index(w->shard, local + i), global + i);
        w->held[global + i]++;
    }
    w->next_local = local + count;
    w->runs++;
    return LOOM_OK;
}

static int64_t add_holdings(const loom_shard *shard, int *held)
{
    walk w = {shard, 0, 0, held};

    assert_int_equal(loom_shard_visit(shard, check_run, &w), LOOM_OK);
    return w.runs;
}

static void the_parts_of_every_cut_make_up_the_whole(void **state)
{
    for (int dim = 0; dim < 3; dim++)
        for (int parts = 1; parts <= 7; parts++) {
            int held[5 * 6 * 7] = {0};

            for (int i = 0; i < parts; i++) {
                loom_shard shard = {.name = "t", .dims = 3, .shape = {5, 6, 7}, .split_dim = dim, .n_ranges = 1};
                int64_t widest = (shard.shape[dim] + parts - 1) / parts;

                shard.ranges[0] = loom_cut(shard.shape[dim], parts, i);
                shard.padding = widest - (shard.ranges[0].end - shard.ranges[0].begin);
                assert_int_equal(loom_shard_local_extent(&shard, dim), widest);
                add_holdings(&shard, held);
            }
            for (int g = 0; g < 5 * 6 * 7; g++)
                assert_int_equal(held[g], 1);
        }
}

static void fused_query_key_value_is_several_ranges(void **state)
{
    /* 4 query heads and 2 kv heads of size 3 over tp 2: rows 0-11 are q, 12-17 k, 18-23 v. Rank 1 has rows 6-11, 15-17, 21-23. */
    loom_shard shard = {.name = "qkv", .dims = 2, .shape = {24, 5}, .split_dim = 0, .n_ranges = 3, .ranges = {{6, 12}, {15, 18}, {21, 24}}};
    int held[24 * 5] = {0};

    assert_int_equal(loom_shard_local_count(&shard), 12 * 5);
    assert_int_equal(loom_shard_global_count(&shard), 24 * 5);
    assert_int_equal(add_holdings(&shard, held), 3); /* whole rows: one run a range */
    assert_int_equal(held[6 * 5], 1);
    assert_int_equal(held[12 * 5], 0);
    assert_int_equal(held[23 * 5 + 4], 1);
    shard.split_dim = 1;
    shard.shape[0] = 5;
    shard.shape[1] = 24;
    memset(held, 0, sizeof held);
    assert_int_equal(add_holdings(&shard, held), 3 * 5); /* columns: one a row and range */
}

static void neighbouring_runs_are_one(void **state)
{
    loom_shard whole = {.name = "w", .dims = 2, .shape = {8, 5}, .split_dim = -1};
    loom_shard halves = {.name = "w", .dims = 2, .shape = {8, 5}, .split_dim = 0, .n_ranges = 2, .ranges = {{0, 3}, {3, 6}}};
    loom_shard all_columns = {.name = "w", .dims = 2, .shape = {8, 5}, .split_dim = 1, .n_ranges = 1, .ranges = {{0, 5}}};
    loom_shard nothing = {.name = "w", .dims = 2, .shape = {8, 5}, .split_dim = 0, .n_ranges = 1, .ranges = {{4, 4}}, .padding = 1};
    int held[40] = {0};

    assert_int_equal(add_holdings(&whole, held), 1);
    assert_int_equal(add_holdings(&halves, held), 1);
    assert_int_equal(add_holdings(&all_columns, held), 1);
    assert_int_equal(add_holdings(&nothing, held), 0);
}

static loom_status refuse(void *context, int64_t local, int64_t global, int64_t count)
{
    ++*(int *)context;
    return loom_fail(LOOM_E_IO, "enough");
}

static void a_visitor_that_fails_ends_the_walk(void **state)
{
    loom_shard columns = {.name = "w", .dims = 2, .shape = {8, 6}, .split_dim = 1, .n_ranges = 1, .ranges = {{0, 3}}};
    int calls = 0;

    assert_int_equal(loom_shard_visit(&columns, refuse, &calls), LOOM_E_IO);
    assert_int_equal(calls, 1);
}

static void every_part_starts_with_the_values_of_the_whole(void **state)
{
    loom_shard whole = {.name = "model.layers.0.w", .dims = 2, .shape = {9, 10}, .split_dim = -1, .init = {LOOM_INIT_NORMAL, 0.02}};
    float all[90], part[90];

    loom_init_fill(&whole, 7, all);
    for (int dim = 0; dim < 2; dim++)
        for (int i = 0; i < 4; i++) {
            loom_shard shard = whole;
            shard.split_dim = dim;
            shard.n_ranges = 1;
            shard.ranges[0] = loom_cut(shard.shape[dim], 4, i);
            shard.padding = i == 0;
            loom_init_fill(&shard, 7, part);
            for (int64_t l = 0; l < loom_shard_local_count(&shard); l++) {
                int64_t global = loom_shard_global_index(&shard, l);
                assert_true(part[l] == (global < 0 ? 0.0f : all[global]));
            }
        }
}

static void ones_and_zeros_are_exact_without_jitter(void **state)
{
    loom_shard norm = {.name = "norm.weight", .dims = 1, .shape = {16}, .split_dim = -1, .init = {LOOM_INIT_ONES, 0}};
    loom_shard bias = {.name = "norm.bias", .dims = 1, .shape = {16}, .split_dim = -1, .init = {LOOM_INIT_ZEROS, 0}};
    float values[16];

    loom_init_fill(&norm, 1, values);
    for (int i = 0; i < 16; i++)
        assert_true(values[i] == 1.0f);
    loom_init_fill(&bias, 1, values);
    for (int i = 0; i < 16; i++)
        assert_true(values[i] == 0.0f);
}

static void a_list_of_parameters_grows(void **state)
{
    loom_param_list list = {0};
    loom_param param[200];

    for (int i = 0; i < 200; i++)
        assert_int_equal(loom_param_list_add(&list, &param[i]), LOOM_OK);
    assert_int_equal(list.count, 200);
    assert_ptr_equal(list.at[199], &param[199]);
    loom_param_list_free(&list);
    assert_int_equal(list.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_every_cut_make_up_the_whole),
        cmocka_unit_test(fused_query_key_value_is_several_ranges),
        cmocka_unit_test(neighbouring_runs_are_one),
        cmocka_unit_test(a_visitor_that_fails_ends_the_walk),
        cmocka_unit_test(every_part_starts_with_the_values_of_the_whole),
        cmocka_unit_test(ones_and_zeros_are_exact_without_jitter),
        cmocka_unit_test(a_list_of_parameters_grows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
