/* Matrix products by cuBLASLt, with what its heuristics chose kept for each shape: after the first call a product is a look-up and an
 * enqueue.
 *
 * Our matrices are row-major, cuBLASLt's column-major, so it is asked for C' = op(B)' op(A)': its first operand is B as it lies, its second
 * A. */
#include "kernels/cuda/cublaslt.h"
#include "core/log.h"
#include "kernels/cuda/factors.h"

#include <cublasLt.h>

#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 32 << 20, FIRST_PLANS = 64 };

/* All that a choice depends on. Compared as bytes, so it has no holes: eight bytes each. */
typedef struct plan_key {
    int64_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
    int64_t flags; /* transposes, epilogue, math, and which pointers are aligned to 16 bytes */
} plan_key;

typedef struct plan {
    plan_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    bool works; /* false: cuBLASLt has nothing for it */
} plan;

typedef struct lt_state {
    cublasLtHandle_t handle;
    plan **slots; /* by hash of the key, linear probing; NULL: free */
    int capacity, count;
} lt_state;

/* --- the kept choices --- */

static int slot_of(const lt_state *s, const plan_key *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t hash = 14695981039346656037u;
    int slot;

    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    for (slot = (int)(hash % (unsigned)s->capacity); s->slots[slot] && memcmp(&s->slots[slot]->key, key, sizeof *key) != 0;)
        slot = (slot + 1) % s->capacity;
    return slot;
}

static bool make_room(lt_state *s)
{
    lt_state larger = {.capacity = s->capacity ? 2 * s->capacity : FIRST_PLANS};

    if (2 * (s->count + 1) <= s->capacity)
        return true;
    larger.slots = calloc((size_t)larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (int i = 0; i < s->capacity; i++)
        if (s->slots[i])
            larger.slots[slot_of(&larger, &s->slots[i]->key)] = s->slots[i];
    free(s->slots);
    s->slots = larger.slots;
    s->capacity = larger.capacity;
    return true;
}

static void free_plan(plan *p)
{
    if (!p)
        return;
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->c);
    cublasLtMatmulDescDestroy(p->product);
    free(p);
}

/* --- making one --- */

enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, BIAS = 4, ALIGNED_A = 8, ALIGNED_B = 16, ALIGNED_C = 32, GELU = 64, GELU_SLOPE = 128, MATH = 256 };

static bool aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* What the factors are and what is made of them: a loom_gpu_math, or copies that are bf16 already. */
enum { BF16_COPIES = LOOM_GPU_FP8 + 1 };

static int kind_of(const plan_key *key)
{
    return (int)(key->flags / MATH);
}

/* The call with its strides filled in, those of a batch of one 0. */
static loom_gemm_args filled(const loom_gemm_args *given)
{
    loom_gemm_args a = *given;

    a.lda = a.lda ? a.lda : a.transpose_a ? a.m : a.k;
    a.ldb = a.ldb ? a.ldb : a.transpose_b ? a.k : a.n;
    a.ldc = a.ldc ? a.ldc : a.n;
    if (a.batch <= 1)
        a.batch = 1, a.stride_a = a.stride_b = a.stride_c = 0;
    return a;
}

static int64_t flags_of_result(const loom_gemm_args *a, int kind)
{
    return (aligned16(a->c_MN) ? ALIGNED_C : 0) | MATH * (int64_t)kind;
}

/* Both factors are made tight and with k along their rows; their bias is added afterwards, since the epilogue has none of f32. */
static plan_key fp8_key(const loom_gemm_args *a)
{
    return (plan_key){.m = a->m, .n = a->n, .k = a->k, .lda = a->k, .ldb = a->k, .ldc = a->ldc, .batch = 1,
                      .flags = TRANSPOSE_B | ALIGNED_A | ALIGNED_B | flags_of_result(a, LOOM_GPU_FP8)};
}

/* A bias that begins anywhere is added afterwards: the epilogue reads it in vectors, and an alignment of 4 is nothing that the heuristics ask for. */
static int64_t shape_flags(const loom_gemm_args *a)
{
    return (a->transpose_a ? TRANSPOSE_A : 0) | (a->transpose_b ? TRANSPOSE_B : 0) | (a->bias_N && aligned16(a->bias_N) ? BIAS : 0);
}

static plan_key bf16_key(const loom_gemm_args *a)
{
    int64_t lda = loom_lt_bf16_stride(a->transpose_a ? a->m : a->k), ldb = loom_lt_bf16_stride(a->transpose_b ? a->k : a->n);

    return (plan_key){.m = a->m, .n = a->n, .k = a->k, .lda = lda, .ldb = ldb, .ldc = a->ldc, .batch = a->batch,
                      .stride_a = a->stride_a ? (a->transpose_a ? a->k : a->m) * lda : 0,
                      .stride_b = a->stride_b ? (a->transpose_b ? a->n : a->k) * ldb : 0,
                      .stride_c = a->stride_c,
                      .flags = shape_flags(a) | ALIGNED_A | ALIGNED_B | flags_of_result(a, BF16_COPIES)};
}

static plan_key key_as_it_is(const loom_gpu *gpu, const loom_gemm_args *a)
{
    loom_gpu_math math = gpu->math == LOOM_GPU_FP8 ? LOOM_GPU_TF32 : gpu->math;

    return (plan_key){.m = a->m, .n = a->n, .k = a->k, .lda = a->lda, .ldb = a->ldb, .ldc = a->ldc, .batch = a->batch,
                      .stride_a = a->stride_a, .stride_b = a->stride_b, .stride_c = a->stride_c,
                      .flags = shape_flags(a) | (aligned16(a->a_MK) ? ALIGNED_A : 0) | (aligned16(a->b_KN) ? ALIGNED_B : 0) | flags_of_result(a, (int)math)};
}

static plan_key key_of(const loom_gpu *gpu, const loom_gemm_args *a)
{
    return loom_lt_takes_fp8(gpu, a) ? fp8_key(a) : loom_lt_takes_bf16(gpu, a) ? bf16_key(a) : key_as_it_is(gpu, a);
}

/* Whether GELU may be the epilogue's. Its manual asks for rows of the other matrix a multiple of 8 apart, and says nothing of how exact its tanh is:
 * where f32 is wanted as the CPU has it, GELU stays ours. With accumulate it would read C and write the value before GELU there. */
static bool fits_epilogue(const loom_gemm_args *a, const plan_key *key)
{
    return kind_of(key) != LOOM_GPU_F32 && kind_of(key) != LOOM_GPU_FP8 && (a->gelu_MN || a->gelu_input_MN) && !a->accumulate && key->ldc % 8 == 0 && key->stride_c % 8 == 0 && aligned16(a->c_MN) &&
           aligned16(a->gelu_MN) && aligned16(a->gelu_input_MN) && aligned16(a->bias_N);
}

static cublasComputeType_t compute_type(const plan_key *key)
{
    int kind = kind_of(key);

    return kind == LOOM_GPU_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : kind == LOOM_GPU_BF16 ? CUBLAS_COMPUTE_32F_FAST_16BF : CUBLAS_COMPUTE_32F;
}

static cudaDataType factor_type(const plan_key *key)
{
    int kind = kind_of(key);

    return kind == LOOM_GPU_FP8 ? CUDA_R_8F_E4M3 : kind == BF16_COPIES ? CUDA_R_16BF : CUDA_R_32F;
}

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        if ((status = (call)) != CUBLAS_STATUS_SUCCESS)                                                                                    \
            return status;                                                                                                                 \
    } while (0)

/* A matrix whose rows of `row` elements lie `ld` apart is to cuBLASLt one of `row` rows. */
static cublasStatus_t describe_matrix(cublasLtMatrixLayout_t *layout, cudaDataType type, int64_t rows, int64_t row, int64_t ld, int64_t batch,
                                      int64_t stride)
{
    cublasStatus_t status;
    int32_t count = (int32_t)batch;

    TRY(cublasLtMatrixLayoutCreate(layout, type, (uint64_t)row, (uint64_t)rows, ld));
    if (batch == 1)
        return CUBLAS_STATUS_SUCCESS;
    TRY(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    return cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

static cublasLtEpilogue_t epilogue_of(int64_t flags)
{
    if (flags & GELU_SLOPE)
        return CUBLASLT_EPILOGUE_DGELU;
    if (flags & GELU)
        return flags & BIAS ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return flags & BIAS ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* The bias, and the matrix of values before GELU, which GELU's epilogue writes and its slope's reads. The heuristics look at how the pointers are aligned, so
 * some are set before they choose, aligned as callers' are; every product sets its own. */
static cublasStatus_t describe_epilogue(const plan *p)
{
    const plan_key *k = &p->key;
    const void *any = (const void *)(uintptr_t)16;
    cublasLtEpilogue_t epilogue = epilogue_of(k->flags);
    cublasStatus_t status;

    TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (k->flags & BIAS)
        TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &any, sizeof any));
    if (!(k->flags & (GELU | GELU_SLOPE)))
        return CUBLAS_STATUS_SUCCESS;
    TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &any, sizeof any));
    TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldc, sizeof k->ldc));
    return cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &k->stride_c, sizeof k->stride_c);
}

static cublasStatus_t describe_product(plan *p)
{
    const plan_key *k = &p->key;
    cublasOperation_t first = k->flags & TRANSPOSE_B ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = k->flags & TRANSPOSE_A ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType factors = factor_type(k);
    bool ta = k->flags & TRANSPOSE_A, tb = k->flags & TRANSPOSE_B;
    cublasStatus_t status;

    TRY(cublasLtMatmulDescCreate(&p->product, compute_type(k), CUDA_R_32F));
    TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    TRY(describe_epilogue(p));
    TRY(describe_matrix(&p->a, factors, ta ? k->k : k->m, ta ? k->m : k->k, k->lda, k->batch, k->stride_a));
    TRY(describe_matrix(&p->b, factors, tb ? k->n : k->k, tb ? k->k : k->n, k->ldb, k->batch, k->stride_b));
    return describe_matrix(&p->c, CUDA_R_32F, k->m, k->n, k->ldc, k->batch, k->stride_c);
}

/* What the choice has to keep to: our workspace, the alignment at hand, and sums over parts of k in one order. */
static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, int64_t flags)
{
    uint64_t bytes = WORKSPACE_BYTES;
    uint32_t in_order = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    uint32_t first = flags & ALIGNED_B ? 16 : 4, second = flags & ALIGNED_A ? 16 : 4, result = flags & ALIGNED_C ? 16 : 4;
    cublasStatus_t status;

    TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &in_order, sizeof in_order));
    TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first, sizeof first));
    TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second, sizeof second));
    TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result, sizeof result));
    return cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result, sizeof result);
}

static cublasStatus_t choose(cublasLtHandle_t handle, plan *p)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    cublasStatus_t status;

    TRY(cublasLtMatmulPreferenceCreate(&preference));
    status = prefer(preference, p->key.flags);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(handle, p->product, p->b, p->a, p->c, p->c, preference, 1, &best, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    p->works = status == CUBLAS_STATUS_SUCCESS && found > 0;
    if (p->works)
        p->algorithm = best.algo;
    return status;
}

/* Everything else says of a product, an epilogue or a type that there is no algorithm: NOT_SUPPORTED mostly, INVALID_VALUE or ARCH_MISMATCH where the device
 * has none. */
static bool is_failure(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_INTERNAL_ERROR;
}

/* The plan may be one that does not work: that is kept, too. */
static cublasStatus_t find_plan(lt_state *s, const plan_key *key, plan **found)
{
    plan *p;
    cublasStatus_t status;
    int slot;

    if (!make_room(s))
        return CUBLAS_STATUS_ALLOC_FAILED;
    slot = slot_of(s, key);
    *found = s->slots[slot];
    if (*found)
        return CUBLAS_STATUS_SUCCESS;
    p = calloc(1, sizeof *p);
    if (!p)
        return CUBLAS_STATUS_ALLOC_FAILED;
    p->key = *key;
    status = describe_product(p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = choose(s->handle, p);
    if (is_failure(status)) {
        free_plan(p);
        return status;
    }
    if (!p->works)
        loom_log(LOOM_LOG_DEBUG, -1, "cuBLASLt has no algorithm for m=%lld n=%lld k=%lld, flags %llx: %s", (long long)key->m, (long long)key->n, (long long)key->k,
                 (long long)key->flags, cublasLtGetStatusString(status));
    *found = s->slots[slot] = p;
    s->count++;
    return CUBLAS_STATUS_SUCCESS;
}

/* --- what the launchers see --- */

loom_status loom_cublaslt_open(void **lt)
{
    lt_state *s = calloc(1, sizeof *s);
    cublasStatus_t status;

    if (!s)
        return loom_fail(LOOM_E_MEMORY, "kernels: no memory for the state of cuBLASLt");
    status = cublasLtCreate(&s->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(s);
        return loom_fail(LOOM_E_UNSUPPORTED, "kernels: cuBLASLt cannot be opened: %s", cublasLtGetStatusString(status));
    }
    *lt = s;
    return LOOM_OK;
}

void loom_cublaslt_close(void *lt)
{
    lt_state *s = lt;

    if (!s)
        return;
    for (int i = 0; i < s->capacity; i++)
        free_plan(s->slots[i]);
    free(s->slots);
    cublasLtDestroy(s->handle);
    free(s);
}

static int set_pointer(const plan *p, cublasLtMatmulDescAttributes_t attribute, const float *pointer)
{
    cublasStatus_t status = cublasLtMatmulDescSetAttribute(p->product, attribute, &pointer, sizeof pointer);

    return status == CUBLAS_STATUS_SUCCESS ? 0 : LOOM_GPU_CUBLAS + (int)status;
}

/* The matrices of the call, or copies of them in fewer bits. */
static int take_factors(loom_gpu *gpu, const plan *p, const loom_gemm_args *a, loom_lt_factors *f)
{
    int kind = kind_of(&p->key);

    if (kind == LOOM_GPU_FP8)
        return loom_lt_fp8_factors(gpu, a, WORKSPACE_BYTES, f);
    if (kind == BF16_COPIES)
        return loom_lt_bf16_factors(gpu, a, WORKSPACE_BYTES, f);
    *f = (loom_lt_factors){.a = a->a_MK, .b = a->b_KN, .workspace = gpu->scratch(gpu, WORKSPACE_BYTES)};
    return f->workspace ? 0 : LOOM_GPU_FAILED;
}

/* The pointers that a plan's epilogue and scales want. With GELU C is the value before it, which its slope reads. */
static int set_pointers(const plan *p, const loom_gemm_args *a, const loom_lt_factors *f)
{
    int64_t flags = p->key.flags;
    int error = 0;

    if (flags & BIAS)
        error = set_pointer(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, a->bias_N);
    if (!error && flags & (GELU | GELU_SLOPE))
        error = set_pointer(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, flags & GELU ? a->c_MN : a->gelu_input_MN);
    if (!error && f->scale_b) /* its first operand is our second */
        error = set_pointer(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, f->scale_b);
    if (!error && f->scale_a)
        error = set_pointer(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, f->scale_a);
    return error;
}

static int add_bias(loom_gpu *gpu, const loom_gemm_args *a)
{
    int error = 0;

    for (int64_t i = 0; i < a->batch && !error; i++)
        error = loom_gpu_bias(gpu, &(loom_bias_args){.y_TN = a->c_MN + i * a->stride_c, .bias_N = a->bias_N, .tokens = a->m, .width = a->n, .ldy = a->ldc});
    return error;
}

static int multiply(loom_gpu *gpu, const lt_state *s, const plan *p, const loom_gemm_args *a)
{
    const float one = 1, beta = a->accumulate ? 1 : 0;
    float *result = p->key.flags & GELU ? a->gelu_MN : a->c_MN;
    loom_lt_factors f;
    int error = take_factors(gpu, p, a, &f);
    cublasStatus_t status;

    if (!error)
        error = set_pointers(p, a, &f);
    if (error)
        return error;
    status = cublasLtMatmul(s->handle, p->product, &one, f.b, p->b, f.a, p->a, &beta, result, p->c, result, p->c, &p->algorithm, f.workspace,
                            WORKSPACE_BYTES, (cudaStream_t)gpu->stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        return LOOM_GPU_CUBLAS + (int)status;
    return a->bias_N && !(p->key.flags & BIAS) ? add_bias(gpu, a) : 0;
}

/* *found NULL where the epilogue is not to have GELU or has no algorithm with it. */
static cublasStatus_t find_with_epilogue(lt_state *s, const loom_gemm_args *a, plan_key key, plan **found)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    *found = NULL;
    if (!fits_epilogue(a, &key))
        return status;
    key.flags |= a->gelu_MN ? GELU : GELU_SLOPE;
    status = find_plan(s, &key, found);
    if (status == CUBLAS_STATUS_SUCCESS && !(*found)->works)
        *found = NULL;
    return status;
}

/* The plan of the call: with all of it in the epilogue, else of its product in the bits that are wanted, else (a device before Ada and Hopper has no fp8) in more. */
static cublasStatus_t find(const loom_gpu *gpu, const loom_gemm_args *a, plan **p)
{
    plan_key key = key_of(gpu, a), plain = key_as_it_is(gpu, a);
    cublasStatus_t status = find_with_epilogue(gpu->lt, a, key, p);

    if (status != CUBLAS_STATUS_SUCCESS || *p)
        return status;
    status = find_plan(gpu->lt, &key, p);
    if (status == CUBLAS_STATUS_SUCCESS && !(*p)->works && kind_of(&key) != kind_of(&plain))
        status = find_plan(gpu->lt, &plain, p);
    return status;
}

int loom_cublaslt_gemm(loom_gpu *gpu, const loom_gemm_args *given, loom_cublaslt_made *made)
{
    const loom_gemm_args a = filled(given);
    plan *p;
    cublasStatus_t status = find(gpu, &a, &p);

    if (status != CUBLAS_STATUS_SUCCESS)
        return LOOM_GPU_CUBLAS + (int)status;
    if (p->works)
        *made = p->key.flags & (GELU | GELU_SLOPE) ? LOOM_LT_ALL : LOOM_LT_PRODUCT;
    return p->works ? multiply(gpu, gpu->lt, p, &a) : 0;
}

const char *loom_cublaslt_error_text(int status)
{
    return cublasLtGetStatusString((cublasStatus_t)status);
}
