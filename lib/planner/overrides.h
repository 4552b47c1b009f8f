/* Constants set by the user over the tables: "h100.sustained=0.8", "all.jitter=0"; "nemo.tp_hidden~0.5" only assumes it: intervals stay as wide as on a
 * habit of the field. */
#ifndef LOOM_PLANNER_OVERRIDES_H
#define LOOM_PLANNER_OVERRIDES_H

#include "planner/constants.h"

typedef struct loom_override {
    char owner[32];       /* device kind, framework, or "all" */
    int device, software; /* index of the constant; -1: it is not one of those */
    loom_constant value;
} loom_override;

/* `set`: NULL-terminated, or NULL. The caller frees *overrides. */
loom_status loom_overrides_read(const char *const *set, loom_override **overrides, int *count);
/* Whether an override meant for `owner` speaks of this kind or framework (the names are NULL-terminated; NULL: of none). */
bool loom_override_owns(const loom_override *override, const char *const *names);

#endif
