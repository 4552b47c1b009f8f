/* rankloom completion bash|zsh: a shell's completion script, from the tables of commands and options. */
#include "options.h"

#include <stdio.h>
#include <string.h>

static const char *const shells[] = {"bash", "zsh", NULL};

static void print_words_of_bash(const loom_command *command)
{
    printf("    %s) words=\"", command->name);
    for (const loom_option *option = command->options; option && option->name; option++)
        printf("--%s ", option->name);
    printf("--help\" ;;\n");
}

static void print_choices_of_bash(const loom_command *command)
{
    for (const loom_option *option = command->options; option && option->name; option++) {
        if (option->kind != LOOM_OPTION_CHOICE)
            continue;
        printf("    %s:--%s) choices=\"", command->name, option->name);
        for (const char *const *choice = option->choices; *choice; choice++)
            printf("%s%s", choice == option->choices ? "" : " ", *choice);
        printf("\" ;;\n");
    }
}

static void print_bash(void)
{
    printf("# bash completion of rankloom; made by `rankloom completion bash`\n"
           "_rankloom() {\n"
           "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words= choices=\n"
           "  if ((COMP_CWORD == 1)); then\n"
           "    COMPREPLY=($(compgen -W \"--version");
    for (const loom_command *const *command = loom_commands; *command; command++)
        printf(" %s", (*command)->name);
    printf("\" -- \"$word\"))\n    return\n  fi\n  case $command:$before in\n");
    for (const loom_command *const *command = loom_commands; *command; command++)
        print_choices_of_bash(*command);
    printf("    help:*) choices=\"");
    for (const loom_command *const *command = loom_commands; *command; command++)
        printf("%s%s", command == loom_commands ? "" : " ", (*command)->name);
    printf("\" ;;\n"
           "    completion:*) choices=\"bash zsh\" ;;\n"
           "  esac\n"
           "  if [[ $choices ]]; then COMPREPLY=($(compgen -W \"$choices\" -- \"$word\")); return; fi\n"
           "  case $command in\n");
    for (const loom_command *const *command = loom_commands; *command; command++)
        print_words_of_bash(*command);
    printf("  esac\n"
           "  if [[ $word == -* ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$word\")); else COMPREPLY=($(compgen -f -- \"$word\")); fi\n"
           "}\n"
           "complete -o filenames -F _rankloom rankloom\n");
}

/* In an _arguments specification ':' '[' ']' and '\'' have meanings of their own. */
static void print_for_zsh(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            printf("'\\''");
        else if (strchr(":[]\\", *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void print_option_of_zsh(const loom_option *option)
{
    printf("      '--%s%s[", option->name, option->kind == LOOM_OPTION_FLAG ? "" : "=");
    print_for_zsh(option->help);
    putchar(']');
    if (option->kind == LOOM_OPTION_CHOICE) {
        printf(":value:(");
        for (const char *const *choice = option->choices; *choice; choice++)
            printf("%s%s", choice == option->choices ? "" : " ", *choice);
        putchar(')');
    } else if (option->kind != LOOM_OPTION_FLAG) {
        putchar(':');
        print_for_zsh(option->takes);
        printf(":_files");
    }
    printf("' \\\n");
}

static void print_zsh(void)
{
    printf("#compdef rankloom\n# zsh completion of rankloom; made by `rankloom completion zsh`\n_rankloom() {\n  local -a commands=(\n");
    for (const loom_command *const *command = loom_commands; *command; command++) {
        printf("    '%s:", (*command)->name);
        print_for_zsh((*command)->summary);
        printf("'\n");
    }
    printf("  )\n"
           "  if ((CURRENT == 2)); then _describe command commands; return; fi\n"
           "  local command=$words[2]\n"
           "  shift words; ((CURRENT--))\n"
           "  case $command in\n");
    for (const loom_command *const *command = loom_commands; *command; command++) {
        printf("    %s) _arguments \\\n", (*command)->name);
        for (const loom_option *option = (*command)->options; option && option->name; option++)
            print_option_of_zsh(option);
        printf("      '--help[tell more of this command]' '*:file:_files' ;;\n");
    }
    printf("  esac\n}\n_rankloom \"$@\"\n");
}

static int completion(const loom_command *self, int argc, char **argv)
{
    loom_operands operands;
    int exit_status;

    if (!loom_options_parse(self, argc, argv, NULL, &operands, &exit_status))
        return exit_status;
    if (strcmp(operands.at[0], shells[0]) == 0)
        print_bash();
    else if (strcmp(operands.at[0], shells[1]) == 0)
        print_zsh();
    else {
        fprintf(stderr, "rankloom completion: no completion for \"%s\"; bash and zsh are there\n", operands.at[0]);
        return 2;
    }
    return 0;
}

const loom_command loom_command_completion = {
    .name = "completion",
    .summary = "print a completion script for a shell",
    .operands = "bash|zsh",
    .least = 1,
    .most = 1,
    .run = completion,
};
