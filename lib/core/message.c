/* The message of each thread's last failure. A file of its own, because the CUDA module has none: its failures come here. */
#include <rankloom/status.h>

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_BYTES = 16384 }; /* a file with many problems lists them all */

static _Thread_local char last_message[MESSAGE_BYTES];

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
