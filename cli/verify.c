/* rankloom verify LAYOUT|SCHEDULE.csv: proves that the order of a pipeline's actions runs, or says why not. */
#include "layout_file.h"
#include "options.h"
#include "write_text.h"

#include <rankloom/schedule.h>

#include <stdio.h>
#include <stdlib.h>

typedef struct verify_arguments {
    int buffers, micro_batches, format;
    const char *output;
    bool with_comm;
} verify_arguments;

static const char *const formats[] = {"text", "json", NULL};

static const loom_option options[] = {
    {"buffers", 'b', LOOM_OPTION_INT, offsetof(verify_arguments, buffers), .low = 0, .high = 1 << 20, .takes = "K",
     .help = "sends block when K messages of a channel wait (they never block)"},
    {"micro-batches", 0, LOOM_OPTION_INT, offsetof(verify_arguments, micro_batches), .low = 1, .high = 1 << 20, .takes = "M",
     .help = "of a layout without global_batch, or other than its own"},
    {"output", 'o', LOOM_OPTION_TEXT, offsetof(verify_arguments, output), .takes = "FILE",
     .help = "write the order: NAME.csv as torch.distributed.pipelining reads it, NAME.order as Megatron's"},
    {"with-comm", 0, LOOM_OPTION_FLAG, offsetof(verify_arguments, with_comm), .help = "write a CSV with its sends, receives and waits (torch 2.15 on)"},
    {"format", 0, LOOM_OPTION_CHOICE, offsetof(verify_arguments, format), .choices = formats, .takes = "FORMAT", .help = "text or json (text)"},
    {0},
};

static void print_facts(const loom_schedule *s, const loom_schedule_facts *facts, int buffers)
{
    bool split = false;
    int least = buffers < 0 ? loom_schedule_least_buffers(s) : buffers;

    for (int i = 0; i < s->stages; i++)
        split |= facts->peak_before_input[i] != facts->peak_in_flight[i];
    printf("proved: complete, causal, every action on the stage of its chunk, every channel in one order\n");
    if (buffers < 0)
        printf("proved: no deadlock; with blocking sends it needs %d buffer%s a channel\n", least, least == 1 ? "" : "s");
    else
        printf("proved: no deadlock with %d buffer%s a channel\n", least, least == 1 ? "" : "s");
    printf("most micro-batches times chunks that a stage holds%s:\n", split ? " (until the input gradient)" : "");
    for (int i = 0; i < s->stages; i++) {
        printf("  stage %-4d %4d", i, facts->peak_in_flight[i]);
        if (split)
            printf(" (%d)", facts->peak_before_input[i]);
        if (s->has_comm)
            printf(", %d receives posted", facts->peak_receives[i]);
        putchar('\n');
    }
}

static loom_status write_order(const loom_schedule *s, const char *path)
{
    char *text = NULL;
    loom_status status = loom_schedule_order_text(s, &text);

    if (status == LOOM_OK)
        status = write_text(text, path);
    loom_text_free(text);
    return status;
}

static loom_status write_schedule(const loom_schedule *s, const verify_arguments *arguments)
{
    loom_schedule *copy;
    loom_status status;

    if (!is_csv(arguments->output))
        return write_order(s, arguments->output);
    if ((status = loom_schedule_copy(s, &copy)) < 0)
        return status;
    if (copy->has_comm && !arguments->with_comm)
        loom_schedule_drop_comm(copy);
    else if (!copy->has_comm && arguments->with_comm)
        status = loom_schedule_add_comm(copy);
    if (status == LOOM_OK)
        status = loom_schedule_save_csv(copy, arguments->output);
    loom_schedule_free(copy);
    return status;
}

/* Groups other than pp's lie inside a stage; a stage's ranks run one list, so they call the same collectives in the same order. */
static loom_status prove_groups(const loom_layout *l)
{
    int world = loom_layout_world(l), *members = malloc(sizeof *members * (size_t)world);
    loom_status status = members ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for a group of %d ranks", world);

    for (int rank = 0; rank < world && status == LOOM_OK; rank++)
        for (int axis = 0; axis < LOOM_AXES && status == LOOM_OK; axis++) {
            int count = axis == LOOM_AXIS_PP ? 0 : loom_layout_group(l, (loom_axis)axis, rank, members);
            int stage = loom_layout_coords(l, rank).at[LOOM_AXIS_PP];
            for (int i = 0; i < count && status == LOOM_OK; i++)
                if (loom_layout_coords(l, members[i]).at[LOOM_AXIS_PP] != stage)
                    status = loom_fail(LOOM_E_INVALID, "the %s group of rank %d reaches over stages", loom_axis_name((loom_axis)axis), rank);
        }
    free(members);
    return status;
}

/* What theory says the schedule wastes, and how to waste less. */
static void print_idle(const loom_layout *l, const loom_schedule *s)
{
    const double LITTLE = 0.1;
    double idle = loom_schedule_ideal_idle(l->schedule, s->stages, s->chunks_per_stage, s->micro_batches);

    if (s->stages == 1)
        return;
    printf("idle during %.2f %% of the time when stages are even, B takes twice as long as F and messages take none", 100 * idle);
    if (idle > LITTLE)
        printf("; %d micro-batches bring that to %g %%", loom_schedule_micro_batches_for(l->schedule, s->stages, s->chunks_per_stage, LITTLE), 100 * LITTLE);
    putchar('\n');
}

static void print_proof(const char *path, const loom_layout *layout, const loom_schedule *s, const loom_schedule_facts *facts, int buffers)
{
    char line[256];

    if (layout)
        printf("%s\n", loom_layout_describe(layout, line, sizeof line));
    printf("%s: %d stage%s x %d chunk%s, %d micro-batch%s, %s\n", path, s->stages, s->stages == 1 ? "" : "s", s->chunks_per_stage,
           s->chunks_per_stage == 1 ? "" : "s", s->micro_batches, s->micro_batches == 1 ? "" : "es", s->has_comm ? "with sends and receives" : "compute only");
    print_facts(s, facts, buffers);
    if (layout) {
        printf("proved: every tp, cp, dp, etp, ep and edp group lies inside a stage, whose ranks run one list: collectives in one order on all of a group\n");
        print_idle(layout, s);
    }
}

/* `facts` NULL: not proved, for `reason`. */
static loom_status print_verdict(const char *path, const loom_layout *layout, const loom_schedule *s, int buffers, const loom_schedule_facts *facts, const char *reason)
{
    char *text;
    loom_status status = loom_schedule_verdict_json(path, layout, s, buffers, facts, reason, &text);

    if (status < 0)
        return status;
    fputs(text, stdout);
    loom_text_free(text);
    return LOOM_OK;
}

/* `layout` NULL: the schedule came as it is. */
static loom_status prove(const char *path, const loom_layout *layout, const loom_schedule *s, const verify_arguments *arguments)
{
    loom_schedule_facts facts = {0};
    loom_status status = loom_schedule_verify(s, arguments->buffers, &facts);
    char reason[1024];

    if (status == LOOM_OK && layout)
        status = prove_groups(layout);
    if (status == LOOM_OK) {
        if (arguments->format)
            status = print_verdict(path, layout, s, arguments->buffers, &facts, NULL);
        else
            print_proof(path, layout, s, &facts, arguments->buffers);
        loom_schedule_facts_free(&facts);
        return status == LOOM_OK && arguments->output ? write_schedule(s, arguments) : status;
    }
    loom_schedule_facts_free(&facts);
    snprintf(reason, sizeof reason, "%s", loom_last_error());
    if (arguments->format && status == LOOM_E_INVALID)
        print_verdict(path, layout, s, arguments->buffers, NULL, reason);
    return loom_fail(status, "%s: %s", path, reason);
}

static loom_status verify_layout(const char *path, const verify_arguments *arguments)
{
    layout_file file;
    loom_schedule *schedule;
    loom_status status = layout_file_load(path, NULL, 0, &file);

    if (status < 0)
        return status;
    if (arguments->micro_batches > 0)
        file.layout.global_batch = arguments->micro_batches * file.layout.micro_batch * file.layout.dp;
    if (file.layout.global_batch == 0)
        return loom_fail(LOOM_E_INVALID, "%s: says no global_batch, so the number of micro-batches is open; --micro-batches M closes it", path);
    if ((status = loom_schedule_for_layout(&file.layout, &schedule)) < 0)
        return status;
    status = prove(path, &file.layout, schedule, arguments);
    loom_schedule_free(schedule);
    return status;
}

static loom_status verify_schedule(const char *path, const verify_arguments *arguments)
{
    loom_schedule *schedule;
    loom_status status = load_schedule(path, &schedule);

    if (status < 0)
        return status;
    status = prove(path, NULL, schedule, arguments);
    loom_schedule_free(schedule);
    return status;
}

static int run(const loom_command *self, int argc, char **argv)
{
    verify_arguments arguments = {.buffers = -1};
    loom_operands operands;
    int exit_status;
    loom_status status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    status = is_schedule(operands.at[0]) ? verify_schedule(operands.at[0], &arguments) : verify_layout(operands.at[0], &arguments);
    return status < 0 ? loom_command_fail(self, status) : 0;
}

const loom_command loom_command_verify = {
    .name = "verify",
    .summary = "prove that a pipeline schedule runs, or name what stops it",
    .operands = "RUN.yaml|LAYOUT.yaml|SCHEDULE.csv|SCHEDULE.order",
    .least = 1,
    .most = 1,
    .about = "A CSV is that of torch.distributed.pipelining: a row a stage, cells like 0F1, 1B0, 2I3, 2W3, with or without SEND_F, RECV_F and their like; an\n"
             ".order is Megatron's: a line a stage, chunk k forward as k and backward as -k. Without sends and receives\n"
             "it is judged as a program would run it that sends right after the producer and receives right before the consumer. A deadlock is told as the\n"
             "shortest cycle of stages that wait for each other. Status 2 when the schedule does not run; as JSON, \"proved\" says so too.",
    .options = options,
    .run = run,
};
