/* The process that ends the ranks when the runner no longer can. */
#include "launch/spawn_guard.h"

#include "core/clock.h"
#include "launch/spawn_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Messages are one int32: a group to add, a negative one to remove, 0: leave. Small enough to be atomic on a pipe. */
static void say(const loom_guard *guard, int32_t message)
{
    ssize_t n;

    do
        n = write(guard->fd, &message, sizeof message);
    while (n < 0 && errno == EINTR);
}

void loom_guard_add(const loom_guard *guard, pid_t group)
{
    say(guard, (int32_t)group);
}

void loom_guard_remove(const loom_guard *guard, pid_t group)
{
    say(guard, -(int32_t)group);
}

/* --- the guard's own process ------------------------------------------------------------------------------------------ */

static void note_group(pid_t *groups, int *n_groups, int most_groups, int32_t message)
{
    if (message > 0 && *n_groups < most_groups) {
        groups[(*n_groups)++] = message;
        return;
    }
    for (int i = 0; i < *n_groups; i++)
        if (groups[i] == -message) {
            groups[i] = groups[--*n_groups];
            return;
        }
}

/* Listens until the end of the pipe. False: the runner said that all is well. */
static bool listen_to_runner(int fd, pid_t *groups, int *n_groups, int most_groups)
{
    int32_t message;
    ssize_t n;

    while ((n = read(fd, &message, sizeof message)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof message)
            break;
        if (message == 0)
            return false;
        note_group(groups, n_groups, most_groups, message);
    }
    return true;
}

static bool any_left(const pid_t *groups, int n_groups)
{
    for (int i = 0; i < n_groups; i++)
        if (kill(-groups[i], 0) == 0)
            return true;
    return false;
}

static void end_groups(const pid_t *groups, int n_groups, double grace_s)
{
    double give_up = loom_now_s() + grace_s;

    for (int i = 0; i < n_groups; i++)
        kill(-groups[i], SIGTERM);
    while (any_left(groups, n_groups) && loom_now_s() < give_up)
        loom_sleep_s(0.01);
    for (int i = 0; i < n_groups; i++)
        kill(-groups[i], SIGKILL);
}

/* Out of reach of the terminal and of everybody who waits for the end of the runner's output. */
static void detach(int keep)
{
    const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
    int null = open("/dev/null", O_RDWR);
    long most = sysconf(_SC_OPEN_MAX);

    setsid();
    prctl(PR_SET_NAME, "rankloom-guard");
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    for (int fd = 3; fd < (most > 0 && most < 65536 ? most : 65536); fd++)
        if (fd != keep)
            close(fd);
    if (chdir("/") != 0)
        return; /* then it holds the working folder until it ends: no more than the runner does */
}

static void be_guard(int fd, pid_t *groups, int most_groups, double grace_s, const char *folder)
{
    int n_groups = 0;

    detach(fd);
    if (listen_to_runner(fd, groups, &n_groups, most_groups)) {
        end_groups(groups, n_groups, grace_s);
        loom_folder_remove(folder);
    }
    _exit(0);
}

/* --- the runner's side ------------------------------------------------------------------------------------------------- */

loom_status loom_guard_open(int most_groups, double grace_s, const char *folder, loom_guard *guard)
{
    int ends[2];
    pid_t *groups = calloc((size_t)most_groups, sizeof *groups); /* before the fork: the guard allocates nothing */

    if (!groups)
        return loom_fail(LOOM_E_MEMORY, "no memory for %d ranks", most_groups);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        free(groups);
        return loom_fail(LOOM_E_IO, "no pipe: %s", strerror(errno));
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        be_guard(ends[0], groups, most_groups, grace_s, folder);
    }
    int error = errno;
    free(groups);
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return loom_fail(LOOM_E_IO, "cannot start a process: %s", strerror(error));
    }
    *guard = (loom_guard){pid, ends[1]};
    return LOOM_OK;
}

void loom_guard_close(loom_guard *guard)
{
    if (guard->pid == 0)
        return;
    say(guard, 0);
    close(guard->fd);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    guard->pid = 0;
}
