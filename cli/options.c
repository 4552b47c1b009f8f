/* Reading command lines. */
#include "options.h"

#include <rankloom/config.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_OPTIONS = 64 };

/* One command line under way. */
typedef struct reading {
    const loom_command *command;
    char *arguments; /* the struct */
    char **next;     /* what was not looked at yet */
    loom_operands *operands;
    int n_problems;
    bool wants_help, options_ended;
} reading;

static void problem(reading *r, const char *format, ...) LOOM_PRINTF(2, 3);

static void problem(reading *r, const char *format, ...)
{
    va_list arguments;

    r->n_problems++;
    fprintf(stderr, "rankloom %s: ", r->command->name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* --- values ------------------------------------------------------------------------------------------------------------- */

/* Numbers follow the rule of our files: the text is read as the root of a document. */
static bool read_number(const char *text, bool whole, double *real, int64_t *integer)
{
    loom_config *document = NULL;
    bool good = false;

    if (loom_config_parse("option", text, strlen(text), &document) == LOOM_OK)
        good = whole ? loom_node_as_i64(loom_config_root(document), integer) : loom_node_as_f64(loom_config_root(document), real);
    loom_config_free(document);
    return good;
}

static void store_number(reading *r, const loom_option *option, const char *text)
{
    bool whole = option->kind == LOOM_OPTION_INT;
    double real = 0;
    int64_t integer = 0;

    if (!read_number(text, whole, &real, &integer)) {
        problem(r, "--%s takes %s number from %g to %g, not \"%s\"", option->name, whole ? "a whole" : "a", option->low, option->high, text);
        return;
    }
    if (whole)
        real = (double)integer;
    if (!(real >= option->low && real <= option->high))
        problem(r, "--%s=%s is out of range; %g to %g are possible", option->name, text, option->low, option->high);
    else if (whole)
        *(int *)(r->arguments + option->offset) = (int)integer;
    else
        *(double *)(r->arguments + option->offset) = real;
}

static void store_choice(reading *r, const loom_option *option, const char *text)
{
    const char *near = loom_nearest_name(text, option->choices);

    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *(int *)(r->arguments + option->offset) = i;
            return;
        }
    }
    problem(r, "--%s=%s is none of its values (%s)%s%s", option->name, text, option->takes, near ? "; did you mean " : "", near ? near : "");
}

static void store_in_list(reading *r, const loom_option *option, const char *text)
{
    loom_option_list *list = (loom_option_list *)(r->arguments + option->offset);

    if (list->count == LOOM_OPTION_LIST_MOST)
        problem(r, "--%s is given more than %d times", option->name, LOOM_OPTION_LIST_MOST);
    else
        list->at[list->count++] = text;
}

static void store(reading *r, const loom_option *option, const char *text)
{
    switch (option->kind) {
    case LOOM_OPTION_FLAG:
        *(bool *)(r->arguments + option->offset) = true;
        break;
    case LOOM_OPTION_INT:
    case LOOM_OPTION_REAL:
        store_number(r, option, text);
        break;
    case LOOM_OPTION_TEXT:
        *(const char **)(r->arguments + option->offset) = text;
        break;
    case LOOM_OPTION_CHOICE:
        store_choice(r, option, text);
        break;
    case LOOM_OPTION_LIST:
        store_in_list(r, option, text);
        break;
    }
}

/* --- options ------------------------------------------------------------------------------------------------------------ */

static const loom_option no_options[] = {{0}};

static const loom_option *options_of(const loom_command *command)
{
    return command->options ? command->options : no_options;
}

static const loom_option *find_by_name(const loom_command *command, const char *name, size_t length)
{
    for (const loom_option *option = options_of(command); option->name; option++)
        if (strlen(option->name) == length && strncmp(option->name, name, length) == 0)
            return option;
    return NULL;
}

static const loom_option *find_by_letter(const loom_command *command, char letter)
{
    for (const loom_option *option = options_of(command); option->name; option++)
        if (option->letter == letter)
            return option;
    return NULL;
}

static void unknown(reading *r, const char *name, size_t length)
{
    const char *names[MOST_OPTIONS + 2] = {"help"}, *near;
    char asked[64];
    int n = 1;

    for (const loom_option *option = options_of(r->command); option->name && n <= MOST_OPTIONS; option++)
        names[n++] = option->name;
    snprintf(asked, sizeof asked, "%.*s", (int)length, name);
    near = loom_nearest_name(asked, names);
    problem(r, "--%s is not known%s%s; rankloom %s --help lists what is", asked, near ? "; did you mean --" : "", near ? near : "",
            r->command->name);
}

/* `given` is the value that stands in the same word, or NULL. */
static void take_option(reading *r, const loom_option *option, const char *given)
{
    if (option->kind == LOOM_OPTION_FLAG && given)
        problem(r, "--%s takes no value", option->name);
    else if (option->kind != LOOM_OPTION_FLAG && !given && !*r->next)
        problem(r, "--%s needs a value: %s", option->name, option->takes);
    else
        store(r, option, option->kind == LOOM_OPTION_FLAG ? NULL : given ? given : *r->next++);
}

static void take_long(reading *r, const char *word)
{
    size_t length = strcspn(word, "=");
    const loom_option *option = find_by_name(r->command, word, length);

    if (option)
        take_option(r, option, word[length] ? word + length + 1 : NULL);
    else if (length == 4 && strncmp(word, "help", 4) == 0)
        r->wants_help = true;
    else
        unknown(r, word, length);
}

/* "-n4" and "-n 4"; letters are not bundled. */
static void take_short(reading *r, const char *word)
{
    const loom_option *option = find_by_letter(r->command, word[0]);

    if (option)
        take_option(r, option, word[1] ? word + 1 : NULL);
    else if (strcmp(word, "h") == 0)
        r->wants_help = true;
    else
        problem(r, "-%s is not known; rankloom %s --help lists what is", word, r->command->name);
}

static void take_word(reading *r, char *word)
{
    bool is_option = !r->options_ended && word[0] == '-' && word[1] != '\0'; /* "-" alone is a file name */

    if (!is_option) {
        r->operands->at[r->operands->count++] = word;
        r->options_ended |= r->command->operands_end_options;
    } else if (strcmp(word, "--") == 0) {
        r->options_ended = true;
    } else if (word[1] == '-') {
        take_long(r, word + 2);
    } else {
        take_short(r, word + 1);
    }
}

static void check_operands(reading *r)
{
    const loom_command *command = r->command;
    int count = r->operands->count;

    if (count < command->least)
        problem(r, "%s missing: rankloom %s %s", count ? "an operand is" : "its operand is", command->name, command->operands);
    else if (command->most >= 0 && count > command->most)
        problem(r, "\"%s\" is too much: rankloom %s%s%s", r->operands->at[command->most], command->name, *command->operands ? " " : "",
                command->operands);
}

bool loom_options_parse(const loom_command *command, int argc, char **argv, void *arguments, loom_operands *operands, int *exit_status)
{
    reading r = {.command = command, .arguments = arguments, .next = argv + 1, .operands = operands};

    *operands = (loom_operands){.at = argv + 1}; /* operands move to the front; what is read lies behind what is written */
    while (r.next < argv + argc)
        take_word(&r, *r.next++);
    operands->at[operands->count] = NULL;
    if (r.wants_help) {
        loom_command_print_usage(command);
        *exit_status = 0;
        return false;
    }
    check_operands(&r);
    *exit_status = 2;
    return r.n_problems == 0;
}

/* --- usage --------------------------------------------------------------------------------------------------------------- */

/* Bytes of a text that are no column of their own: of a character only the first is. */
static int continuation_bytes(const char *text)
{
    int count = 0;

    for (; *text; text++)
        count += ((unsigned char)*text & 0xc0) == 0x80;
    return count;
}

void loom_command_print_usage(const loom_command *command)
{
    const loom_option *options = options_of(command);

    printf("rankloom %s%s%s%s: %s\n", command->name, options->name ? " [OPTION …]" : "", *command->operands ? " " : "", command->operands,
           command->summary);
    for (const loom_option *option = options; option->name; option++) {
        char left[64], letter[8] = "";
        if (option->letter)
            snprintf(letter, sizeof letter, "-%c, ", option->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, option->name, option->takes ? " " : "", option->takes ? option->takes : "");
        printf("  %-*s %s\n", 28 + continuation_bytes(left), left, option->help);
    }
    if (command->about)
        printf("\n%s\n", command->about);
}

int loom_command_fail(const loom_command *command, loom_status status)
{
    fprintf(stderr, "rankloom %s: %s\n", command->name, loom_last_error());
    return loom_exit_code(status);
}
