/* NVIDIA L40S 48 GB (PCIe). */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_l40s = {
    .names = {"L40S"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(362e12),
            [LOOM_DEV_PEAK_8] = LOOM_SHEET(733e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(864e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(44.5 * 0x1p30),
            [LOOM_DEV_GEMM_SHARE] = LOOM_SWEEP(0.56, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_M0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_N0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0_WEIGHT] = LOOM_SWEEP(60, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_START] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_SWEEP(20e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_SWEEP(5.5e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_SWEEP(2.1e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_SWEEP(19e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_SWEEP(5e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_SWEEP(2e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_SWEEP(22e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_SWEEP(4.6e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_SWEEP(2e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(6.25e9),
        },
};
