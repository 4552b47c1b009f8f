/* The file that tells which port rank 0 took: "PORT PID START", where START is when that process began, in the kernel's ticks. A file whose process is
 * gone, or whose number belongs to another process now, is an old one. */
#include "launch/port_file.h"

#include "core/clock.h"
#include "core/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_AGAIN_S 0.02

/* Equal for all ranks of a job, different for jobs of other parents and users. */
static void name_file(const loom_launch *launch, char path[LOOM_PORT_FILE_BYTES])
{
    const char *folder = getenv("TMPDIR");

    if (!folder || folder[0] != '/' || strlen(folder) > LOOM_PORT_FILE_BYTES - 128)
        folder = "/tmp";
    snprintf(path, LOOM_PORT_FILE_BYTES, "%s/rankloom-port-%d-%d-%d-%.32s", folder, (int)getuid(), (int)getppid(), launch->size, launch->run_id);
    for (char *c = path + strlen(folder) + 1; *c; c++)
        if (*c == '/')
            *c = '_'; /* a run id may hold anything */
}

/* When the process began; 0: there is none. Its name, in brackets, may hold blanks. */
static uint64_t start_of(int pid)
{
    char path[64], line[1024];
    uint64_t start = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    const char *rest = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    if (!rest || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64, &start) != 1)
        return 0;
    return start;
}

/* The port and process of a living rank 0. Somebody else's file counts as none. */
static bool read_file(const char *path, int *port, int *pid)
{
    struct stat status;
    uint64_t start;
    FILE *file = fopen(path, "re");

    if (!file)
        return false;
    bool whole = fstat(fileno(file), &status) == 0 && status.st_uid == getuid() && fscanf(file, "%d %d %" SCNu64, port, pid, &start) == 3;
    fclose(file);
    return whole && start == start_of(*pid) && *port > 0 && *port < 65536;
}

loom_status loom_port_file_write(const loom_launch *launch, int port, char path[LOOM_PORT_FILE_BYTES])
{
    char text[96];
    int other_port, other_pid;

    name_file(launch, path);
    if (read_file(path, &other_port, &other_pid) && other_pid != (int)getpid())
        return loom_fail(LOOM_E_PEER, "MASTER_PORT=0: process %d is rank 0 of another start of %d ranks by the same parent process; give each a MASTER_PORT",
                         other_pid, launch->size);
    snprintf(text, sizeof text, "%d %d %" PRIu64 "\n", port, (int)getpid(), start_of((int)getpid()));
    return loom_file_replace(path, text, strlen(text));
}

loom_status loom_port_file_wait(const loom_launch *launch, double deadline, int *port)
{
    char path[LOOM_PORT_FILE_BYTES];
    double began = loom_now_s();
    int pid;

    name_file(launch, path);
    while (!read_file(path, port, &pid)) {
        if (loom_now_s() >= deadline)
            return loom_fail(LOOM_E_PEER, "MASTER_PORT=0: rank 0 did not tell its port within %.1f s (in %s); it has to be started by the same process as "
                             "rank %d, on this host", loom_now_s() - began, path, launch->rank);
        loom_sleep_s(LOOK_AGAIN_S);
    }
    return LOOM_OK;
}
