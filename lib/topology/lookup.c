/* How long a GEMM or a collective takes: measured points first, then the law, then what the links promise. */
#include <rankloom/topology.h>

#include <math.h>
#include <stdlib.h>

/* --- GEMM -------------------------------------------------------------------------------------------------------------------- */

static double element_bytes(loom_math math)
{
    static const double bytes[LOOM_MATHS] = {4, 4, 2, 1, 0.5};
    return bytes[math];
}

loom_figure loom_gemm_law_s(const loom_chip *chip, loom_math math, int64_t rows, int64_t columns, int64_t depth)
{
    const loom_gemm_law *law = &chip->gemm[math];
    double m = (double)rows, n = (double)columns, k = (double)depth;

    if (!loom_known(law->share) || !loom_known(chip->peak[math]))
        return loom_unknown();
    double edges = 1 + loom_figure_or(law->m0, 0) / m + loom_figure_or(law->n0, 0) / n + loom_figure_or(law->k0, 0) / k;
    double compute = 2 * m * n * k * edges / (law->share.value * chip->peak[math].value);
    double memory = 0;
    if (loom_known(chip->memory_bandwidth))
        memory = (m * k + k * n + m * n) * element_bytes(math) / (loom_figure_or(chip->memory_reach, 1) * chip->memory_bandwidth.value);
    return (loom_figure){(compute > memory ? compute : memory) + loom_figure_or(law->start_s, 0), law->share.origin};
}

/* How far two shapes are apart: the largest of the ratios of m, n and k, as a logarithm. */
static double shape_distance(const loom_gemm_point *p, int64_t m, int64_t n, int64_t k)
{
    double a = fabs(log((double)p->m / (double)m)), b = fabs(log((double)p->n / (double)n)), c = fabs(log((double)p->k / (double)k));
    return fmax(a, fmax(b, c));
}

loom_figure loom_topology_gemm_s(const loom_topology *t, int chip, loom_math math, int64_t m, int64_t n, int64_t k)
{
    const double near = log(4.0);
    double weights = 0, corrections = 0;

    if (chip < 0 || chip >= t->n_chips || m < 1 || n < 1 || k < 1)
        return loom_unknown();
    loom_figure law = loom_gemm_law_s(&t->chips[chip], math, m, n, k);
    for (int i = 0; i < t->n_gemms; i++) {
        const loom_gemm_point *p = &t->gemms[i];
        if (p->chip != chip || p->math != math)
            continue;
        double distance = shape_distance(p, m, n, k);
        if (distance == 0)
            return (loom_figure){p->seconds, LOOM_ORIGIN_MEASURED};
        loom_figure there = loom_gemm_law_s(&t->chips[chip], math, p->m, p->n, p->k);
        if (distance > near || !loom_known(there))
            continue;
        double weight = 1 / (distance * distance) - 1 / (near * near); /* fades to nothing at the edge, so times do not jump */
        weights += weight;
        corrections += weight * log(p->seconds / there.value);
    }
    if (loom_known(law) && weights > 0)
        law.value *= exp(corrections / (weights + 1)); /* the law itself counts like a point at distance 1 */
    return law;
}

/* --- collectives ---------------------------------------------------------------------------------------------------------------- */

double loom_pattern_volume(loom_pattern pattern, int ranks, double bytes)
{
    switch (pattern) {
    case LOOM_PATTERN_ALL_REDUCE:
        return 2.0 * (ranks - 1) / ranks * bytes;
    case LOOM_PATTERN_REDUCE_SCATTER:
    case LOOM_PATTERN_ALL_GATHER:
    case LOOM_PATTERN_ALL_TO_ALL:
        return (double)(ranks - 1) / ranks * bytes;
    default:
        return ranks > 1 ? bytes : 0;
    }
}

static bool is_of(const loom_pattern_point *p, loom_pattern pattern, const loom_group_link *group)
{
    return p->pattern == pattern && p->level == group->level && p->ranks == group->ranks && p->in_domain == group->in_domain;
}

/* Points stand sorted by bytes. Between two: a straight line on logarithmic axes. Below the first the start rules: its time. Above the last
 * the time grows with the bytes at the law's rate. */
static loom_figure from_points(const loom_topology *t, loom_pattern pattern, const loom_group_link *group, double bytes)
{
    const loom_pattern_point *below = NULL, *above = NULL;

    for (int i = 0; i < t->n_points; i++) {
        const loom_pattern_point *p = &t->points[i];
        if (!is_of(p, pattern, group))
            continue;
        if (p->bytes <= bytes)
            below = p;
        else if (!above)
            above = p;
    }
    if (!below && !above)
        return loom_unknown();
    if (!below || (above && below->bytes == 0))
        return (loom_figure){!below ? above->seconds : below->seconds, LOOM_ORIGIN_MEASURED};
    if (above) {
        double part = log(bytes / below->bytes) / log(above->bytes / below->bytes);
        return (loom_figure){below->seconds * pow(above->seconds / below->seconds, part), LOOM_ORIGIN_MEASURED};
    }
    return (loom_figure){below->seconds * (below->bytes > 0 ? bytes / below->bytes : 1), LOOM_ORIGIN_MEASURED};
}

/* The law of the same pattern and level whose group is nearest in size. */
static const loom_pattern_law *nearest_law(const loom_topology *t, loom_pattern pattern, const loom_group_link *group)
{
    const loom_pattern_law *best = NULL;
    double best_distance = 0;

    for (int i = 0; i < t->n_laws; i++) {
        const loom_pattern_law *law = &t->laws[i];
        if (law->pattern != pattern || law->level != group->level || !loom_known(law->bandwidth))
            continue;
        double distance = fabs(log((double)law->ranks / group->ranks)) + fabs(log((double)law->in_domain / group->in_domain));
        if (!best || distance < best_distance) {
            best = law;
            best_distance = distance;
        }
    }
    return best;
}

/* A ring of n ranks takes n - 1 steps one way. An exchange leaves the domain with all but the share of its own members, over each rank's
 * own part of the network. */
static loom_figure from_links(loom_pattern pattern, const loom_group_link *group, double bytes)
{
    double steps = pattern == LOOM_PATTERN_ALL_REDUCE ? 2.0 * (group->ranks - 1) : pattern == LOOM_PATTERN_SEND ? 1 : group->ranks - 1;
    double volume = loom_pattern_volume(pattern, group->ranks, bytes), rate = group->bandwidth.value;
    int together = group->in_domain > group->in_node ? group->in_domain : group->in_node;

    if (!loom_known(group->bandwidth))
        return loom_unknown();
    if (pattern == LOOM_PATTERN_ALL_TO_ALL && group->level >= LOOM_LEVEL_RACK) {
        volume = (double)(group->ranks - together) / group->ranks * bytes;
        rate /= together;
    }
    return (loom_figure){steps * loom_figure_or(group->latency_s, 0) + volume / rate, group->bandwidth.origin};
}

loom_figure loom_topology_pattern_s(const loom_topology *t, loom_pattern pattern, const loom_group_link *group, double bytes)
{
    if (group->ranks <= 1)
        return loom_assumed(0);
    loom_figure seconds = from_points(t, pattern, group, bytes);
    if (loom_known(seconds))
        return seconds;
    const loom_pattern_law *law = nearest_law(t, pattern, group);
    if (!law)
        return from_links(pattern, group, bytes);
    return (loom_figure){loom_figure_or(law->fixed_s, 0) + loom_figure_or(law->step_s, 0) * (group->ranks - 1) +
                             loom_pattern_volume(pattern, group->ranks, bytes) / law->bandwidth.value,
                         law->bandwidth.origin};
}
