/* GELU (tanh form) and its slope on vectors: what the operations of their own and the product's epilogue share. */
#ifndef LOOM_KERNELS_GELU_H
#define LOOM_KERNELS_GELU_H

#include "kernels/cpu/vector.h"

/* With u = sqrt(2/pi) (x + 0.044715 x^3), (1 + tanh u) / 2 is 1 / (1 + exp(-2u)), which is exact where 1 + tanh u would cancel. */
static const float TWO_ROOT = 1.59576912160573071f; /* 2 sqrt(2/pi) */
static const float CUBIC = 0.044715f;

LOOM_INLINE vf gelu(vf x)
{
    vf u2 = x * vf_fma(x * x, vf_set(TWO_ROOT * CUBIC), vf_set(TWO_ROOT));

    return x / (1.0f + vf_exp(-u2));
}

/* 1 / (1 + exp(-x)), and what is left of it to 1, without the cancellation of 1 - s. Where exp(-x) overflows both are 0. */
LOOM_INLINE vf sigmoid(vf x, vf *rest)
{
    vf e = vf_exp(-x), s = 1.0f / (1.0f + e);

    *rest = vf_min(vf_set(3e38f), e) * s;
    return s;
}

/* s + x s (1 - s) du2/dx with s the sigmoid of u2. From |x| = 30 on it is 0 or 1 to the last bit, and 30^3 does not overflow. */
LOOM_INLINE vf gelu_slope(vf x)
{
    vf c = vf_min(vf_set(30.0f), vf_max(vf_set(-30.0f), x)), square = c * c, rest;
    vf s = sigmoid(c * vf_fma(square, vf_set(TWO_ROOT * CUBIC), vf_set(TWO_ROOT)), &rest);
    vf slope = vf_fma(square, vf_set(3 * TWO_ROOT * CUBIC), vf_set(TWO_ROOT));

    return s * vf_fma(c * slope, rest, vf_set(1.0f));
}

/* y = gelu(x), and dx = dy gelu'(x), elements i to i + n. */
LOOM_INLINE void gelu_lanes(float *y, const float *x, int64_t i, int n)
{
    vf_put(y + i, gelu(vf_get(x + i, n)), n);
}

LOOM_INLINE void gelu_slope_lanes(float *dx, const float *dy, const float *x, int64_t i, int n)
{
    vf_put(dx + i, vf_get(dy + i, n) * gelu_slope(vf_get(x + i, n)), n);
}

#endif
