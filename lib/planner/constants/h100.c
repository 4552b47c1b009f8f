/* NVIDIA H100 SXM5 80 GB. */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_h100 = {
    .names = {"H100-SXM5-80GB", "H100-SXM5", "H100-SXM", "H100-80G", "H100", "GH200"},
    .at = {
        [LOOM_DEV_PEAK_16] = LOOM_SHEET(989e12),
        [LOOM_DEV_PEAK_8] = LOOM_SHEET(1979e12),
        [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(3350e9),
        [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(79.2 * 0x1p30),
        [LOOM_DEV_GEMM_SHARE] = LOOM_SWEEP(0.761, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
        [LOOM_DEV_GEMM_M0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
        [LOOM_DEV_GEMM_N0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
        [LOOM_DEV_GEMM_K0] = LOOM_SWEEP(67, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
        [LOOM_DEV_GEMM_K0_WEIGHT] = LOOM_SWEEP(140, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
        [LOOM_DEV_GEMM_START] = LOOM_SWEEP(2e-6, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
        [LOOM_DEV_SUSTAINED] = LOOM_STEPS(0.88, "published steps of this device, several sources"),
        [LOOM_DEV_ATTENTION_FORWARD] = LOOM_HABIT(0.55, "cuDNN and flash 3, causal"),
        [LOOM_DEV_ATTENTION_BACKWARD] = LOOM_HABIT(0.45, "cuDNN and flash 3, causal"),
        [LOOM_DEV_ATTENTION_TAIL] = LOOM_HABIT(60e-6, "as B200"),
        [LOOM_DEV_LINK_REDUCE_2] = LOOM_SWEEP(300e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_REDUCE_4] = LOOM_SWEEP(342e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_REDUCE_8] = LOOM_SWEEP(423e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_GATHER_2] = LOOM_SWEEP(240e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_GATHER_4] = LOOM_SWEEP(310e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_GATHER_8] = LOOM_SWEEP(325e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_SWEEP(270e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_SWEEP(281e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_SWEEP(297e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_START] = LOOM_SWEEP(12e-6, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_LINK_HOP] = LOOM_SWEEP(1.5e-6, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
        [LOOM_DEV_NET_RATE] = LOOM_SHEET(50e9),
    },
};
