/* Linear layers split by columns (output features) or rows (input features). */
#include <rankloom/sizes.h>
#include <rankloom/tp.h>

#include "core/try.h"
#include "tp/rows.h"

#include <stdio.h>
#include <string.h>

loom_range loom_tp_block_range(const loom_tp *tp, const loom_tp_block *block)
{
    return loom_cut_units(block->features, block->unit, tp->size, tp->rank);
}

/* How many ranks share each unit of the block, and which of them this is. */
static int block_holders(const loom_tp *tp, const loom_tp_block *block, int *holder)
{
    int holders = loom_cut_holders(block->features, block->unit, tp->size);

    *holder = tp->rank % holders;
    return holders;
}

/* Cuts dimension `dim` of the spec by the blocks; returns how many features this rank has. */
static int64_t split_by_blocks(loom_shard *shard, const loom_tp *tp, int dim, const loom_tp_block *blocks, int n_blocks)
{
    int64_t offset = 0, local = 0;

    shard->split_dim = dim;
    shard->holders = block_holders(tp, &blocks[0], &shard->holder);
    shard->gradient = shard->holders > 1 ? LOOM_GRADIENT_PARTIAL : LOOM_GRADIENT_WHOLE;
    for (int i = 0; i < n_blocks; i++) {
        loom_range mine = loom_tp_block_range(tp, &blocks[i]);

        shard->ranges[i].begin = offset + mine.begin;
        shard->ranges[i].end = offset + mine.end;
        local += mine.end - mine.begin;
        offset += blocks[i].features;
    }
    shard->n_ranges = n_blocks;
    return local;
}

static loom_status check_blocks(const loom_linear_config *config, const loom_tp *tp, int64_t extent)
{
    int64_t sum = 0;
    int holder, first = block_holders(tp, &config->blocks[0], &holder);

    for (int i = 0; i < config->n_blocks; i++) {
        const loom_tp_block *block = &config->blocks[i];

        if (block->unit < 1 || block->features % block->unit != 0)
            return loom_fail(LOOM_E_INVALID, "%s: %lld features are not whole units of %lld", config->name, (long long)block->features,
                             (long long)block->unit);
        if (block_holders(tp, block, &holder) != first)
            return loom_fail(LOOM_E_INVALID, "%s: fused blocks must all be split over tp=%d, or all shared: store them as separate layers",
                             config->name, tp->size);
        if (block->features / block->unit < tp->size && first == 1)
            return loom_fail(LOOM_E_INVALID, "%s: tp=%d ranks cannot share %lld units evenly", config->name, tp->size,
                             (long long)(block->features / block->unit));
        sum += block->features;
    }
    if (sum != extent)
        return loom_fail(LOOM_E_INVALID, "%s: the blocks have %lld features, the layer has %lld", config->name, (long long)sum,
                         (long long)extent);
    return LOOM_OK;
}

static void name_parameter(loom_shard *shard, const char *layer, const char *what)
{
    snprintf(shard->name, sizeof shard->name, "%s.%s", layer, what);
}

static void init_bias(loom_linear *layer, const loom_linear_config *config)
{
    loom_shard *shard = &layer->bias.shard;

    loom_tp_replicated(layer->tp, config->name, 1, &config->out, shard);
    name_parameter(shard, config->name, "bias");
    shard->decay = config->decay_bias;
    shard->init.kind = LOOM_INIT_ZEROS;
    shard->init.std = config->bias_jitter;
    if (config->kind == LOOM_LINEAR_COLUMN) /* split like the rows it is added to; a row layer's bias is whole, between the regions */
        split_by_blocks(shard, layer->tp, 0, config->blocks, config->n_blocks);
}

loom_status loom_linear_init(loom_linear *layer, loom_tp *tp, const loom_linear_config *given)
{
    loom_linear_config config = *given;
    int64_t split = config.kind == LOOM_LINEAR_COLUMN ? config.out : config.in, local;
    int64_t shape[2] = {config.in_major ? config.in : config.out, config.in_major ? config.out : config.in};
    int dim = (config.kind == LOOM_LINEAR_COLUMN) == config.in_major ? 1 : 0;
    loom_status status;

    memset(layer, 0, sizeof *layer);
    if (config.n_blocks == 0) {
        config.blocks[0] = (loom_tp_block){split, 1};
        config.n_blocks = 1;
    }
    LOOM_TRY(check_blocks(&config, tp, split));
    layer->tp = tp;
    layer->kind = config.kind;
    layer->has_bias = config.bias;
    layer->in_major = config.in_major;
    loom_tp_replicated(tp, config.name, 2, shape, &layer->weight.shard);
    name_parameter(&layer->weight.shard, config.name, "weight");
    layer->weight.shard.decay = true;
    layer->weight.shard.init.kind = LOOM_INIT_NORMAL;
    layer->weight.shard.init.std = config.init_std;
    local = split_by_blocks(&layer->weight.shard, tp, dim, config.blocks, config.n_blocks);
    layer->in = config.kind == LOOM_LINEAR_COLUMN ? config.in : local;
    layer->out = config.kind == LOOM_LINEAR_COLUMN ? local : config.out;
    if (config.bias)
        init_bias(layer, &config);
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_linear_declare(loom_linear *layer, loom_param_list *params)
{
    loom_status status;

    LOOM_TRY(loom_param_list_add(params, &layer->weight));
    if (layer->has_bias)
        LOOM_TRY(loom_param_list_add(params, &layer->bias));
    return LOOM_OK;

fail:
    return status;
}

/* The weight as a matrix, whichever way it is stored: y = x op(W). */
static loom_gemm_args forward_product(const loom_linear *layer, int64_t out)
{
    return (loom_gemm_args){.b_KN = layer->weight.value, .n = out, .k = layer->in, .transpose_b = !layer->in_major};
}

/* The product of the rows, `in` and `out` elements from one to the next of what goes in and comes out. */
static loom_status multiply(const loom_tp *tp, loom_gemm_args product, loom_tp_rows rows, int64_t in, int64_t out)
{
    product.m = rows.count;
    product.batch = rows.runs;
    product.stride_a = rows.in_apart * in;
    product.stride_c = rows.out_apart * out;
    return tp->kernels->gemm(tp->kernels, &product, tp->compute);
}

static loom_status forward_rows(const loom_linear *layer, const float *x_TI, loom_tp_rows rows, float *y_TO, int64_t leading_y, float *gelu_TO)
{
    loom_gemm_args product = forward_product(layer, layer->out);

    product.c_MN = y_TO;
    product.a_MK = x_TI;
    product.ldc = leading_y;
    product.gelu_MN = gelu_TO;
    if (layer->has_bias && layer->kind == LOOM_LINEAR_COLUMN)
        product.bias_N = layer->bias.value;
    return multiply(layer->tp, product, rows, layer->in, leading_y ? leading_y : layer->out);
}

loom_status loom_linear_forward(const loom_linear *layer, const float *x_TI, int64_t tokens, float *y_TO, int64_t leading_y)
{
    return forward_rows(layer, x_TI, loom_tp_all_rows(tokens), y_TO, leading_y, NULL);
}

loom_status loom_linear_forward_rows(const loom_linear *layer, const float *x_TI, loom_tp_rows rows, float *y_TO, float *gelu_TO)
{
    return forward_rows(layer, x_TI, rows, y_TO, 0, gelu_TO);
}

loom_status loom_linear_forward_gelu(const loom_linear *layer, const float *x_TI, int64_t tokens, float *y_TO, float *gelu_TO)
{
    return forward_rows(layer, x_TI, loom_tp_all_rows(tokens), y_TO, 0, gelu_TO);
}

static loom_gemm_args backward_product(const loom_linear *layer, const float *dy_TO, float *dx_TI)
{
    return (loom_gemm_args){
        .c_MN = dx_TI, .a_MK = dy_TO, .b_KN = layer->weight.value, .n = layer->in, .k = layer->out, .transpose_b = layer->in_major};
}

loom_status loom_linear_backward_input(const loom_linear *layer, const float *dy_TO, int64_t leading_dy, int64_t tokens, float *dx_TI,
                                       bool accumulate)
{
    loom_gemm_args product = backward_product(layer, dy_TO, dx_TI);

    product.lda = leading_dy;
    product.accumulate = accumulate;
    return multiply(layer->tp, product, loom_tp_all_rows(tokens), leading_dy ? leading_dy : layer->out, layer->in);
}

loom_status loom_linear_backward_input_rows(const loom_linear *layer, const float *dy_TO, loom_tp_rows rows, const float *before_TI, float *dx_TI)
{
    loom_gemm_args product = backward_product(layer, dy_TO, dx_TI);

    product.gelu_input_MN = before_TI;
    return multiply(layer->tp, product, rows, layer->out, layer->in);
}

loom_status loom_linear_backward_input_gelu(const loom_linear *layer, const float *dy_TO, int64_t tokens, const float *before_TI, float *dx_TI)
{
    return loom_linear_backward_input_rows(layer, dy_TO, loom_tp_all_rows(tokens), before_TI, dx_TI);
}

/* dW, stored as W is: dy^T x for [out, in], x^T dy for [in, out]. */
static loom_status weight_gradient(const loom_linear *layer, int64_t out, const float *x_TI, const float *dy_TO, int64_t leading_dy,
                                   int64_t tokens)
{
    loom_tp *tp = layer->tp;
    loom_gemm_args product = {.c_MN = layer->weight.gradient, .k = tokens, .transpose_a = true, .accumulate = true};

    product.m = layer->in_major ? layer->in : out;
    product.n = layer->in_major ? out : layer->in;
    product.a_MK = layer->in_major ? x_TI : dy_TO;
    product.b_KN = layer->in_major ? dy_TO : x_TI;
    product.lda = layer->in_major ? 0 : leading_dy;
    product.ldb = layer->in_major ? leading_dy : 0;
    return tp->kernels->gemm(tp->kernels, &product, tp->compute);
}

loom_status loom_linear_backward_weight(loom_linear *layer, const float *x_TI, const float *dy_TO, int64_t leading_dy, int64_t tokens)
{
    loom_tp *tp = layer->tp;
    loom_status status;

    LOOM_TRY(weight_gradient(layer, layer->out, x_TI, dy_TO, leading_dy, tokens));
    if (layer->has_bias && layer->kind == LOOM_LINEAR_COLUMN)
        LOOM_TRY(tp->kernels->bias_backward(tp->kernels,
                                            &(loom_bias_backward_args){.dbias_N = layer->bias.gradient,
                                                                       .dy_TN = dy_TO,
                                                                       .tokens = tokens,
                                                                       .width = layer->out,
                                                                       .ld_dy = leading_dy},
                                            tp->compute));
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_linear_add_bias(const loom_linear *layer, float *y_TO, int64_t tokens)
{
    loom_tp *tp = layer->tp;

    if (!layer->has_bias)
        return LOOM_OK;
    return tp->kernels->bias(tp->kernels,
                             &(loom_bias_args){.y_TN = y_TO, .bias_N = layer->bias.value, .tokens = tokens, .width = layer->out},
                             tp->compute);
}

loom_status loom_linear_bias_gradient(loom_linear *layer, const float *dy_TO, int64_t tokens)
{
    loom_tp *tp = layer->tp;

    if (!layer->has_bias)
        return LOOM_OK;
    return tp->kernels->bias_backward(
        tp->kernels,
        &(loom_bias_backward_args){.dbias_N = layer->bias.gradient, .dy_TN = dy_TO, .tokens = tokens, .width = layer->out}, tp->compute);
}

/* --- several layers that read the same input ----------------------------------------------------------------------------------- */

/* Whether values and gradients lie one right behind the other, so that the weights are one matrix of all rows. */
static bool side_by_side(loom_linear *const *layers, int count)
{
    for (int i = 0; i < count; i++)
        if (layers[i]->in_major || layers[i]->has_bias)
            return false;
    for (int i = 0; i + 1 < count; i++) {
        int64_t size = layers[i]->out * layers[i]->in;

        if (layers[i + 1]->weight.value != layers[i]->weight.value + size ||
            layers[i + 1]->weight.gradient != layers[i]->weight.gradient + size)
            return false;
    }
    return true;
}

int64_t loom_linears_width(loom_linear *const *layers, int count)
{
    int64_t sum = 0;

    for (int i = 0; i < count; i++)
        sum += layers[i]->out;
    return sum;
}

loom_status loom_linears_forward_rows(loom_linear *const *layers, int count, const float *x_TI, loom_tp_rows rows, float *y)
{
    int64_t width = loom_linears_width(layers, count), column = 0;
    loom_status status;

    if (side_by_side(layers, count)) {
        loom_gemm_args product = forward_product(layers[0], width);

        product.c_MN = y;
        product.a_MK = x_TI;
        return multiply(layers[0]->tp, product, rows, layers[0]->in, width);
    }
    for (int i = 0; i < count; i++) {
        LOOM_TRY(forward_rows(layers[i], x_TI, rows, y + column, width, NULL));
        column += layers[i]->out;
    }
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_linears_forward(loom_linear *const *layers, int count, const float *x_TI, int64_t tokens, float *y)
{
    return loom_linears_forward_rows(layers, count, x_TI, loom_tp_all_rows(tokens), y);
}

loom_status loom_linears_backward_input(loom_linear *const *layers, int count, const float *dy, int64_t tokens, float *dx_TI)
{
    int64_t width = loom_linears_width(layers, count), column = 0;
    loom_tp *tp = layers[0]->tp;
    loom_status status;

    if (side_by_side(layers, count))
        return tp->kernels->gemm(
            tp->kernels,
            &(loom_gemm_args){
                .c_MN = dx_TI, .a_MK = dy, .b_KN = layers[0]->weight.value, .m = tokens, .n = layers[0]->in, .k = width},
            tp->compute);
    for (int i = 0; i < count; i++) {
        LOOM_TRY(loom_linear_backward_input(layers[i], dy + column, width, tokens, dx_TI, i > 0));
        column += layers[i]->out;
    }
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_linears_backward_weight(loom_linear *const *layers, int count, const float *x_TI, const float *dy, int64_t tokens)
{
    int64_t width = loom_linears_width(layers, count), column = 0;
    loom_status status;

    if (side_by_side(layers, count))
        return weight_gradient(layers[0], width, x_TI, dy, width, tokens);
    for (int i = 0; i < count; i++) {
        LOOM_TRY(loom_linear_backward_weight(layers[i], x_TI, dy + column, width, tokens));
        column += layers[i]->out;
    }
    return LOOM_OK;

fail:
    return status;
}
