/* What this process may use of its host: not what the machine has, but what affinity and cgroup leave of it. */
#ifndef LOOM_DEVICE_HOST_H
#define LOOM_DEVICE_HOST_H

#include <stdint.h>

int loom_host_cores(void);                /* at least 1 */
uint64_t loom_host_memory_bytes(void);    /* of the machine */
uint64_t loom_host_available_bytes(void); /* that can still be allocated now */

static inline void loom_cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
