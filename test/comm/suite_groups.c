/* Comms out of comms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/suite.h"

static int sum_of_world_ranks(loom_comm *comm, loom_stream *stream)
{
    int32_t mine = loom_comm_world_rank(comm, loom_comm_rank(comm)), sum = -1;

    assert_int_equal(loom_all_reduce(comm, &mine, &sum, 1, LOOM_I32, LOOM_SUM, stream), LOOM_OK);
    suite_wait(stream);
    return sum;
}

static void split_orders_by_key_then_rank(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world), size = loom_comm_size(world), expected = 0;
    loom_comm *half;

    assert_int_equal(loom_comm_split(world, rank % 2, -rank, "half", &half), LOOM_OK); /* the last rank comes first */
    assert_string_equal(loom_comm_name(half), "half");
    for (int i = 0; i < loom_comm_size(half); i++) {
        int last = (size - 1) % 2 == rank % 2 ? size - 1 : size - 2;
        assert_int_equal(loom_comm_world_rank(half, i), last - 2 * i);
        expected += last - 2 * i;
    }
    assert_int_equal(loom_comm_world_rank(half, loom_comm_rank(half)), rank);
    assert_int_equal(sum_of_world_ranks(half, stream), expected);
    loom_comm_free(half);
}

static void a_negative_color_gets_none(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world), size = loom_comm_size(world);
    loom_comm *rest = (loom_comm *)1;

    assert_int_equal(loom_comm_split(world, rank == 0 ? -1 : 3, 0, "rest", &rest), LOOM_OK);
    if (rank == 0) {
        assert_null(rest);
    } else {
        assert_int_equal(loom_comm_size(rest), size - 1);
        assert_int_equal(loom_comm_rank(rest), rank - 1);
        assert_int_equal(sum_of_world_ranks(rest, stream), size * (size - 1) / 2);
    }
    loom_comm_free(rest);
}

/* A grid of pairs and rest, groups of groups, all alive at once, used in turn, freed in another order on each rank. */
static void groups_of_groups_live_side_by_side(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world), size = loom_comm_size(world), pair_size = rank / 2 * 2 + 1 < size ? 2 : 1;
    int members[2] = {rank / 2 * 2, rank / 2 * 2 + 1}, alone = 0;
    loom_comm *pair, *single, *copy;

    assert_int_equal(loom_comm_create(world, members, pair_size, "pair", &pair), LOOM_OK);
    assert_int_equal(loom_comm_rank(pair), rank % 2);
    alone = loom_comm_rank(pair);
    assert_int_equal(loom_comm_create(pair, &alone, 1, "single", &single), LOOM_OK);
    assert_int_equal(loom_comm_world_rank(single, 0), rank);
    assert_int_equal(loom_comm_split(world, 0, 0, "copy", &copy), LOOM_OK);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(sum_of_world_ranks(pair, stream), pair_size == 2 ? members[0] + members[1] : rank);
        assert_int_equal(sum_of_world_ranks(copy, stream), size * (size - 1) / 2);
        assert_int_equal(sum_of_world_ranks(single, stream), rank);
    }
    loom_comm_free(rank % 2 ? pair : copy);
    loom_comm_free(single);
    loom_comm_free(rank % 2 ? copy : pair);
}

/* Only some ranks are in the group; the others make none, with an empty list or with the same one. */
static void ranks_outside_make_none(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world), size = loom_comm_size(world), last = size - 1;
    loom_comm *end = (loom_comm *)1;

    assert_int_equal(loom_comm_create(world, &last, rank % 2 || rank == last ? 1 : 0, "end", &end), LOOM_OK);
    if (rank != last)
        assert_null(end);
    else
        assert_int_equal(sum_of_world_ranks(end, stream), last);
    loom_comm_free(end);
}

/* Making and freeing comms without end takes no memory without end. */
static void freed_comms_give_their_memory_back(loom_comm *world, loom_stream *stream)
{
    loom_comm *comm;
    float many[3000] = {0};

    for (int i = 0; i < 100; i++) {
        assert_int_equal(loom_comm_split(world, 0, 0, "again", &comm), LOOM_OK);
        if (i % 50 == 0) {
            assert_int_equal(loom_all_reduce(comm, many, many, 3000, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
            assert_int_equal(loom_group_begin(comm), LOOM_OK);
            assert_int_equal(loom_send(comm, many, 100, LOOM_F32, loom_comm_rank(comm), 0, stream), LOOM_OK);
            assert_int_equal(loom_recv(comm, many, 100, LOOM_F32, loom_comm_rank(comm), 0, stream), LOOM_OK);
            assert_int_equal(loom_group_end(comm, stream), LOOM_OK);
            suite_wait(stream);
        }
        loom_comm_free(comm);
    }
}

void suite_groups(loom_comm *world, loom_stream *stream)
{
    split_orders_by_key_then_rank(world, stream);
    if (loom_comm_size(world) > 1)
        a_negative_color_gets_none(world, stream);
    groups_of_groups_live_side_by_side(world, stream);
    ranks_outside_make_none(world, stream);
    freed_comms_give_their_memory_back(world, stream);
}
