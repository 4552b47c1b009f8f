/* NCCL as a transport, on the double: every collective, type and reduction with exact results, groups, lanes, comms out of comms, and ends that are not
 * happy. Buffers are the device's, so what goes in and comes out is copied. */
#include "check.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/suite.h"
#include "comm/values.h"
#include "harness/on_ranks.h"

static const rank_options on_cuda = {.device = LOOM_CUDA, .deadline_s = 100, .comm_deadline_s = 60};

enum { COUNT = 3000 };

/* As a pipeline does it: the receive is posted early, and its sender waits for us. New memory meanwhile may come neither behind it nor behind a free that
 * does. */
static void an_allocation_does_not_wait_for_a_message(loom_comm *comm, loom_stream *stream)
{
    int rank = loom_comm_rank(comm), peer = rank ^ 1;
    suite_pair in = suite_two_sided(comm, COUNT * sizeof(float)), out = suite_two_sided(comm, in.bytes), old = suite_two_sided(comm, in.bytes), new;
    loom_stream *early;

    assert_ok(loom_stream_open(loom_comm_device(comm), LOOM_STREAM_INLINE, "recv", &early));
    assert_ok(loom_comm_connect(comm, &peer, 1));
    assert_ok(loom_recv(comm, in.device, COUNT, LOOM_F32, peer, 0, early));
    suite_drop_sides(comm, old);
    new = suite_two_sided(comm, in.bytes);
    value_fill(out.host, rank, 0, COUNT, LOOM_F32);
    suite_push(out, stream);
    assert_ok(loom_send(comm, out.device, COUNT, LOOM_F32, peer, 0, stream));
    assert_ok(loom_stream_wait(stream));
    suite_pull(in, early);
    value_expect(in.host, peer, 0, COUNT, LOOM_F32);
    loom_stream_close(early);
    suite_drop_sides(comm, in);
    suite_drop_sides(comm, out);
    suite_drop_sides(comm, new);
}

static void everything_on_one_rank(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 1, suite_on_device);
}

static void everything_on_two_ranks(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, suite_on_device);
}

static void everything_on_four_ranks(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 4, suite_on_device);
}

static void memory_comes_while_messages_wait(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, an_allocation_does_not_wait_for_a_message);
}

/* --- unhappy ends --------------------------------------------------------------------------------------------------------------------------- */

static void rank_1_calls_nothing(loom_comm *world, loom_stream *stream)
{
    suite_pair b = suite_two_sided(world, 64);
    float pageable;

    if (loom_comm_rank(world) == 1) {
        usleep(6500000); /* longer than the deadline of the others */
        suite_drop_sides(world, b);
        return;
    }
    assert_ok(loom_all_reduce(world, b.device, b.device, 16, LOOM_F32, LOOM_SUM, stream));
    if (loom_comm_rank(world) == 2) /* to memory that is not pinned CUDA copies when the stream gets there, and looks at no deadline */
        assert_int_equal(loom_stream_copy(stream, &pageable, b.device, sizeof pageable), LOOM_E_PEER);
    else
        assert_int_equal(loom_stream_wait(stream), LOOM_E_PEER);
    assert_in_message("all_reduce #1 (16 f32, sum) on comm \"world\"");
    assert_in_message("is not over after 4 s");
    assert_int_equal(loom_all_reduce(world, b.device, b.device, 16, LOOM_F32, LOOM_SUM, stream), LOOM_E_PEER); /* the comm is gone */
    assert_ok(loom_stream_wait(stream)); /* the stream goes on: NCCL's kernel was ended */
    suite_drop_sides(world, b);
}

static void a_rank_that_does_not_come_is_noticed_at_the_deadline(void **state)
{
    rank_options options = on_cuda;

    (void)state;
    options.comm_deadline_s = 4; /* also of opening the world on a crowded machine */
    on_ranks_with(&options, 3, rank_1_calls_nothing);
}

/* A failure of a lane is its own communicator's. */
static void rank_1_expects_less(loom_comm *world, loom_stream *stream)
{
    int peer = loom_comm_rank(world) ^ 1;
    suite_pair b = suite_two_sided(world, 64);

    assert_ok(loom_comm_connect(world, &peer, 1));
    if (loom_comm_rank(world) == 0) {
        assert_ok(loom_send(world, b.device, 16, LOOM_F32, peer, 0, stream));
        assert_ok(loom_stream_wait(stream));
    } else {
        loom_status status = loom_recv(world, b.device, 15, LOOM_F32, peer, 0, stream);
        assert_int_equal(status < 0 ? status : loom_stream_wait(stream), LOOM_E_INVALID); /* the call may see it already */
        assert_in_message("recv");
    }
    suite_drop_sides(world, b);
}

static void a_failure_of_a_lane_is_noticed(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, rank_1_expects_less);
}

/* What has been begun then is in progress, and can only be aborted. */
static void rank_1_opens_half_a_lane(loom_comm *world, loom_stream *stream)
{
    int peer = loom_comm_rank(world) ^ 1;

    (void)stream;
    if (loom_comm_rank(world) == 1)
        setenv("LOOM_DOUBLE_FAIL", "ncclCommInitRankConfig:3", 1); /* after the world's and its way out */
    assert_true(loom_comm_connect(world, &peer, 1) < 0);
    if (loom_comm_rank(world) == 1)
        assert_in_message("making a lane: unhandled system error");
    else
        assert_in_message("opening a lane");
}

static void lanes_that_are_half_open_are_closed(void **state)
{
    rank_options options = on_cuda;

    (void)state;
    options.comm_deadline_s = 4;
    on_ranks_with(&options, 2, rank_1_opens_half_a_lane);
}

static atomic_bool *gone; /* shared with the ranks */

/* Rank 0 is in a call that rank 1 will not make: to destroy a communicator would take until rank 0 does. */
static void rank_1_ends_by_itself(loom_comm *world, loom_stream *stream)
{
    suite_pair b = suite_two_sided(world, 64);
    loom_comm *pair;

    assert_ok(loom_comm_split(world, 0, 0, "pair", &pair));
    if (loom_comm_rank(world) == 0) {
        assert_ok(loom_all_reduce(pair, b.device, b.device, 16, LOOM_F32, LOOM_SUM, stream));
        assert_int_equal(loom_stream_wait(stream), LOOM_E_PEER);
        assert_true(atomic_load(gone)); /* long before that deadline */
        loom_comm_free(pair);
    } else {
        loom_comm_abandon(world);
        loom_comm_free(pair);
        atomic_store(gone, true);
    }
    suite_drop_sides(world, b);
}

static void a_rank_that_ends_by_itself_waits_for_nobody(void **state)
{
    rank_options options = on_cuda;

    (void)state;
    gone = mmap(NULL, sizeof *gone, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(gone != MAP_FAILED);
    options.comm_deadline_s = 4;
    on_ranks_with(&options, 2, rank_1_ends_by_itself);
    munmap(gone, sizeof *gone);
}

static void takes_what_nccl_likes(loom_comm *world, loom_stream *stream)
{
    int peer = loom_comm_rank(world) ^ 1;

    (void)stream;
    setenv("RANKLOOM_LANE_CTAS", "0", 1);
    assert_ok(loom_comm_connect(world, &peer, 1));
}

static void lanes_may_be_unbounded(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, takes_what_nccl_likes);
}

static void names_its_transport(loom_comm *world, loom_stream *stream)
{
    (void)stream;
    assert_string_equal(loom_comm_transport(world), "nccl");
}

static void a_world_of_gpus_speaks_nccl(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, names_its_transport);
}

/* With an argument: only what the order of the streams could change, not what waits for deadlines. */
int main(int argc, char **argv)
{
    const struct CMUnitTest calls[] = {
        cmocka_unit_test(everything_on_one_rank),
        cmocka_unit_test(everything_on_two_ranks),
        cmocka_unit_test(everything_on_four_ranks),
        cmocka_unit_test(memory_comes_while_messages_wait),
        cmocka_unit_test(a_failure_of_a_lane_is_noticed),
        cmocka_unit_test(lanes_may_be_unbounded),
        cmocka_unit_test(a_world_of_gpus_speaks_nccl),
    };
    const struct CMUnitTest ends[] = {
        cmocka_unit_test(a_rank_that_does_not_come_is_noticed_at_the_deadline),
        cmocka_unit_test(lanes_that_are_half_open_are_closed),
        cmocka_unit_test(a_rank_that_ends_by_itself_waits_for_nobody),
    };
    int failed = cmocka_run_group_tests(calls, NULL, NULL);

    (void)argv;
    return failed || argc > 1 ? failed : cmocka_run_group_tests(ends, NULL, NULL);
}
