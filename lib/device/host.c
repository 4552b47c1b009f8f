/* Cores and memory that this process may use. */
#include "device/host.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "core/random.h"

/* One line of a small file of /proc or /sys. */
static bool read_line(const char *path, char *line, int bytes)
{
    FILE *file = fopen(path, "re");
    bool got = file && fgets(line, bytes, file);

    if (file)
        fclose(file);
    return got;
}

/* Path of our cgroup below the mount of the unified hierarchy, or false on a host without one. */
static bool find_cgroup(char *path, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/self/cgroup", "re");
    bool found = false;

    while (file && !found && fgets(line, sizeof line, file))
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            found = snprintf(path, bytes, "/sys/fs/cgroup%s", line + 3) < (int)bytes;
        }
    if (file)
        fclose(file);
    return found;
}

/* Calls `visit` for `name` in our cgroup and in every one above it: the tightest limit holds. */
static void visit_cgroups(const char *name, void (*visit)(const char *folder, const char *path, void *result), void *result)
{
    char folder[640], path[768];

    if (!find_cgroup(folder, sizeof folder))
        return;
    while (strlen(folder) >= strlen("/sys/fs/cgroup")) {
        char *slash;

        snprintf(path, sizeof path, "%s/%s", folder, name);
        visit(folder, path, result);
        slash = strrchr(folder, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

static void tighten_cores(const char *folder, const char *path, void *result)
{
    int *cores = result;
    char line[64];
    long quota, period;

    (void)folder;
    if (read_line(path, line, sizeof line) && sscanf(line, "%ld %ld", &quota, &period) == 2 && quota > 0 && period > 0) {
        int allowed = (int)((quota + period - 1) / period);
        if (allowed < *cores)
            *cores = allowed;
    }
}

/* Cores' worth of time that the cgroup grants, INT_MAX without a limit. */
static int quota_cores(void)
{
    int cores = INT_MAX;
    char line[64];
    long quota, period;

    visit_cgroups("cpu.max", tighten_cores, &cores);
    if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof line) && sscanf(line, "%ld", &quota) == 1 && quota > 0 &&
        read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", line, sizeof line) && sscanf(line, "%ld", &period) == 1 && period > 0 &&
        (quota + period - 1) / period < cores)
        cores = (int)((quota + period - 1) / period); /* the older hierarchy */
    return cores;
}

void loom_host_core_set(loom_core_set *set)
{
    enum { BITS = 64 * sizeof set->words / sizeof *set->words };
    cpu_set_t cores;

    *set = (loom_core_set){.quota = quota_cores()};
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) {
        set->words[0] = 1;
        return;
    }
    for (int core = 0; core < CPU_SETSIZE && core < (int)BITS; core++)
        if (CPU_ISSET(core, &cores))
            set->words[core / 64] |= UINT64_C(1) << (core % 64);
}

static int count_cores(const loom_core_set *set)
{
    int count = 0;

    for (size_t w = 0; w < sizeof set->words / sizeof *set->words; w++)
        count += __builtin_popcountll(set->words[w]);
    return count;
}

static bool overlap(const loom_core_set *a, const loom_core_set *b)
{
    for (size_t w = 0; w < sizeof a->words / sizeof *a->words; w++)
        if (a->words[w] & b->words[w])
            return true;
    return false;
}

bool loom_host_fits(const loom_core_set *sets, int ranks, int mine)
{
    int sharers = 0;

    for (int r = 0; r < ranks; r++)
        sharers += overlap(&sets[mine], &sets[r]);
    return sharers <= count_cores(&sets[mine]) && ranks <= sets[mine].quota;
}

int loom_host_cores(void)
{
    loom_core_set set;
    int cores;

    loom_host_core_set(&set);
    cores = count_cores(&set) < set.quota ? count_cores(&set) : set.quota;
    return cores > 0 ? cores : 1;
}

uint64_t loom_host_identity(bool same_processes)
{
    char text[192] = "", namespace[64] = "";
    ssize_t length;

    if (!read_line("/proc/sys/kernel/random/boot_id", text, 64))
        gethostname(text, 64);
    length = same_processes ? readlink("/proc/self/ns/pid", namespace, sizeof namespace - 1) : 0;
    if (length > 0)
        snprintf(text + strlen(text), sizeof text - strlen(text), " %s", namespace);
    return loom_fnv1a64(text, strlen(text));
}

uint64_t loom_host_memory_bytes(void)
{
    struct sysinfo info;

    return sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : UINT64_C(16) << 30;
}

static void tighten_memory(const char *folder, const char *path, void *result)
{
    uint64_t *available = result;
    unsigned long long limit, used;
    char line[64], used_path[768];

    snprintf(used_path, sizeof used_path, "%s/memory.current", folder);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%llu", &limit) != 1) /* "max" is no number: no limit */
        return;
    if (!read_line(used_path, line, sizeof line) || sscanf(line, "%llu", &used) != 1)
        return;
    if (limit < used || limit - used < *available)
        *available = limit < used ? 0 : limit - used;
}

uint64_t loom_host_available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    uint64_t available;

    while (file && !kib && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
            kib = 0;
    if (file)
        fclose(file);
    available = kib ? (uint64_t)kib << 10 : UINT64_MAX; /* an old kernel does not say; fallocate() still does */
    visit_cgroups("memory.max", tighten_memory, &available);
    return available;
}
