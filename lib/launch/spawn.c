/* rankloom run: starts the ranks of one host, watches them, ends them all when one fails, and starts them anew as often as it may.
 *
 *   RUNNING   all ranks are up; ends when all ended with 0, at the first failure, or with a signal to the runner
 *   ENDING    the groups of all ranks got SIGTERM (or the runner's signal) and have the grace time
 *   KILLING   they got SIGKILL
 *
 * An attempt is over when no process of any group is left. Nothing else survives either: see spawn_guard.h for the death of the runner
 * itself. */
#include <rankloom/launch.h>

#include "core/clock.h"
#include "core/try.h"
#include "launch/socket.h"
#include "launch/spawn_worker.h"
#include "launch/store_server.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_S 30.0
#define KILL_AGAIN_S 0.5
#define UNKILLABLE_S 10.0 /* a process that is stuck in the kernel */
#define LOOK_AGAIN_S 0.02 /* for groups whose leader is gone: nobody reports the end of the others */
#define LAST_OUTPUT_S 1.0 /* for a slow reader of our output, when all is over */

typedef enum phase { RUNNING, ENDING, KILLING } phase;

typedef struct runner {
    const loom_spawn_config *config;
    double grace_s;
    char run_id[40];
    char folder[LOOM_FOLDER_BYTES];
    loom_guard guard;
    sigset_t old_mask;
    int signals; /* signalfd */
    loom_sink sinks[2];
    loom_spawn_worker *workers; /* [config->ranks] */
    struct pollfd *polls;       /* [3 + 2 * config->ranks] */

    phase phase;       /* of the attempt under way */
    double next_step;  /* when ENDING becomes KILLING, or SIGKILL is sent again */
    double give_up;    /* when KILLING has no hope any more */
    int stopped_by;    /* the signal to the runner that ended it all; 0: none */
    int failed_rank;   /* whose failure came first; -1: none */
    int failed_status; /* its wait status: what fails later is a consequence */
} runner;

/* --- words ---------------------------------------------------------------------------------------------------------------- */

/* The runner's own lines go the way of the ranks' lines, so that they do not mix. */
static void say(runner *r, const char *format, ...) LOOM_PRINTF(2, 3);

static void say(runner *r, const char *format, ...)
{
    char text[4096];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (r->sinks[1].broken)
        return;
    loom_bytes_append(&r->sinks[1].unsent, "rankloom run: ", 14);
    loom_bytes_append(&r->sinks[1].unsent, text, strlen(text));
    loom_bytes_append_u8(&r->sinks[1].unsent, '\n');
    r->sinks[1].unsent.failed = false; /* out of memory: a line is lost, no more */
}

static void describe_end(int wait_status, char *text, size_t capacity)
{
    if (WIFSIGNALED(wait_status))
        snprintf(text, capacity, "was killed by signal %d (%s)%s", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)),
                 WCOREDUMP(wait_status) ? ", core dumped" : "");
    else
        snprintf(text, capacity, "ended with exit status %d", WEXITSTATUS(wait_status));
}

static void report_failure(runner *r)
{
    const loom_spawn_worker *worker = &r->workers[r->failed_rank];
    char end[128], message[2048];
    int64_t timestamp;
    bool has_words = loom_folder_read_error(worker->error_file, message, sizeof message, &timestamp);

    describe_end(r->failed_status, end, sizeof end);
    say(r, "rank %d (process %d) %s%s%s; ending the others", r->failed_rank, (int)worker->pid, end, has_words ? ": " : "",
        has_words ? message : "");
}

/* --- ending ---------------------------------------------------------------------------------------------------------------- */

static void signal_groups(runner *r, int signal_number)
{
    for (int rank = 0; rank < r->config->ranks; rank++)
        if (r->workers[rank].group_left)
            kill(-r->workers[rank].pid, signal_number);
}

static void begin_ending(runner *r, int signal_number)
{
    if (r->phase != RUNNING)
        return;
    r->phase = ENDING;
    r->next_step = loom_now_s() + r->grace_s;
    signal_groups(r, signal_number);
}

static void begin_killing(runner *r)
{
    if (r->phase != KILLING)
        r->give_up = loom_now_s() + UNKILLABLE_S;
    r->phase = KILLING;
    r->next_step = loom_now_s() + KILL_AGAIN_S;
    signal_groups(r, SIGKILL);
}

/* Strikes off groups without a member. Returns how many are left. */
static int count_groups(runner *r)
{
    int n_left = 0;

    for (int rank = 0; rank < r->config->ranks; rank++) {
        loom_spawn_worker *worker = &r->workers[rank];
        if (worker->group_left && !worker->running && kill(-worker->pid, 0) != 0 && errno == ESRCH) {
            worker->group_left = false;
            loom_guard_remove(&r->guard, worker->pid);
        }
        n_left += worker->group_left;
    }
    return n_left;
}

static int count_running(const runner *r)
{
    int n_running = 0;

    for (int rank = 0; rank < r->config->ranks; rank++)
        n_running += r->workers[rank].running;
    return n_running;
}

/* --- watching -------------------------------------------------------------------------------------------------------------- */

/* Of several failures found at once, the one whose rank could say first why; without words, the lowest rank. */
static bool precedes(const runner *r, int rank, int other, int64_t *earliest)
{
    char message[64];
    int64_t timestamp;

    if (!loom_folder_read_error(r->workers[rank].error_file, message, sizeof message, &timestamp))
        return other < 0;
    if (*earliest >= 0 && timestamp >= *earliest)
        return false;
    *earliest = timestamp;
    return true;
}

static void reap(runner *r)
{
    int64_t earliest = -1;
    int first = -1;

    for (int rank = 0; rank < r->config->ranks; rank++) {
        loom_spawn_worker *worker = &r->workers[rank];
        if (!worker->running || waitpid(worker->pid, &worker->wait_status, WNOHANG) != worker->pid)
            continue;
        worker->running = false;
        if (worker->wait_status != 0 && r->phase == RUNNING && precedes(r, rank, first, &earliest))
            first = rank;
    }
    if (first < 0)
        return;
    r->failed_rank = first;
    r->failed_status = r->workers[first].wait_status;
    report_failure(r);
    begin_ending(r, SIGTERM);
}

/* A signal to the runner. Those that end it go to the ranks as they are; asked a second time it does not wait for the grace time. */
static void handle_signal(runner *r, int signal_number)
{
    switch (signal_number) {
    case SIGCHLD:
        reap(r);
        return;
    case SIGUSR1:
    case SIGUSR2:
        signal_groups(r, signal_number);
        return;
    default:
        if (r->stopped_by)
            begin_killing(r);
        else if (signal_number != SIGPIPE)
            say(r, "%s; passing it on to the ranks, SIGKILL follows after %g s", strsignal(signal_number), r->grace_s);
        r->stopped_by = signal_number;
        begin_ending(r, signal_number == SIGPIPE ? SIGTERM : signal_number);
    }
}

static void read_signals(runner *r)
{
    struct signalfd_siginfo info;

    while (read(r->signals, &info, sizeof info) == sizeof info)
        handle_signal(r, (int)info.ssi_signo);
}

/* The signals, the two sinks if they have something to send, the streams whose sink has room. */
static nfds_t prepare_polls(runner *r)
{
    nfds_t n = 0;

    r->polls[n++] = (struct pollfd){.fd = r->signals, .events = POLLIN};
    for (int i = 0; i < 2; i++)
        r->polls[n++] = (struct pollfd){.fd = r->sinks[i].unsent.size ? r->sinks[i].fd : -1, .events = POLLOUT};
    for (int rank = 0; rank < r->config->ranks; rank++)
        for (int i = 0; i < 2; i++) {
            const loom_line_stream *stream = &r->workers[rank].streams[i];
            r->polls[n++] = (struct pollfd){.fd = loom_sink_is_full(stream->sink) ? -1 : stream->fd, .events = POLLIN};
        }
    return n;
}

/* Waits at most `wait_s` (negative: without limit) for something to happen, and deals with it. True: something did. */
static bool turn(runner *r, double wait_s)
{
    nfds_t n = prepare_polls(r);
    int ready = poll(r->polls, n, wait_s < 0 ? -1 : (int)(wait_s * 1e3) + 1);

    if (ready <= 0)
        return false;
    for (int i = 0; i < 2; i++)
        if (r->polls[1 + i].revents)
            loom_sink_write(&r->sinks[i]);
    for (int i = 0; i < 2 * r->config->ranks; i++)
        if (r->polls[3 + i].revents)
            loom_line_stream_read(&r->workers[i / 2].streams[i % 2]);
    if (r->polls[0].revents)
        read_signals(r);
    return true;
}

static double time_to_wait(const runner *r)
{
    double rest = r->next_step - loom_now_s();

    if (r->phase == RUNNING)
        return -1;
    if (count_running(r) == 0 && rest > LOOK_AGAIN_S)
        return LOOK_AGAIN_S;
    return rest > 0 ? rest : 0;
}

/* Until no process of the attempt is left. Ranks that ended with 0 may have left children: those are ended too. */
static void watch(runner *r)
{
    for (int n_left; (n_left = count_groups(r)) > 0;) {
        if (r->phase == KILLING && loom_now_s() >= r->give_up) {
            say(r, "%d processes do not end, not even by SIGKILL; leaving them", n_left);
            break;
        }
        if (r->phase == RUNNING && count_running(r) == 0)
            begin_ending(r, SIGTERM);
        turn(r, time_to_wait(r));
        if (r->phase != RUNNING && loom_now_s() >= r->next_step)
            begin_killing(r);
    }
}

/* What the ranks wrote last is still in the pipes. Somebody outside the groups may hold them open: their end is not waited for. */
static void drain(runner *r)
{
    double give_up = loom_now_s() + LAST_OUTPUT_S;

    while (turn(r, 0) && loom_now_s() < give_up)
        continue;
    for (int i = 0; i < 2 * r->config->ranks; i++)
        loom_line_stream_close(&r->workers[i / 2].streams[i % 2]);
    while ((r->sinks[0].unsent.size || r->sinks[1].unsent.size) && loom_now_s() < give_up)
        turn(r, 0.1);
}

/* --- attempts -------------------------------------------------------------------------------------------------------------- */

/* A store without keys for each attempt: unlike torchrun's, it does not show a new attempt what the dead one left. */
static loom_status serve_store(loom_store_server **server, int *port)
{
    int listeners[LOOM_STORE_LISTENERS], n_listeners;
    loom_status status = loom_listen("127.0.0.1", 0, listeners, &n_listeners, port);

    return status == LOOM_OK ? loom_store_server_open(listeners, n_listeners, server) : status;
}

static loom_status start_all(runner *r, int number, int port)
{
    const loom_attempt attempt = {.config = r->config,
                                  .number = number,
                                  .port = port,
                                  .run_id = r->run_id,
                                  .folder = r->folder,
                                  .guard = &r->guard,
                                  .signals = r->old_mask,
                                  .sinks = r->sinks};
    loom_status status = LOOM_OK;

    memset(r->workers, 0, (size_t)r->config->ranks * sizeof *r->workers);
    for (int i = 0; i < 2 * r->config->ranks; i++)
        r->workers[i / 2].streams[i % 2] = (loom_line_stream){.fd = -1, .sink = &r->sinks[i % 2]};
    r->phase = RUNNING;
    r->failed_rank = -1;
    for (int rank = 0; rank < r->config->ranks && status == LOOM_OK; rank++)
        status = loom_spawn_worker_start(&r->workers[rank], &attempt, rank);
    return status;
}

static loom_status run_attempt(runner *r, int number)
{
    loom_store_server *server = NULL;
    int port;
    loom_status status = serve_store(&server, &port);

    if (status != LOOM_OK)
        return status;
    status = start_all(r, number, port);
    if (status != LOOM_OK)
        begin_killing(r); /* those that were started already */
    watch(r);
    drain(r);
    loom_store_server_close(server);
    return status;
}

static int exit_code_of(const runner *r)
{
    if (r->stopped_by)
        return 128 + r->stopped_by;
    if (r->failed_rank < 0)
        return 0;
    return WIFSIGNALED(r->failed_status) ? 128 + WTERMSIG(r->failed_status) : WEXITSTATUS(r->failed_status);
}

static loom_status run_attempts(runner *r, int *exit_code)
{
    loom_status status = LOOM_OK;

    for (int number = 0; number <= r->config->max_restarts; number++) {
        if (number > 0)
            say(r, "restart %d of %d", number, r->config->max_restarts);
        status = run_attempt(r, number);
        if (status != LOOM_OK || r->failed_rank < 0 || r->stopped_by)
            break;
    }
    *exit_code = exit_code_of(r);
    return status;
}

/* --- the run --------------------------------------------------------------------------------------------------------------- */

static loom_status name_run(runner *r)
{
    uint64_t bits[2];

    if (getrandom(bits, sizeof bits, 0) != sizeof bits)
        return loom_fail(LOOM_E_IO, "the system gives no random numbers");
    snprintf(r->run_id, sizeof r->run_id, "%016" PRIx64 "%016" PRIx64, bits[0], bits[1]);
    return LOOM_OK;
}

/* nohup and shells that start something in the background ask for this: the terminal's signals are none of ours then. */
static bool is_to_be_ignored(int number)
{
    struct sigaction inherited;

    return (number == SIGHUP || number == SIGINT || number == SIGQUIT) && sigaction(number, NULL, &inherited) == 0 &&
           inherited.sa_handler == SIG_IGN;
}

/* From here to close_runner() these signals come through a descriptor instead of interrupting. */
static loom_status take_signals(runner *r)
{
    const int ours[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
    sigset_t mask;

    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        if (!is_to_be_ignored(ours[i]))
            sigaddset(&mask, ours[i]);
    }
    signal(SIGCHLD, SIG_DFL); /* inherited as "ignore", it would hide how ranks ended */
    pthread_sigmask(SIG_BLOCK, &mask, &r->old_mask);
    r->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return r->signals >= 0 ? LOOM_OK : loom_fail(LOOM_E_IO, "no signalfd: %s", strerror(errno));
}

static loom_status open_runner(runner *r)
{
    loom_status status;
    size_t ranks = (size_t)r->config->ranks;

    pthread_sigmask(SIG_BLOCK, NULL, &r->old_mask);
    r->workers = calloc(ranks, sizeof *r->workers);
    r->polls = calloc(3 + 2 * ranks, sizeof *r->polls);
    if (!r->workers || !r->polls)
        return loom_fail(LOOM_E_MEMORY, "no memory for %zu ranks", ranks);
    LOOM_TRY(name_run(r));
    LOOM_TRY(loom_folder_make(r->folder));
    LOOM_TRY(loom_guard_open(r->config->ranks, r->grace_s, r->folder, &r->guard));
    LOOM_TRY(take_signals(r));
fail:
    return status;
}

static void close_runner(runner *r)
{
    loom_guard_close(&r->guard);
    if (r->folder[0])
        loom_folder_remove(r->folder);
    if (r->signals >= 0)
        close(r->signals);
    pthread_sigmask(SIG_SETMASK, &r->old_mask, NULL);
    for (int i = 0; i < 2; i++)
        loom_bytes_free(&r->sinks[i].unsent);
    free(r->workers);
    free(r->polls);
}

loom_status loom_spawn(const loom_spawn_config *config, int *exit_code)
{
    runner r = {.config = config,
                .grace_s = config->grace_s > 0 ? config->grace_s : GRACE_S,
                .signals = -1,
                .failed_rank = -1,
                .sinks = {{.fd = STDOUT_FILENO}, {.fd = STDERR_FILENO}}};

    if (config->ranks < 1 || config->max_restarts < 0 || !config->argv || !config->argv[0])
        return loom_fail(LOOM_E_INVALID, "%d ranks, %d restarts, program %s; at least 1 rank, 0 restarts and a program are needed",
                         config->ranks, config->max_restarts, config->argv && config->argv[0] ? config->argv[0] : "(none)");
    loom_status status = open_runner(&r);
    if (status == LOOM_OK)
        status = run_attempts(&r, exit_code);
    close_runner(&r);
    return status;
}
