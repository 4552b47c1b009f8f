/* Point to point: sizes, tags, order, groups, several streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/suite.h"
#include "comm/values.h"

/* Both neighbours send first (case B01): in a group that is an exchange, whatever the size. */
static void a_paired_exchange_completes(loom_comm *comm, loom_stream *stream)
{
    static const size_t counts[] = {0, 1, 24, 65536, 1048576, 4194304 + 3};
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm), next = (rank + 1) % size, previous = (rank + size - 1) % size;

    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        size_t count = counts[c];
        uint8_t *send = suite_buffer(comm, count), *recv = suite_buffer(comm, count);

        memset(send, rank + 1, count);
        for (int again = 0; again < (count < 100 ? 40 : 1); again++) {
            assert_int_equal(loom_group_begin(comm), LOOM_OK);
            assert_int_equal(loom_send(comm, send, count, LOOM_U8, next, c, stream), LOOM_OK);
            assert_int_equal(loom_recv(comm, recv, count, LOOM_U8, previous, c, stream), LOOM_OK);
            assert_int_equal(loom_group_end(comm, stream), LOOM_OK);
            suite_wait(stream);
            for (size_t i = 0; i < count; i++)
                if (recv[i] != previous + 1)
                    fail_msg("byte %zu of %zu is %d, not %d", i, count, recv[i], previous + 1);
            memset(recv, 0, count);
        }
        suite_drop(comm, send);
        suite_drop(comm, recv);
    }
}

/* Two pipeline ranks with virtual stages: next and previous neighbour are the same rank (case B03). Activations [length][8] and gradients
 * [2][8] of each chunk and micro-batch cross; each message says what it is. */
typedef struct parcel {
    int kind, stage, micro_batch, length;
} parcel;

static uint64_t tag_of(parcel p)
{
    return (uint64_t)p.kind << 32 | (uint64_t)p.stage << 16 | (uint64_t)p.micro_batch;
}

static size_t fill_parcel(parcel p, float *memory)
{
    size_t count = p.kind == 0 ? (size_t)p.length * 8 : 2 * 8;

    for (size_t i = 0; i < count; i++)
        memory[i] = (float)i;
    memory[0] = (float)p.kind;
    memory[1] = (float)p.stage;
    memory[2] = (float)p.micro_batch;
    return count;
}

static void messages_find_their_place_by_tag(loom_comm *comm, loom_stream *stream)
{
    enum { STAGES = 2, MICRO_BATCHES = 4, KINDS = 2, PARCELS = STAGES * MICRO_BATCHES * KINDS };
    static const int lengths[MICRO_BATCHES] = {4, 2, 3, 1};
    int peer = 1 - loom_comm_rank(comm);
    loom_stream *sends, *recvs[PARCELS];
    float *out = suite_buffer(comm, PARCELS * 32 * sizeof *out), *in = suite_buffer(comm, PARCELS * 32 * sizeof *in), expected[32];
    parcel parcels[PARCELS];
    int n = 0;

    if (loom_comm_rank(comm) > 1)
        goto done;
    for (int kind = 0; kind < KINDS; kind++)
        for (int stage = 0; stage < STAGES; stage++)
            for (int m = 0; m < MICRO_BATCHES; m++)
                parcels[n++] = (parcel){kind, stage, m, lengths[m]};
    assert_int_equal(loom_stream_open(loom_comm_device(comm), LOOM_STREAM_INLINE, "sends", &sends), LOOM_OK);
    for (int i = 0; i < n; i++) { /* receives are posted in one order, each on a stream of its own … */
        size_t count = fill_parcel(parcels[i], expected);
        assert_int_equal(loom_stream_open(loom_comm_device(comm), LOOM_STREAM_INLINE, "recv", &recvs[i]), LOOM_OK);
        assert_int_equal(loom_recv(comm, in + i * 32, count, LOOM_F32, peer, tag_of(parcels[i]), recvs[i]), LOOM_OK);
    }
    for (int i = 0; i < n; i++) { /* … and sends in another, which differs between the ranks */
        int j = (i * 5 + 3 * loom_comm_rank(comm)) % n;
        size_t count = fill_parcel(parcels[j], out + j * 32);
        assert_int_equal(loom_send(comm, out + j * 32, count, LOOM_F32, peer, tag_of(parcels[j]), sends), LOOM_OK);
    }
    suite_wait(sends);
    for (int i = 0; i < n; i++) {
        size_t count = fill_parcel(parcels[i], expected);
        suite_wait(recvs[i]);
        assert_memory_equal(in + i * 32, expected, count * sizeof *expected);
        loom_stream_close(recvs[i]);
    }
    loom_stream_close(sends);
done:
    suite_drop(comm, out);
    suite_drop(comm, in);
    assert_int_equal(loom_barrier(comm, "tags", stream), LOOM_OK);
    suite_wait(stream);
}

/* More messages than a block of the transport holds, from everyone to everyone, received in the reverse order of sending. */
static void many_messages_in_reverse_order(loom_comm *comm, loom_stream *stream)
{
    enum { MESSAGES = 200 };
    int size = loom_comm_size(comm), rank = loom_comm_rank(comm);
    size_t all = (size_t)size * MESSAGES;
    int32_t *out = suite_buffer(comm, all * sizeof *out), *in = suite_buffer(comm, all * sizeof *in);

    for (int round = 0; round < 3; round++) {
        memset(in, 0xff, all * sizeof *in);
        assert_int_equal(loom_group_begin(comm), LOOM_OK);
        for (int r = 0; r < size; r++)
            for (int m = 0; m < MESSAGES; m++) {
                int i = r * MESSAGES + m;
                out[i] = rank * 1000000 + r * 10000 + m + round;
                assert_int_equal(loom_send(comm, &out[i], 1, LOOM_I32, r, (uint64_t)m, stream), LOOM_OK);
            }
        for (int r = 0; r < size; r++)
            for (int m = MESSAGES - 1; m >= 0; m--)
                assert_int_equal(loom_recv(comm, &in[r * MESSAGES + m], 1, LOOM_I32, r, (uint64_t)m, stream), LOOM_OK);
        assert_int_equal(loom_group_end(comm, stream), LOOM_OK);
        suite_wait(stream);
        for (int r = 0; r < size; r++)
            for (int m = 0; m < MESSAGES; m++)
                assert_int_equal(in[r * MESSAGES + m], r * 1000000 + rank * 10000 + m + round);
    }
    suite_drop(comm, out);
    suite_drop(comm, in);
}

/* Equal tags keep their order. */
static void equal_tags_keep_their_order(loom_comm *comm, loom_stream *stream)
{
    enum { MESSAGES = 100 };
    int size = loom_comm_size(comm), rank = loom_comm_rank(comm), next = (rank + 1) % size, previous = (rank + size - 1) % size;
    int64_t *out = suite_buffer(comm, MESSAGES * sizeof *out), *in = suite_buffer(comm, MESSAGES * sizeof *in);

    assert_int_equal(loom_group_begin(comm), LOOM_OK);
    for (int m = 0; m < MESSAGES; m++) {
        out[m] = rank * 1000 + m;
        assert_int_equal(loom_send(comm, &out[m], 1, LOOM_I64, next, 9, stream), LOOM_OK);
        assert_int_equal(loom_recv(comm, &in[m], 1, LOOM_I64, previous, 9, stream), LOOM_OK);
    }
    assert_int_equal(loom_group_end(comm, stream), LOOM_OK);
    suite_wait(stream);
    for (int m = 0; m < MESSAGES; m++)
        assert_int_equal(in[m], previous * 1000 + m);
    suite_drop(comm, out);
    suite_drop(comm, in);
}

/* A message posted on one stream arrives while the rank works on another, and a collective may come in between. */
static void messages_move_under_other_work(loom_comm *comm, loom_stream *stream)
{
    enum { COUNT = 200000 };
    int size = loom_comm_size(comm), rank = loom_comm_rank(comm), next = (rank + 1) % size, previous = (rank + size - 1) % size;
    float *out = suite_buffer(comm, COUNT * sizeof *out), *in = suite_buffer(comm, COUNT * sizeof *in), one = 1;
    loom_stream *streams[2];
    loom_event *arrived;

    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 2; i++)
            assert_int_equal(loom_stream_open(loom_comm_device(comm), (loom_stream_kind)kind, "side", &streams[i]), LOOM_OK);
        assert_int_equal(loom_event_open(loom_comm_device(comm), &arrived), LOOM_OK);
        value_fill(out, rank, (size_t)kind, COUNT, LOOM_F32);
        assert_int_equal(loom_recv(comm, in, COUNT, LOOM_F32, previous, 1, streams[0]), LOOM_OK);
        assert_int_equal(loom_event_record(arrived, streams[0]), LOOM_OK);
        assert_int_equal(loom_send(comm, out, COUNT, LOOM_F32, next, 1, streams[1]), LOOM_OK);
        assert_int_equal(loom_all_reduce(comm, &one, &one, 1, LOOM_F32, LOOM_MAX, stream), LOOM_OK);
        assert_int_equal(loom_stream_wait_event(stream, arrived), LOOM_OK);
        assert_int_equal(loom_barrier(comm, "after", stream), LOOM_OK);
        suite_wait(stream);
        value_expect(in, previous, (size_t)kind, COUNT, LOOM_F32);
        suite_wait(streams[1]);
        loom_event_close(arrived);
        for (int i = 0; i < 2; i++)
            loom_stream_close(streams[i]);
    }
    suite_drop(comm, out);
    suite_drop(comm, in);
}

void suite_p2p(loom_comm *world, loom_stream *stream)
{
    a_paired_exchange_completes(world, stream);
    if (loom_comm_size(world) > 1)
        messages_find_their_place_by_tag(world, stream);
    many_messages_in_reverse_order(world, stream);
    equal_tags_keep_their_order(world, stream);
    messages_move_under_other_work(world, stream);
}
