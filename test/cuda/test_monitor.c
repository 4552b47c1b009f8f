/* Where the time of a GPU's step went: spans as ranges of the profiler, and how long compute stood still for a comm, by the device's own clock. */
#include "check.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rankloom/monitor.h>

#include "harness/mesh.h"
#include "harness/on_ranks.h"

static const rank_options on_cuda = {.device = LOOM_CUDA, .deadline_s = 60, .comm_deadline_s = 30};

/* --- ranges -------------------------------------------------------------------------------------------------------------------- */

static char ranges_path[64];

static void two_steps(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 1}, NULL);
    double seconds[LOOM_TIME_KINDS];
    loom_monitor *m;

    (void)stream;
    setenv("LOOM_DOUBLE_RANGES", ranges_path, 1);
    assert_ok(loom_monitor_open(mesh, &(loom_monitor_config){0}, &m));
    for (int step = 7; step < 9; step++) {
        loom_monitor_step_begin(m, step);
        loom_span_begin(m, LOOM_TIME_COMPUTE, "forward");
        loom_span_begin(m, LOOM_TIME_DATA, "next batch");
        loom_span_end(m);
        loom_span_end(m);
        loom_span_begin(m, LOOM_TIME_COMPUTE, "optimizer");
        loom_span_end(m);
        loom_monitor_step_end(m, seconds);
    }
    loom_monitor_close(m);
    loom_mesh_close(mesh);
}

static void spans_are_ranges_under_the_traces_names(void **state)
{
    static const char expected[] = "step 7\n forward\n  next batch\n optimizer\nstep 8\n forward\n  next batch\n optimizer\n";
    char text[sizeof expected + 64];
    FILE *file;
    size_t bytes;

    (void)state;
    snprintf(ranges_path, sizeof ranges_path, "/tmp/loom-ranges-%d", (int)getpid());
    on_ranks_with(&on_cuda, 1, two_steps);
    assert_non_null(file = fopen(ranges_path, "r"));
    bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = 0;
    fclose(file);
    unlink(ranges_path);
    assert_string_equal(text, expected);
}

/* --- exposed communication ----------------------------------------------------------------------------------------------------- */

enum { LATE_MS = 200 };
static _Atomic int *rank_0_waits; /* shared */

static float *new_float(loom_comm *comm)
{
    float *x;

    assert_ok(loom_alloc(loom_comm_device(comm), sizeof *x, LOOM_MEM_OTHER, (void **)&x));
    return x;
}

static bool in_a_graph; /* what is called: replayed */

static void call_and_wait(loom_comm *world, float *x, loom_stream *calls, loom_stream *compute)
{
    assert_ok(loom_all_reduce(world, x, x, 1, LOOM_F32, LOOM_SUM, calls));
    assert_ok(loom_stream_follow(compute, calls));
}

/* Rank 0 first, until its device stands in the call; then, LATE_MS later, rank 1. Sleeps give lower bounds only. */
static void rank_1_comes_late(loom_comm *world, loom_stream *calls, loom_stream *compute)
{
    float *x = new_float(world);
    loom_graph *graph = NULL;

    if (in_a_graph) {
        assert_ok(loom_graph_begin(compute));
        call_and_wait(world, x, calls, compute);
        assert_ok(loom_graph_end(compute, &graph));
    }
    if (loom_comm_rank(world) == 1) {
        while (!atomic_load(rank_0_waits))
            usleep(1000);
        usleep(LATE_MS * 1000);
    }
    if (in_a_graph)
        assert_ok(loom_graph_launch(graph, compute));
    else
        call_and_wait(world, x, calls, compute);
    for (int i = 0; i < 50 && loom_comm_rank(world) == 0; i++) {
        assert_int_equal(loom_stream_query(compute), LOOM_PENDING);
        usleep(1000);
    }
    if (loom_comm_rank(world) == 0)
        atomic_store(rank_0_waits, 1);
    assert_ok(loom_stream_wait(compute));
    loom_graph_close(graph);
    loom_free(loom_comm_device(world), x);
}

static void check_exposed(loom_comm *world, const char *name)
{
    double before_s = loom_comm_exposed_s(world);
    loom_stream *calls, *compute;

    assert_ok(loom_stream_open(loom_comm_device(world), LOOM_STREAM_INLINE, "compute", &compute));
    assert_ok(loom_stream_open(loom_comm_device(world), LOOM_STREAM_INLINE, name, &calls));
    rank_1_comes_late(world, strcmp(name, "compute") ? calls : compute, compute);
    assert_true(loom_comm_exposed_s(world) - before_s >= (loom_comm_rank(world) ? 0 : LATE_MS * 0.5e-3));
    loom_stream_close(calls);
    loom_stream_close(compute);
}

static void on_its_own_stream(loom_comm *world, loom_stream *stream)
{
    (void)stream;
    check_exposed(world, "compute");
}

static void on_the_axis_stream(loom_comm *world, loom_stream *stream)
{
    (void)stream;
    check_exposed(world, "dp");
}

static void expect_exposed(bool replayed)
{
    in_a_graph = replayed;
    atomic_store(rank_0_waits, 0);
    on_ranks_with(&on_cuda, 2, on_its_own_stream);
    atomic_store(rank_0_waits, 0);
    on_ranks_with(&on_cuda, 2, on_the_axis_stream);
    in_a_graph = false;
}

static void a_late_peer_is_exposed_where_compute_waits_for_it(void **state)
{
    (void)state;
    expect_exposed(false);
}

static void a_late_peer_of_a_replay_is_exposed_alike(void **state)
{
    (void)state;
    expect_exposed(true);
}

/* The call is late all the same, and nothing waits for it but another stream of an axis. */
static void beside_compute(loom_comm *world, loom_stream *stream)
{
    loom_stream *calls, *other;
    double before_s;

    (void)stream;
    assert_ok(loom_stream_open(loom_comm_device(world), LOOM_STREAM_INLINE, "dp", &calls));
    assert_ok(loom_stream_open(loom_comm_device(world), LOOM_STREAM_INLINE, "tp", &other));
    before_s = loom_comm_exposed_s(world);
    rank_1_comes_late(world, calls, other);
    assert_true(loom_comm_exposed_s(world) == before_s);
    loom_stream_close(calls);
    loom_stream_close(other);
}

static void a_late_peer_is_not_exposed_beside_compute(void **state)
{
    (void)state;
    atomic_store(rank_0_waits, 0);
    on_ranks_with(&on_cuda, 2, beside_compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_are_ranges_under_the_traces_names),
        cmocka_unit_test(a_late_peer_is_exposed_where_compute_waits_for_it),
        cmocka_unit_test(a_late_peer_of_a_replay_is_exposed_alike),
        cmocka_unit_test(a_late_peer_is_not_exposed_beside_compute),
    };

    rank_0_waits = mmap(NULL, sizeof *rank_0_waits, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return rank_0_waits == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
