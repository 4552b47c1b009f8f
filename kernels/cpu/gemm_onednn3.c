/* A product's primitive in the C interface of oneDNN 3.x: primitives from their arguments, opaque memory descriptors. */
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

    return dnnl_memory_desc_create_with_strides(md, 3 - skip, dims + skip, dnnl_f32, strides + skip);
}

static dnnl_status_t make_attributes(const matmul_shape *s, dnnl_primitive_attr_t attributes)
{
    dnnl_post_ops_t post = NULL;
    dnnl_status_t status;

    TRY(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
    if (s->accumulate) {
        TRY(dnnl_post_ops_create(&post));
        TRY(dnnl_post_ops_append_sum(post, 1.0f, 0, dnnl_data_type_undef));
        TRY(dnnl_primitive_attr_set_post_ops(attributes, post));
    }
done:
    dnnl_post_ops_destroy(post);
    return status;
}

/* The library offers implementations, its own favourite ("brg:…") first. Its classic packing GEMM ("gemm:jit") is up to 8 % faster where B
 * is stored as it is read (dx = dy W, dW = dy' x) and up to 14 % slower where B is transposed (y = x W'): each gets the better one. */
static dnnl_status_t choose(dnnl_primitive_desc_t *description, dnnl_engine_t engine, const_dnnl_memory_desc_t a,
                            const_dnnl_memory_desc_t b, const_dnnl_memory_desc_t bias, const_dnnl_memory_desc_t c,
                            dnnl_primitive_attr_t attributes, bool packing)
{
    const char *name;
    dnnl_status_t status;

    TRY(dnnl_matmul_primitive_desc_create(description, engine, a, b, bias, c, attributes));
    if (!packing)
        return dnnl_success;
    do {
        TRY(dnnl_primitive_desc_query(*description, dnnl_query_impl_info_str, 0, &name));
        if (strncmp(name, "gemm:jit", 8) == 0)
            return dnnl_success;
    } while (dnnl_primitive_desc_next_impl(*description) == dnnl_success);
    TRY(dnnl_primitive_desc_destroy(*description)); /* it stands at the last, the slowest: back to the first */
    *description = NULL;
    TRY(dnnl_matmul_primitive_desc_create(description, engine, a, b, bias, c, attributes));
done:
    return status;
}

static dnnl_status_t make_memory(dnnl_memory_t *memory, const_dnnl_memory_desc_t md, dnnl_engine_t engine)
{
    return dnnl_memory_create(memory, md, engine, DNNL_MEMORY_NONE);
}

dnnl_status_t loom_matmul_make(dnnl_engine_t engine, matmul *made)
{
    const matmul_shape *s = &made->shape;
    const dnnl_dims_t bias_dims = {1, 1, s->n}, bias_strides = {s->n, s->n, 1};
    int skip = s->batch == 1;
    dnnl_memory_desc_t a = NULL, b = NULL, c = NULL, bias = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_status_t status;

    TRY(describe(&a, s, s->m, s->k, s->stride_a, s->a_row, s->a_col));
    TRY(describe(&b, s, s->k, s->n, s->stride_b, s->b_row, s->b_col));
    TRY(describe(&c, s, s->m, s->n, s->stride_c, s->c_row, 1));
    if (s->bias)
        TRY(dnnl_memory_desc_create_with_strides(&bias, 3 - skip, bias_dims + skip, dnnl_f32, bias_strides + skip));
    TRY(dnnl_primitive_attr_create(&attributes));
    TRY(make_attributes(s, attributes));
    TRY(choose(&description, engine, a, b, bias, c, attributes, loom_matmul_prefers_packing(s)));
    TRY(dnnl_primitive_create(&made->primitive, description));
    const_dnnl_memory_desc_t scratchpad = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    made->scratchpad_bytes = dnnl_memory_desc_get_size(scratchpad);
    TRY(make_memory(&made->scratchpad, scratchpad, engine));
    TRY(make_memory(&made->a, a, engine));
    TRY(make_memory(&made->b, b, engine));
    TRY(make_memory(&made->c, c, engine));
    if (s->bias)
        TRY(make_memory(&made->bias, bias, engine));
done:
    dnnl_memory_desc_destroy(a);
    dnnl_memory_desc_destroy(b);
    dnnl_memory_desc_destroy(c);
    dnnl_memory_desc_destroy(bias);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_primitive_desc_destroy(description);
    return status;
}
