/* A share of a host's cores. What a probe measures (peak, products, memory, collectives) replaces what stands here. */
#include "planner/constants/kinds.h"

const loom_device_kind loom_kind_cpu = {
    .names = {"cpu"},
    .at =
        {
            [LOOM_DEV_PEAK_16] = LOOM_HABIT(100e9, "one core with 512-bit vectors, f32"),
            [LOOM_DEV_MEMORY_RATE] = LOOM_HABIT(10e9, "a core's share"),
            [LOOM_DEV_MEMORY_SHARE] = LOOM_HABIT(1, "copies are what is measured"),
            [LOOM_DEV_GEMM_SHARE] = LOOM_HABIT(0.85, "oneDNN and OpenBLAS"),
            [LOOM_DEV_GEMM_START] = LOOM_HABIT(2e-6, "a call into the library"),
            [LOOM_DEV_SUSTAINED] = LOOM_HABIT(0.95, "operands come from memory where a probe has them in cache"),
            [LOOM_DEV_ATTENTION_FORWARD] = LOOM_SWEEP(0.68, "bench/kernels: 0.66 at 256 tokens, 0.75 at 2048, heads of 64"),
            [LOOM_DEV_ATTENTION_BACKWARD] = LOOM_SWEEP(0.7, "bench/kernels: 0.65 at 256 tokens, 0.81 at 2048, heads of 64"),
            [LOOM_DEV_ATTENTION_TILE] = LOOM_HABIT(64, "rows of a tile of this library's kernels"),
            [LOOM_DEV_ATTENTION_NARROW] = LOOM_HABIT(1, "vectors are narrower than heads"),
            [LOOM_DEV_ATTENTION_TAIL] = LOOM_HABIT(0, "tiles are a core's own"),
            [LOOM_DEV_KERNEL_GAP] = LOOM_HABIT(0.5e-6, "a function call"),
            [LOOM_DEV_HOST_KERNEL] = LOOM_HABIT(1e-6, "a function call"),
            [LOOM_DEV_LINK_START] = LOOM_HABIT(2e-6, "shared memory"),
            [LOOM_DEV_LINK_HOP] = LOOM_HABIT(1e-6, "shared memory"),
            [LOOM_DEV_LINK_TURN] = LOOM_STEPS(80e-6, "steps of GPT-2 10 M in the 31 layouts of 4 ranks on 2 free cores with micro-batches of 4 (bench/planner_here.py)"),
            [LOOM_DEV_OVERLAP_TAX] = LOOM_HABIT(1, "the core that computes is the core that copies"),
        },
};
