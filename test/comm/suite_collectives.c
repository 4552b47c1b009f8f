/* Each collective, every dtype and op, sizes around every limit, in place and not, results exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/suite.h"
#include "comm/values.h"

/* Where the buffers of a run lie: set by the caller before any rank runs, or by a rank that is a process of its own. */
static bool in_heap = true;

void suite_use_heap(bool heap)
{
    in_heap = heap;
}

void *suite_buffer(loom_comm *comm, size_t bytes)
{
    void *memory;

    if (!in_heap) {
        memory = calloc(1, bytes ? bytes : 1);
        assert_non_null(memory);
        return memory;
    }
    assert_int_equal(loom_alloc(loom_comm_device(comm), bytes ? bytes : 1, LOOM_MEM_OTHER, &memory), LOOM_OK);
    return memory;
}

void suite_drop(loom_comm *comm, void *memory)
{
    if (in_heap)
        loom_free(loom_comm_device(comm), memory);
    else
        free(memory);
}

void suite_wait(loom_stream *stream)
{
    loom_status status = loom_stream_wait(stream);

    if (status != LOOM_OK)
        fail_msg("%s: %s", loom_status_name(status), loom_last_error());
}

static const size_t counts[] = {0, 1, 3, 16, 511, 512, 513, 1024, 1025, 4096, 40001, 300007};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* Large counts for the common types only: the others take the same way. */
static bool is_worth_it(size_t count, loom_dtype dtype)
{
    return count <= 1025 || dtype == LOOM_F32 || dtype == LOOM_BF16 || (count == 40001 && dtype == LOOM_I8);
}

static void expect_reduced(const void *got, size_t first, size_t count, int size, loom_dtype dtype, loom_reduce_op op, const char *call)
{
    for (size_t i = 0; i < count; i++) {
        double expected = value_reduced(size, first + i, dtype, op), value = value_get(got, i, dtype);
        if (!(value == expected))
            fail_msg("%s %s %s of %zu: element %zu is %g, not %g", call, loom_dtype_name(dtype), loom_reduce_op_name(op), count, i, value,
                     expected);
    }
}

static void all_reduce_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype, loom_reduce_op op, bool in_place)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    void *send = suite_buffer(comm, count * loom_dtype_bytes(dtype)),
         *recv = in_place ? send : suite_buffer(comm, count * loom_dtype_bytes(dtype));

    value_fill(send, rank, 0, count, dtype);
    assert_int_equal(loom_all_reduce(comm, send, recv, count, dtype, op, stream), LOOM_OK);
    suite_wait(stream);
    expect_reduced(recv, 0, count, size, dtype, op, "all_reduce");
    if (!in_place) {
        value_expect(send, rank, 0, count, dtype); /* what is sent is not touched */
        suite_drop(comm, recv);
    }
    suite_drop(comm, send);
}

static void reduce_scatter_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype, loom_reduce_op op, bool in_place)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    size_t bytes = count * loom_dtype_bytes(dtype), mine = (size_t)rank * count;
    char *send = suite_buffer(comm, bytes * (size_t)size), *recv = in_place ? send + (size_t)rank * bytes : suite_buffer(comm, bytes);

    value_fill(send, rank, 0, count * (size_t)size, dtype);
    assert_int_equal(loom_reduce_scatter(comm, send, recv, count, dtype, op, stream), LOOM_OK);
    suite_wait(stream);
    expect_reduced(recv, mine, count, size, dtype, op, "reduce_scatter");
    if (!in_place)
        suite_drop(comm, recv);
    suite_drop(comm, send);
}

static void reductions(loom_comm *comm, loom_stream *stream)
{
    for (int dtype = 0; dtype < LOOM_DTYPE_COUNT; dtype++)
        for (size_t c = 0; c < COUNTS; c++) {
            loom_reduce_op op = (loom_reduce_op)((c + (size_t)dtype) % LOOM_REDUCE_OPS);
            if (!is_worth_it(counts[c], (loom_dtype)dtype))
                continue;
            for (int in_place = 0; in_place < 2; in_place++) {
                all_reduce_once(comm, stream, counts[c], (loom_dtype)dtype, op, in_place);
                all_reduce_once(comm, stream, counts[c], (loom_dtype)dtype, LOOM_SUM, in_place);
                reduce_scatter_once(comm, stream, counts[c], (loom_dtype)dtype, op, in_place);
            }
        }
}

static void all_gather_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype, bool in_place)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    size_t bytes = count * loom_dtype_bytes(dtype);
    char *recv = suite_buffer(comm, bytes * (size_t)size), *send = in_place ? recv + (size_t)rank * bytes : suite_buffer(comm, bytes);

    value_fill(send, rank, 7, count, dtype);
    assert_int_equal(loom_all_gather(comm, send, recv, count, dtype, stream), LOOM_OK);
    suite_wait(stream);
    for (int r = 0; r < size; r++)
        value_expect(recv + (size_t)r * bytes, r, 7, count, dtype);
    if (!in_place)
        suite_drop(comm, send);
    suite_drop(comm, recv);
}

static void all_to_all_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    size_t bytes = count * loom_dtype_bytes(dtype);
    char *recv = suite_buffer(comm, bytes * (size_t)size), *send = suite_buffer(comm, bytes * (size_t)size);

    value_fill(send, rank, 0, count * (size_t)size, dtype);
    assert_int_equal(loom_all_to_all(comm, send, recv, count, dtype, stream), LOOM_OK);
    suite_wait(stream);
    for (int r = 0; r < size; r++)
        value_expect(recv + (size_t)r * bytes, r, (size_t)rank * count, count, dtype);
    suite_drop(comm, send);
    suite_drop(comm, recv);
}

static void broadcast_once(loom_comm *comm, loom_stream *stream, size_t count, loom_dtype dtype, int root)
{
    void *memory = suite_buffer(comm, count * loom_dtype_bytes(dtype));

    value_fill(memory, loom_comm_rank(comm), 0, count, dtype);
    assert_int_equal(loom_broadcast(comm, memory, count, dtype, root, stream), LOOM_OK);
    suite_wait(stream);
    value_expect(memory, root, 0, count, dtype);
    suite_drop(comm, memory);
}

static void movements(loom_comm *comm, loom_stream *stream)
{
    for (int dtype = 0; dtype < LOOM_DTYPE_COUNT; dtype++)
        for (size_t c = 0; c < COUNTS; c++) {
            if (!is_worth_it(counts[c], (loom_dtype)dtype))
                continue;
            all_gather_once(comm, stream, counts[c], (loom_dtype)dtype, false);
            all_gather_once(comm, stream, counts[c], (loom_dtype)dtype, true);
            all_to_all_once(comm, stream, counts[c], (loom_dtype)dtype);
            broadcast_once(comm, stream, counts[c], (loom_dtype)dtype, (int)c % loom_comm_size(comm));
        }
    for (int i = 0; i < 10; i++)
        assert_int_equal(loom_barrier(comm, "end of movements", stream), LOOM_OK);
    suite_wait(stream);
}

/* Elements that rank a sends to rank b: zero for some pairs, all of one rank's, and uneven. */
static size_t sent(int a, int b, size_t scale)
{
    return a == 1 ? 0 : (size_t)((a + 2 * b) % 4) * scale + (size_t)b;
}

static void all_to_all_v_once(loom_comm *comm, loom_stream *stream, size_t scale)
{
    int rank = loom_comm_rank(comm), size = loom_comm_size(comm);
    size_t send_counts[64], send_offsets[64], recv_counts[64], recv_offsets[64], to = 0, from = 0;
    float *send, *recv;

    for (int r = 0; r < size; r++) {
        send_counts[r] = sent(rank, r, scale);
        send_offsets[r] = to;
        to += send_counts[r] + 1; /* a gap: offsets are the caller's */
        recv_counts[r] = sent(r, rank, scale);
        recv_offsets[size - 1 - r] = 0;
    }
    for (int r = size - 1; r >= 0; r--) { /* in the reverse order, to show that it may be any */
        recv_offsets[r] = from;
        from += recv_counts[r];
    }
    send = suite_buffer(comm, (to + 1) * sizeof *send);
    recv = suite_buffer(comm, (from + 1) * sizeof *recv);
    for (int r = 0; r < size; r++)
        value_fill(send + send_offsets[r], rank, (size_t)r, send_counts[r], LOOM_F32);
    recv[from] = -77;
    assert_int_equal(loom_all_to_all_v(comm, send, send_counts, send_offsets, recv, recv_counts, recv_offsets, LOOM_F32, stream), LOOM_OK);
    memset(send_counts, 0xff, sizeof send_counts); /* copied before the call returns */
    suite_wait(stream);
    for (int r = 0; r < size; r++)
        value_expect(recv + recv_offsets[r], r, (size_t)rank, recv_counts[r], LOOM_F32);
    assert_true(recv[from] == -77);
    suite_drop(comm, send);
    suite_drop(comm, recv);
}

static void uneven_exchanges(loom_comm *comm, loom_stream *stream)
{
    for (int round = 0; round < 2; round++)
        for (size_t scale = 0; scale < 30000; scale = 10 * scale + 1)
            all_to_all_v_once(comm, stream, scale);
}

/* Backward of a rank without tokens (case B05): everything goes to rank 0, then rank 1 has nothing at all. */
static void a_rank_without_tokens_takes_part(loom_comm *comm, loom_stream *stream)
{
    enum { SIZE = 4, TOKENS = 8 };
    int rank = loom_comm_rank(comm);

    for (int second = 0; second < 2; second++) {
        size_t tokens = second && rank == 1 ? 0 : TOKENS;
        size_t send_counts[SIZE] = {tokens}, none[SIZE] = {0}, recv_counts[SIZE] = {0}, recv_offsets[SIZE];
        float *send = tokens ? suite_buffer(comm, TOKENS * sizeof *send) : NULL,
              *recv = rank == 0 ? suite_buffer(comm, SIZE * TOKENS * sizeof *recv) : NULL;

        for (int r = 0; r < SIZE; r++) {
            recv_counts[r] = rank == 0 ? (second && r == 1 ? 0 : TOKENS) : 0;
            recv_offsets[r] = (size_t)r * TOKENS;
        }
        if (send)
            value_fill(send, rank, 0, TOKENS, LOOM_F32);
        assert_int_equal(loom_all_to_all_v(comm, send, send_counts, none, recv, recv_counts, recv_offsets, LOOM_F32, stream), LOOM_OK);
        suite_wait(stream);
        for (int r = 0; rank == 0 && r < SIZE; r++)
            value_expect(recv + recv_offsets[r], r, 0, recv_counts[r], LOOM_F32);
        if (send)
            suite_drop(comm, send);
        if (recv)
            suite_drop(comm, recv);
    }
}

/* Different streams of one rank's calls on different comms, enqueued without a wait in between. */
static void calls_queue_up(loom_comm *comm, loom_stream *stream)
{
    enum { CALLS = 50, COUNT = 3000 };
    int size = loom_comm_size(comm), rank = loom_comm_rank(comm);
    float *memory = suite_buffer(comm, CALLS * COUNT * sizeof *memory);

    for (int i = 0; i < CALLS; i++) {
        value_fill(memory + i * COUNT, rank, (size_t)i, COUNT, LOOM_F32);
        assert_int_equal(loom_all_reduce(comm, memory + i * COUNT, memory + i * COUNT, i % 2 ? 5 : COUNT, LOOM_F32, LOOM_SUM, stream),
                         LOOM_OK);
    }
    suite_wait(stream);
    for (int i = 0; i < CALLS; i++)
        expect_reduced(memory + i * COUNT, (size_t)i, i % 2 ? 5 : COUNT, size, LOOM_F32, LOOM_SUM, "queued all_reduce");
    suite_drop(comm, memory);
}

void suite_collectives(loom_comm *world, loom_stream *stream)
{
    reductions(world, stream);
    movements(world, stream);
    uneven_exchanges(world, stream);
    calls_queue_up(world, stream);
    if (loom_comm_size(world) == 4)
        a_rank_without_tokens_takes_part(world, stream);
}
