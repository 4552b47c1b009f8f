/* One reading of numbers for YAML, JSON, settings and flags. */
#include "core/number.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 400 }; /* longer than any double written in full */

/* A number taken apart: digits[0 .. n) without the point, times 10^exponent. */
typedef struct decimal {
    bool negative;
    char digits[MOST_DIGITS];
    int n;
    long exponent;
} decimal;

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads a run of digits with single underscores between them. Leading zeros of the whole number are not kept. */
static const char *read_digits(const char *at, decimal *d, bool fraction, int *seen)
{
    *seen = 0;
    while (digit(*at) || (*at == '_' && *seen && digit(at[1]))) {
        if (*at == '_') {
            at++;
            continue;
        }
        ++*seen;
        if (d->n || *at != '0') {
            if (d->n == MOST_DIGITS)
                return NULL;
            d->digits[d->n++] = *at;
        }
        d->exponent -= fraction;
        at++;
    }
    return at;
}

static const char *read_exponent(const char *at, decimal *d)
{
    bool negative = at[1] == '-';
    long value = 0;

    at += 1 + (at[1] == '-' || at[1] == '+');
    if (!digit(*at))
        return NULL;
    for (; digit(*at); at++)
        if (value < 100000)
            value = value * 10 + (*at - '0');
    d->exponent += negative ? -value : value;
    return at;
}

static loom_number_fault what_is_wrong(const char *text)
{
    const char *at = text + (*text == '-' || *text == '+');

    if (!digit(*at))
        return LOOM_NUMBER_NONE;
    if (at[0] == '0' && (at[1] == 'x' || at[1] == 'X' || at[1] == 'o' || at[1] == 'b'))
        return LOOM_NUMBER_NONE;
    while (digit(*at) || *at == '_' || *at == '.')
        at++;
    if (*at == ',' && digit(at[1]))
        return LOOM_NUMBER_GROUPED;
    at += *at == ' ';
    for (const char *c = at; *c; c++)
        if (!isalpha((unsigned char)*c))
            return LOOM_NUMBER_NONE;
    return *at ? LOOM_NUMBER_UNIT : LOOM_NUMBER_NONE;
}

static loom_number_fault take_apart(const char *text, decimal *d)
{
    const char *at = text;
    int whole, fraction = 0;

    *d = (decimal){.negative = *at == '-'};
    at += *at == '-' || *at == '+';
    const char *first = at;
    at = read_digits(at, d, false, &whole);
    if (at && *at == '.')
        at = read_digits(at + 1, d, true, &fraction);
    if (at && whole + fraction && (*at == 'e' || *at == 'E'))
        at = read_exponent(at, d);
    if (!at || *at || whole + fraction == 0)
        return what_is_wrong(text);
    return whole > 1 && *first == '0' ? LOOM_NUMBER_LEADING_ZERO : LOOM_NUMBER_OK;
}

loom_number_fault loom_number_i64(const char *text, int64_t *value)
{
    decimal d;
    loom_number_fault fault = take_apart(text, &d);
    uint64_t sum = 0;

    if (fault)
        return fault;
    while (d.n && d.digits[d.n - 1] == '0') { /* 4096.0 and 1.50e2 are whole */
        d.n--;
        d.exponent++;
    }
    if (d.n && d.exponent < 0)
        return LOOM_NUMBER_NOT_WHOLE;
    if (d.n + (d.n ? d.exponent : 0) > 19)
        return LOOM_NUMBER_TOO_LARGE;
    for (int i = 0; i < d.n; i++)
        sum = sum * 10 + (uint64_t)(d.digits[i] - '0');
    for (long i = 0; d.n && i < d.exponent; i++)
        sum *= 10;
    if (sum > (uint64_t)INT64_MAX + d.negative)
        return LOOM_NUMBER_TOO_LARGE;
    *value = d.negative ? (int64_t)(0 - sum) : (int64_t)sum;
    return LOOM_NUMBER_OK;
}

static bool named_real(const char *text, double *value)
{
    static const struct {
        const char *name;
        double value;
    } named[] = {{".inf", HUGE_VAL},  {".Inf", HUGE_VAL},   {".INF", HUGE_VAL},   {"+.inf", HUGE_VAL}, {"-.inf", -HUGE_VAL},
                 {"-.Inf", -HUGE_VAL}, {"-.INF", -HUGE_VAL}, {".nan", NAN}, {".NaN", NAN}, {".NAN", NAN}};

    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (!strcmp(text, named[i].name)) {
            *value = named[i].value;
            return true;
        }
    return false;
}

loom_number_fault loom_number_f64(const char *text, double *value)
{
    char plain[MOST_DIGITS + 32];
    decimal d;

    if (named_real(text, value))
        return LOOM_NUMBER_OK;
    loom_number_fault fault = take_apart(text, &d);
    if (fault)
        return fault;

    /* 0.DIGITS is avoided so that the locale's point never matters; strtod rounds correctly */
    snprintf(plain, sizeof plain, "%s%.*se%ld", d.negative ? "-" : "", d.n ? d.n : 1, d.n ? d.digits : "0", d.n ? d.exponent : 0);
    double read = strtod(plain, NULL);
    if (!isfinite(read))
        return LOOM_NUMBER_TOO_LARGE;
    *value = read;
    return LOOM_NUMBER_OK;
}

const char *loom_number_hint(loom_number_fault fault)
{
    switch (fault) {
    case LOOM_NUMBER_UNIT:
        return "write the number in full, as in 4096, 4_096 or 4e3";
    case LOOM_NUMBER_GROUPED:
        return "write 1000 or 1_000, without a comma";
    case LOOM_NUMBER_LEADING_ZERO:
        return "leave the leading zero out: some YAML readers take it as octal";
    case LOOM_NUMBER_TOO_LARGE:
        return "it does not fit in 64 bits";
    case LOOM_NUMBER_OK:
    case LOOM_NUMBER_NONE:
    case LOOM_NUMBER_NOT_WHOLE:
        break;
    }
    return NULL;
}

size_t loom_number_format(double value, char text[LOOM_NUMBER_BYTES])
{
    const char *point = localeconv()->decimal_point;

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, LOOM_NUMBER_BYTES, "%.*g", digits, value);
        if (digits == 17 || strtod(text, NULL) == value)
            break;
    }
    char *at = strcmp(point, ".") ? strstr(text, point) : NULL;
    if (at) { /* a locale with another point, of one byte or more */
        *at = '.';
        memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
    }
    return strlen(text);
}

int loom_by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}
