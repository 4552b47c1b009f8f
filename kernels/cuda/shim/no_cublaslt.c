/* Kernels compiled for the host have no cuBLASLt: our own product serves. */
#include "kernels/cuda/cublaslt.h"

loom_status loom_cublaslt_open(void **lt)
{
    *lt = NULL;
    return LOOM_OK;
}

void loom_cublaslt_close(void *lt)
{
    (void)lt;
}

int loom_cublaslt_gemm(loom_gpu *gpu, const loom_gemm_args *a, bool *done)
{
    (void)gpu, (void)a;
    *done = false;
    return 0;
}

const char *loom_cublaslt_error_text(int status)
{
    (void)status;
    return "there is no cuBLASLt on the host";
}
