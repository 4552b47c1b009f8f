/* rankloom run: what ranks are given, what comes out, and that nothing is left behind. The runner is a child of the test, so that it can be
 * signalled and killed. */
#include "check.h"
#include "core/clock.h"

#include <rankloom/launch.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT = 1 << 20 };

/* A run under way or over. */
typedef struct run {
    pid_t runner;
    int pipe;
    int exit_code; /* 128 + signal when a signal ended it */
    size_t length;
    char output[OUTPUT]; /* stdout and stderr */
} run;

static char folder[] = "/tmp/loom-spawn-test-XXXXXX"; /* TMPDIR of the runs: has to be empty after each */
static char notes[sizeof folder + 16];                /* a file for what ranks want to tell the test */

/* `ignored` is what a shell's background or nohup makes of this program's own signals: 0, or one of them. */
static run *start_ignoring(const loom_spawn_config *config, int ignored)
{
    const int terminal[] = {SIGINT, SIGHUP, SIGQUIT};
    run *r = calloc(1, sizeof *r);
    int ends[2];

    assert_non_null(r);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    r->runner = fork();
    if (r->runner == 0) {
        int exit_code = 99;
        for (int i = 0; i < 3; i++)
            signal(terminal[i], terminal[i] == ignored ? SIG_IGN : SIG_DFL);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        if (loom_spawn(config, &exit_code) != LOOM_OK) {
            fprintf(stderr, "refused: %s\n", loom_last_error());
            exit_code = 98;
        }
        fflush(stderr);
        _exit(exit_code);
    }
    close(ends[1]);
    r->pipe = ends[0];
    return r;
}

static run *start(const loom_spawn_config *config)
{
    return start_ignoring(config, 0);
}

/* Reads until `text` came out, or the end. */
static bool read_until(run *r, const char *text)
{
    double give_up = loom_now_s() + 30;

    while (!(text && strstr(r->output, text)) && loom_now_s() < give_up) {
        struct pollfd poll_fd = {.fd = r->pipe, .events = POLLIN};
        if (poll(&poll_fd, 1, 1000) <= 0)
            continue;
        ssize_t n = read(r->pipe, r->output + r->length, OUTPUT - 1 - r->length);
        if (n <= 0)
            return false;
        r->length += (size_t)n;
    }
    return text && strstr(r->output, text);
}

static run *finish(run *r)
{
    int status;

    read_until(r, NULL);
    assert_int_equal(waitpid(r->runner, &status, 0), r->runner);
    r->exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    close(r->pipe);
    return r;
}

static bool is_empty(const char *path)
{
    DIR *entries = opendir(path);
    int n = 0;

    assert_non_null(entries);
    while (readdir(entries))
        n++;
    closedir(entries);
    return n == 2;
}

static void expect(const run *r, int exit_code, const char *text)
{
    if (r->exit_code != exit_code || !strstr(r->output, text))
        fail_msg("exit code %d, expected %d with \"%s\":\n%s", r->exit_code, exit_code, text, r->output);
    assert_true(is_empty(folder));
}

static void expect_without(const run *r, const char *text)
{
    if (strstr(r->output, text))
        fail_msg("\"%s\" was not expected:\n%s", text, r->output);
}

static loom_spawn_config shell(int ranks, const char *const argv[])
{
    return (loom_spawn_config){.ranks = ranks, .grace_s = 10, .prefix_output = true, .argv = argv};
}

#define SHELL(ranks, script) shell(ranks, (const char *const[]){"/bin/sh", "-c", script, NULL})
#define PROBE(ranks, ...) shell(ranks, (const char *const[]){getenv("PROBE_RANK"), __VA_ARGS__, NULL})

/* --- what ranks are given --------------------------------------------------------------------------------------------------- */

static void ranks_get_the_variables_of_torchrun(void **state)
{
    const char *const lines[] = {
        "[2] RANK=2\n",
        "[2] WORLD_SIZE=3\n",
        "[2] LOCAL_RANK=2\n",
        "[2] LOCAL_WORLD_SIZE=3\n",
        "[2] GROUP_RANK=0\n",
        "[2] ROLE_RANK=2\n",
        "[2] ROLE_WORLD_SIZE=3\n",
        "[2] GROUP_WORLD_SIZE=1\n",
        "[0] RANK=0\n",
        "[0] ROLE_NAME=default\n",
        "[0] MASTER_ADDR=127.0.0.1\n",
        "[0] TORCHELASTIC_RESTART_COUNT=0\n",
        "[1] LOCAL_RANK=1\n",
        "[1] TORCHELASTIC_MAX_RESTARTS=4\n",
        "[1] TORCHELASTIC_USE_AGENT_STORE=True\n",
        "[1] OMP_NUM_THREADS=1\n",
        "[1] KEPT=as it was\n",
        "[1] TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n",
        "/attempt_0/1/error.json\n",
    };
    loom_spawn_config config = SHELL(3, "env");

    (void)state;
    setenv("RANK", "17", 1); /* of an outer launcher: has to be replaced */
    setenv("KEPT", "as it was", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    config.max_restarts = 4;
    run *r = finish(start(&config));
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        expect(r, 0, lines[i]);
    expect_without(r, "RANK=17");
    unsetenv("RANK");
    unsetenv("OMP_NUM_THREADS");
    free(r);
}

static void cores_are_shared_out_unless_the_user_did(void **state)
{
    loom_spawn_config alone = SHELL(1, "test $OMP_NUM_THREADS -eq $(nproc)"), many = SHELL(64, "test $OMP_NUM_THREADS -ge 1");
    loom_spawn_config given = SHELL(2, "test $OMP_NUM_THREADS = 7");

    (void)state;
    unsetenv("OMP_NUM_THREADS");
    run *r = finish(start(&alone));
    expect(r, 0, "");
    free(r);
    r = finish(start(&many));
    expect(r, 0, "");
    free(r);
    setenv("OMP_NUM_THREADS", "7", 1);
    r = finish(start(&given));
    expect(r, 0, "");
    unsetenv("OMP_NUM_THREADS");
    free(r);
}

static void ranks_meet_in_the_store(void **state)
{
    loom_spawn_config config = PROBE(5, "barriers=20");
    run *r = finish(start(&config));

    (void)state;
    expect(r, 0, "[4] rank 4 of 5 passed 20 barriers\n");
    expect(r, 0, "[0] rank 0 of 5 passed 20 barriers\n");
    free(r);
}

static void nothing_to_read_on_stdin(void **state)
{
    loom_spawn_config config = SHELL(2, "test -z \"$(cat)\" && echo empty");
    run *r = finish(start(&config));

    (void)state;
    expect(r, 0, "[1] empty\n");
    free(r);
}

/* --- what comes out ------------------------------------------------------------------------------------------------------------- */

/* Every line is made of three writes, of a length that no pipe or buffer likes; the last has no end. */
static void lines_stay_whole(void **state)
{
    enum { RANKS = 4, LINES = 300 };
    const char *script =
        "i=0; while [ $i -lt 300 ]; do printf \"<$RANK\"; printf \":$i:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"; "
        "printf '>\\n'; i=$((i+1)); done; printf \"end of $RANK\"";
    loom_spawn_config config = SHELL(RANKS, script);
    run *r = finish(start(&config));
    int n_lines[RANKS] = {0}, n_ends = 0;

    (void)state;
    assert_int_equal(r->exit_code, 0);
    for (char *line = strtok(r->output, "\n"); line; line = strtok(NULL, "\n")) {
        int prefix, rank, i;
        char tail[128];
        if (sscanf(line, "[%d] end of %d%127s", &prefix, &rank, tail) == 2 && prefix == rank) {
            n_ends++;
            continue;
        }
        assert_int_equal(sscanf(line, "[%d] <%d:%d:%127s", &prefix, &rank, &i, tail), 4);
        assert_int_equal(prefix, rank);
        assert_string_equal(tail, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa>");
        assert_int_equal(i, n_lines[rank]++); /* and in order */
    }
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(n_lines[rank], LINES);
    assert_int_equal(n_ends, RANKS);
    free(r);
}

static void the_prefix_can_be_left_out(void **state)
{
    loom_spawn_config config = SHELL(2, "echo \"line of $RANK\"");

    (void)state;
    config.prefix_output = false;
    run *r = finish(start(&config));
    expect(r, 0, "line of 1\n");
    expect_without(r, "[1]");
    free(r);
}

/* --- failures ------------------------------------------------------------------------------------------------------------------- */

static void the_first_failure_is_named_with_its_words(void **state)
{
    loom_spawn_config config = PROBE(3, "victim=1", "how=throw", "deadline=20");
    run *r = finish(start(&config));

    (void)state;
    expect(r, 7, "rankloom run: rank 1 (process ");
    expect(r, 7, "ended with exit status 7: the \"probe\" threw; ending the others\n");
    free(r);
}

static void a_signal_is_named_and_becomes_the_exit_code(void **state)
{
    loom_spawn_config config = PROBE(3, "victim=2", "how=kill", "deadline=20");
    run *r = finish(start(&config));

    (void)state;
    expect(r, 128 + SIGKILL, "was killed by signal 9 (Killed); ending the others\n");
    free(r);
}

/* torchrun's launcher crashes over such files; ours says what it found. */
static void a_broken_error_file_is_no_second_failure(void **state)
{
    loom_spawn_config config = SHELL(1, "echo '{\"message\":' >$TORCHELASTIC_ERROR_FILE; exit 5");
    run *r = finish(start(&config));

    (void)state;
    expect(r, 5, "exit status 5: an error file that cannot be read");
    free(r);
    config = SHELL(1, "echo '{\"message\":\"flat\",\"timestamp\":1700000000}' >$TORCHELASTIC_ERROR_FILE; exit 5");
    r = finish(start(&config));
    expect(r, 5, "exit status 5: flat;");
    free(r);
}

static void who_ignores_sigterm_is_killed_after_the_grace_time(void **state)
{
    loom_spawn_config config = SHELL(2, "trap '' TERM; if [ $RANK = 1 ]; then exit 3; fi; echo ready; while :; do sleep 0.1; done");
    double began = loom_now_s();

    (void)state;
    config.grace_s = 0.5;
    run *r = finish(start(&config));
    expect(r, 3, "rank 1 (process ");
    assert_true(loom_now_s() - began >= 0.5 && loom_now_s() - began < 20);
    free(r);
}

static void children_of_ranks_that_ended_well_are_ended_too(void **state)
{
    char script[256];

    (void)state;
    snprintf(script, sizeof script, "sleep 1000 >/dev/null 2>&1 & echo $! >%s", notes);
    loom_spawn_config config = SHELL(1, script);
    run *r = finish(start(&config));
    expect(r, 0, "");
    free(r);
    FILE *file = fopen(notes, "r");
    int pid = 0;
    assert_int_equal(fscanf(file, "%d", &pid), 1);
    fclose(file);
    assert_int_equal(kill(pid, 0), -1);
}

static void what_cannot_be_started_is_refused(void **state)
{
    loom_spawn_config config = shell(2, (const char *const[]){"/no/such/program", NULL}), no_ranks = SHELL(0, "true");
    run *r = finish(start(&config));

    (void)state;
    expect(r, 98, "refused: cannot start the program /no/such/program: No such file or directory");
    free(r);
    r = finish(start(&no_ranks));
    expect(r, 98, "at least 1 rank");
    free(r);
}

/* --- restarts -------------------------------------------------------------------------------------------------------------------- */

static void all_ranks_start_anew_after_a_failure(void **state)
{
    loom_spawn_config config = PROBE(3, "victim=0", "how=kill", "deadline=20"); /* in attempt 0 */

    (void)state;
    config.max_restarts = 2;
    run *r = finish(start(&config));
    expect(r, 0, "rankloom run: restart 1 of 2\n");
    expect(r, 0, "[2] rank 2 of 3 passed 10 barriers\n");
    expect_without(r, "restart 2 of 2");
    free(r);
}

static void restarts_come_to_an_end(void **state)
{
    loom_spawn_config config = SHELL(2, "echo attempt $TORCHELASTIC_RESTART_COUNT; exit $((4 + TORCHELASTIC_RESTART_COUNT))");

    (void)state;
    config.max_restarts = 2;
    run *r = finish(start(&config));
    expect(r, 6, "restart 2 of 2");
    expect(r, 6, "attempt 2");
    free(r);
}

/* --- signals and the runner's death ------------------------------------------------------------------------------------------------- */

static void signals_are_passed_on_as_they_are(void **state)
{
    const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    const char *const words[] = {"got TERM", "got INT", "got HUP", "got QUIT"};
    const char *script = "for s in TERM INT HUP QUIT; do trap \"echo got $s; exit 0\" $s; done; echo ready; while :; do sleep 0.05; done";

    (void)state;
    for (int i = 0; i < 4; i++) {
        loom_spawn_config config = SHELL(1, script);
        run *r = start(&config);
        assert_true(read_until(r, "[0] ready"));
        kill(r->runner, signals[i]);
        finish(r);
        expect(r, 128 + signals[i], words[i]);
        free(r);
    }
}

static void who_was_started_under_nohup_outlives_the_terminal(void **state)
{
    char script[sizeof notes + 100];
    int note;

    (void)state;
    snprintf(script, sizeof script, "echo ready; while [ ! -e %s ]; do sleep 0.05; done; echo done", notes);
    loom_spawn_config config = SHELL(1, script);
    run *r = start_ignoring(&config, SIGHUP);
    assert_true(read_until(r, "[0] ready"));
    kill(r->runner, SIGHUP);
    assert_true((note = open(notes, O_CREAT | O_WRONLY, 0600)) >= 0);
    close(note);
    finish(r);
    unlink(notes);
    expect(r, 0, "[0] done");
    expect_without(r, "passing it on");
    free(r);
}

static void user_signals_are_passed_on_and_end_nothing(void **state)
{
    loom_spawn_config config = SHELL(1, "trap 'echo saved; exit 0' USR1; echo ready; while :; do sleep 0.05; done");
    run *r = start(&config);

    (void)state;
    assert_true(read_until(r, "[0] ready"));
    kill(r->runner, SIGUSR1);
    finish(r);
    expect(r, 0, "[0] saved");
    free(r);
}

static void a_second_signal_does_not_wait_for_the_grace_time(void **state)
{
    loom_spawn_config config = SHELL(1, "trap '' INT TERM; echo ready; while :; do sleep 0.05; done");
    run *r = start(&config);
    double began = loom_now_s();

    (void)state;
    assert_true(read_until(r, "[0] ready"));
    kill(r->runner, SIGINT);
    assert_true(read_until(r, "passing it on"));
    kill(r->runner, SIGINT);
    finish(r);
    expect(r, 128 + SIGINT, "passing it on");
    assert_true(loom_now_s() - began < 9); /* the grace time is 10 */
    free(r);
}

static int read_pids(int *pids, int most)
{
    FILE *file = fopen(notes, "r");
    int n = 0;

    while (file && n < most && fscanf(file, "%d", &pids[n]) == 1)
        n++;
    if (file)
        fclose(file);
    return n;
}

/* Of a process that ended as an orphan nothing may be left but, where nobody reaps, a zombie. */
static bool is_alive(int pid)
{
    char path[64], state = 'Z';
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "r");
    if (!file)
        return false;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(file);
    return state != 'Z';
}

/* Ranks that ignore SIGTERM, each with a child that does too: nobody but the guard can end those. */
static void nothing_survives_the_kill_of_the_runner(void **state)
{
    char script[512];
    int pids[4], n_alive = 4;

    (void)state;
    unlink(notes);
    snprintf(script, sizeof script, "trap '' TERM; sleep 1000 & echo \"$$ $!\" >>%s; echo ready $RANK; while :; do sleep 0.05; done",
             notes);
    loom_spawn_config config = SHELL(2, script);
    config.grace_s = 0.3;
    run *r = start(&config);
    assert_true(read_until(r, "ready 0") && read_until(r, "ready 1"));
    assert_int_equal(read_pids(pids, 4), 4);
    kill(r->runner, SIGKILL);
    for (double give_up = loom_now_s() + 20; n_alive > 0 && loom_now_s() < give_up; loom_sleep_s(0.05)) {
        n_alive = 0;
        for (int i = 0; i < 4; i++)
            n_alive += is_alive(pids[i]);
    }
    assert_int_equal(n_alive, 0);
    finish(r);
    for (double give_up = loom_now_s() + 20; !is_empty(folder) && loom_now_s() < give_up;)
        loom_sleep_s(0.05);
    expect(r, 128 + SIGKILL, "");
    free(r);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    snprintf(notes, sizeof notes, "%s.notes", folder);
    return setenv("TMPDIR", folder, 1);
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(notes);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_get_the_variables_of_torchrun),
        cmocka_unit_test(cores_are_shared_out_unless_the_user_did),
        cmocka_unit_test(ranks_meet_in_the_store),
        cmocka_unit_test(nothing_to_read_on_stdin),
        cmocka_unit_test(lines_stay_whole),
        cmocka_unit_test(the_prefix_can_be_left_out),
        cmocka_unit_test(the_first_failure_is_named_with_its_words),
        cmocka_unit_test(a_signal_is_named_and_becomes_the_exit_code),
        cmocka_unit_test(a_broken_error_file_is_no_second_failure),
        cmocka_unit_test(who_ignores_sigterm_is_killed_after_the_grace_time),
        cmocka_unit_test(children_of_ranks_that_ended_well_are_ended_too),
        cmocka_unit_test(what_cannot_be_started_is_refused),
        cmocka_unit_test(all_ranks_start_anew_after_a_failure),
        cmocka_unit_test(restarts_come_to_an_end),
        cmocka_unit_test(signals_are_passed_on_as_they_are),
        cmocka_unit_test(who_was_started_under_nohup_outlives_the_terminal),
        cmocka_unit_test(user_signals_are_passed_on_and_end_nothing),
        cmocka_unit_test(a_second_signal_does_not_wait_for_the_grace_time),
        cmocka_unit_test(nothing_survives_the_kill_of_the_runner),
    };

    return cmocka_run_group_tests_name("rankloom run", tests, make_folder, remove_folder);
}
