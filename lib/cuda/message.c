/* The module's messages are the library's: this file takes the place of the one in core, whose buffer would be a second one. */
#include "cuda/module.h"

#include <stdarg.h>
#include <stdio.h>

/* Set before anything else of the module runs, and by every caller to the same value. */
static const loom_cuda_host *host;

bool loom_cuda_set_host(const loom_cuda_host *caller)
{
    if (host && host != caller)
        return false;
    host = caller;
    return true;
}

const char *loom_last_error(void)
{
    return host->last_error();
}

void loom_clear_error(void)
{
    host->clear_error();
}

loom_status loom_fail(loom_status status, const char *format, ...)
{
    char text[4096];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return host->fail(status, text);
}
