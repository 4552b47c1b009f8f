/* AMD MI325X 256 GB. */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_mi325x = {
    .names = {"MI325X"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(1307e12),
            [LOOM_DEV_PEAK_8] = LOOM_SHEET(2615e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(6000e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(255 * 0x1p30),
            [LOOM_DEV_GEMM_SHARE] = LOOM_HABIT(0.55, "MAMF table: 0.5 to 0.6"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_HABIT(45e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_HABIT(130e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_HABIT(310e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_HABIT(45e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_HABIT(130e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_HABIT(310e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_HABIT(45e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_HABIT(130e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_HABIT(300e9, "full mesh of 7 links: a ring uses them all"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(50e9),
        },
};
