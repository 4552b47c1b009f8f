/* The suite on every transport. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/suite.h"

static void whole(loom_comm *world, loom_stream *stream)
{
    suite_collectives(world, stream);
    suite_p2p(world, stream);
    suite_groups(world, stream);
}

static void run(const char *transport, bool heap, const int *sizes)
{
    rank_options options = {.transport = transport, .deadline_s = 120};

    suite_use_heap(heap);
    for (; *sizes; sizes++)
        on_ranks_with(&options, *sizes, whole);
}

static void shm_with_buffers_of_the_heap(void **state)
{
    (void)state;
    run("shm", true, (const int[]){1, 2, 4, 5, 0});
}

static void shm_with_any_buffers(void **state)
{
    (void)state;
    run("shm", false, (const int[]){2, 3, 0});
}

/* One rank's buffers in the heap, the other's not: both find out together and take the same way. */
static void mixed(loom_comm *world, loom_stream *stream)
{
    suite_use_heap(loom_comm_rank(world) % 2);
    whole(world, stream);
}

static void shm_with_mixed_buffers(void **state)
{
    (void)state;
    on_ranks(3, mixed);
}

static void tcp(void **state)
{
    (void)state;
    run("tcp", true, (const int[]){1, 2, 4, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shm_with_buffers_of_the_heap),
        cmocka_unit_test(shm_with_any_buffers),
        cmocka_unit_test(shm_with_mixed_buffers),
        cmocka_unit_test(tcp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
