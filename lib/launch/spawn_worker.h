/* One rank of `rankloom run`: its process, its variables, its pipes. */
#ifndef LAUNCH_SPAWN_WORKER_H
#define LAUNCH_SPAWN_WORKER_H

#include "launch/spawn_folder.h"
#include "launch/spawn_guard.h"
#include "launch/spawn_output.h"

#include <rankloom/launch.h>
#include <signal.h>

typedef struct loom_spawn_worker {
    pid_t pid;                    /* also its process group and session; 0: not started */
    bool running;                 /* not reaped yet */
    bool group_left;              /* perhaps: its group may still have members */
    int wait_status;              /* of waitpid(), once it is not running */
    loom_line_stream streams[2];  /* stdout, stderr */
    char error_file[LOOM_ERROR_FILE_BYTES];
} loom_spawn_worker;

/* What all ranks of an attempt have in common. */
typedef struct loom_attempt {
    const loom_spawn_config *config;
    int number;         /* restarts so far */
    int port;           /* of the store on 127.0.0.1 */
    const char *run_id;
    const char *folder;
    const loom_guard *guard;
    sigset_t signals; /* the mask that the program shall have */
    loom_sink *sinks; /* [2] */
} loom_attempt;

/* LOOM_E_INVALID when the program cannot be run (the message says why). */
loom_status loom_spawn_worker_start(loom_spawn_worker *worker, const loom_attempt *attempt, int rank);

#endif
