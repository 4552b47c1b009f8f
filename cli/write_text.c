#include "write_text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

loom_status write_text(const char *text, const char *path)
{
    FILE *file = path ? fopen(path, "w") : stdout;
    bool failed = !file || fputs(text, file) < 0 || fflush(file) != 0;
    int reason = errno;

    if (path && file && fclose(file) != 0 && !failed) {
        failed = true;
        reason = errno;
    }
    return failed ? loom_fail(LOOM_E_IO, "%s: %s", path ? path : "standard output", strerror(reason)) : LOOM_OK;
}
