/* A world that broke is given up, and the same processes open another one over the same store, several times in a row. The arguments are the transport, and
 * "cuda" where it is one of GPUs. */
#include "check.h"

#include <dirent.h>
#include <unistd.h>

#include "comm/suite.h"
#include "core/clock.h"
#include "device/backend.h"
#include "harness/table.h"

static const double SOON_S = 0.5; /* the deadline of worlds that are going to break */

static const char *transport;
static loom_device_kind kind;
static table *store;

typedef struct place {
    loom_device *device;
    loom_bootstrap store;
    int64_t failures; /* that all ranks have told so far */
} place;

static place place_of(const loom_comm *outer)
{
    return (place){loom_comm_device(outer), table_bootstrap(store, loom_comm_rank(outer), loom_comm_size(outer)), 0};
}

static loom_status try_open(const place *here, double deadline_s, loom_comm **world)
{
    return loom_comm_open_bootstrap(&here->store, here->device, &(loom_comm_config){.deadline_s = deadline_s, .transport = transport}, world);
}

/* On a busy machine not all ranks come within a short deadline; then they come again, as a program would. */
static loom_comm *open_world(const place *here, double deadline_s)
{
    loom_comm *world = NULL;
    loom_status status = LOOM_E_PEER;

    for (int i = 0; i < 100 && status == LOOM_E_PEER; i++)
        status = try_open(here, deadline_s, &world);
    assert_ok(status);
    return world;
}

/* --- ways to break a world ----------------------------------------------------------------------------------------------------- */

typedef void break_fn(place *here, loom_comm *world, loom_stream *stream, int odd_one);

/* The odd one comes when all others have seen their deadline pass; those tell it. */
static void await_failures(place *here, int others)
{
    int64_t told = 0;

    here->failures += others;
    while (told < here->failures) {
        loom_sleep_s(0.005);
        assert_ok(here->store.add(store, "test/failures", 0, &told));
    }
}

static void tell_failure(place *here, int others)
{
    int64_t told;

    assert_ok(here->store.add(store, "test/failures", 1, &told));
    await_failures(here, others);
}

static loom_status sum(loom_comm *world, suite_pair pair, size_t count, loom_stream *stream)
{
    loom_status status = loom_all_reduce(world, pair.device, pair.device, count, LOOM_F32, LOOM_SUM, stream);

    return status < 0 ? status : loom_stream_wait(stream);
}

static void one_skips_a_call(place *here, loom_comm *world, loom_stream *stream, int odd_one)
{
    suite_pair pair = suite_two_sided(world, 4096);
    int others = loom_comm_size(world) - 1;
    loom_status status;

    if (loom_comm_rank(world) != odd_one) {
        assert_int_equal(sum(world, pair, 1024, stream), LOOM_E_PEER);
        tell_failure(here, others);
    } else {
        await_failures(here, others);
        status = sum(world, pair, 1024, stream); /* may find all that it needs: the others had called it */
        assert_int_equal(status < 0 ? status : sum(world, pair, 1024, stream), LOOM_E_PEER);
    }
    assert_int_equal(loom_all_reduce(world, pair.device, pair.device, 1024, LOOM_F32, LOOM_SUM, stream), LOOM_E_PEER); /* it stays broken */
    suite_drop_sides(world, pair);
}

static void one_makes_no_group(place *here, loom_comm *world, loom_stream *stream, int odd_one)
{
    loom_comm *half = NULL;

    (void)stream;
    if (loom_comm_rank(world) == odd_one) {
        await_failures(here, loom_comm_size(world) - 1);
        return;
    }
    assert_int_equal(loom_comm_split(world, 0, 0, "half", &half), LOOM_E_PEER);
    assert_null(half);
    tell_failure(here, loom_comm_size(world) - 1);
}

static void counts_differ(place *here, loom_comm *world, loom_stream *stream, int odd_one)
{
    suite_pair pair = suite_two_sided(world, 4096);

    (void)here;
    assert_int_equal(sum(world, pair, loom_comm_rank(world) == odd_one ? 512 : 1024, stream), kind == LOOM_CUDA ? LOOM_E_INVALID : LOOM_E_MISMATCH);
    suite_drop_sides(world, pair);
}

/* With groups open and messages under way in all directions. */
static void one_leaves_in_the_middle(place *here, loom_comm *world, loom_stream *stream, int odd_one)
{
    int rank = loom_comm_rank(world), size = loom_comm_size(world);
    suite_pair pair = suite_two_sided(world, 1 << 20);
    loom_status status = LOOM_OK;
    loom_comm *all;

    (void)here;
    assert_ok(loom_comm_split(world, 0, 0, "all", &all));
    for (int i = 0; status >= 0 && (rank != odd_one || i < 3); i++) {
        loom_group_begin(all);
        loom_send(all, pair.device, 1 << 16, LOOM_F32, (rank + 1) % size, 0, stream);
        loom_recv(all, (float *)pair.device + (1 << 17), 1 << 16, LOOM_F32, (rank + size - 1) % size, 0, stream);
        loom_group_end(all, stream);
        status = sum(all, pair, 1 << 16, stream);
    }
    assert_int_equal(status, rank == odd_one ? LOOM_OK : LOOM_E_PEER);
    loom_comm_free(all);
    suite_drop_sides(world, pair);
}

/* The world is sound, and one is late for another: the others name it, and meet it when they come again. */
static void one_is_late_for_the_next(place *here, loom_comm *world, loom_stream *stream, int odd_one)
{
    loom_comm *next = NULL;
    char name[48];

    (void)stream;
    if (loom_comm_rank(world) == odd_one) {
        await_failures(here, loom_comm_size(world) - 1);
    } else {
        snprintf(name, sizeof name, "rank %d did not come within %g s", odd_one, SOON_S);
        assert_int_equal(try_open(here, SOON_S, &next), LOOM_E_PEER);
        assert_in_message(name);
        assert_null(next);
        tell_failure(here, loom_comm_size(world) - 1);
    }
    loom_comm_free(open_world(here, SOON_S));
}

/* --- nothing left ------------------------------------------------------------------------------------------------------------------ */

typedef struct belongings {
    int descriptors, threads, mappings;
    size_t heap; /* where a large block would lie: behind whatever was not given back */
} belongings;

static int entries_of(const char *folder)
{
    DIR *directory = opendir(folder);
    int count = 0;

    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static int shared_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "/memfd:") && strstr(line, " 00000000 "); /* of each the piece that it begins with */
    fclose(maps);
    return count;
}

static belongings look_around(loom_device *device)
{
    belongings b = {entries_of("/proc/self/fd"), entries_of("/proc/self/task"), shared_mappings(), 0};
    void *block;

    if (kind == LOOM_CUDA)
        return b;
    assert_ok(loom_device_take(device, 1 << 20, false, &block));
    b.heap = (size_t)((char *)block - loom_device_segment(device)->base);
    loom_device_give(device, block);
    return b;
}

static void expect_no_more(belongings before, belongings now)
{
    assert_int_equal(now.descriptors, before.descriptors);
    assert_int_equal(now.threads, before.threads);
    assert_int_equal(now.mappings, before.mappings);
    assert_true(now.heap <= before.heap);
}

/* --- breaking and rebuilding ---------------------------------------------------------------------------------------------------------- */

static void break_one(place *here, break_fn *fn, double deadline_s, int odd_one)
{
    loom_comm *world = open_world(here, deadline_s);
    loom_stream *stream;

    assert_ok(loom_stream_open(here->device, LOOM_STREAM_INLINE, "broken", &stream));
    fn(here, world, stream, odd_one);
    loom_stream_close(stream);
    loom_comm_free(world);
}

/* A new one, which works. What this rank has is looked at while it is open: all ranks have given up their old ones then. */
static belongings rebuild(const place *here, rank_fn *work)
{
    loom_comm *world = open_world(here, 60);
    loom_stream *stream;
    belongings found = look_around(here->device);

    assert_ok(loom_stream_open(here->device, LOOM_STREAM_INLINE, "rebuilt", &stream));
    work(world, stream);
    loom_stream_close(stream);
    loom_comm_free(world);
    return found;
}

static void little_work(loom_comm *world, loom_stream *stream)
{
    suite_pair pair = suite_two_sided(world, 100 * sizeof(float));
    float *values = (float *)(void *)pair.host;
    int size = loom_comm_size(world);

    for (int i = 0; i < 100; i++)
        values[i] = (float)(i + loom_comm_rank(world));
    suite_push(pair, stream);
    assert_ok(loom_all_reduce(world, pair.device, pair.device, 100, LOOM_F32, LOOM_SUM, stream));
    suite_pull(pair, stream);
    for (int i = 0; i < 100; i++)
        assert_true(values[i] == (float)(i * size + size * (size - 1) / 2));
    suite_drop_sides(world, pair);
}

static void again_and_again(loom_comm *outer, loom_stream *stream)
{
    place here = place_of(outer);
    int size = loom_comm_size(outer);
    belongings before;

    (void)stream;
    break_one(&here, one_is_late_for_the_next, SOON_S, size - 1);
    break_one(&here, one_is_late_for_the_next, SOON_S, 0);
    break_one(&here, one_skips_a_call, SOON_S, 0);
    rebuild(&here, little_work);
    before = rebuild(&here, little_work);
    for (int round = 0; round < 2; round++) {
        break_one(&here, counts_differ, 60, round);
        rebuild(&here, little_work);
        break_one(&here, one_skips_a_call, SOON_S, 1 - round);
        break_one(&here, one_leaves_in_the_middle, SOON_S, size - 1 - round);
        rebuild(&here, little_work);
        break_one(&here, one_makes_no_group, SOON_S, round);
    }
    expect_no_more(before, rebuild(&here, suite_on_device));
}

static void run(int size)
{
    rank_options options = {.transport = transport, .device = kind, .deadline_s = 120, .comm_deadline_s = 60};

    assert_non_null(store = table_open());
    on_ranks_with(&options, size, again_and_again);
    table_close(store);
}

static void two_ranks_rebuild_their_world(void **state)
{
    (void)state;
    run(2);
}

static void four_ranks_rebuild_their_world(void **state)
{
    (void)state;
    run(4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_rebuild_their_world),
        cmocka_unit_test(four_ranks_rebuild_their_world),
    };

    transport = argc > 1 ? argv[1] : "shm";
    kind = argc > 2 && strcmp(argv[2], "cuda") == 0 ? LOOM_CUDA : LOOM_CPU;
    return cmocka_run_group_tests_name(transport, tests, NULL, NULL);
}
