/* Reading of "owner.constant=value" and "owner.constant~value". */
#include "planner/overrides.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/number.h"

/* The names of a kind are written with their memory size; "h100" means all of them that it begins. */
bool loom_override_owns(const loom_override *override, const char *const *names)
{
    size_t length = strlen(override->owner);

    if (strcasecmp(override->owner, "all") == 0)
        return true;
    for (int i = 0; names && i < 8 && names[i]; i++)
        if (strncasecmp(override->owner, names[i], length) == 0 && (names[i][length] == '\0' || names[i][length] == '-'))
            return true;
    return false;
}

static bool owner_known(const loom_override *override)
{
    for (int i = 0; i < loom_device_kind_count(); i++)
        if (loom_override_owns(override, loom_device_kind_at(i)->names))
            return true;
    for (int i = 0; i < loom_framework_count(); i++)
        if (loom_override_owns(override, loom_framework_at(i)->names))
            return true;
    return false;
}

static loom_status read_one(const char *text, loom_override *o)
{
    char name[64];
    const char *equals = strpbrk(text, "=~"), *dot = equals;

    while (dot && dot > text && *dot != '.') /* the last: owners' names have points, such as llm.c */
        dot--;
    if (!equals || *dot != '.' || dot - text >= (int)sizeof o->owner || equals - dot > (int)sizeof name)
        return loom_fail(LOOM_E_INVALID, "--set %s: expected DEVICE.CONSTANT=VALUE or FRAMEWORK.CONSTANT=VALUE, such as h100.sustained=0.8",
                         text);
    snprintf(o->owner, sizeof o->owner, "%.*s", (int)(dot - text), text);
    snprintf(name, sizeof name, "%.*s", (int)(equals - dot - 1), dot + 1);
    o->device = loom_device_constant_find(name);
    o->software = loom_software_constant_find(name);
    if (!owner_known(o))
        return loom_fail(LOOM_E_INVALID, "--set %s: no device kind or framework is called %s", text, o->owner);
    if (o->device < 0 && o->software < 0)
        return loom_fail(LOOM_E_INVALID, "--set %s: no constant is called %s", text, name);
    loom_number_fault fault = loom_number_f64(equals + 1, &o->value.value);
    if (fault != LOOM_NUMBER_OK) {
        const char *hint = loom_number_hint(fault);
        return loom_fail(LOOM_E_INVALID, "--set %s: %s is no number%s%s", text, equals + 1, hint ? "; " : "", hint ? hint : "");
    }
    o->value.basis = *equals == '~' ? LOOM_BASIS_DEFAULT : LOOM_BASIS_GIVEN;
    o->value.origin = "--set";
    return LOOM_OK;
}

loom_status loom_overrides_read(const char *const *set, loom_override **overrides, int *count)
{
    int n = 0;

    while (set && set[n])
        n++;
    loom_override *all = calloc((size_t)n + 1, sizeof *all);
    if (!all)
        return loom_fail(LOOM_E_MEMORY, "no memory for %d settings", n);
    for (int i = 0; i < n; i++) {
        loom_status status = read_one(set[i], &all[i]);
        if (status < 0) {
            free(all);
            return status;
        }
    }
    *overrides = all;
    *count = n;
    return LOOM_OK;
}
