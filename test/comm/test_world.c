/* Opening worlds over the real store, dry worlds, and the law of traffic on both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "harness/on_ranks.h"

/* --- over the store ------------------------------------------------------------------------------------------------------ */

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static int port;

static void open_over_the_store(loom_comm *outer, loom_stream *stream)
{
    loom_launch launch = {.launcher = LOOM_LAUNCH_ENV,
                          .rank = loom_comm_rank(outer),
                          .size = loom_comm_size(outer),
                          .master_addr = "127.0.0.1",
                          .master_port = port};
    loom_comm_config config = {.deadline_s = 10};
    loom_store *store;
    loom_comm *world;

    (void)stream;
    assert_int_equal(loom_store_open(&launch, 10, &store), LOOM_OK);
    for (int again = 0; again < 2; again++) { /* a store may serve one world after another */
        int32_t one = 1, sum;
        if (loom_comm_open_world(&launch, store, loom_comm_device(outer), &config, &world) != LOOM_OK)
            fail_msg("%s", loom_last_error());
        assert_string_equal(loom_comm_transport(world), "shm");
        assert_int_equal(loom_all_reduce(world, &one, &sum, 1, LOOM_I32, LOOM_SUM, stream), LOOM_OK);
        assert_int_equal(loom_stream_wait(stream), LOOM_OK);
        assert_int_equal(sum, launch.size);
        loom_comm_free(world);
    }
    loom_store_close(store);
}

static void a_world_opens_over_the_store(void **state)
{
    (void)state;
    port = free_port();
    on_ranks(3, open_over_the_store);
    on_ranks(1, open_over_the_store);
}

static void unknown_transport(loom_comm *outer, loom_stream *stream)
{
    loom_launch launch = {.size = 1, .launcher = LOOM_LAUNCH_ALONE};
    loom_comm_config config = {.transport = "nccl"};
    loom_store *store;
    loom_comm *world = NULL;

    (void)stream;
    assert_int_equal(loom_store_open(&launch, 10, &store), LOOM_OK);
    assert_int_equal(loom_comm_open_world(&launch, store, loom_comm_device(outer), &config, &world), LOOM_E_UNSUPPORTED);
    assert_non_null(strstr(loom_last_error(), "nccl"));
    config = (loom_comm_config){.deadline_s = -1};
    assert_int_equal(loom_comm_open_world(&launch, store, loom_comm_device(outer), &config, &world), LOOM_E_INVALID);
    assert_null(world);
    loom_store_close(store);
}

static void a_transport_that_is_not_there_is_refused(void **state)
{
    (void)state;
    on_ranks(1, unknown_transport);
}

/* --- the law of traffic ------------------------------------------------------------------------------------------------------ */

static void one_of_each(loom_comm *comm, loom_stream *stream)
{
    enum { COUNT = 24 };
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    size_t counts[8], offsets[8];
    float *a, *b;

    assert_int_equal(loom_alloc(loom_comm_device(comm), 8 * COUNT * sizeof *a, LOOM_MEM_OTHER, (void **)&a), LOOM_OK);
    assert_int_equal(loom_alloc(loom_comm_device(comm), 8 * COUNT * sizeof *b, LOOM_MEM_OTHER, (void **)&b), LOOM_OK);
    loom_comm_reset_traffic(comm);
    assert_int_equal(loom_all_reduce(comm, a, a, COUNT, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    assert_int_equal(loom_reduce_scatter(comm, a, b, COUNT, LOOM_BF16, LOOM_SUM, stream), LOOM_OK);
    assert_int_equal(loom_all_gather(comm, a, b, COUNT, LOOM_F32, stream), LOOM_OK);
    assert_int_equal(loom_all_to_all(comm, a, b, COUNT, LOOM_F32, stream), LOOM_OK);
    for (int r = 0; r < size; r++) {
        counts[r] = 3;
        offsets[r] = (size_t)r * 3;
    }
    assert_int_equal(loom_all_to_all_v(comm, a, counts, offsets, b, counts, offsets, LOOM_F32, stream), LOOM_OK);
    assert_int_equal(loom_broadcast(comm, a, COUNT, LOOM_F32, 1, stream), LOOM_OK);
    assert_int_equal(loom_barrier(comm, NULL, stream), LOOM_OK);
    if (rank % 2 == 0 && rank + 1 < size)
        assert_int_equal(loom_send(comm, a, COUNT, LOOM_F32, rank + 1, 0, stream), LOOM_OK);
    else if (rank % 2)
        assert_int_equal(loom_recv(comm, a, COUNT, LOOM_F32, rank - 1, 0, stream), LOOM_OK);
    assert_int_equal(loom_stream_wait(stream), LOOM_OK);
    loom_free(loom_comm_device(comm), a);
    loom_free(loom_comm_device(comm), b);
}

static void expect_traffic(const loom_comm *comm)
{
    uint64_t n = (uint64_t)loom_comm_size(comm), rank = (uint64_t)loom_comm_rank(comm), bytes = 24 * 4;
    loom_traffic t;

    loom_comm_traffic(comm, &t);
    assert_int_equal(t.bytes[LOOM_CALL_ALL_REDUCE], 2 * (n - 1) * bytes / n);
    assert_int_equal(t.bytes[LOOM_CALL_REDUCE_SCATTER], (n - 1) * bytes / 2);
    assert_int_equal(t.bytes[LOOM_CALL_ALL_GATHER], (n - 1) * bytes);
    assert_int_equal(t.bytes[LOOM_CALL_ALL_TO_ALL], (n - 1) * bytes);
    assert_int_equal(t.bytes[LOOM_CALL_ALL_TO_ALL_V], (n - 1) * 12);
    assert_int_equal(t.bytes[LOOM_CALL_BROADCAST], rank == 0 ? 0 : bytes); /* root 1: all but the one before it hand it on */
    assert_int_equal(t.bytes[LOOM_CALL_SEND], rank % 2 == 0 && rank + 1 < n ? bytes : 0);
    assert_int_equal(t.bytes[LOOM_CALL_RECV], 0);
    assert_int_equal(t.calls[LOOM_CALL_ALL_REDUCE], 1);
    assert_int_equal(t.calls[LOOM_CALL_BARRIER], 1);
    assert_int_equal(t.calls[LOOM_CALL_RECV], rank % 2);
}

static void traffic_follows_the_law(loom_comm *comm, loom_stream *stream)
{
    one_of_each(comm, stream);
    expect_traffic(comm);
    assert_true(loom_comm_exposed_s(comm) > 0);
}

/* The collective is on a stream of its own; the caller waits for it through an event on another. */
static void waits_through_an_event(loom_comm *comm, loom_stream *stream)
{
    loom_device *device = loom_comm_device(comm);
    loom_stream *own;
    loom_event *arrived;
    double before = loom_comm_exposed_s(comm);

    assert_int_equal(loom_stream_open(device, LOOM_STREAM_INLINE, "own", &own), LOOM_OK);
    assert_int_equal(loom_event_open(device, &arrived), LOOM_OK);
    if (loom_comm_rank(comm) == 0)
        usleep(100000);
    assert_int_equal(loom_barrier(comm, "late", own), LOOM_OK);
    assert_int_equal(loom_event_record(arrived, own), LOOM_OK);
    assert_int_equal(loom_stream_wait_event(stream, arrived), LOOM_OK);
    assert_int_equal(loom_stream_wait(stream), LOOM_OK);
    if (loom_comm_rank(comm) != 0)
        assert_true(loom_comm_exposed_s(comm) > before);
    assert_int_equal(loom_stream_wait(own), LOOM_OK);
    loom_event_close(arrived);
    loom_stream_close(own);
}

static void traffic_of_a_dry_rank_follows_it_too(loom_comm *comm, loom_stream *stream)
{
    int members[3] = {5, 3, 4}, none[1] = {0};
    loom_comm *group;

    assert_string_equal(loom_comm_transport(comm), "dry");
    one_of_each(comm, stream);
    expect_traffic(comm);
    assert_int_equal(loom_comm_create(comm, members, 3, "three", &group), LOOM_OK);
    assert_int_equal(loom_comm_rank(group), 1);
    assert_int_equal(loom_comm_world_rank(group, 0), 5);
    one_of_each(group, stream);
    expect_traffic(group);
    loom_comm_free(group);
    assert_int_equal(loom_comm_create(comm, none, 1, "others", &group), LOOM_OK);
    assert_null(group);
    assert_int_equal(loom_comm_split(comm, 0, 0, "split", &group), LOOM_E_UNSUPPORTED);
    assert_non_null(strstr(loom_last_error(), "loom_comm_create"));
}

static void traffic_is_the_same_everywhere(void **state)
{
    (void)state;
    on_ranks(4, traffic_follows_the_law);
    on_dry_rank(3, 6, traffic_of_a_dry_rank_follows_it_too);
}

static void a_wait_for_an_event_is_charged_to_what_it_waits_for(void **state)
{
    (void)state;
    on_ranks(2, waits_through_an_event);
}

/* A dry rank of a world that no machine holds. */
static void rehearse(loom_comm *comm, loom_stream *stream)
{
    void *memory;
    loom_traffic t;

    assert_int_equal(loom_alloc(loom_comm_device(comm), (size_t)1 << 40, LOOM_MEM_WEIGHTS, &memory), LOOM_OK);
    assert_int_equal(loom_all_reduce(comm, memory, memory, (size_t)1 << 38, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    assert_int_equal(loom_stream_copy(stream, memory, memory, 1000), LOOM_OK);
    assert_int_equal(loom_stream_wait(stream), LOOM_OK);
    loom_comm_traffic(comm, &t);
    assert_true(t.bytes[LOOM_CALL_ALL_REDUCE] == (UINT64_C(1) << 41) - (UINT64_C(1) << 41) / 16384);
    loom_free(loom_comm_device(comm), memory);
}

static void a_dry_world_has_any_size(void **state)
{
    (void)state;
    on_dry_rank(12345, 16384, rehearse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_world_opens_over_the_store),   cmocka_unit_test(a_transport_that_is_not_there_is_refused),
        cmocka_unit_test(traffic_is_the_same_everywhere), cmocka_unit_test(a_wait_for_an_event_is_charged_to_what_it_waits_for),
        cmocka_unit_test(a_dry_world_has_any_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
