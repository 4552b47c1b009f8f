/* A double of cuBLASLt: matrices by columns, products as its manual defines them. What a caller describes is checked when it multiplies: shapes that fit
 * together, memory that is there, and pointers as aligned as the heuristics were told. */
#include "double.h"

#include <cublasLt.h>

#include <rankloom/dtype.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the opaque structures hold. */
typedef struct layout {
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t batch, type;
} layout;

typedef struct product {
    int32_t trans_a, trans_b, epilogue, compute;
    const float *bias, *scale_a, *scale_b; /* the scales of fp8: on the device; NULL: 1 */
    float *aux;                            /* the matrix before GELU */
    int64_t aux_ld, aux_stride;
} product;

typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t schemes, align[4]; /* of a, b, c, d */
    uint32_t align_bias, align_aux; /* of an algorithm: what the product's pointers were when it was chosen */
} preference;

_Static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t) && sizeof(product) <= sizeof(cublasLtMatmulDescOpaque_t) &&
                   sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t) && sizeof(preference) <= sizeof(cublasLtMatmulAlgo_t),
               "they fit");

/* Through memcpy: an opaque structure is none of ours to the compiler. */
#define LOOK(type, name, opaque)                                                                                                           \
    type name;                                                                                                                             \
    memcpy(&name, opaque, sizeof name)

struct cublasLtContext {
    int open;
};

/* Not the library's CUBLAS_STATUS_INVALID_VALUE: we take that for a product that has no algorithm, and a mistake is to be noticed. */
static cublasStatus_t refuse(const char *why)
{
    fprintf(stderr, "double of cuBLASLt: %s\n", why);
    return CUBLAS_STATUS_INTERNAL_ERROR;
}

/* An opaque structure of `bytes` that holds `content`; NULL: no memory. */
static void *make(size_t bytes, const void *content, size_t content_bytes)
{
    void *made = calloc(1, bytes);

    if (made)
        memcpy(made, content, content_bytes);
    return made;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    if (double_fails(__func__) || !(*handle = calloc(1, sizeof **handle)))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_INTERNAL_ERROR ? "CUBLAS_STATUS_INTERNAL_ERROR" : "a status of the double";
}

/* --- describing -------------------------------------------------------------------------------------------------------------------- */

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
    layout l = {.rows = rows, .cols = cols, .ld = ld, .batch = 1, .type = (int32_t)type};

    if ((type != CUDA_R_32F && type != CUDA_R_16BF && type != CUDA_R_8F_E4M3) || ld < (int64_t)rows)
        return refuse("a matrix whose columns lie closer than they are long, or of no type that is known");
    *made = make(sizeof **made, &l, sizeof l);
    return *made ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t opaque, cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t bytes)
{
    LOOK(layout, l, opaque);
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof l.batch)
        memcpy(&l.batch, value, bytes);
    else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof l.stride)
        memcpy(&l.stride, value, bytes);
    else
        return refuse("an attribute of a matrix that is not known, or of another size");
    memcpy(opaque, &l, sizeof l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute, cudaDataType_t scale)
{
    product p = {.trans_a = CUBLAS_OP_N, .trans_b = CUBLAS_OP_N, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .compute = (int32_t)compute};

    if (scale != CUDA_R_32F)
        return refuse("scales that are not f32");
    *made = make(sizeof **made, &p, sizeof p);
    return *made ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    LOOK(product, p, opaque);
    if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER && bytes == sizeof p.bias)
        memcpy(&p.bias, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER && bytes == sizeof p.scale_a)
        memcpy(&p.scale_a, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER && bytes == sizeof p.scale_b)
        memcpy(&p.scale_b, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER && bytes == sizeof p.aux)
        memcpy(&p.aux, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD && bytes == sizeof p.aux_ld)
        memcpy(&p.aux_ld, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE && bytes == sizeof p.aux_stride)
        memcpy(&p.aux_stride, value, bytes);
    else if (bytes == sizeof(int32_t) && attribute == CUBLASLT_MATMUL_DESC_TRANSA)
        memcpy(&p.trans_a, value, bytes);
    else if (bytes == sizeof(int32_t) && attribute == CUBLASLT_MATMUL_DESC_TRANSB)
        memcpy(&p.trans_b, value, bytes);
    else if (bytes == sizeof(int32_t) && attribute == CUBLASLT_MATMUL_DESC_EPILOGUE)
        memcpy(&p.epilogue, value, bytes);
    else
        return refuse("an attribute of a product that is not known, or of another size");
    memcpy(opaque, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}

/* --- choosing -------------------------------------------------------------------------------------------------------------------------- */

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made)
{
    preference p = {.schemes = 7, .align = {256, 256, 256, 256}};

    *made = make(sizeof **made, &p, sizeof p);
    return *made ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque, cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    int matrix = (int)attribute - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;

    LOOK(preference, p, opaque);
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof p.workspace_bytes)
        memcpy(&p.workspace_bytes, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof p.schemes)
        memcpy(&p.schemes, value, bytes);
    else if (matrix >= 0 && matrix < 4 && bytes == sizeof p.align[0])
        memcpy(&p.align[matrix], value, bytes);
    else
        return refuse("a preference that is not known, or of another size");
    memcpy(opaque, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}

/* The one form of fp8 that every GPU with it has: k along both factors, all sizes and distances multiples of 16, no bias of f32. */
static bool fp8_is_legal(const product *p, const layout *a, const layout *b, const layout *d)
{
    if (a->type != CUDA_R_8F_E4M3 && b->type != CUDA_R_8F_E4M3)
        return true;
    return a->type == b->type && d->type == CUDA_R_32F && p->trans_a && !p->trans_b && p->epilogue == CUBLASLT_EPILOGUE_DEFAULT && a->rows % 16 == 0 &&
           a->cols % 16 == 0 && b->cols % 16 == 0 && a->ld % 16 == 0 && b->ld % 16 == 0 && d->ld % 4 == 0 && a->batch == 1;
}

static bool adds_bias(const product *p)
{
    return p->epilogue == CUBLASLT_EPILOGUE_BIAS || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool applies_gelu(const product *p)
{
    return p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_aux(const product *p)
{
    return applies_gelu(p) || p->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* The header's rules of the matrix before GELU: its pointer is set before the heuristics choose, columns and batch a multiple of 8 apart. */
static bool aux_is_legal(const product *p, const layout *d)
{
    return !has_aux(p) || (p->aux && p->aux_ld % 8 == 0 && p->aux_ld >= (int64_t)d->rows && p->aux_stride % 8 == 0 && (uintptr_t)p->aux % 16 == 0);
}

static bool is_known(const product *p)
{
    return p->epilogue == CUBLASLT_EPILOGUE_DEFAULT || adds_bias(p) || has_aux(p);
}

/* op(A) is m x k, op(B) k x n, C and D m x n; all of one batch. */
static bool fit(const product *p, const layout *a, const layout *b, const layout *c, const layout *d)
{
    uint64_t m = p->trans_a ? a->cols : a->rows, k = p->trans_a ? a->rows : a->cols;
    uint64_t k_of_b = p->trans_b ? b->cols : b->rows, n = p->trans_b ? b->rows : b->cols;

    return k == k_of_b && c->rows == m && c->cols == n && d->rows == m && d->cols == n && a->batch == b->batch && a->batch == c->batch &&
           a->batch == d->batch;
}

/* How far a pointer is aligned; one that is not set is taken to be so as far as any. */
static uint32_t alignment_of(const void *pointer)
{
    uint32_t align = 256;

    while ((uintptr_t)pointer % align != 0)
        align /= 2;
    return align;
}

/* No algorithm, by the status that the test asks for. */
static cublasStatus_t find_none(int *count)
{
    *count = 0;
    return (cublasStatus_t)double_setting("LOOM_DOUBLE_HEURISTIC", CUBLAS_STATUS_NOT_SUPPORTED);
}

/* The algorithm is what it was promised. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t opaque, cublasLtMatrixLayout_t a_layout,
                                              cublasLtMatrixLayout_t b_layout, cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                                              cublasLtMatmulPreference_t wishes, int wanted, cublasLtMatmulHeuristicResult_t results[], int *count)
{
    LOOK(product, p, opaque);
    LOOK(layout, a, a_layout);
    LOOK(layout, b, b_layout);
    LOOK(layout, c, c_layout);
    LOOK(layout, d, d_layout);
    (void)handle;
    if (wanted < 1 || !fit(&p, &a, &b, &c, &d) || !fp8_is_legal(&p, &a, &b, &d))
        return refuse("matrices that do not fit together");
    if (!is_known(&p) || !aux_is_legal(&p, &d))
        return refuse("an epilogue that is not known, or whose other matrix it would not take");
    if (double_fails(has_aux(&p) ? "cublasLtMatmulAlgoGetHeuristic with GELU" : a.type == CUDA_R_8F_E4M3 ? "cublasLtMatmulAlgoGetHeuristic of fp8" : __func__))
        return find_none(count);
    LOOK(preference, promised, wishes);
    promised.align_bias = alignment_of(p.bias);
    promised.align_aux = alignment_of(p.aux);
    memset(&results[0], 0, sizeof results[0]);
    memcpy(&results[0].algo, &promised, sizeof promised);
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* --- multiplying ------------------------------------------------------------------------------------------------------------------------ */

typedef struct work {
    product p;
    layout a, b, c;
    const void *at_a, *at_b;
    const float *at_c;
    float *at_d, alpha, beta;
} work;

/* Steps from one row of op(X) to the next, and from one column. */
typedef struct steps {
    uint64_t row, col;
} steps;

static steps steps_of(const layout *l, bool transposed)
{
    return transposed ? (steps){(uint64_t)l->ld, 1} : (steps){1, (uint64_t)l->ld};
}

static double dot(const float *x, uint64_t x_step, const float *y, uint64_t y_step, uint64_t count)
{
    double sum = 0;

    for (uint64_t i = 0; i < count; i++)
        sum += (double)x[i * x_step] * y[i * y_step];
    return sum;
}

static double dot_of_codes(const uint8_t *x, uint64_t x_step, const uint8_t *y, uint64_t y_step, uint64_t count)
{
    double sum = 0;

    for (uint64_t i = 0; i < count; i++)
        sum += (double)loom_f32_from_f8e4m3(x[i * x_step]) * loom_f32_from_f8e4m3(y[i * y_step]);
    return sum;
}

static double dot_of_halves(const uint16_t *x, uint64_t x_step, const uint16_t *y, uint64_t y_step, uint64_t count)
{
    double sum = 0;

    for (uint64_t i = 0; i < count; i++)
        sum += (double)loom_f32_from_bf16(x[i * x_step]) * loom_f32_from_bf16(y[i * y_step]);
    return sum;
}

/* One element of op(A) op(B), from where its row of the one and its column of the other begin. */
static double dot_at(const work *w, int batch, uint64_t a, uint64_t a_step, uint64_t b, uint64_t b_step, uint64_t k)
{
    if (w->a.type == CUDA_R_8F_E4M3)
        return dot_of_codes((const uint8_t *)w->at_a + a, a_step, (const uint8_t *)w->at_b + b, b_step, k) * (w->p.scale_a ? *w->p.scale_a : 1) *
               (w->p.scale_b ? *w->p.scale_b : 1);
    if (w->a.type == CUDA_R_16BF)
        return dot_of_halves((const uint16_t *)w->at_a + batch * w->a.stride + a, a_step, (const uint16_t *)w->at_b + batch * w->b.stride + b, b_step, k);
    return dot((const float *)w->at_a + batch * w->a.stride + a, a_step, (const float *)w->at_b + batch * w->b.stride + b, b_step, k);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));

    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

/* What the epilogue makes of a sum, whose place in the matrix before GELU is `before`. */
static double finish(const product *p, double sum, float *before)
{
    if (p->epilogue == CUBLASLT_EPILOGUE_DGELU)
        return sum * gelu_slope(*before);
    if (!applies_gelu(p))
        return sum;
    *before = (float)sum;
    return gelu(sum);
}

static void multiply_one(const work *w, int batch)
{
    const float *c = w->at_c + batch * w->c.stride;
    float *d = w->at_d + batch * w->c.stride;
    uint64_t k = w->p.trans_a ? w->a.rows : w->a.cols;
    steps in_a = steps_of(&w->a, w->p.trans_a), in_b = steps_of(&w->b, w->p.trans_b);

    for (uint64_t col = 0; col < w->c.cols; col++)
        for (uint64_t row = 0; row < w->c.rows; row++) {
            uint64_t at = row + col * (uint64_t)w->c.ld;
            double sum = w->alpha * dot_at(w, batch, row * in_a.row, in_a.col, col * in_b.col, in_b.row, k);
            if (w->beta != 0) /* else C is not read, and may be NaN */
                sum += (double)w->beta * c[at];
            if (adds_bias(&w->p))
                sum += w->p.bias[row];
            d[at] = (float)finish(&w->p, sum, has_aux(&w->p) ? w->p.aux + batch * w->p.aux_stride + (int64_t)col * w->p.aux_ld + (int64_t)row : NULL);
        }
}

static void run(void *context)
{
    const work *w = context;

    for (int32_t i = 0; i < w->c.batch; i++)
        multiply_one(w, i);
}

static bool is_there(const void *at, const layout *l, uint32_t align)
{
    int64_t last = (l->batch - 1) * l->stride + (int64_t)(l->cols - 1) * l->ld + (int64_t)l->rows;

    return (uintptr_t)at % align == 0 && double_is_device(at, (size_t)last * (l->type == CUDA_R_8F_E4M3 ? 1 : l->type == CUDA_R_16BF ? 2 : sizeof(float)));
}

/* … and is no other matrix of the product: nobody says that it may be. */
static bool aux_is_there(const work *w, uint32_t align)
{
    const layout aux = {.rows = w->c.rows, .cols = w->c.cols, .ld = w->p.aux_ld, .stride = w->p.aux_stride, .batch = w->c.batch, .type = CUDA_R_32F};

    return !has_aux(&w->p) || (w->p.aux != w->at_d && w->p.aux != w->at_c && is_there(w->p.aux, &aux, align));
}

static bool bias_is_there(const work *w, uint32_t align)
{
    return !adds_bias(&w->p) || ((uintptr_t)w->p.bias % align == 0 && double_is_device(w->p.bias, w->c.rows * sizeof(float)));
}

static bool are_there(const work *w, const preference *promised)
{
    return is_there(w->at_a, &w->a, promised->align[0]) && is_there(w->at_b, &w->b, promised->align[1]) && is_there(w->at_c, &w->c, promised->align[2]) &&
           is_there(w->at_d, &w->c, promised->align[3]) &&
           (!w->p.scale_a || double_is_device(w->p.scale_a, sizeof(float))) && (!w->p.scale_b || double_is_device(w->p.scale_b, sizeof(float))) &&
           bias_is_there(w, promised->align_bias) && aux_is_there(w, promised->align_aux);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t opaque, const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    LOOK(product, p, opaque);
    LOOK(layout, la, a_layout);
    LOOK(layout, lb, b_layout);
    LOOK(layout, lc, c_layout);
    LOOK(layout, ld, d_layout);
    LOOK(preference, promised, algorithm);
    work w = {p, la, lb, lc, a, b, c, d, *(const float *)alpha, *(const float *)beta}, *queued;

    (void)handle;
    if (!fit(&p, &la, &lb, &lc, &ld) || memcmp(&lc, &ld, sizeof lc) != 0 || (adds_bias(&p) && w.beta != 0 && c != d))
        return refuse("matrices that do not fit together");
    if (workspace_bytes < promised.workspace_bytes || !double_is_device(workspace, workspace_bytes))
        return refuse("a workspace that is smaller than the heuristics were told, or not the device's");
    if (!aux_is_legal(&p, &lc))
        return refuse("a matrix before GELU that the epilogue would not take");
    if (has_aux(&p) && double_fails("cublasLtMatmul with GELU"))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (promised.schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE)
        return refuse("sums over parts of k in no fixed order");
    if (!are_there(&w, &promised))
        return refuse("a matrix that is not in memory of the device, or less aligned than the heuristics were told");
    queued = malloc(sizeof *queued);
    if (!queued)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *queued = w;
    return loom_shim_enqueue(stream, run, queued, free) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
