#include "ref.h"

void ref_gemm(const loom_gemm_args *a, const float *start, double *c)
{
    int64_t lda = a->lda ? a->lda : a->transpose_a ? a->m : a->k, ldb = a->ldb ? a->ldb : a->transpose_b ? a->k : a->n;

    for (int64_t batch = 0; batch < (a->batch ? a->batch : 1); batch++)
        for (int64_t i = 0; i < a->m; i++)
            for (int64_t j = 0; j < a->n; j++) {
                const float *am = a->a_MK + batch * a->stride_a, *bm = a->b_KN + batch * a->stride_b;
                double sum = start ? start[(batch * a->m + i) * a->n + j] : 0;

                for (int64_t k = 0; k < a->k; k++)
                    sum += (double)am[a->transpose_a ? k * lda + i : i * lda + k] * bm[a->transpose_b ? j * ldb + k : k * ldb + j];
                c[(batch * a->m + i) * a->n + j] = sum + (a->bias_N ? a->bias_N[j] : 0);
            }
}
