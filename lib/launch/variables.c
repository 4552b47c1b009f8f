/* Typed reading of environment variables that collects every problem. */
#include "launch/variables.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *loom_variable_text(loom_variables *variables, const char *name)
{
    return variables->get(variables->context, name);
}

bool loom_variable_is_set(loom_variables *variables, const char *name)
{
    return loom_variable_text(variables, name) != NULL;
}

void loom_variable_problem(loom_variables *variables, const char *format, ...)
{
    char problem[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    loom_text_add(&variables->problems, "%s%s", variables->n_problems++ ? "\n" : "", problem);
}

void loom_variable_require(loom_variables *variables, const char *name)
{
    if (!loom_variable_is_set(variables, name))
        loom_variable_problem(variables, "%s is missing", name);
}

/* A launcher writes plain decimal digits. Signs, spaces and bases mean that somebody else wrote the variable. */
static bool is_plain_number(const char *text)
{
    return *text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 10;
}

bool loom_variable_int(loom_variables *variables, const char *name, int low, int high, int *value)
{
    const char *text = loom_variable_text(variables, name);

    if (!text)
        return false;
    if (!*text) {
        loom_variable_problem(variables, "%s is empty; a number from %d to %d is needed", name, low, high);
        return false;
    }
    if (!is_plain_number(text)) {
        loom_variable_problem(variables, "%s=\"%.64s\" is not a number from %d to %d", name, text, low, high);
        return false;
    }
    int number = atoi(text);
    if (number < low || number > high) {
        loom_variable_problem(variables, "%s=%d is out of range; %d to %d are possible", name, number, low, high);
        return false;
    }
    *value = number;
    return true;
}

bool loom_variable_copy(loom_variables *variables, const char *name, char *text, size_t capacity)
{
    const char *found = loom_variable_text(variables, name);

    if (!found)
        return false;
    if (!*found) {
        loom_variable_problem(variables, "%s is empty", name);
        return false;
    }
    if (strlen(found) >= capacity) {
        loom_variable_problem(variables, "%s has %zu characters; at most %zu are possible", name, strlen(found), capacity - 1);
        return false;
    }
    strcpy(text, found);
    return true;
}

bool loom_variable_bool(loom_variables *variables, const char *name, bool *value)
{
    const char *text = loom_variable_text(variables, name);

    if (!text)
        return false;
    if (!strcasecmp(text, "true") || !strcmp(text, "1")) {
        *value = true;
        return true;
    }
    if (!strcasecmp(text, "false") || !strcmp(text, "0")) {
        *value = false;
        return true;
    }
    loom_variable_problem(variables, "%s=\"%.64s\" is neither True nor False", name, text);
    return false;
}

loom_status loom_variables_finish(loom_variables *variables, const char *what)
{
    const char *problems = loom_text_so_far(&variables->problems);
    loom_status status = LOOM_OK;

    if (variables->n_problems == 1)
        status = loom_fail(LOOM_E_INVALID, "%s: %s", what, problems);
    else if (variables->n_problems > 1)
        status = loom_fail(LOOM_E_INVALID, "%s, %d problems:\n%s", what, variables->n_problems, problems);
    loom_text_drop(&variables->problems);
    return status;
}
