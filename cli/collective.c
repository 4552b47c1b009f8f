/* rankloom collective KIND --bytes S --ranks N --bandwidth W: the arithmetic of one collective. */
#include "options.h"
#include "quantity.h"

#include <rankloom/planner.h>

#include <stdio.h>
#include <string.h>

typedef struct collective_arguments {
    const char *bytes, *bandwidth, *latency;
    int ranks, format;
} collective_arguments;

static const char *const formats[] = {"text", "json", NULL};

static const loom_option options[] = {
    {"bytes", 0, LOOM_OPTION_TEXT, offsetof(collective_arguments, bytes), .takes = "S", .help = "the full buffer: 16GB, 512MiB"},
    {"ranks", 'n', LOOM_OPTION_INT, offsetof(collective_arguments, ranks), .low = 2, .high = 1 << 20, .takes = "N",
     .help = "ranks of the group (8)"},
    {"bandwidth", 0, LOOM_OPTION_TEXT, offsetof(collective_arguments, bandwidth), .takes = "W",
     .help = "of one rank, one direction: 900GB/s, 400Gb/s"},
    {"latency", 0, LOOM_OPTION_TEXT, offsetof(collective_arguments, latency), .takes = "T", .help = "of one step of the ring (0s)"},
    {"format", 0, LOOM_OPTION_CHOICE, offsetof(collective_arguments, format), .choices = formats, .takes = "FORMAT", .help = "text or json (text)"},
    {0},
};

static loom_status pattern_of(const char *name, loom_pattern *pattern)
{
    for (int i = 0; i < LOOM_PATTERNS; i++)
        if (strcmp(loom_pattern_name(i), name) == 0) {
            *pattern = i;
            return LOOM_OK;
        }
    return loom_fail(LOOM_E_INVALID,
                     "no collective is called %s; all_reduce, reduce_scatter, all_gather, all_to_all, broadcast and send are", name);
}

static loom_status print(const collective_arguments *arguments, const char *name)
{
    loom_pattern pattern = LOOM_PATTERN_ALL_REDUCE;
    double bytes, bandwidth, latency = 0;
    char *text;
    loom_status status = pattern_of(name, &pattern);

    if (status == LOOM_OK && (!arguments->bytes || !arguments->bandwidth))
        status = loom_fail(LOOM_E_INVALID, "--bytes and --bandwidth are needed, such as --bytes 16GB --bandwidth 900GB/s");
    if (status == LOOM_OK)
        status = loom_quantity_bytes(arguments->bytes, false, &bytes);
    if (status == LOOM_OK)
        status = loom_quantity_bytes(arguments->bandwidth, true, &bandwidth);
    if (status == LOOM_OK && arguments->latency)
        status = loom_quantity_seconds(arguments->latency, &latency);
    if (status == LOOM_OK)
        status = (arguments->format ? loom_plan_collective_json : loom_plan_collective_text)(pattern, bytes, arguments->ranks, bandwidth, latency, &text);
    if (status != LOOM_OK)
        return status;
    fputs(text, stdout);
    loom_text_free(text);
    return LOOM_OK;
}

static int run(const loom_command *self, int argc, char **argv)
{
    collective_arguments arguments = {.ranks = 8};
    loom_operands operands;
    int exit_status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    loom_status status = print(&arguments, operands.at[0]);
    return status == LOOM_OK ? 0 : loom_command_fail(self, status);
}

const loom_command loom_command_collective = {
    .name = "collective",
    .summary = "traffic and time of one collective, with the formula",
    .operands = "all_reduce|reduce_scatter|all_gather|all_to_all|broadcast|send",
    .least = 1,
    .most = 1,
    .about = "S is the larger of send and receive buffer of one rank. GB is 1e9 bytes, GiB is 2^30.",
    .options = options,
    .run = run,
};
