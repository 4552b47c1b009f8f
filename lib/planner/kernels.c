/* Time of one kernel: GEMMs by shape, grouped GEMMs, streaming kernels. */
#include "planner/cost.h"

#include <math.h>

/* Rate of a large GEMM and how much longer small ones take, by the width of its inputs. A fixed overhead in elements weighs
 * more on a faster unit: m0, n0, k0 grow with the rate. */
static double gemm_flop_seconds(const loom_machine *machine, double m, double n, double k, int bits, loom_gemm_role role, double grouped_0)
{
    double rate16 = loom_dev(machine, LOOM_DEV_PEAK_16) * loom_dev(machine, LOOM_DEV_GEMM_SHARE);
    double rate = rate16;
    double k0 = loom_dev(machine, role == LOOM_GEMM_WEIGHT ? LOOM_DEV_GEMM_K0_WEIGHT : LOOM_DEV_GEMM_K0);

    if (bits == 8)
        rate = loom_dev(machine, LOOM_DEV_PEAK_8) * loom_dev(machine, LOOM_DEV_SHARE_8);
    else if (bits == 4) /* weight gradients stay 8-bit in 4-bit recipes as often as not; the share is fitted to their mix */
        rate = loom_dev(machine, LOOM_DEV_PEAK_4) * loom_dev(machine, LOOM_DEV_SHARE_4);
    double small = (loom_dev(machine, LOOM_DEV_GEMM_M0) + grouped_0) / m + (loom_dev(machine, LOOM_DEV_GEMM_N0) + grouped_0) / n +
                   (k0 + grouped_0) / k;
    return 2 * m * n * k * (1 + rate / rate16 * small) / (rate * loom_dev(machine, LOOM_DEV_SUSTAINED));
}

static double gemm_memory_seconds(const loom_machine *machine, double m, double n, double k, int bits, loom_gemm_role role)
{
    double out = role == LOOM_GEMM_WEIGHT ? 8 : 2; /* fp32, read and written */
    return loom_stream_seconds(machine, bits / 8.0 * (m * k + k * n) + out * m * n, 0);
}

/* Below 16 bits the inputs are quantised first: read 16-bit, write narrow, and write once more transposed for the weight gradient. Weights
 * are quantised once a step, which is nothing. */
static double quantise_seconds(const loom_job *job, double m, double k, int bits, loom_gemm_role role)
{
    if (bits >= 16 || role == LOOM_GEMM_WEIGHT)
        return 0;
    return loom_soft(job, LOOM_SOFT_QUANTISE) * loom_stream_seconds(&job->machine, m * k * (2 + 2 * bits / 8.0), 1);
}

/* A product that was timed, or lies near some that were: unknown when none were. A weight gradient is out x in. */
static loom_figure measured_seconds(const loom_machine *machine, double m, double n, double k, int bits, loom_gemm_role role)
{
    if (!machine->measured || bits != 32)
        return loom_unknown();
    if (role == LOOM_GEMM_WEIGHT)
        return loom_topology_gemm_s(machine->measured, 0, LOOM_MATH_F32, llround(n), llround(m), llround(k));
    return loom_topology_gemm_s(machine->measured, 0, LOOM_MATH_F32, llround(m), llround(n), llround(k));
}

double loom_gemm_seconds(const loom_job *job, double m, double n, double k, int bits, loom_gemm_role role)
{
    const loom_machine *machine = &job->machine;
    loom_figure measured = measured_seconds(machine, m, n, k, bits, role);

    if (loom_known(measured))
        return measured.value * machine->crowd / loom_dev(machine, LOOM_DEV_SUSTAINED);
    double flop = gemm_flop_seconds(machine, m, n, k, bits, role, 0);
    double memory = gemm_memory_seconds(machine, m, n, k, bits, role);

    return (flop > memory ? flop : memory) + quantise_seconds(job, m, k, bits, role) + loom_dev(machine, LOOM_DEV_GEMM_START);
}

double loom_grouped_seconds(const loom_job *job, double groups, double m, double n, double k, int bits, loom_gemm_role role)
{
    const loom_machine *machine = &job->machine;
    loom_figure measured = measured_seconds(machine, m, n, k, bits, role);

    if (loom_known(measured))
        return groups * measured.value * machine->crowd / loom_dev(machine, LOOM_DEV_SUSTAINED);
    double flop =
        gemm_flop_seconds(machine, m, n, k, bits, role, loom_dev(machine, LOOM_DEV_GROUPED_0)) / loom_dev(machine, LOOM_DEV_GROUPED_SHARE);
    double memory = gemm_memory_seconds(machine, m, n, k, bits, role);

    return groups * (flop > memory ? flop : memory) + quantise_seconds(job, groups * m, k, bits, role) +
           loom_dev(machine, LOOM_DEV_GEMM_START);
}

double loom_stream_seconds(const loom_machine *machine, double bytes, double kernels)
{
    return bytes / (loom_dev(machine, LOOM_DEV_MEMORY_RATE) * loom_dev(machine, LOOM_DEV_MEMORY_SHARE)) +
           kernels * loom_dev(machine, LOOM_DEV_KERNEL_GAP);
}
