/* NVIDIA V100 SXM 32 GB (NVLink2). */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_v100 = {
    .names = {"V100"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(125e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(900e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(31.7 * 0x1p30),
            [LOOM_DEV_GEMM_SHARE] = LOOM_HABIT(0.78, "as A100"),
            [LOOM_DEV_GEMM_M0] = LOOM_HABIT(100, "as A100"),
            [LOOM_DEV_SUSTAINED] = LOOM_STEPS(1, "fitted to 3 published steps: Megatron-LM README 2020"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_HABIT(60e9, "NVLink2 rings of a DGX-1 or DGX-2"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_HABIT(100e9, "NVLink2 rings of a DGX-1 or DGX-2"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_SWEEP(122e9, "NCCL talk, GTC 2024"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_HABIT(60e9, "NVLink2 rings of a DGX-1 or DGX-2"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_HABIT(100e9, "NVLink2 rings of a DGX-1 or DGX-2"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_HABIT(120e9, "NVLink2 rings of a DGX-1 or DGX-2"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_HABIT(60e9, "NVLink2 rings of a DGX-1 or DGX-2"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_HABIT(80e9, "NVLink2 rings of a DGX-1 or DGX-2"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_HABIT(100e9, "NVLink2 rings of a DGX-1 or DGX-2"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(12.5e9),
        },
};
