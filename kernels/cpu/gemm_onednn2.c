/* A product's primitive in the C interface of oneDNN 2.x: operation descriptors, memory descriptors as plain structs. */
#include "kernels/cpu/gemm_onednn.h"

#include <string.h>

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        if ((status = (call)) != dnnl_success)                                                                                             \
            goto done;                                                                                                                     \
    } while (0)

/* [batch, rows, cols]; a batch of one has two dimensions: it takes the shorter way through the library. */
static dnnl_status_t describe(dnnl_memory_desc_t *md, const matmul_shape *s, int64_t rows, int64_t cols, int64_t stride, int64_t row,
                              int64_t col)
{
    const dnnl_dim_t batch = stride == 0 && s->batch > 1 ? 1 : s->batch; /* one matrix for all: broadcast */
    const dnnl_dims_t dims = {batch, rows, cols}, strides = {stride ? stride : rows * cols, row, col};
    int skip = s->batch == 1;

    return dnnl_memory_desc_init_by_strides(md, 3 - skip, dims + skip, dnnl_f32, strides + skip);
}

static dnnl_status_t make_attributes(const matmul_shape *s, dnnl_primitive_attr_t attributes)
{
    dnnl_post_ops_t post = NULL;
    dnnl_status_t status;

    TRY(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
    if (s->accumulate) {
        TRY(dnnl_post_ops_create(&post));
        TRY(dnnl_post_ops_append_sum(post, 1.0f));
        TRY(dnnl_primitive_attr_set_post_ops(attributes, post));
    }
done:
    dnnl_post_ops_destroy(post);
    return status;
}

/* The library offers implementations, its own favourite ("brg:…") first. Its classic packing GEMM ("gemm:jit") is up to 8 % faster where B
 * is stored as it is read (dx = dy W, dW = dy' x) and up to 14 % slower where B is transposed (y = x W'): each gets the better one. */
static dnnl_status_t choose(dnnl_primitive_desc_t *description, const dnnl_matmul_desc_t *operation, dnnl_primitive_attr_t attributes,
                            dnnl_engine_t engine, bool packing)
{
    dnnl_primitive_desc_iterator_t iterator = NULL;
    const char *name;
    dnnl_status_t status;

    TRY(dnnl_primitive_desc_create(description, operation, attributes, engine, NULL));
    if (!packing)
        return dnnl_success;
    TRY(dnnl_primitive_desc_iterator_create(&iterator, operation, attributes, engine, NULL));
    for (dnnl_status_t more = dnnl_success; more == dnnl_success; more = dnnl_primitive_desc_iterator_next(iterator)) {
        dnnl_primitive_desc_t offered = dnnl_primitive_desc_iterator_fetch(iterator);

        if (dnnl_primitive_desc_query(offered, dnnl_query_impl_info_str, 0, &name) == dnnl_success && strncmp(name, "gemm:jit", 8) == 0) {
            dnnl_primitive_desc_destroy(*description);
            *description = offered;
            break;
        }
        dnnl_primitive_desc_destroy(offered);
    }
done:
    dnnl_primitive_desc_iterator_destroy(iterator);
    return status;
}

static dnnl_status_t make_memory(dnnl_memory_t *memory, const dnnl_memory_desc_t *md, dnnl_engine_t engine)
{
    return dnnl_memory_create(memory, md, engine, DNNL_MEMORY_NONE);
}

dnnl_status_t loom_matmul_make(dnnl_engine_t engine, matmul *made)
{
    const matmul_shape *s = &made->shape;
    const dnnl_dims_t bias_dims = {1, 1, s->n};
    dnnl_memory_desc_t a, b, c, bias;
    dnnl_matmul_desc_t operation;
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_status_t status;

    TRY(describe(&a, s, s->m, s->k, s->stride_a, s->a_row, s->a_col));
    TRY(describe(&b, s, s->k, s->n, s->stride_b, s->b_row, s->b_col));
    TRY(describe(&c, s, s->m, s->n, s->stride_c, s->c_row, 1));
    TRY(dnnl_memory_desc_init_by_strides(&bias, s->batch == 1 ? 2 : 3, bias_dims + (s->batch == 1), dnnl_f32, NULL));
    TRY(dnnl_primitive_attr_create(&attributes));
    TRY(make_attributes(s, attributes));
    TRY(dnnl_matmul_desc_init(&operation, &a, &b, s->bias ? &bias : NULL, &c));
    TRY(choose(&description, &operation, attributes, engine, loom_matmul_prefers_packing(s)));
    TRY(dnnl_primitive_create(&made->primitive, description));
    const dnnl_memory_desc_t *scratchpad = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    made->scratchpad_bytes = dnnl_memory_desc_get_size(scratchpad);
    TRY(make_memory(&made->scratchpad, scratchpad, engine));
    TRY(make_memory(&made->a, &a, engine));
    TRY(make_memory(&made->b, &b, engine));
    TRY(make_memory(&made->c, &c, engine));
    if (s->bias)
        TRY(make_memory(&made->bias, &bias, engine));
done:
    dnnl_primitive_attr_destroy(attributes);
    dnnl_primitive_desc_destroy(description);
    return status;
}
