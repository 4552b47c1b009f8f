/* GELU (tanh form) and SwiGLU, forward and backward. */
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/isa.h"

static void gelu_span(const void *context, int64_t from, int64_t to)
{
    const loom_gelu_args a = *(const loom_gelu_args *)context;

    EACH_LANES(from, to, gelu_lanes, a.y, a.x);
}

loom_status ISA(gelu)(loom_cpu *cpu, const loom_gelu_args *a)
{
    loom_parallel_spans(cpu->threads, a->count, GRAIN_ELEMENTS / 4, gelu_span, a);
    return LOOM_OK;
}

static void gelu_backward_span(const void *context, int64_t from, int64_t to)
{
    const loom_gelu_backward_args a = *(const loom_gelu_backward_args *)context;

    EACH_LANES(from, to, gelu_slope_lanes, a.dx, a.dy, a.x);
}

loom_status ISA(gelu_backward)(loom_cpu *cpu, const loom_gelu_backward_args *a)
{
    loom_parallel_spans(cpu->threads, a->count, GRAIN_ELEMENTS / 4, gelu_backward_span, a);
    return LOOM_OK;
}

LOOM_INLINE void swiglu_step(float *y, const float *gate, const float *up, int64_t i, int n)
{
    vf g = vf_get(gate + i, n);

    vf_put(y + i, g / (1.0f + vf_exp(-g)) * vf_get(up + i, n), n);
}

static void swiglu_rows(const void *context, int64_t from, int64_t to)
{
    const loom_swiglu_args *a = context;
    int64_t ldy = or_tight(a->ldy, a->width), ldg = or_tight(a->ld_gate, a->width), ldu = or_tight(a->ld_up, a->width);

    for (int64_t t = from; t < to; t++)
        EACH_LANES(0, a->width, swiglu_step, a->y_TF + t * ldy, a->gate_TF + t * ldg, a->up_TF + t * ldu);
}

loom_status ISA(swiglu)(loom_cpu *cpu, const loom_swiglu_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->width * 4), swiglu_rows, a);
    return LOOM_OK;
}

typedef struct swiglu_row {
    float *dgate, *dup;
    const float *dy, *gate, *up;
} swiglu_row;

LOOM_INLINE void swiglu_backward_step(const swiglu_row *r, int64_t i, int n)
{
    vf gate = vf_get(r->gate + i, n), up = vf_get(r->up + i, n), dy = vf_get(r->dy + i, n), rest;
    vf s = sigmoid(gate, &rest);

    vf_put(r->dup + i, dy * gate * s, n);
    vf_put(r->dgate + i, dy * up * s * vf_fma(gate, rest, vf_set(1.0f)), n);
}

static void swiglu_backward_rows(const void *context, int64_t from, int64_t to)
{
    const loom_swiglu_backward_args *a = context;
    int64_t w = a->width;

    for (int64_t t = from; t < to; t++) {
        const swiglu_row row = {
            .dgate = a->dgate_TF + t * or_tight(a->ld_dgate, w),
            .dup = a->dup_TF + t * or_tight(a->ld_dup, w),
            .dy = a->dy_TF + t * or_tight(a->ld_dy, w),
            .gate = a->gate_TF + t * or_tight(a->ld_gate, w),
            .up = a->up_TF + t * or_tight(a->ld_up, w),
        };
        EACH_LANES(0, w, swiglu_backward_step, &row);
    }
}

loom_status ISA(swiglu_backward)(loom_cpu *cpu, const loom_swiglu_backward_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->width * 4), swiglu_backward_rows, a);
    return LOOM_OK;
}
