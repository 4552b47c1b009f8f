/* rankloom draw LAYOUT|SCHEDULE.csv: the timeline of a schedule, or where ranks sit, as SVG. */
#include "layout_file.h"
#include "options.h"

#include <rankloom/mesh.h>
#include <rankloom/schedule.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct draw_arguments {
    const char *output, *topology;
    int micro_batches;
    double forward, input, weight;
    bool map;
} draw_arguments;

static const loom_option options[] = {
    {"output", 'o', LOOM_OPTION_TEXT, offsetof(draw_arguments, output), .takes = "FILE.svg", .help = "where to write (standard output)"},
    {"map", 0, LOOM_OPTION_FLAG, offsetof(draw_arguments, map), .help = "draw where the ranks of the layout sit, not its schedule"},
    {"topology", 't', LOOM_OPTION_TEXT, offsetof(draw_arguments, topology), .takes = "FILE", .help = "cluster of the map (one box a stage)"},
    {"micro-batches", 0, LOOM_OPTION_INT, offsetof(draw_arguments, micro_batches), .low = 1, .high = 1 << 20, .takes = "M",
     .help = "of a layout without global_batch, or other than its own"},
    {"forward", 0, LOOM_OPTION_REAL, offsetof(draw_arguments, forward), .low = 0, .high = 1e9, .takes = "TIME", .help = "of F (1)"},
    {"input", 0, LOOM_OPTION_REAL, offsetof(draw_arguments, input), .low = 0, .high = 1e9, .takes = "TIME", .help = "of I; B takes I and W (1)"},
    {"weight", 0, LOOM_OPTION_REAL, offsetof(draw_arguments, weight), .low = 0, .high = 1e9, .takes = "TIME", .help = "of W (1)"},
    {0},
};

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

static loom_status write_text(const char *text, const char *path)
{
    FILE *file = path ? fopen(path, "w") : stdout;
    bool failed = !file || fputs(text, file) < 0 || (path ? fclose(file) : fflush(file)) != 0;

    return failed ? loom_fail(LOOM_E_IO, "%s: %s", path ? path : "standard output", strerror(errno)) : LOOM_OK;
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
    status = loom_schedule_svg(schedule, &line, title, text);
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

static loom_status draw_map(const layout_file *file, const char *topology_path, char **text)
{
    loom_topology *topology = NULL;
    loom_status status = topology_path ? loom_topology_load(topology_path, &topology) : LOOM_OK;

    if (status == LOOM_OK)
        status = loom_mesh_map_svg(&file->layout, topology, text);
    loom_topology_free(topology);
    return status;
}

static loom_status draw_layout(const char *path, const draw_arguments *arguments, char **text)
{
    layout_file file;
    loom_schedule *schedule;
    char line[256];
    loom_status status = layout_file_load(path, NULL, 0, &file);

    if (status < 0)
        return status;
    if (arguments->map)
        return draw_map(&file, arguments->topology, text);
    if (arguments->micro_batches > 0)
        file.layout.global_batch = arguments->micro_batches * file.layout.micro_batch * file.layout.dp;
    if (file.layout.global_batch == 0)
        return loom_fail(LOOM_E_INVALID, "%s: says no global_batch, so the number of micro-batches is open; --micro-batches M closes it", path);
    if ((status = loom_schedule_for_layout(&file.layout, &schedule)) < 0)
        return status;
    status = draw_schedule(schedule, loom_layout_describe(&file.layout, line, sizeof line), arguments, text);
    loom_schedule_free(schedule);
    return status;
}

static int run(const loom_command *self, int argc, char **argv)
{
    draw_arguments arguments = {.forward = 1, .input = 1, .weight = 1};
    loom_operands operands;
    int exit_status;
    char *text = NULL;
    loom_status status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    status = is_schedule(operands.at[0]) ? draw_schedule_file(operands.at[0], &arguments, &text) : draw_layout(operands.at[0], &arguments, &text);
    if (status == LOOM_OK)
        status = write_text(text, arguments.output);
    loom_text_free(text);
    return status < 0 ? loom_command_fail(self, status) : 0;
}

const loom_command loom_command_draw = {
    .name = "draw",
    .summary = "a pipeline schedule, or where ranks sit, as SVG",
    .operands = "RUN.yaml|LAYOUT.yaml|SCHEDULE.csv|SCHEDULE.order",
    .least = 1,
    .most = 1,
    .about = "The timeline has a row a stage, a bar an action with its micro-batch, and below it what each stage holds in flight; times are of the three options, messages\n"
             "take none. --map draws every rank in its node (--topology) or stage instead.",
    .options = options,
    .run = run,
};
