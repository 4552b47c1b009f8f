/* Matrix products by oneDNN. A primitive takes 0.1 to 3 ms to make and microseconds to find, so each shape's is kept for good; shapes of a
 * training step are few. Its scratch memory is our workspace, so the ledger sees it. */
#include "kernels/cpu/gemm_onednn.h"

#include "core/try.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    matmul **slots; /* open addressing, a power of two, at most half full */
    size_t capacity, count;
} onednn;

static loom_status onednn_fail(dnnl_status_t code, const char *what, const matmul_shape *s)
{
    if (code == dnnl_out_of_memory)
        return loom_fail(LOOM_E_MEMORY, "oneDNN: no memory to %s", what);
    return loom_fail(LOOM_E_UNSUPPORTED,
                     "oneDNN: cannot %s (its status %d) for m=%lld n=%lld k=%lld batch=%lld; RANKLOOM_GEMM=own does without it", what,
                     (int)code, s ? (long long)s->m : 0, s ? (long long)s->n : 0, s ? (long long)s->k : 0, s ? (long long)s->batch : 0);
}

static void matmul_free(matmul *m)
{
    dnnl_primitive_destroy(m->primitive);
    dnnl_memory_destroy(m->a);
    dnnl_memory_destroy(m->b);
    dnnl_memory_destroy(m->bias);
    dnnl_memory_destroy(m->c);
    dnnl_memory_destroy(m->scratchpad);
    free(m);
}

static void onednn_close(void *state)
{
    onednn *o = state;

    if (!o)
        return;
    for (size_t i = 0; i < o->capacity; i++)
        if (o->slots[i])
            matmul_free(o->slots[i]);
    free(o->slots);
    dnnl_stream_destroy(o->stream);
    dnnl_engine_destroy(o->engine);
    free(o);
}

static loom_status onednn_open(void **state)
{
    loom_status status;
    dnnl_status_t code;
    onednn *o = calloc(1, sizeof *o);

    if (!o)
        return loom_fail(LOOM_E_MEMORY, "oneDNN: no memory for its handle");
    if ((code = dnnl_engine_create(&o->engine, dnnl_cpu, 0)) != dnnl_success) {
        status = onednn_fail(code, "open its CPU engine", NULL);
        goto fail;
    }
    if ((code = dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags)) != dnnl_success) {
        status = onednn_fail(code, "open a stream", NULL);
        goto fail;
    }
    *state = o;
    return LOOM_OK;
fail:
    onednn_close(o);
    return status;
}

static matmul_shape shape_of(const loom_gemm_args *a, int threads)
{
    int64_t lda = a->lda ? a->lda : a->transpose_a ? a->m : a->k, ldb = a->ldb ? a->ldb : a->transpose_b ? a->k : a->n;

    return (matmul_shape){
        .m = a->m,
        .n = a->n,
        .k = a->k,
        .batch = a->batch ? a->batch : 1,
        .a_row = a->transpose_a ? 1 : lda,
        .a_col = a->transpose_a ? lda : 1,
        .b_row = a->transpose_b ? 1 : ldb,
        .b_col = a->transpose_b ? ldb : 1,
        .c_row = a->ldc ? a->ldc : a->n,
        .stride_a = a->stride_a,
        .stride_b = a->stride_b,
        .stride_c = a->stride_c,
        .bias = a->bias_N != NULL,
        .accumulate = a->accumulate,
        .threads = threads,
    };
}

static size_t hash_of(const matmul_shape *shape)
{
    const int64_t *values = (const int64_t *)shape;
    uint64_t hash = 0;

    for (size_t i = 0; i < sizeof *shape / sizeof *values; i++)
        hash = (hash ^ (uint64_t)values[i]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
    return (size_t)hash;
}

/* Where shape is, or would be. */
static matmul **slot_of(const onednn *o, const matmul_shape *shape)
{
    size_t i = hash_of(shape) & (o->capacity - 1);

    while (o->slots[i] && memcmp(&o->slots[i]->shape, shape, sizeof *shape) != 0)
        i = (i + 1) & (o->capacity - 1);
    return &o->slots[i];
}

static loom_status grow(onednn *o)
{
    onednn larger = {.capacity = o->capacity ? 2 * o->capacity : 64};

    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return loom_fail(LOOM_E_MEMORY, "oneDNN: no memory for a table of %zu shapes", larger.capacity);
    for (size_t i = 0; i < o->capacity; i++)
        if (o->slots[i])
            *slot_of(&larger, &o->slots[i]->shape) = o->slots[i];
    free(o->slots);
    o->slots = larger.slots;
    o->capacity = larger.capacity;
    return LOOM_OK;
}

static loom_status find_or_make(onednn *o, const matmul_shape *shape, matmul **found)
{
    loom_status status = 2 * (o->count + 1) > o->capacity ? grow(o) : LOOM_OK;

    if (status < 0)
        return status;
    matmul **slot = slot_of(o, shape);

    if (!*slot) {
        matmul *made = calloc(1, sizeof *made);
        if (!made)
            return loom_fail(LOOM_E_MEMORY, "oneDNN: no memory for a product");
        made->shape = *shape;
        dnnl_status_t code = loom_matmul_make(o->engine, made);
        if (code != dnnl_success) {
            matmul_free(made);
            return onednn_fail(code, "make a product", shape);
        }
        *slot = made;
        o->count++;
    }
    *found = *slot;
    return LOOM_OK;
}

static loom_status execute(loom_cpu *cpu, onednn *o, matmul *m, const loom_gemm_args *a)
{
    void *scratchpad;
    dnnl_status_t code;
    loom_status status = loom_cpu_workspace(cpu, m->scratchpad_bytes, &scratchpad);

    if (status < 0)
        return status;
    dnnl_memory_set_data_handle(m->a, (void *)a->a_MK);
    dnnl_memory_set_data_handle(m->b, (void *)a->b_KN);
    dnnl_memory_set_data_handle(m->c, a->c_MN);
    dnnl_memory_set_data_handle(m->scratchpad, scratchpad);
    if (m->bias)
        dnnl_memory_set_data_handle(m->bias, (void *)a->bias_N);
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, m->a},     {DNNL_ARG_WEIGHTS, m->b}, {DNNL_ARG_DST, m->c}, {DNNL_ARG_SCRATCHPAD, m->scratchpad},
        {DNNL_ARG_BIAS, m->bias},
    };

    code = dnnl_primitive_execute(m->primitive, o->stream, m->bias ? 5 : 4, arguments);
    if (code == dnnl_success)
        code = dnnl_stream_wait(o->stream);
    return code == dnnl_success ? LOOM_OK : onednn_fail(code, "multiply", &m->shape);
}

static loom_status onednn_run(loom_cpu *cpu, void *state, const loom_gemm_args *a)
{
    const matmul_shape shape = shape_of(a, cpu->threads);
    loom_status status;
    matmul *m = NULL;

    if (a->m == 0 || a->n == 0 || a->k == 0)
        return cpu->ops->gemm(cpu, a); /* it refuses empty sums */
    int before = loom_parallel_team(cpu->threads);

    status = find_or_make(state, &shape, &m);
    if (status == LOOM_OK)
        status = execute(cpu, state, m, a);
    loom_parallel_team(before);
    return status;
}

const loom_gemm_library loom_gemm_onednn = {"onednn", onednn_open, onednn_close, onednn_run};
