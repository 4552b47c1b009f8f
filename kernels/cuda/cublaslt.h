/* Matrix products by cuBLASLt, and what the launchers want to know of the CUDA runtime (properties.c, shim/alone.c). */
#ifndef LOOM_KERNELS_CUDA_CUBLASLT_H
#define LOOM_KERNELS_CUDA_CUBLASLT_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One handle's state, for one thread at a time. *lt NULL: there is none, our own product serves. */
loom_status loom_cublaslt_open(void **lt);
void loom_cublaslt_close(void *lt); /* accepts NULL */
/* What was enqueued. NOTHING: it has no algorithm for these shapes and strides. PRODUCT: the product and its bias, without what is asked of GELU. */
typedef enum loom_cublaslt_made { LOOM_LT_NOTHING, LOOM_LT_PRODUCT, LOOM_LT_ALL } loom_cublaslt_made;
/* m, n, k > 0 and gpu->lt is there. */
int loom_cublaslt_gemm(loom_gpu *gpu, const loom_gemm_args *a, loom_cublaslt_made *made);
const char *loom_cublaslt_error_text(int status);

int loom_gpu_multiprocessors(void);         /* of the current device */
int loom_gpu_shared_max(void);              /* of the current device: bytes that a block may ask for */
const char *loom_gpu_error_text(int error); /* of a cudaError_t */

/* Events that tell the time; NULL: none could be had. */
void *loom_gpu_event_record(void *stream);
bool loom_gpu_event_ms(void *begin, void *end, float *ms); /* false: the device has not passed both, or one is NULL. Never waits */
void loom_gpu_event_free(void *event);                     /* accepts NULL */
bool loom_gpu_is_capturing(void *stream);                  /* into a graph: events say nothing then */

#ifdef __cplusplus
}
#endif
#endif
