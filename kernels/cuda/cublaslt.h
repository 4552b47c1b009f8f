/* Matrix products by cuBLASLt, and what of the CUDA runtime the state of the kernels needs: cublaslt.c, or cublaslt_none.c where the kernels
 * run on the host. */
#ifndef LOOM_KERNELS_CUDA_CUBLASLT_H
#define LOOM_KERNELS_CUDA_CUBLASLT_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *lt NULL: there is none, our own product serves. */
loom_status loom_cublaslt_open(void **lt);
void loom_cublaslt_close(void *lt); /* accepts NULL */
int loom_cublaslt_gemm(loom_gpu *gpu, const loom_gemm_args *a); /* gpu->lt is there */
const char *loom_cublaslt_error_text(int status);

int loom_gpu_multiprocessors(void);         /* of the current device */
const char *loom_gpu_error_text(int error); /* of a cudaError_t */

#ifdef __cplusplus
}
#endif
#endif
