/* A rank that does nothing but meet the others: opens the store, passes barriers, and misbehaves as its arguments say.
 *
 *   probe_rank [barriers=N] [deadline=S] [open=S] [pause=S] [victim=R how=exit:CODE|kill|hang|throw attempt=K]
 *
 * The victim does its deed after half of the barriers, in attempt K only (default: 0, counted by the restarts of its node); "throw" writes an
 * error file and exits with 7. Any other rank that then finds its peer missing exits with the code of that failure, as a training program would. */
#include <rankloom/launch.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *option(char **arguments, const char *name, const char *fallback)
{
    size_t length = strlen(name);

    for (; *arguments; arguments++)
        if (strncmp(*arguments, name, length) == 0 && (*arguments)[length] == '=')
            return *arguments + length + 1;
    return fallback;
}

static void misbehave(const loom_launch *launch, const char *how)
{
    printf("rank %d: %s\n", launch->rank, how);
    if (strncmp(how, "exit:", 5) == 0)
        exit(atoi(how + 5));
    if (strcmp(how, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(how, "hang") == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    loom_launch_report_error(launch, "the \"probe\" threw\nas it was told to");
    exit(7);
}

static int give_up(const loom_launch *launch, loom_status status)
{
    fprintf(stderr, "rank %d: %s: %s\n", launch->rank, loom_status_name(status), loom_last_error());
    return loom_exit_code(status);
}

int main(int argc, char **argv)
{
    int n_barriers = atoi(option(argv, "barriers", "10")), victim = atoi(option(argv, "victim", "-1"));
    double deadline_s = atof(option(argv, "deadline", "60"));
    loom_launch launch = {0};
    loom_store *store = NULL;

    (void)argc;
    loom_launch_prepare_process();
    loom_status status = loom_launch_from_env(&launch);
    if (status == LOOM_OK)
        status = loom_store_open(&launch, atof(option(argv, "open", "120")), &store);
    if (status != LOOM_OK)
        return give_up(&launch, status);
    for (int i = 0; i < n_barriers && status == LOOM_OK; i++) {
        if (i == n_barriers / 2 && launch.rank == victim && launch.restart == atoi(option(argv, "attempt", "0")))
            misbehave(&launch, option(argv, "how", "exit:1"));
        usleep((useconds_t)(atof(option(argv, "pause", "0")) * 1e6));
        status = loom_store_barrier(store, "probe", deadline_s);
    }
    if (status != LOOM_OK)
        return give_up(&launch, status);
    printf("rank %d of %d passed %d barriers\n", launch.rank, launch.size, n_barriers);
    loom_store_close(store);
    return 0;
}
