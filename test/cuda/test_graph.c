/* Graphs of a CUDA device, on the double of the runtime: a replay does what was captured, in any order that the captured streams allow; what a replay could not
 * repeat is refused, and leaves the device as it was. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <rankloom/device.h>

enum { COUNT = 1000, HALF = COUNT / 2, BYTES = COUNT * sizeof(float) };

/* A step of two streams, with memory that it reads and writes. */
typedef struct step {
    loom_device *device;
    loom_stream *a, *b;
    loom_event *made;
    float *in, *out;             /* of the host */
    float *first, *second, *sum; /* of the device */
} step;

static float *new_floats(loom_device *device)
{
    float *memory;

    assert_ok(loom_alloc(device, BYTES, LOOM_MEM_OTHER, (void **)&memory));
    return memory;
}

static step open_step(void)
{
    step s;

    assert_ok(loom_device_open(LOOM_CUDA, NULL, &s.device));
    assert_ok(loom_stream_open(s.device, LOOM_STREAM_INLINE, "compute", &s.a));
    assert_ok(loom_stream_open(s.device, LOOM_STREAM_INLINE, "dp", &s.b));
    assert_ok(loom_event_open(s.device, &s.made));
    assert_ok(loom_alloc_host(s.device, BYTES, (void **)&s.in));
    assert_ok(loom_alloc_host(s.device, BYTES, (void **)&s.out));
    s.first = new_floats(s.device);
    s.second = new_floats(s.device);
    s.sum = new_floats(s.device);
    return s;
}

static void close_step(step *s)
{
    loom_free(s->device, s->first);
    loom_free(s->device, s->second);
    loom_free(s->device, s->sum);
    loom_free_host(s->device, s->in);
    loom_free_host(s->device, s->out);
    loom_event_close(s->made);
    loom_stream_close(s->a);
    loom_stream_close(s->b);
    loom_device_close(s->device);
}

/* The first half of `in` comes out twice, and in the last place a zero. */
static void enqueue(step *s)
{
    assert_ok(loom_stream_fill_zero(s->b, s->sum, BYTES));
    assert_ok(loom_stream_copy(s->a, s->first, s->in, BYTES));
    assert_ok(loom_event_record(s->made, s->a));
    assert_ok(loom_stream_copy(s->a, s->second, s->first, BYTES / 2));
    assert_ok(loom_stream_wait_event(s->b, s->made)); /* first */
    assert_ok(loom_stream_copy(s->b, s->second + HALF, s->first, BYTES / 2));
    assert_ok(loom_stream_follow(s->a, s->b)); /* the zeros, and the second half */
    assert_ok(loom_stream_copy(s->a, s->sum, s->second, BYTES - sizeof(float)));
    assert_ok(loom_stream_copy(s->a, s->out, s->sum, BYTES - sizeof(float)));
    assert_ok(loom_stream_copy(s->b, s->out + COUNT - 1, s->sum + COUNT - 1, sizeof(float))); /* and a does not wait for this one */
    assert_ok(loom_stream_copy(s->b, s->sum + COUNT - 1, s->first + COUNT - 1, sizeof(float))); /* so that the zeros are needed each time */
}

static void fill(step *s, int round)
{
    for (int i = 0; i < COUNT; i++) {
        s->in[i] = (float)(round * COUNT + i);
        s->out[i] = -1;
    }
}

static bool is_right(const step *s, int round)
{
    bool right = s->out[COUNT - 1] == 0;

    for (int i = 0; i < COUNT - 1; i++)
        right &= s->out[i] == (float)(round * COUNT + i % HALF);
    return right;
}

static void run_eagerly(step *s, int round)
{
    fill(s, round);
    enqueue(s);
    assert_ok(loom_stream_wait(s->a));
    assert_ok(loom_stream_wait(s->b));
    assert_true(is_right(s, round));
}

static loom_graph *capture(step *s)
{
    loom_graph *graph;

    assert_ok(loom_graph_begin(s->a));
    enqueue(s);
    assert_ok(loom_graph_end(s->a, &graph));
    return graph;
}

static void replay(step *s, loom_graph *graph, int round)
{
    fill(s, round);
    assert_ok(loom_graph_launch(graph, s->a));
    assert_ok(loom_stream_wait(s->a));
    assert_true(is_right(s, round));
}

static void a_replay_does_what_was_captured(void **state)
{
    step s = open_step();
    loom_graph *graph;

    (void)state;
    fill(&s, 0);
    graph = capture(&s);
    assert_ok(loom_stream_wait(s.a));
    assert_ok(loom_stream_wait(s.b));
    assert_true(s.out[0] == -1); /* nothing ran yet */
    for (int round = 1; round < 30; round++)
        round % 3 ? replay(&s, graph, round) : run_eagerly(&s, round);
    loom_graph_close(graph);
    run_eagerly(&s, 30);
    close_step(&s);
}

/* Whatever is queued on whatever stream is before it or behind it. */
static void a_launch_is_ordered_with_all_streams(void **state)
{
    step s = open_step();
    float *other = new_floats(s.device), *taken;
    loom_graph *graph;

    (void)state;
    assert_ok(loom_alloc_host(s.device, BYTES, (void **)&taken));
    assert_ok(loom_graph_begin(s.a));
    assert_ok(loom_stream_copy(s.a, s.second, s.first, BYTES));
    assert_ok(loom_graph_end(s.a, &graph));
    for (int round = 0; round < 30; round++) {
        fill(&s, round);
        assert_ok(loom_stream_copy(s.b, s.first, s.in, BYTES));
        assert_ok(loom_graph_launch(graph, round % 2 ? s.a : s.b));
        assert_ok(loom_stream_copy(s.b, other, s.second, BYTES));
        assert_ok(loom_graph_launch(graph, s.a));
        assert_ok(loom_stream_copy(s.b, taken, other, BYTES));
        assert_ok(loom_stream_wait(s.b));
        assert_memory_equal(taken, s.in, BYTES);
    }
    loom_graph_close(graph);
    loom_free_host(s.device, taken);
    loom_free(s.device, other);
    close_step(&s);
}

static void a_graph_may_be_closed_under_its_replay(void **state)
{
    step s = open_step();

    (void)state;
    for (int round = 0; round < 10; round++) {
        loom_graph *graph = capture(&s);
        fill(&s, round);
        assert_ok(loom_graph_launch(graph, s.a));
        loom_graph_close(graph);
        assert_ok(loom_stream_wait(s.a));
        assert_true(is_right(&s, round));
    }
    close_step(&s);
}

/* Events of either side of a capture are reached for the other, since a launch is ordered as a whole. */
static void events_do_not_cross_a_capture(void **state)
{
    step s = open_step();
    loom_event *before, *inside;
    loom_graph *graph;

    (void)state;
    assert_ok(loom_event_open(s.device, &before));
    assert_ok(loom_event_open(s.device, &inside));
    assert_ok(loom_event_record(before, s.b));
    assert_ok(loom_graph_begin(s.a));
    assert_ok(loom_stream_wait_event(s.a, before));
    enqueue(&s);
    assert_ok(loom_event_record(inside, s.b));
    assert_ok(loom_graph_end(s.a, &graph));
    assert_ok(loom_event_query(before));
    for (int round = 0; round < 5; round++) {
        fill(&s, round);
        assert_ok(loom_graph_launch(graph, s.a));
        assert_ok(loom_stream_wait_event(s.b, inside));
        assert_ok(loom_stream_wait(s.b));
        assert_true(is_right(&s, round));
    }
    assert_refused(loom_event_query(inside), LOOM_E_INVALID, "recorded in a graph");
    assert_ok(loom_event_record(inside, s.b)); /* and now it is as others */
    assert_ok(loom_stream_wait(s.b));
    assert_ok(loom_event_query(inside));
    loom_graph_close(graph);
    loom_event_close(before);
    loom_event_close(inside);
    close_step(&s);
}

/* --- what the order depends on ------------------------------------------------------------------------------------------------ */

/* In a process of its own: under order `seed`, and without its `dropped`-th wait (0: with all). Whether three rounds are right. */
static bool is_right_under(int seed, int dropped)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        char text[2][16];
        loom_graph *graph;
        bool right = true;
        step s;

        snprintf(text[0], sizeof text[0], "%d", seed);
        snprintf(text[1], sizeof text[1], "%d", dropped);
        setenv("LOOM_DOUBLE_SEED", text[0], 1);
        setenv("LOOM_DOUBLE_DROP", text[1], 1);
        s = open_step();
        if (loom_graph_begin(s.a) < 0)
            _exit(1);
        enqueue(&s);
        if (loom_graph_end(s.a, &graph) < 0)
            _exit(1);
        for (int round = 0; round < 3; round++) {
            fill(&s, round);
            if (loom_graph_launch(graph, s.a) < 0 || loom_stream_wait(s.b) < 0 || loom_stream_wait(s.a) < 0)
                _exit(1);
            right &= is_right(&s, round);
        }
        _exit(right ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void every_order_gives_the_same(void **state)
{
    (void)state;
    for (int seed = 0; seed < 60; seed++)
        assert_true(is_right_under(seed, 0));
}

/* The waits of the capture by their number: b's fork, its wait for the event, a's for b, b's join. */
static void a_wait_that_is_not_captured_shows(void **state)
{
    enum { WAITS = 4, ORDERS = 200 };

    (void)state;
    for (int wait = 1; wait <= WAITS; wait++) {
        int seed = 0;
        while (seed < ORDERS && is_right_under(seed, wait))
            seed++;
        if (seed == ORDERS)
            fail_msg("wait %d was not missed when it was gone", wait);
    }
}

/* --- what no graph can have --------------------------------------------------------------------------------------------------------- */

static step *during; /* what the calls below are about */
static void *spare, *spare_host;
static loom_stream *spare_stream;

static loom_status do_nothing(void *argument)
{
    (void)argument;
    return LOOM_OK;
}

static loom_status allocate(void)
{
    void *memory;

    return loom_alloc(during->device, 64, LOOM_MEM_OTHER, &memory);
}

static loom_status allocate_host(void)
{
    void *memory;

    return loom_alloc_host(during->device, 64, &memory);
}

/* Those that return nothing are done all the same. */
static loom_status free_memory(void)
{
    loom_free(during->device, spare);
    return LOOM_E_INVALID;
}

static loom_status free_host(void)
{
    loom_free_host(during->device, spare_host);
    return LOOM_E_INVALID;
}

static loom_status close_stream(void)
{
    loom_stream_close(spare_stream);
    return LOOM_E_INVALID;
}

static loom_status open_stream(void)
{
    loom_stream *stream;

    return loom_stream_open(during->device, LOOM_STREAM_INLINE, "late", &stream);
}

static loom_status wait_for_stream(void)
{
    return loom_stream_wait(during->b);
}

static loom_status ask_stream(void)
{
    return loom_stream_query(during->b);
}

static loom_status ask_event(void)
{
    return loom_event_query(during->made);
}

static loom_status run_on_host(void)
{
    return loom_stream_run(during->a, do_nothing, NULL);
}

static void open_spares(step *s)
{
    during = s;
    assert_ok(loom_alloc(s->device, 64, LOOM_MEM_OTHER, &spare));
    assert_ok(loom_alloc_host(s->device, 64, &spare_host));
    assert_ok(loom_stream_open(s->device, LOOM_STREAM_INLINE, "spare", &spare_stream));
}

static const struct {
    const char *name;
    loom_status (*call)(void);
} forbidden[] = {
    {"loom_alloc", allocate},          {"loom_alloc_host", allocate_host},   {"loom_free", free_memory},        {"loom_free_host", free_host},
    {"loom_stream_close", close_stream}, {"loom_stream_open", open_stream},  {"loom_stream_wait", wait_for_stream}, {"loom_stream_query", ask_stream},
    {"loom_event_query", ask_event},   {"loom_stream_run", run_on_host},
};

static void refuse(step *s, const char *name, loom_status (*call)(void))
{
    loom_graph *graph = NULL;

    assert_ok(loom_graph_begin(s->a));
    enqueue(s);
    assert_refused(call(), LOOM_E_INVALID, name, "captured on stream \"compute\"");
    assert_refused(loom_stream_copy(s->b, s->first, s->in, BYTES), LOOM_E_INVALID, name);
    assert_refused(loom_graph_end(s->a, &graph), LOOM_E_INVALID, name);
    assert_null(graph);
}

static void what_a_replay_cannot_repeat_is_refused(void **state)
{
    step s = open_step();

    (void)state;
    run_eagerly(&s, 0);
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        loom_graph *graph;

        open_spares(&s);
        refuse(&s, forbidden[i].name, forbidden[i].call);
        if (forbidden[i].call != free_memory)
            loom_free(s.device, spare);
        if (forbidden[i].call != free_host)
            loom_free_host(s.device, spare_host);
        if (forbidden[i].call != close_stream)
            loom_stream_close(spare_stream);
        run_eagerly(&s, 1); /* nothing is left of it */
        graph = capture(&s);
        replay(&s, graph, 2);
        loom_graph_close(graph);
    }
    close_step(&s);
}

static void captures_do_not_nest_and_end_where_they_began(void **state)
{
    step s = open_step();
    loom_graph *graph, *outer;

    (void)state;
    assert_refused(loom_graph_end(s.a, &graph), LOOM_E_INVALID, "none was begun");
    graph = capture(&s);
    assert_ok(loom_graph_begin(s.a));
    assert_refused(loom_graph_begin(s.b), LOOM_E_INVALID, "captured already, since stream \"compute\"");
    assert_refused(loom_graph_end(s.b, &outer), LOOM_E_INVALID, "begun on stream \"compute\"");
    assert_refused(loom_graph_launch(graph, s.b), LOOM_E_INVALID, "loom_graph_launch");
    assert_refused(loom_graph_end(s.a, &outer), LOOM_E_INVALID, "loom_graph_launch");
    replay(&s, graph, 1);
    assert_ok(loom_graph_begin(s.b));
    enqueue(&s);
    assert_ok(loom_graph_end(s.b, NULL)); /* thought better of it */
    replay(&s, graph, 2);
    loom_graph_close(graph);
    loom_graph_close(NULL);
    close_step(&s);
}

static void fail_call(const char *function)
{
    setenv("LOOM_DOUBLE_FAIL", function, 1);
}

/* The first call of each in a process: this test has one of its own. */
static void failures_are_named_in_cudas_words(void **state)
{
    step s = open_step();
    loom_graph *graph = NULL;

    (void)state;
    fail_call("cudaStreamBeginCapture:1");
    assert_refused(loom_graph_begin(s.a), LOOM_E_IO, "cudaStreamBeginCapture on stream \"compute\"");
    run_eagerly(&s, 0);
    fail_call("cudaGraphInstantiate:1");
    assert_ok(loom_graph_begin(s.a));
    enqueue(&s);
    assert_refused(loom_graph_end(s.a, &graph), LOOM_E_IO, "cudaGraphInstantiate");
    assert_null(graph);
    run_eagerly(&s, 1);
    fail_call("cudaGraphLaunch:1");
    graph = capture(&s);
    assert_refused(loom_graph_launch(graph, s.a), LOOM_E_IO, "cudaGraphLaunch on stream \"compute\"");
    replay(&s, graph, 2);
    loom_graph_close(graph);
    unsetenv("LOOM_DOUBLE_FAIL");
    close_step(&s);
}

static void processors_capture_nothing(void **state)
{
    loom_device *device;
    loom_stream *stream;

    (void)state;
    assert_ok(loom_device_open(LOOM_CPU, &(loom_device_config){.heap_bytes = 1 << 20}, &device));
    assert_ok(loom_stream_open(device, LOOM_STREAM_INLINE, "compute", &stream));
    assert_false(loom_device_captures(device));
    assert_refused(loom_graph_begin(stream), LOOM_E_UNSUPPORTED, "a cpu device captures no graphs");
    loom_stream_close(stream);
    loom_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_gives_the_same), /* these fork: before the device's thread is there */
        cmocka_unit_test(a_wait_that_is_not_captured_shows),
        cmocka_unit_test(failures_are_named_in_cudas_words),
        cmocka_unit_test(a_replay_does_what_was_captured),
        cmocka_unit_test(a_launch_is_ordered_with_all_streams),
        cmocka_unit_test(a_graph_may_be_closed_under_its_replay),
        cmocka_unit_test(events_do_not_cross_a_capture),
        cmocka_unit_test(what_a_replay_cannot_repeat_is_refused),
        cmocka_unit_test(captures_do_not_nest_and_end_where_they_began),
        cmocka_unit_test(processors_capture_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
