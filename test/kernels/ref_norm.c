#include "ref.h"

#include <math.h>

static void statistics(const float *x, int64_t hidden, double eps, bool centred, double *mean, double *rstd)
{
    double sum = 0, squares = 0;

    for (int64_t d = 0; d < hidden; d++)
        sum += x[d];
    *mean = centred ? sum / (double)hidden : 0;
    for (int64_t d = 0; d < hidden; d++)
        squares += (x[d] - *mean) * (x[d] - *mean);
    *rstd = 1 / sqrt(squares / (double)hidden + eps);
}

void ref_norm(const float *x, const float *weight, const float *bias, int64_t tokens, int64_t hidden, double eps, bool centred, double *y)
{
    for (int64_t t = 0; t < tokens; t++) {
        double mean, rstd;

        statistics(x + t * hidden, hidden, eps, centred, &mean, &rstd);
        for (int64_t d = 0; d < hidden; d++)
            y[t * hidden + d] = (x[t * hidden + d] - mean) * rstd * weight[d] + (bias ? bias[d] : 0);
    }
}

void ref_norm_backward(const float *dy, const float *x, const float *weight, int64_t tokens, int64_t hidden, double eps, bool centred,
                       double *dx, double *dweight, double *dbias)
{
    for (int64_t t = 0; t < tokens; t++) {
        double mean, rstd, sum_g = 0, sum_gn = 0;

        statistics(x + t * hidden, hidden, eps, centred, &mean, &rstd);
        for (int64_t d = 0; d < hidden; d++) {
            double g = (double)dy[t * hidden + d] * weight[d], normal = (x[t * hidden + d] - mean) * rstd;
            sum_g += g;
            sum_gn += g * normal;
            dweight[d] += dy[t * hidden + d] * normal;
            dbias[d] += dy[t * hidden + d];
        }
        for (int64_t d = 0; d < hidden; d++) {
            double g = (double)dy[t * hidden + d] * weight[d], normal = (x[t * hidden + d] - mean) * rstd;
            dx[t * hidden + d] = rstd * (g - (centred ? sum_g / (double)hidden : 0) - normal * sum_gn / (double)hidden);
        }
    }
}
