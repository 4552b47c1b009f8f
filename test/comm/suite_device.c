/* The suite for any device: buffers have a side of the host and one of the device, so what goes in and comes out is copied. */
#include "check.h"

#include "comm/suite.h"
#include "comm/values.h"

/* --- buffers: a host's side and a device's ----------------------------------------------------------------------------------- */

suite_pair suite_two_sided(loom_comm *comm, size_t bytes)
{
    suite_pair b = {.bytes = bytes ? bytes : 1};

    assert_ok(loom_alloc(loom_comm_device(comm), b.bytes, LOOM_MEM_OTHER, &b.device));
    assert_ok(loom_alloc_host(loom_comm_device(comm), b.bytes, (void **)&b.host));
    return b;
}

void suite_drop_sides(loom_comm *comm, suite_pair b)
{
    loom_free(loom_comm_device(comm), b.device);
    loom_free_host(loom_comm_device(comm), b.host);
}

void suite_push(suite_pair b, loom_stream *stream)
{
    assert_ok(loom_stream_copy(stream, b.device, b.host, b.bytes));
}

/* Only the last of several has to wait. */
void suite_pull(suite_pair b, loom_stream *stream)
{
    assert_ok(loom_stream_copy(stream, b.host, b.device, b.bytes));
    assert_ok(loom_stream_wait(stream));
}

/* --- collectives ---------------------------------------------------------------------------------------------------------------- */

static void expect_reduced(suite_pair b, size_t first, size_t count, int size, loom_dtype dtype, loom_reduce_op op)
{
    for (size_t i = 0; i < count; i++) {
        double expected = value_reduced(size, first + i, dtype, op), got = value_get(b.host, i, dtype);
        if (!(got == expected))
            fail_msg("%s %s of %zu: element %zu is %g, not %g", loom_dtype_name(dtype), loom_reduce_op_name(op), count, i, got, expected);
    }
}

static void all_reduce_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype, loom_reduce_op op)
{
    suite_pair send = suite_two_sided(comm, count * loom_dtype_bytes(dtype)), recv = suite_two_sided(comm, send.bytes);

    value_fill(send.host, loom_comm_rank(comm), 0, count, dtype);
    suite_push(send, stream);
    assert_ok(loom_all_reduce(comm, send.device, recv.device, count, dtype, op, stream));
    assert_ok(loom_all_reduce(comm, send.device, send.device, count, dtype, op, stream)); /* in place */
    suite_pull(recv, stream);
    suite_pull(send, stream);
    expect_reduced(recv, 0, count, loom_comm_size(comm), dtype, op);
    expect_reduced(send, 0, count, loom_comm_size(comm), dtype, op);
    suite_drop_sides(comm, send);
    suite_drop_sides(comm, recv);
}

static void reduce_scatter_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype, loom_reduce_op op)
{
    size_t size = (size_t)loom_comm_size(comm), bytes = count * loom_dtype_bytes(dtype), mine = (size_t)loom_comm_rank(comm);
    suite_pair send = suite_two_sided(comm, bytes * size), recv = suite_two_sided(comm, bytes);

    value_fill(send.host, (int)mine, 0, count * size, dtype);
    suite_push(send, stream);
    assert_ok(loom_reduce_scatter(comm, send.device, recv.device, count, dtype, op, stream));
    assert_ok(loom_reduce_scatter(comm, send.device, (char *)send.device + mine * bytes, count, dtype, op, stream));
    suite_pull(recv, stream);
    suite_pull(send, stream);
    expect_reduced(recv, mine * count, count, (int)size, dtype, op);
    memcpy(recv.host, send.host + mine * bytes, bytes);
    expect_reduced(recv, mine * count, count, (int)size, dtype, op);
    suite_drop_sides(comm, send);
    suite_drop_sides(comm, recv);
}

static void movements_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm), root = (int)count % size;
    size_t bytes = count * loom_dtype_bytes(dtype);
    suite_pair one = suite_two_sided(comm, bytes), all = suite_two_sided(comm, bytes * (size_t)size), other = suite_two_sided(comm, all.bytes);

    value_fill(one.host, rank, 7, count, dtype);
    value_fill(other.host, rank, 0, count * (size_t)size, dtype);
    suite_push(one, stream);
    suite_push(other, stream);
    assert_ok(loom_all_gather(comm, one.device, all.device, count, dtype, stream));
    suite_pull(all, stream);
    for (int r = 0; r < size; r++)
        value_expect(all.host + (size_t)r * bytes, r, 7, count, dtype);
    assert_ok(loom_all_to_all(comm, other.device, all.device, count, dtype, stream));
    assert_ok(loom_broadcast(comm, one.device, count, dtype, root, stream));
    suite_pull(all, stream);
    suite_pull(one, stream);
    for (int r = 0; r < size; r++)
        value_expect(all.host + (size_t)r * bytes, r, (size_t)rank * count, count, dtype);
    value_expect(one.host, root, 7, count, dtype);
    suite_drop_sides(comm, one);
    suite_drop_sides(comm, all);
    suite_drop_sides(comm, other);
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
    suite_pair send, recv;

    for (int r = 0; r < size; r++) {
        send_counts[r] = sent(rank, r);
        send_offsets[r] = to;
        to += send_counts[r] + 1; /* a gap: offsets are the caller's */
        recv_counts[r] = sent(r, rank);
        recv_offsets[r] = from;
        from += recv_counts[r];
    }
    send = suite_two_sided(comm, to * sizeof(float));
    recv = suite_two_sided(comm, from * sizeof(float));
    for (int r = 0; r < size; r++)
        value_fill(send.host + send_offsets[r] * sizeof(float), rank, (size_t)r, send_counts[r], LOOM_F32);
    suite_push(send, stream);
    assert_ok(loom_all_to_all_v(comm, send.device, send_counts, send_offsets, recv.device, recv_counts, recv_offsets, LOOM_F32, stream));
    suite_pull(recv, stream);
    for (int r = 0; r < size; r++)
        value_expect(recv.host + recv_offsets[r] * sizeof(float), r, (size_t)rank, recv_counts[r], LOOM_F32);
    suite_drop_sides(comm, send);
    suite_drop_sides(comm, recv);
}

/* --- messages ----------------------------------------------------------------------------------------------------------------------- */

enum { COUNT = 3000 };

/* Everyone to everyone and to itself; sends and receives are named in opposite orders, tags tell which is which. */
static void groups_match_by_tag(loom_comm *comm, loom_stream *stream)
{
    enum { MESSAGES = 5 };
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    suite_pair out = suite_two_sided(comm, (size_t)size * MESSAGES * sizeof(int32_t)), in = suite_two_sided(comm, out.bytes);
    int32_t *sends = (int32_t *)(void *)out.host, *received = (int32_t *)(void *)in.host, *from = out.device, *to = in.device;

    for (int i = 0; i < size * MESSAGES; i++)
        sends[i] = rank * 1000 + i;
    suite_push(out, stream);
    assert_ok(loom_group_begin(comm));
    for (int i = 0; i < size * MESSAGES; i++)
        assert_ok(loom_send(comm, from + i, 1, LOOM_I32, i / MESSAGES, (uint64_t)(i % MESSAGES), stream));
    for (int i = size * MESSAGES - 1; i >= 0; i--)
        assert_ok(loom_recv(comm, to + i, 1, LOOM_I32, i / MESSAGES, (uint64_t)(i % MESSAGES), stream));
    assert_ok(loom_group_end(comm, stream));
    suite_pull(in, stream);
    for (int i = 0; i < size * MESSAGES; i++)
        assert_int_equal(received[i], i / MESSAGES * 1000 + rank * MESSAGES + i % MESSAGES);
    suite_drop_sides(comm, out);
    suite_drop_sides(comm, in);
}

/* Receives from both neighbours are posted before anything is sent, each on a stream of its own, and a collective is enqueued in between: on one
 * communicator that would never end. */
static void lanes_do_not_wait_for_each_other(loom_comm *comm, loom_stream *stream)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm), peers[2] = {(rank + 1) % size, (rank + size - 1) % size};
    int count = peers[0] == peers[1] ? 1 : 2;
    suite_pair out = suite_two_sided(comm, COUNT * sizeof(float)), in[2] = {suite_two_sided(comm, out.bytes), suite_two_sided(comm, out.bytes)};
    loom_stream *streams[4];

    for (int i = 0; i < 4; i++)
        assert_ok(loom_stream_open(loom_comm_device(comm), LOOM_STREAM_INLINE, i < 2 ? "recv" : "send", &streams[i]));
    assert_ok(loom_comm_connect(comm, peers, count));
    for (int round = 0; round < 10; round++) {
        value_fill(out.host, rank, (size_t)round, COUNT, LOOM_F32);
        suite_push(out, stream);
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
            suite_pull(in[i], stream);
            value_expect(in[i].host, peers[i], (size_t)round, COUNT, LOOM_F32);
        }
    }
    for (int i = 0; i < 4; i++)
        loom_stream_close(streams[i]);
    suite_drop_sides(comm, out);
    suite_drop_sides(comm, in[0]);
    suite_drop_sides(comm, in[1]);
}

/* --- comms out of comms ------------------------------------------------------------------------------------------------------------------ */

static int sum_of_world_ranks(loom_comm *comm, loom_stream *stream)
{
    suite_pair b = suite_two_sided(comm, sizeof(int32_t));
    int32_t sum = loom_comm_world_rank(comm, loom_comm_rank(comm));

    memcpy(b.host, &sum, sizeof sum);
    suite_push(b, stream);
    assert_ok(loom_all_reduce(comm, b.device, b.device, 1, LOOM_I32, LOOM_SUM, stream));
    suite_pull(b, stream);
    memcpy(&sum, b.host, sizeof sum);
    suite_drop_sides(comm, b);
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

void suite_on_device(loom_comm *world, loom_stream *stream)
{
    collectives(world, stream);
    uneven_blocks(world, stream);
    groups_match_by_tag(world, stream);
    groups_of_groups(world, stream);
    if (loom_comm_size(world) > 1)
        lanes_do_not_wait_for_each_other(world, stream);
}

