/* A step with everything that overlaps in training (compute, collectives on a stream of their own, messages to a neighbour), run under many orders of
 * the streams: the result is the same bits in all of them. And the other way round: with any one of its waits removed, some order gives another
 * result, so that a wait that somebody forgets would be noticed.
 *
 *   test_cuda_schedules [ORDERS]      30; the soak takes 1000 */
#include "check.h"

#include <sys/mman.h>

#include <rankloom/kernels.h>

#include "harness/on_ranks.h"

enum { RANKS = 2, COUNT = 2000, LAYERS = 3 };

/* What the ranks of a run write, and the test reads. */
static double *results; /* [RANKS], shared */
static int orders = 30;

typedef struct step {
    loom_comm *world;
    loom_kernels *k;
    loom_stream *compute, *reduce, *send, *recv;
    loom_event *made, *reduced;
    float *x, *gradient, *out, *in;
} step;

static float *new_floats(loom_comm *world)
{
    float *memory;

    assert_ok(loom_alloc(loom_comm_device(world), COUNT * sizeof *memory, LOOM_MEM_OTHER, (void **)&memory));
    return memory;
}

static void open_step(step *s, loom_comm *world)
{
    loom_device *device = loom_comm_device(world);
    int peer = 1 - loom_comm_rank(world);

    s->world = world;
    assert_ok(loom_kernels_open(device, NULL, &s->k));
    assert_ok(loom_stream_open(device, LOOM_STREAM_INLINE, "compute", &s->compute));
    assert_ok(loom_stream_open(device, LOOM_STREAM_INLINE, "dp", &s->reduce));
    assert_ok(loom_stream_open(device, LOOM_STREAM_INLINE, "send", &s->send));
    assert_ok(loom_stream_open(device, LOOM_STREAM_INLINE, "recv", &s->recv));
    assert_ok(loom_event_open(device, &s->made));
    assert_ok(loom_event_open(device, &s->reduced));
    assert_ok(loom_comm_connect(world, &peer, 1));
    s->x = new_floats(world);
    s->gradient = new_floats(world);
    s->out = new_floats(world);
    s->in = new_floats(world);
}

static void close_step(step *s)
{
    loom_device *device = loom_comm_device(s->world);
    float *const memory[] = {s->x, s->gradient, s->out, s->in};
    loom_stream *const streams[] = {s->compute, s->reduce, s->send, s->recv};

    for (int i = 0; i < 4; i++) {
        loom_free(device, memory[i]);
        loom_stream_close(streams[i]);
    }
    loom_event_close(s->made);
    loom_event_close(s->reduced);
    loom_kernels_close(s->k);
}

static void scale(step *s, float *y, const float *x, float alpha)
{
    assert_ok(s->k->scale(s->k, &(loom_scale_args){.y = y, .x = x, .alpha = alpha, .count = COUNT}, s->compute));
}

static void add(step *s, float *y, const float *x)
{
    assert_ok(s->k->axpy(s->k, &(loom_axpy_args){.y = y, .x = x, .alpha = 0.5f, .count = COUNT}, s->compute));
}

/* The gradient is summed beside what compute does meanwhile with the neighbour's message. */
static void run_layer(step *s, int layer)
{
    int peer = 1 - loom_comm_rank(s->world);

    assert_ok(loom_recv(s->world, s->in, COUNT, LOOM_F32, peer, (uint64_t)layer, s->recv));
    scale(s, s->gradient, s->x, 0.25f);
    assert_ok(loom_event_record(s->made, s->compute));
    assert_ok(loom_stream_wait_event(s->reduce, s->made));
    assert_ok(loom_all_reduce(s->world, s->gradient, s->gradient, COUNT, LOOM_F32, LOOM_SUM, s->reduce));
    assert_ok(loom_event_record(s->reduced, s->reduce));

    scale(s, s->out, s->x, loom_comm_rank(s->world) ? 2 : 4);
    assert_ok(loom_stream_follow(s->send, s->compute));
    assert_ok(loom_send(s->world, s->out, COUNT, LOOM_F32, peer, (uint64_t)layer, s->send));
    assert_ok(loom_stream_follow(s->compute, s->recv));
    add(s, s->x, s->in);
    assert_ok(loom_stream_follow(s->recv, s->compute)); /* the next message may overwrite it from here on */
    assert_ok(loom_stream_wait_event(s->compute, s->reduced));
    add(s, s->x, s->gradient);
    assert_ok(loom_stream_follow(s->compute, s->send)); /* and the next layer what was sent */
}

static void train(loom_comm *world, loom_stream *stream)
{
    step s;
    float host[COUNT];
    double sum = 0;

    (void)stream;
    open_step(&s, world);
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)((i * 7 + 3 * loom_comm_rank(world)) % 11);
    assert_ok(loom_stream_copy(s.compute, s.x, host, sizeof host));
    for (int layer = 0; layer < LAYERS; layer++)
        run_layer(&s, layer);
    assert_ok(loom_stream_copy(s.compute, host, s.x, sizeof host));
    assert_ok(loom_stream_wait(s.compute));
    for (int i = 0; i < COUNT; i++)
        sum += host[i] * (1 + i % 13); /* small integers and halves: no order of adding changes it */
    results[loom_comm_rank(world)] = sum;
    close_step(&s);
}

static void set(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* Whether the results of this order are `expected`. NaN is another. */
static bool gives(int seed, int dropped, const double expected[RANKS])
{
    rank_options options = {.device = LOOM_CUDA, .deadline_s = 60, .comm_deadline_s = 30};
    bool same = true;

    set("LOOM_DOUBLE_SEED", seed);
    set("LOOM_DOUBLE_DROP", dropped);
    on_ranks_with(&options, RANKS, train);
    for (int r = 0; r < RANKS; r++)
        same &= results[r] == expected[r];
    return same;
}

static void measure(double expected[RANKS])
{
    gives(1, 0, (const double[RANKS]){0});
    for (int r = 0; r < RANKS; r++)
        expected[r] = results[r];
}

static void every_order_gives_the_same_bits(void **state)
{
    double expected[RANKS];

    (void)state;
    measure(expected);
    assert_true(expected[0] > 0 && expected[0] != expected[1]);
    for (int seed = 0; seed < orders; seed++)
        if (!gives(seed, 0, expected))
            fail_msg("order %d gives %.17g and %.17g, not %.17g and %.17g", seed, results[0], results[1], expected[0], expected[1]);
}

/* Waits by their number in the process, which begins with the first of the first layer: while the step is opened, streams are idle. */
static void a_removed_wait_shows_in_some_order(void **state)
{
    enum { WAITS_OF_A_LAYER = 6, ORDERS = 600 };
    double expected[RANKS];
    int noticed = 0, waits = 2 * WAITS_OF_A_LAYER; /* what the last layer's protect of the next is not needed */

    (void)state;
    measure(expected);
    for (int wait = 1; wait <= waits; wait++) {
        int seed = 0;
        while (seed < ORDERS && gives(seed, wait, expected))
            seed++;
        noticed += seed < ORDERS;
        if (seed == ORDERS)
            print_message("wait %d was not missed when it was gone\n", wait);
    }
    assert_int_equal(noticed, waits);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_gives_the_same_bits),
        cmocka_unit_test(a_removed_wait_shows_in_some_order),
    };

    if (argc > 1)
        orders = atoi(argv[1]);
    results = mmap(NULL, RANKS * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return results == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
