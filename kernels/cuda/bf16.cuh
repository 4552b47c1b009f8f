/* bf16, to nearest even and back. */
#ifndef LOOM_KERNELS_CUDA_BF16_CUH
#define LOOM_KERNELS_CUDA_BF16_CUH

#include "kernels/cuda/device.cuh"

LOOM_DEVICE unsigned short bf16_of(float x)
{
    unsigned bits = __float_as_uint(x);

    /* a NaN stays one: rounding could carry it into infinity */
    return static_cast<unsigned short>(is_nan(x) ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

LOOM_DEVICE float of_bf16(unsigned short bits)
{
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

#endif
