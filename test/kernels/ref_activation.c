#include "ref.h"

#include <math.h>

static const double ROOT_2_OVER_PI = 0.79788456080286535588;

/* x/2 (1 + tanh(u)), written without the cancellation of 1 + tanh(u) far to the left. */
double ref_gelu(double x)
{
    return x / (1 + exp(-2 * ROOT_2_OVER_PI * (x + 0.044715 * x * x * x)));
}

double ref_gelu_slope(double x)
{
    double t = tanh(ROOT_2_OVER_PI * (x + 0.044715 * x * x * x));

    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT_2_OVER_PI * (1 + 3 * 0.044715 * x * x);
}

double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
