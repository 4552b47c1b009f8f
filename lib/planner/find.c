/* Looking up device kinds, frameworks and constants by the names people give them. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "planner/constants/kinds.h"

static const loom_device_kind *const kinds[] = {
    &loom_kind_v100,    &loom_kind_t4,      &loom_kind_a100,    &loom_kind_a100_40, &loom_kind_a100_pcie, &loom_kind_h100,
    &loom_kind_h100_96, &loom_kind_h200,    &loom_kind_h800,    &loom_kind_b200,    &loom_kind_b300,      &loom_kind_gb200,
    &loom_kind_gb300,   &loom_kind_l40s,    &loom_kind_mi300x,  &loom_kind_mi325x,  &loom_kind_mi355x,    &loom_kind_tpu_v4,
    &loom_kind_tpu_v5e, &loom_kind_tpu_v5p, &loom_kind_tpu_v6e, &loom_kind_tpu_v7x, &loom_kind_cpu,
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Characters of `text` that `prefix` covers, comparing letters and digits only; 0: it is no prefix. */
static size_t covers(const char *prefix, const char *text)
{
    size_t covered = 0;

    for (;;) {
        while (*prefix && !isalnum((unsigned char)*prefix))
            prefix++;
        while (*text && !isalnum((unsigned char)*text))
            text++;
        if (!*prefix)
            return covered;
        if (tolower((unsigned char)*prefix++) != tolower((unsigned char)*text++))
            return 0;
        covered++;
    }
}

static size_t best_cover(const char *const *names, const char *text)
{
    size_t best = 0;

    for (int i = 0; i < 8 && names[i]; i++) {
        size_t covered = covers(names[i], text);
        if (covered > best)
            best = covered;
    }
    return best;
}

int loom_device_kind_count(void)
{
    return KINDS;
}

const loom_device_kind *loom_device_kind_at(int index)
{
    return kinds[index];
}

const loom_device_kind *loom_device_kind_find(const char *name)
{
    const loom_device_kind *found = NULL;
    size_t best = 0;

    if (covers("nvidia", name))
        name += strlen("nvidia");
    for (int i = 0; i < KINDS; i++) {
        size_t covered = best_cover(kinds[i]->names, name);
        if (covered > best) {
            best = covered;
            found = kinds[i];
        }
    }
    return found;
}

/* Whether a name that covers the first so many letters and digits of `text` ends there, as a word does. */
static bool ends_word(const char *text, size_t covered)
{
    while (covered > 0)
        covered -= isalnum((unsigned char)*text++) != 0;
    return !isalpha((unsigned char)*text);
}

const loom_framework *loom_framework_find(const char *name)
{
    const loom_framework *found = NULL;
    size_t best = 0;

    if (covers("nvidia", name))
        name += strlen("nvidia");
    for (int i = 0; i < loom_framework_count(); i++) {
        size_t covered = best_cover(loom_framework_at(i)->names, name);
        if (covered > best && ends_word(name, covered)) {
            best = covered;
            found = loom_framework_at(i);
        }
    }
    return found;
}

static void fill(loom_constant *at, const loom_constant *own, const loom_constant *defaults, int count)
{
    for (int i = 0; i < count; i++)
        at[i] = own && own[i].origin ? own[i] : defaults[i];
}

void loom_device_constants(const loom_device_kind *kind, loom_constant at[LOOM_DEV_COUNT])
{
    fill(at, kind ? kind->at : NULL, loom_device_defaults, LOOM_DEV_COUNT);
}

void loom_software_constants(const loom_framework *framework, loom_constant at[LOOM_SOFT_COUNT])
{
    fill(at, framework ? framework->at : NULL, loom_software_defaults, LOOM_SOFT_COUNT);
}

static const char *const device_names[] = {
#define X(name, unit, text) #name,
    LOOM_DEVICE_CONSTANTS(X)
#undef X
};

static const char *const software_names[] = {
#define X(name, text) #name,
    LOOM_SOFTWARE_CONSTANTS(X)
#undef X
};

static int index_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcasecmp(names[i], name) == 0)
            return i;
    return -1;
}

int loom_device_constant_find(const char *name)
{
    return index_of(device_names, LOOM_DEV_COUNT, name);
}

int loom_software_constant_find(const char *name)
{
    return index_of(software_names, LOOM_SOFT_COUNT, name);
}

const char *loom_device_constant_name(int which)
{
    return device_names[which];
}

const char *loom_software_constant_name(int which)
{
    return software_names[which];
}
