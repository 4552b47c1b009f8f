/* Monotonic time. */
#ifndef LOOM_CORE_CLOCK_H
#define LOOM_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t loom_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Seconds since some fixed point; only differences mean anything. The same point for all processes of a host. */
static inline double loom_now_s(void)
{
    return (double)loom_now_ns() * 1e-9;
}

/* May return early when a signal comes: callers look at the clock again. */
static inline void loom_sleep_s(double seconds)
{
    struct timespec pause = {.tv_sec = (time_t)seconds};

    if (!(seconds > 0))
        return;
    pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
    nanosleep(&pause, NULL);
}

#endif
