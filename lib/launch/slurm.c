/* The two compact notations of Slurm. */
#include "launch/slurm.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* A positive number at *text, which moves behind it. */
static bool take_number(const char **text, int *number)
{
    char *end;

    if (!isdigit((unsigned char)**text))
        return false;
    long value = strtol(*text, &end, 10);
    if (value > INT_MAX)
        return false;
    *text = end;
    *number = (int)value;
    return true;
}

/* "(x3)" at *text, or nothing, which means once. */
static bool take_repeat(const char **text, int *times)
{
    *times = 1;
    if (strncmp(*text, "(x", 2) != 0)
        return true;
    *text += 2;
    if (!take_number(text, times) || **text != ')')
        return false;
    ++*text;
    return true;
}

bool loom_slurm_tasks_on_node(const char *list, int node, int *tasks)
{
    while (node >= 0) {
        int count, times;

        if (!take_number(&list, &count) || !take_repeat(&list, &times))
            return false;
        if (node < times) {
            *tasks = count;
            return *list == '\0' || *list == ',';
        }
        node -= times;
        if (*list++ != ',')
            return false;
    }
    return false;
}

bool loom_slurm_first_host(const char *list, char *host, size_t capacity)
{
    size_t n = 0;
    bool in_bracket = false, skipping = false; /* skipping: behind the first element of a bracket */

    for (; *list && (in_bracket || *list != ','); list++) {
        if (*list == '[' || *list == ']') {
            if (in_bracket != (*list == ']'))
                return false;
            in_bracket = !in_bracket;
            skipping = false;
            continue;
        }
        skipping |= in_bracket && (*list == ',' || *list == '-');
        if (skipping)
            continue;
        if (n + 1 >= capacity)
            return false;
        host[n++] = *list;
    }
    host[n] = '\0';
    return n > 0 && !in_bracket;
}
