/* The graphs are the ones that cuDNN's attention engines look for, node by node; NVIDIA's own front end (cudnn-frontend) builds the same of them for cuDNN
 * up to 9.20. The single operations OPERATION_SDPA_FWD and _BWD have no causal mask before 9.21, so they would not do.
 *
 * Dimensions are [B, heads, S, K] whatever the memory's order; k goes in transposed, [B, heads, K, S], in backward v too. What lies between two operations
 * is virtual: it has a shape and no memory. */
#include "kernels/cuda/cudnn_graph.h"

#include <string.h>

typedef cudnnBackendDescriptor_t node;

typedef struct extent {
    int64_t dim[4], stride[4];
} extent;

/* A graph in the making. After the first failure every call does nothing. */
typedef struct builder {
    const loom_cudnn_library *cudnn;
    loom_cudnn_plan *plan;
    cudnnStatus_t status;
    int64_t next_number; /* of virtual tensors */
    node operations[32];
    int n_operations;
} builder;

static void check(builder *b, cudnnStatus_t status)
{
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = status;
}

static node make(builder *b, cudnnBackendDescriptorType_t type)
{
    loom_cudnn_plan *p = b->plan;

    if (b->status == CUDNN_STATUS_SUCCESS && p->n_made == LOOM_CUDNN_DESCRIPTORS_MAX)
        b->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (b->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    b->status = b->cudnn->BackendCreateDescriptor(type, &p->made[p->n_made]);
    return b->status == CUDNN_STATUS_SUCCESS ? p->made[p->n_made++] : NULL;
}

static void set(builder *b, node d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = b->cudnn->BackendSetAttribute(d, name, type, count, values);
}

static void set_node(builder *b, node d, cudnnBackendAttributeName_t name, node value)
{
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(builder *b, node d)
{
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = b->cudnn->BackendFinalize(d);
}

/* --- tensors --- */

static extent packed(int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    return (extent){{d0, d1, d2, d3}, {d1 * d2 * d3, d2 * d3, d3, 1}};
}

/* [B, heads, S, K] of memory [B, S, heads, K]. */
static extent bhsk(const loom_cudnn_shape *s, int64_t heads, int64_t seq)
{
    return (extent){{s->batch, heads, seq, s->head_dim}, {seq * heads * s->head_dim, s->head_dim, heads * s->head_dim, 1}};
}

static extent transposed(extent e)
{
    return (extent){{e.dim[0], e.dim[1], e.dim[3], e.dim[2]}, {e.stride[0], e.stride[1], e.stride[3], e.stride[2]}};
}

static extent scores(const loom_cudnn_shape *s)
{
    return packed(s->batch, s->heads, s->q_seq, s->k_seq);
}

static extent rows(const loom_cudnn_shape *s)
{
    return packed(s->batch, s->heads, s->q_seq, 1);
}

static node tensor_of(builder *b, int64_t number, cudnnDataType_t type, extent e, bool is_virtual, bool by_value)
{
    const int64_t alignment = 16;
    node t = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);

    set(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &number);
    set(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, e.dim);
    set(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, e.stride);
    set(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(b, t);
    return t;
}

static node bf16(builder *b, enum loom_cudnn_tensor number, extent e)
{
    return tensor_of(b, number, CUDNN_DATA_BFLOAT16, e, false, false);
}

static node f32(builder *b, enum loom_cudnn_tensor number, extent e)
{
    return tensor_of(b, number, CUDNN_DATA_FLOAT, e, false, false);
}

static node scalar(builder *b, enum loom_cudnn_tensor number)
{
    return tensor_of(b, number, CUDNN_DATA_FLOAT, packed(1, 1, 1, 1), false, true);
}

static node between(builder *b, cudnnDataType_t type, extent e)
{
    return tensor_of(b, b->next_number++, type, e, true, false);
}

/* --- operations; each returns what it writes --- */

static node add_operation(builder *b, node operation, node result)
{
    finish(b, operation);
    if (b->n_operations == (int)(sizeof b->operations / sizeof *b->operations))
        check(b, CUDNN_STATUS_INTERNAL_ERROR);
    else
        b->operations[b->n_operations++] = operation;
    return result;
}

static node multiply(builder *b, node x, node y, node product)
{
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    node how = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);

    set(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    finish(b, how);
    node operation = make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_node(b, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_node(b, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_node(b, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, product);
    set_node(b, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    return add_operation(b, operation, product);
}

static node pointwise_how(builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t arithmetic, int64_t axis)
{
    node how = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);

    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(b, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(b, how);
    return how;
}

/* y and mask NULL: the mode has none. */
static node pointwise(builder *b, node how, node x, node y, node mask, node result)
{
    node operation = make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

    set_node(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_node(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (y)
        set_node(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y);
    if (mask)
        set_node(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask);
    set_node(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
    return add_operation(b, operation, result);
}

static node compute(builder *b, cudnnPointwiseMode_t mode, node x, node y, node result)
{
    return pointwise(b, pointwise_how(b, mode, CUDNN_DATA_FLOAT, 0), x, y, NULL, result);
}

static node reduce(builder *b, cudnnReduceTensorOp_t how_to, node x, node result)
{
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    node how = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);

    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how_to);
    set(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    finish(b, how);
    node operation = make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_node(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_node(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result);
    set_node(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    return add_operation(b, operation, result);
}

/* The same memory seen as another shape. */
static node reshape(builder *b, node x, node result)
{
    node operation = make(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_node(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_node(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result);
    return add_operation(b, operation, result);
}

/* --- attention --- */

/* What a query does not see becomes -inf. */
static node hide_later_keys(builder *b, const loom_cudnn_shape *s, node score)
{
    if (!s->causal)
        return score;
    node query = pointwise(b, pointwise_how(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2), score, NULL, NULL, between(b, CUDNN_DATA_INT32, scores(s)));
    node key = pointwise(b, pointwise_how(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3), score, NULL, NULL, between(b, CUDNN_DATA_INT32, scores(s)));
    node seen = pointwise(b, pointwise_how(b, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0), query, key, NULL, between(b, CUDNN_DATA_BOOLEAN, scores(s)));

    return pointwise(b, pointwise_how(b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0), score, scalar(b, LOOM_CUDNN_HIDDEN), seen,
                     between(b, CUDNN_DATA_FLOAT, scores(s)));
}

static node scaled_scores(builder *b, const loom_cudnn_shape *s, node q, node k_transposed, node scale)
{
    node score = multiply(b, q, k_transposed, between(b, CUDNN_DATA_FLOAT, scores(s)));

    return compute(b, CUDNN_POINTWISE_MUL, score, scale, between(b, CUDNN_DATA_FLOAT, scores(s)));
}

/* o = softmax(scale q k') v, lse = largest score + log(sum of exp(score - largest)). */
static void forward(builder *b, const loom_cudnn_shape *s)
{
    node q = bf16(b, LOOM_CUDNN_Q, bhsk(s, s->heads, s->q_seq)), k = bf16(b, LOOM_CUDNN_K, transposed(bhsk(s, s->kv_heads, s->k_seq)));
    node v = bf16(b, LOOM_CUDNN_V, bhsk(s, s->kv_heads, s->k_seq)), scale = scalar(b, LOOM_CUDNN_SCALE);
    node score = hide_later_keys(b, s, scaled_scores(b, s, q, k, scale));
    node largest = reduce(b, CUDNN_REDUCE_TENSOR_MAX, score, between(b, CUDNN_DATA_FLOAT, rows(s)));
    node below = compute(b, CUDNN_POINTWISE_SUB, score, largest, between(b, CUDNN_DATA_FLOAT, scores(s)));
    node power = compute(b, CUDNN_POINTWISE_EXP, below, NULL, between(b, CUDNN_DATA_FLOAT, scores(s)));
    node sum = reduce(b, CUDNN_REDUCE_TENSOR_ADD, power, between(b, CUDNN_DATA_FLOAT, rows(s)));
    node log = compute(b, CUDNN_POINTWISE_LOG, sum, NULL, between(b, CUDNN_DATA_FLOAT, rows(s)));

    compute(b, CUDNN_POINTWISE_ADD, largest, log, f32(b, LOOM_CUDNN_LSE, rows(s)));
    node p = compute(b, CUDNN_POINTWISE_DIV, power, sum, between(b, CUDNN_DATA_BFLOAT16, scores(s)));
    multiply(b, p, v, bf16(b, LOOM_CUDNN_O, bhsk(s, s->heads, s->q_seq)));
}

/* Gradient of k or v from that of its products with each query head: x' y, added over the query heads that share one. */
static void add_over_group(builder *b, const loom_cudnn_shape *s, node x_transposed, node y, enum loom_cudnn_tensor to)
{
    node result = bf16(b, to, bhsk(s, s->kv_heads, s->k_seq));

    if (s->heads == s->kv_heads) {
        multiply(b, x_transposed, y, result);
        return;
    }
    node each = multiply(b, x_transposed, y, between(b, CUDNN_DATA_BFLOAT16, packed(s->batch, s->heads, s->k_seq, s->head_dim)));
    reduce(b, CUDNN_REDUCE_TENSOR_ADD, each, result);
}

/* With delta = sum of do o over a row and p = exp(score - lse): dv = p' do, ds = p (do v' - delta) scale, dk = ds' q, dq = ds k. dq is a product of its own
 * rather than sums that blocks add to in any order: so its bits are the same in every run. */
static void backward(builder *b, const loom_cudnn_shape *s)
{
    const extent of_q = bhsk(s, s->heads, s->q_seq), of_k = bhsk(s, s->kv_heads, s->k_seq);
    node q = bf16(b, LOOM_CUDNN_Q, of_q), k = bf16(b, LOOM_CUDNN_K, transposed(of_k)), v = bf16(b, LOOM_CUDNN_V, transposed(of_k));
    node o = bf16(b, LOOM_CUDNN_O, of_q), d_o = bf16(b, LOOM_CUDNN_DO, of_q), lse = f32(b, LOOM_CUDNN_LSE, rows(s));
    node scale = scalar(b, LOOM_CUDNN_SCALE);

    node products = compute(b, CUDNN_POINTWISE_MUL, d_o, o, between(b, CUDNN_DATA_FLOAT, packed(s->batch, s->heads, s->q_seq, s->head_dim)));
    node sums = reduce(b, CUDNN_REDUCE_TENSOR_ADD, products, between(b, CUDNN_DATA_FLOAT, rows(s)));
    node delta = compute(b, CUDNN_POINTWISE_MUL, sums, scalar(b, LOOM_CUDNN_ONE), f32(b, LOOM_CUDNN_DELTA, rows(s)));

    node below = compute(b, CUDNN_POINTWISE_SUB, scaled_scores(b, s, q, k, scale), lse, between(b, CUDNN_DATA_FLOAT, scores(s)));
    node p = compute(b, CUDNN_POINTWISE_EXP, hide_later_keys(b, s, below), NULL, between(b, CUDNN_DATA_FLOAT, scores(s)));
    add_over_group(b, s, reshape(b, p, between(b, CUDNN_DATA_BFLOAT16, transposed(scores(s)))), d_o, LOOM_CUDNN_DV);

    node dp = multiply(b, d_o, v, between(b, CUDNN_DATA_FLOAT, scores(s)));
    node off = compute(b, CUDNN_POINTWISE_SUB, dp, delta, between(b, CUDNN_DATA_FLOAT, scores(s)));
    node slope = compute(b, CUDNN_POINTWISE_MUL, off, p, between(b, CUDNN_DATA_FLOAT, scores(s)));
    node ds = compute(b, CUDNN_POINTWISE_MUL, slope, scale, between(b, CUDNN_DATA_FLOAT, scores(s)));
    add_over_group(b, s, reshape(b, ds, between(b, CUDNN_DATA_BFLOAT16, transposed(scores(s)))), q, LOOM_CUDNN_DK);
    multiply(b, ds, reshape(b, k, between(b, CUDNN_DATA_BFLOAT16, of_k)), bf16(b, LOOM_CUDNN_DQ, of_q));
}

/* --- the plan --- */

static node graph_of(builder *b, cudnnHandle_t handle)
{
    node graph = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->n_operations, b->operations);
    finish(b, graph);
    return graph;
}

/* Whether the engine's sums have one order, as far as it tells. */
static bool is_deterministic(builder *b, node config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    node engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);

    if (b->status != CUDNN_STATUS_SUCCESS ||
        b->cudnn->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) != CUDNN_STATUS_SUCCESS ||
        b->cudnn->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) !=
            CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return false;
    return true;
}

/* The plan of this choice of an engine; false: it does not come about after all, or wants too much, and the next may. */
static bool plan_with(builder *b, cudnnHandle_t handle, node config)
{
    loom_cudnn_plan *p = b->plan;
    node plan = make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t count;

    set(b, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_node(b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (b->status != CUDNN_STATUS_SUCCESS || b->cudnn->BackendFinalize(plan) != CUDNN_STATUS_SUCCESS)
        return false;
    if (b->cudnn->BackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &p->workspace_bytes) != CUDNN_STATUS_SUCCESS ||
        p->workspace_bytes > p->workspace_max)
        return false;
    p->execution = plan;
    return true;
}

/* --- an engine that the heuristics do not offer --- */

typedef struct knob {
    cudnnBackendKnobType_t type;
    int64_t value;
} knob;

/* The gradient on CC 10.0 and 10.3 with sums in a fixed order, whose workspace does not grow with the square of the length, as that of the engine that the heuristics
 * offer there does. NVIDIA's front end names it in the same way. cuDNN has it from 9.18 on, its knobs have other names from 9.23 on, and for other devices it refuses it. */
enum { BLACKWELL_GRADIENT = 5, BLACKWELL_FROM = 91800, BLACKWELL_RENAMED = 92300, KNOBS_MAX = 6 };
static const knob blackwell_knobs[] = {{CUDNN_KNOB_TYPE_KERNEL_CFG, 31}, {CUDNN_KNOB_TYPE_STAGES, 2}};
static const knob renamed_knobs[] = {{CUDNN_KNOB_TYPE_TILE_M, 3},   {CUDNN_KNOB_TYPE_TILE_N, 2},     {CUDNN_KNOB_TYPE_KERNEL_CFG, 2},
                                     {CUDNN_KNOB_TYPE_STREAM_K, 0}, {CUDNN_KNOB_TYPE_TILE_CGA_M, 0}, {CUDNN_KNOB_TYPE_STAGES, 2}};

static node choice_of(builder *b, knob k)
{
    node choice = make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);

    set(b, choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &k.type);
    set(b, choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &k.value);
    finish(b, choice);
    return choice;
}

static node config_of(builder *b, node graph, int64_t number, const knob *knobs, int count)
{
    node engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR), config = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), choices[KNOBS_MAX];

    set_node(b, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    set(b, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &number);
    finish(b, engine);
    for (int i = 0; i < count; i++)
        choices[i] = choice_of(b, knobs[i]);
    set_node(b, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    set(b, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, choices);
    finish(b, config);
    return config;
}

/* The builder is a copy: what fails here is not the graph's failure. */
static bool plan_with_blackwells(builder b, cudnnHandle_t handle, node graph)
{
    size_t version = b.cudnn->GetVersion();
    bool renamed = version >= BLACKWELL_RENAMED;
    node config;

    if (!b.plan->shape.backward || version < BLACKWELL_FROM)
        return false;
    config = renamed ? config_of(&b, graph, BLACKWELL_GRADIENT, renamed_knobs, 6) : config_of(&b, graph, BLACKWELL_GRADIENT, blackwell_knobs, 2);
    return is_deterministic(&b, config) && plan_with(&b, handle, config);
}

/* --- choosing --- */

/* The first of what the heuristics offer that is deterministic and comes about within the workspace. None: the plan stays without an execution. */
static void choose(builder *b, cudnnHandle_t handle, node graph)
{
    enum { OFFERS = 8 };
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    node heuristics, offered[OFFERS];
    int64_t count = 0;

    if (plan_with_blackwells(*b, handle, graph))
        return;
    heuristics = make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_node(b, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    for (int i = 0; i < OFFERS; i++)
        offered[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (b->status != CUDNN_STATUS_SUCCESS || b->cudnn->BackendFinalize(heuristics) != CUDNN_STATUS_SUCCESS)
        return; /* it says so where no engine takes the graph */
    if (b->cudnn->BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, OFFERS, &count, offered) !=
        CUDNN_STATUS_SUCCESS)
        return;
    for (int64_t i = 0; i < count && i < OFFERS && b->status == CUDNN_STATUS_SUCCESS; i++) /* count is what there is, beyond what was asked for, too */
        if (is_deterministic(b, offered[i]) && plan_with(b, handle, offered[i]))
            return;
}

cudnnStatus_t loom_cudnn_plan_make(const loom_cudnn_library *cudnn, cudnnHandle_t handle, loom_cudnn_plan *plan)
{
    builder b = {.cudnn = cudnn, .plan = plan, .next_number = LOOM_CUDNN_TENSORS};

    if (plan->shape.backward)
        backward(&b, &plan->shape);
    else
        forward(&b, &plan->shape);
    choose(&b, handle, graph_of(&b, handle));
    return CUDNN_STATUS_CATEGORY(b.status) == CUDNN_STATUS_NOT_SUPPORTED ? CUDNN_STATUS_SUCCESS : b.status; /* this version has no engine for such a graph */
}

void loom_cudnn_plan_close(const loom_cudnn_library *cudnn, loom_cudnn_plan *plan)
{
    while (plan->n_made > 0)
        cudnn->BackendDestroyDescriptor(plan->made[--plan->n_made]);
    plan->execution = NULL;
}
