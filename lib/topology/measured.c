/* Taking in measured points, and the laws that are fitted to them. */
#include <rankloom/topology.h>

#include "topology/fit.h"

#include <stdlib.h>
#include <string.h>

/* --- sorted sets of points ------------------------------------------------------------------------------------------------ */

static int by_number(double a, double b)
{
    return (a > b) - (a < b);
}

static int compare_gemms(const void *left, const void *right)
{
    const loom_gemm_point *a = left, *b = right;
    int order = by_number(a->chip, b->chip);

    order = order ? order : by_number(a->math, b->math);
    order = order ? order : by_number((double)a->m, (double)b->m);
    order = order ? order : by_number((double)a->n, (double)b->n);
    return order ? order : by_number((double)a->k, (double)b->k);
}

/* Group first, then size: the points of one kind of group stand together, small to large. */
static int compare_groups(const loom_pattern_point *a, const loom_pattern_point *b)
{
    int order = by_number(a->pattern, b->pattern);

    order = order ? order : by_number(a->level, b->level);
    order = order ? order : by_number(a->ranks, b->ranks);
    return order ? order : by_number(a->in_domain, b->in_domain);
}

static int compare_points(const void *left, const void *right)
{
    const loom_pattern_point *a = left, *b = right;
    int order = compare_groups(a, b);
    return order ? order : by_number(a->bytes, b->bytes);
}

typedef int compare_fn(const void *, const void *);

/* Puts `count` items into a sorted array without equals; a new one replaces its equal. */
static loom_status add_items(void **array, int *n, const void *items, int count, size_t bytes, compare_fn *compare)
{
    char *all = realloc(*array, ((size_t)*n + (size_t)count + 1) * bytes), *at;

    if (!all)
        return loom_fail(LOOM_E_MEMORY, "no memory for %d measured points", *n + count);
    *array = all;
    for (int i = 0; i < count; i++) {
        const char *item = (const char *)items + (size_t)i * bytes;
        for (at = all; at < all + (size_t)*n * bytes && compare(at, item) < 0;)
            at += bytes;
        if (at == all + (size_t)*n * bytes || compare(at, item) != 0) {
            memmove(at + bytes, at, (size_t)(all + (size_t)*n * bytes - at));
            ++*n;
        }
        memcpy(at, item, bytes);
    }
    return LOOM_OK;
}

loom_status loom_topology_add_gemms(loom_topology *t, const loom_gemm_point *points, int count)
{
    for (int i = 0; i < count; i++)
        if (points[i].chip < 0 || points[i].chip >= t->n_chips || points[i].m < 1 || points[i].n < 1 || points[i].k < 1 ||
            !(points[i].seconds > 0))
            return loom_fail(LOOM_E_INVALID, "measured GEMM %d: chip %d of %d, %lld x %lld x %lld in %g s", i, points[i].chip, t->n_chips,
                             (long long)points[i].m, (long long)points[i].n, (long long)points[i].k, points[i].seconds);
    return add_items((void **)&t->gemms, &t->n_gemms, points, count, sizeof *points, compare_gemms);
}

loom_status loom_topology_add_points(loom_topology *t, const loom_pattern_point *points, int count)
{
    for (int i = 0; i < count; i++)
        if (points[i].ranks < 1 || points[i].in_domain < 1 || !(points[i].bytes >= 0) || !(points[i].seconds > 0))
            return loom_fail(LOOM_E_INVALID, "measured %s %d: %d ranks, %d in a domain, %g bytes in %g s",
                             loom_pattern_name(points[i].pattern), i, points[i].ranks, points[i].in_domain, points[i].bytes,
                             points[i].seconds);
    return add_items((void **)&t->points, &t->n_points, points, count, sizeof *points, compare_points);
}

/* --- GEMM -------------------------------------------------------------------------------------------------------------------- */

static loom_figure measured(double value)
{
    return (loom_figure){value, LOOM_ORIGIN_MEASURED};
}

static double best_rate(const loom_gemm_point *points, int count)
{
    double best = 0;

    for (int i = 0; i < count; i++) {
        double rate = 2.0 * (double)points[i].m * (double)points[i].n * (double)points[i].k / points[i].seconds;
        best = rate > best ? rate : best;
    }
    return best;
}

/* seconds = a 2mnk + a m0 2nk + a n0 2mk + a k0 2mn + start, with a = 1 / (share * peak). */
static loom_status fit_gemms(loom_chip *chip, const loom_gemm_point *points, int count)
{
    double *rows = malloc((size_t)count * (LOOM_FIT_TERMS + 1) * sizeof *rows), *seconds, c[LOOM_FIT_TERMS];
    loom_math math = points[0].math;

    if (!rows)
        return loom_fail(LOOM_E_MEMORY, "no memory to fit %d points", count);
    seconds = rows + (size_t)count * LOOM_FIT_TERMS;
    for (int i = 0; i < count; i++) {
        double m = (double)points[i].m, n = (double)points[i].n, k = (double)points[i].k;
        const double terms[LOOM_FIT_TERMS] = {2 * m * n * k, 2 * n * k, 2 * m * k, 2 * m * n, 1};
        memcpy(rows + i * LOOM_FIT_TERMS, terms, sizeof terms);
        seconds[i] = points[i].seconds;
    }
    if (!loom_known(chip->peak[math]))
        chip->peak[math] = measured(best_rate(points, count));
    if (loom_fit(rows, seconds, count, LOOM_FIT_TERMS, c) && c[0] > 0)
        chip->gemm[math] = (loom_gemm_law){measured(1 / (c[0] * chip->peak[math].value)), measured(c[1] / c[0]), measured(c[2] / c[0]),
                                           measured(c[3] / c[0]), measured(c[4])};
    free(rows);
    return LOOM_OK;
}

/* --- collectives ---------------------------------------------------------------------------------------------------------------- */

/* seconds = constant + volume / bandwidth, for one kind of group; the constant is split later. */
static loom_status fit_group(const loom_pattern_point *points, int count, loom_pattern_law *law)
{
    double *rows = malloc((size_t)count * 3 * sizeof *rows), *seconds, c[LOOM_FIT_TERMS] = {0};

    if (!rows)
        return loom_fail(LOOM_E_MEMORY, "no memory to fit %d points", count);
    seconds = rows + (size_t)count * 2;
    for (int i = 0; i < count; i++) {
        rows[2 * i] = 1;
        rows[2 * i + 1] = loom_pattern_volume(points[i].pattern, points[i].ranks, points[i].bytes);
        seconds[i] = points[i].seconds;
    }
    loom_fit(rows, seconds, count, 2, c);
    free(rows);
    *law = (loom_pattern_law){points[0].pattern,
                              points[0].level,
                              points[0].ranks,
                              points[0].in_domain,
                              measured(c[0]),
                              measured(0),
                              c[1] > 0 ? measured(1 / c[1]) : loom_unknown()};
    return LOOM_OK;
}

/* Splits the constants of the laws [0, count) of one pattern and level into a start and what each further rank adds; with one size of group
 * all of it is start. */
static loom_status split_constants(loom_pattern_law *laws, int count)
{
    double *rows = malloc((size_t)count * 3 * sizeof *rows), *seconds, c[LOOM_FIT_TERMS] = {0};
    bool sizes_differ = false;
    int used = 0;

    if (!rows)
        return loom_fail(LOOM_E_MEMORY, "no memory to fit %d laws", count);
    seconds = rows + (size_t)count * 2;
    for (int i = 0; i < count; i++) {
        sizes_differ = sizes_differ || laws[i].ranks != laws[0].ranks;
        if (laws[i].fixed_s.value > 0) {
            rows[2 * used] = 1;
            rows[2 * used + 1] = laws[i].ranks - 1;
            seconds[used++] = laws[i].fixed_s.value;
        }
    }
    if (sizes_differ && used > 1 && loom_fit(rows, seconds, used, 2, c))
        for (int i = 0; i < count; i++) {
            double steps = c[1] * (laws[i].ranks - 1), constant = laws[i].fixed_s.value;
            laws[i].step_s = measured(steps < constant ? c[1] : constant / (laws[i].ranks > 1 ? laws[i].ranks - 1 : 1));
            laws[i].fixed_s = measured(steps < constant ? constant - steps : 0);
        }
    free(rows);
    return LOOM_OK;
}

static loom_status fit_patterns(loom_topology *t)
{
    loom_pattern_law *laws = malloc(((size_t)t->n_points + 1) * sizeof *laws);
    int n_laws = 0;
    loom_status status = laws ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for %d laws", t->n_points);

    for (int first = 0, end; first < t->n_points && status == LOOM_OK; first = end) {
        for (end = first + 1; end < t->n_points && compare_groups(&t->points[end], &t->points[first]) == 0;)
            end++;
        status = fit_group(&t->points[first], end - first, &laws[n_laws++]);
    }
    for (int first = 0, end; first < n_laws && status == LOOM_OK; first = end) {
        for (end = first + 1; end < n_laws && laws[end].pattern == laws[first].pattern && laws[end].level == laws[first].level;)
            end++;
        status = split_constants(&laws[first], end - first);
    }
    if (status < 0) {
        free(laws);
        return status;
    }
    free(t->laws);
    t->laws = laws;
    t->n_laws = n_laws;
    return LOOM_OK;
}

loom_status loom_topology_fit(loom_topology *t)
{
    loom_status status = LOOM_OK;

    for (int first = 0, end; first < t->n_gemms && status == LOOM_OK; first = end) {
        for (end = first + 1; end < t->n_gemms && t->gemms[end].chip == t->gemms[first].chip && t->gemms[end].math == t->gemms[first].math;)
            end++;
        status = fit_gemms(&t->chips[t->gemms[first].chip], &t->gemms[first], end - first);
    }
    return status == LOOM_OK && t->n_points ? fit_patterns(t) : status;
}
