#include "harness/on_ranks.h"

#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "harness/table.h"

enum { MOST_RANKS = 64, OUTPUT_BYTES = 1 << 16 };

static rank_options with_defaults(const rank_options *options)
{
    rank_options o = options ? *options : (rank_options){0};

    o.deadline_s = o.deadline_s > 0 ? o.deadline_s : 60;
    o.comm_deadline_s = o.comm_deadline_s > 0 ? o.comm_deadline_s : 20;
    o.threads = o.threads > 0 ? o.threads : 1;
    return o;
}

static void check(loom_status status, const char *what)
{
    if (status < 0)
        fail_msg("%s: %s: %s", what, loom_status_name(status), loom_last_error());
}

/* Device, world and stream around the test's function. */
static void run_rank(table *t, int rank, int size, const rank_options *options, rank_fn *fn)
{
    loom_device_config device_config = {.threads = options->threads, .heap_bytes = options->heap_bytes};
    loom_comm_config comm_config = {.deadline_s = options->comm_deadline_s, .transport = options->transport};
    loom_bootstrap bootstrap = table_bootstrap(t, rank, size);
    loom_device *device;
    loom_comm *world;
    loom_stream *stream;

    check(loom_device_open(options->device, &device_config, &device), "opening the device");
    check(loom_comm_open_bootstrap(&bootstrap, device, &comm_config, &world), "opening the world");
    check(loom_stream_open(device, LOOM_STREAM_INLINE, "test", &stream), "opening the stream");
    fn(world, stream);
    loom_stream_close(stream);
    loom_comm_free(world);
    loom_device_close(device);
}

/* --- ranks as processes ---------------------------------------------------------------------------------------------- */

typedef struct rank_process {
    pid_t pid; /* 0: it has ended */
    int status;
    int output; /* a memfd that catches what it prints */
} rank_process;

static void say_where(int signal)
{
    void *frames[64];
    static const char text[] = "the deadline of the run passed while this rank was here:\n";

    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(98);
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    _exit(99);
}

/* NCCL refuses two ranks of one host on one device, so each says that it is a host of its own. */
static void name_own_host(int rank)
{
    char name[32];

    snprintf(name, sizeof name, "rank-%d", rank);
    setenv("NCCL_HOSTID", name, 1);
}

static void be_rank(table *t, int rank, int size, const rank_options *options, rank_fn *fn, int output)
{
    void *frame;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failed assertion ends this process, and does not go on as a copy of the test program */
    backtrace(&frame, 1);                /* loads what the signal handler needs */
    signal(SIGUSR1, say_where);
    if (options->device == LOOM_CUDA)
        name_own_host(rank);
    run_rank(t, rank, size, options, fn);
    fflush(NULL);
    exit(0);
}

static bool start_rank(rank_process *process, table *t, int rank, int size, const rank_options *options, rank_fn *fn)
{
    process->output = memfd_create("rank-output", MFD_CLOEXEC);
    fflush(NULL);
    process->pid = process->output < 0 ? -1 : fork();
    if (process->pid == 0)
        be_rank(t, rank, size, options, fn, process->output);
    return process->pid > 0;
}

static bool ended_well(const rank_process *process, int rank, const rank_options *options)
{
    bool doomed = options->doomed >> rank & 1;

    if (doomed)
        return WIFSIGNALED(process->status);
    return WIFEXITED(process->status) && WEXITSTATUS(process->status) == 0;
}

static void print_rank(const rank_process *process, int rank)
{
    static char text[OUTPUT_BYTES];
    ssize_t bytes = pread(process->output, text, sizeof text - 1, 0);

    text[bytes > 0 ? bytes : 0] = '\0';
    if (WIFSIGNALED(process->status))
        print_error("--- rank %d ended by signal %d (%s):\n%s\n", rank, WTERMSIG(process->status), strsignal(WTERMSIG(process->status)),
                    text);
    else
        print_error("--- rank %d ended with status %d:\n%s\n", rank, WEXITSTATUS(process->status), text);
}

/* Reaps what has ended. Returns how many still run; *failed is the first rank that ended badly, or stays -1. */
static int reap(rank_process *processes, int size, const rank_options *options, int *failed)
{
    int running = 0;

    for (int r = 0; r < size; r++) {
        if (!processes[r].pid)
            continue;
        if (waitpid(processes[r].pid, &processes[r].status, WNOHANG) == processes[r].pid) {
            processes[r].pid = 0;
            if (*failed < 0 && !ended_well(&processes[r], r, options))
                *failed = r;
        } else {
            running++;
        }
    }
    return running;
}

static void signal_all(rank_process *processes, int size, int number)
{
    for (int r = 0; r < size; r++)
        if (processes[r].pid > 0)
            kill(processes[r].pid, number);
}

static void wait_at_most(rank_process *processes, int size, const rank_options *options, double seconds, int *failed, bool stop_at_failure)
{
    double end_s = loom_now_s() + seconds;

    while (reap(processes, size, options, failed) && loom_now_s() < end_s && !(stop_at_failure && *failed >= 0))
        usleep(500);
}

/* Prints the ranks that ended badly. */
static void report(const rank_process *processes, const bool *in_time, int size, const rank_options *options)
{
    for (int r = 0; r < size; r++)
        if (!in_time[r] || !ended_well(&processes[r], r, options))
            print_rank(&processes[r], r);
}

void on_ranks_with(const rank_options *given, int size, rank_fn *fn)
{
    rank_options options = with_defaults(given);
    rank_process processes[MOST_RANKS] = {0};
    bool in_time[MOST_RANKS];
    int failed = -1, started = 0;
    table *t = table_open();

    assert_true(t && size >= 1 && size <= MOST_RANKS);
    while (started < size && start_rank(&processes[started], t, started, size, &options, fn))
        started++;
    wait_at_most(processes, started, &options, options.deadline_s, &failed, true);
    if (failed >= 0)
        wait_at_most(processes, started, &options, 1, &failed, false); /* others may fail for a reason of their own */
    for (int r = 0; r < started; r++)
        in_time[r] = processes[r].pid == 0;
    if (failed < 0)
        signal_all(processes, started, SIGUSR1);
    wait_at_most(processes, started, &options, 2, &failed, failed >= 0);
    signal_all(processes, started, SIGKILL);
    wait_at_most(processes, started, &options, 10, &failed, false);
    if (failed >= 0)
        report(processes, in_time, started, &options);
    for (int r = 0; r < started; r++)
        close(processes[r].output);
    table_close(t);
    if (started < size)
        fail_msg("only %d of %d ranks could be forked", started, size);
    if (failed >= 0)
        fail_msg("rank %d of %d failed; see above", failed, size);
}

void on_ranks(int size, rank_fn *fn)
{
    on_ranks_with(NULL, size, fn);
}

/* --- ranks as threads ------------------------------------------------------------------------------------------------- */

typedef struct rank_thread {
    pthread_t thread;
    table *t;
    int rank, size;
    const rank_options *options;
    rank_fn *fn;
} rank_thread;

static void *be_thread(void *argument)
{
    rank_thread *me = argument;

    run_rank(me->t, me->rank, me->size, me->options, me->fn);
    return NULL;
}

static void give_up_on_threads(int signal)
{
    static const char text[] = "the deadline of a run on threads passed\n";

    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(98);
    abort();
}

void on_threads_with(const rank_options *given, int size, rank_fn *fn)
{
    rank_options options = with_defaults(given);
    rank_thread threads[MOST_RANKS];
    table *t = table_open();

    assert_true(t && size >= 1 && size <= MOST_RANKS);
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* cmocka's way out of a failed assertion is the main thread's alone */
    signal(SIGALRM, give_up_on_threads);
    alarm((unsigned)options.deadline_s + 1);
    for (int r = 0; r < size; r++) {
        threads[r] = (rank_thread){.t = t, .rank = r, .size = size, .options = &options, .fn = fn};
        assert_int_equal(pthread_create(&threads[r].thread, NULL, be_thread, &threads[r]), 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r].thread, NULL);
    alarm(0);
    unsetenv("CMOCKA_TEST_ABORT");
    table_close(t);
}

void on_threads(int size, rank_fn *fn)
{
    on_threads_with(NULL, size, fn);
}

/* --- dry ------------------------------------------------------------------------------------------------------------------ */

void on_dry_rank(int rank, int size, rank_fn *fn)
{
    loom_device *device;
    loom_comm *world;
    loom_stream *stream;

    check(loom_device_open(LOOM_DRY, NULL, &device), "opening the dry device");
    check(loom_comm_open_dry(rank, size, device, &world), "opening the dry world");
    check(loom_stream_open(device, LOOM_STREAM_INLINE, "test", &stream), "opening the stream");
    fn(world, stream);
    loom_stream_close(stream);
    loom_comm_free(world);
    loom_device_close(device);
}
