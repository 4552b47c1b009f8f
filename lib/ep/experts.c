/* The products of the experts that are here, over ragged batches: rows sorted by expert, each expert some of them or none. */
#include "ep/ep.h"

#include "core/try.h"

/* --- experts whose matrices lie equally far apart, which dp's flat buffers see to: one grouped product does for all of them ------------------ */

typedef struct expert_run {
    int64_t first, count;
    int64_t value_step, gradient_step; /* floats from one expert to the next */
    bool fused;                        /* gate and up lie side by side: one product does for both */
} expert_run;

static int64_t distance(const float *from, const float *to)
{
    return ((intptr_t)to - (intptr_t)from) / (intptr_t)sizeof *from;
}

static bool is_fused(const loom_ep_expert *expert, int64_t size)
{
    return expert->up.value == expert->gate.value + size && expert->up.gradient == expert->gate.gradient + size;
}

static bool follows(const loom_param *before, const loom_param *next, const expert_run *run)
{
    return distance(before->value, next->value) == run->value_step && distance(before->gradient, next->gradient) == run->gradient_step;
}

static bool continues(const expert_run *run, const loom_ep_expert *last, const loom_ep_expert *next, int64_t size)
{
    return follows(&last->gate, &next->gate, run) && follows(&last->up, &next->up, run) && follows(&last->down, &next->down, run) &&
           is_fused(next, size) == run->fused;
}

static expert_run run_from(const loom_moe_layer *layer, int64_t first)
{
    const loom_ep_expert *e = layer->expert + first;
    int64_t left = layer->experts_here - first, size = layer->ffn * layer->hidden;
    expert_run run = {.first = first, .count = 1, .fused = is_fused(e, size)};

    if (left == 1)
        return run;
    run.value_step = distance(e[0].gate.value, e[1].gate.value);
    run.gradient_step = distance(e[0].gate.gradient, e[1].gate.gradient);
    while (run.count < left && continues(&run, &e[run.count - 1], &e[run.count], size))
        run.count++;
    return run;
}

/* A product of each expert of the run with its rows. */
static loom_status product(const loom_moe_layer *layer, const loom_moe_record *r, const expert_run *run, loom_grouped_gemm_args args)
{
    args.offset_G1 = r->rows_E1 + run->first;
    args.groups = run->count;
    args.stride_b = args.ragged_k ? 0 : run->value_step;
    args.stride_c = args.ragged_k ? run->gradient_step : 0;
    return layer->ep->kernels->grouped_gemm(layer->ep->kernels, &args, layer->ep->compute);
}

/* --- forward ----------------------------------------------------------------------------------------------------------------------------------- */

/* wide [rows, 2 F] = x [gate; up]'. */
static loom_status wide_forward(const loom_moe_layer *layer, const loom_moe_record *r, const expert_run *run)
{
    const loom_ep_expert *expert = &layer->expert[run->first];
    int64_t ffn = layer->ffn;
    loom_grouped_gemm_args wide = {.c = r->wide.data, .a = r->x.data, .b = expert->gate.value, .n = run->fused ? 2 * ffn : ffn, .k = layer->hidden,
                                   .ldc = 2 * ffn, .transpose_b = true};
    loom_status status = product(layer, r, run, wide);

    if (status < 0 || run->fused)
        return status;
    wide.c += ffn;
    wide.b = expert->up.value;
    return product(layer, r, run, wide);
}

loom_status loom_ep_experts(loom_moe_layer *layer, loom_moe_record *r, float *out)
{
    loom_kernels *k = layer->ep->kernels;
    int64_t ffn = layer->ffn, hidden = layer->hidden;
    expert_run run;
    loom_status status;

    for (int64_t e = 0; e < layer->experts_here; e += run.count) {
        run = run_from(layer, e);
        LOOM_TRY(wide_forward(layer, r, &run));
    }
    LOOM_TRY(k->swiglu(k,
                       &(loom_swiglu_args){.y_TF = r->active.data,
                                           .gate_TF = r->wide.data,
                                           .up_TF = r->wide.data + ffn,
                                           .tokens = r->rows,
                                           .width = ffn,
                                           .ld_gate = 2 * ffn,
                                           .ld_up = 2 * ffn},
                       layer->ep->compute));
    for (int64_t e = 0; e < layer->experts_here; e += run.count) {
        run = run_from(layer, e);
        LOOM_TRY(product(layer, r, &run,
                         (loom_grouped_gemm_args){
                             .c = out, .a = r->active.data, .b = layer->expert[e].down.value, .n = hidden, .k = ffn, .transpose_b = true}));
    }
    return LOOM_OK;

fail:
    return status;
}

/* --- backward ---------------------------------------------------------------------------------------------------------------------------------- *
 * Whole, gradients take the place of what they are made from: that of the activation the activation's, once the weight's gradient was made from it, and
 * that of x the results'. Split, the record keeps what the weights' half multiplies: x and the gradient of gate and up, the activation and the gradient
 * of the results. */

float *loom_ep_gradient(const loom_ep *ep, const loom_moe_record *r)
{
    return ep->config.split_backward ? r->out.data : ep->of_expert.data;
}

typedef loom_status of_run(loom_moe_layer *layer, const loom_moe_record *r, const expert_run *run);

static loom_status each_run(loom_moe_layer *layer, const loom_moe_record *r, of_run *call)
{
    expert_run run;

    for (int64_t e = 0; e < layer->experts_here; e += run.count) {
        run = run_from(layer, e);
        loom_status status = call(layer, r, &run);
        if (status < 0)
            return status;
    }
    return LOOM_OK;
}

/* d(down) += d' active. */
static loom_status down_weight(loom_moe_layer *layer, const loom_moe_record *r, const expert_run *run)
{
    return product(layer, r, run,
                   (loom_grouped_gemm_args){.c = layer->expert[run->first].down.gradient,
                                            .a = loom_ep_gradient(layer->ep, r),
                                            .b = r->active.data,
                                            .m = layer->hidden,
                                            .n = layer->ffn,
                                            .ragged_k = true,
                                            .accumulate = true});
}

static float *active_gradient(const loom_moe_layer *layer, const loom_moe_record *r)
{
    return layer->ep->config.split_backward ? layer->ep->of_expert.data : r->active.data;
}

static loom_status down_input(loom_moe_layer *layer, const loom_moe_record *r, const expert_run *run)
{
    return product(layer, r, run,
                   (loom_grouped_gemm_args){.c = active_gradient(layer, r),
                                            .a = loom_ep_gradient(layer->ep, r),
                                            .b = layer->expert[run->first].down.value,
                                            .n = layer->ffn,
                                            .k = layer->hidden});
}

static loom_status activation_backward(loom_moe_layer *layer, const loom_moe_record *r)
{
    loom_kernels *k = layer->ep->kernels;
    int64_t ffn = layer->ffn;
    float *wide = r->wide.data;

    return k->swiglu_backward(k,
                              &(loom_swiglu_backward_args){.dgate_TF = wide,
                                                           .dup_TF = wide + ffn,
                                                           .dy_TF = active_gradient(layer, r),
                                                           .gate_TF = wide,
                                                           .up_TF = wide + ffn,
                                                           .tokens = r->rows,
                                                           .width = ffn,
                                                           .ld_dgate = 2 * ffn,
                                                           .ld_dup = 2 * ffn,
                                                           .ld_gate = 2 * ffn,
                                                           .ld_up = 2 * ffn},
                              layer->ep->compute);
}

/* d(gate and up) += dwide' x. */
static loom_status wide_weight(loom_moe_layer *layer, const loom_moe_record *r, const expert_run *run)
{
    loom_ep_expert *expert = &layer->expert[run->first];
    int64_t ffn = layer->ffn;
    loom_grouped_gemm_args weight = {.c = expert->gate.gradient, .a = r->wide.data, .b = r->x.data, .m = run->fused ? 2 * ffn : ffn, .n = layer->hidden,
                                     .lda = 2 * ffn, .ragged_k = true, .accumulate = true};
    loom_status status = product(layer, r, run, weight);

    if (status < 0 || run->fused)
        return status;
    weight.c = expert->up.gradient;
    weight.a += ffn;
    return product(layer, r, run, weight);
}

/* dx = dwide [gate; up]. */
static loom_status wide_input(loom_moe_layer *layer, const loom_moe_record *r, const expert_run *run)
{
    loom_ep_expert *expert = &layer->expert[run->first];
    int64_t ffn = layer->ffn;
    loom_grouped_gemm_args input = {.c = layer->ep->of_expert.data, .a = r->wide.data, .b = expert->gate.value, .n = layer->hidden,
                                    .k = run->fused ? 2 * ffn : ffn, .lda = 2 * ffn};
    loom_status status = product(layer, r, run, input);

    if (status < 0 || run->fused)
        return status;
    input.a += ffn;
    input.b = expert->up.value;
    input.accumulate = true;
    return product(layer, r, run, input);
}

loom_status loom_ep_experts_backward(loom_moe_layer *layer, loom_moe_record *r)
{
    bool whole = !layer->ep->config.split_backward;
    loom_status status;

    if (whole)
        LOOM_TRY(each_run(layer, r, down_weight));
    LOOM_TRY(each_run(layer, r, down_input));
    LOOM_TRY(activation_backward(layer, r));
    if (whole)
        LOOM_TRY(each_run(layer, r, wide_weight));
    return each_run(layer, r, wide_input);

fail:
    return status;
}

loom_status loom_ep_experts_backward_weight(loom_moe_layer *layer, loom_moe_record *r)
{
    loom_status status = each_run(layer, r, down_weight);

    return status < 0 ? status : each_run(layer, r, wide_weight);
}
