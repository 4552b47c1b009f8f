/* Least squares with coefficients that may not be negative: times are sums of parts, and no part takes less than nothing. */
#ifndef LOOM_TOPOLOGY_FIT_H
#define LOOM_TOPOLOGY_FIT_H

#include <stdbool.h>

enum { LOOM_FIT_TERMS = 5 };

/* Finds c >= 0 that make sum_i (sum_j c_j terms[i][j] / seconds[i] - 1)^2 least: relative errors count, so that short times matter as much
 * as long ones. rows [count * n_terms]. Exact: every set of terms that may be zero is tried. False when no set has a solution. */
bool loom_fit(const double *rows, const double *seconds, int count, int n_terms, double c[LOOM_FIT_TERMS]);

#endif
