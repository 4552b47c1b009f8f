/* Non-negative least squares for a handful of terms. */
#include "topology/fit.h"

#include <math.h>
#include <string.h>

/* The normal equations of relative errors, terms scaled to unit length so that elimination stays accurate. */
typedef struct equations {
    double a[LOOM_FIT_TERMS][LOOM_FIT_TERMS], b[LOOM_FIT_TERMS], scale[LOOM_FIT_TERMS];
    int n;
} equations;

static void set_up(equations *e, const double *rows, const double *seconds, int count, int n_terms)
{
    memset(e, 0, sizeof *e);
    e->n = n_terms;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < n_terms; j++)
            e->scale[j] += pow(rows[i * n_terms + j] / seconds[i], 2);
    for (int j = 0; j < n_terms; j++)
        e->scale[j] = e->scale[j] > 0 ? 1 / sqrt(e->scale[j]) : 0;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < n_terms; j++) {
            double x = rows[i * n_terms + j] / seconds[i] * e->scale[j];
            e->b[j] += x;
            for (int k = 0; k < n_terms; k++)
                e->a[j][k] += x * rows[i * n_terms + k] / seconds[i] * e->scale[k];
        }
}

/* Solves for the terms in `set`, the others zero; false when they are not independent or one comes out negative. */
static bool solve(const equations *e, unsigned set, double c[LOOM_FIT_TERMS])
{
    double m[LOOM_FIT_TERMS][LOOM_FIT_TERMS + 1];
    int at[LOOM_FIT_TERMS], n = 0;

    for (int j = 0; j < e->n; j++)
        if (set >> j & 1)
            at[n++] = j;
    for (int r = 0; r < n; r++) {
        for (int k = 0; k < n; k++)
            m[r][k] = e->a[at[r]][at[k]];
        m[r][n] = e->b[at[r]];
    }
    for (int p = 0; p < n; p++) { /* the matrix is positive definite: no pivoting needed */
        if (!(m[p][p] > 1e-12))
            return false;
        for (int r = 0; r < n; r++) {
            double factor = m[r][p] / m[p][p];
            for (int k = p; k <= n && r != p; k++)
                m[r][k] -= factor * m[p][k];
        }
    }
    memset(c, 0, LOOM_FIT_TERMS * sizeof *c);
    for (int r = 0; r < n; r++) {
        c[at[r]] = m[r][n] / m[r][r];
        if (!(c[at[r]] >= 0))
            return false;
    }
    return true;
}

/* What of the squared error depends on c: c'Ac - 2b'c. */
static double error_of(const equations *e, const double c[LOOM_FIT_TERMS])
{
    double error = 0;

    for (int j = 0; j < e->n; j++) {
        error -= 2 * e->b[j] * c[j];
        for (int k = 0; k < e->n; k++)
            error += c[j] * e->a[j][k] * c[k];
    }
    return error;
}

bool loom_fit(const double *rows, const double *seconds, int count, int n_terms, double c[LOOM_FIT_TERMS])
{
    equations e;
    double tried[LOOM_FIT_TERMS], least = INFINITY;

    set_up(&e, rows, seconds, count, n_terms);
    for (unsigned set = 1; set < 1u << n_terms; set++) {
        if (!solve(&e, set, tried))
            continue;
        double error = error_of(&e, tried);
        if (error < least) {
            least = error;
            memcpy(c, tried, sizeof tried);
        }
    }
    for (int j = 0; j < n_terms && least < INFINITY; j++)
        c[j] *= e.scale[j];
    return least < INFINITY;
}
