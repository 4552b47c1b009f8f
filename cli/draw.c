/* rankloom draw LAYOUT|SCHEDULE.csv|MODEL: the timeline of a schedule, memory by stage, where ranks sit, or what a search chose from, as SVG. */
#include "layout_file.h"
#include "options.h"
#include "write_text.h"

#include <rankloom/draw.h>

#include <stdio.h>
#include <stdlib.h>

typedef enum subject { SCHEDULE, MEMORY, MAP, SEARCH } subject;
static const char *const subjects[] = {"schedule", "memory", "map", "search", NULL};

enum { MOST_CELLS = 4096, MOST_SAMPLE = 10000 };

typedef struct draw_arguments {
    const char *output, *topology, *model;
    int what, micro_batches, global_batch, sample;
    double forward, input, weight;
    loom_option_list fix, exclude;
} draw_arguments;

#define FIELD(name) offsetof(draw_arguments, name)
static const loom_option options[] = {
    {"what", 'w', LOOM_OPTION_CHOICE, FIELD(what), .choices = subjects, .takes = "PICTURE", .help = "schedule, memory, map or search (schedule)"},
    {"output", 'o', LOOM_OPTION_TEXT, FIELD(output), .takes = "FILE.svg", .help = "where to write (standard output)"},
    {"model", 'm', LOOM_OPTION_TEXT, FIELD(model), .takes = "FILE", .help = "model of a layout (the model section of the file)"},
    {"topology", 't', LOOM_OPTION_TEXT, FIELD(topology), .takes = "FILE", .help = "the machine room; a schedule then has the planner's times, a map boxes of nodes"},
    {"micro-batches", 0, LOOM_OPTION_INT, FIELD(micro_batches), .low = 1, .high = 1 << 20, .takes = "M", .help = "of a layout without global_batch, or other than its own"},
    {"global-batch", 0, LOOM_OPTION_INT, FIELD(global_batch), .low = 1, .high = 1 << 30, .takes = "N", .help = "sequences a step, with --topology (as the files say)"},
    {"forward", 0, LOOM_OPTION_REAL, FIELD(forward), .low = 0, .high = 1e9, .takes = "TIME", .help = "of F, without --topology (1)"},
    {"input", 0, LOOM_OPTION_REAL, FIELD(input), .low = 0, .high = 1e9, .takes = "TIME", .help = "of I; B takes I and W (1)"},
    {"weight", 0, LOOM_OPTION_REAL, FIELD(weight), .low = 0, .high = 1e9, .takes = "TIME", .help = "of W (1)"},
    {"sample", 0, LOOM_OPTION_INT, FIELD(sample), .low = 1, .high = MOST_SAMPLE, .takes = "N", .help = "layouts of a search that are drawn (1000)"},
    {"fix", 0, LOOM_OPTION_LIST, FIELD(fix), .takes = "FIELD=V", .help = "search: only layouts with tp=8, pp<4, recompute=none, …"},
    {"exclude", 0, LOOM_OPTION_LIST, FIELD(exclude), .takes = "FIELD=V", .help = "search: no layouts with cp>1, schedule=gpipe, …"},
    {0},
};

/* --- schedules in units ----------------------------------------------------------------------------------------------------------- */

static double action_us(void *context, int stage, const loom_action *a)
{
    const draw_arguments *arguments = context;

    (void)stage;
    switch (a->kind) {
    case LOOM_FORWARD:
        return arguments->forward;
    case LOOM_BACKWARD:
        return arguments->input + arguments->weight;
    case LOOM_BACKWARD_INPUT:
        return arguments->input;
    case LOOM_BACKWARD_WEIGHT:
        return arguments->weight;
    default:
        return 0;
    }
}

static loom_status draw_schedule(const loom_schedule *schedule, const char *name, const draw_arguments *arguments, char **text)
{
    const loom_schedule_costs costs = {.context = (void *)arguments, .action_us = action_us};
    loom_timeline line;
    char title[512];
    loom_status status = loom_schedule_verify(schedule, -1, NULL); /* names the cycle of an order that stops */

    if (status < 0 || (status = loom_schedule_simulate(schedule, &costs, &line)) < 0)
        return status;
    snprintf(title, sizeof title, "%s: %d stages x %d chunks, %d micro-batches, idle %.3g %% of the step", name, schedule->stages,
             schedule->chunks_per_stage, schedule->micro_batches,
             line.makespan_us > 0 ? 100 * (1 - line.busy_us[0] / line.makespan_us) : 0);
    status = loom_schedule_svg(schedule, &line, title, false, text);
    loom_timeline_free(&line);
    return status;
}

static loom_status draw_schedule_file(const char *path, const draw_arguments *arguments, char **text)
{
    loom_schedule *schedule;
    loom_status status = load_schedule(path, &schedule);

    if (status < 0)
        return status;
    status = draw_schedule(schedule, path, arguments, text);
    loom_schedule_free(schedule);
    return status;
}

static loom_status draw_units(const char *path, const layout_file *file, const draw_arguments *arguments, char **text)
{
    loom_schedule *schedule;
    char line[256];
    loom_status status;

    if (file->layout.global_batch == 0)
        return loom_fail(LOOM_E_INVALID, "%s: says no global_batch, so the number of micro-batches is open; --micro-batches M closes it", path);
    if ((status = loom_schedule_for_layout(&file->layout, &schedule)) < 0)
        return status;
    status = draw_schedule(schedule, loom_layout_describe(&file->layout, line, sizeof line), arguments, text);
    loom_schedule_free(schedule);
    return status;
}

/* --- layouts ----------------------------------------------------------------------------------------------------------------------- */

/* With the times and bytes of a model on a machine. */
static loom_status draw_planned(const char *operand, const draw_arguments *a, const loom_topology *topology, char **text)
{
    layout_file *file = calloc(1, sizeof *file);
    loom_plan_request plan = {.topology = topology};
    loom_status status = file ? layout_file_for_plan(operand, a->model, a->global_batch, file, &plan) : loom_fail(LOOM_E_MEMORY, "no memory for a layout");

    if (status == LOOM_OK && a->what == MEMORY && loom_forecast_check(&plan.run) < 0)
        fprintf(stderr, "rankloom draw: %s; the picture is of formulas\n", loom_last_error());
    if (status == LOOM_OK)
        status = a->what == MEMORY ? loom_memory_svg(&plan, &file->layout, a->micro_batches, text) : loom_timeline_svg(&plan, &file->layout, a->micro_batches, text);
    free(file);
    return status;
}

static loom_status draw_layout(const char *path, const draw_arguments *a, const loom_topology *topology, char **text)
{
    layout_file file;
    loom_status status;

    if (a->what == MEMORY && !topology)
        return loom_fail(LOOM_E_INVALID, "--topology FILE is needed: memory is that of devices");
    if (a->what == MEMORY || (a->what == SCHEDULE && topology))
        return draw_planned(path, a, topology, text);
    if ((status = layout_file_load(path, a->model, 0, &file)) < 0)
        return status;
    if (a->what == MAP)
        return loom_map_svg(&file.layout, topology, MOST_CELLS, text);
    if (a->micro_batches > 0)
        file.layout.global_batch = a->micro_batches * file.layout.micro_batch * file.layout.dp;
    return draw_units(path, &file, a, text);
}

/* --- searches ---------------------------------------------------------------------------------------------------------------------- */

static loom_status draw_search(const char *model_path, const draw_arguments *a, const loom_topology *topology, char **text)
{
    loom_model model;
    loom_plan_request request = {.model = &model, .topology = topology, .fix = a->fix.at, .exclude = a->exclude.at, .pareto = true};
    loom_plan *plan = NULL;
    loom_plan_point *points = calloc((size_t)a->sample, sizeof *points);
    int found = 0;
    loom_status status = points ? loom_model_load(model_path, &model, &request.train) : loom_fail(LOOM_E_MEMORY, "no memory for %d layouts", a->sample);

    request.train.micro_batch = 0; /* any */
    request.train.global_batch = a->global_batch > 0 ? a->global_batch : request.train.global_batch;
    if (status == LOOM_OK && !topology)
        status = loom_fail(LOOM_E_INVALID, "--topology FILE is needed: the machine room to plan for");
    if (status == LOOM_OK)
        status = loom_plan_search(&request, &plan);
    if (status == LOOM_OK)
        status = loom_plan_sample(&request, a->sample, points, &found);
    if (status == LOOM_OK)
        status = loom_scatter_svg(plan, points, found, text);
    loom_plan_free(plan);
    free(points);
    return status;
}

static loom_status draw(const char *operand, const draw_arguments *a, const loom_topology *topology, char **text)
{
    if (a->what == SEARCH)
        return draw_search(operand, a, topology, text);
    if (is_schedule(operand) && a->what != SCHEDULE)
        return loom_fail(LOOM_E_INVALID, "%s: is a schedule; %s is drawn of a layout", operand, subjects[a->what]);
    return is_schedule(operand) ? draw_schedule_file(operand, a, text) : draw_layout(operand, a, topology, text);
}

static int run(const loom_command *self, int argc, char **argv)
{
    draw_arguments arguments = {.forward = 1, .input = 1, .weight = 1, .sample = 1000};
    loom_operands operands;
    loom_topology *topology = NULL;
    int exit_status;
    char *text = NULL;
    loom_status status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    status = arguments.topology ? loom_topology_load(arguments.topology, &topology) : LOOM_OK;
    if (status == LOOM_OK)
        status = draw(operands.at[0], &arguments, topology, &text);
    if (status == LOOM_OK)
        status = write_text(text, arguments.output);
    loom_text_free(text);
    loom_topology_free(topology);
    return status < 0 ? loom_command_fail(self, status) : 0;
}

const loom_command loom_command_draw = {
    .name = "draw",
    .summary = "a schedule, memory by stage, where ranks sit, or a search, as SVG",
    .operands = "RUN.yaml|LAYOUT.yaml|\"tp=8,pp=4\"|SCHEDULE.csv|SCHEDULE.order|MODEL.yaml",
    .least = 1,
    .most = 1,
    .about = "schedule: a row a stage, a bar an action with its micro-batch, and below it what each stage holds in flight. Times are of --forward, --input and --weight, and\n"
             "messages take none; of a layout with --model and --topology they are the planner's.\n"
             "memory: bytes of each stage over the same time, with --model and --topology.\n"
             "map: every rank in its node (--topology) or stage.\n"
             "search: the operand is a model; step time and memory of layouts drawn at random, of the best and of the front.",
    .options = options,
    .run = run,
};
