/* The kinds of device the planner knows, a file each. A constant that a kind leaves out is taken from defaults.c. */
#ifndef LOOM_PLANNER_KINDS_H
#define LOOM_PLANNER_KINDS_H

#include "planner/constants.h"

#define LOOM_SHEET(value)                                                                                                                  \
    {                                                                                                                                      \
        value, LOOM_BASIS_SHEET, "maker's data sheet"                                                                                      \
    }
#define LOOM_SWEEP(value, text)                                                                                                            \
    {                                                                                                                                      \
        value, LOOM_BASIS_SWEEP, text                                                                                                      \
    }
#define LOOM_STEPS(value, text)                                                                                                            \
    {                                                                                                                                      \
        value, LOOM_BASIS_STEPS, text                                                                                                      \
    }
#define LOOM_HABIT(value, text)                                                                                                            \
    {                                                                                                                                      \
        value, LOOM_BASIS_DEFAULT, text                                                                                                    \
    }

extern const loom_constant loom_device_defaults[LOOM_DEV_COUNT];
extern const loom_constant loom_software_defaults[LOOM_SOFT_COUNT];
extern const loom_device_kind loom_kind_v100, loom_kind_t4, loom_kind_a100, loom_kind_a100_40, loom_kind_a100_pcie, loom_kind_h100,
    loom_kind_h100_96, loom_kind_h200, loom_kind_h800, loom_kind_b200, loom_kind_b300, loom_kind_gb200, loom_kind_gb300, loom_kind_l40s,
    loom_kind_mi300x, loom_kind_mi325x, loom_kind_mi355x, loom_kind_tpu_v4, loom_kind_tpu_v5e, loom_kind_tpu_v5p, loom_kind_tpu_v6e,
    loom_kind_tpu_v7x, loom_kind_cpu;

#endif
