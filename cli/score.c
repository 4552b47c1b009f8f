/* rankloom score RUNS.csv: predicts published runs and reports the errors. */
#include "options.h"

#include <rankloom/planner.h>

#include <stdio.h>

typedef struct score_arguments {
    int format;
    loom_option_list set;
} score_arguments;

static const char *const formats[] = {"text", "json", NULL};

static const loom_option options[] = {
    {"format", 0, LOOM_OPTION_CHOICE, offsetof(score_arguments, format), .choices = formats, .takes = "FORMAT",
     .help = "text or json (text)"},
    {"set", 0, LOOM_OPTION_LIST, offsetof(score_arguments, set), .takes = "NAME=VALUE",
     .help = "a constant of a device kind or framework: h100.sustained=0.8"},
    {0},
};

static int run(const loom_command *self, int argc, char **argv)
{
    score_arguments arguments = {0};
    loom_operands operands;
    int exit_status;
    char *text;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    loom_status status = loom_plan_score(operands.at[0], arguments.set.at, arguments.format ? LOOM_PLAN_AS_JSON : LOOM_PLAN_AS_TEXT, &text);
    if (status != LOOM_OK)
        return loom_command_fail(self, status);
    fputs(text, stdout);
    loom_text_free(text);
    return 0;
}

const loom_command loom_command_score = {
    .name = "score",
    .summary = "predict published runs and report the errors",
    .operands = "RUNS.csv",
    .least = 1,
    .most = 1,
    .about = "The table has the columns of docs/planner.md (model, cluster, layout, step_time_s, mem_gib). Only what a user would know is "
             "read for the\n"
             "prediction: neither the source nor the measured figures. Errors are averaged by source and device kind.",
    .options = options,
    .run = run,
};
