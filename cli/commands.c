/* The table of subcommands: a line each, in the order of `rankloom help`. */
#include "options.h"

#include <rankloom/config.h>

#include <stdio.h>
#include <string.h>

extern const loom_command loom_command_run;
extern const loom_command loom_command_topo;
extern const loom_command loom_command_probe;
extern const loom_command loom_command_plot;
extern const loom_command loom_command_plan, loom_command_predict;
extern const loom_command loom_command_score;
extern const loom_command loom_command_collective;
extern const loom_command loom_command_check, loom_command_verify, loom_command_draw;
extern const loom_command loom_command_goodput, loom_command_calc, loom_command_emit, loom_command_import, loom_command_simulate;
extern const loom_command loom_command_completion, loom_command_manual, loom_command_help;

const loom_command *const loom_commands[] = {
    &loom_command_topo,
    &loom_command_probe,
    &loom_command_check,
    &loom_command_verify,
    &loom_command_draw,
    &loom_command_run,
    &loom_command_plot,
    &loom_command_plan,
    &loom_command_predict,
    &loom_command_score,
    &loom_command_collective,
    &loom_command_simulate,
    &loom_command_emit,
    &loom_command_import,
    &loom_command_goodput,
    &loom_command_calc,
    &loom_command_completion,
    &loom_command_manual,
    &loom_command_help,
    NULL,
};

enum { MOST_COMMANDS = 64 };

const loom_command *loom_command_find(const char *name)
{
    for (const loom_command *const *command = loom_commands; *command; command++)
        if (strcmp((*command)->name, name) == 0)
            return *command;
    return NULL;
}

int loom_command_unknown(const char *name)
{
    const char *names[MOST_COMMANDS + 1] = {NULL}, *near;

    for (int i = 0; i < MOST_COMMANDS && loom_commands[i]; i++)
        names[i] = loom_commands[i]->name;
    near = loom_nearest_name(name, names);
    fprintf(stderr, "rankloom: \"%s\" is no command%s%s; rankloom help lists them\n", name, near ? "; did you mean " : "", near ? near : "");
    return 2;
}
