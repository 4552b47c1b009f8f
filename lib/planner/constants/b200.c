/* NVIDIA B200 SXM 180 GB. */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_b200 = {
    .names = {"B200-SXM-180GB", "B200-SXM", "B200"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(2250e12),
            [LOOM_DEV_PEAK_8] = LOOM_SHEET(4500e12),
            [LOOM_DEV_PEAK_4] = LOOM_SHEET(9000e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(8000e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(178.35 * 0x1p30),
            [LOOM_DEV_MEMORY_SHARE] = LOOM_STEPS(0.78, "fitted to 162 published steps: Megatron-Bridge, SimuMax B200, dgxc-benchmarking"),
            [LOOM_DEV_GEMM_SHARE] = LOOM_SWEEP(0.667, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_M0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_N0] = LOOM_SWEEP(21, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0_WEIGHT] = LOOM_STEPS(143, "fitted to 122 published steps: Megatron-Bridge, SimuMax B200, dgxc-benchmarking"),
            [LOOM_DEV_GEMM_START] = LOOM_SWEEP(2.6e-6, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_SUSTAINED] = LOOM_STEPS(0.7, "fitted to 54 published steps: SimuMax B200, Megatron-Bridge"),
            [LOOM_DEV_GROUPED_SHARE] = LOOM_STEPS(0.898, "fitted to 90 published steps: Megatron-Bridge, dgxc-benchmarking, SimuMax B200"),
            [LOOM_DEV_GROUPED_0] = LOOM_STEPS(180, "fitted to 90 published steps: Megatron-Bridge, dgxc-benchmarking, SimuMax B200"),
            [LOOM_DEV_SHARE_8] = LOOM_STEPS(0.659, "fitted to 106 published steps: Megatron-Bridge, dgxc-benchmarking"),
            [LOOM_DEV_SHARE_4] = LOOM_STEPS(0.443, "fitted to 18 published steps: Megatron-Bridge"),
            [LOOM_DEV_ATTENTION_FORWARD] =
                LOOM_STEPS(0.52, "fitted to 126 published steps: Megatron-Bridge, SimuMax B200, dgxc-benchmarking"),
            [LOOM_DEV_ATTENTION_BACKWARD] =
                LOOM_STEPS(0.571, "fitted to 132 published steps: Megatron-Bridge, SimuMax B200, dgxc-benchmarking"),
            [LOOM_DEV_FLASH2_FORWARD] = LOOM_STEPS(0.25, "fitted to 18 published steps: Megatron-Bridge"),
            [LOOM_DEV_FLASH2_BACKWARD] = LOOM_STEPS(0.2, "fitted to 18 published steps: Megatron-Bridge"),
            [LOOM_DEV_ATTENTION_NARROW] = LOOM_STEPS(0.45, "fitted to 18 published steps: Megatron-Bridge"),
            [LOOM_DEV_ATTENTION_TAIL] = LOOM_SWEEP(60e-6, "SimuMax attention table, B200"),
            [LOOM_DEV_KERNEL_GAP] = LOOM_STEPS(3e-6, "fitted to 189 published steps: Megatron-Bridge, SimuMax B200, dgxc-benchmarking"),
            [LOOM_DEV_HOST_KERNEL] = LOOM_STEPS(1.98e-5, "fitted to 12 published steps: Megatron-Bridge"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_SWEEP(560e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_SWEEP(628e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_SWEEP(654e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_SWEEP(432e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_SWEEP(566e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_SWEEP(590e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_SWEEP(325e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_SWEEP(480e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_SWEEP(537e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_START] = LOOM_SWEEP(15e-6, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_HOP] = LOOM_SWEEP(2e-6, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(50e9),
            [LOOM_DEV_NET_SHARE] = LOOM_STEPS(
                0.848, "fitted to 211 published steps: dgxc-benchmarking, vTrain multi-node, InternEvo, Megatron-Bridge and others"),
            [LOOM_DEV_NET_START] = LOOM_STEPS(
                2.5e-5, "fitted to 13 published steps: Megatron-Bridge, vTrain multi-node, dgxc-benchmarking, Megatron MoE model zoo"),
        },
};
