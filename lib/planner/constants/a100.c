/* NVIDIA A100 SXM4 80 GB. */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_a100 = {
    .names = {"A100-SXM4-80GB", "A100-SXM4", "A100-80G", "A100-SXM", "A100", "A800"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(312e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(2039e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(79.2 * 0x1p30),
            [LOOM_DEV_MEMORY_SHARE] = LOOM_STEPS(
                0.78, "fitted to 388 published steps: vTrain multi-node, llm-foundry, vTrain single-node, Zero Bubble and others"),
            [LOOM_DEV_GEMM_SHARE] = LOOM_SWEEP(0.832, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_M0] = LOOM_SWEEP(10, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_N0] = LOOM_SWEEP(23, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0] = LOOM_SWEEP(46, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0_WEIGHT] =
                LOOM_STEPS(140, "fitted to 132 published steps: Zero Bubble, vTrain single-node, vTrain multi-node, InternEvo and others"),
            [LOOM_DEV_GEMM_START] = LOOM_SWEEP(5e-6, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_SUSTAINED] = LOOM_STEPS(
                0.913, "fitted to 393 published steps: llm-foundry, vTrain multi-node, Zero Bubble, vTrain single-node and others"),
            [LOOM_DEV_ATTENTION_FORWARD] = LOOM_SWEEP(0.60, "SimuMax attention table, A100"),
            [LOOM_DEV_ATTENTION_BACKWARD] = LOOM_SWEEP(0.50, "SimuMax attention table, A100"),
            [LOOM_DEV_FLASH2_FORWARD] = LOOM_STEPS(0.45, "fitted to 101 published steps: llm-foundry, InternEvo, torchtitan"),
            [LOOM_DEV_FLASH2_BACKWARD] = LOOM_STEPS(0.426, "fitted to 138 published steps: llm-foundry, InternEvo, torchtitan"),
            [LOOM_DEV_ATTENTION_TAIL] = LOOM_SWEEP(130e-6, "SimuMax attention table, A100"),
            [LOOM_DEV_KERNEL_GAP] = LOOM_STEPS(
                6.11e-6, "fitted to 297 published steps: vTrain single-node, Zero Bubble, vTrain multi-node, llm-foundry and others"),
            [LOOM_DEV_HOST_KERNEL] = LOOM_STEPS(9.94e-6, "fitted to 45 published steps: vTrain single-node"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_SWEEP(189e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_SWEEP(208e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_SWEEP(215e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_SWEEP(155e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_SWEEP(195e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_SWEEP(195e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_SWEEP(159e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_SWEEP(184e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_SWEEP(200e9, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_START] = LOOM_SWEEP(18e-6, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_LINK_HOP] = LOOM_SWEEP(2e-6, "published NCCL sweep (aiconfigurator), messages of 4 MiB and more"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(25e9),
            [LOOM_DEV_NET_SHARE] = LOOM_STEPS(
                0.848, "fitted to 211 published steps: dgxc-benchmarking, vTrain multi-node, InternEvo, Megatron-Bridge and others"),
            [LOOM_DEV_NET_START] = LOOM_STEPS(
                2.5e-5, "fitted to 13 published steps: Megatron-Bridge, vTrain multi-node, dgxc-benchmarking, Megatron MoE model zoo"),
        },
};
