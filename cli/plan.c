/* rankloom plan MODEL --topology T: the best layouts. rankloom predict MODEL --topology T --layout L: one layout in full. */
#include "options.h"
#include "quantity.h"
#include "write_text.h"

#include <rankloom/draw.h>
#include <rankloom/forecast.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct plan_arguments {
    const char *topology, *framework, *explain, *output, *html, *layout;
    int format, max_gpus, global_batch, micro_batch, keep;
    double margin;
    bool map, pareto, fewer;
    loom_option_list fix, exclude, set, measured;
} plan_arguments;

static const char *const formats[] = {"text", "json", "yaml", NULL};

static const loom_option plan_options[] = {
    {"topology", 't', LOOM_OPTION_TEXT, offsetof(plan_arguments, topology), .takes = "FILE",
     .help = "the machine room: a cluster file, hwloc XML, …"},
    {"global-batch", 0, LOOM_OPTION_INT, offsetof(plan_arguments, global_batch), .low = 1, .high = 1 << 30, .takes = "N",
     .help = "sequences a step (train.global_batch)"},
    {"micro-batch", 0, LOOM_OPTION_INT, offsetof(plan_arguments, micro_batch), .low = 1, .high = 1 << 20, .takes = "N",
     .help = "sequences at once; not given: any"},
    {"max-gpus", 0, LOOM_OPTION_INT, offsetof(plan_arguments, max_gpus), .low = 1, .high = 1 << 20, .takes = "N",
     .help = "devices to use at most (all)"},
    {"memory-margin", 0, LOOM_OPTION_REAL, offsetof(plan_arguments, margin), .low = 0.001, .high = 0.9, .takes = "SHARE",
     .help = "memory to leave free (0.05)"},
    {"framework", 0, LOOM_OPTION_TEXT, offsetof(plan_arguments, framework), .takes = "NAME",
     .help = "whose habits to assume: rankloom, nemo, torchtitan, … (rankloom)"},
    {"fix", 0, LOOM_OPTION_LIST, offsetof(plan_arguments, fix), .takes = "FIELD=V",
     .help = "only layouts with tp=8, pp<4, recompute=none, …"},
    {"exclude", 0, LOOM_OPTION_LIST, offsetof(plan_arguments, exclude), .takes = "FIELD=V",
     .help = "no layouts with cp>1, schedule=gpipe, …"},
    {"measured", 0, LOOM_OPTION_LIST, offsetof(plan_arguments, measured), .takes = "LAYOUT:TIME",
     .help = "a step that was timed: \"tp=8,pp=16: 5.32s\""},
    {"set", 0, LOOM_OPTION_LIST, offsetof(plan_arguments, set), .takes = "NAME=VALUE", .help = "a constant: h100.sustained=0.8"},
    {"keep", 0, LOOM_OPTION_INT, offsetof(plan_arguments, keep), .low = 1, .high = 31, .takes = "N", .help = "layouts to show (5)"},
    {"pareto", 0, LOOM_OPTION_FLAG, offsetof(plan_arguments, pareto), .help = "also the front over time, memory and devices"},
    {"fewer-gpus", 0, LOOM_OPTION_FLAG, offsetof(plan_arguments, fewer), .help = "also look at half, a quarter, … of the devices"},
    {"explain", 0, LOOM_OPTION_TEXT, offsetof(plan_arguments, explain), .takes = "LAYOUT", .help = "why not this one? \"tp=16,pp=2\""},
    {"map", 0, LOOM_OPTION_FLAG, offsetof(plan_arguments, map), .help = "coordinates of every rank and the ranks of every group"},
    {"format", 0, LOOM_OPTION_CHOICE, offsetof(plan_arguments, format), .choices = formats, .takes = "FORMAT",
     .help = "text, json or yaml (text)"},
    {"output", 'o', LOOM_OPTION_TEXT, offsetof(plan_arguments, output), .takes = "FILE",
     .help = "write the best layout there, for gpt_3d layout=FILE"},
    {"html", 0, LOOM_OPTION_TEXT, offsetof(plan_arguments, html), .takes = "FILE.html", .help = "write a report with tables and pictures there"},
    {0},
};

static const loom_option predict_options[] = {
    {"topology", 't', LOOM_OPTION_TEXT, offsetof(plan_arguments, topology), .takes = "FILE",
     .help = "the machine room: a cluster file, hwloc XML, …"},
    {"layout", 'l', LOOM_OPTION_TEXT, offsetof(plan_arguments, layout), .takes = "LAYOUT", .help = "a layout file, or \"tp=8,pp=4,mbs=2\""},
    {"global-batch", 0, LOOM_OPTION_INT, offsetof(plan_arguments, global_batch), .low = 1, .high = 1 << 30, .takes = "N",
     .help = "sequences a step (train.global_batch)"},
    {"max-gpus", 0, LOOM_OPTION_INT, offsetof(plan_arguments, max_gpus), .low = 1, .high = 1 << 20, .takes = "N",
     .help = "devices to use (all)"},
    {"memory-margin", 0, LOOM_OPTION_REAL, offsetof(plan_arguments, margin), .low = 0.001, .high = 0.9, .takes = "SHARE",
     .help = "memory to leave free (0.05)"},
    {"framework", 0, LOOM_OPTION_TEXT, offsetof(plan_arguments, framework), .takes = "NAME", .help = "whose habits to assume (rankloom)"},
    {"measured", 0, LOOM_OPTION_LIST, offsetof(plan_arguments, measured), .takes = "LAYOUT:TIME",
     .help = "a step that was timed: \"tp=8,pp=16: 5.32s\""},
    {"set", 0, LOOM_OPTION_LIST, offsetof(plan_arguments, set), .takes = "NAME=VALUE", .help = "a constant: h100.sustained=0.8"},
    {"map", 0, LOOM_OPTION_FLAG, offsetof(plan_arguments, map), .help = "coordinates of every rank and the ranks of every group"},
    {"format", 0, LOOM_OPTION_CHOICE, offsetof(plan_arguments, format), .choices = formats, .takes = "FORMAT",
     .help = "text, json or yaml (text)"},
    {0},
};

/* What a request borrows, for as long as the command runs. */
typedef struct plan_inputs {
    loom_model model;
    loom_topology *topology;
    loom_measured_step measured[LOOM_OPTION_LIST_MOST];
    char measured_text[LOOM_OPTION_LIST_MOST][128];
    loom_plan_request request;
} plan_inputs;

/* "tp=8,pp=16: 5.32s" */
static loom_status read_measured(const char *text, char *layout, size_t bytes, loom_measured_step *step)
{
    const char *colon = strrchr(text, ':');

    if (!colon || (size_t)(colon - text) >= bytes)
        return loom_fail(LOOM_E_INVALID, "--measured %s: expected a layout, a colon and a time, such as \"tp=8,pp=16: 5.32s\"", text);
    snprintf(layout, bytes, "%.*s", (int)(colon - text), text);
    step->layout = layout;
    return loom_quantity_seconds(colon + 1 + strspn(colon + 1, " "), &step->seconds);
}

static loom_status read_inputs(const plan_arguments *a, const char *model, plan_inputs *in)
{
    loom_status status = LOOM_OK;

    if (!a->topology)
        return loom_fail(LOOM_E_INVALID, "--topology FILE is needed: the machine room to plan for; rankloom topo prints that of this host");
    if ((status = loom_model_load(model, &in->model, &in->request.train)) < 0 ||
        (status = loom_topology_load(a->topology, &in->topology)) < 0)
        return status;
    for (int i = 0; i < a->measured.count; i++)
        if ((status = read_measured(a->measured.at[i], in->measured_text[i], sizeof in->measured_text[i], &in->measured[i])) < 0)
            return status;
    loom_plan_request *r = &in->request;
    r->model = &in->model;
    r->topology = in->topology;
    r->train.global_batch = a->global_batch > 0 ? a->global_batch : r->train.global_batch;
    r->train.micro_batch = a->micro_batch; /* that of the file is what the file runs with, not what a plan has to keep */
    r->framework = a->framework;
    r->max_gpus = a->max_gpus;
    r->fewer_gpus = a->fewer;
    r->memory_margin = a->margin;
    r->fix = a->fix.at;
    r->exclude = a->exclude.at;
    r->set = a->set.at;
    r->measured = in->measured;
    r->n_measured = a->measured.count;
    r->keep = a->keep;
    r->pareto = a->pareto;
    r->advise = a->format == LOOM_PLAN_AS_TEXT || a->html;
    return LOOM_OK;
}

/* Prints and frees what a call that returned `status` made. */
static loom_status print_text(loom_status status, char *text)
{
    if (status == LOOM_OK && text)
        fputs(text, stdout);
    loom_text_free(text);
    return status;
}

static loom_status print_map(const plan_inputs *in, const loom_layout *layout)
{
    char *text = NULL;
    loom_status status = loom_plan_map(&in->request, layout, &text);

    if (status == LOOM_OK)
        putchar('\n');
    return print_text(status, text);
}

static loom_status explain(const plan_arguments *a, const plan_inputs *in)
{
    char *text = NULL;
    loom_status status = loom_plan_explain(&in->request, a->explain, &text);
    return print_text(status, text);
}

static loom_status write_report(const plan_inputs *in, const loom_plan *found, const char *path)
{
    char *text = NULL;
    loom_status status = loom_plan_html(&in->request, found, &text);

    if (status == LOOM_OK)
        status = write_text(text, path);
    loom_text_free(text);
    return status;
}

static loom_status plan(const plan_arguments *a, const plan_inputs *in)
{
    loom_plan *found = NULL;
    char *text = NULL;
    loom_status status = loom_plan_search(&in->request, &found);

    if (status == LOOM_OK)
        status = loom_plan_describe(&in->request, found, a->format, &text);
    status = print_text(status, text);
    if (status == LOOM_OK && a->html)
        status = write_report(in, found, a->html);
    if (status == LOOM_OK && found->n_best == 0)
        status = loom_fail(LOOM_E_INVALID, "%s", found->hopeless);
    if (status == LOOM_OK && a->output)
        status = loom_layout_save(&found->best[0].layout, a->output);
    if (status == LOOM_OK && a->map)
        status = print_map(in, &found->best[0].layout);
    loom_plan_free(found);
    return status;
}

/* A layout as a file or in one line. */
static loom_status read_layout(const plan_arguments *a, const plan_inputs *in, loom_layout *layout)
{
    int world = loom_topology_ranks(in->topology);

    if (!a->layout)
        return loom_fail(LOOM_E_INVALID, "--layout is needed: a layout file, or \"tp=8,pp=4\"");
    if (strchr(a->layout, '='))
        return loom_plan_layout(&in->request, a->layout, layout);
    loom_layout_default(&in->model, layout);
    layout->global_batch = in->request.train.global_batch;
    layout->seq = in->request.train.seq > 0 ? in->request.train.seq : in->model.seq;
    return loom_layout_load(a->layout, &in->model, a->max_gpus > 0 && a->max_gpus < world ? a->max_gpus : world, layout);
}

/* What the first rank of each stage hands to others in one step, by group and call. */
static void print_traffic(const loom_model *model, const loom_layout *layout)
{
    enum { MOST_STAGES = 8 };
    loom_rank_forecast f;

    for (int stage = 0; stage < layout->pp && stage < MOST_STAGES; stage++) {
        if (loom_forecast_rank(model, layout, loom_layout_rank(layout, (int[4]){0, 0, 0, stage}), NULL, &f) < 0)
            return;
        for (int group = 0; group < LOOM_GROUPS; group++)
            for (int kind = 0; kind < LOOM_CALL_KINDS; kind++)
                if (f.bytes[group][kind] > 0)
                    printf("  sends     stage %d: over %-8s %-14s %15llu bytes a step\n", stage, loom_rank_group_name((loom_rank_group)group),
                           loom_call_kind_name((loom_call_kind)kind), (unsigned long long)f.bytes[group][kind]);
    }
    if (layout->pp > MOST_STAGES)
        printf("  sends     … and %d more stages\n", layout->pp - MOST_STAGES);
}

/* This engine trains in f32: then its messages are known to the byte. */
static bool is_own(const plan_arguments *a, const plan_inputs *in)
{
    return (!a->framework || strcmp(a->framework, "rankloom") == 0) && in->request.train.precision == LOOM_F32;
}

static loom_status predict(const plan_arguments *a, plan_inputs *in)
{
    loom_layout *layout = calloc(1, sizeof *layout);
    loom_prediction *prediction = calloc(1, sizeof *prediction);
    char *text = NULL;
    loom_status status = layout && prediction ? read_layout(a, in, layout) : loom_fail(LOOM_E_MEMORY, "no memory for a prediction");

    if (status == LOOM_OK) {
        in->request.train.global_batch = layout->global_batch; /* a layout file may say its own */
        status = loom_plan_predict(&in->request, layout, prediction);
    }
    if (status == LOOM_OK)
        status = loom_prediction_describe(&in->request, prediction, a->format, &text);
    status = print_text(status, text);
    if (status == LOOM_OK && a->format == LOOM_PLAN_AS_TEXT && is_own(a, in))
        print_traffic(&in->model, layout);
    if (status == LOOM_OK && a->map)
        status = print_map(in, layout);
    free(prediction);
    free(layout);
    return status;
}

static int run(const loom_command *self, int argc, char **argv)
{
    plan_arguments arguments = {0};
    loom_operands operands;
    int exit_status;
    plan_inputs *inputs;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    inputs = calloc(1, sizeof *inputs);
    loom_status status = inputs ? read_inputs(&arguments, operands.at[0], inputs) : loom_fail(LOOM_E_MEMORY, "no memory for the request");
    if (status == LOOM_OK)
        status = strcmp(self->name, "predict") == 0 ? predict(&arguments, inputs)
                 : arguments.explain                ? explain(&arguments, inputs)
                                                    : plan(&arguments, inputs);
    if (inputs)
        loom_topology_free(inputs->topology);
    free(inputs);
    return status == LOOM_OK ? 0 : loom_command_fail(self, status);
}

const loom_command loom_command_plan = {
    .name = "plan",
    .summary = "find the fastest layouts of a model on a machine room",
    .operands = "MODEL.yaml|config.json",
    .least = 1,
    .most = 1,
    .about =
        "Every legal layout is considered: tp, cp, dp, pp, vpp, ep, etp, ZeRO stage, micro-batch, recompute, schedule, rank order, and how "
        "many layers each\n"
        "stage gets. The first is the exact optimum of the model of docs/planner.md. A layout is written as \"tp=8,pp=4,zero=1,mbs=2\".",
    .options = plan_options,
    .run = run,
};

const loom_command loom_command_predict = {
    .name = "predict",
    .summary = "step time and memory of one layout, in full",
    .operands = "MODEL.yaml|config.json",
    .least = 1,
    .most = 1,
    .options = predict_options,
    .run = run,
};
