/* Amounts with units. */
#include "quantity.h"

#include <stdlib.h>
#include <string.h>

typedef struct unit {
    const char *name;
    double times;
} unit;

static const unit byte_units[] = {
    {"B", 1},         {"kB", 1e3},       {"KB", 1e3},       {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
    {"KiB", 0x1p10},  {"MiB", 0x1p20},   {"GiB", 0x1p30},   {"TiB", 0x1p40}, {"Mb", 1e6 / 8}, {"Gb", 1e9 / 8},
    {"Tb", 1e12 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {NULL, 0},
};
static const unit second_units[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}, {"h", 3600}, {"d", 86400}, {NULL, 0}};

/* Number and unit; what stands behind the unit has to be `tail`. */
static bool read(const char *text, const unit *units, const char *tail, double *value)
{
    char *end;
    double number = strtod(text, &end);

    if (end == text || !(number >= 0) || number > 1e300)
        return false;
    while (*end == ' ')
        end++;
    for (const unit *u = units; u->name; u++) {
        size_t length = strlen(u->name);
        if (strncmp(end, u->name, length) == 0 && strcmp(end + length, tail) == 0) {
            *value = number * u->times;
            return true;
        }
    }
    return false;
}

loom_status loom_quantity_bytes(const char *text, bool per_second, double *bytes)
{
    if (read(text, byte_units, per_second ? "/s" : "", bytes))
        return LOOM_OK;
    if (per_second)
        return loom_fail(LOOM_E_INVALID, "%s is no bandwidth; 900GB/s, 50GiB/s and 400Gb/s are", text);
    return loom_fail(LOOM_E_INVALID, "%s is no amount of bytes; 16GB, 512MiB and 64kB are", text);
}

loom_status loom_quantity_seconds(const char *text, double *seconds)
{
    if (read(text, second_units, "", seconds))
        return LOOM_OK;
    return loom_fail(LOOM_E_INVALID, "%s is no time; 5.32s, 20ms, 15min and 54d are", text);
}

loom_status quantity_read_seconds(const quantity_seconds *times, int count)
{
    loom_status status = LOOM_OK;

    for (int i = 0; i < count && status == LOOM_OK; i++)
        if (times[i].text)
            status = loom_quantity_seconds(times[i].text, times[i].seconds);
    return status;
}
