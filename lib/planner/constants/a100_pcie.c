/* NVIDIA A100 PCIe 80 GB. */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_a100_pcie = {
    .names = {"A100-PCIe", "A100-PCIe-80GB"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(312e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(1935e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(79.2 * 0x1p30),
            [LOOM_DEV_GEMM_SHARE] = LOOM_SWEEP(0.832, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_M0] = LOOM_SWEEP(10, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_N0] = LOOM_SWEEP(23, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0] = LOOM_SWEEP(46, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0_WEIGHT] = LOOM_SWEEP(140, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_START] = LOOM_SWEEP(5e-6, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_SUSTAINED] = LOOM_HABIT(0.85, "300 W part"),
            [LOOM_DEV_ATTENTION_FORWARD] = LOOM_SWEEP(0.60, "SimuMax attention table, A100"),
            [LOOM_DEV_ATTENTION_BACKWARD] = LOOM_SWEEP(0.50, "SimuMax attention table, A100"),
            [LOOM_DEV_FLASH2_FORWARD] = LOOM_STEPS(0.5, "llm-foundry, torchtitan and InternEvo steps"),
            [LOOM_DEV_FLASH2_BACKWARD] = LOOM_STEPS(0.4, "llm-foundry, torchtitan and InternEvo steps"),
            [LOOM_DEV_ATTENTION_TAIL] = LOOM_SWEEP(130e-6, "SimuMax attention table, A100"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_HABIT(20e9, "PCIe 4"),
            [LOOM_DEV_LINK_START] = LOOM_SWEEP(18e-6, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_HOP] = LOOM_SWEEP(2e-6, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(12.5e9),
        },
};
