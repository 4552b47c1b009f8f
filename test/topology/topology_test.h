/* What tests of the topology share. */
#ifndef TOPOLOGY_TEST_H
#define TOPOLOGY_TEST_H

#include "check.h"

#include <rankloom/topology.h>

static inline loom_topology *topology_of(const char *yaml)
{
    loom_topology *topology = NULL;
    assert_ok(loom_topology_parse("test.yaml", yaml, strlen(yaml), &topology));
    return topology;
}

/* A file of test/data. */
static inline loom_topology *topology_file(const char *name)
{
    loom_topology *topology = NULL;
    assert_ok(loom_topology_load(test_data(name), &topology));
    return topology;
}

/* The text is refused, and the message holds every one of the words. */
#define REFUSED(yaml, ...)                                                                                                                 \
    do {                                                                                                                                   \
        loom_topology *refused_ = NULL;                                                                                                    \
        assert_refused(loom_topology_parse("test.yaml", yaml, strlen(yaml), &refused_), LOOM_E_INVALID, __VA_ARGS__);                      \
        assert_null(refused_);                                                                                                             \
    } while (0)

#define assert_figure(figure, expected)                                                                                                    \
    do {                                                                                                                                   \
        loom_figure figure_ = (figure);                                                                                                    \
        double expected_ = (expected);                                                                                                     \
        assert_true(loom_known(figure_));                                                                                                  \
        if (!(figure_.value >= expected_ * (1 - 1e-9) && figure_.value <= expected_ * (1 + 1e-9)))                                         \
            fail_msg("%s is %.12g, expected %.12g", #figure, figure_.value, expected_);                                                    \
    } while (0)

#endif
