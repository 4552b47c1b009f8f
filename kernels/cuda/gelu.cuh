/* GELU (tanh form) and its slope: what the operations of their own and the product's tiles share. */
#ifndef LOOM_KERNELS_CUDA_GELU_CUH
#define LOOM_KERNELS_CUDA_GELU_CUH

#include "kernels/cuda/device.cuh"

/* With u = sqrt(2/pi) (x + 0.044715 x^3), (1 + tanh u) / 2 is 1 / (1 + exp(-2u)), exact where 1 + tanh u would cancel. */
static constexpr float TWO_ROOT = 1.59576912160573071f, CUBIC = 0.044715f; /* 2 sqrt(2/pi) */

struct gelu_of {
    __device__ float operator()(float x) const
    {
        return x / (1.0f + expf(-x * fmaf(x * x, TWO_ROOT * CUBIC, TWO_ROOT)));
    }
};

/* s + x s (1 - s) du2/dx with s the sigmoid of u2. 1 - s as exp(-u2) s, which does not cancel; from |x| = 30 on s is 0 or 1 to the last
 * bit, and 30^3 does not overflow. */
struct gelu_slope_times {
    __device__ float operator()(float dy, float x) const
    {
        float c = is_nan(x) ? x : fminf(30.0f, fmaxf(-30.0f, x)), square = c * c;
        float e = expf(-c * fmaf(square, TWO_ROOT * CUBIC, TWO_ROOT)), s = 1.0f / (1.0f + e);
        float rest = is_nan(e) ? e : fminf(3e38f, e) * s;

        return dy * (s * fmaf(c * fmaf(square, 3 * TWO_ROOT * CUBIC, TWO_ROOT), rest, 1.0f));
    }
};

#endif
