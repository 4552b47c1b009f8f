/* The rankloom command: finds the subcommand and hands over. */
#include "options.h"

#include <rankloom/settings.h>

#include <stdio.h>
#include <string.h>

static const char *without_dashes(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 ? "help" : word;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? without_dashes(argv[1]) : "help";

    if (strcmp(name, "--version") == 0) {
        printf("rankloom %s\n", RANKLOOM_VERSION);
        return 0;
    }
    const loom_command *command = loom_command_find(name);
    if (!command)
        return loom_command_unknown(name);
    if (loom_settings_check() != LOOM_OK) {
        fprintf(stderr, "rankloom: %s\n", loom_last_error());
        return 2;
    }
    int status = command->run(command, argc > 1 ? argc - 1 : 1, argc > 1 ? argv + 1 : argv);
    return fflush(stdout) == 0 || status ? status : 1; /* a full disk behind stdout is a failure too */
}
