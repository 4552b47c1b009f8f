/* Google TPU v5e. */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_tpu_v5e = {
    .names = {"TPU-v5e"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_SHEET(197e12),
            [LOOM_DEV_PEAK_8] = LOOM_SHEET(394e12),
            [LOOM_DEV_MEMORY_RATE] = LOOM_SHEET(820e9),
            [LOOM_DEV_MEMORY_BYTES] = LOOM_SHEET(15.75 * 0x1p30),
            [LOOM_DEV_GEMM_SHARE] = LOOM_HABIT(0.95, "large matrix units, XLA"),
            [LOOM_DEV_GEMM_START] = LOOM_HABIT(1e-6, "no launch"),
            [LOOM_DEV_SUSTAINED] = LOOM_STEPS(1, "fitted to 18 published steps: MaxText"),
            [LOOM_DEV_KERNEL_GAP] = LOOM_HABIT(0, "one program a step"),
            [LOOM_DEV_HOST_KERNEL] = LOOM_HABIT(0, "one program a step"),
            [LOOM_DEV_LINK_REDUCE_2] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_REDUCE_4] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_REDUCE_8] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_GATHER_2] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_GATHER_4] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_GATHER_8] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_EXCHANGE_2] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_EXCHANGE_4] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_EXCHANGE_8] = LOOM_HABIT(1.6e+11, "0.8 of the torus links of a chip"),
            [LOOM_DEV_LINK_START] = LOOM_HABIT(5e-6, "torus neighbour"),
            [LOOM_DEV_LINK_HOP] = LOOM_HABIT(1e-7, "torus neighbour"),
            [LOOM_DEV_NET_RATE] = LOOM_SHEET(6.25e9),
        },
};
