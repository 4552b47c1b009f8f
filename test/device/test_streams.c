/* Streams of both kinds: order, failure, events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "device/stream.h"

typedef struct fixture {
    loom_device *device;
    loom_stream *a, *b;
} fixture;

static fixture setup(loom_stream_kind a, loom_stream_kind b)
{
    loom_device_config config = {.threads = 1, .heap_bytes = 1 << 20};
    fixture f;

    assert_int_equal(loom_device_open(LOOM_CPU, &config, &f.device), LOOM_OK);
    assert_int_equal(loom_stream_open(f.device, a, "a", &f.a), LOOM_OK);
    assert_int_equal(loom_stream_open(f.device, b, "b", &f.b), LOOM_OK);
    return f;
}

static void teardown(fixture f)
{
    loom_stream_close(f.a);
    loom_stream_close(f.b);
    loom_device_close(f.device);
}

/* A task that waits until somebody opens the gate. */
typedef struct gate_task {
    loom_task task;
    _Atomic int open, released, status_at_release;
} gate_task;

static loom_step step_gate(loom_task *task)
{
    return atomic_load(&((gate_task *)task)->open) ? LOOM_STEP_OVER : LOOM_STEP_WAIT;
}

static void release_gate(loom_task *task)
{
    atomic_store(&((gate_task *)task)->status_at_release, task->status);
    atomic_store(&((gate_task *)task)->released, 1);
}

static loom_status expire_gate(loom_task *task, double stalled_s)
{
    (void)task;
    return stalled_s > 0.15 ? loom_fail(LOOM_E_PEER, "the gate stayed shut for %.1f s", stalled_s) : LOOM_OK;
}

#define GATE                                                                                                                               \
    {                                                                                                                                      \
        .task = {.step = step_gate, .check = expire_gate, .release = release_gate }                                                        \
    }

typedef struct note {
    _Atomic int *next;
    int got;
} note;

static loom_status take_number(void *argument)
{
    note *n = argument;

    n->got = atomic_fetch_add(n->next, 1);
    return LOOM_OK;
}

static loom_status fail_with_words(void *argument)
{
    return loom_fail(LOOM_E_IO, "%s", (const char *)argument);
}

static void work_runs_in_order(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        fixture f = setup((loom_stream_kind)kind, LOOM_STREAM_INLINE);
        _Atomic int next = 0;
        note notes[100];

        for (int i = 0; i < 100; i++) {
            notes[i] = (note){&next, -1};
            assert_int_equal(loom_stream_run(f.a, take_number, &notes[i]), LOOM_OK);
        }
        assert_int_equal(loom_stream_wait(f.a), LOOM_OK);
        for (int i = 0; i < 100; i++)
            assert_int_equal(notes[i].got, i);
        assert_int_equal(loom_stream_query(f.a), LOOM_OK);
        teardown(f);
    }
}

static void copy_waits_for_what_is_before_it(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        fixture f = setup((loom_stream_kind)kind, LOOM_STREAM_INLINE);
        gate_task gate = GATE;
        char to[6] = "old";

        assert_int_equal(loom_stream_submit(f.a, &gate.task), LOOM_OK);
        assert_int_equal(loom_stream_copy(f.a, to, "new", 4), LOOM_OK);
        assert_int_equal(loom_stream_query(f.a), LOOM_PENDING);
        assert_string_equal(to, "old");
        atomic_store(&gate.open, 1);
        assert_int_equal(loom_stream_wait(f.a), LOOM_OK);
        assert_string_equal(to, "new");
        assert_int_equal(loom_stream_fill_zero(f.a, to, 4), LOOM_OK);
        assert_int_equal(loom_stream_sync_for_compute(f.a), LOOM_OK);
        assert_int_equal(to[0], 0);
        teardown(f);
    }
}

static void waiting_on_one_stream_drives_the_other(void **state)
{
    fixture f = setup(LOOM_STREAM_INLINE, LOOM_STREAM_INLINE);
    gate_task gate = GATE;
    _Atomic int next = 7;
    note n = {&next, -1};

    (void)state;
    assert_int_equal(loom_stream_submit(f.a, &gate.task), LOOM_OK);
    assert_int_equal(loom_stream_run(f.a, take_number, &n), LOOM_OK);
    atomic_store(&gate.open, 1);
    loom_device_progress(f.device);
    assert_int_equal(loom_stream_wait(f.b), LOOM_OK);
    assert_int_equal(n.got, 7);
    teardown(f);
}

static void first_failure_poisons_the_stream(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        fixture f = setup((loom_stream_kind)kind, LOOM_STREAM_INLINE);
        gate_task gate = GATE;
        _Atomic int next = 0;
        note n = {&next, -1};

        assert_int_equal(loom_stream_submit(f.a, &gate.task), LOOM_OK);
        assert_int_equal(loom_stream_run(f.a, fail_with_words, "first"), LOOM_OK);
        assert_int_equal(loom_stream_run(f.a, fail_with_words, "second"), LOOM_OK);
        assert_int_equal(loom_stream_run(f.a, take_number, &n), LOOM_OK);
        atomic_store(&gate.open, 1);
        assert_int_equal(loom_stream_wait(f.a), LOOM_E_IO);
        assert_string_equal(loom_last_error(), "first");
        assert_int_equal(loom_stream_run(f.a, take_number, &n), LOOM_E_IO);
        assert_int_equal(loom_stream_query(f.a), LOOM_E_IO);
        assert_int_equal(n.got, -1);
        teardown(f);
    }
}

static void events_order_streams(void **state)
{
    (void)state;
    for (int kinds = 0; kinds < 4; kinds++) {
        fixture f = setup((loom_stream_kind)(kinds & 1), (loom_stream_kind)(kinds >> 1));
        gate_task gate = GATE;
        loom_event *event;
        _Atomic int next = 0;
        note first = {&next, -1}, second = {&next, -1};

        assert_int_equal(loom_event_open(f.device, &event), LOOM_OK);
        assert_int_equal(loom_event_query(event), LOOM_OK); /* never recorded */
        assert_int_equal(loom_stream_submit(f.a, &gate.task), LOOM_OK);
        assert_int_equal(loom_stream_run(f.a, take_number, &first), LOOM_OK);
        assert_int_equal(loom_event_record(event, f.a), LOOM_OK);
        assert_int_equal(loom_stream_wait_event(f.b, event), LOOM_OK);
        assert_int_equal(loom_stream_run(f.b, take_number, &second), LOOM_OK);
        assert_int_equal(loom_event_query(event), LOOM_PENDING);
        atomic_store(&gate.open, 1);
        assert_int_equal(loom_stream_wait(f.b), LOOM_OK);
        assert_int_equal(loom_event_query(event), LOOM_OK);
        assert_int_equal(first.got, 0);
        assert_int_equal(second.got, 1);
        loom_event_close(event);
        teardown(f);
    }
}

static void a_wait_ends_at_its_deadline_also_through_an_event(void **state)
{
    (void)state;
    for (int kinds = 0; kinds < 4; kinds++) {
        fixture f = setup((loom_stream_kind)(kinds & 1), (loom_stream_kind)(kinds >> 1));
        gate_task gate = GATE;
        loom_event *event;

        assert_int_equal(loom_event_open(f.device, &event), LOOM_OK);
        assert_int_equal(loom_stream_submit(f.a, &gate.task), LOOM_OK);
        assert_int_equal(loom_event_record(event, f.a), LOOM_OK);
        assert_int_equal(loom_stream_wait_event(f.b, event), LOOM_OK);
        assert_int_equal(loom_stream_wait(f.b), LOOM_E_PEER);
        assert_non_null(strstr(loom_last_error(), "stayed shut"));
        assert_int_equal(loom_stream_wait(f.a), LOOM_E_PEER);
        loom_event_close(event);
        teardown(f);
    }
}

static void close_abandons_what_is_queued(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        fixture f = setup((loom_stream_kind)kind, LOOM_STREAM_INLINE);
        gate_task gate = GATE;
        loom_event *event;

        assert_int_equal(loom_event_open(f.device, &event), LOOM_OK);
        assert_int_equal(loom_stream_submit(f.a, &gate.task), LOOM_OK);
        assert_int_equal(loom_event_record(event, f.a), LOOM_OK);
        loom_stream_close(f.a);
        assert_true(atomic_load(&gate.released));
        assert_true(atomic_load(&gate.status_at_release) < 0);
        assert_int_equal(loom_event_query(event), LOOM_E_PEER); /* an event outlives its stream */
        loom_event_close(event);
        assert_int_equal(loom_stream_open(f.device, LOOM_STREAM_INLINE, "again", &f.a), LOOM_OK);
        teardown(f);
    }
}

typedef struct nested {
    loom_stream *stream;
    loom_status status;
    char text[4];
} nested;

static loom_status use_own_stream(void *argument)
{
    nested *n = argument;

    n->status = loom_stream_sync_for_compute(n->stream); /* what a kernel does when work calls it on the stream it runs on */
    return loom_stream_copy(n->stream, n->text, "abc", 4);
}

static void work_may_use_its_own_stream(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        fixture f = setup((loom_stream_kind)kind, LOOM_STREAM_INLINE);
        nested n = {f.a, LOOM_E_IO, ""};

        assert_int_equal(loom_stream_run(f.a, use_own_stream, &n), LOOM_OK);
        assert_int_equal(loom_stream_wait(f.a), LOOM_OK);
        assert_int_equal(loom_stream_wait(f.a), LOOM_OK); /* what the work itself enqueued */
        assert_int_equal(n.status, LOOM_OK);
        assert_string_equal(n.text, "abc");
        teardown(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_runs_in_order),
        cmocka_unit_test(copy_waits_for_what_is_before_it),
        cmocka_unit_test(waiting_on_one_stream_drives_the_other),
        cmocka_unit_test(first_failure_poisons_the_stream),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(a_wait_ends_at_its_deadline_also_through_an_event),
        cmocka_unit_test(close_abandons_what_is_queued),
        cmocka_unit_test(work_may_use_its_own_stream),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
