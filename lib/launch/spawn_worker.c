/* Starting one rank: environment, pipes, fork, exec. */
#include "launch/spawn_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- environment -------------------------------------------------------------------------------------------------------- */

enum { MOST_VARIABLES = 32, VARIABLE_BYTES = LOOM_ERROR_FILE_BYTES + 64 };

/* The runner's environment with our variables in place of those of the same name. */
typedef struct environment {
    char **all; /* NULL-terminated; borrowed texts */
    size_t n_all;
    char (*ours)[VARIABLE_BYTES];
    int n_ours;
} environment;

/* Replaces or adds "NAME=value". */
static void put(environment *e, const char *format, ...) LOOM_PRINTF(2, 3);

static void put(environment *e, const char *format, ...)
{
    char *text = e->ours[e->n_ours++];
    va_list arguments;
    size_t i = 0;

    va_start(arguments, format);
    vsnprintf(text, VARIABLE_BYTES, format, arguments);
    va_end(arguments);
    size_t name = strcspn(text, "=") + 1;
    while (i < e->n_all && strncmp(e->all[i], text, name) != 0)
        i++;
    e->all[i] = text;
    if (i == e->n_all)
        e->all[++e->n_all] = NULL;
}

static int usable_cores(void)
{
    cpu_set_t cores;

    if (sched_getaffinity(0, sizeof cores, &cores) == 0)
        return CPU_COUNT(&cores);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more than 1024 cores */
    return online > 0 ? (int)online : 1;
}

/* What torchrun sets (the ranks of one launcher, one role), except that it gives every rank one thread where we share the cores out. */
static void put_variables(environment *e, const loom_attempt *attempt, int rank, const char *error_file)
{
    int ranks = attempt->config->ranks, cores = usable_cores();

    put(e, "RANK=%d", rank);
    put(e, "WORLD_SIZE=%d", ranks);
    put(e, "LOCAL_RANK=%d", rank);
    put(e, "LOCAL_WORLD_SIZE=%d", ranks);
    put(e, "GROUP_RANK=0");
    put(e, "GROUP_WORLD_SIZE=1");
    put(e, "ROLE_NAME=default");
    put(e, "ROLE_RANK=%d", rank);
    put(e, "ROLE_WORLD_SIZE=%d", ranks);
    put(e, "MASTER_ADDR=127.0.0.1");
    put(e, "MASTER_PORT=%d", attempt->port);
    put(e, "TORCHELASTIC_RUN_ID=%s", attempt->run_id);
    put(e, "TORCHELASTIC_RESTART_COUNT=%d", attempt->number);
    put(e, "TORCHELASTIC_MAX_RESTARTS=%d", attempt->config->max_restarts);
    put(e, "TORCHELASTIC_USE_AGENT_STORE=True");
    put(e, "TORCHELASTIC_ERROR_FILE=%s", error_file);
    put(e, "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    if (!getenv("OMP_NUM_THREADS"))
        put(e, "OMP_NUM_THREADS=%d", cores / ranks > 1 ? cores / ranks : 1);
    if (!getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        put(e, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
}

static void free_environment(environment *e)
{
    free(e->all);
    free(e->ours);
}

static loom_status make_environment(environment *e, const loom_attempt *attempt, int rank, const char *error_file)
{
    size_t n = 0;

    while (environ && environ[n])
        n++;
    *e = (environment){.all = calloc(n + MOST_VARIABLES + 1, sizeof *e->all), .n_all = n, .ours = calloc(MOST_VARIABLES, sizeof *e->ours)};
    if (!e->all || !e->ours) {
        free_environment(e);
        return loom_fail(LOOM_E_MEMORY, "no memory for the environment of rank %d", rank);
    }
    if (n)
        memcpy(e->all, environ, n * sizeof *e->all);
    put_variables(e, attempt, rank, error_file);
    return LOOM_OK;
}

/* --- the process --------------------------------------------------------------------------------------------------------- */

typedef struct pipes {
    int output[2][2]; /* stdout, stderr; reading end, writing end */
    int verdict[2];   /* errno of a failed exec; closed by a successful one */
} pipes;

static void close_both(int ends[2])
{
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
}

static void close_pipes(pipes *p)
{
    close_both(p->output[0]);
    close_both(p->output[1]);
    close_both(p->verdict);
}

static bool open_pipes(pipes *p)
{
    *p = (pipes){{{-1, -1}, {-1, -1}}, {-1, -1}};
    return pipe2(p->output[0], O_CLOEXEC) == 0 && pipe2(p->output[1], O_CLOEXEC) == 0 && pipe2(p->verdict, O_CLOEXEC) == 0;
}

/* Between fork and exec: only calls that are safe beside other threads. The session of its own keeps the terminal's signals away (the runner
 * passes them on) and makes a group that can be ended as a whole. */
static void become_program(const loom_attempt *attempt, const pipes *p, pid_t runner, char **variables)
{
    int null = open("/dev/null", O_RDONLY), error;

    setsid();
    loom_guard_add(attempt->guard, getpid());
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != runner)
        _exit(1);
    dup2(null, STDIN_FILENO);
    dup2(p->output[0][1], STDOUT_FILENO);
    dup2(p->output[1][1], STDERR_FILENO);
    if (null > STDERR_FILENO)
        close(null);
    sigprocmask(SIG_SETMASK, &attempt->signals, NULL);
    execvpe(attempt->config->argv[0], (char *const *)attempt->config->argv, variables);
    error = errno;
    if (write(p->verdict[1], &error, sizeof error) != sizeof error)
        _exit(126);
    _exit(127);
}

/* Waits for the exec; 0 or its errno. */
static int read_verdict(pipes *p)
{
    int error = 0;
    ssize_t n;

    close(p->verdict[1]);
    p->verdict[1] = -1;
    do
        n = read(p->verdict[0], &error, sizeof error);
    while (n < 0 && errno == EINTR);
    return n == sizeof error ? error : 0;
}

static void take_streams(loom_spawn_worker *worker, const loom_attempt *attempt, pipes *p, int rank)
{
    for (int i = 0; i < 2; i++) {
        loom_line_stream *stream = &worker->streams[i];
        *stream = (loom_line_stream){.fd = p->output[i][0], .sink = &attempt->sinks[i]};
        p->output[i][0] = -1;
        fcntl(stream->fd, F_SETFL, O_NONBLOCK);
        if (attempt->config->prefix_output)
            snprintf(stream->prefix, sizeof stream->prefix, "[%d] ", rank);
    }
}

static loom_status start(loom_spawn_worker *worker, const loom_attempt *attempt, int rank, pipes *p, char **variables)
{
    pid_t runner = getpid(), pid = fork();

    if (pid == 0)
        become_program(attempt, p, runner, variables);
    if (pid < 0)
        return loom_fail(LOOM_E_IO, "cannot start a process for rank %d: %s", rank, strerror(errno));
    int error = read_verdict(p);
    if (error) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        loom_guard_remove(attempt->guard, pid);
        return loom_fail(LOOM_E_INVALID, "cannot start the program %s: %s", attempt->config->argv[0], strerror(error));
    }
    worker->pid = pid;
    worker->running = worker->group_left = true;
    take_streams(worker, attempt, p, rank);
    return LOOM_OK;
}

loom_status loom_spawn_worker_start(loom_spawn_worker *worker, const loom_attempt *attempt, int rank)
{
    environment e;
    pipes p;
    loom_status status = loom_folder_add_rank(attempt->folder, attempt->number, rank, worker->error_file);

    if (status == LOOM_OK)
        status = make_environment(&e, attempt, rank, worker->error_file);
    if (status != LOOM_OK)
        return status;
    if (open_pipes(&p))
        status = start(worker, attempt, rank, &p, e.all);
    else
        status = loom_fail(LOOM_E_IO, "no pipe for the output of rank %d: %s", rank, strerror(errno));
    close_pipes(&p);
    free_environment(&e);
    return status;
}
