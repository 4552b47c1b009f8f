/* Status codes and the per-thread message of the last failure. */
#include <rankloom/status.h>

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_BYTES = 16384 }; /* a file with many problems lists them all */

static _Thread_local char last_message[MESSAGE_BYTES];

const char *loom_status_name(loom_status status)
{
    switch (status) {
    case LOOM_OK:
        return "LOOM_OK";
    case LOOM_PENDING:
        return "LOOM_PENDING";
    case LOOM_E_INVALID:
        return "LOOM_E_INVALID";
    case LOOM_E_MEMORY:
        return "LOOM_E_MEMORY";
    case LOOM_E_MISMATCH:
        return "LOOM_E_MISMATCH";
    case LOOM_E_PEER:
        return "LOOM_E_PEER";
    case LOOM_E_IO:
        return "LOOM_E_IO";
    case LOOM_E_UNSUPPORTED:
        return "LOOM_E_UNSUPPORTED";
    }
    return "unknown status";
}

const char *loom_last_error(void)
{
    return last_message;
}

void loom_clear_error(void)
{
    last_message[0] = '\0';
}

loom_status loom_fail(loom_status status, const char *format, ...)
{
    char text[MESSAGE_BYTES]; /* the arguments may point into last_message: a caller that adds where it was */
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(last_message, sizeof last_message, "%s", text);
    return status;
}

int loom_exit_code(loom_status status)
{
    switch (status) {
    case LOOM_OK:
    case LOOM_PENDING:
        return 0;
    case LOOM_E_INVALID:
    case LOOM_E_UNSUPPORTED:
        return 2;
    case LOOM_E_PEER:
    case LOOM_E_MISMATCH:
        return 3;
    case LOOM_E_MEMORY:
    case LOOM_E_IO:
        return 1;
    }
    return 1;
}
