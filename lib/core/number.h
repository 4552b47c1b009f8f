/* Numbers as people write them in files, settings and flags, by one rule and in every locale.
 *
 * A real is  [+-] digits [. digits] [e [+-] digits]  with digits on at least one side of the point, or .inf, -.inf, .nan. An
 * underscore may stand between two digits. An integer is a real whose value is whole and fits 64 bits: 4096, 4_096, 1e3, 4096.0. Leading zeros (octal
 * in YAML 1.1), hexadecimal, 1:30, 4k and 1,000 are no numbers. */
#ifndef LOOM_CORE_NUMBER_H
#define LOOM_CORE_NUMBER_H

#include <rankloom/api.h>

typedef enum loom_number_fault {
    LOOM_NUMBER_OK,
    LOOM_NUMBER_NONE,         /* not a number */
    LOOM_NUMBER_UNIT,         /* 4k, 16GB: digits and a letter */
    LOOM_NUMBER_GROUPED,      /* 1,000 */
    LOOM_NUMBER_LEADING_ZERO, /* 010 */
    LOOM_NUMBER_NOT_WHOLE,    /* 4096.5 where an integer is meant */
    LOOM_NUMBER_TOO_LARGE,    /* outside 64 bits, or above the largest double */
} loom_number_fault;

loom_number_fault loom_number_i64(const char *text, int64_t *value);
loom_number_fault loom_number_f64(const char *text, double *value);
/* What the person who wrote it should do ("write the number in full …"), or NULL where there is nothing to add. Static. */
const char *loom_number_hint(loom_number_fault fault);

/* The shortest decimal that reads back as the finite `value`; returns its length. */
enum { LOOM_NUMBER_BYTES = 32 };
size_t loom_number_format(double value, char text[LOOM_NUMBER_BYTES]);

/* For qsort() of doubles, smallest first. */
int loom_by_value(const void *left, const void *right);

#endif
