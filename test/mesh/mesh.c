/* The mesh: every rank of many layouts, one dry rank at a time, and real ranks that add up who is in their groups. */
#include "harness/on_ranks.h"

#include <rankloom/mesh.h>

#include "check.h"

enum { MOST_RANKS = 64 };

typedef struct shape {
    int tp, cp, dp, pp, vpp, ep, etp;
    loom_schedule_kind schedule;
    loom_axis order[4];
} shape;

#define PLAIN_ORDER {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}
#define OTHER_ORDER {LOOM_AXIS_DP, LOOM_AXIS_PP, LOOM_AXIS_CP, LOOM_AXIS_TP}
static const shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, LOOM_SCHEDULE_1F1B, PLAIN_ORDER},        {2, 1, 1, 4, 2, 1, 1, LOOM_SCHEDULE_INTERLEAVED, PLAIN_ORDER},
    {4, 2, 2, 2, 1, 8, 1, LOOM_SCHEDULE_1F1B, PLAIN_ORDER},        {8, 1, 2, 1, 1, 4, 2, LOOM_SCHEDULE_1F1B, OTHER_ORDER},
    {2, 2, 2, 2, 2, 2, 4, LOOM_SCHEDULE_ZB_V, OTHER_ORDER},        {4, 1, 3, 3, 1, 3, 1, LOOM_SCHEDULE_GPIPE, OTHER_ORDER},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const loom_model tied_moe = {.layers = 12, .hidden = 64, .heads = 8, .kv_heads = 2, .head_dim = 8, .ffn = 96, .vocab = 128, .seq = 32,
                                    .tied_embeddings = true, .moe = {.experts = 24, .top_k = 2, .ffn = 32, .every = 1}};

static loom_layout layout_of(shape s)
{
    loom_layout layout;

    loom_layout_default(&tied_moe, &layout);
    layout.tp = s.tp;
    layout.cp = s.cp;
    layout.dp = s.dp;
    layout.pp = s.pp;
    layout.vpp = s.vpp;
    layout.ep = s.ep;
    layout.etp = s.etp;
    layout.schedule = s.schedule;
    layout.global_batch = 12 * s.dp;
    memcpy(layout.order, s.order, sizeof layout.order);
    assert_ok(loom_layout_check(&layout, &tied_moe, 0));
    return layout;
}

/* --- what the groups have to be, said anew --------------------------------------------------------------------------------- */

/* Whether `other` belongs to the group of `here`, for each comm of the mesh. */
typedef bool belongs_fn(const loom_layout *l, const loom_coords *here, const loom_coords *other);

static bool agree_but(const loom_coords *a, const loom_coords *b, unsigned free_axes)
{
    for (int axis = 0; axis < LOOM_AXES; axis++)
        if (!(free_axes & 1u << axis) && a->at[axis] != b->at[axis])
            return false;
    return true;
}

enum {
    TP = 1 << LOOM_AXIS_TP, CP = 1 << LOOM_AXIS_CP, DP = 1 << LOOM_AXIS_DP, PP = 1 << LOOM_AXIS_PP,
    ETP = 1 << LOOM_AXIS_ETP, EP = 1 << LOOM_AXIS_EP, EDP = 1 << LOOM_AXIS_EDP, EXPERT = ETP | EP | EDP, DENSE = TP | CP | DP,
};

static bool in_tied(const loom_layout *l, const loom_coords *here, const loom_coords *other)
{
    int last = loom_layout_stage_of_chunk(l, l->pp * l->vpp - 1), a = here->at[LOOM_AXIS_PP], b = other->at[LOOM_AXIS_PP];

    return last != 0 && (a == 0 || a == last) && (b == 0 || b == last) && agree_but(here, other, PP);
}

static bool in_kv(const loom_layout *l, const loom_coords *here, const loom_coords *other)
{
    int sharers = l->tp / 2; /* two kv heads */

    return sharers > 1 && here->at[LOOM_AXIS_TP] / sharers == other->at[LOOM_AXIS_TP] / sharers && agree_but(here, other, TP | EXPERT);
}

/* Checks the members of a comm against all ranks; the members stand in the order of their coordinates. */
static void check_comm(const loom_mesh *mesh, const loom_comm *comm, const bool belongs[MOST_RANKS], const char *name)
{
    int world = loom_layout_world(&mesh->layout), expected = 0, rank = loom_comm_rank(mesh->world);

    for (int r = 0; r < world; r++)
        expected += belongs[r];
    if (expected == 0) {
        assert_null(comm);
        return;
    }
    assert_non_null(comm);
    assert_string_equal(loom_comm_name(comm), name);
    assert_int_equal(loom_comm_size(comm), expected);
    assert_int_equal(loom_comm_world_rank(comm, loom_comm_rank(comm)), rank);
    for (int i = 0; i < expected; i++)
        assert_true(belongs[loom_comm_world_rank(comm, i)]);
}

static void check_axes(const loom_mesh *mesh)
{
    const loom_layout *l = &mesh->layout;
    bool belongs[MOST_RANKS];

    for (int axis = 0; axis < LOOM_AXES; axis++) {
        /* the dense and the expert axes name the same ranks of a stage: who moves along one set moves along the other */
        unsigned others = axis == LOOM_AXIS_PP ? 0 : axis < LOOM_AXIS_ETP ? EXPERT : DENSE;
        for (int r = 0; r < loom_layout_world(l); r++) {
            loom_coords other = loom_layout_coords(l, r);
            belongs[r] = agree_but(&mesh->here, &other, 1u << axis | others);
        }
        check_comm(mesh, mesh->axis[axis], belongs, loom_axis_name((loom_axis)axis));
        assert_int_equal(loom_comm_rank(mesh->axis[axis]), mesh->here.at[axis]);
    }
}

static void check_other_groups(const loom_mesh *mesh)
{
    const loom_layout *l = &mesh->layout;
    bool gradient[MOST_RANKS], tied[MOST_RANKS], kv[MOST_RANKS], stage[MOST_RANKS], model[MOST_RANKS];
    const loom_coords *here = &mesh->here;

    for (int r = 0; r < loom_layout_world(l); r++) {
        loom_coords other = loom_layout_coords(l, r);
        gradient[r] = agree_but(here, &other, CP | DP | EXPERT);
        tied[r] = in_tied(l, here, &other);
        kv[r] = in_kv(l, here, &other);
        stage[r] = agree_but(here, &other, DENSE | EXPERT);
        model[r] = agree_but(here, &other, TP | PP | EXPERT);
    }
    check_comm(mesh, mesh->gradient, gradient, "gradient");
    check_comm(mesh, mesh->tied, tied, "tied");
    check_comm(mesh, mesh->kv, kv, "kv");
    check_comm(mesh, mesh->stage, stage, "stage");
    check_comm(mesh, mesh->model, model, "model");
    assert_int_equal(loom_comm_rank(mesh->gradient), here->at[LOOM_AXIS_CP] + l->cp * here->at[LOOM_AXIS_DP]);
    assert_int_equal(loom_comm_rank(mesh->stage), here->at[LOOM_AXIS_TP] + l->tp * loom_comm_rank(mesh->gradient));
    assert_int_equal(loom_comm_rank(mesh->model), here->at[LOOM_AXIS_TP] + l->tp * here->at[LOOM_AXIS_PP]);
}

/* --- one dry rank at a time ---------------------------------------------------------------------------------------------------- */

static shape shape_now;            /* of the test that runs; a rank_fn takes no context */
static char *first_text;           /* what the first rank told */
static uint64_t groups_made;

static uint64_t count_splits(loom_comm *world)
{
    loom_traffic traffic;

    loom_comm_traffic(world, &traffic);
    return traffic.calls[LOOM_CALL_SPLIT];
}

static void check_dry_rank(loom_comm *world, loom_stream *stream)
{
    loom_layout layout = layout_of(shape_now);
    loom_mesh *mesh;
    char *text;

    assert_ok(loom_mesh_open(world, &layout, &tied_moe, &mesh));
    check_axes(mesh);
    check_other_groups(mesh);
    assert_ok(loom_mesh_describe(mesh, &text));
    if (loom_comm_rank(world) == 0) {
        first_text = text;
        groups_made = count_splits(world);
    } else {
        assert_string_equal(text, first_text); /* every rank can tell the whole order, and tells the same */
        assert_int_equal(count_splits(world), groups_made);
        loom_text_free(text);
    }
    loom_mesh_close(mesh);
}

static void every_rank_of_a_layout_is_in_the_right_groups(void **state)
{
    for (int i = 0; i < SHAPES; i++) {
        loom_layout layout = layout_of(shapes[i]);
        int world = loom_layout_world(&layout);

        shape_now = shapes[i];
        for (int rank = 0; rank < world; rank++)
            on_dry_rank(rank, world, check_dry_rank);
        assert_int_equal(groups_made, 12);
        loom_text_free(first_text);
    }
}

static void check_description(loom_comm *world, loom_stream *stream)
{
    loom_layout layout = layout_of((shape){2, 1, 1, 2, 1, 2, 1, LOOM_SCHEDULE_1F1B, PLAIN_ORDER});
    loom_mesh *mesh;
    char *text;

    assert_ok(loom_mesh_open(world, &layout, &tied_moe, &mesh));
    assert_ok(loom_mesh_describe(mesh, &text));
    assert_string_equal(text, "tp2 pp2 dp1 ep2 1f1b mb1, 4 ranks\n"
                              "rank 0: tp0 cp0 dp0 pp0 etp0 ep0 edp0\nrank 1: tp1 cp0 dp0 pp0 etp0 ep1 edp0\n"
                              "rank 2: tp0 cp0 dp0 pp1 etp0 ep0 edp0\nrank 3: tp1 cp0 dp0 pp1 etp0 ep1 edp0\n"
                              "groups, in the order in which every rank makes them:\n"
                              "1. tp: {0 1} {2 3}\n2. cp: {0} {1} {2} {3}\n3. dp: {0} {1} {2} {3}\n4. pp: {0 2} {1 3}\n"
                              "5. etp: {0} {1} {2} {3}\n6. ep: {0 1} {2 3}\n7. edp: {0} {1} {2} {3}\n8. gradient: {0} {1} {2} {3}\n"
                              "9. tied: {0 2} {1 3}\n10. kv: none\n11. stage: {0 1} {2 3}\n12. model: {0 1 2 3}\n");
    loom_text_free(text);
    loom_mesh_close(mesh);
}

static void the_order_of_groups_can_be_printed(void **state)
{
    on_dry_rank(3, 4, check_description);
}

static void check_big_world(loom_comm *world, loom_stream *stream)
{
    loom_layout layout;
    loom_mesh *mesh;
    char *text;

    loom_layout_default(&tied_moe, &layout);
    layout.tp = 8;
    layout.pp = 4;
    layout.dp = 512;
    assert_ok(loom_mesh_open(world, &layout, &tied_moe, &mesh));
    assert_int_equal(loom_comm_size(mesh->gradient), 512);
    assert_int_equal(loom_comm_size(mesh->stage), 4096);
    assert_ok(loom_mesh_describe(mesh, &text));
    assert_non_null(strstr(text, "rank 12345:"));
    assert_null(strstr(text, "rank 12344:"));
    loom_text_free(text);
    loom_mesh_close(mesh);
}

static void a_world_of_16384_is_told_from_one_rank(void **state)
{
    on_dry_rank(12345, 16384, check_big_world);
}

static void check_wrong_world(loom_comm *world, loom_stream *stream)
{
    loom_layout layout = layout_of((shape){2, 1, 2, 2, 1, 1, 1, LOOM_SCHEDULE_1F1B, PLAIN_ORDER});
    loom_mesh *mesh;

    assert_refused(loom_mesh_open(world, &layout, &tied_moe, &mesh), LOOM_E_INVALID, "= 8 ranks needed", "has 4", "tp2 pp2 dp1, tp2 pp1 dp2 or tp1 pp2 dp2");
}

static void a_world_of_another_size_is_refused_with_layouts_that_fit(void **state)
{
    on_dry_rank(0, 4, check_wrong_world);
}

/* --- real ranks ------------------------------------------------------------------------------------------------------------------- */

/* The sum of the world ranks of a group, added up by the group itself, against its list. */
static void check_sum(loom_comm *comm, int rank, loom_stream *stream)
{
    int32_t mine = rank, sum = 0, expected = 0;

    if (!comm)
        return;
    assert_ok(loom_all_reduce(comm, &mine, &sum, 1, LOOM_I32, LOOM_SUM, stream));
    assert_ok(loom_stream_wait(stream));
    for (int i = 0; i < loom_comm_size(comm); i++)
        expected += loom_comm_world_rank(comm, i);
    assert_int_equal(sum, expected);
}

static void add_up_groups(loom_comm *world, loom_stream *stream)
{
    loom_layout layout = layout_of((shape){2, 1, 1, 2, 2, 2, 1, LOOM_SCHEDULE_INTERLEAVED, PLAIN_ORDER});
    int rank = loom_comm_rank(world);
    uint64_t made;
    loom_mesh *mesh;

    assert_ok(loom_mesh_open(world, &layout, &tied_moe, &mesh));
    made = count_splits(world);
    for (int step = 0; step < 3; step++) {
        for (int axis = 0; axis < LOOM_AXES; axis++)
            check_sum(mesh->axis[axis], rank, stream);
        check_sum(mesh->gradient, rank, stream);
        check_sum(mesh->tied, rank, stream);
        check_sum(mesh->kv, rank, stream);
        check_sum(mesh->stage, rank, stream);
        check_sum(mesh->model, rank, stream);
    }
    assert_int_equal(count_splits(world), made); /* no group is made inside a step */
    loom_mesh_close(mesh);
}

static void real_groups_add_up_their_members(void **state)
{
    on_ranks(4, add_up_groups);
}

/* --- the map --------------------------------------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_groups_add_up_their_members), /* first: forks */
        cmocka_unit_test(every_rank_of_a_layout_is_in_the_right_groups),
        cmocka_unit_test(the_order_of_groups_can_be_printed),
        cmocka_unit_test(a_world_of_16384_is_told_from_one_rank),
        cmocka_unit_test(a_world_of_another_size_is_refused_with_layouts_that_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
