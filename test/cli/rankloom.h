/* Runs the command and keeps what it said and how it ended. */
#ifndef TEST_CLI_RANKLOOM_H
#define TEST_CLI_RANKLOOM_H

#include "check.h"

#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

static char rankloom_said[1 << 16]; /* standard output and errors, together */

/* rankloom ARGUMENTS; returns the exit status. */
static inline int rankloom(const char *format, ...)
{
    char arguments[4096], command[8192];
    const char *program = getenv("LOOM_RANKLOOM");
    va_list list;
    FILE *pipe;
    int status;

    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    snprintf(command, sizeof command, "'%s' %s 2>&1", program ? program : "build/cli/rankloom", arguments);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    rankloom_said[fread(rankloom_said, 1, sizeof rankloom_said - 1, pipe)] = '\0';
    status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define assert_said(text)                                                                                                                  \
    do {                                                                                                                                   \
        if (!strstr(rankloom_said, (text)))                                                                                                \
            fail_msg("\"%s\" is not in what was said:\n%s", (text), rankloom_said);                                                        \
    } while (0)

/* A file of this test in a folder of its own; its path. Static buffer, good until the next call. */
static inline const char *rankloom_file(const char *name, const char *text)
{
    static char path[256];
    FILE *file;

    snprintf(path, sizeof path, "/tmp/rankloom_test_%d_%s", getpid(), name);
    if (text) {
        file = fopen(path, "w");
        assert_non_null(file);
        fputs(text, file);
        assert_int_equal(fclose(file), 0);
    }
    return path;
}

#endif
