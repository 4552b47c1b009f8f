/* The CPU's kernels: what a handle holds, and the table that each instruction set fills. */
#ifndef LOOM_KERNELS_CPU_H
#define LOOM_KERNELS_CPU_H

#include <rankloom/kernels.h>

#include "kernels/cpu/parallel.h"

typedef struct loom_cpu loom_cpu;

/* One entry an operation; arguments were checked and the stream is idle. */
typedef struct loom_cpu_ops {
#define LOOM_CPU_ENTRY(name, args) loom_status (*name)(loom_cpu * cpu, const args *a);
    LOOM_KERNEL_LIST(LOOM_CPU_ENTRY)
#undef LOOM_CPU_ENTRY
    /* What is asked of GELU, done to a product that a library made without it. */
    void (*gemm_gelu)(loom_cpu *cpu, const loom_gemm_args *a);
} loom_cpu_ops;

extern const loom_cpu_ops loom_cpu_ops_portable, loom_cpu_ops_avx2, loom_cpu_ops_avx512;

/* A library that multiplies matrices. `open` may fail with LOOM_E_UNSUPPORTED; `close` accepts NULL. */
typedef struct loom_gemm_library {
    const char *name;
    loom_status (*open)(void **state);
    void (*close)(void *state);
    loom_status (*run)(loom_cpu *cpu, void *state, const loom_gemm_args *a);
} loom_gemm_library;

extern const loom_gemm_library loom_gemm_onednn, loom_gemm_openblas;

struct loom_cpu {
    loom_kernels table; /* first: a loom_kernels of the CPU is a loom_cpu */
    const loom_cpu_ops *ops;
    const loom_gemm_library *gemm_library; /* NULL: ops->gemm */
    void *gemm_state;
    int threads;
    void *workspace;
    size_t workspace_bytes;
};

loom_status loom_cpu_open(loom_device *device, const loom_kernels_config *config, loom_kernels **kernels);
void loom_cpu_close(loom_kernels *kernels);

/* Scratch memory for one operation, aligned to 64, contents unknown. The next call takes it back. */
loom_status loom_cpu_workspace(loom_cpu *cpu, size_t bytes, void **workspace);

/* An argument of 0 stands for its default; of a stride that is rows side by side. */
static inline int64_t or_tight(int64_t stride, int64_t tight)
{
    return stride ? stride : tight;
}

/* LOOM_E_INVALID if one of rows[count] is not a row of a table of `table_rows`. rows may be NULL: nothing to check. */
loom_status loom_cpu_check_rows(const char *operation, const int32_t *rows, int64_t count, int64_t table_rows);

/* Group `group` as an ordinary product. */
loom_gemm_args loom_cpu_product_of_group(const loom_grouped_gemm_args *a, int64_t group);

/* bias added to the rows of a product that a library made without it. */
loom_status loom_cpu_gemm_bias(loom_cpu *cpu, const loom_gemm_args *a);

#endif
