/* Doubles that have to be near each other; NaN never is. */
#ifndef TEST_CLI_NEAR_H
#define TEST_CLI_NEAR_H

#include "check.h"

#include <math.h>

#define assert_near(got, want, within)                                                                                                     \
    do {                                                                                                                                   \
        double near_got_ = (got), near_want_ = (want);                                                                                     \
        if (!(fabs(near_got_ - near_want_) <= (within)))                                                                                   \
            fail_msg("%s is %.17g, not %.17g within %g", #got, near_got_, near_want_, (double)(within));                                   \
    } while (0)

#endif
