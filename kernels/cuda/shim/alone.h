/* The device's size and time where there is no device (alone.c): said by a test. */
#ifndef LOOM_SHIM_ALONE_H
#define LOOM_SHIM_ALONE_H

#include <stdbool.h>

typedef struct loom_shim_clock_state {
    float takes_ms[2]; /* between the events of one pair and the next, in turn */
    bool pending;      /* the device has passed no event yet */
    bool capturing;
    float now_ms;
    int events;
} loom_shim_clock_state;
extern loom_shim_clock_state loom_shim_clock;

extern int loom_shim_shared_max; /* bytes that a block may ask for; an A100's */

#endif
