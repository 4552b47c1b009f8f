/* Matrix products of our own: where cuBLASLt is not there or not wanted, and for groups of rows whose sizes only the device knows. */
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/rows.cuh"

struct gemm_kernel_args {
    product p;
    int64_t batch, stride_a, stride_b, stride_c;
};

template <bool a_along_k, bool b_along_k, bool tensor_cores>
__global__ void __launch_bounds__(PRODUCT_THREADS) gemm_kernel(const gemm_kernel_args g)
{
    LOOM_SHARED(product_tiles, tiles);

    for (int64_t i = blockIdx.z; i < g.batch; i += gridDim.z) {
        product p = g.p;

        p.a.at += i * g.stride_a, p.b.at += i * g.stride_b, p.c += i * g.stride_c;
        p.gelu = p.gelu ? p.gelu + i * g.stride_c : nullptr;
        p.gelu_input = p.gelu_input ? p.gelu_input + i * g.stride_c : nullptr;
        if (i != blockIdx.z)
            __syncthreads(); /* the matrix before this one is through with the tiles */
        product_tile<a_along_k, b_along_k, tensor_cores>(p, static_cast<int64_t>(blockIdx.x) * TILE, static_cast<int64_t>(blockIdx.y) * TILE, tiles);
    }
}

template <bool tensor_cores> static int own_gemm(const loom_gpu *gpu, const loom_gemm_args *a)
{
    gemm_kernel_args g = {};
    void (*const kernels[2][2])(gemm_kernel_args) = {{gemm_kernel<false, false, tensor_cores>, gemm_kernel<false, true, tensor_cores>},
                                                     {gemm_kernel<true, false, tensor_cores>, gemm_kernel<true, true, tensor_cores>}};

    g.batch = or_tight(a->batch, 1), g.stride_a = a->stride_a, g.stride_b = a->stride_b, g.stride_c = a->stride_c;
    bool batched = g.batch > 1;
    int64_t lda = or_tight(a->lda, a->transpose_a ? a->m : a->k), ldb = or_tight(a->ldb, a->transpose_b ? a->k : a->n);
    g.p.a = {a->a_MK, lda, a->m, a->k, quads(a->a_MK, lda) && (!batched || g.stride_a % 4 == 0)};
    g.p.b = {a->b_KN, ldb, a->n, a->k, quads(a->b_KN, ldb) && (!batched || g.stride_b % 4 == 0)};
    g.p.c = a->c_MN, g.p.bias = a->bias_N, g.p.ldc = or_tight(a->ldc, a->n), g.p.accumulate = a->accumulate;
    g.p.gelu = a->gelu_MN, g.p.gelu_input = a->gelu_input_MN;
    g.p.quads = quads(a->c_MN, g.p.ldc) && aligned16(a->bias_N) && aligned16(a->gelu_MN) && aligned16(a->gelu_input_MN) &&
                (!batched || g.stride_c % 4 == 0);
    return loom_launch(gpu, kernels[!a->transpose_a][a->transpose_b],
                       dim3(static_cast<unsigned>(ceil_div(a->m, TILE)), static_cast<unsigned>(ceil_div(a->n, TILE)), at_most(g.batch, LOOM_GRID_Y)),
                       dim3(PRODUCT_THREADS), 0, g);
}

/* What is asked of GELU, done to a product that cuBLASLt made without it: rows of all matrices, one after the other. */
struct gelu_after {
    float *c, *gelu;
    const float *gelu_input;
    int64_t rows, ldc, stride_c;
    __device__ void row_quad(int64_t r, int64_t i, int64_t cols, bool q) const
    {
        int64_t at = r / rows * stride_c + r % rows * ldc;
        float4 v = load_some(c + at, i, cols, q, 0);

        if (gelu)
            store_some(gelu + at, i, cols, q, gelu_of_quad(v));
        else
            store_some(c + at, i, cols, q, times_slope(v, load_some(gelu_input + at, i, cols, q, 0)));
    }
};

static int apply_gelu(const loom_gpu *gpu, const loom_gemm_args *a)
{
    const gelu_after op = {a->c_MN, a->gelu_MN, a->gelu_input_MN, a->m, or_tight(a->ldc, a->n), a->stride_c};

    if (!a->gelu_MN && !a->gelu_input_MN)
        return 0;
    return each_row(gpu, or_tight(a->batch, 1) * a->m, a->n,
                    quads(a->c_MN, op.ldc) && aligned16(a->gelu_MN) && aligned16(a->gelu_input_MN) && op.stride_c % 4 == 0, op);
}

int loom_gpu_gemm(loom_gpu *gpu, const loom_gemm_args *a)
{
    loom_cublaslt_made made = LOOM_LT_NOTHING;

    if (a->m == 0 || a->n == 0)
        return 0;
    if (gpu->lt && a->k > 0)
        LOOM_GPU_TRY(loom_cublaslt_gemm(gpu, a, &made));
    if (made == LOOM_LT_ALL)
        return 0;
    if (made == LOOM_LT_PRODUCT)
        return apply_gelu(gpu, a);
    return gpu->math == LOOM_GPU_F32 ? own_gemm<false>(gpu, a) : own_gemm<true>(gpu, a);
}

/* --- groups --- */

struct grouped_args {
    loom_grouped_gemm_args a; /* strides filled in */
    bool quads_a, quads_b, quads_c;
};

/* Group `group` as an ordinary product, and how many rows of tiles it has. */
template <bool ragged_k> LOOM_DEVICE product product_of_group(const grouped_args &g, int64_t group)
{
    const loom_grouped_gemm_args &a = g.a;
    int64_t first = a.offset_G1[group], rows = a.offset_G1[group + 1] - first;
    product p = {};

    p.accumulate = a.accumulate, p.quads = g.quads_c, p.ldc = a.ldc;
    if (ragged_k) {
        p.a = {a.a + first * a.lda, a.lda, a.m, rows, g.quads_a};
        p.b = {a.b + first * a.ldb, a.ldb, a.n, rows, g.quads_b};
        p.c = a.c + group * a.stride_c;
    } else {
        p.a = {a.a + first * a.lda, a.lda, rows, a.k, g.quads_a};
        p.b = {a.b + group * a.stride_b, a.ldb, a.n, a.k, g.quads_b};
        p.c = a.c + first * a.ldc;
    }
    return p;
}

/* Blocks take tiles in turn, over all groups; how many there are only the offsets tell, so every block counts along. */
template <bool ragged_k, bool b_along_k, bool tensor_cores>
__global__ void __launch_bounds__(PRODUCT_THREADS) grouped_kernel(const grouped_args g)
{
    LOOM_SHARED(product_tiles, tiles);
    int64_t columns = (g.a.n + TILE - 1) / TILE, first_tile = 0, tile = blockIdx.x;

    for (int64_t group = 0; group < g.a.groups; group++) {
        product p = product_of_group<ragged_k>(g, group);
        int64_t count = (p.a.rows + TILE - 1) / TILE * columns;

        for (; tile < first_tile + count; tile += gridDim.x) {
            int64_t t = tile - first_tile;
            __syncthreads(); /* the tile before this one is through with the shared ones */
            product_tile<!ragged_k, b_along_k, tensor_cores>(p, t / columns * TILE, t % columns * TILE, tiles);
        }
        first_tile += count;
    }
}

template <bool tensor_cores> static auto kernel_of(const loom_grouped_gemm_args *a) -> void (*)(grouped_args)
{
    if (a->ragged_k)
        return grouped_kernel<true, false, tensor_cores>;
    return a->transpose_b ? grouped_kernel<false, true, tensor_cores> : grouped_kernel<false, false, tensor_cores>;
}

int loom_gpu_grouped_gemm(loom_gpu *gpu, const loom_grouped_gemm_args *args)
{
    grouped_args g = {*args, false, false, false};
    loom_grouped_gemm_args *a = &g.a;

    if (a->groups == 0 || a->n == 0 || (a->ragged_k && a->m == 0))
        return 0;
    a->lda = or_tight(a->lda, a->ragged_k ? a->m : a->k);
    a->ldb = or_tight(a->ldb, a->transpose_b ? a->k : a->n);
    a->ldc = or_tight(a->ldc, a->n);
    g.quads_a = quads(a->a, a->lda);
    g.quads_b = quads(a->b, a->ldb) && (a->ragged_k || a->stride_b % 4 == 0);
    g.quads_c = quads(a->c, a->ldc) && (!a->ragged_k || a->stride_c % 4 == 0);
    return loom_launch(gpu, gpu->math == LOOM_GPU_F32 ? kernel_of<false>(a) : kernel_of<true>(a), dim3(static_cast<unsigned>(2 * gpu->multiprocessors)),
                       dim3(PRODUCT_THREADS), 0, g);
}
