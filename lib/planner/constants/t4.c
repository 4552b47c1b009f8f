/* NVIDIA T4 (PCIe, 70 W). */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_t4 = {
    .names = {"T4"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(65e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(320e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(14.75 * 0x1p30),
            [LOOM_DEV_MEMORY_SHARE] = LOOM_STEPS(0.75, "fitted to 47 published steps: AMP 2022"),
            [LOOM_DEV_SUSTAINED] = LOOM_STEPS(0.325, "fitted to 47 published steps: AMP 2022"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_STEPS(2.06e9, "fitted to 21 published steps: AMP 2022"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_STEPS(2.71e9, "fitted to 22 published steps: AMP 2022"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_HABIT(5e9, "PCIe 3 through host memory"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_HABIT(5e9, "PCIe 3 through host memory"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_HABIT(5e9, "PCIe 3 through host memory"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_HABIT(5e9, "PCIe 3 through host memory"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_HABIT(5e9, "PCIe 3 through host memory"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_HABIT(4e9, "PCIe 3 through host memory"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_HABIT(3e9, "PCIe 3 through host memory"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(1.5625e9),
        },
};
