/* rankloom run -n N [--max-restarts K] -- PROGRAM [ARGUMENT …] */
#include "options.h"

#include <rankloom/launch.h>

typedef struct run_arguments {
    int ranks, max_restarts;
    double grace_s;
    bool no_prefix;
} run_arguments;

static const loom_option options[] = {
    {"ranks", 'n', LOOM_OPTION_INT, offsetof(run_arguments, ranks), .low = 1, .high = 4096, .takes = "N", .help = "ranks to start (1)"},
    {"max-restarts", 0, LOOM_OPTION_INT, offsetof(run_arguments, max_restarts), .low = 0, .high = 1000000, .takes = "K",
     .help = "start all ranks anew after a failure, at most K times (0)"},
    {"grace", 0, LOOM_OPTION_REAL, offsetof(run_arguments, grace_s), .low = 0.01, .high = 86400, .takes = "SECONDS",
     .help = "time between SIGTERM and SIGKILL (30)"},
    {"no-prefix", 0, LOOM_OPTION_FLAG, offsetof(run_arguments, no_prefix), .help = "pass the ranks' lines on without [rank] in front"},
    {0},
};

static int run(const loom_command *self, int argc, char **argv)
{
    run_arguments arguments = {.ranks = 1, .grace_s = 30};
    loom_operands operands;
    int exit_status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;

    loom_spawn_config config = {
        .ranks = arguments.ranks,
        .max_restarts = arguments.max_restarts,
        .grace_s = arguments.grace_s,
        .prefix_output = !arguments.no_prefix,
        .argv = (const char *const *)operands.at, /* the last operands end argv, which ends with NULL */
    };
    loom_status status = loom_spawn(&config, &exit_status);
    return status == LOOM_OK ? exit_status : loom_command_fail(self, status);
}

const loom_command loom_command_run = {
    .name = "run",
    .summary = "start N ranks of a program on this host",
    .operands = "[--] PROGRAM [ARGUMENT …]",
    .least = 1,
    .most = -1,
    .about = "The ranks get the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, …) and a store that PyTorch's ranks can join too.\n"
             "OMP_NUM_THREADS becomes usable cores / N, at least 1, unless it is set. When a rank fails, the others are ended with SIGTERM and,\n"
             "after the grace time, SIGKILL; the first failure is named, and its exit status (128 + signal) becomes that of the command.",
    .options = options,
    .operands_end_options = true,
    .run = run,
};
