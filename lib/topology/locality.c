/* Small texts of the kernel: where a PCI device sits, how much CPU time a cgroup has. */
#include <rankloom/host.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int loom_numa_of_text(const char *text)
{
    char *end;

    if (!text)
        return -1;
    errno = 0;
    long value = strtol(text, &end, 10);
    while (*end == '\n' || *end == ' ')
        end++;
    return end != text && *end == '\0' && errno == 0 && value >= 0 && value < 65536 ? (int)value : -1;
}

/* The first line of a small file, without its end; false when there is none. */
static bool first_line(const char *folder, const char *name, char *line, size_t bytes)
{
    char path[4096];
    FILE *file;

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path || !(file = fopen(path, "re")))
        return false;
    bool there = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    if (there)
        line[strcspn(line, "\n")] = '\0';
    return there;
}

int loom_numa_of_pci(const char *root, const char *address)
{
    char folder[1024], line[64];

    if (snprintf(folder, sizeof folder, "%s/%s", root ? root : "/sys/bus/pci/devices", address) >= (int)sizeof folder)
        return -1;
    return first_line(folder, "numa_node", line, sizeof line) ? loom_numa_of_text(line) : -1;
}

/* cgroup v2: "150000 100000" or "max 100000". v1: two files, -1 for no limit. */
loom_figure loom_cpu_quota_of(const char *folder)
{
    char line[128], period_line[64];
    double quota, period;

    if (first_line(folder, "cpu.max", line, sizeof line)) {
        if (sscanf(line, "%lf %lf", &quota, &period) != 2)
            return loom_unknown();
    } else if (first_line(folder, "cpu/cpu.cfs_quota_us", line, sizeof line) &&
               first_line(folder, "cpu/cpu.cfs_period_us", period_line, sizeof period_line)) {
        if (sscanf(line, "%lf", &quota) != 1 || sscanf(period_line, "%lf", &period) != 1)
            return loom_unknown();
    } else {
        return loom_unknown();
    }
    return quota > 0 && period > 0 ? (loom_figure){quota / period, LOOM_ORIGIN_READ} : loom_unknown();
}
