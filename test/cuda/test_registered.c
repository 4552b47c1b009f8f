/* Memory that travels, registered with the communicators that use it: on the double, which compares on every call what ranks give, and ends a process that frees
 * what is still registered, closes a communicator that still knows memory, or leaves memory of NCCL's behind. */
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

#include "comm/values.h"
#include "harness/on_ranks.h"

static const rank_options on_cuda = {.device = LOOM_CUDA, .deadline_s = 100, .comm_deadline_s = 60};

enum { COUNT = 30000 };

static void *block_of(loom_comm *comm, size_t count)
{
    void *memory;

    assert_ok(loom_alloc_for_comm(loom_comm_device(comm), count * sizeof(float), LOOM_MEM_GRADIENTS, &memory));
    return memory;
}

/* What RANKLOOM_LOG=info says of it. */
static void expect_registered(loom_comm *comm, void *memory, bool symmetric, const char *words)
{
    char said[4096] = "";
    int kept = dup(STDERR_FILENO), file = (int)memfd_create("said", MFD_CLOEXEC);
    loom_status status;

    setenv("RANKLOOM_LOG", "info", 1);
    dup2(file, STDERR_FILENO);
    status = loom_comm_register(comm, memory, symmetric);
    dup2(kept, STDERR_FILENO);
    unsetenv("RANKLOOM_LOG");
    assert_ok(status);
    assert_true(pread(file, said, sizeof said - 1, 0) >= 0);
    if (!strstr(said, words))
        fail_msg("\"%s\" is not in what was said: %s", words, said);
    close(file);
    close(kept);
}

/* A sum in place over `count` elements at `at`: the result is checked. */
static void sum_once(loom_comm *comm, void *at, size_t count, loom_stream *stream)
{
    float *host;

    assert_ok(loom_alloc_host(loom_comm_device(comm), count * sizeof *host, (void **)&host));
    value_fill(host, loom_comm_rank(comm), 0, count, LOOM_F32);
    assert_ok(loom_stream_copy(stream, at, host, count * sizeof *host));
    assert_ok(loom_all_reduce(comm, at, at, count, LOOM_F32, LOOM_SUM, stream));
    assert_ok(loom_stream_copy(stream, host, at, count * sizeof *host));
    assert_ok(loom_stream_wait(stream));
    for (size_t i = 0; i < count; i++)
        assert_true((double)host[i] == value_reduced(loom_comm_size(comm), i, LOOM_F32, LOOM_SUM));
    loom_free_host(loom_comm_device(comm), host);
}

static void alike(loom_comm *world, loom_stream *stream)
{
    float *a = block_of(world, COUNT), *b = block_of(world, COUNT);
    loom_ledger ledger;

    loom_device_ledger(loom_comm_device(world), &ledger);
    assert_true(ledger.live[LOOM_MEM_GRADIENTS] >= 2 * COUNT * sizeof(float));
    expect_registered(world, a, true, "a symmetric window");
    expect_registered(world, b, false, "a window");
    sum_once(world, a, COUNT, stream);
    sum_once(world, a + 1000, 77, stream);
    sum_once(world, b, COUNT, stream);
    assert_ok(loom_reduce_scatter(world, b, b + loom_comm_rank(world) * 100, 100, LOOM_F32, LOOM_SUM, stream)); /* in place: at another one on every rank */
    assert_ok(loom_stream_wait(stream));
    loom_free(loom_comm_device(world), a);
    loom_free(loom_comm_device(world), b);
}

/* Of different sizes on the ranks, and none on one of them. */
static void unlike(loom_comm *world, loom_stream *stream)
{
    int rank = loom_comm_rank(world);
    float *memory = block_of(world, COUNT + (size_t)rank * 500), *some = rank ? block_of(world, 100) : NULL;

    expect_registered(world, memory, true, "registered");
    expect_registered(world, some, false, "registered");
    sum_once(world, memory, COUNT, stream);
    loom_free(loom_comm_device(world), memory);
    loom_free(loom_comm_device(world), some);
}

/* If one rank cannot, none does: NCCL must not meet memory that it knows on some ranks only. */
static void one_rank_has_other_memory(loom_comm *world, loom_stream *stream)
{
    void *memory;

    if (loom_comm_rank(world) == 1)
        assert_ok(loom_alloc(loom_comm_device(world), COUNT * sizeof(float), LOOM_MEM_GRADIENTS, &memory));
    else
        memory = block_of(world, COUNT);
    expect_registered(world, memory, true, "not registered");
    sum_once(world, memory, COUNT, stream);
    loom_free(loom_comm_device(world), memory);
}

static void one_rank_is_refused(loom_comm *world, loom_stream *stream)
{
    size_t count = COUNT + (loom_comm_rank(world) == 1 ? 64 : 0); /* no window, so each registers by itself */
    float *memory = block_of(world, count);

    if (loom_comm_rank(world) == 1)
        setenv("LOOM_DOUBLE_FAIL", "ncclCommRegister:1", 1);
    expect_registered(world, memory, false, "not registered");
    sum_once(world, memory, COUNT, stream);
    loom_free(loom_comm_device(world), memory);
}

/* What NCCL refuses after the call has returned stays as the communicator's error, so it is no hint any more that others could do without. */
static void one_rank_is_refused_late(loom_comm *world, loom_stream *stream)
{
    float *memory = block_of(world, COUNT);

    (void)stream;
    if (loom_comm_rank(world) == 1)
        setenv("LOOM_DOUBLE_FAIL", "window:1", 1);
    assert_true(loom_comm_register(world, memory, true) < 0);
    if (loom_comm_rank(world) == 1)
        assert_in_message("registering a window: unhandled cuda error: there is no address space for a window");
    loom_free(loom_comm_device(world), memory);
}

static void one_rank_gets_no_memory(loom_comm *world, loom_stream *stream)
{
    float *memory;

    if (loom_comm_rank(world) == 0)
        setenv("LOOM_DOUBLE_FAIL", "ncclMemAlloc:1", 1);
    memory = block_of(world, COUNT);
    expect_registered(world, memory, true, "not registered");
    sum_once(world, memory, COUNT, stream);
    loom_free(loom_comm_device(world), memory);
}

/* The block is freed while calls on it are queued, on a stream that nobody has waited for; then the comm goes. And the other way round. */
static void either_goes_first(loom_comm *world, loom_stream *stream)
{
    float *a = block_of(world, COUNT), *b = block_of(world, COUNT), *result;
    loom_device *device = loom_comm_device(world);
    loom_comm *half;

    assert_ok(loom_alloc_host(device, COUNT * sizeof *result, (void **)&result));
    assert_ok(loom_comm_split(world, 0, 0, "half", &half));
    assert_ok(loom_comm_register(half, a, true));
    assert_ok(loom_comm_register(half, b, true));
    assert_ok(loom_comm_register(world, b, true));
    for (int i = 0; i < COUNT; i++)
        result[i] = 1;
    assert_ok(loom_stream_copy(stream, a, result, COUNT * sizeof *result));
    assert_ok(loom_all_reduce(half, a, a, COUNT, LOOM_F32, LOOM_SUM, stream));
    assert_ok(loom_stream_copy(stream, result, a, COUNT * sizeof *result));
    loom_free(device, a);
    a = block_of(world, COUNT); /* may not be the old one, which is in use */
    assert_ok(loom_stream_wait(stream));
    for (int i = 0; i < COUNT; i++)
        assert_true(result[i] == (float)loom_comm_size(half));
    sum_once(half, b, COUNT, stream);
    loom_comm_free(half);
    sum_once(world, b, COUNT, stream);
    loom_free(device, b);
    loom_free(device, a);
    loom_free_host(device, result);
}

/* Messages between connected pairs have communicators of their own, and both ends are registered or neither. */
static void messages(loom_comm *world, loom_stream *stream)
{
    int peer = loom_comm_rank(world) ^ 1;
    float *out = block_of(world, COUNT), *in = block_of(world, COUNT), *host;
    loom_stream *receiving;

    assert_ok(loom_alloc_host(loom_comm_device(world), COUNT * sizeof *host, (void **)&host));
    assert_ok(loom_stream_open(loom_comm_device(world), LOOM_STREAM_INLINE, "recv", &receiving));
    assert_ok(loom_comm_connect(world, &peer, 1));
    expect_registered(world, out, false, "a window");
    expect_registered(world, in, false, "a window");
    value_fill(host, loom_comm_rank(world), 0, COUNT, LOOM_F32);
    assert_ok(loom_recv(world, in, COUNT, LOOM_F32, peer, 0, receiving));
    assert_ok(loom_stream_copy(stream, out, host, COUNT * sizeof *host));
    assert_ok(loom_send(world, out, COUNT, LOOM_F32, peer, 0, stream));
    assert_ok(loom_stream_wait(stream));
    assert_ok(loom_stream_copy(receiving, host, in, COUNT * sizeof *host));
    assert_ok(loom_stream_wait(receiving));
    value_expect(host, peer, 0, COUNT, LOOM_F32);
    loom_stream_close(receiving);
    loom_free(loom_comm_device(world), out);
    loom_free(loom_comm_device(world), in);
    loom_free_host(loom_comm_device(world), host);
}

static void turned_off(loom_comm *world, loom_stream *stream)
{
    float *memory = block_of(world, COUNT);

    expect_registered(world, memory, true, "not registered");
    sum_once(world, memory, COUNT, stream);
    loom_free(loom_comm_device(world), memory);
}

static void blocks_that_are_alike_become_windows(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, alike);
    on_ranks_with(&on_cuda, 4, alike);
}

static void others_are_registered_on_each_rank(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 3, unlike);
}

static void all_ranks_register_or_none(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 3, one_rank_has_other_memory);
    on_ranks_with(&on_cuda, 3, one_rank_is_refused);
    on_ranks_with(&on_cuda, 2, one_rank_gets_no_memory);
}

static void a_window_that_fails_late_is_a_failure(void **state)
{
    rank_options options = on_cuda;

    (void)state;
    options.comm_deadline_s = 4;
    on_ranks_with(&options, 2, one_rank_is_refused_late);
}

static void memory_and_comm_go_in_any_order(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, either_goes_first);
}

static void lanes_know_the_memory_too(void **state)
{
    (void)state;
    on_ranks_with(&on_cuda, 2, messages);
}

static void a_setting_turns_it_off(void **state)
{
    (void)state;
    setenv("RANKLOOM_REGISTER", "false", 1);
    on_ranks_with(&on_cuda, 2, turned_off);
    unsetenv("RANKLOOM_REGISTER");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_are_alike_become_windows), cmocka_unit_test(others_are_registered_on_each_rank),
        cmocka_unit_test(all_ranks_register_or_none),           cmocka_unit_test(memory_and_comm_go_in_any_order),
        cmocka_unit_test(a_window_that_fails_late_is_a_failure),
        cmocka_unit_test(lanes_know_the_memory_too),            cmocka_unit_test(a_setting_turns_it_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
