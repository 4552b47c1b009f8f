/* What the subcommands share: the description of a command, and one reading of command lines.
 *
 * A subcommand is one file that defines a `const loom_command`; a line in commands.c makes it known. Everything else that has to know commands and
 * options (usage, "did you mean", shell completion, the test of the manual page) reads these tables. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <rankloom/status.h>

typedef enum loom_option_kind {
    LOOM_OPTION_FLAG,   /* bool: true when given */
    LOOM_OPTION_INT,    /* int in low..high */
    LOOM_OPTION_REAL,   /* double in low..high */
    LOOM_OPTION_TEXT,   /* const char *, borrowed from the command line */
    LOOM_OPTION_CHOICE, /* int: index in `choices` */
    LOOM_OPTION_LIST,   /* loom_option_list: given several times */
} loom_option_kind;

enum { LOOM_OPTION_LIST_MOST = 64 };

typedef struct loom_option_list {
    int count;
    const char *at[LOOM_OPTION_LIST_MOST + 1]; /* NULL-terminated, where the arguments began as zeros */
} loom_option_list;

/* Written as --name VALUE or --name=VALUE, or -l VALUE if it has a letter. */
typedef struct loom_option {
    const char *name;
    char letter; /* 0: none */
    loom_option_kind kind;
    size_t offset; /* of its field in the command's struct of arguments; what is not given stays as the command set it */
    double low, high;
    const char *const *choices; /* NULL-terminated */
    const char *takes;          /* "N", "FILE"; NULL for a flag */
    const char *help;           /* one line, with the default */
} loom_option;

typedef struct loom_command {
    const char *name;
    const char *summary;         /* one line */
    const char *operands;        /* "MODEL.yaml [KEY=VALUE …]"; "" when it takes none */
    int least, most;             /* operands; most -1: any number */
    const char *about;           /* what --help says below the options: a paragraph or two, or NULL */
    const loom_option *options;  /* the last has no name; NULL: none */
    bool operands_end_options;   /* what follows the first operand belongs to another program */
    int (*run)(const struct loom_command *self, int argc, char **argv); /* argv[0] is the command's name; returns the exit status */
} loom_command;

typedef struct loom_operands {
    int count;
    char **at;
} loom_operands;

/* Fills the struct of arguments and collects the operands (argv is reordered). False: the command ends with *exit_status, because help was asked for
 * (0) or because something was wrong (2); all problems have been printed, each unknown option with the nearest one. */
bool loom_options_parse(const loom_command *command, int argc, char **argv, void *arguments, loom_operands *operands, int *exit_status);

/* Prints "rankloom NAME: message of the last failure" and returns the exit status that belongs to it. */
int loom_command_fail(const loom_command *command, loom_status status);

/* The table, NULL-terminated (commands.c). */
extern const loom_command *const loom_commands[];
const loom_command *loom_command_find(const char *name); /* NULL: unknown */
void loom_command_print_usage(const loom_command *command);
int loom_command_unknown(const char *name); /* says so on stderr, with the nearest name; returns 2 */

#endif
