/* Matrix products by OpenBLAS. Its count of threads belongs to the process, so it is asked for before each product and put back. */
#include "kernels/cpu/cpu.h"

#include <cblas.h>

static loom_status openblas_open(void **state)
{
    *state = NULL;
    return LOOM_OK;
}

static void openblas_close(void *state)
{
    (void)state;
}

static loom_status openblas_run(loom_cpu *cpu, void *state, const loom_gemm_args *a)
{
    int64_t lda = a->lda ? a->lda : a->transpose_a ? a->m : a->k, ldb = a->ldb ? a->ldb : a->transpose_b ? a->k : a->n;
    int64_t ldc = a->ldc ? a->ldc : a->n, largest = INT32_MAX;
    int before = openblas_get_num_threads();

    (void)state;
    if (a->m == 0 || a->n == 0 || a->k == 0 || a->m > largest || a->n > largest || a->k > largest || lda > largest || ldb > largest ||
        ldc > largest)
        return cpu->ops->gemm(cpu, a); /* empty, or beyond the int of its interface */
    if (before != cpu->threads)
        openblas_set_num_threads(cpu->threads);
    for (int64_t i = 0; i < (a->batch ? a->batch : 1); i++)
        cblas_sgemm(CblasRowMajor, a->transpose_a ? CblasTrans : CblasNoTrans, a->transpose_b ? CblasTrans : CblasNoTrans, (blasint)a->m,
                    (blasint)a->n, (blasint)a->k, 1.0f, a->a_MK + i * a->stride_a, (blasint)lda, a->b_KN + i * a->stride_b, (blasint)ldb,
                    a->accumulate ? 1.0f : 0.0f, a->c_MN + i * a->stride_c, (blasint)ldc);
    if (before != cpu->threads)
        openblas_set_num_threads(before);
    return loom_cpu_gemm_bias(cpu, a);
}

const loom_gemm_library loom_gemm_openblas = {"openblas", openblas_open, openblas_close, openblas_run};
