/* Rotary positions: the table, and the rotation of half-split pairs. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS) rope_table_kernel(const loom_rope_table_args a)
{
    int64_t half = a.head_dim / 2, count = a.positions * half, step = static_cast<int64_t>(gridDim.x) * THREADS;

    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += step) {
        double exponent = -2.0 * static_cast<double>(i % half) / static_cast<double>(a.head_dim);
        double angle = static_cast<double>(a.start + i / half) * pow(a.theta, exponent);

        a.cos_PK[i] = static_cast<float>(cos(angle));
        a.sin_PK[i] = static_cast<float>(sin(angle));
    }
}

int loom_gpu_rope_table(loom_gpu *gpu, const loom_rope_table_args *a)
{
    int64_t count = a->positions * (a->head_dim / 2);

    if (count == 0)
        return 0;
    return loom_launch(gpu, rope_table_kernel, dim3(stride_blocks(gpu, count, THREADS)), dim3(THREADS), 0, *a);
}

struct rope_kernel_args {
    loom_rope_args a; /* strides filled in */
    int64_t seq;
    float sign;
    int width; /* 4: quads, 1: single elements */
};

LOOM_DEVICE void rotate(const rope_kernel_args &r, float *y, const float *x, const float *cosine, const float *sine, int64_t half)
{
    if (r.width == 4) {
        float4 low = load4(x), high = load4(x + half), c = load4(cosine), s = load4(sine) * r.sign;
        store4(y, make_float4(low.x * c.x - high.x * s.x, low.y * c.y - high.y * s.y, low.z * c.z - high.z * s.z, low.w * c.w - high.w * s.w));
        store4(y + half, make_float4(high.x * c.x + low.x * s.x, high.y * c.y + low.y * s.y, high.z * c.z + low.z * s.z, high.w * c.w + low.w * s.w));
        return;
    }
    float low = *x, high = x[half], c = *cosine, s = *sine * r.sign;
    *y = low * c - high * s;
    y[half] = high * c + low * s;
}

/* Threads in x walk the pairs of a token's heads, blocks in y the tokens. */
__global__ void __launch_bounds__(THREADS) rope_kernel(const rope_kernel_args r)
{
    const loom_rope_args &a = r.a;
    int64_t half = a.head_dim / 2, item = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * r.width;
    int64_t h = item / half, i = item % half, step = static_cast<int64_t>(gridDim.y) * blockDim.y;

    if (h >= a.heads)
        return;
    for (int64_t t = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; t < a.tokens; t += step) {
        int64_t row = a.rows_T ? a.rows_T[t] : a.start + t % r.seq;
        float *y = a.y_THK + t * a.y_token + h * a.y_head + i;

        if (row >= 0 && row < a.positions) {
            rotate(r, y, a.x_THK + t * a.x_token + h * a.x_head + i, a.cos_PK + row * half + i, a.sin_PK + row * half + i, half);
            continue;
        }
        for (int k = 0; k < r.width; k++) /* a row that the table has not: shown, since nobody here can refuse it */
            y[k] = y[half + k] = not_a_number();
    }
}

int loom_gpu_rope(loom_gpu *gpu, const loom_rope_args *args)
{
    rope_kernel_args r = {*args, or_tight(args->seq, args->tokens), args->inverse ? -1.0f : 1.0f, 1};
    loom_rope_args *a = &r.a;
    int64_t half = a->head_dim / 2;
    unsigned wide = 32;

    if (a->tokens == 0 || a->heads == 0 || half == 0)
        return 0;
    a->y_head = or_tight(a->y_head, a->head_dim), a->x_head = or_tight(a->x_head, a->head_dim);
    a->y_token = or_tight(a->y_token, a->heads * a->head_dim), a->x_token = or_tight(a->x_token, a->heads * a->head_dim);
    if (half % 4 == 0 && quads(a->y_THK, a->y_token) && quads(a->x_THK, a->x_token) && a->y_head % 4 == 0 && a->x_head % 4 == 0 &&
        aligned16(a->cos_PK) && aligned16(a->sin_PK))
        r.width = 4;
    int64_t items = a->heads * half / r.width;
    while (wide < THREADS && wide < items)
        wide *= 2;
    return loom_launch(gpu, rope_kernel, dim3(static_cast<unsigned>(ceil_div(items, wide)), at_most(ceil_div(a->tokens, THREADS / wide), LOOM_GRID_Y)),
                       dim3(wide, THREADS / wide), 0, r);
}
