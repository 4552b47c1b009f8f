/* The RANKLOOM_* environment variables: one table, which docs/settings.md and the command line print. */
#ifndef RANKLOOM_SETTINGS_H
#define RANKLOOM_SETTINGS_H

#include <rankloom/status.h>
LOOM_BEGIN

typedef struct loom_setting_row {
    const char *name;     /* "RANKLOOM_TIMEOUT_S" */
    const char *takes;    /* what a value looks like: "seconds", "error|warning|info|debug|trace" */
    const char *fallback; /* what holds when it is not set, as text; "" where that is decided at run time */
    const char *meaning;  /* one or two sentences */
} loom_setting_row;

/* Every setting there is, in the order of the documentation. Static. */
LOOM_API const loom_setting_row *loom_settings_table(size_t *count);

/* Looks at every RANKLOOM_* variable of this process's environment: a value that its row does not take and a name that has no row are
 * problems, all of them in one message, with the nearest name. Programs call it once, first. */
LOOM_API loom_status loom_settings_check(void);

LOOM_END
#endif
