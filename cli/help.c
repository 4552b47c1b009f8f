/* rankloom help [COMMAND] */
#include "options.h"

#include <stdio.h>

static void list_commands(void)
{
    printf("rankloom COMMAND [OPTION …]: train one model on many devices, and plan how to split it\n\n");
    for (const loom_command *const *command = loom_commands; *command; command++)
        printf("  %-12s %s\n", (*command)->name, (*command)->summary);
    printf("\nrankloom COMMAND --help tells more of one; rankloom --version tells which version this is.\n"
           "Exit status: 0 success, 1 failure, 2 bad input, 3 a peer or the network; of run: that of the first rank that failed.\n");
}

static int help(const loom_command *self, int argc, char **argv)
{
    loom_operands operands;
    int exit_status;

    if (!loom_options_parse(self, argc, argv, NULL, &operands, &exit_status))
        return exit_status;
    if (operands.count == 0) {
        list_commands();
        return 0;
    }
    const loom_command *command = loom_command_find(operands.at[0]);
    if (!command)
        return loom_command_unknown(operands.at[0]);
    loom_command_print_usage(command);
    return 0;
}

const loom_command loom_command_help = {
    .name = "help",
    .summary = "list the commands, or tell more of one",
    .operands = "[COMMAND]",
    .most = 1,
    .run = help,
};
