/* Where time is booked, and the files that tell it. Sleeps give lower bounds only: a loaded machine may take longer, never shorter. */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"

#include <rankloom/config.h>
#include <rankloom/monitor.h>

#include <math.h>
#include <unistd.h>

static void sleep_ms(int ms)
{
    usleep((useconds_t)ms * 1000);
}

/* A path in the test's folder; the process of the test names it, so that ranks agree and runs do not. */
static const char *out_path(const char *name)
{
    static char path[256];
    static int pid;

    pid = pid ? pid : (int)getpid();
    snprintf(path, sizeof path, "/tmp/loom-monitor-%d-%s", pid, name);
    return path;
}

static double sum_of(const double seconds[LOOM_TIME_KINDS])
{
    double sum = 0;

    for (int kind = 0; kind < LOOM_TIME_KINDS; kind++) {
        assert_true(seconds[kind] >= -1e-12);
        sum += seconds[kind];
    }
    return sum;
}

/* --- spans ------------------------------------------------------------------------------------------------------------------------- */

static void spans(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 1}, NULL);
    loom_monitor_config config = {0};
    double seconds[LOOM_TIME_KINDS], whole;
    loom_monitor *m;

    (void)stream;
    assert_ok(loom_monitor_open(mesh, &config, &m));
    for (int step = 0; step < 2; step++) {
        loom_monitor_step_begin(m, step);
        sleep_ms(4);
        loom_span_begin(m, LOOM_TIME_COMPUTE, "forward");
        sleep_ms(6);
        loom_span_begin(m, LOOM_TIME_DATA, "next batch");
        sleep_ms(10);
        loom_span_end(m);
        sleep_ms(6);
        loom_span_end(m);
        whole = loom_monitor_step_end(m, seconds);
        assert_true(seconds[LOOM_TIME_REST] >= 0.004 && seconds[LOOM_TIME_COMPUTE] >= 0.012 && seconds[LOOM_TIME_DATA] >= 0.010);
        assert_true(whole == sum_of(seconds));
        assert_true(seconds[LOOM_TIME_PIPELINE] == 0 && seconds[LOOM_TIME_COMM_TP] == 0);
    }
    loom_monitor_step_begin(NULL, 0); /* a program may run without */
    loom_span_begin(NULL, LOOM_TIME_DATA, "no monitor");
    loom_span_end(NULL);
    assert_true(loom_monitor_step_end(NULL, seconds) == 0 && sum_of(seconds) == 0);
    loom_monitor_close(m);
    loom_mesh_close(mesh);
}

static void a_second_belongs_to_the_innermost_span(void **state) { (void)state; on_ranks(1, spans); }

/* Rank 0 of tp waits for rank 1, which computes longer. */
static void waiting_for_tp(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.tp = 2}, NULL);
    loom_monitor_config config = {0};
    double seconds[LOOM_TIME_KINDS], whole;
    float x = 1;
    loom_monitor *m;

    assert_ok(loom_monitor_open(mesh, &config, &m));
    assert_ok(loom_barrier(world, "start", stream));
    assert_ok(loom_stream_wait(stream));
    loom_monitor_step_begin(m, 0);
    loom_span_begin(m, LOOM_TIME_COMPUTE, "layer");
    if (loom_comm_rank(world) == 1)
        sleep_ms(200);
    assert_ok(loom_all_reduce(mesh->axis[LOOM_AXIS_TP], &x, &x, 1, LOOM_F32, LOOM_SUM, stream));
    assert_ok(loom_stream_wait(stream));
    loom_span_end(m);
    whole = loom_monitor_step_end(m, seconds);
    assert_true(whole == sum_of(seconds));
    if (loom_comm_rank(world) == 0)
        assert_true(seconds[LOOM_TIME_COMM_TP] >= 0.05); /* leaving the barrier may cost us some of the 200 */
    else
        assert_true(seconds[LOOM_TIME_COMPUTE] >= 0.2);
    loom_monitor_close(m);
    loom_mesh_close(mesh);
}

static void waiting_for_a_tp_neighbour_is_exposed_communication(void **state) { (void)state; on_ranks(2, waiting_for_tp); }

/* --- metrics ----------------------------------------------------------------------------------------------------------------------- */

/* H06: the loader of rank 1 is slow; the step's line says so. */
static void slow_loader(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world);
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = loom_comm_size(world)}, NULL);
    loom_monitor_config config = {.metrics = out_path("metrics.jsonl")};
    loom_monitor *m;

    (void)stream;
    assert_ok(loom_monitor_open(mesh, &config, &m));
    for (int step = 0; step < 3; step++) {
        loom_step_metrics line = {.step = step, .tokens = 512, .loss = 2.5, .grad_norm = step == 1 ? NAN : 1.25, .lr = 3e-4, .extra = "\"note\": \"three words here\""};
        loom_monitor_step_begin(m, step);
        loom_span_begin(m, LOOM_TIME_DATA, "next batch");
        sleep_ms(rank == 1 ? 30 : 1);
        loom_span_end(m);
        loom_span_begin(m, LOOM_TIME_COMPUTE, "step");
        sleep_ms(rank == 2 ? 30 : 1);
        loom_span_end(m);
        line.step_time_s = loom_monitor_step_end(m, line.seconds);
        assert_ok(loom_monitor_write(m, &line));
    }
    loom_monitor_close(m);
    loom_mesh_close(mesh);
}

static double number(const loom_node *line, const char *key)
{
    double value = NAN;

    if (!loom_node_as_f64(loom_node_get(line, key), &value))
        fail_msg("no number %s in the line", key);
    return value;
}

static void check_line(const char *text, int step)
{
    loom_config *line;
    double sum = 0;

    assert_ok(loom_config_parse("metrics.json", text, strlen(text), &line));
    const loom_node *root = loom_config_root(line);
    assert_true(number(root, "step") == step && number(root, "loss") == 2.5 && number(root, "lr") == 3e-4);
    if (step == 1)
        assert_int_equal(loom_node_get_kind(loom_node_get(root, "grad_norm")), LOOM_NODE_NULL); /* JSON has no NaN */
    else
        assert_true(number(root, "grad_norm") == 1.25);
    for (int kind = 0; kind < LOOM_TIME_KINDS; kind++) {
        char key[32];
        snprintf(key, sizeof key, "%s_s", loom_time_kind_name((loom_time_kind)kind));
        sum += number(root, key);
    }
    assert_true(fabs(sum - number(root, "step_time_s")) <= 1e-12);
    assert_true(fabs(number(root, "tokens_per_s") * number(root, "step_time_s") - 512) <= 1e-9);
    assert_true(number(root, "data_rank") == 1 && number(root, "data_max_s") >= 0.03);
    assert_true(number(root, "slowest_rank") == 2 && number(root, "slowest_compute_s") >= 0.03);
    assert_string_equal(loom_node_text(loom_node_get(root, "note")), "three words here");
    loom_config_free(line);
}

static void the_metrics_name_the_rank_that_waits_for_data(void **state)
{
    char text[4096];
    int lines = 0;

    (void)state;
    out_path(""); /* before the ranks fork */
    on_ranks(3, slow_loader);
    FILE *in = fopen(out_path("metrics.jsonl"), "r");
    assert_non_null(in);
    while (fgets(text, sizeof text, in))
        check_line(text, lines++);
    fclose(in);
    assert_int_equal(lines, 3);
    unlink(out_path("metrics.jsonl"));
}

/* --- trace ------------------------------------------------------------------------------------------------------------------------- */

static void traced(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.pp = 3}, NULL);
    loom_monitor_config config = {.trace = out_path("trace"), .trace_first_step = 1, .trace_steps = 2};
    double seconds[LOOM_TIME_KINDS];
    loom_monitor *m;

    float x = 1;

    assert_ok(loom_monitor_open(mesh, &config, &m));
    for (int step = 0; step < 4; step++) {
        loom_monitor_step_begin(m, step);
        assert_ok(loom_all_reduce(mesh->axis[LOOM_AXIS_PP], &x, &x, 1, LOOM_F32, LOOM_SUM, stream));
        assert_ok(loom_stream_wait(stream));
        assert_int_equal(loom_monitor_traces(m), step == 1 || step == 2);
        loom_span_begin(m, LOOM_TIME_COMPUTE, "outer");
        loom_span_begin(m, LOOM_TIME_COMPUTE, "a \"quoted\" name \\ with \t marks");
        sleep_ms(1);
        loom_span_end(m);
        loom_span_end(m);
        loom_monitor_event(m, "pipeline", "F c0 m1", 1.5, 2.0);
        loom_monitor_step_end(m, seconds);
    }
    assert_ok(loom_monitor_finish(m));
    loom_monitor_close(m);
    loom_mesh_close(mesh);
}

static bool is_called(const loom_node *event, const char *name)
{
    return !strcmp(loom_node_text(loom_node_get(event, "name")), name);
}

/* The inner bar lies in the outer one, so that viewers nest them. */
static void check_nesting(const loom_node *inner, const loom_node *outer)
{
    assert_true(number(outer, "ts") <= number(inner, "ts") + 1e-3);
    assert_true(number(outer, "ts") + number(outer, "dur") >= number(inner, "ts") + number(inner, "dur") - 1e-2);
    assert_true(number(inner, "dur") >= 1000);
}

static void the_trace_is_valid_json_with_a_process_a_rank(void **state)
{
    int names = 0, outers = 0, actions = 0, steps = 0, calls = 0;
    char path[300];
    loom_config *file;

    (void)state;
    out_path("");
    on_ranks(3, traced);
    snprintf(path, sizeof path, "%s.json", out_path("trace"));
    assert_ok(loom_config_load(path, &file));
    const loom_node *events = loom_node_get(loom_config_root(file), "traceEvents");
    for (size_t i = 0; i < loom_node_count(events); i++) {
        const loom_node *event = loom_node_at(events, i);
        assert_in_range((int)number(event, "pid"), 0, 2);
        names += is_called(event, "process_name");
        calls += is_called(event, "all_reduce 0.004 kB");
        steps += is_called(event, "step 1") || is_called(event, "step 2");
        actions += is_called(event, "F c0 m1") && fabs(number(event, "dur") - 0.5e6) < 1;
        if (is_called(event, "outer")) {
            outers++;
            assert_true(is_called(loom_node_at(events, i - 1), "a \"quoted\" name \\ with \t marks"));
            check_nesting(loom_node_at(events, i - 1), event);
        }
    }
    assert_int_equal(names, 3);
    assert_int_equal(outers, 3 * 2);
    assert_int_equal(actions, 3 * 2);
    assert_int_equal(steps, 3 * 2);
    assert_int_equal(calls, 3 * 2);
    loom_config_free(file);
    unlink(path);
}

/* A file that cannot be made is an error on rank 0, and nobody waits for ever. */
static void no_folder(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 2}, NULL);
    loom_monitor_config config = {.trace = "/nonexistent/folder/trace"};
    loom_monitor *m;

    (void)stream;
    assert_ok(loom_monitor_open(mesh, &config, &m));
    if (loom_comm_rank(world) == 0)
        assert_refused(loom_monitor_finish(m), LOOM_E_IO, "/nonexistent/folder/trace.json");
    else
        assert_ok(loom_monitor_finish(m));
    loom_monitor_close(m);
    loom_mesh_close(mesh);
}

static void a_trace_that_cannot_be_written_is_an_error_in_words(void **state) { (void)state; on_ranks(2, no_folder); }

/* --- plot -------------------------------------------------------------------------------------------------------------------------- */

static void a_plot_has_its_curves_labels_and_gaps(void **state)
{
    enum { POINTS = 200 };
    static double x[POINTS], falling[POINTS], flat[POINTS];
    const loom_curve curves[] = {{"tp2 x pp2", x, falling, POINTS}, {"a < b & c", x, flat, POINTS}};
    loom_plot plot = {.title = "Loss", .x_label = "step", .y_label = "nats a byte", .curves = curves, .n_curves = 2};
    static char text[1 << 16];

    (void)state;
    for (int i = 0; i < POINTS; i++) {
        x[i] = i;
        falling[i] = 2 + 3.5 * exp(-i / 30.0);
        flat[i] = i == 100 ? NAN : 3;
    }
    assert_ok(loom_plot_save(&plot, out_path("plot.svg")));
    FILE *in = fopen(out_path("plot.svg"), "r");
    assert_non_null(in);
    text[fread(text, 1, sizeof text - 1, in)] = '\0';
    fclose(in);
    unlink(out_path("plot.svg"));
    assert_int_equal(times_in(text, "<svg"), 1);
    assert_int_equal(times_in(text, "</svg>"), 1);
    assert_int_equal(times_in(text, "a &lt; b &amp; c"), 1);
    assert_int_equal(times_in(text, ">tp2 x pp2<"), 1);
    assert_int_equal(times_in(text, "prefers-color-scheme: dark"), 1);
    const char *second = strstr(text, "class=\"curve c1\" d=\"") + strlen("class=\"curve c1\" d=\"");
    static char path[1 << 14];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(second, "\""), second);
    assert_int_equal(times_in(path, "M"), 2); /* the gap lifts the pen */
    assert_int_equal(times_in(path, "L"), POINTS - 3);
    assert_int_equal(times_in(text, "nan"), 0);
    plot.n_curves = 9;
    assert_refused(loom_plot_save(&plot, out_path("plot.svg")), LOOM_E_INVALID, "9 curves");
}

static void a_plot_of_nothing_or_of_one_value_still_has_axes(void **state)
{
    const double x[] = {0}, y[] = {0};
    const loom_curve one = {"one", x, y, 1};
    loom_plot plot = {.title = "empty", .x_label = "x", .y_label = "y"};

    (void)state;
    assert_ok(loom_plot_save(&plot, out_path("empty.svg")));
    plot.curves = &one;
    plot.n_curves = 1;
    assert_ok(loom_plot_save(&plot, out_path("empty.svg")));
    unlink(out_path("empty.svg"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_belongs_to_the_innermost_span),
        cmocka_unit_test(waiting_for_a_tp_neighbour_is_exposed_communication),
        cmocka_unit_test(the_metrics_name_the_rank_that_waits_for_data),
        cmocka_unit_test(the_trace_is_valid_json_with_a_process_a_rank),
        cmocka_unit_test(a_trace_that_cannot_be_written_is_an_error_in_words),
        cmocka_unit_test(a_plot_has_its_curves_labels_and_gaps),
        cmocka_unit_test(a_plot_of_nothing_or_of_one_value_still_has_axes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
