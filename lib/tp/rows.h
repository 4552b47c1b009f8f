/* Products over some of the tokens: what overlap.c cuts, and linear.c multiplies. */
#ifndef LOOM_TP_ROWS_H
#define LOOM_TP_ROWS_H

#include <rankloom/tp.h>

/* `runs` of `count` rows each, the runs so many rows apart in what goes in and in what comes out. */
typedef struct loom_tp_rows {
    int64_t runs, count, in_apart, out_apart;
} loom_tp_rows;

static inline loom_tp_rows loom_tp_all_rows(int64_t tokens)
{
    return (loom_tp_rows){.runs = 1, .count = tokens};
}

/* As the public calls of these names; pointers are to the first row. Rows of one layer's y and dy are tight. NULL: without GELU. */
loom_status loom_linear_forward_rows(const loom_linear *layer, const float *x_TI, loom_tp_rows rows, float *y_TO, float *gelu_TO);
loom_status loom_linear_backward_input_rows(const loom_linear *layer, const float *dy_TO, loom_tp_rows rows, const float *before_TI, float *dx_TI);
loom_status loom_linears_forward_rows(loom_linear *const *layers, int count, const float *x_TI, loom_tp_rows rows, float *y);

/* Columns of all layers together on this rank. */
int64_t loom_linears_width(loom_linear *const *layers, int count);

#endif
