/* Monotonic time of a measurement, and the middle of several. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdlib.h>
#include <time.h>

static inline double bench_now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Median of `values`, which are sorted on return. */
static inline double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, bench_by_value);
    return values[count / 2];
}

#endif
