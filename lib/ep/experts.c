/* The products of the experts that are here, over ragged batches: rows sorted by expert, each expert some of them or none. */
#include "ep/ep.h"

#include "core/try.h"

/* dp lays gate and up of an expert side by side where it can: then one product does for both. */
static bool fused(const loom_ep_expert *expert, int64_t size)
{
    return expert->up.value == expert->gate.value + size && expert->up.gradient == expert->gate.gradient + size;
}

/* wide [rows, 2 F] = x [gate; up]'. */
static loom_status wide_forward(const loom_moe_layer *layer, const loom_ep_expert *expert, const float *x, int64_t rows, float *wide)
{
    loom_kernels *k = layer->ep->kernels;
    int64_t ffn = layer->ffn;
    bool both = fused(expert, ffn * layer->hidden);
    loom_gemm_args product = {.c_MN = wide, .a_MK = x, .b_KN = expert->gate.value, .m = rows, .n = both ? 2 * ffn : ffn, .k = layer->hidden,
                              .ldc = 2 * ffn, .transpose_b = true};
    loom_status status = k->gemm(k, &product, layer->ep->compute);

    if (status < 0 || both)
        return status;
    product.c_MN = wide + ffn;
    product.b_KN = expert->up.value;
    return k->gemm(k, &product, layer->ep->compute);
}

/* d(gate and up) += dwide' x, then dx = dwide [gate; up]. */
static loom_status wide_backward(const loom_moe_layer *layer, loom_ep_expert *expert, const float *x, const float *dwide, int64_t rows, float *dx)
{
    loom_kernels *k = layer->ep->kernels;
    loom_stream *stream = layer->ep->compute;
    int64_t ffn = layer->ffn, hidden = layer->hidden;
    bool both = fused(expert, ffn * hidden);
    loom_gemm_args weight = {.c_MN = expert->gate.gradient, .a_MK = dwide, .b_KN = x, .m = both ? 2 * ffn : ffn, .n = hidden, .k = rows,
                             .lda = 2 * ffn, .transpose_a = true, .accumulate = true};
    loom_gemm_args input = {.c_MN = dx, .a_MK = dwide, .b_KN = expert->gate.value, .m = rows, .n = hidden, .k = both ? 2 * ffn : ffn, .lda = 2 * ffn};
    loom_status status;

    LOOM_TRY(k->gemm(k, &weight, stream));
    LOOM_TRY(k->gemm(k, &input, stream));
    if (both)
        return LOOM_OK;
    weight.c_MN = expert->up.gradient;
    weight.a_MK = input.a_MK = dwide + ffn;
    input.b_KN = expert->up.value;
    input.accumulate = true;
    LOOM_TRY(k->gemm(k, &weight, stream));
    return k->gemm(k, &input, stream);

fail:
    return status;
}

loom_status loom_ep_experts(loom_moe_layer *layer, loom_moe_record *r, float *out)
{
    loom_kernels *k = layer->ep->kernels;
    loom_stream *stream = layer->ep->compute;
    int64_t ffn = layer->ffn, hidden = layer->hidden, at = 0;
    loom_status status;

    for (int64_t e = 0; e < layer->experts_here; at += r->expert_rows[e++])
        LOOM_TRY(wide_forward(layer, &layer->expert[e], r->x.data + at * hidden, r->expert_rows[e], r->wide.data + at * 2 * ffn));
    LOOM_TRY(k->swiglu(k,
                       &(loom_swiglu_args){.y_TF = r->active.data,
                                           .gate_TF = r->wide.data,
                                           .up_TF = r->wide.data + ffn,
                                           .tokens = r->rows,
                                           .width = ffn,
                                           .ld_gate = 2 * ffn,
                                           .ld_up = 2 * ffn},
                       stream));
    at = 0;
    for (int64_t e = 0; e < layer->experts_here; at += r->expert_rows[e++])
        LOOM_TRY(k->gemm(k,
                         &(loom_gemm_args){.c_MN = out + at * hidden,
                                           .a_MK = r->active.data + at * ffn,
                                           .b_KN = layer->expert[e].down.value,
                                           .m = r->expert_rows[e],
                                           .n = hidden,
                                           .k = ffn,
                                           .transpose_b = true},
                         stream));
    return LOOM_OK;

fail:
    return status;
}

/* The weight gradient first: the gradient of the activation then takes the place of the activation. */
static loom_status down_backward(const loom_moe_layer *layer, loom_ep_expert *expert, const float *d, int64_t rows, float *active)
{
    loom_kernels *k = layer->ep->kernels;
    loom_stream *stream = layer->ep->compute;
    loom_status status;

    LOOM_TRY(k->gemm(k,
                     &(loom_gemm_args){.c_MN = expert->down.gradient,
                                       .a_MK = d,
                                       .b_KN = active,
                                       .m = layer->hidden,
                                       .n = layer->ffn,
                                       .k = rows,
                                       .transpose_a = true,
                                       .accumulate = true},
                     stream));
    return k->gemm(
        k, &(loom_gemm_args){.c_MN = active, .a_MK = d, .b_KN = expert->down.value, .m = rows, .n = layer->ffn, .k = layer->hidden}, stream);

fail:
    return status;
}

loom_status loom_ep_experts_backward(loom_moe_layer *layer, loom_moe_record *r, float *d)
{
    loom_kernels *k = layer->ep->kernels;
    int64_t ffn = layer->ffn, hidden = layer->hidden, at = 0;
    float *wide = r->wide.data;
    loom_status status;

    for (int64_t e = 0; e < layer->experts_here; at += r->expert_rows[e++])
        LOOM_TRY(down_backward(layer, &layer->expert[e], d + at * hidden, r->expert_rows[e], r->active.data + at * ffn));
    LOOM_TRY(k->swiglu_backward(k,
                                &(loom_swiglu_backward_args){.dgate_TF = wide,
                                                             .dup_TF = wide + ffn,
                                                             .dy_TF = r->active.data,
                                                             .gate_TF = wide,
                                                             .up_TF = wide + ffn,
                                                             .tokens = r->rows,
                                                             .width = ffn,
                                                             .ld_dgate = 2 * ffn,
                                                             .ld_dup = 2 * ffn,
                                                             .ld_gate = 2 * ffn,
                                                             .ld_up = 2 * ffn},
                                layer->ep->compute));
    at = 0;
    for (int64_t e = 0; e < layer->experts_here; at += r->expert_rows[e++])
        LOOM_TRY(wide_backward(layer, &layer->expert[e], r->x.data + at * hidden, wide + at * 2 * ffn, r->expert_rows[e], d + at * hidden));
    return LOOM_OK;

fail:
    return status;
}
