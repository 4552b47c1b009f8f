/* NVIDIA H800 SXM 80 GB: H100 with NVLink cut to 200 GB/s. */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_h800 = {
    .names = {"H800-SXM-80GB", "H800-SXM", "H800"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(989e12),
            [LOOM_DEV_PEAK_8] = LOOM_SHEET(1979e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(3350e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(79.2 * 0x1p30),
            [LOOM_DEV_MEMORY_SHARE] =
                LOOM_STEPS(0.648, "fitted to 202 published steps: dgxc-benchmarking, llm-foundry, Megatron-Bridge, torchtitan and others"),
            [LOOM_DEV_GEMM_SHARE] = LOOM_SWEEP(0.761, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_M0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_N0] = LOOM_SWEEP(0, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0] = LOOM_SWEEP(67, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_GEMM_K0_WEIGHT] = LOOM_STEPS(
                140, "fitted to 103 published steps: dgxc-benchmarking, Megatron-Bridge, llm-foundry, Megatron MoE model zoo and others"),
            [LOOM_DEV_GEMM_START] = LOOM_SWEEP(2e-6, "published GEMM sweep (aiconfigurator), least squares, m, n, k >= 1024"),
            [LOOM_DEV_SUSTAINED] = LOOM_STEPS(
                0.874, "fitted to 210 published steps: dgxc-benchmarking, llm-foundry, Megatron-Bridge, Megatron-Core README and others"),
            [LOOM_DEV_GROUPED_SHARE] =
                LOOM_STEPS(0.87, "fitted to 41 published steps: dgxc-benchmarking, Megatron-Bridge, Megatron MoE model zoo"),
            [LOOM_DEV_GROUPED_0] =
                LOOM_STEPS(400, "fitted to 41 published steps: dgxc-benchmarking, Megatron-Bridge, Megatron MoE model zoo"),
            [LOOM_DEV_SHARE_8] =
                LOOM_STEPS(0.812, "fitted to 97 published steps: dgxc-benchmarking, Megatron-Bridge, torchtitan, llm-foundry"),
            [LOOM_DEV_ATTENTION_FORWARD] =
                LOOM_STEPS(0.55, "fitted to 62 published steps: dgxc-benchmarking, Megatron-Bridge, Megatron-Core README, llm.c scripts"),
            [LOOM_DEV_ATTENTION_BACKWARD] = LOOM_STEPS(0.45, "fitted to 138 published steps: dgxc-benchmarking, Megatron-Bridge, "
                                                             "Megatron-Core README, Megatron MoE model zoo and others"),
            [LOOM_DEV_FLASH2_FORWARD] = LOOM_STEPS(0.306, "fitted to 85 published steps: llm-foundry, torchtitan, Megatron-Bridge"),
            [LOOM_DEV_FLASH2_BACKWARD] = LOOM_STEPS(0.217, "fitted to 88 published steps: llm-foundry, torchtitan, Megatron-Bridge"),
            [LOOM_DEV_ATTENTION_NARROW] = LOOM_STEPS(0.646, "fitted to 6 published steps: Megatron-Bridge, llm.c scripts"),
            [LOOM_DEV_ATTENTION_TAIL] = LOOM_HABIT(60e-6, "as B200"),
            [LOOM_DEV_KERNEL_GAP] = LOOM_STEPS(
                4.27e-6,
                "fitted to 156 published steps: dgxc-benchmarking, llm-foundry, Megatron-Bridge, Megatron MoE model zoo and others"),
            [LOOM_DEV_HOST_KERNEL] = LOOM_STEPS(1.21e-5, "fitted to 5 published steps: Megatron-Bridge, Megatron MoE model zoo"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_HABIT(1.5e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_HABIT(1.71e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_HABIT(2.115e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_HABIT(1.2e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_HABIT(1.55e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_HABIT(1.625e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_HABIT(1.35e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_HABIT(1.405e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_HABIT(1.485e+11, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_START] = LOOM_HABIT(12e-6, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_LINK_HOP] = LOOM_HABIT(1.5e-6, "H100 scaled to 160 GB/s, which DeepSeek-V3 reports"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(50e9),
            [LOOM_DEV_NET_SHARE] = LOOM_STEPS(
                0.848, "fitted to 211 published steps: dgxc-benchmarking, vTrain multi-node, InternEvo, Megatron-Bridge and others"),
            [LOOM_DEV_NET_START] = LOOM_STEPS(
                2.5e-5, "fitted to 13 published steps: Megatron-Bridge, vTrain multi-node, dgxc-benchmarking, Megatron MoE model zoo"),
        },
};
