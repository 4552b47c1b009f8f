/* Typed reading of environment variables that collects every problem instead of stopping at the first. */
#ifndef LAUNCH_VARIABLES_H
#define LAUNCH_VARIABLES_H

#include "core/text.h"

#include <rankloom/launch.h>

typedef struct loom_variables {
    loom_getenv_fn *get;
    void *context;
    int n_problems;
    loom_text problems; /* one a line */
} loom_variables;

bool loom_variable_is_set(loom_variables *variables, const char *name); /* also when empty */
const char *loom_variable_text(loom_variables *variables, const char *name);

/* True and *value when `name` is set to a plain decimal number in low..high. Unset: false, *value stays. Wrong: noted, false. */
bool loom_variable_int(loom_variables *variables, const char *name, int low, int high, int *value);

/* Copies the text of `name` when it is set; too long or empty is noted. Unset: false, `text` stays. */
bool loom_variable_copy(loom_variables *variables, const char *name, char *text, size_t capacity);

/* True, False, true, false, 1, 0; same rules as loom_variable_int(). */
bool loom_variable_bool(loom_variables *variables, const char *name, bool *value);

void loom_variable_require(loom_variables *variables, const char *name); /* notes "NAME is missing" */
void loom_variable_problem(loom_variables *variables, const char *format, ...) LOOM_PRINTF(2, 3);

/* LOOM_OK, or LOOM_E_INVALID with all problems; `what` names the kind of environment in front of them. Frees them. */
loom_status loom_variables_finish(loom_variables *variables, const char *what);

#endif
