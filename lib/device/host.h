/* What this process may use of its host: not what the machine has, but what affinity and cgroup leave of it. */
#ifndef LOOM_DEVICE_HOST_H
#define LOOM_DEVICE_HOST_H

#include <stdbool.h>
#include <stdint.h>

int loom_host_cores(void); /* at least 1: what affinity and the cgroup's quota leave */

/* The same two limits apart, for those who have to compare them between processes. */
typedef struct loom_core_set {
    uint64_t words[16]; /* bit c of the whole: this process may run on core c */
    int32_t quota;      /* cores' worth of time that the cgroup grants; INT32_MAX: no limit */
} loom_core_set;
void loom_host_core_set(loom_core_set *set);
/* Whether every one of `ranks` processes with these sets can have a core to itself, as far as process `mine` sees: those that may run on
 * its cores are no more than these cores, and all of them no more than the quota. */
bool loom_host_fits(const loom_core_set *sets, int ranks, int mine);

/* Equal in processes of one machine since its last start; with `same_processes` only in those that also see each other in /proc: two
 * containers that do not count as two hosts. */
uint64_t loom_host_identity(bool same_processes);

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
