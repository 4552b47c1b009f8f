/* rankloom simulate LAYOUT --model M --topology T: a step in virtual time on all ranks, with what may go wrong. */
#include "layout_file.h"
#include "options.h"
#include "write_text.h"

#include <rankloom/simulate.h>

#include <stdio.h>
#include <stdlib.h>

enum { MOST_RANKS = 64 };

static const char *const formats[] = {"text", "json", NULL};

typedef struct simulate_arguments {
    const char *model, *topology, *framework, *trace, *trace_ranks;
    int global_batch, seed, format;
    double jitter;
    loom_option_list slow, slow_link, set;
} simulate_arguments;

#define FIELD(name) offsetof(simulate_arguments, name)
static const loom_option options[] = {
    {"model", 'm', LOOM_OPTION_TEXT, FIELD(model), .takes = "FILE", .help = "model YAML or config.json (the model section of the file)"},
    {"topology", 't', LOOM_OPTION_TEXT, FIELD(topology), .takes = "FILE", .help = "the machine room"},
    {"global-batch", 0, LOOM_OPTION_INT, FIELD(global_batch), .low = 1, .high = 1 << 30, .takes = "N", .help = "sequences a step, other than the layout's"},
    {"slow", 0, LOOM_OPTION_LIST, FIELD(slow), .takes = "rank=R,factor=F", .help = "rank R computes F times as long"},
    {"slow-link", 0, LOOM_OPTION_LIST, FIELD(slow_link), .takes = "rank=R,factor=F", .help = "what rank R sends and receives takes F times as long"},
    {"jitter", 0, LOOM_OPTION_REAL, FIELD(jitter), .low = 0, .high = 1, .takes = "SHARE", .help = "standard deviation of every action on every rank (0)"},
    {"seed", 0, LOOM_OPTION_INT, FIELD(seed), .low = 0, .high = 1 << 30, .takes = "N", .help = "of the jitter (0)"},
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

static loom_status write_trace(const simulate_arguments *a, const loom_rehearsal_request *request)
{
    int ranks[MOST_RANKS], count;
    char *text = NULL;
    loom_status status = read_ranks(a, request->layout, ranks, &count);

    if (status == LOOM_OK)
        status = loom_rehearsal_trace(request, ranks, count, &text);
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
    loom_rehearsal_free(&rehearsal);
    return status == LOOM_OK && a->trace ? write_trace(a, request) : status;
}

static loom_status simulate(const simulate_arguments *a, const char *operand, loom_topology *topology)
{
    layout_file *file = calloc(1, sizeof *file);
    loom_handicap slow[LOOM_OPTION_LIST_MOST], slow_link[LOOM_OPTION_LIST_MOST];
    loom_plan_request plan = {.topology = topology, .framework = a->framework, .set = a->set.at};
    loom_rehearsal_request request = {.plan = &plan, .layout = file ? &file->layout : NULL, .slow = slow, .slow_link = slow_link, .n_slow = a->slow.count, .n_slow_link = a->slow_link.count,
                                      .jitter = a->jitter, .seed = (uint64_t)a->seed};
    loom_status status = file ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for the layout");

    if (status == LOOM_OK)
        status = read_handicaps(&a->slow, "slow", slow);
    if (status == LOOM_OK)
        status = read_handicaps(&a->slow_link, "slow-link", slow_link);
    if (status == LOOM_OK)
        status = layout_file_for_plan(operand, a->model, a->global_batch, file, &plan);
    if (status == LOOM_OK)
        status = rehearse(a, &request);
    free(file);
    return status;
}

static int run(const loom_command *self, int argc, char **argv)
{
    simulate_arguments arguments = {0};
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
    .summary = "rehearse a step in virtual time on all ranks, with slow devices, slow links, jitter",
    .operands = "RUN.yaml|LAYOUT.yaml|\"tp=8,pp=4\"",
    .least = 1,
    .most = 1,
    .about = "Replays the schedule that will run, with the group operations of every axis. Ranks of a tp or cp group move together, and those of an ep group or of ZeRO-3;\n"
             "pipelines meet at the reduction of gradients. Alike pipelines are run once. docs/simulate.md has the rules.",
    .options = options,
    .run = run,
};
