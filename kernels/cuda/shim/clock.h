/* The device's time where there is no device (alone.c): what takes how long is said by a test. */
#ifndef LOOM_SHIM_CLOCK_H
#define LOOM_SHIM_CLOCK_H

#include <stdbool.h>

typedef struct loom_shim_clock_state {
    float takes_ms[2]; /* between the events of one pair and the next, in turn */
    bool pending;      /* the device has passed no event yet */
    bool capturing;
    float now_ms;
    int events;
} loom_shim_clock_state;
extern loom_shim_clock_state loom_shim_clock;

#endif
