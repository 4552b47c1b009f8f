/* Uncertainty: how wide, and on what the time rests. */
#include "planner/interval.h"

#include <math.h>

#include "planner/calibrate.h"

/* The weaker of a device's constant and the software's beside it. */
static loom_basis weaker(const loom_job *job, loom_device_constant device, loom_software_constant software)
{
    bool assumed = job->machine.dev[device].basis == LOOM_BASIS_DEFAULT || job->soft[software].basis == LOOM_BASIS_DEFAULT;
    return assumed ? LOOM_BASIS_DEFAULT : job->machine.dev[device].basis;
}

/* Of the constants that decide each part. */
static loom_basis basis_of(const loom_job *job, loom_time_part part)
{
    const loom_constant *dev = job->machine.dev, *soft = job->soft;

    switch (part) {
    case LOOM_TIME_GEMM:
        return dev[job->bits == 8 ? LOOM_DEV_SHARE_8 : job->bits == 4 ? LOOM_DEV_SHARE_4 : LOOM_DEV_GEMM_SHARE].basis;
    case LOOM_TIME_ATTENTION:
        return dev[soft[LOOM_SOFT_FLASH].value == 1 ? LOOM_DEV_FLASH2_FORWARD : LOOM_DEV_ATTENTION_FORWARD].basis;
    case LOOM_TIME_POINTWISE:
        return weaker(job, LOOM_DEV_MEMORY_SHARE, LOOM_SOFT_ELEMENTWISE);
    case LOOM_TIME_LAUNCH:
        return weaker(job, LOOM_DEV_HOST_KERNEL, LOOM_SOFT_KERNELS_DENSE);
    case LOOM_TIME_TP:
        return dev[LOOM_DEV_LINK_GATHER_8].basis;
    case LOOM_TIME_CP:
        return dev[LOOM_DEV_LINK_EXCHANGE_8].basis;
    case LOOM_TIME_EP:
        return weaker(job, LOOM_DEV_LINK_EXCHANGE_8, LOOM_SOFT_EP_HIDDEN);
    case LOOM_TIME_DP:
    case LOOM_TIME_PP:
        return dev[LOOM_DEV_NET_SHARE].basis;
    case LOOM_TIME_BUBBLE:
        return dev[LOOM_DEV_SUSTAINED].basis;
    case LOOM_TIME_OPTIMIZER:
        return soft[LOOM_SOFT_OPTIMIZER_BYTES].basis;
    default:
        return soft[LOOM_SOFT_JITTER].basis;
    }
}

void loom_interval(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers, double seconds, double *low_s, double *high_s)
{
    static const double quantile = 1.2816; /* four normal errors in five are within so many standard deviations */
    double width = quantile * loom_prediction_spread(job, degrees, chunk_layers);

    *low_s = seconds * exp(-width);
    *high_s = seconds * exp(width);
}

double loom_default_share(const loom_job *job, const loom_step_cost *cost)
{
    double share = 0;

    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        if (basis_of(job, i) == LOOM_BASIS_DEFAULT)
            share += cost->part[i] / cost->seconds;
    return share;
}
