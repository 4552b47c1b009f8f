/* Who am I, who else is there: the environment of launchers, and the key-value store that ranks meet in. */
#ifndef RANKLOOM_LAUNCH_H
#define RANKLOOM_LAUNCH_H

#include <rankloom/status.h>
LOOM_BEGIN

typedef enum loom_launcher {
    LOOM_LAUNCH_ALONE, /* no launcher: one rank */
    LOOM_LAUNCH_TORCHRUN, /* TORCHELASTIC_RUN_ID: torchrun, or `rankloom run`, which sets the same variables */
    LOOM_LAUNCH_ENV,      /* RANK and WORLD_SIZE set by hand, by DeepSpeed or by a Kubernetes operator */
    LOOM_LAUNCH_OPENMPI,
    LOOM_LAUNCH_MPICH,
    LOOM_LAUNCH_MVAPICH,
    LOOM_LAUNCH_SLURM,
} loom_launcher;

typedef struct loom_launch {
    loom_launcher launcher;
    int rank, size;             /* of the world */
    int local_rank, local_size; /* on this launcher's node; -1, 0: unknown, found out later from host identities */
    int node_rank, nodes;       /* -1, 0: unknown */
    int restart;                /* how often this node's workers were restarted; never a key namespace */
    bool agent_store;           /* a launcher already serves the store at master; else rank 0 does */
    char master_addr[256];      /* "" when alone; an IPv6 address has no brackets */
    int master_port;            /* 0 (one host, no agent, ranks of one parent process): rank 0 takes a free port and tells it in a file in $TMPDIR */
    char run_id[128];
    char error_file[1024]; /* "" when there is none */
} loom_launch;

/* Reads the environment (order of detection: torchrun; RANK with WORLD_SIZE; Open MPI; MPICH; MVAPICH2; Slurm step; alone).
 * A variable that is missing, empty, not a number or out of range is LOOM_E_INVALID, and the message names every one of them with its value.
 *
 * Open MPI, MPICH and MVAPICH2 tell no address: MASTER_ADDR and MASTER_PORT are read if set; else, when all ranks are on one host, the
 * address is 127.0.0.1. Slurm: the first host of SLURM_STEP_NODELIST. A port that nobody gave is 20000 + hash(run_id) % 12000, below
 * the range from which Linux hands out ports, equal on all ranks, and different for each Slurm step or mpirun. */
LOOM_API loom_status loom_launch_from_env(loom_launch *launch);

/* Same, from a lookup function instead of the environment (tests, embedders). */
typedef const char *loom_getenv_fn(void *context, const char *name);
LOOM_API loom_status loom_launch_from(loom_getenv_fn *get, void *context, loom_launch *launch);

/* Setup every rank program wants: line-buffered stdout, and a signal when the launcher dies. */
LOOM_API void loom_launch_prepare_process(void);

/* Writes the error file of torchrun (temporary name, fsync, rename); does nothing without one. First cause only: not for a
 * failure that merely follows a peer's. */
LOOM_API void loom_launch_report_error(const loom_launch *launch, const char *message);

/* --- store: TCPStore protocol ------------------------------------------------------------------------------------- */
typedef struct loom_store loom_store; /* opaque; used by one thread at a time */

/* Connects to (or, on rank 0 without an agent, also serves) the store at master_addr:master_port, and agrees on a fresh
 * generation with the other ranks, so that keys of a previous attempt are never met. Every rank calls. Bounded by deadline_s.
 * A world of one needs no network. Failure is LOOM_E_PEER (ranks that did not come, named on every rank; no store at the address;
 * the port in use, with its holder if known: within 2 s), LOOM_E_INVALID (MASTER_ADDR is not an address of rank 0's host: within 2 s),
 * LOOM_E_MISMATCH (another version on rank 0) or LOOM_E_IO (the system refuses a socket). */
LOOM_API loom_status loom_store_open(const loom_launch *launch, double deadline_s, loom_store **store);
LOOM_API void loom_store_close(loom_store *store); /* accepts NULL; a serving rank waits (bounded) until all said goodbye */

/* Keys are relative to this generation. Values are bytes. */
LOOM_API loom_status loom_store_set(loom_store *store, const char *key, const void *value, size_t bytes);
/* Waits for the key until the deadline; copies at most `capacity` and reports the true size. Ends early, like every wait of a store, when the
 * store or a rank's launcher shows that this attempt is over: the store is gone, or a process of this job opened it anew. */
LOOM_API loom_status loom_store_get(loom_store *store, const char *key, void *value, size_t capacity, size_t *bytes, double deadline_s);
LOOM_API loom_status loom_store_add(loom_store *store, const char *key, int64_t delta, int64_t *result);
LOOM_API loom_status loom_store_check(loom_store *store, const char *key, bool *present);
LOOM_API loom_status loom_store_delete(loom_store *store, const char *key);
/* All ranks arrive; on a deadline the message names who did not. */
LOOM_API loom_status loom_store_barrier(loom_store *store, const char *name, double deadline_s);
LOOM_API int loom_store_rank(const loom_store *store);
LOOM_API int loom_store_size(const loom_store *store);

/* --- rankloom run ---------------------------------------------------------------------------------------------------- */
typedef struct loom_spawn_config {
    int ranks;
    int max_restarts;
    double grace_s;         /* between SIGTERM and SIGKILL; 0: 30 */
    bool prefix_output;     /* "[rank] " before every line */
    const char *const *argv; /* program and arguments, NULL-terminated */
} loom_spawn_config;

/* Runs `ranks` processes with torchrun's variables around a store of its own, forwards signals, restarts on failure, and returns the
 * exit code for the caller's process: 0 when all ended with 0, else that of the first failure, which is named on stderr. */
LOOM_API loom_status loom_spawn(const loom_spawn_config *config, int *exit_code);

LOOM_END
#endif
