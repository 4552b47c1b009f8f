#include "kernels/cuda/factors.h"
#include "kernels/cuda/bf16.h"
#include "kernels/cuda/fp8.h"

#include <stdint.h>

/* Each matrix as it is stored. */
static int64_t rows_a(const loom_gemm_args *a)
{
    return a->transpose_a ? a->k : a->m;
}

static int64_t cols_a(const loom_gemm_args *a)
{
    return a->transpose_a ? a->m : a->k;
}

static int64_t rows_b(const loom_gemm_args *a)
{
    return a->transpose_b ? a->n : a->k;
}

static int64_t cols_b(const loom_gemm_args *a)
{
    return a->transpose_b ? a->k : a->n;
}

/* --- fp8 ----------------------------------------------------------------------------------------------------------------------- */

/* What cuBLASLt asks of it. */
bool loom_lt_takes_fp8(const loom_gpu *gpu, const loom_gemm_args *a)
{
    return gpu->math == LOOM_GPU_FP8 && a->batch == 1 && a->m % 16 == 0 && a->n % 16 == 0 && a->k % 16 == 0 && a->ldc % 4 == 0 &&
           ((uintptr_t)a->c_MN & 15) == 0;
}

int loom_lt_fp8_factors(loom_gpu *gpu, const loom_gemm_args *a, size_t workspace_bytes, loom_lt_factors *f)
{
    size_t codes_a = loom_gpu_scratch_bytes(a->m * a->k), codes_b = loom_gpu_scratch_bytes(a->n * a->k), numbers = (2 + LOOM_FP8_PARTIALS) * sizeof(float);
    uint8_t *scratch = gpu->scratch(gpu, workspace_bytes + codes_a + codes_b + numbers), *codes = scratch + workspace_bytes;
    float *partial = (float *)(void *)(codes + codes_a + codes_b);
    const loom_fp8_factor left = {.x = a->a_MK, .rows = rows_a(a), .cols = cols_a(a), .ld = a->lda, .transpose = a->transpose_a, .codes = codes,
                                  .scale = partial + LOOM_FP8_PARTIALS, .partial = partial};
    const loom_fp8_factor right = {.x = a->b_KN, .rows = rows_b(a), .cols = cols_b(a), .ld = a->ldb, .transpose = !a->transpose_b,
                                   .codes = codes + codes_a, .scale = partial + LOOM_FP8_PARTIALS + 1, .partial = partial};
    int error = scratch ? loom_gpu_fp8_encode(gpu, &left) : LOOM_GPU_FAILED;

    *f = (loom_lt_factors){left.codes, right.codes, left.scale, right.scale, scratch};
    return error ? error : loom_gpu_fp8_encode(gpu, &right);
}

/* --- bf16 ----------------------------------------------------------------------------------------------------------------------- */

/* Factors that lie there as bf16 are multiplied twice as fast as f32 ones that are rounded on their way, and cost a pass over both. On an H100 (495 and 989
 * TFLOP/s, 3.35 TB/s, 6 bytes a number of the pass) that is won back where m n is 900 times m + n; on an A100 from 500. Never run: the figure is arithmetic. */
enum { WORTH_A_PASS = 900 };

bool loom_lt_takes_bf16(const loom_gpu *gpu, const loom_gemm_args *a)
{
    return gpu->math == LOOM_GPU_BF16 && (gpu->always_narrow || (double)a->m * (double)a->n >= WORTH_A_PASS * ((double)a->m + (double)a->n));
}

int64_t loom_lt_bf16_stride(int64_t cols)
{
    return (cols + 7) / 8 * 8;
}

/* A matrix that all products of a batch share is cast once. */
static loom_bf16_rows halves_of(const float *x, int64_t rows, int64_t cols, int64_t ld, int64_t batch, int64_t stride)
{
    return (loom_bf16_rows){.wide = (float *)x, .matrices = stride ? batch : 1, .rows = rows, .cols = cols, .ld = ld, .stride = stride,
                            .narrow_ld = loom_lt_bf16_stride(cols)};
}

static size_t bytes_of(const loom_bf16_rows *r)
{
    return loom_gpu_scratch_bytes(r->matrices * r->rows * r->narrow_ld * (int64_t)sizeof *r->narrow);
}

int loom_lt_bf16_factors(loom_gpu *gpu, const loom_gemm_args *a, size_t workspace_bytes, loom_lt_factors *f)
{
    loom_bf16_rows left = halves_of(a->a_MK, rows_a(a), cols_a(a), a->lda, a->batch, a->stride_a);
    loom_bf16_rows right = halves_of(a->b_KN, rows_b(a), cols_b(a), a->ldb, a->batch, a->stride_b);
    char *scratch = gpu->scratch(gpu, workspace_bytes + bytes_of(&left) + bytes_of(&right));
    int error;

    if (!scratch)
        return LOOM_GPU_FAILED;
    left.narrow = (uint16_t *)(void *)(scratch + workspace_bytes);
    right.narrow = (uint16_t *)(void *)(scratch + workspace_bytes + bytes_of(&left));
    *f = (loom_lt_factors){.a = left.narrow, .b = right.narrow, .workspace = scratch};
    error = loom_gpu_narrow(gpu, &left);
    return error ? error : loom_gpu_narrow(gpu, &right);
}
