/* Tensor cores: products of 16 x 8 by 8 x 8 whose factors are f32 rounded to tf32 (10 bits of mantissa), and whose sums are f32.
 *
 * With g = lane / 4 and q = lane % 4, a lane holds of A (16 x 8) rows g and g + 8, columns q and q + 4; of B (8 x 8) rows q and q + 4, column
 * g; of C (16 x 8) rows g and g + 8, columns 2q and 2q + 1. So what comes out as C does not fit in as A; but a sum over k may take k in any
 * order: as A, C's columns 2q and 2q + 1 stand for k = q and q + 4 if B's rows are taken in that order, too. */
#ifndef LOOM_KERNELS_CUDA_MMA_CUH
#define LOOM_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

struct mma_a {
    float x[4]; /* (g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4) */
};

struct mma_c {
    float x[4]; /* (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1) */
};

#ifdef __CUDACC__
LOOM_DEVICE float to_tf32(float x)
{
    unsigned bits;

    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

/* c += a b. All lanes of the warp. */
LOOM_DEVICE void mma(mma_c &c, const mma_a &a, float b0, float b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
                 : "r"(__float_as_uint(a.x[0])), "r"(__float_as_uint(a.x[1])), "r"(__float_as_uint(a.x[2])), "r"(__float_as_uint(a.x[3])),
                   "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
#else
LOOM_DEVICE float to_tf32(float x)
{
    unsigned bits = __float_as_uint(x);

    /* to nearest, ties away from 0; not a number stays one */
    return is_nan(x) ? x : __uint_as_float((bits + 0x1000u) & ~0x1fffu);
}

LOOM_DEVICE void mma(mma_c &c, const mma_a &a, float b0, float b1)
{
    loom_shim_mma_tf32(c.x, a.x, b0, b1);
}
#endif

LOOM_DEVICE float4 to_tf32(float4 v)
{
    return make_float4(to_tf32(v.x), to_tf32(v.y), to_tf32(v.z), to_tf32(v.w));
}

LOOM_DEVICE int mma_g()
{
    return static_cast<int>(threadIdx.x % LOOM_WARP / 4);
}

LOOM_DEVICE int mma_q()
{
    return static_cast<int>(threadIdx.x % 4);
}

/* Columns [k, k + 8) of rows 0 .. 15 of a matrix whose rows are `row` floats. */
LOOM_DEVICE mma_a mma_rows(const float *at, int row, int k)
{
    const float *p = at + mma_g() * row + k + mma_q();

    return {{p[0], p[8 * row], p[4], p[8 * row + 4]}};
}

/* A result as the left factor of the next product, whose right factor then has rows 2q and 2q + 1 for k = q and q + 4. */
LOOM_DEVICE mma_a mma_again(const mma_c &c)
{
    return {{to_tf32(c.x[0]), to_tf32(c.x[2]), to_tf32(c.x[1]), to_tf32(c.x[3])}};
}

#endif
