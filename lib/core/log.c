/* Messages on stderr, one write each. */
#include "core/log.h"
#include "core/settings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warning", "info", "debug", "trace"};

bool loom_log_enabled(loom_log_level level)
{
    int limit = LOOM_LOG_WARNING;

    if (loom_setting_choice(LOOM_SETTING_LOG, &limit) < 0)
        limit = LOOM_LOG_WARNING;
    return (int)level <= limit;
}

void loom_log(loom_log_level level, int rank, const char *format, ...)
{
    char line[4096], who[32] = "";
    va_list arguments;

    if (!loom_log_enabled(level))
        return;
    if (rank >= 0)
        snprintf(who, sizeof who, " [rank %d]", rank);
    int start = snprintf(line, sizeof line, "rankloom%s %s: ", who, level_names[level]);
    va_start(arguments, format);
    vsnprintf(line + start, sizeof line - (size_t)start - 1, format, arguments);
    va_end(arguments);
    strcat(line, "\n");

    const char *at = line;
    for (size_t left = strlen(line); left;) {
        ssize_t wrote = write(STDERR_FILENO, at, left);
        if (wrote <= 0) /* nobody reads stderr: nothing better to do with a message about it */
            return;
        at += wrote;
        left -= (size_t)wrote;
    }
}
