/* The borders of a region together with the products beside them. Where a device computes and communicates at once, tokens go through in chunks: one is on
 * its way while another is multiplied (Wang et al., ASPLOS 2023: decomposition). */
#include <rankloom/tp.h>

#include "core/try.h"
#include "tp/order.h"
#include "tp/rows.h"

/* How many equal chunks the tokens are cut into, `unit` of them always together: no more than tp->chunks, none with fewer than tp->chunk_tokens. */
static int64_t chunks_of(const loom_tp *tp, int64_t tokens, int64_t unit)
{
    int64_t chunks = tp->size > 1 && tokens % unit == 0 ? tp->chunks : 1;

    while (chunks > 1 && (tokens / unit % chunks != 0 || tokens / chunks < tp->chunk_tokens))
        chunks--;
    return chunks;
}

/* Of what sequence parallelism gathers or scatters a chunk has as many rows of every rank. */
static int64_t chunks_between(const loom_tp *tp, int64_t tokens)
{
    return tp->sequence_parallel ? chunks_of(tp, tokens, tp->size) : 1;
}

/* Rows [first, first + count) of every rank's own arrive at their places in full [T, features]; own rows too. */
static loom_status gather_chunk(loom_tp *tp, const float *local, int64_t first, int64_t count, int64_t tokens, int64_t features, float *full)
{
    size_t *counts = tp->blocks, *from = counts + tp->size, *to = from + tp->size;

    for (int r = 0; r < tp->size; r++) {
        counts[r] = (size_t)(count * features);
        from[r] = (size_t)(first * features);
        to[r] = (size_t)((r * (tokens / tp->size) + first) * features);
    }
    return loom_all_to_all_v(tp->mesh->axis[LOOM_AXIS_TP], local, counts, from, full, counts, to, LOOM_F32, tp->comm);
}

/* What is multiplied: the rows from `first`. */
typedef loom_status product_fn(const void *context, const float *from, loom_tp_rows rows, int64_t first, float *to);
/* loom_tp_enter, or loom_tp_leave_backward. */
typedef loom_status gather_fn(loom_tp *tp, const float *local, int64_t tokens, int64_t features, float *buffer, const float **full);

/* local [Tl, features] -> full [T, features], and of each chunk that has arrived the product, while the next is on its way. */
static loom_status multiply_in_chunks(loom_tp *tp, const float *local, int64_t tokens, int64_t features, float *full, int64_t chunks,
                                      product_fn *product, const void *context, float *to)
{
    int64_t own = tokens / tp->size;
    loom_tp_rows rows = {.runs = tp->size, .count = own / chunks, .in_apart = own, .out_apart = own};
    loom_status status;

    LOOM_TRY(loom_tp_comm_follows(tp)); /* `full` may still be read, `local` still be written */
    for (int64_t first = 0; first < own; first += rows.count) {
        LOOM_TRY(gather_chunk(tp, local, first, rows.count, tokens, features, full));
        LOOM_TRY(loom_tp_compute_follows(tp));
        LOOM_TRY(product(context, full, rows, first, to));
    }
    return LOOM_OK;

fail:
    return status;
}

/* The same, or one gather and one product where nothing is cut. */
static loom_status gather_and_multiply(loom_tp *tp, gather_fn *gather, const float *local, int64_t tokens, int64_t features, float *buffer,
                                       const float **full, product_fn *product, const void *context, float *to)
{
    int64_t chunks = chunks_between(tp, tokens);
    loom_status status;

    if (chunks > 1) {
        *full = buffer;
        return multiply_in_chunks(tp, local, tokens, features, buffer, chunks, product, context, to);
    }
    LOOM_TRY(gather(tp, local, tokens, features, buffer, full));
    return product(context, *full, loom_tp_all_rows(tokens), 0, to);

fail:
    return status;
}

/* --- into a region --------------------------------------------------------------------------------------------------------------- */

typedef struct columns {
    loom_linear *const *layers;
    int count;
} columns;

static loom_status columns_product(const void *context, const float *x, loom_tp_rows rows, int64_t first, float *y)
{
    const columns *c = context;

    return loom_linears_forward_rows(c->layers, c->count, x + first * c->layers[0]->in, rows, y + first * loom_linears_width(c->layers, c->count));
}

loom_status loom_tp_columns_forward(loom_linear *const *layers, int count, const float *x_local, int64_t tokens, float *buffer, float *y)
{
    const float *x_full;

    return gather_and_multiply(layers[0]->tp, loom_tp_enter, x_local, tokens, layers[0]->in, buffer, &x_full, columns_product, &(columns){layers, count}, y);
}

/* A column layer with GELU after it. */
typedef struct column_gelu {
    const loom_linear *layer;
    float *gelu;
} column_gelu;

static loom_status column_gelu_product(const void *context, const float *x, loom_tp_rows rows, int64_t first, float *y)
{
    const column_gelu *c = context;

    return loom_linear_forward_rows(c->layer, x + first * c->layer->in, rows, y + first * c->layer->out, c->gelu + first * c->layer->out);
}

loom_status loom_tp_column_forward_gelu(const loom_linear *layer, const float *x_local, int64_t tokens, float *buffer, float *y_TO, float *gelu_TO)
{
    const float *x_full;

    return gather_and_multiply(layer->tp, loom_tp_enter, x_local, tokens, layer->in, buffer, &x_full, column_gelu_product, &(column_gelu){layer, gelu_TO}, y_TO);
}

/* --- out of a region --------------------------------------------------------------------------------------------------------------- */

/* Of each rank's own rows a chunk: their parts lie side by side in `partial`, in the order of the ranks, as the reduce-scatter wants them. */
static loom_status multiply_and_scatter(const loom_linear *layer, const float *x, int64_t tokens, float *partial, int64_t chunks, float *local)
{
    loom_tp *tp = layer->tp;
    int64_t own = tokens / tp->size, count = own / chunks;
    loom_tp_rows rows = {.runs = tp->size, .count = count, .in_apart = own, .out_apart = count};
    loom_status status;

    for (int64_t first = 0; first < own; first += count) {
        float *part = partial + first * tp->size * layer->out;

        LOOM_TRY(loom_linear_forward_rows(layer, x + first * layer->in, rows, part, NULL));
        LOOM_TRY(loom_tp_comm_follows(tp));
        LOOM_TRY(loom_reduce_scatter(tp->mesh->axis[LOOM_AXIS_TP], part, local + first * layer->out, (size_t)(count * layer->out), LOOM_F32, LOOM_SUM,
                                     tp->comm));
    }
    return loom_tp_compute_follows(tp);

fail:
    return status;
}

static loom_status multiply_and_reduce(const loom_linear *layer, const float *x, int64_t tokens, float *partial, int64_t chunks, float *local)
{
    loom_tp *tp = layer->tp;
    int64_t count = tokens / chunks;
    loom_status status;

    for (int64_t first = 0; first < tokens; first += count) {
        float *part = partial + first * layer->out;

        LOOM_TRY(loom_linear_forward(layer, x + first * layer->in, count, part, 0));
        LOOM_TRY(loom_tp_comm_follows(tp));
        LOOM_TRY(loom_all_reduce(tp->mesh->axis[LOOM_AXIS_TP], part, local + first * layer->out, (size_t)(count * layer->out), LOOM_F32, LOOM_SUM,
                                 tp->comm));
    }
    return loom_tp_compute_follows(tp);

fail:
    return status;
}

loom_status loom_tp_row_forward(const loom_linear *layer, const float *x_TI, int64_t tokens, float *partial_TO, float *y_local)
{
    loom_tp *tp = layer->tp;
    int64_t chunks = chunks_of(tp, tokens, tp->sequence_parallel ? tp->size : 1);
    loom_status status;

    if (chunks > 1)
        return (tp->sequence_parallel ? multiply_and_scatter : multiply_and_reduce)(layer, x_TI, tokens, partial_TO, chunks, y_local);
    LOOM_TRY(loom_linear_forward(layer, x_TI, tokens, partial_TO, 0));
    return loom_tp_leave(tp, partial_TO, tokens, layer->out, y_local);

fail:
    return status;
}

/* A row layer, and what it read before GELU; NULL: there is none. */
typedef struct row_input {
    const loom_linear *layer;
    const float *before;
} row_input;

static loom_status row_input_product(const void *context, const float *dy, loom_tp_rows rows, int64_t first, float *dx)
{
    const row_input *r = context;
    int64_t in = r->layer->in;

    return loom_linear_backward_input_rows(r->layer, dy + first * r->layer->out, rows, r->before ? r->before + first * in : NULL, dx + first * in);
}

loom_status loom_tp_row_backward(const loom_linear *layer, const float *dy_local, int64_t tokens, float *buffer, const float **dy_full, float *dx_TI)
{
    return loom_tp_row_backward_gelu(layer, dy_local, tokens, buffer, dy_full, NULL, dx_TI);
}

loom_status loom_tp_row_backward_gelu(const loom_linear *layer, const float *dy_local, int64_t tokens, float *buffer, const float **dy_full,
                                      const float *before_TI, float *dx_TI)
{
    return gather_and_multiply(layer->tp, loom_tp_leave_backward, dy_local, tokens, layer->out, buffer, dy_full, row_input_product,
                               &(row_input){layer, before_TI}, dx_TI);
}
