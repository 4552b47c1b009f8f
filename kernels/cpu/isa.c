/* The table of this instruction set. */
#include "kernels/cpu/isa.h"

const loom_cpu_ops ISA(ops) = {
#define LOOM_ISA_ENTRY(name, args) .name = ISA(name),
    LOOM_KERNEL_LIST(LOOM_ISA_ENTRY)
#undef LOOM_ISA_ENTRY
    .gemm_gelu = ISA(gemm_gelu),
};
