/* Uncertainty: every part of the time has its own spread, found on published runs; they add like independent errors. */
#include "planner/interval.h"

#include <math.h>

/* Relative 80 % spread of each part. GEMM tables are good to a few percent, overlap of communication is anybody's guess. */
static const double spread[LOOM_TIME_PARTS] = {
    [LOOM_TIME_GEMM] = 0.09, [LOOM_TIME_ATTENTION] = 0.17, [LOOM_TIME_POINTWISE] = 0.27, [LOOM_TIME_LAUNCH] = 0.4,
    [LOOM_TIME_TP] = 0.27,   [LOOM_TIME_CP] = 0.4,         [LOOM_TIME_EP] = 0.45,        [LOOM_TIME_DP] = 0.4,
    [LOOM_TIME_PP] = 0.45,   [LOOM_TIME_BUBBLE] = 0.15,    [LOOM_TIME_OPTIMIZER] = 0.3,  [LOOM_TIME_OTHER] = 0.6,
};

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

/* What no part of the time tells: this machine against others of its kind; releases of a framework differ most in what they do around
 * experts and narrow types; and software that nobody has timed may do anything. */
static double common_spread(const loom_job *job)
{
    double machine = 0.063, experts = job->model.moe.experts > 0 ? 0.13 : 0, narrow = job->bits < 16 ? 0.06 : 0;
    bool unknown =
        job->soft[LOOM_SOFT_ELEMENTWISE].basis == LOOM_BASIS_DEFAULT && job->soft[LOOM_SOFT_KERNELS_DENSE].basis == LOOM_BASIS_DEFAULT;
    double software = unknown ? 0.08 : 0;
    return sqrt(machine * machine + experts * experts + narrow * narrow + software * software);
}

double loom_interval(const loom_job *job, const loom_step_cost *cost, bool calibrated)
{
    double common = common_spread(job) * (calibrated ? 0.45 : 1), square = common * common;

    for (int i = 0; i < LOOM_TIME_PARTS; i++) {
        double share = cost->part[i] / cost->seconds * spread[i];
        if (basis_of(job, i) == LOOM_BASIS_DEFAULT)
            share *= 1.3;
        square += share * share;
    }
    return sqrt(square) * (calibrated ? 0.8 : 1); /* a measured step of one layout says less about another */
}

double loom_default_share(const loom_job *job, const loom_step_cost *cost)
{
    double share = 0;

    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        if (basis_of(job, i) == LOOM_BASIS_DEFAULT)
            share += cost->part[i] / cost->seconds;
    return share;
}
