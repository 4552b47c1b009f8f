/* Correction by measured steps. */
#include "planner/calibrate.h"

#include <math.h>

/* Found on published runs (one step of each model, device and precision corrects the others): beyond a difference of a fifth of the time
 * little is left of a correction, sooner when it is out of the ordinary (a fifth and more), which then is a matter of that very layout. */
static const double fades_over = 0.2, ordinary = 0.2;

void loom_calibration_add(loom_calibration *c, const loom_step_cost *cost, double seconds)
{
    if (c->n == LOOM_MOST_MEASURED)
        return;
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        c->at[c->n].share[i] = cost->part[i] / cost->seconds;
    c->at[c->n++].logarithm = log(seconds / cost->seconds);
}

/* Share of the time that is spent on something else. */
static double difference(const double *share, const loom_step_cost *cost)
{
    double sum = 0;

    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        sum += fabs(share[i] - cost->part[i] / cost->seconds);
    return sum / 2;
}

double loom_calibration_factor(const loom_calibration *c, const loom_step_cost *cost)
{
    double weights = 0, sum = 0, most = 0;

    for (int i = 0; i < c->n; i++) {
        double far = difference(c->at[i].share, cost) / fades_over, odd = c->at[i].logarithm / ordinary;
        double weight = exp(-far) / (1 + odd * odd * far);
        weights += weight;
        sum += weight * c->at[i].logarithm;
        most = fmax(most, weight);
    }
    return weights > 0 ? exp(most * sum / weights) : 1;
}

void loom_calibrate(const loom_calibration *calibration, loom_step_cost *cost)
{
    double factor = loom_calibration_factor(calibration, cost);

    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        cost->part[i] *= factor;
    cost->seconds *= factor;
    cost->hidden_dp *= factor;
}

double loom_calibration_least(const loom_calibration *c)
{
    double least = 0;

    for (int i = 0; i < c->n; i++)
        least = fmin(least, c->at[i].logarithm);
    return exp(least);
}
