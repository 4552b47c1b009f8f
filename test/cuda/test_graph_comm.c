/* Collectives and messages in graphs, on the double: replays with other inputs give what calls give, count as calls, and are watched like calls.
 *
 *   test_cuda_graph_comm [replays]      only those: the rest waits for deadlines, and does not depend on the order of streams */
#include "check.h"

#include <unistd.h>

#include "harness/on_ranks.h"

static const rank_options on_cuda = {.device = LOOM_CUDA, .deadline_s = 100, .comm_deadline_s = 60};

enum { COUNT = 600 /* divides by the ranks */ };

/* A step with all that training does: a reduction beside compute, one that compute waits for, a message over a lane whose receive is posted first, and a
 * group of messages to everyone. */
typedef struct step {
    loom_comm *world, *groups; /* the world once more: its own messages go over lanes */
    loom_device *device;
    int rank, size;
    loom_stream *compute, *reduce, *send, *recv;
    float *in, *out;                              /* of the host: [COUNT], [4][COUNT] */
    float *x, *sum, *part, *message, *everyones; /* of the device */
} step;

static float *new_floats(loom_device *device, bool of_host, int count)
{
    float *memory;

    if (of_host)
        assert_ok(loom_alloc_host(device, (size_t)count * sizeof *memory, (void **)&memory));
    else
        assert_ok(loom_alloc(device, (size_t)count * sizeof *memory, LOOM_MEM_OTHER, (void **)&memory));
    return memory;
}

static void open_step(step *s, loom_comm *world, loom_stream *compute)
{
    *s = (step){.world = world, .device = loom_comm_device(world), .rank = loom_comm_rank(world), .size = loom_comm_size(world), .compute = compute};
    int peers[2] = {(s->rank + 1) % s->size, (s->rank + s->size - 1) % s->size};
    float **const memory[] = {&s->x, &s->sum, &s->part, &s->message, &s->everyones};

    assert_ok(loom_stream_open(s->device, LOOM_STREAM_INLINE, "dp", &s->reduce));
    assert_ok(loom_stream_open(s->device, LOOM_STREAM_INLINE, "send", &s->send));
    assert_ok(loom_stream_open(s->device, LOOM_STREAM_INLINE, "recv", &s->recv));
    assert_ok(loom_comm_split(world, 0, 0, "groups", &s->groups));
    if (s->size > 1)
        assert_ok(loom_comm_connect(world, peers, peers[0] == peers[1] ? 1 : 2));
    s->in = new_floats(s->device, true, COUNT);
    s->out = new_floats(s->device, true, 4 * COUNT);
    for (int i = 0; i < 5; i++)
        *memory[i] = new_floats(s->device, false, COUNT);
}

static void close_step(step *s)
{
    float *const memory[] = {s->x, s->sum, s->part, s->message, s->everyones};

    for (int i = 0; i < 5; i++)
        loom_free(s->device, memory[i]);
    loom_free_host(s->device, s->in);
    loom_free_host(s->device, s->out);
    loom_stream_close(s->reduce);
    loom_stream_close(s->send);
    loom_stream_close(s->recv);
    loom_comm_free(s->groups);
}

static void exchange_with_everyone(const step *s, int block)
{
    assert_ok(loom_group_begin(s->groups));
    for (int r = 0; r < s->size; r++) {
        assert_ok(loom_send(s->groups, s->x + r * block, (size_t)block, LOOM_F32, r, 7, s->compute));
        assert_ok(loom_recv(s->groups, s->everyones + r * block, (size_t)block, LOOM_F32, r, 7, s->compute));
    }
    assert_ok(loom_group_end(s->groups, s->compute));
}

static void pass_on(const step *s)
{
    assert_ok(loom_recv(s->world, s->message, COUNT, LOOM_F32, (s->rank + s->size - 1) % s->size, 1, s->recv));
    assert_ok(loom_stream_follow(s->send, s->compute));
    assert_ok(loom_send(s->world, s->x, COUNT, LOOM_F32, (s->rank + 1) % s->size, 1, s->send));
}

static void enqueue(const step *s)
{
    int block = COUNT / s->size;
    const float *const results[] = {s->sum, s->part, s->message, s->everyones};

    assert_ok(loom_stream_copy(s->compute, s->x, s->in, COUNT * sizeof *s->x));
    assert_ok(loom_stream_follow(s->reduce, s->compute));
    assert_ok(loom_all_reduce(s->world, s->x, s->sum, COUNT, LOOM_F32, LOOM_SUM, s->reduce));
    if (s->size > 1)
        pass_on(s);
    assert_ok(loom_reduce_scatter(s->world, s->x, s->part, (size_t)block, LOOM_F32, LOOM_SUM, s->compute));
    exchange_with_everyone(s, block);
    assert_ok(loom_stream_follow(s->compute, s->reduce));
    assert_ok(loom_stream_follow(s->compute, s->recv));
    assert_ok(loom_stream_follow(s->compute, s->send));
    for (int i = 0; i < 4; i++)
        assert_ok(loom_stream_copy(s->compute, s->out + i * COUNT, results[i], COUNT * sizeof *s->out));
}

static float value(int rank, int round, int i)
{
    return (float)(rank + 3 * round + i % 5);
}

static void fill(step *s, int round)
{
    for (int i = 0; i < COUNT; i++)
        s->in[i] = value(s->rank, round, i);
    for (int i = 0; i < 4 * COUNT; i++)
        s->out[i] = -1;
}

static void check(const step *s, int round)
{
    int block = COUNT / s->size, previous = (s->rank + s->size - 1) % s->size;

    assert_ok(loom_stream_wait(s->compute));
    for (int i = 0; i < COUNT; i++) {
        float sum = 0, part = 0;
        for (int r = 0; r < s->size; r++) {
            sum += value(r, round, i);
            part += value(r, round, s->rank * block + i % block);
        }
        assert_true(s->out[i] == sum);
        assert_true(i >= block || s->out[COUNT + i] == part);
        assert_true(s->size == 1 || s->out[2 * COUNT + i] == value(previous, round, i));
        assert_true(s->out[3 * COUNT + i] == value(i / block, round, s->rank * block + i % block));
    }
}

static void run_eagerly(step *s, int round)
{
    fill(s, round);
    enqueue(s);
    check(s, round);
}

static loom_graph *capture(step *s)
{
    loom_graph *graph;

    assert_ok(loom_graph_begin(s->compute));
    enqueue(s);
    assert_ok(loom_graph_end(s->compute, &graph));
    return graph;
}

static void reset_traffic(step *s)
{
    loom_comm_reset_traffic(s->world);
    loom_comm_reset_traffic(s->groups);
}

static void expect_traffic(const step *s, const loom_traffic expected[2])
{
    loom_traffic got[2];

    loom_comm_traffic(s->world, &got[0]);
    loom_comm_traffic(s->groups, &got[1]);
    assert_memory_equal(got, expected, sizeof got);
}

/* Replays and calls in any order, and they count alike. */
static void replays(loom_comm *world, loom_stream *stream)
{
    loom_traffic eager[2];
    loom_graph *graph;
    step s;

    open_step(&s, world, stream);
    reset_traffic(&s);
    run_eagerly(&s, 0);
    loom_comm_traffic(world, &eager[0]);
    loom_comm_traffic(s.groups, &eager[1]);
    graph = capture(&s);
    expect_traffic(&s, eager); /* nothing was sent yet */
    for (int round = 1; round < 12; round++) {
        fill(&s, round);
        reset_traffic(&s);
        if (round % 4)
            assert_ok(loom_graph_launch(graph, stream));
        else
            enqueue(&s);
        check(&s, round);
        expect_traffic(&s, eager);
    }
    loom_graph_close(graph);
    run_eagerly(&s, 12);
    close_step(&s);
}

static void replays_give_what_calls_give(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 1, replays);
    on_ranks_with(&on_cuda, 2, replays);
    on_ranks_with(&on_cuda, 4, replays);
}

/* --- what a graph cannot have ------------------------------------------------------------------------------------------------------ */

static loom_comm *made;
static int number;

static loom_status make_comm(loom_comm *world)
{
    return loom_comm_split(world, 0, 0, "late", &made);
}

static loom_status connect_late(loom_comm *world)
{
    int peer = 1 - loom_comm_rank(world);

    return loom_comm_connect(world, &peer, 1);
}

static loom_status gather(loom_comm *world)
{
    int all[2];

    return loom_comm_gather_host(world, &number, all, sizeof number);
}

static loom_status broadcast(loom_comm *world)
{
    return loom_comm_broadcast_host(world, &number, sizeof number, 0);
}

static void refuses(loom_comm *world, loom_stream *stream)
{
    static const struct {
        const char *name;
        loom_status (*call)(loom_comm *world);
    } forbidden[] = {{"loom_comm_split", make_comm}, {"loom_comm_connect", connect_late}, {"loom_comm_gather_host", gather}, {"loom_comm_broadcast_host", broadcast}};
    float *x = new_floats(loom_comm_device(world), false, COUNT);
    loom_graph *graph;
    step s;

    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        assert_ok(loom_graph_begin(stream));
        assert_ok(loom_all_reduce(world, x, x, COUNT, LOOM_F32, LOOM_SUM, stream));
        assert_refused(forbidden[i].call(world), LOOM_E_INVALID, forbidden[i].name);
        assert_refused(loom_all_reduce(world, x, x, COUNT, LOOM_F32, LOOM_SUM, stream), LOOM_E_INVALID, forbidden[i].name);
        assert_refused(loom_graph_end(stream, &graph), LOOM_E_INVALID, forbidden[i].name);
    }
    loom_free(loom_comm_device(world), x);
    open_step(&s, world, stream); /* the comm is as before */
    run_eagerly(&s, 0);
    close_step(&s);
}

static void what_ranks_meet_for_is_refused(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, refuses);
}

/* --- unhappy ends --------------------------------------------------------------------------------------------------------------------- */

static void write_dump(loom_comm *world, char *text, size_t room)
{
    char path[64];
    FILE *file;

    snprintf(path, sizeof path, "/tmp/loom-graph-dump-%d", (int)getpid());
    assert_ok(loom_comm_dump(world, path));
    assert_non_null(file = fopen(path, "r"));
    text[fread(text, 1, room - 1, file)] = 0;
    fclose(file);
    unlink(path);
}

/* The graph has calls of two comms. Rank 1 launches it once less. */
static void rank_1_does_not_replay(loom_comm *world, loom_stream *stream)
{
    static char text[1 << 16];
    float *x = new_floats(loom_comm_device(world), false, COUNT);
    loom_comm *other;
    loom_graph *graph;

    assert_ok(loom_comm_split(world, 0, 0, "other", &other));
    assert_ok(loom_graph_begin(stream));
    assert_ok(loom_all_reduce(world, x, x, COUNT, LOOM_F32, LOOM_SUM, stream));
    assert_ok(loom_all_reduce(other, x, x, COUNT, LOOM_F32, LOOM_SUM, stream));
    assert_ok(loom_all_reduce(world, x, x, COUNT, LOOM_F32, LOOM_SUM, stream));
    assert_ok(loom_graph_end(stream, &graph));
    assert_ok(loom_graph_launch(graph, stream));
    assert_ok(loom_stream_wait(stream));
    write_dump(world, text, sizeof text);
    assert_non_null(strstr(text, "\"call\":\"graph\""));
    assert_non_null(strstr(text, "\"calls\":2"));
    if (loom_comm_rank(world) == 1) {
        usleep(6500000); /* longer than the deadline of the others */
    } else {
        assert_ok(loom_graph_launch(graph, stream));
        assert_refused(loom_stream_wait(stream), LOOM_E_PEER, "a replay of ", " calls, the last of them all_reduce", "is not over after 4 s");
        assert_int_equal(loom_graph_launch(graph, stream), LOOM_E_PEER);
        assert_int_equal(loom_all_reduce(world, x, x, COUNT, LOOM_F32, LOOM_SUM, stream), LOOM_E_PEER);
        assert_int_equal(loom_all_reduce(other, x, x, COUNT, LOOM_F32, LOOM_SUM, stream), LOOM_E_PEER);
        assert_ok(loom_stream_wait(stream)); /* the stream goes on */
    }
    loom_graph_close(graph);
    loom_comm_free(other);
    loom_free(loom_comm_device(world), x);
}

static void a_replay_that_is_stuck_ends_at_the_deadline(void **state)
{
    rank_options options = on_cuda;

    (void)state;
    options.comm_deadline_s = 4;
    on_ranks_with(&options, 2, rank_1_does_not_replay);
}

/* NCCL waits for the graphs of a communicator that is closed, and their owner may come to close them later: they are given up with the comm. */
static void frees_the_comm_first(loom_comm *world, loom_stream *stream)
{
    float *x = new_floats(loom_comm_device(world), false, COUNT);
    loom_comm *other;
    loom_graph *graph;

    assert_ok(loom_comm_split(world, 0, 0, "other", &other));
    assert_ok(loom_graph_begin(stream));
    assert_ok(loom_all_reduce(other, x, x, COUNT, LOOM_F32, LOOM_SUM, stream));
    assert_ok(loom_graph_end(stream, &graph));
    assert_ok(loom_graph_launch(graph, stream));
    assert_ok(loom_stream_wait(stream));
    loom_comm_free(other);
    assert_refused(loom_graph_launch(graph, stream), LOOM_E_INVALID, "comm \"other\", whose calls are in the graph, is gone");
    loom_graph_close(graph);
    assert_ok(loom_all_reduce(world, x, x, COUNT, LOOM_F32, LOOM_SUM, stream));
    assert_ok(loom_stream_wait(stream));
    loom_free(loom_comm_device(world), x);
}

static void a_graph_ends_with_its_comm(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, frees_the_comm_first);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_give_what_calls_give),
        cmocka_unit_test(what_ranks_meet_for_is_refused),
        cmocka_unit_test(a_replay_that_is_stuck_ends_at_the_deadline),
        cmocka_unit_test(a_graph_ends_with_its_comm),
    };

    if (argc > 1)
        cmocka_set_test_filter("replays_*");
    (void)argv;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
