/* rankloom simulate LAYOUT --model M --topology T: a step in virtual time on all ranks, with what may go wrong, and the run that is made of such steps. */
#include "failure_costs.h"
#include "layout_file.h"
#include "options.h"
#include "quantity.h"
#include "write_text.h"

#include <rankloom/simulate.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 64 };

static const char *const formats[] = {"text", "json", NULL};

typedef struct simulate_arguments {
    const char *model, *topology, *framework, *trace, *trace_ranks;
    int global_batch, seed, format, steps, spares;
    double jitter;
    loom_option_list slow, slow_link, set, fail;
    bool failures;
    const char *period;
    failure_costs costs;
} simulate_arguments;

#define FIELD(name) offsetof(simulate_arguments, name)
static const loom_option options[] = {
    {"model", 'm', LOOM_OPTION_TEXT, FIELD(model), .takes = "FILE", .help = "model YAML or config.json (the model section of the file)"},
    {"topology", 't', LOOM_OPTION_TEXT, FIELD(topology), .takes = "FILE", .help = "the machine room"},
    {"global-batch", 0, LOOM_OPTION_INT, FIELD(global_batch), .low = 1, .high = 1 << 30, .takes = "N", .help = "sequences a step, other than the layout's"},
    {"slow", 0, LOOM_OPTION_LIST, FIELD(slow), .takes = "rank=R,factor=F", .help = "rank R computes F times as long"},
    {"slow-link", 0, LOOM_OPTION_LIST, FIELD(slow_link), .takes = "rank=R,factor=F", .help = "what rank R sends and receives takes F times as long"},
    {"jitter", 0, LOOM_OPTION_REAL, FIELD(jitter), .low = 0, .high = 1, .takes = "SHARE", .help = "standard deviation of every action on every rank (0)"},
    {"seed", 0, LOOM_OPTION_INT, FIELD(seed), .low = 0, .high = 1 << 30, .takes = "N", .help = "of the jitter and the failures (0)"},
    {"fail", 0, LOOM_OPTION_LIST, FIELD(fail), .takes = "rank=R,at=TIME", .help = "rank R fails that long into the run; node=N,at=TIME: a node"},
    {"failures", 0, LOOM_OPTION_FLAG, FIELD(failures), .help = "devices fail at random, at the rate of --device-hours or --record"},
    {"period", 0, LOOM_OPTION_TEXT, FIELD(period), .takes = "TIME", .help = "of the run (24h, once something fails)"},
    {"steps", 0, LOOM_OPTION_INT, FIELD(steps), .low = 1, .high = 1 << 30, .takes = "N", .help = "instead: the run ends when N steps are done"},
    {"spares", 0, LOOM_OPTION_INT, FIELD(spares), .low = 0, .high = 1 << 20, .takes = "K", .help = "nodes that wait to replace failed ones (always enough)"},
    FAILURE_COSTS_OPTIONS(FIELD(costs)),
    {"trace", 0, LOOM_OPTION_TEXT, FIELD(trace), .takes = "FILE.json", .help = "write a trace for Perfetto"},
    {"trace-ranks", 0, LOOM_OPTION_TEXT, FIELD(trace_ranks), .takes = "R,R,…", .help = "ranks of the trace (one of each stage)"},
    {"framework", 0, LOOM_OPTION_TEXT, FIELD(framework), .takes = "NAME", .help = "whose habits to assume: rankloom, nemo, torchtitan, … (rankloom)"},
    {"set", 0, LOOM_OPTION_LIST, FIELD(set), .takes = "NAME=VALUE", .help = "a constant: h100.sustained=0.8"},
    {"format", 0, LOOM_OPTION_CHOICE, FIELD(format), .choices = formats, .takes = "FORMAT", .help = "text or json (text)"},
    {0},
};

static loom_status read_handicaps(const loom_option_list *list, const char *option, loom_handicap *handicaps)
{
    for (int i = 0; i < list->count; i++) {
        int end = 0;
        if (sscanf(list->at[i], "rank=%d,factor=%lf%n", &handicaps[i].rank, &handicaps[i].factor, &end) != 2 || list->at[i][end] != '\0')
            return loom_fail(LOOM_E_INVALID, "--%s %s: is written rank=137,factor=1.3", option, list->at[i]);
    }
    return LOOM_OK;
}

/* "rank=137,at=3h" or "node=17,at=3h": a node is known by its first rank. */
static loom_status read_failure(const char *text, const loom_topology *topology, loom_run_failure *failure)
{
    int number, end = 0, ranks = loom_topology_ranks(topology);
    bool node = strncmp(text, "node=", 5) == 0;

    if (sscanf(text, node ? "node=%d,at=%n" : "rank=%d,at=%n", &number, &end) != 1 || end == 0)
        return loom_fail(LOOM_E_INVALID, "--fail %s: is written rank=137,at=3h or node=17,at=3h", text);
    failure->rank = number;
    for (int rank = 0; node && rank <= ranks; rank++) {
        if (rank == ranks)
            return loom_fail(LOOM_E_INVALID, "--fail %s: there is no such node", text);
        failure->rank = rank;
        node = loom_topology_node_of(topology, rank) != number;
    }
    return loom_quantity_seconds(text + end, &failure->at_s);
}

static bool wants_run(const simulate_arguments *a)
{
    return a->fail.count > 0 || a->failures || a->period || a->steps > 0;
}

static loom_status read_run(const simulate_arguments *a, const loom_topology *topology, loom_run_failure *failures, loom_run_request *run)
{
    static const failure_costs none;
    loom_status status;

    *run = (loom_run_request){.steps = a->steps, .failures = failures, .n_failures = a->fail.count, .drawn = a->failures, .seed = (uint64_t)a->seed, .spares = a->spares};
    if (!wants_run(a))
        return memcmp(&none, &a->costs, sizeof none) == 0 && a->spares < 0
                   ? LOOM_OK
                   : loom_fail(LOOM_E_INVALID, "costs of failures are given and no run that could have any: --fail, --failures, --period or --steps ask for one");
    if (a->steps > 0 && a->period)
        return loom_fail(LOOM_E_INVALID, "--steps and --period both end the run; one of them does");
    for (int i = 0; i < a->fail.count; i++)
        if ((status = read_failure(a->fail.at[i], topology, &failures[i])) < 0)
            return status;
    if (a->steps == 0)
        run->period_s = 24 * 3600;
    if (a->period && (status = loom_quantity_seconds(a->period, &run->period_s)) < 0)
        return status;
    return failure_costs_read(&a->costs, &run->costs);
}

static loom_status read_ranks(const simulate_arguments *a, const loom_layout *l, int *ranks, int *count)
{
    const char *at = a->trace_ranks;

    *count = 0;
    if (!at) {
        for (int stage = 0; stage < l->pp && stage < MOST_RANKS; stage++)
            ranks[(*count)++] = loom_layout_rank(l, (const int[4]){0, 0, 0, stage});
        return LOOM_OK;
    }
    for (;;) {
        char *end;
        long rank = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || *count == MOST_RANKS)
            return loom_fail(LOOM_E_INVALID, "--trace-ranks %s: is a list like 0,137 of at most %d ranks", a->trace_ranks, MOST_RANKS);
        ranks[(*count)++] = (int)rank;
        if (!*end)
            return LOOM_OK;
        at = end + 1;
    }
}

static loom_status write_trace(const simulate_arguments *a, const loom_rehearsal_request *request, const loom_rehearsal *rehearsal)
{
    int ranks[MOST_RANKS], count;
    char *text = NULL;
    loom_status status = read_ranks(a, request->layout, ranks, &count);

    if (status == LOOM_OK)
        status = loom_rehearsal_trace(request, rehearsal, ranks, count, &text);
    if (status < 0)
        return status;
    status = write_text(text, a->trace);
    loom_text_free(text);
    return status;
}

static loom_status rehearse(const simulate_arguments *a, const loom_rehearsal_request *request)
{
    loom_rehearsal rehearsal;
    char *text = NULL;
    loom_status status = loom_rehearse(request, &rehearsal);

    if (status < 0)
        return status;
    status = a->format ? loom_rehearsal_json(request, &rehearsal, &text) : loom_rehearsal_describe(request, &rehearsal, &text);
    if (status == LOOM_OK)
        fputs(text, stdout);
    loom_text_free(text);
    if (status == LOOM_OK && a->trace)
        status = write_trace(a, request, &rehearsal);
    loom_rehearsal_free(&rehearsal);
    return status;
}

static loom_status simulate(const simulate_arguments *a, const char *operand, loom_topology *topology)
{
    layout_file *file = calloc(1, sizeof *file);
    loom_handicap slow[LOOM_OPTION_LIST_MOST], slow_link[LOOM_OPTION_LIST_MOST];
    loom_run_failure failures[LOOM_OPTION_LIST_MOST];
    loom_run_request run;
    loom_plan_request plan = {.topology = topology, .framework = a->framework, .set = a->set.at};
    loom_rehearsal_request request = {.plan = &plan, .layout = file ? &file->layout : NULL, .slow = slow, .slow_link = slow_link, .n_slow = a->slow.count, .n_slow_link = a->slow_link.count,
                                      .jitter = a->jitter, .seed = (uint64_t)a->seed, .run = wants_run(a) ? &run : NULL};
    loom_status status = file ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for the layout");

    if (status == LOOM_OK)
        status = read_handicaps(&a->slow, "slow", slow);
    if (status == LOOM_OK)
        status = read_handicaps(&a->slow_link, "slow-link", slow_link);
    if (status == LOOM_OK)
        status = read_run(a, topology, failures, &run);
    if (status == LOOM_OK)
        status = layout_file_for_plan(operand, a->model, a->global_batch, file, &plan);
    if (status == LOOM_OK)
        status = rehearse(a, &request);
    free(file);
    return status;
}

static int run(const loom_command *self, int argc, char **argv)
{
    simulate_arguments arguments = {.spares = -1};
    loom_operands operands;
    loom_topology *topology = NULL;
    int exit_status;
    loom_status status = LOOM_OK;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    if (!arguments.topology)
        status = loom_fail(LOOM_E_INVALID, "--topology FILE is needed: the machine room to run on");
    if (status == LOOM_OK)
        status = loom_topology_load(arguments.topology, &topology);
    if (status == LOOM_OK)
        status = simulate(&arguments, operands.at[0], topology);
    loom_topology_free(topology);
    return status < 0 ? loom_command_fail(self, status) : 0;
}

const loom_command loom_command_simulate = {
    .name = "simulate",
    .summary = "rehearse a step in virtual time on all ranks, with slow devices, slow links, jitter; and a run of such steps, with failures",
    .operands = "RUN.yaml|LAYOUT.yaml|\"tp=8,pp=4\"",
    .least = 1,
    .most = 1,
    .about = "Replays the schedule that will run, with the group operations of every axis. Ranks of a tp or cp group move together, and those of an ep group or of ZeRO-3;\n"
             "pipelines meet at the reduction of gradients. Alike pipelines are run once.\n"
             "--fail, --failures, --period or --steps play a run of such steps: a failure costs what was done since the last safe checkpoint, its detection and a\n"
             "restart. docs/simulate.md has the rules.",
    .options = options,
    .run = run,
};
