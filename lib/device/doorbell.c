/* Sleeping and waking across processes: a futex on shared memory. */
#include "device/doorbell.h"

#include <linux/futex.h>
#include <limits.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void loom_doorbell_wake(loom_doorbell *bell)
{
    atomic_fetch_add(&bell->rings, 1);
    syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void loom_doorbell_sleep(loom_doorbell *bell, uint32_t rings, double at_most_s)
{
    struct timespec time = {(time_t)at_most_s, (long)((at_most_s - (double)(time_t)at_most_s) * 1e9)};

    syscall(SYS_futex, &bell->rings, FUTEX_WAIT, rings, &time, NULL, 0);
}
