/* Devices, streams, events and memory of the CUDA back end, on the double of the runtime. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "check.h"

#include <rankloom/device.h>

enum { COUNT = 1000 };

typedef struct fixture {
    loom_device *device;
    loom_stream *a, *b;
} fixture;

static fixture setup(void)
{
    fixture f;

    assert_ok(loom_device_open(LOOM_CUDA, NULL, &f.device));
    assert_ok(loom_stream_open(f.device, LOOM_STREAM_INLINE, "compute", &f.a));
    assert_ok(loom_stream_open(f.device, LOOM_STREAM_WORKER, "dp", &f.b));
    return f;
}

static void teardown(fixture f)
{
    loom_stream_close(f.a);
    loom_stream_close(f.b);
    loom_device_close(f.device);
}

static float *new_floats(loom_device *device)
{
    float *memory;

    assert_ok(loom_alloc(device, COUNT * sizeof *memory, LOOM_MEM_OTHER, (void **)&memory));
    return memory;
}

static void memory_is_zeroed_and_in_the_ledger(void **state)
{
    fixture f = setup();
    float *memory = new_floats(f.device), host[COUNT];
    loom_ledger ledger;

    (void)state;
    assert_ok(loom_stream_copy(f.a, host, memory, sizeof host));
    assert_ok(loom_stream_wait(f.a));
    for (int i = 0; i < COUNT; i++)
        assert_true(host[i] == 0);
    loom_device_ledger(f.device, &ledger);
    assert_int_equal(ledger.live_total, (COUNT * sizeof(float) + 63) / 64 * 64);
    loom_free(f.device, memory);
    loom_device_ledger(f.device, &ledger);
    assert_int_equal(ledger.live_total, 0);
    teardown(f);
}

static void work_of_a_stream_runs_in_order(void **state)
{
    fixture f = setup();
    float *memory = new_floats(f.device), ones[COUNT], back[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++)
        ones[i] = 1;
    assert_ok(loom_stream_copy(f.a, memory, ones, sizeof ones));
    assert_ok(loom_stream_fill_zero(f.a, memory + 10, 10 * sizeof *memory));
    assert_ok(loom_stream_copy(f.a, back, memory, sizeof back));
    assert_ok(loom_stream_wait(f.a));
    for (int i = 0; i < COUNT; i++)
        assert_true(back[i] == (i >= 10 && i < 20 ? 0 : 1));
    loom_free(f.device, memory);
    teardown(f);
}

/* What b copies is what a wrote before the event, whoever runs first. `waits`: whether the wait is there. Returns whether the copy is right. */
static bool hand_over(fixture f, bool waits)
{
    float *memory = new_floats(f.device), ones[COUNT], back[COUNT] = {0};
    loom_event *event;
    bool right = true;

    for (int i = 0; i < COUNT; i++)
        ones[i] = 1;
    assert_ok(loom_event_open(f.device, &event));
    assert_ok(loom_stream_copy(f.a, memory, ones, sizeof ones));
    assert_ok(loom_event_record(event, f.a));
    if (waits)
        assert_ok(loom_stream_wait_event(f.b, event));
    assert_ok(loom_stream_copy(f.b, back, memory, sizeof back));
    assert_ok(loom_stream_wait(f.b));
    for (int i = 0; i < COUNT; i++)
        right &= back[i] == 1;
    assert_ok(loom_stream_wait(f.a));
    assert_int_equal(loom_event_query(event), LOOM_OK);
    loom_event_close(event);
    loom_free(f.device, memory);
    return right;
}

static void an_event_orders_two_streams(void **state)
{
    fixture f = setup();

    (void)state;
    for (int i = 0; i < 50; i++)
        assert_true(hand_over(f, true));
    teardown(f);
}

/* The double is worth something: without the wait, the copy comes too early. */
static void a_missing_wait_shows(void **state)
{
    fixture f = setup();
    int wrong = 0;

    (void)state;
    for (int i = 0; i < 50; i++)
        wrong += !hand_over(f, false);
    assert_true(wrong > 0);
    teardown(f);
}

static void following_a_stream_is_an_event_and_a_wait(void **state)
{
    fixture f = setup();
    float *memory = new_floats(f.device), host[COUNT], back[COUNT];

    (void)state;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < COUNT; i++)
            host[i] = (float)round;
        assert_ok(loom_stream_copy(f.a, memory, host, sizeof host));
        assert_ok(loom_stream_follow(f.b, f.a));
        assert_ok(loom_stream_copy(f.b, back, memory, sizeof back));
        assert_ok(loom_stream_wait(f.b));
        for (int i = 0; i < COUNT; i++)
            assert_true(back[i] == (float)round);
    }
    loom_free(f.device, memory);
    teardown(f);
}

/* Freed memory may be given out again only when what was queued on it is over. */
static void a_free_comes_after_what_is_queued(void **state)
{
    fixture f = setup();
    float host[COUNT], back[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)i;
    for (int round = 0; round < 50; round++) {
        float *memory = new_floats(f.device), *next;
        assert_ok(loom_stream_copy(f.a, memory, host, sizeof host));
        assert_ok(loom_stream_copy(f.a, back, memory, sizeof back));
        loom_free(f.device, memory);
        next = new_floats(f.device);
        assert_ok(loom_stream_wait(f.a));
        for (int i = 0; i < COUNT; i++)
            assert_true(back[i] == (float)i);
        loom_free(f.device, next);
    }
    teardown(f);
}

static loom_status hold(void *argument)
{
    _Atomic int *held = argument;

    for (int i = 0; i < 20000 && atomic_load(held); i++)
        usleep(1000);
    return atomic_load(held) ? loom_fail(LOOM_E_IO, "nobody let go") : LOOM_OK;
}

static loom_status linger(void *argument)
{
    (void)argument;
    usleep(20000);
    return LOOM_OK;
}

/* What a stream has left when it is closed is over before the caller goes on and lets go of the memory; the message of what went wrong before stays. */
static void a_closed_stream_touches_no_memory(void **state)
{
    fixture f = setup();
    float *memory = new_floats(f.device), host[COUNT] = {1}, back[COUNT] = {0};

    (void)state;
    assert_ok(loom_stream_run(f.b, linger, NULL));
    assert_ok(loom_stream_follow(f.a, f.b));
    assert_ok(loom_stream_copy(f.a, memory, host, sizeof host));
    assert_ok(loom_stream_copy(f.a, back, memory, sizeof back));
    loom_fail(LOOM_E_INVALID, "what went wrong");
    loom_stream_close(f.a);
    assert_true(back[0] == 1);
    assert_string_equal(loom_last_error(), "what went wrong");
    loom_free(f.device, memory);
    loom_stream_close(f.b);
    loom_device_close(f.device);
}

/* Pinned memory that a copy is still to be made from can be freed, and whoever frees it does not wait. */
static void pinned_memory_outlives_what_is_queued(void **state)
{
    fixture f = setup();
    float *memory = new_floats(f.device), *host, *back;
    _Atomic int held = 1;

    (void)state;
    assert_ok(loom_alloc_host(f.device, COUNT * sizeof *host, (void **)&host));
    assert_ok(loom_alloc_host(f.device, COUNT * sizeof *host, (void **)&back));
    host[0] = 1;
    assert_ok(loom_stream_run(f.a, hold, &held));
    assert_ok(loom_stream_copy(f.a, memory, host, COUNT * sizeof *host));
    assert_ok(loom_stream_copy(f.a, back, memory, COUNT * sizeof *host));
    loom_free_host(f.device, host);
    atomic_store(&held, 0); /* had it waited, it would wait still */
    assert_ok(loom_stream_wait(f.a));
    assert_true(back[0] == 1);
    loom_free_host(f.device, back);
    loom_free(f.device, memory);
    teardown(f);
}

static loom_status count_up(void *argument)
{
    atomic_fetch_add((_Atomic int *)argument, 1);
    return LOOM_OK;
}

static loom_status fail_on_purpose(void *argument)
{
    return loom_fail(LOOM_E_IO, "%s", (const char *)argument);
}

static void host_work_runs_in_order_and_its_failure_stays(void **state)
{
    fixture f = setup();
    _Atomic int count = 0;

    (void)state;
    assert_ok(loom_stream_run(f.a, count_up, &count));
    assert_ok(loom_stream_wait(f.a));
    assert_int_equal(count, 1);
    assert_ok(loom_stream_run(f.a, fail_on_purpose, "on purpose"));
    loom_stream_run(f.a, count_up, &count);
    assert_int_equal(loom_stream_wait(f.a), LOOM_E_IO);
    assert_string_equal(loom_last_error(), "on purpose");
    assert_int_equal(count, 1);
    assert_int_equal(loom_stream_run(f.a, count_up, &count), LOOM_E_IO);
    assert_int_equal(loom_stream_query(f.a), LOOM_E_IO);
    assert_ok(loom_stream_wait(f.b));
    teardown(f);
}

static void a_failure_is_named_in_cudas_words(void **state)
{
    fixture f = setup();
    void *memory;

    (void)state;
    assert_int_equal(loom_alloc(f.device, (size_t)1 << 50, LOOM_MEM_WEIGHTS, &memory), LOOM_E_MEMORY);
    assert_non_null(strstr(loom_last_error(), "cudaMallocFromPoolAsync: out of memory (cudaErrorMemoryAllocation)"));
    assert_ok(loom_alloc(f.device, 64, LOOM_MEM_WEIGHTS, &memory)); /* and the next call is fine */
    loom_free(f.device, memory);
    teardown(f);
}

static void a_device_that_is_not_there_is_unsupported(void **state)
{
    loom_device *device;

    (void)state;
    assert_int_equal(loom_device_open(LOOM_CUDA, &(loom_device_config){.index = 8}, &device), LOOM_E_UNSUPPORTED);
    assert_non_null(strstr(loom_last_error(), "CUDA device 8: this process sees 8 devices"));
}

static void a_device_that_is_the_only_one_is_everyones(void **state)
{
    loom_device_config third = {.index = 2, .or_only = true};
    loom_device *device;

    (void)state;
    setenv("LOOM_DOUBLE_DEVICES", "1", 1);
    assert_ok(loom_device_open(LOOM_CUDA, &third, &device));
    loom_device_close(device);
    third.or_only = false;
    assert_int_equal(loom_device_open(LOOM_CUDA, &third, &device), LOOM_E_UNSUPPORTED);
    setenv("LOOM_DOUBLE_DEVICES", "2", 1);
    third.or_only = true;
    assert_int_equal(loom_device_open(LOOM_CUDA, &third, &device), LOOM_E_UNSUPPORTED);
    unsetenv("LOOM_DOUBLE_DEVICES");
}

static void the_driver_is_told_how_to_start(void **state)
{
    (void)state;
    teardown(setup());
    assert_string_equal(getenv("CUDA_MODULE_LOADING"), "EAGER");
    assert_string_equal(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

static void pinned_memory_is_the_hosts(void **state)
{
    fixture f = setup();
    float *host, *memory = new_floats(f.device);

    (void)state;
    assert_ok(loom_alloc_host(f.device, COUNT * sizeof *host, (void **)&host));
    for (int i = 0; i < COUNT; i++)
        assert_true(host[i] == 0);
    host[5] = 5;
    assert_ok(loom_stream_copy(f.a, memory, host, COUNT * sizeof *host));
    assert_ok(loom_stream_wait(f.a));
    host[5] = 0;
    assert_ok(loom_stream_copy(f.a, host, memory, COUNT * sizeof *host));
    assert_ok(loom_stream_wait(f.a));
    assert_true(host[5] == 5);
    loom_free_host(f.device, host);
    loom_free(f.device, memory);
    teardown(f);
}

/* In a process of its own, because it ends with a fault: that is what such a program does on a GPU, too. */
static void the_host_cannot_read_device_memory(void **state)
{
    int status;
    pid_t child = fork();

    (void)state;
    if (child == 0) {
        fixture f;
        volatile float *memory;

        signal(SIGSEGV, SIG_DFL);
        f = setup();
        memory = new_floats(f.device);
        usleep(20000);
        _exit(memory[0] == 0 ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) > 1); /* a sanitizer ends it in its own way */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_cannot_read_device_memory), /* forks: before the device's thread is there */
        cmocka_unit_test(memory_is_zeroed_and_in_the_ledger),
        cmocka_unit_test(work_of_a_stream_runs_in_order),
        cmocka_unit_test(an_event_orders_two_streams),
        cmocka_unit_test(a_missing_wait_shows),
        cmocka_unit_test(following_a_stream_is_an_event_and_a_wait),
        cmocka_unit_test(a_free_comes_after_what_is_queued),
        cmocka_unit_test(a_closed_stream_touches_no_memory),
        cmocka_unit_test(pinned_memory_outlives_what_is_queued),
        cmocka_unit_test(host_work_runs_in_order_and_its_failure_stays),
        cmocka_unit_test(a_failure_is_named_in_cudas_words),
        cmocka_unit_test(a_device_that_is_not_there_is_unsupported),
        cmocka_unit_test(a_device_that_is_the_only_one_is_everyones), cmocka_unit_test(the_driver_is_told_how_to_start),
        cmocka_unit_test(pinned_memory_is_the_hosts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
