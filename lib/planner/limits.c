/* Conditions on layouts, and layouts written in one line. */
#include "planner/limits.h"

#include <rankloom/engine.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/number.h"

typedef struct field_name {
    const char *name;
    loom_field field;
} field_name;

static const field_name field_names[] = {
    {"tp", LOOM_FIELD_TP},
    {"cp", LOOM_FIELD_CP},
    {"dp", LOOM_FIELD_DP},
    {"pp", LOOM_FIELD_PP},
    {"vpp", LOOM_FIELD_VPP},
    {"ep", LOOM_FIELD_EP},
    {"etp", LOOM_FIELD_ETP},
    {"zero", LOOM_FIELD_ZERO},
    {"micro_batch", LOOM_FIELD_MICRO_BATCH},
    {"mbs", LOOM_FIELD_MICRO_BATCH},
    {"sequence_parallel", LOOM_FIELD_SEQUENCE_PARALLEL},
    {"sp", LOOM_FIELD_SEQUENCE_PARALLEL},
    {"schedule", LOOM_FIELD_SCHEDULE},
    {"recompute", LOOM_FIELD_RECOMPUTE},
    {"cp_kind", LOOM_FIELD_CP_KIND},
};
enum { NAMES = sizeof field_names / sizeof field_names[0] };

static bool find_field(const char *name, size_t length, loom_field *field)
{
    for (int i = 0; i < NAMES; i++)
        if (strlen(field_names[i].name) == length && strncasecmp(field_names[i].name, name, length) == 0) {
            *field = field_names[i].field;
            return true;
        }
    return false;
}

static const char *word_of(loom_field field, int index)
{
    if (field == LOOM_FIELD_SCHEDULE)
        return index < LOOM_SCHEDULE_KINDS ? loom_schedule_kind_name(index) : NULL;
    if (field == LOOM_FIELD_RECOMPUTE)
        return index <= LOOM_RECOMPUTE_FULL ? loom_recompute_name(index) : NULL;
    if (field == LOOM_FIELD_CP_KIND)
        return index <= LOOM_CP_HYBRID ? loom_cp_kind_name(index) : NULL;
    static const char *const truth[] = {"false", "true"};
    return field == LOOM_FIELD_SEQUENCE_PARALLEL && index < 2 ? truth[index] : NULL;
}

/* A word of the field's own, or a whole number. */
static bool read_value(loom_field field, const char *text, int64_t *value)
{
    for (int i = 0; word_of(field, i); i++)
        if (strcasecmp(word_of(field, i), text) == 0) {
            *value = i;
            return true;
        }
    if (word_of(field, 0) && field != LOOM_FIELD_SEQUENCE_PARALLEL)
        return false;
    return loom_number_i64(text, value) == LOOM_NUMBER_OK;
}

static loom_status read_condition(const char *text, bool excludes, loom_condition *condition)
{
    size_t length = strcspn(text, "=<>");
    const char *value = text + length + 1;

    condition->excludes = excludes;
    if (!text[length] || !find_field(text, length, &condition->field))
        return loom_fail(
            LOOM_E_INVALID,
            "%s: expected tp, cp, dp, pp, vpp, ep, etp, zero, mbs, sp, schedule, recompute or cp_kind with =, < or > and a value", text);
    condition->relation = text[length];
    if (!read_value(condition->field, value, &condition->value))
        return loom_fail(LOOM_E_INVALID, "%s: %s is no value of %.*s", text, value, (int)length, text);
    return LOOM_OK;
}

static loom_status read_list(const char *const *list, bool excludes, loom_limits *limits)
{
    for (int i = 0; list && list[i]; i++) {
        if (limits->count == LOOM_MOST_CONDITIONS)
            return loom_fail(LOOM_E_INVALID, "more than %d conditions", LOOM_MOST_CONDITIONS);
        loom_status status = read_condition(list[i], excludes, &limits->at[limits->count]);
        if (status < 0)
            return status;
        limits->count++;
    }
    return LOOM_OK;
}

char *loom_condition_describe(const loom_condition *c, char *text, size_t bytes)
{
    const char *name = "", *word = NULL;

    for (int i = NAMES - 1; i >= 0; i--)
        if (field_names[i].field == c->field)
            name = field_names[i].name;
    for (int i = 0; word_of(c->field, i); i++)
        if (i == c->value)
            word = word_of(c->field, i);
    if (word)
        snprintf(text, bytes, "%s%s%c%s", c->excludes ? "exclude " : "", name, c->relation, word);
    else
        snprintf(text, bytes, "%s%s%c%lld", c->excludes ? "exclude " : "", name, c->relation, (long long)c->value);
    return text;
}

loom_status loom_limits_read(const char *const *fix, const char *const *exclude, loom_limits *limits)
{
    limits->count = 0;
    loom_status status = read_list(fix, false, limits);
    return status < 0 ? status : read_list(exclude, true, limits);
}

loom_status loom_limits_of(const loom_plan_request *request, const loom_job *job, loom_limits *limits)
{
    bool engine = job->own || (request->framework && loom_framework_find(request->framework) == loom_framework_find("rankloom"));
    loom_status status = loom_limits_read(request->fix, request->exclude, limits);

    if (status < 0 || !engine)
        return status;
    status = loom_engine_check_model(&job->model);
    return status < 0 ? status : read_list(loom_engine_excluded(), true, limits);
}

static bool holds(const loom_condition *c, int64_t value)
{
    switch (c->relation) {
    case '<':
        return value < c->value;
    case '>':
        return value > c->value;
    default:
        return value == c->value;
    }
}

bool loom_limits_allow(const loom_limits *limits, loom_field field, int64_t value)
{
    for (int i = 0; i < limits->count; i++)
        if (limits->at[i].field == field && holds(&limits->at[i], value) == limits->at[i].excludes)
            return false;
    return true;
}

/* --- layouts in one line ----------------------------------------------------------------------------------------------------- */

static void put(loom_layout *l, loom_field field, int64_t value)
{
    static const loom_axis axis_of[] = {[LOOM_FIELD_TP] = LOOM_AXIS_TP, [LOOM_FIELD_CP] = LOOM_AXIS_CP, [LOOM_FIELD_DP] = LOOM_AXIS_DP,
                                        [LOOM_FIELD_PP] = LOOM_AXIS_PP, [LOOM_FIELD_EP] = LOOM_AXIS_EP, [LOOM_FIELD_ETP] = LOOM_AXIS_ETP};
    int *const degrees[] = {[LOOM_FIELD_TP] = &l->tp,   [LOOM_FIELD_CP] = &l->cp, [LOOM_FIELD_DP] = &l->dp,   [LOOM_FIELD_PP] = &l->pp,
                            [LOOM_FIELD_VPP] = &l->vpp, [LOOM_FIELD_EP] = &l->ep, [LOOM_FIELD_ETP] = &l->etp, [LOOM_FIELD_ZERO] = &l->zero};

    if (field <= LOOM_FIELD_ZERO)
        *degrees[field] = (int)value;
    if (field <= LOOM_FIELD_ETP && field != LOOM_FIELD_VPP)
        l->given |= 1u << axis_of[field];
    if (field == LOOM_FIELD_MICRO_BATCH)
        l->micro_batch = value;
    if (field == LOOM_FIELD_SEQUENCE_PARALLEL)
        l->sequence_parallel = value != 0;
    if (field == LOOM_FIELD_SCHEDULE)
        l->schedule = value;
    if (field == LOOM_FIELD_RECOMPUTE)
        l->recompute = value;
    if (field == LOOM_FIELD_CP_KIND)
        l->cp_kind = value;
}

loom_status loom_layout_parse(const char *text, const char *what, loom_layout *layout)
{
    bool schedule_named = false, sequence_named = false, dp_named = false;

    for (const char *at = text; *at;) {
        char word[64];
        size_t length = strcspn(at, ", ");
        loom_condition c;
        if (length >= sizeof word)
            return loom_fail(LOOM_E_INVALID, "%s: \"%.80s\" is no setting of a layout", what, at);
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        at += length + strspn(at + length, ", ");
        if (!length)
            continue;
        if (read_condition(word, false, &c) < 0 || c.relation != '=')
            return loom_fail(LOOM_E_INVALID, "%s: %s", what, loom_last_error());
        put(layout, c.field, c.value);
        schedule_named |= c.field == LOOM_FIELD_SCHEDULE;
        sequence_named |= c.field == LOOM_FIELD_SEQUENCE_PARALLEL;
        dp_named |= c.field == LOOM_FIELD_DP;
    }
    if (!dp_named)
        layout->dp = 0; /* what is left of the world */
    if (!schedule_named)
        layout->schedule = layout->vpp > 1 ? LOOM_SCHEDULE_INTERLEAVED : LOOM_SCHEDULE_1F1B;
    if (!sequence_named)
        layout->sequence_parallel = layout->tp > 1;
    return LOOM_OK;
}
