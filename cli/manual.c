/* rankloom manual: the manual page in roff, from the tables of commands, options and settings. The build installs what this prints. */
#include "options.h"

#include <rankloom/settings.h>

#include <stdio.h>

/* A backslash, and a point or quote at the beginning of a line, mean something to roff; a plain hyphen would become a dash. */
static void print_text(const char *text)
{
    bool line_begins = true;

    for (; *text; text++) {
        if (line_begins && (*text == '.' || *text == '\''))
            printf("\\&");
        line_begins = *text == '\n';
        if (*text == '\\')
            printf("\\e");
        else if (*text == '-')
            printf("\\-");
        else
            putchar(*text);
    }
}

static void print_option(const loom_option *option)
{
    printf(".TP\n");
    if (option->letter)
        printf("\\fB\\-%c\\fR, ", option->letter);
    printf("\\fB\\-\\-");
    print_text(option->name);
    printf("\\fR");
    if (option->takes) {
        printf(" \\fI");
        print_text(option->takes);
        printf("\\fR");
    }
    putchar('\n');
    print_text(option->help);
    putchar('\n');
}

static void print_command(const loom_command *command)
{
    printf(".SS rankloom ");
    print_text(command->name);
    if (command->options && command->options->name)
        printf(" [OPTION …]");
    putchar(' ');
    print_text(command->operands);
    putchar('\n');
    print_text(command->summary);
    printf(".\n");
    for (const loom_option *option = command->options; option && option->name; option++)
        print_option(option);
    if (!command->about)
        return;
    printf(".P\n");
    print_text(command->about);
    putchar('\n');
}

static void print_settings(void)
{
    size_t count;
    const loom_setting_row *rows = loom_settings_table(&count);

    for (size_t i = 0; i < count; i++) {
        printf(".TP\n\\fB%s\\fR=\\fI", rows[i].name);
        print_text(rows[i].takes);
        printf("\\fR\n");
        print_text(rows[i].meaning);
        if (*rows[i].fallback) {
            printf(" Not set: ");
            print_text(rows[i].fallback);
            putchar('.');
        }
        putchar('\n');
    }
}

static int manual(const loom_command *self, int argc, char **argv)
{
    loom_operands operands;
    int exit_status;

    if (!loom_options_parse(self, argc, argv, NULL, &operands, &exit_status))
        return exit_status;
    printf(".\\\" made by `rankloom manual`\n"
           ".TH RANKLOOM 1 \"\" \"rankloom " RANKLOOM_VERSION "\"\n"
           ".SH NAME\nrankloom \\- train one model on many devices, and plan how to split it\n"
           ".SH SYNOPSIS\n\\fBrankloom\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR …] [\\fIOPERAND\\fR …]\n"
           ".br\n\\fBrankloom \\-\\-version\\fR\n"
           ".SH DESCRIPTION\nEach command is described below. An option is written as \\fB\\-\\-name\\fR \\fIVALUE\\fR or "
           "\\fB\\-\\-name=\\fR\\fIVALUE\\fR; \\fB\\-\\-\\fR ends the options. Numbers follow the rules of the files: 4096, 4_096 and 1e3 are whole "
           "numbers, 4k is none.\n"
           ".SH COMMANDS\n");
    for (const loom_command *const *command = loom_commands; *command; command++)
        print_command(*command);
    printf(".SH ENVIRONMENT\n");
    print_settings();
    printf(".P\nRank programs read the variables of torchrun, of Open MPI, MPICH, MVAPICH2 and Slurm, or \\fBRANK\\fR, \\fBWORLD_SIZE\\fR, "
           "\\fBMASTER_ADDR\\fR and \\fBMASTER_PORT\\fR set by hand.\n"
           ".SH EXIT STATUS\n"
           ".TP\n0\nsuccess\n.TP\n1\nfailure of the system: a file, memory\n.TP\n2\nbad input: an option, a file, a layout; the message names the "
           "nearest that works\n.TP\n3\nanother rank or the network\n"
           ".P\n\\fBrankloom run\\fR ends with the status of the first rank that failed, 128 + \\fIn\\fR if signal \\fIn\\fR killed it.\n");
    return 0;
}

const loom_command loom_command_manual = {
    .name = "manual",
    .summary = "print the manual page, for man -l -",
    .operands = "",
    .run = manual,
};
