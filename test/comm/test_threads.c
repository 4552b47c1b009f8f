/* The suite with ranks as threads of one process, which is what a thread sanitizer can see. */
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

static void shm_with_buffers_of_the_heap(void **state)
{
    rank_options options = {.transport = "shm", .deadline_s = 170};

    (void)state;
    suite_use_heap(true);
    on_threads_with(&options, 3, whole);
}

static void shm_with_any_buffers(void **state)
{
    rank_options options = {.transport = "shm", .deadline_s = 170};

    (void)state;
    suite_use_heap(false);
    on_threads_with(&options, 2, whole);
}

static void tcp(void **state)
{
    rank_options options = {.transport = "tcp", .deadline_s = 170};

    (void)state;
    suite_use_heap(true);
    on_threads_with(&options, 3, whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shm_with_buffers_of_the_heap), cmocka_unit_test(shm_with_any_buffers),
                                       cmocka_unit_test(tcp)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
