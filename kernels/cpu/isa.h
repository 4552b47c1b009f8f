/* Names of the functions that are compiled once for each instruction set: loom_cpu_gelu_avx2 and so on. */
#ifndef LOOM_KERNELS_ISA_H
#define LOOM_KERNELS_ISA_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#define ISA_JOIN(name, isa) loom_cpu_##name##_##isa
#define ISA_NAME(name, isa) ISA_JOIN(name, isa)
#define ISA(name) ISA_NAME(name, LOOM_ISA)

#define LOOM_DECLARE_ISA(name, args) loom_status ISA(name)(loom_cpu * cpu, const args *a);
LOOM_KERNEL_LIST(LOOM_DECLARE_ISA)
#undef LOOM_DECLARE_ISA
void ISA(gemm_gelu)(loom_cpu *cpu, const loom_gemm_args *a);

/* Elements of a simple loop that are worth a second thread: about 5 microseconds of it. */
enum { GRAIN_ELEMENTS = 16384 };

/* Rows of `width` that are worth one. */
static inline int64_t row_grain(int64_t width)
{
    return width >= GRAIN_ELEMENTS ? 1 : GRAIN_ELEMENTS / (width > 0 ? width : 1);
}

#endif
