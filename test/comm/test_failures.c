/* What goes wrong between ranks ends in a diagnosis on every one of them, in time, and leaves nothing behind. The argument is the
 * transport. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "harness/on_ranks.h"

static const char *transport;

static void run_with(double comm_deadline_s, unsigned long doomed, int size, rank_fn *fn)
{
    rank_options options = {.transport = transport, .deadline_s = 40, .comm_deadline_s = comm_deadline_s, .doomed = doomed};

    on_ranks_with(&options, size, fn);
}

static void run(int size, rank_fn *fn)
{
    run_with(0, 0, size, fn);
}

static void expect_text(const char *part)
{
    if (!strstr(loom_last_error(), part))
        fail_msg("the message lacks \"%s\": %s", part, loom_last_error());
}

static void expect_failure(loom_stream *stream, loom_status expected)
{
    loom_status status = loom_stream_wait(stream);

    if (status != expected)
        fail_msg("%s instead of %s: %s", loom_status_name(status), loom_status_name(expected), loom_last_error());
}

/* --- mismatches ------------------------------------------------------------------------------------------------------------ */

/* Case B12: counts 200 and 100. */
static void counts_differ(loom_comm *world, loom_stream *stream)
{
    size_t count = loom_comm_rank(world) == 1 ? 100 : 200;
    float send[200], recv[200];

    for (int i = 0; i < 200; i++) {
        send[i] = 1;
        recv[i] = -5;
    }
    assert_int_equal(loom_all_reduce(world, send, recv, count, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_MISMATCH);
    expect_text("count mismatch");
    expect_text("rank 0 calls all_reduce #");
    expect_text("(200 f32, sum)");
    expect_text("rank 1 calls all_reduce #");
    expect_text("(100 f32, sum)");
    for (int i = 0; i < 200; i++)
        assert_true(recv[i] == -5);                                                                         /* no partial result */
    assert_int_equal(loom_all_reduce(world, send, recv, 200, LOOM_F32, LOOM_SUM, stream), LOOM_E_MISMATCH); /* and the comm stays failed */
}

static void large_counts_differ(loom_comm *world, loom_stream *stream)
{
    size_t count = loom_comm_rank(world) == 1 ? 2 : 1 << 20;
    float *memory;

    assert_int_equal(loom_alloc(loom_comm_device(world), sizeof(float) << 20, LOOM_MEM_OTHER, (void **)&memory), LOOM_OK);
    assert_int_equal(loom_all_reduce(world, memory, memory, count, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_MISMATCH);
    expect_text("(1048576 f32, sum)");
    expect_text("(2 f32, sum)");
}

static void dtypes_differ(loom_comm *world, loom_stream *stream)
{
    double values[4] = {0};

    assert_int_equal(loom_all_reduce(world, values, values, 4, loom_comm_rank(world) ? LOOM_F64 : LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_MISMATCH);
    expect_text("dtype mismatch");
    expect_text("4 f32");
    expect_text("4 f64");
}

/* The case in which others return a wrong vector without a word. */
static void ops_differ(loom_comm *world, loom_stream *stream)
{
    float values[4] = {1, 1, 1, 1};

    assert_int_equal(loom_all_reduce(world, values, values, 4, LOOM_F32, loom_comm_rank(world) ? LOOM_MAX : LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_MISMATCH);
    expect_text("op mismatch");
    expect_text("sum");
    expect_text("max");
    assert_true(values[0] == 1 && values[3] == 1);
}

static void calls_differ(loom_comm *world, loom_stream *stream)
{
    float values[8] = {0}, all[64];

    if (loom_comm_rank(world) == 2)
        assert_int_equal(loom_all_gather(world, values, all, 8, LOOM_F32, stream), LOOM_OK);
    else
        assert_int_equal(loom_all_reduce(world, values, values, 8, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_MISMATCH);
    expect_text("call mismatch");
    expect_text("rank 2 calls all_gather");
}

static void roots_differ(loom_comm *world, loom_stream *stream)
{
    float value = 0;

    assert_int_equal(loom_broadcast(world, &value, 1, LOOM_F32, loom_comm_rank(world), stream), LOOM_OK);
    expect_failure(stream, LOOM_E_MISMATCH);
    expect_text("root mismatch");
    expect_text("from rank 0");
    expect_text("from rank 1");
}

/* Case B10: a barrier inside a rank-0 branch. */
static void barrier_names_differ(loom_comm *world, loom_stream *stream)
{
    if (loom_comm_rank(world) == 0)
        assert_int_equal(loom_barrier(world, "save", stream), LOOM_OK);
    assert_true(loom_barrier(world, "end", stream) == LOOM_OK || loom_comm_rank(world) == 0);
    expect_failure(stream, LOOM_E_MISMATCH);
    expect_text("barrier \"save\"");
    expect_text("barrier \"end\"");
}

static void uneven_counts_differ(loom_comm *world, loom_stream *stream)
{
    size_t counts[3] = {2, 2, 2}, offsets[3] = {0, 2, 4}, expected[3] = {2, 2, 2};
    float send[6] = {0}, recv[16] = {0};

    if (loom_comm_rank(world) == 1)
        expected[2] = 3; /* from rank 2, which sends 2 */
    assert_int_equal(loom_all_to_all_v(world, send, counts, offsets, recv, expected, offsets, LOOM_F32, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_MISMATCH); /* on rank 0 too, which has no part in it */
    expect_text("rank 2 sends 2 f32 to rank 1, which expects 3");
}

static void message_counts_differ(loom_comm *world, loom_stream *stream)
{
    float values[8] = {0};

    if (loom_comm_rank(world) == 0)
        assert_int_equal(loom_send(world, values, 8, LOOM_F32, 1, 5, stream), LOOM_OK);
    else
        assert_int_equal(loom_recv(world, values, 7, LOOM_F32, 0, 5, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_MISMATCH);
    expect_text("count mismatch");
    expect_text("8 f32");
    expect_text("7 f32");
}

static void group_lists_differ(loom_comm *world, loom_stream *stream)
{
    int right[2] = {0, 1}, wrong[2] = {1, 0};
    loom_comm *comm = NULL;

    (void)stream;
    assert_int_equal(loom_comm_create(world, loom_comm_rank(world) == 1 ? wrong : right, 2, "pair", &comm), LOOM_E_MISMATCH);
    assert_null(comm);
    expect_text("pair");
}

static void mismatches_are_named_on_all_ranks(void **state)
{
    (void)state;
    run(2, counts_differ);
    run(3, counts_differ);
    run(3, large_counts_differ);
    run(2, dtypes_differ);
    run(2, ops_differ);
    run(4, calls_differ);
    run(2, roots_differ);
    run(2, barrier_names_differ);
    run(3, uneven_counts_differ);
    run(2, message_counts_differ);
    run(2, group_lists_differ);
}

/* --- deadlines ----------------------------------------------------------------------------------------------------------------- */

/* Case B13: rank 2 does not come. */
static void rank_2_sleeps(loom_comm *world, loom_stream *stream)
{
    double start_s = loom_now_s();
    float value = 0;

    if (loom_comm_rank(world) == 2) {
        sleep(3);
        return;
    }
    assert_int_equal(loom_all_reduce(world, &value, &value, 1, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
    assert_true(loom_now_s() - start_s < 2.5);
    expect_text("all_reduce #1");
    expect_text("comm \"world\"");
    expect_text("rank 2 did not arrive within 1 s");
    expect_text("rank 2 waits for nobody");
}

static void the_absent_rank_is_named(void **state)
{
    (void)state;
    run_with(1, 0, 4, rank_2_sleeps);
}

/* Case B09: two groups over the same ranks in opposite order. */
static void opposite_order(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world);
    loom_comm *a, *b;
    float value = 0;

    assert_int_equal(loom_comm_split(world, 0, 0, "A", &a), LOOM_OK);
    assert_int_equal(loom_comm_split(world, 0, 0, "B", &b), LOOM_OK);
    assert_int_equal(loom_all_reduce(rank ? b : a, &value, &value, 1, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    assert_int_equal(loom_all_reduce(rank ? a : b, &value, &value, 1, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
    expect_text("all_reduce #0 (1 f32, sum) on comm \"A\""); /* both pending calls, whichever rank was the first to give up */
    expect_text("all_reduce #0 (1 f32, sum) on comm \"B\"");
    expect_text("did not arrive within 1 s");
    loom_comm_free(a);
    loom_comm_free(b);
}

static void groups_in_opposite_order_are_diagnosed(void **state)
{
    (void)state;
    run_with(1, 0, 2, opposite_order);
}

/* Case B01, raw: both wait for their send before they post the receive. Never in silence, whatever the size. */
static void send_before_receive(loom_comm *world, loom_stream *stream, size_t count)
{
    int rank = loom_comm_rank(world);
    char *send, *recv, text[128];

    assert_int_equal(loom_alloc(loom_comm_device(world), count, LOOM_MEM_OTHER, (void **)&send), LOOM_OK);
    assert_int_equal(loom_alloc(loom_comm_device(world), count, LOOM_MEM_OTHER, (void **)&recv), LOOM_OK);
    assert_int_equal(loom_send(world, send, count, LOOM_U8, 1 - rank, 0, stream), LOOM_OK);
    assert_int_equal(loom_recv(world, recv, count, LOOM_U8, 1 - rank, 0, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
    for (int r = 0; r < 2; r++) { /* both pending calls, whichever rank was the first to give up */
        snprintf(text, sizeof text, "send #0 (%zu u8 to rank %d, tag 0)", count, r);
        expect_text(text);
    }
    expect_text("did not take it within 1 s");
    expect_text("waits in send #0");
}

static void send_one_byte_first(loom_comm *world, loom_stream *stream)
{
    send_before_receive(world, stream, 1);
}

static void send_a_mebibyte_first(loom_comm *world, loom_stream *stream)
{
    send_before_receive(world, stream, 1 << 20);
}

static void both_sending_first_is_diagnosed(void **state)
{
    (void)state;
    run_with(1, 0, 2, send_one_byte_first);
    run_with(1, 0, 2, send_a_mebibyte_first);
}

/* A stream that waits for another one's event ends with it, and the message is the first cause. */
static void deadline_through_an_event(loom_comm *world, loom_stream *stream)
{
    loom_stream *other;
    loom_event *event;
    float value = 0;

    if (loom_comm_rank(world) == 0) {
        sleep(3);
        return;
    }
    assert_int_equal(loom_stream_open(loom_comm_device(world), LOOM_STREAM_WORKER, "other", &other), LOOM_OK);
    assert_int_equal(loom_event_open(loom_comm_device(world), &event), LOOM_OK);
    assert_int_equal(loom_recv(world, &value, 1, LOOM_F32, 0, 3, other), LOOM_OK);
    assert_int_equal(loom_event_record(event, other), LOOM_OK);
    assert_int_equal(loom_stream_wait_event(stream, event), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
    expect_text("rank 0 did not send it");
    loom_event_close(event);
    loom_stream_close(other);
}

static void a_deadline_reaches_those_who_wait_for_the_waiter(void **state)
{
    (void)state;
    run_with(1, 0, 2, deadline_through_an_event);
}

/* The flight recorder is written when a deadline passes, once, and on request. */
static char recorder_folder[] = "/tmp/rankloom-recorder-XXXXXX";

static void recorder_tells_what_happened(loom_comm *world, loom_stream *stream)
{
    char path[128], line[1024];
    int rank = loom_comm_rank(world), lines = 0, under_way = 0, queued = 0;
    float value = 0;
    FILE *file;

    assert_int_equal(loom_barrier(world, "start here", stream), LOOM_OK);
    assert_int_equal(loom_stream_wait(stream), LOOM_OK);
    if (rank == 0) {
        sleep(3);
        return;
    }
    assert_int_equal(loom_broadcast(world, &value, 1, LOOM_F32, 0, stream), LOOM_OK);
    assert_int_equal(loom_recv(world, &value, 1, LOOM_F32, 0, 11, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
    snprintf(path, sizeof path, "%s/%d.jsonl", recorder_folder, rank);
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        lines++;
        assert_non_null(strstr(line, "\"comm\":\"world\""));
        under_way += strstr(line, "\"call\":\"broadcast\"") && strstr(line, "\"state\":\"under way\"");
        queued += strstr(line, "\"call\":\"recv\"") && strstr(line, "\"tag\":11") && strstr(line, "\"state\":\"queued\"");
        if (lines == 2)
            assert_non_null(strstr(line, "\"name\":\"start here\""));
    }
    fclose(file);
    assert_int_equal(lines, 4); /* the barrier of opening, ours, the broadcast, the receive */
    assert_int_equal(under_way, 1);
    assert_int_equal(queued, 1);
    unlink(path);
    snprintf(path, sizeof path, "%s/asked-%d.jsonl", recorder_folder, rank);
    assert_int_equal(loom_comm_dump(world, path), LOOM_OK);
    assert_int_equal(unlink(path), 0);
}

static void the_flight_recorder_is_dumped_at_the_deadline(void **state)
{
    char pattern[128];

    (void)state;
    assert_non_null(mkdtemp(recorder_folder));
    snprintf(pattern, sizeof pattern, "%s/%%r.jsonl", recorder_folder);
    setenv("RANKLOOM_FLIGHT_RECORDER", pattern, 1);
    run_with(1, 0, 2, recorder_tells_what_happened);
    unsetenv("RANKLOOM_FLIGHT_RECORDER");
    assert_int_equal(rmdir(recorder_folder), 0);
}

/* --- deaths ---------------------------------------------------------------------------------------------------------------------- */

static void last_rank_dies(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world), size = loom_comm_size(world);
    double start_s;
    float *memory;

    assert_int_equal(loom_alloc(loom_comm_device(world), sizeof(float) << 20, LOOM_MEM_OTHER, (void **)&memory), LOOM_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(loom_all_reduce(world, memory, memory, 1 << 20, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    assert_int_equal(loom_stream_wait(stream), LOOM_OK);
    if (rank == size - 1)
        raise(SIGKILL);
    start_s = loom_now_s();
    assert_int_equal(loom_all_reduce(world, memory, memory, 1 << 20, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
    assert_true(loom_now_s() - start_s < 2);
    expect_text("died");
}

static void a_killed_peer_is_noticed_within_two_seconds(void **state)
{
    (void)state;
    run_with(0, 1 << 1, 2, last_rank_dies);
    run_with(0, 1 << 3, 4, last_rank_dies);
}

/* Killed at any moment of busy traffic, and the survivors all end with an error. */
static void traffic_until_a_death(loom_comm *world, loom_stream *stream)
{
    enum { COUNT = 50000 };
    int rank = loom_comm_rank(world), size = loom_comm_size(world);
    loom_status status = LOOM_OK;
    float *memory, *other;

    assert_int_equal(loom_alloc(loom_comm_device(world), COUNT * sizeof(float), LOOM_MEM_OTHER, (void **)&memory), LOOM_OK);
    other = calloc(COUNT, sizeof *other);
    if (rank == 0)
        alarm(1); /* SIGALRM ends this process wherever it is */
    while (status >= 0) {
        loom_all_reduce(world, memory, memory, COUNT, LOOM_F32, LOOM_AVG, stream);
        loom_all_reduce(world, other, other, COUNT, LOOM_F32, LOOM_AVG, stream);
        loom_group_begin(world);
        loom_send(world, memory, COUNT, LOOM_F32, (rank + 1) % size, 0, stream);
        loom_recv(world, other, COUNT, LOOM_F32, (rank + size - 1) % size, 0, stream);
        loom_group_end(world, stream);
        status = loom_stream_wait(stream);
    }
    assert_int_equal(status, LOOM_E_PEER);
    free(other);
}

static void a_death_in_the_middle_of_traffic_ends_everyone(void **state)
{
    (void)state;
    run_with(10, 1, 3, traffic_until_a_death);
}

/* A rank that ends in good order while others still want something of it. */
static void one_leaves_early(loom_comm *world, loom_stream *stream)
{
    float value = 1;

    if (loom_comm_rank(world) == 0)
        return;
    assert_int_equal(loom_all_reduce(world, &value, &value, 1, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
    assert_true(strstr(loom_last_error(), "has left") || strstr(loom_last_error(), "died"));
}

static void a_rank_that_left_is_named(void **state)
{
    (void)state;
    run(3, one_leaves_early);
}

/* The fast one may free everything and end while the slow one still reads its data. */
static void last_call_then_gone(loom_comm *world, loom_stream *stream)
{
    enum { COUNT = 1 << 20 };
    int rank = loom_comm_rank(world);
    loom_comm *copy;
    float *memory;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(loom_comm_split(world, 0, 0, "copy", &copy), LOOM_OK);
        assert_int_equal(loom_alloc(loom_comm_device(world), COUNT * sizeof(float), LOOM_MEM_OTHER, (void **)&memory), LOOM_OK);
        for (int j = 0; j < COUNT; j++)
            memory[j] = (float)rank;
        assert_int_equal(loom_all_reduce(copy, memory, memory, i == 2 ? 100 : COUNT, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
        assert_int_equal(loom_stream_wait(stream), LOOM_OK);
        assert_true(memory[99] == 3);
        loom_free(loom_comm_device(world), memory);
        loom_comm_free(copy);
    }
}

static void leaving_at_once_harms_nobody(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++)
        run(3, last_call_then_gone);
}

/* A stream closed with a call under way: the peers learn that it will not come. */
static void abandon(loom_comm *world, loom_stream *stream)
{
    loom_stream *lost;
    float value = 0;

    if (loom_comm_rank(world) == 0) {
        assert_int_equal(loom_stream_open(loom_comm_device(world), LOOM_STREAM_INLINE, "lost", &lost), LOOM_OK);
        assert_int_equal(loom_recv(world, &value, 1, LOOM_F32, 1, 0, lost), LOOM_OK);
        loom_stream_close(lost);
        assert_int_equal(loom_barrier(world, "after", stream), LOOM_E_PEER);
        usleep(600000);
        return;
    }
    assert_int_equal(loom_barrier(world, "after", stream), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
    expect_text("rank 0 gave up");
    expect_text("lost");
}

static void an_abandoned_call_is_told_to_the_peers(void **state)
{
    (void)state;
    run(2, abandon);
}

/* --- arguments ---------------------------------------------------------------------------------------------------------------------- */

static void wrong_arguments(loom_comm *world, loom_stream *stream)
{
    float a[8] = {0}, b[8] = {0};
    size_t huge = SIZE_MAX / 2, zero = 0;
    loom_comm *comm;
    int twice[2] = {0, 0}, outside[1] = {1};

    assert_int_equal(loom_all_reduce(world, a, b, 8, (loom_dtype)99, LOOM_SUM, stream), LOOM_E_INVALID);
    assert_int_equal(loom_all_reduce(world, a, b, 8, LOOM_F32, (loom_reduce_op)9, stream), LOOM_E_INVALID);
    assert_int_equal(loom_all_reduce(world, a, b, huge, LOOM_F32, LOOM_SUM, stream), LOOM_E_INVALID);
    assert_int_equal(loom_all_reduce(world, a, a + 1, 4, LOOM_F32, LOOM_SUM, stream), LOOM_E_INVALID);
    expect_text("overlap");
    assert_int_equal(loom_all_reduce(world, NULL, b, 4, LOOM_F32, LOOM_SUM, stream), LOOM_E_INVALID);
    assert_int_equal(loom_all_to_all(world, a, a, 4, LOOM_F32, stream), LOOM_E_INVALID);
    assert_int_equal(loom_broadcast(world, a, 4, LOOM_F32, 1, stream), LOOM_E_INVALID);
    assert_int_equal(loom_send(world, a, 4, LOOM_F32, -1, 0, stream), LOOM_E_INVALID);
    assert_int_equal(loom_barrier(world, "a name that is longer than thirty-one bytes", stream), LOOM_E_INVALID);
    assert_int_equal(loom_all_to_all_v(world, a, &huge, &huge, b, &zero, &zero, LOOM_F32, stream), LOOM_E_INVALID);
    assert_int_equal(loom_comm_create(world, twice, 2, "twice", &comm), LOOM_E_INVALID);
    assert_int_equal(loom_comm_create(world, outside, 1, "outside", &comm), LOOM_E_INVALID);
    assert_int_equal(loom_group_end(world, stream), LOOM_E_INVALID);
    assert_int_equal(loom_all_reduce(world, NULL, NULL, 0, LOOM_F32, LOOM_SUM, stream), LOOM_OK); /* nothing was broken by all that */
    assert_int_equal(loom_stream_wait(stream), LOOM_OK);
}

static void wrong_arguments_are_refused_before_anything_happens(void **state)
{
    (void)state;
    run(1, wrong_arguments);
}

/* --- nothing left -------------------------------------------------------------------------------------------------------------------- */

static int entries_of(const char *folder)
{
    DIR *directory = opendir(folder);
    int count = 0;

    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

/* Case E09: no name in /dev/shm at any time, so its size does not matter, and nothing can stay there. */
static void no_name_in_dev_shm(loom_comm *world, loom_stream *stream)
{
    float value = 0;

    assert_int_equal(loom_all_reduce(world, &value, &value, 1, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    assert_int_equal(loom_stream_wait(stream), LOOM_OK);
    for (int fd = 3; fd < 100; fd++) {
        char path[64], target[256];
        ssize_t length;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        assert_null(strstr(target, "/dev/shm"));
    }
    if (loom_comm_rank(world) == 0)
        raise(SIGKILL);
    assert_int_equal(loom_all_reduce(world, &value, &value, 1, LOOM_F32, LOOM_SUM, stream), LOOM_OK);
    expect_failure(stream, LOOM_E_PEER);
}

static void nothing_is_left_after_a_kill(void **state)
{
    int before = entries_of("/dev/shm"), descriptors = entries_of("/proc/self/fd");

    (void)state;
    run_with(0, 1, 4, no_name_in_dev_shm);
    assert_int_equal(entries_of("/dev/shm"), before);
    assert_int_equal(entries_of("/proc/self/fd"), descriptors);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mismatches_are_named_on_all_ranks),
        cmocka_unit_test(the_absent_rank_is_named),
        cmocka_unit_test(groups_in_opposite_order_are_diagnosed),
        cmocka_unit_test(both_sending_first_is_diagnosed),
        cmocka_unit_test(a_deadline_reaches_those_who_wait_for_the_waiter),
        cmocka_unit_test(the_flight_recorder_is_dumped_at_the_deadline),
        cmocka_unit_test(a_killed_peer_is_noticed_within_two_seconds),
        cmocka_unit_test(a_death_in_the_middle_of_traffic_ends_everyone),
        cmocka_unit_test(a_rank_that_left_is_named),
        cmocka_unit_test(leaving_at_once_harms_nobody),
        cmocka_unit_test(an_abandoned_call_is_told_to_the_peers),
        cmocka_unit_test(wrong_arguments_are_refused_before_anything_happens),
        cmocka_unit_test(nothing_is_left_after_a_kill),
    };

    transport = argc > 1 ? argv[1] : "shm";
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests_name(transport, tests, NULL, NULL);
}
