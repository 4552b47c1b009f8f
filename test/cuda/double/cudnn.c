/* A double of cuDNN's graph interface: descriptors with the attributes that their kind has and no others, whole when they are finalised, and graphs that are
 * executed operation by operation as the manual defines each, in stream order. It knows nothing of attention: that a graph is attention, and which, is what
 * the numbers show. Whether cuDNN has an engine for a graph, and how exact its arithmetic is, it cannot tell: values between operations are rounded to the type of
 * their tensor, sums are f64. */
#include "double.h"

#include "kernels/cuda/cudnn_library.h"

#include <rankloom/dtype.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTRIBUTES_MAX = 8, VALUES_MAX = 64, SLOTS_MAX = 128, WORKSPACE_BYTES = 4096 };

/* Engines: those that the heuristics offer, from 0 on, and one of Blackwell's that they do not. */
enum { ENGINES = 2, BLACKWELLS = 5 };

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    int64_t count;
    union {
        int64_t number[VALUES_MAX];
        void *pointer[VALUES_MAX];
    } value;
} attribute;

typedef struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    int n_attributes;
    attribute attributes[ATTRIBUTES_MAX];
} descriptor;

struct cudnnContext {
    cudaStream_t stream;
};

static cudnnStatus_t refuse(const char *why)
{
    fprintf(stderr, "double of cuDNN: %s\n", why);
    return CUDNN_STATUS_BAD_PARAM;
}

/* --- what each kind has ------------------------------------------------------------------------------------------------------------- */

typedef struct rule {
    cudnnBackendDescriptorType_t owner;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t least, most; /* values; least 0: it may be left out */
} rule;

static const rule rules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 0, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 0, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 0, 1},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, VALUES_MAX},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, 1},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, VALUES_MAX},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, VALUES_MAX},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, VALUES_MAX},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1},
};
enum { RULES = sizeof rules / sizeof *rules };

static size_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return sizeof(int32_t); /* the enumerations */
    }
}

static const attribute *find(const descriptor *d, cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->n_attributes; i++)
        if (d->attributes[i].name == name)
            return &d->attributes[i];
    return NULL;
}

static int64_t number_of(const descriptor *d, cudnnBackendAttributeName_t name)
{
    const attribute *a = find(d, name);

    return a ? a->value.number[0] : 0;
}

static const descriptor *node_of(const descriptor *d, cudnnBackendAttributeName_t name)
{
    const attribute *a = find(d, name);

    return a ? a->value.pointer[0] : NULL;
}

/* --- the interface: descriptors --------------------------------------------------------------------------------------------------------- */

size_t cudnnGetVersion(void)
{
    return double_fails(__func__) ? 90100 : 91900;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "a status of the double";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    if (double_fails(__func__) || !(*handle = calloc(1, sizeof **handle)))
        return CUDNN_STATUS_NOT_INITIALIZED;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made)
{
    descriptor *d = double_fails(__func__) ? NULL : calloc(1, sizeof *d);

    if (!d)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    d->type = type;
    *made = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

static const rule *rule_of(const descriptor *d, cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < RULES; i++)
        if (rules[i].owner == d->type && rules[i].name == name)
            return &rules[i];
    return NULL;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t opaque, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    descriptor *d = opaque;
    const rule *r = d ? rule_of(d, name) : NULL;
    size_t bytes = bytes_of(type);
    attribute *a;

    if (!r || type != r->type || count < r->least || count < 1 || count > r->most || !values)
        return refuse("an attribute that this descriptor does not have, or of another type or count");
    if (d->final || find(d, name))
        return refuse("an attribute that is set twice, or of a descriptor that is finalised");
    a = &d->attributes[d->n_attributes++];
    a->name = name;
    a->count = count;
    for (int64_t i = 0; i < count; i++) {
        memcpy(&a->value.number[i], (const char *)values + (size_t)i * bytes, bytes); /* the rest of it is 0 */
        if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && (!a->value.pointer[i] || !((descriptor *)a->value.pointer[i])->final))
            return refuse("a descriptor that is not finalised");
    }
    return CUDNN_STATUS_SUCCESS;
}

static bool is_whole(const descriptor *d)
{
    for (int i = 0; i < RULES; i++)
        if (rules[i].owner == d->type && rules[i].least > 0 && !find(d, rules[i].name))
            return false;
    return true;
}

/* The engines that the heuristics offer: their choices have what an engine has, the graph and its number. */
static cudnnStatus_t offer(const descriptor *heuristics, int64_t wanted, int64_t *count, descriptor **choices)
{
    *count = double_fails("cudnnBackendGetAttribute of heuristics") ? 0 : ENGINES;
    for (int64_t i = 0; i < *count && i < wanted; i++) {
        choices[i]->attributes[0] = *find(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        choices[i]->attributes[0].name = CUDNN_ATTR_ENGINE_OPERATION_GRAPH;
        choices[i]->attributes[1] = (attribute){.name = CUDNN_ATTR_ENGINE_GLOBAL_INDEX, .count = 1, .value.number[0] = i};
        choices[i]->n_attributes = 2;
        choices[i]->final = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Of a choice: the heuristics' or the caller's. */
static const descriptor *engine_of(const descriptor *choice)
{
    const descriptor *engine = node_of(choice, CUDNN_ATTR_ENGINECFG_ENGINE);

    return engine ? engine : choice;
}

static cudnnStatus_t tell_engine(const descriptor *choice, descriptor *engine)
{
    if (number_of(engine_of(choice), CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == 0 && double_fails("cudnnBackendGetAttribute of the first engine"))
        return CUDNN_STATUS_INTERNAL_ERROR;
    engine->final = true;
    return CUDNN_STATUS_SUCCESS;
}

static uint64_t workspace_bytes(const descriptor *plan)
{
    bool blackwells = number_of(engine_of(node_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)), CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == BLACKWELLS;

    return blackwells ? WORKSPACE_BYTES : double_setting("LOOM_DOUBLE_WORKSPACE", WORKSPACE_BYTES);
}

/* What a caller may choose by number: Blackwell's engine for attention's gradient, where there is one, with the knobs that it has. */
static cudnnStatus_t check_choice(const descriptor *choice)
{
    const attribute *knobs = find(choice, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
    bool right = double_setting("LOOM_DOUBLE_BLACKWELL", 0) && number_of(engine_of(choice), CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == BLACKWELLS && knobs && knobs->count == 2;

    for (int64_t i = 0; right && i < knobs->count; i++) {
        cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)number_of(knobs->value.pointer[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
        int64_t value = number_of(knobs->value.pointer[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
        right = (type == CUDNN_KNOB_TYPE_KERNEL_CFG && value == 31) || (type == CUDNN_KNOB_TYPE_STAGES && value == 2);
    }
    return right ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

static int operands_of(const descriptor *operation, const descriptor **x, const descriptor **y, const descriptor **mask, const descriptor **result);
static cudnnStatus_t check_operation(const descriptor *d);
static cudnnStatus_t check_graph(const descriptor *d);

static cudnnStatus_t check(const descriptor *d)
{
    switch (d->type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return double_fails("cudnnBackendFinalize of a graph") ? CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN : check_graph(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return double_fails("cudnnBackendFinalize of a plan") ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        return check_choice(d);
    default:
        return check_operation(d);
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t opaque)
{
    descriptor *d = opaque;
    cudnnStatus_t status;

    if (d->final || !is_whole(d))
        return refuse("a descriptor that is finalised twice, or without an attribute that it has to have");
    if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && number_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL) && number_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE))
        return refuse("a tensor that is virtual and by value");
    status = check(d);
    d->final = status == CUDNN_STATUS_SUCCESS;
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const opaque, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t *count, void *values)
{
    const descriptor *d = opaque;

    if (name == CUDNN_ATTR_ENGINECFG_ENGINE && d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && d->final)
        return tell_engine(d, *(descriptor **)values);
    if (!d->final || wanted < 1)
        return refuse("an attribute asked of a descriptor that is not finalised");
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return offer(d, wanted, count, values);
    if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE) {
        *count = double_fails("a deterministic engine") ? 1 : 0;
        *(cudnnBackendNumericalNote_t *)values = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
        *count = 1;
        *(int64_t *)values = (int64_t)workspace_bytes(d);
        return CUDNN_STATUS_SUCCESS;
    }
    return refuse("an attribute that cannot be asked for");
}

/* --- tensors ----------------------------------------------------------------------------------------------------------------------------- */

/* Where an operation finds a tensor's elements. */
typedef struct tensor {
    int64_t number, dim[4], stride[4];
    cudnnDataType_t type;
    bool is_virtual, by_value;
    void *at;
} tensor;

static size_t element_bytes(cudnnDataType_t type)
{
    return type == CUDNN_DATA_BFLOAT16 ? 2 : 4; /* what is virtual needs no byte for a truth value */
}

/* Four numbers that a tensor has to have, or it would not be final. */
static void take_four(const descriptor *d, cudnnBackendAttributeName_t name, int64_t *four)
{
    const attribute *a = find(d, name);

    for (int i = 0; a && i < 4; i++)
        four[i] = a->value.number[i];
}

static tensor tensor_of(const descriptor *d)
{
    tensor t = {.number = number_of(d, CUDNN_ATTR_TENSOR_UNIQUE_ID),
                .type = (cudnnDataType_t)number_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE),
                .is_virtual = number_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                .by_value = number_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE)};

    take_four(d, CUDNN_ATTR_TENSOR_DIMENSIONS, t.dim);
    take_four(d, CUDNN_ATTR_TENSOR_STRIDES, t.stride);
    return t;
}

static int64_t extent_of(const tensor *t)
{
    int64_t last = 0;

    for (int i = 0; i < 4; i++)
        last += (t->dim[i] - 1) * t->stride[i];
    return last + 1;
}

/* Dimensions of one are the same everywhere; heads may be fewer, each for a group of the other's. */
static int64_t offset_of(const tensor *t, const int64_t *i, const int64_t *full)
{
    int64_t head = t->dim[1] == 1 ? 0 : i[1] / (full[1] / t->dim[1]);

    return (t->dim[0] == 1 ? 0 : i[0]) * t->stride[0] + head * t->stride[1] + (t->dim[2] == 1 ? 0 : i[2]) * t->stride[2] +
           (t->dim[3] == 1 ? 0 : i[3]) * t->stride[3];
}

static double get(const tensor *t, const int64_t *i, const int64_t *full)
{
    int64_t at = offset_of(t, i, full);

    return t->type == CUDNN_DATA_BFLOAT16 ? loom_f32_from_bf16(((const uint16_t *)t->at)[at]) : ((const float *)t->at)[at];
}

static void put(const tensor *t, const int64_t *i, double value)
{
    int64_t at = offset_of(t, i, t->dim);

    if (t->type == CUDNN_DATA_BFLOAT16)
        ((uint16_t *)t->at)[at] = loom_bf16_from_f32((float)value);
    else
        ((float *)t->at)[at] = (float)value;
}

#define EACH_ELEMENT(i, dim)                                                                                                               \
    for (i[0] = 0; i[0] < (dim)[0]; i[0]++)                                                                                                \
        for (i[1] = 0; i[1] < (dim)[1]; i[1]++)                                                                                            \
            for (i[2] = 0; i[2] < (dim)[2]; i[2]++)                                                                                        \
                for (i[3] = 0; i[3] < (dim)[3]; i[3]++)

/* --- operations -------------------------------------------------------------------------------------------------------------------------- */

/* Returns how many tensors it has; those that are not there are NULL. */
static int operands_of(const descriptor *d, const descriptor **x, const descriptor **y, const descriptor **mask, const descriptor **result)
{
    *y = *mask = NULL;
    switch (d->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        *x = node_of(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        *y = node_of(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        *mask = node_of(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        *result = node_of(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        return 2 + (*y != NULL) + (*mask != NULL);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        *x = node_of(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        *y = node_of(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        *result = node_of(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        return 3;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        *x = node_of(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
        *result = node_of(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        return 2;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        *x = node_of(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        *result = node_of(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        return 2;
    default:
        *x = *result = NULL;
        return 0;
    }
}

static cudnnPointwiseMode_t mode_of(const descriptor *d)
{
    return (cudnnPointwiseMode_t)number_of(node_of(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), CUDNN_ATTR_POINTWISE_MODE);
}

/* Tensors that the mode has, and shapes that fit: equal, or one where the result has more (heads: a divisor). */
static cudnnStatus_t check_pointwise(const descriptor *d, const descriptor *y, const descriptor *mask)
{
    cudnnPointwiseMode_t mode = mode_of(d);
    bool unary = mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG || mode == CUDNN_POINTWISE_GEN_INDEX;

    if (unary != !y || (mode == CUDNN_POINTWISE_BINARY_SELECT) != (mask != NULL))
        return refuse("a pointwise operation with too many tensors, or too few");
    return CUDNN_STATUS_SUCCESS;
}

static bool fits(const tensor *t, const tensor *result)
{
    for (int i = 0; i < 4; i++)
        if (t->dim[i] != result->dim[i] && t->dim[i] != 1)
            return false;
    return true;
}

static cudnnStatus_t check_operation(const descriptor *d)
{
    const descriptor *x, *y, *mask, *result;

    if (operands_of(d, &x, &y, &mask, &result) == 0)
        return CUDNN_STATUS_SUCCESS; /* not an operation */
    const tensor a = tensor_of(x), r = tensor_of(result);
    if (d->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        const tensor b = tensor_of(y);
        bool batches = a.dim[0] == b.dim[0] && a.dim[0] == r.dim[0] && a.dim[1] == r.dim[1] && a.dim[1] % b.dim[1] == 0;
        if (!batches || a.dim[3] != b.dim[2] || r.dim[2] != a.dim[2] || r.dim[3] != b.dim[3])
            return refuse("a product of matrices that do not fit together");
    }
    if (d->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR && (extent_of(&a) != extent_of(&r)))
        return refuse("a reshape to another size");
    if (d->type != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
        return CUDNN_STATUS_SUCCESS;
    const tensor b = y ? tensor_of(y) : a;
    if (!fits(&a, &r) || !fits(&b, &r))
        return refuse("a pointwise operation on shapes that do not fit");
    return check_pointwise(d, y, mask);
}

/* Operations come after those that make what they read. */
static cudnnStatus_t check_graph(const descriptor *graph)
{
    const attribute *operations = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    bool made[SLOTS_MAX] = {false};

    for (int64_t i = 0; i < operations->count; i++) {
        const descriptor *t[4];
        operands_of(operations->value.pointer[i], &t[0], &t[1], &t[2], &t[3]);
        for (int k = 0; k < 4; k++) {
            if (!t[k])
                continue;
            const tensor x = tensor_of(t[k]);
            if (x.number < 0 || x.number >= SLOTS_MAX)
                return refuse("a tensor's number beyond what the double keeps");
            if (k < 3 && x.is_virtual && !made[x.number])
                return refuse("an operation that reads what no operation before it made");
            if (k == 3 && x.by_value)
                return refuse("an operation that writes what is by value");
            if (k == 3)
                made[x.number] = true;
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

/* --- executing: in stream order --------------------------------------------------------------------------------------------------------- */

/* A plan's graph with its tensors' places; scalars by value are copies. */
typedef struct work {
    const attribute *operations;
    void *at[SLOTS_MAX];
    float scalar[SLOTS_MAX];
    bool own[SLOTS_MAX]; /* memory of a virtual tensor */
} work;

static tensor place(work *w, const descriptor *d)
{
    tensor t = tensor_of(d);

    if (t.is_virtual && !w->at[t.number]) {
        w->at[t.number] = malloc((size_t)extent_of(&t) * element_bytes(t.type));
        w->own[t.number] = true;
    }
    t.at = t.by_value ? &w->scalar[t.number] : w->at[t.number];
    if (!t.at)
        abort(); /* no memory, and nobody to tell */
    return t;
}

static double pointwise_of(cudnnPointwiseMode_t mode, double x, double y, double mask)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + y;
    case CUDNN_POINTWISE_SUB:
        return x - y;
    case CUDNN_POINTWISE_MUL:
        return x * y;
    case CUDNN_POINTWISE_DIV:
        return x / y;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= y;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return mask != 0 ? x : y;
    default: /* GEN_INDEX is not of values, and there are no others here */
        return NAN;
    }
}

static void run_pointwise(const descriptor *d, const tensor *x, const tensor *y, const tensor *mask, const tensor *result)
{
    cudnnPointwiseMode_t mode = mode_of(d);
    int64_t axis = number_of(node_of(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), CUDNN_ATTR_POINTWISE_AXIS), i[4];

    EACH_ELEMENT(i, result->dim)
    put(result, i,
        mode == CUDNN_POINTWISE_GEN_INDEX
            ? (double)i[axis]
            : pointwise_of(mode, get(x, i, result->dim), y ? get(y, i, result->dim) : 0, mask ? get(mask, i, result->dim) : 0));
}

static void run_matmul(const tensor *x, const tensor *y, const tensor *result)
{
    int64_t i[4];

    EACH_ELEMENT(i, result->dim)
    {
        double sum = 0;
        for (int64_t k = 0; k < x->dim[3]; k++)
            sum += get(x, (int64_t[]){i[0], i[1], i[2], k}, x->dim) * get(y, (int64_t[]){i[0], i[1], k, i[3]}, x->dim);
        put(result, i, sum);
    }
}

/* Over what has one element in the result, or fewer heads: a group of x's. */
static void run_reduction(const descriptor *d, const tensor *x, const tensor *result)
{
    bool largest = number_of(node_of(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    int64_t i[4], r[4];

    EACH_ELEMENT(r, result->dim)
    {
        const int64_t group[4] = {x->dim[0] / result->dim[0], x->dim[1] / result->dim[1], x->dim[2] / result->dim[2], x->dim[3] / result->dim[3]};
        double sum = largest ? -INFINITY : 0;
        EACH_ELEMENT(i, group)
        {
            double value = get(x, (int64_t[]){r[0] * group[0] + i[0], r[1] * group[1] + i[1], r[2] * group[2] + i[2], r[3] * group[3] + i[3]}, x->dim);
            sum = largest ? fmax(sum, value) : sum + value;
        }
        put(result, r, sum);
    }
}

/* The same memory in another order, converted where the types differ. */
static void run_reshape(const tensor *x, const tensor *result)
{
    const int64_t count = extent_of(x), flat[4] = {1, 1, 1, count};
    tensor from = *x, to = *result;

    memcpy(from.dim, flat, sizeof flat);
    memcpy(to.dim, flat, sizeof flat);
    from.stride[3] = to.stride[3] = 1;
    for (int64_t i[4] = {0}; i[3] < count; i[3]++)
        put(&to, i, get(&from, i, flat));
}

static void run_operation(work *w, const descriptor *d)
{
    const descriptor *x, *y, *mask, *result;

    operands_of(d, &x, &y, &mask, &result);
    const tensor a = place(w, x), r = place(w, result), b = y ? place(w, y) : a, m = mask ? place(w, mask) : a;
    if (d->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
        run_pointwise(d, &a, y ? &b : NULL, mask ? &m : NULL, &r);
    else if (d->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
        run_matmul(&a, &b, &r);
    else if (d->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
        run_reduction(d, &a, &r);
    else
        run_reshape(&a, &r);
}

static void run(void *context)
{
    work *w = context;

    for (int64_t i = 0; i < w->operations->count; i++)
        run_operation(w, w->operations->value.pointer[i]);
}

static void release(void *context)
{
    work *w = context;

    for (int i = 0; i < SLOTS_MAX; i++)
        if (w->own[i])
            free(w->at[i]);
    free(w);
}

/* Whether the pack has memory for a tensor of the graph. */
static bool is_given(const work *w, const descriptor *d)
{
    const tensor t = tensor_of(d);

    if (t.is_virtual || t.by_value)
        return t.is_virtual || w->own[t.number]; /* a mark of a scalar that was given */
    return w->at[t.number] && (uintptr_t)w->at[t.number] % (uintptr_t)number_of(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) == 0 &&
           double_is_device(w->at[t.number], (size_t)extent_of(&t) * element_bytes(t.type));
}

static bool take_pack(work *w, const descriptor *pack)
{
    const attribute *numbers = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS), *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);

    if (numbers->count != pointers->count)
        return false;
    for (int64_t i = 0; i < numbers->count; i++)
        w->at[numbers->value.number[i]] = pointers->value.pointer[i];
    for (int64_t i = 0; i < w->operations->count; i++) {
        const descriptor *t[4];
        operands_of(w->operations->value.pointer[i], &t[0], &t[1], &t[2], &t[3]);
        for (int k = 0; k < 4; k++) {
            int64_t number = t[k] ? number_of(t[k], CUDNN_ATTR_TENSOR_UNIQUE_ID) : 0;
            if (t[k] && number_of(t[k], CUDNN_ATTR_TENSOR_IS_BY_VALUE) && w->at[number]) { /* read now: it is the host's */
                memcpy(&w->scalar[number], w->at[number], sizeof(float));
                w->own[number] = true;
            }
            if (t[k] && !is_given(w, t[k]))
                return false;
        }
    }
    return true;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    const descriptor *p = plan, *v = pack;
    work *w;

    if (double_fails(__func__))
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (!p->final || !v->final || !double_is_device(node_of(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE), workspace_bytes(p)))
        return refuse("a plan or a pack that is not finalised, or a workspace that is not there");
    w = calloc(1, sizeof *w);
    if (!w)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    w->operations = find(node_of(engine_of(node_of(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)), CUDNN_ATTR_ENGINE_OPERATION_GRAPH), CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (!take_pack(w, v)) {
        free(w);
        return refuse("a tensor whose memory is not given, not the device's, or less aligned than it was said to be");
    }
    for (int i = 0; i < SLOTS_MAX; i++)
        w->own[i] = false; /* of virtual tensors only, from here on */
    return loom_shim_enqueue(handle->stream, run, w, release) ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

/* --- instead of the dynamic linker (kernels/cuda/cudnn_load.c) ------------------------------------------------------------------------------ */

bool loom_cudnn_load(loom_cudnn_library *cudnn, char *why, size_t bytes)
{
    if (double_fails("libcudnn.so.9")) {
        snprintf(why, bytes, "libcudnn.so.9: the double says that it is not there");
        return false;
    }
#define LOOM_CUDNN_TAKE(name) cudnn->name = cudnn##name;
    LOOM_CUDNN_FUNCTIONS(LOOM_CUDNN_TAKE)
#undef LOOM_CUDNN_TAKE
    return true;
}
