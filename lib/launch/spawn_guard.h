/* A small process beside `rankloom run` that outlives it: when the runner is gone without a word (kill -9, a crash), it ends the process groups of
 * the ranks, SIGTERM first, SIGKILL after the grace time, and removes the run's temporary folder. */
#ifndef LAUNCH_SPAWN_GUARD_H
#define LAUNCH_SPAWN_GUARD_H

#include <rankloom/status.h>
#include <sys/types.h>

typedef struct loom_guard {
    pid_t pid; /* 0: none */
    int fd;    /* the runner's end of the pipe; children inherit it until they exec */
} loom_guard;

/* Call before any thread is started. At most `most_groups` groups exist at a time. */
loom_status loom_guard_open(int most_groups, double grace_s, const char *folder, loom_guard *guard);
/* Safe between fork and exec: the child announces itself, so that there is no moment in which nobody knows of it. */
void loom_guard_add(const loom_guard *guard, pid_t group);
void loom_guard_remove(const loom_guard *guard, pid_t group); /* before its number can be used again */
void loom_guard_close(loom_guard *guard);                     /* all is well: it leaves, and leaves everything alone */

#endif
