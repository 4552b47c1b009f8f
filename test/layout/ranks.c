/* Where ranks sit and who is in whose group, for every order of the axes. */
#include <rankloom/layout.h>

#include "check.h"

enum { MOST_RANKS = 256 };

static loom_layout plain(int tp, int cp, int dp, int pp)
{
    loom_layout layout;

    loom_layout_default(NULL, &layout);
    layout.tp = tp;
    layout.cp = cp;
    layout.dp = dp;
    layout.pp = pp;
    return layout;
}

static void assert_group(const loom_layout *layout, loom_axis axis, int rank, const int *members, int count)
{
    int found[MOST_RANKS];

    assert_int_equal(loom_layout_group(layout, axis, rank, found), count);
    assert_memory_equal(found, members, (size_t)count * sizeof *members);
}

static void tp_has_the_neighbours_and_dp_the_stride(void **state)
{
    loom_layout layout = plain(8, 1, 2, 1);

    for (int r = 0; r < 16; r++) {
        int tp_group[8], dp_group[2] = {r % 8, r % 8 + 8};
        for (int i = 0; i < 8; i++)
            tp_group[i] = r / 8 * 8 + i;
        assert_group(&layout, LOOM_AXIS_TP, r, tp_group, 8);
        assert_group(&layout, LOOM_AXIS_DP, r, dp_group, 2);
    }
}

static void a_permuted_order_moves_the_neighbours(void **state)
{
    loom_layout layout = plain(2, 1, 4, 2);

    memcpy(layout.order, (loom_axis[]){LOOM_AXIS_DP, LOOM_AXIS_PP, LOOM_AXIS_TP, LOOM_AXIS_CP}, sizeof layout.order);
    assert_group(&layout, LOOM_AXIS_DP, 5, (int[]){4, 5, 6, 7}, 4);
    assert_group(&layout, LOOM_AXIS_PP, 5, (int[]){1, 5}, 2);
    assert_group(&layout, LOOM_AXIS_TP, 5, (int[]){5, 13}, 2);
}

static void the_gradient_group_has_dp_slowest(void **state)
{
    loom_layout layout = plain(2, 2, 2, 1);
    int members[4];

    assert_int_equal(loom_layout_gradient_group(&layout, 1, members), 4);
    assert_memory_equal(members, ((int[]){1, 3, 5, 7}), sizeof members);
}

static void expert_groups_lie_inside_a_stage(void **state)
{
    loom_layout layout = plain(2, 1, 4, 2);

    layout.ep = 4;
    layout.etp = 1;
    assert_int_equal(loom_layout_edp(&layout), 2);
    assert_group(&layout, LOOM_AXIS_EP, 0, (int[]){0, 1, 2, 3}, 4);
    assert_group(&layout, LOOM_AXIS_EDP, 9, (int[]){9, 13}, 2);
    layout.etp = 2;
    assert_group(&layout, LOOM_AXIS_ETP, 3, (int[]){2, 3}, 2);
    assert_group(&layout, LOOM_AXIS_EP, 3, (int[]){1, 3, 5, 7}, 4);
}

static void swap(loom_axis *a, loom_axis *b)
{
    loom_axis kept = *a;

    *a = *b;
    *b = kept;
}

/* Groups of an axis partition the world; members agree on everything but the axis; a member's place is its coordinate. */
static void check_partition(const loom_layout *layout)
{
    int world = loom_layout_world(layout), members[MOST_RANKS];

    for (int rank = 0; rank < world; rank++) {
        loom_coords here = loom_layout_coords(layout, rank);
        assert_int_equal(loom_layout_rank(layout, here.at), rank);
        for (int axis = 0; axis < LOOM_AXES; axis++) {
            bool folded = axis >= LOOM_AXIS_ETP;
            int count = loom_layout_group(layout, (loom_axis)axis, rank, members);
            assert_int_equal(count, loom_layout_degree(layout, (loom_axis)axis));
            assert_int_equal(members[here.at[axis]], rank);
            for (int i = 0; i < count; i++) {
                loom_coords there = loom_layout_coords(layout, members[i]);
                assert_int_equal(there.at[axis], i);
                assert_true(axis == LOOM_AXIS_PP || there.at[LOOM_AXIS_PP] == here.at[LOOM_AXIS_PP]);
                for (int other = folded ? LOOM_AXIS_ETP : 0; other < (folded ? LOOM_AXES : LOOM_AXIS_ETP); other++)
                    assert_true(other == axis || there.at[other] == here.at[other]);
            }
        }
    }
}

/* Heap's algorithm: every order once. */
static void check_orders(loom_layout *layout, int n)
{
    if (n == 1) {
        check_partition(layout);
        return;
    }
    for (int i = 0; i < n; i++) {
        check_orders(layout, n - 1);
        swap(&layout->order[n % 2 ? 0 : i], &layout->order[n - 1]);
    }
}

static void coordinates_and_groups_agree_for_every_order_and_fold(void **state)
{
    static const int shapes[][6] = {{1, 1, 1, 1, 1, 1}, {2, 2, 3, 2, 3, 2}, {3, 1, 4, 2, 2, 6}, {4, 2, 2, 3, 8, 2}, {1, 4, 2, 2, 8, 1}};

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        loom_layout layout = plain(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3]);
        layout.ep = shapes[s][4];
        layout.etp = shapes[s][5];
        check_orders(&layout, 4);
    }
}

static void cuts_cover_everything_once(void **state)
{
    for (int64_t n = 0; n < 40; n++)
        for (int parts = 1; parts < 12; parts++) {
            int64_t end = 0;
            for (int i = 0; i < parts; i++) {
                loom_range range = loom_cut(n, parts, i);
                assert_int_equal(range.begin, end);
                assert_in_range(range.end - range.begin, n / parts, (n + parts - 1) / parts);
                end = range.end;
            }
            assert_int_equal(end, n);
        }
}

static void a_layout_is_told_in_one_line(void **state)
{
    loom_layout layout = plain(2, 1, 1, 2);
    char text[128];

    layout.zero = 1;
    layout.sequence_parallel = true;
    layout.micro_batch = 2;
    assert_string_equal(loom_layout_describe(&layout, text, sizeof text), "tp2 pp2 dp1 zero1 sp 1f1b mb2");
    assert_string_equal(loom_layout_describe(&layout, text, 8), "tp2 pp2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tp_has_the_neighbours_and_dp_the_stride),
        cmocka_unit_test(a_permuted_order_moves_the_neighbours),
        cmocka_unit_test(the_gradient_group_has_dp_slowest),
        cmocka_unit_test(expert_groups_lie_inside_a_stage),
        cmocka_unit_test(coordinates_and_groups_agree_for_every_order_and_fold),
        cmocka_unit_test(cuts_cover_everything_once),
        cmocka_unit_test(a_layout_is_told_in_one_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
