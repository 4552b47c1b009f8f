/* What a user fixed or excluded: "tp=8", "cp>1", "recompute=none". */
#ifndef LOOM_PLANNER_LIMITS_H
#define LOOM_PLANNER_LIMITS_H

#include "planner/cost.h"

typedef enum loom_field {
    LOOM_FIELD_TP,
    LOOM_FIELD_CP,
    LOOM_FIELD_DP,
    LOOM_FIELD_PP,
    LOOM_FIELD_VPP,
    LOOM_FIELD_EP,
    LOOM_FIELD_ETP,
    LOOM_FIELD_ZERO,
    LOOM_FIELD_MICRO_BATCH,
    LOOM_FIELD_SEQUENCE_PARALLEL,
    LOOM_FIELD_SCHEDULE,
    LOOM_FIELD_RECOMPUTE,
    LOOM_FIELD_CP_KIND,
    LOOM_FIELDS,
} loom_field;

/* One condition; value as in the layout (a schedule is its loom_schedule_kind …). */
typedef struct loom_condition {
    loom_field field;
    char relation; /* '=', '<' (at most), '>' (more than) */
    int64_t value;
    bool excludes;
} loom_condition;

enum { LOOM_MOST_CONDITIONS = 128 };

typedef struct loom_limits {
    loom_condition at[LOOM_MOST_CONDITIONS];
    int count;
} loom_limits;

/* Reads NULL-terminated lists (either may be NULL). All problems in one message. */
loom_status loom_limits_read(const char *const *fix, const char *const *exclude, loom_limits *limits);
/* What the request fixes and excludes; a plan for this engine also excludes what it does not run, and is refused for a model that it does not train. */
loom_status loom_limits_of(const loom_plan_request *request, const loom_job *job, loom_limits *limits);
/* Whether a layout whose `field` has this value may be looked at. */
bool loom_limits_allow(const loom_limits *limits, loom_field field, int64_t value);
/* "tp=3", or "exclude cp>1". Returns text. */
char *loom_condition_describe(const loom_condition *condition, char *text, size_t bytes);

/* "tp=8,pp=16,mbs=2,zero=1" over what `layout` holds; degrees that are named are marked as given. `what` is put before messages. */
loom_status loom_layout_parse(const char *text, const char *what, loom_layout *layout);

#endif
