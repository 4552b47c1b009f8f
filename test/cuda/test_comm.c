/* NCCL as a transport, on the double: every collective, type and reduction with exact results, groups, lanes, comms out of comms, and ends that are not
 * happy. Buffers are the device's, so what goes in and comes out is copied. */
#include "check.h"

#include <unistd.h>

#include "comm/values.h"
#include "harness/on_ranks.h"

static const rank_options on_cuda = {.device = LOOM_CUDA, .deadline_s = 100, .comm_deadline_s = 60};

/* --- buffers: a host's side and a device's ----------------------------------------------------------------------------------- */

typedef struct buffer {
    char *host;
    void *device;
    size_t bytes;
} buffer;

static buffer new_buffer(loom_comm *comm, size_t bytes)
{
    buffer b = {.bytes = bytes ? bytes : 1};

    assert_ok(loom_alloc(loom_comm_device(comm), b.bytes, LOOM_MEM_OTHER, &b.device));
    assert_ok(loom_alloc_host(loom_comm_device(comm), b.bytes, (void **)&b.host));
    return b;
}

static void drop(loom_comm *comm, buffer b)
{
    loom_free(loom_comm_device(comm), b.device);
    loom_free_host(loom_comm_device(comm), b.host);
}

static void push(buffer b, loom_stream *stream)
{
    assert_ok(loom_stream_copy(stream, b.device, b.host, b.bytes));
}

/* Only the last of several has to wait. */
static void pull(buffer b, loom_stream *stream)
{
    assert_ok(loom_stream_copy(stream, b.host, b.device, b.bytes));
    assert_ok(loom_stream_wait(stream));
}

/* --- collectives ---------------------------------------------------------------------------------------------------------------- */

static void expect_reduced(buffer b, size_t first, size_t count, int size, loom_dtype dtype, loom_reduce_op op)
{
    for (size_t i = 0; i < count; i++) {
        double expected = value_reduced(size, first + i, dtype, op), got = value_get(b.host, i, dtype);
        if (!(got == expected))
            fail_msg("%s %s of %zu: element %zu is %g, not %g", loom_dtype_name(dtype), loom_reduce_op_name(op), count, i, got, expected);
    }
}

static void all_reduce_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype, loom_reduce_op op)
{
    buffer send = new_buffer(comm, count * loom_dtype_bytes(dtype)), recv = new_buffer(comm, send.bytes);

    value_fill(send.host, loom_comm_rank(comm), 0, count, dtype);
    push(send, stream);
    assert_ok(loom_all_reduce(comm, send.device, recv.device, count, dtype, op, stream));
    assert_ok(loom_all_reduce(comm, send.device, send.device, count, dtype, op, stream)); /* in place */
    pull(recv, stream);
    pull(send, stream);
    expect_reduced(recv, 0, count, loom_comm_size(comm), dtype, op);
    expect_reduced(send, 0, count, loom_comm_size(comm), dtype, op);
    drop(comm, send);
    drop(comm, recv);
}

static void reduce_scatter_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype, loom_reduce_op op)
{
    size_t size = (size_t)loom_comm_size(comm), bytes = count * loom_dtype_bytes(dtype), mine = (size_t)loom_comm_rank(comm);
    buffer send = new_buffer(comm, bytes * size), recv = new_buffer(comm, bytes);

    value_fill(send.host, (int)mine, 0, count * size, dtype);
    push(send, stream);
    assert_ok(loom_reduce_scatter(comm, send.device, recv.device, count, dtype, op, stream));
    assert_ok(loom_reduce_scatter(comm, send.device, (char *)send.device + mine * bytes, count, dtype, op, stream));
    pull(recv, stream);
    pull(send, stream);
    expect_reduced(recv, mine * count, count, (int)size, dtype, op);
    memcpy(recv.host, send.host + mine * bytes, bytes);
    expect_reduced(recv, mine * count, count, (int)size, dtype, op);
    drop(comm, send);
    drop(comm, recv);
}

static void movements_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm), root = (int)count % size;
    size_t bytes = count * loom_dtype_bytes(dtype);
    buffer one = new_buffer(comm, bytes), all = new_buffer(comm, bytes * (size_t)size), other = new_buffer(comm, all.bytes);

    value_fill(one.host, rank, 7, count, dtype);
    value_fill(other.host, rank, 0, count * (size_t)size, dtype);
    push(one, stream);
    push(other, stream);
    assert_ok(loom_all_gather(comm, one.device, all.device, count, dtype, stream));
    pull(all, stream);
    for (int r = 0; r < size; r++)
        value_expect(all.host + (size_t)r * bytes, r, 7, count, dtype);
    assert_ok(loom_all_to_all(comm, other.device, all.device, count, dtype, stream));
    assert_ok(loom_broadcast(comm, one.device, count, dtype, root, stream));
    pull(all, stream);
    pull(one, stream);
    for (int r = 0; r < size; r++)
        value_expect(all.host + (size_t)r * bytes, r, (size_t)rank * count, count, dtype);
    value_expect(one.host, root, 7, count, dtype);
    drop(comm, one);
    drop(comm, all);
    drop(comm, other);
}

static void collectives(loom_comm *world, loom_stream *stream)
{
    static const size_t counts[] = {0, 1, 513, 40001};

    for (int dtype = 0; dtype < LOOM_DTYPE_COUNT; dtype++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            for (int op = 0; op < LOOM_REDUCE_OPS && dtype != LOOM_U16; op++) {
                if (loom_comm_size(world) == 1 && op != LOOM_SUM)
                    continue;
                all_reduce_once(world, stream, counts[c], (loom_dtype)dtype, (loom_reduce_op)op);
                reduce_scatter_once(world, stream, counts[c], (loom_dtype)dtype, (loom_reduce_op)op);
            }
            movements_once(world, stream, counts[c], (loom_dtype)dtype);
        }
    assert_ok(loom_barrier(world, "end", stream));
    assert_ok(loom_stream_wait(stream));
}

/* Elements that rank a sends to rank b: none for some pairs. */
static size_t sent(int a, int b)
{
    return a == 1 ? 0 : (size_t)((a + 2 * b) % 4) * 1000 + (size_t)b;
}

static void uneven_blocks(loom_comm *comm, loom_stream *stream)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    size_t send_counts[8], send_offsets[8], recv_counts[8], recv_offsets[8], to = 0, from = 0;
    buffer send, recv;

    for (int r = 0; r < size; r++) {
        send_counts[r] = sent(rank, r);
        send_offsets[r] = to;
        to += send_counts[r] + 1; /* a gap: offsets are the caller's */
        recv_counts[r] = sent(r, rank);
        recv_offsets[r] = from;
        from += recv_counts[r];
    }
    send = new_buffer(comm, to * sizeof(float));
    recv = new_buffer(comm, from * sizeof(float));
    for (int r = 0; r < size; r++)
        value_fill(send.host + send_offsets[r] * sizeof(float), rank, (size_t)r, send_counts[r], LOOM_F32);
    push(send, stream);
    assert_ok(loom_all_to_all_v(comm, send.device, send_counts, send_offsets, recv.device, recv_counts, recv_offsets, LOOM_F32, stream));
    pull(recv, stream);
    for (int r = 0; r < size; r++)
        value_expect(recv.host + recv_offsets[r] * sizeof(float), r, (size_t)rank, recv_counts[r], LOOM_F32);
    drop(comm, send);
    drop(comm, recv);
}

/* --- messages ----------------------------------------------------------------------------------------------------------------------- */

enum { COUNT = 3000 };

/* Everyone to everyone and to itself; sends and receives are named in opposite orders, tags tell which is which. */
static void groups_match_by_tag(loom_comm *comm, loom_stream *stream)
{
    enum { MESSAGES = 5 };
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    buffer out = new_buffer(comm, (size_t)size * MESSAGES * sizeof(int32_t)), in = new_buffer(comm, out.bytes);
    int32_t *sends = (int32_t *)(void *)out.host, *received = (int32_t *)(void *)in.host, *from = out.device, *to = in.device;

    for (int i = 0; i < size * MESSAGES; i++)
        sends[i] = rank * 1000 + i;
    push(out, stream);
    assert_ok(loom_group_begin(comm));
    for (int i = 0; i < size * MESSAGES; i++)
        assert_ok(loom_send(comm, from + i, 1, LOOM_I32, i / MESSAGES, (uint64_t)(i % MESSAGES), stream));
    for (int i = size * MESSAGES - 1; i >= 0; i--)
        assert_ok(loom_recv(comm, to + i, 1, LOOM_I32, i / MESSAGES, (uint64_t)(i % MESSAGES), stream));
    assert_ok(loom_group_end(comm, stream));
    pull(in, stream);
    for (int i = 0; i < size * MESSAGES; i++)
        assert_int_equal(received[i], i / MESSAGES * 1000 + rank * MESSAGES + i % MESSAGES);
    drop(comm, out);
    drop(comm, in);
}

/* Receives from both neighbours are posted before anything is sent, each on a stream of its own, and a collective is enqueued in between: on one
 * communicator that would never end. */
static void lanes_do_not_wait_for_each_other(loom_comm *comm, loom_stream *stream)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm), peers[2] = {(rank + 1) % size, (rank + size - 1) % size};
    int count = peers[0] == peers[1] ? 1 : 2;
    buffer out = new_buffer(comm, COUNT * sizeof(float)), in[2] = {new_buffer(comm, out.bytes), new_buffer(comm, out.bytes)};
    loom_stream *streams[4];

    for (int i = 0; i < 4; i++)
        assert_ok(loom_stream_open(loom_comm_device(comm), LOOM_STREAM_INLINE, i < 2 ? "recv" : "send", &streams[i]));
    assert_ok(loom_comm_connect(comm, peers, count));
    for (int round = 0; round < 10; round++) {
        value_fill(out.host, rank, (size_t)round, COUNT, LOOM_F32);
        push(out, stream);
        for (int i = 0; i < count; i++)
            assert_ok(loom_recv(comm, in[i].device, COUNT, LOOM_F32, peers[i], (uint64_t)round, streams[i]));
        for (int i = 0; i < count; i++) {
            assert_ok(loom_stream_follow(streams[2 + i], stream));
            assert_ok(loom_send(comm, out.device, COUNT, LOOM_F32, peers[i], (uint64_t)round, streams[2 + i]));
        }
        assert_ok(loom_barrier(comm, "between", stream));
        for (int i = 0; i < count; i++) {
            assert_ok(loom_stream_follow(stream, streams[i]));
            assert_ok(loom_stream_follow(stream, streams[2 + i]));
            pull(in[i], stream);
            value_expect(in[i].host, peers[i], (size_t)round, COUNT, LOOM_F32);
        }
    }
    for (int i = 0; i < 4; i++)
        loom_stream_close(streams[i]);
    drop(comm, out);
    drop(comm, in[0]);
    drop(comm, in[1]);
}

/* As a pipeline does it: the receive is posted early, and its sender waits for us. New memory meanwhile may come neither behind it nor behind a free that
 * does. */
static void an_allocation_does_not_wait_for_a_message(loom_comm *comm, loom_stream *stream)
{
    int rank = loom_comm_rank(comm), peer = rank ^ 1;
    buffer in = new_buffer(comm, COUNT * sizeof(float)), out = new_buffer(comm, in.bytes), old = new_buffer(comm, in.bytes), new;
    loom_stream *early;

    assert_ok(loom_stream_open(loom_comm_device(comm), LOOM_STREAM_INLINE, "recv", &early));
    assert_ok(loom_comm_connect(comm, &peer, 1));
    assert_ok(loom_recv(comm, in.device, COUNT, LOOM_F32, peer, 0, early));
    drop(comm, old);
    new = new_buffer(comm, in.bytes);
    value_fill(out.host, rank, 0, COUNT, LOOM_F32);
    push(out, stream);
    assert_ok(loom_send(comm, out.device, COUNT, LOOM_F32, peer, 0, stream));
    assert_ok(loom_stream_wait(stream));
    pull(in, early);
    value_expect(in.host, peer, 0, COUNT, LOOM_F32);
    loom_stream_close(early);
    drop(comm, in);
    drop(comm, out);
    drop(comm, new);
}

/* --- comms out of comms ------------------------------------------------------------------------------------------------------------------ */

static int sum_of_world_ranks(loom_comm *comm, loom_stream *stream)
{
    buffer b = new_buffer(comm, sizeof(int32_t));
    int32_t sum = loom_comm_world_rank(comm, loom_comm_rank(comm));

    memcpy(b.host, &sum, sizeof sum);
    push(b, stream);
    assert_ok(loom_all_reduce(comm, b.device, b.device, 1, LOOM_I32, LOOM_SUM, stream));
    pull(b, stream);
    memcpy(&sum, b.host, sizeof sum);
    drop(comm, b);
    return sum;
}

static void groups_of_groups(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world), size = loom_comm_size(world), expected = 0, last = size - 1, alone;
    loom_comm *half, *single, *end;

    assert_ok(loom_comm_split(world, rank % 2, -rank, "half", &half)); /* the last rank comes first */
    for (int r = rank % 2; r < size; r += 2)
        expected += r;
    assert_int_equal(loom_comm_world_rank(half, 0), (size - 1) % 2 == rank % 2 ? size - 1 : size - 2);
    assert_int_equal(sum_of_world_ranks(half, stream), expected);
    alone = loom_comm_rank(half);
    assert_ok(loom_comm_create(half, &alone, 1, "single", &single));
    assert_int_equal(sum_of_world_ranks(single, stream), rank);
    assert_ok(loom_comm_create(world, &last, rank == last, "end", &end)); /* most ranks are in none */
    if (rank == last)
        assert_int_equal(sum_of_world_ranks(end, stream), last);
    loom_comm_free(end);
    loom_comm_free(single);
    loom_comm_free(half);
}

static void whole(loom_comm *world, loom_stream *stream)
{
    collectives(world, stream);
    uneven_blocks(world, stream);
    groups_match_by_tag(world, stream);
    groups_of_groups(world, stream);
    if (loom_comm_size(world) > 1)
        lanes_do_not_wait_for_each_other(world, stream);
}

static void everything_on_one_rank(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 1, whole);
}

static void everything_on_two_ranks(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, whole);
}

static void everything_on_four_ranks(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 4, whole);
}

static void memory_comes_while_messages_wait(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, an_allocation_does_not_wait_for_a_message);
}

/* --- unhappy ends --------------------------------------------------------------------------------------------------------------------------- */

static void rank_1_calls_nothing(loom_comm *world, loom_stream *stream)
{
    buffer b = new_buffer(world, 64);

    if (loom_comm_rank(world) == 1) {
        usleep(6500000); /* longer than the deadline of the others */
        drop(world, b);
        return;
    }
    assert_ok(loom_all_reduce(world, b.device, b.device, 16, LOOM_F32, LOOM_SUM, stream));
    assert_int_equal(loom_stream_wait(stream), LOOM_E_PEER);
    assert_in_message("all_reduce #1 (16 f32, sum) on comm \"world\"");
    assert_in_message("is not over after 4 s");
    assert_int_equal(loom_all_reduce(world, b.device, b.device, 16, LOOM_F32, LOOM_SUM, stream), LOOM_E_PEER); /* the comm is gone */
    assert_ok(loom_stream_wait(stream)); /* the stream goes on: NCCL's kernel was ended */
    drop(world, b);
}

static void a_rank_that_does_not_come_is_noticed_at_the_deadline(void **state)
{
    rank_options options = on_cuda;

    (void)state;
    options.comm_deadline_s = 4; /* also of opening the world on a crowded machine */
    on_ranks_with(&options, 3, rank_1_calls_nothing);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_on_one_rank),
        cmocka_unit_test(everything_on_two_ranks),
        cmocka_unit_test(everything_on_four_ranks),
        cmocka_unit_test(memory_comes_while_messages_wait),
        cmocka_unit_test(a_rank_that_does_not_come_is_noticed_at_the_deadline),
        cmocka_unit_test(a_world_of_gpus_speaks_nccl),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
