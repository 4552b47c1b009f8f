/* Operations whose elements know nothing of each other: activations, arithmetic, casts, AdamW. All are bound by memory, so each reads and
 * writes once, four floats at a time where the pointers allow it. */
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/rows.cuh"

enum { THREADS = 256 };

/* --- flat --- */

/* An operation has quad(i), elements i to i + 3 of aligned vectors, and one(i). */
template <class Op> struct each_args {
    Op op;
    int64_t count;
    bool quads;
};

template <class Op> __global__ void __launch_bounds__(THREADS) each_kernel(const each_args<Op> a)
{
    int64_t first = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, step = static_cast<int64_t>(gridDim.x) * THREADS;
    int64_t whole = a.quads ? a.count / 4 : 0;

    for (int64_t i = first; i < whole; i += step)
        a.op.quad(4 * i);
    for (int64_t i = 4 * whole + first; i < a.count; i += step)
        a.op.one(i);
}

template <class Op> static int each(const loom_gpu *gpu, int64_t count, bool whole_quads, Op op)
{
    const each_args<Op> a = {op, count, whole_quads};

    if (count == 0)
        return 0;
    return loom_launch(gpu, each_kernel<Op>, dim3(stride_blocks(gpu, count, 4 * THREADS)), dim3(THREADS), 0, a);
}

/* y = f(x). */
template <class F> struct unary {
    float *y;
    const float *x;
    F f;
    __device__ void one(int64_t i) const
    {
        y[i] = f(x[i]);
    }
    __device__ void quad(int64_t i) const
    {
        float4 v = load4(x + i);
        store4(y + i, make_float4(f(v.x), f(v.y), f(v.z), f(v.w)));
    }
};

/* y = f(a, b). */
template <class F> struct binary {
    float *y;
    const float *a, *b;
    F f;
    __device__ void one(int64_t i) const
    {
        y[i] = f(a[i], b[i]);
    }
    __device__ void quad(int64_t i) const
    {
        float4 u = load4(a + i), v = load4(b + i);
        store4(y + i, make_float4(f(u.x, v.x), f(u.y, v.y), f(u.z, v.z), f(u.w, v.w)));
    }
};

template <class F> static int map(const loom_gpu *gpu, float *y, const float *x, int64_t count, F f)
{
    return each(gpu, count, aligned16(y) && aligned16(x), unary<F>{y, x, f});
}

template <class F> static int map(const loom_gpu *gpu, float *y, const float *a, const float *b, int64_t count, F f)
{
    return each(gpu, count, aligned16(y) && aligned16(a) && aligned16(b), binary<F>{y, a, b, f});
}

/* --- GELU --- */

int loom_gpu_gelu(loom_gpu *gpu, const loom_gelu_args *a)
{
    return map(gpu, a->y, a->x, a->count, gelu_of());
}

int loom_gpu_gelu_backward(loom_gpu *gpu, const loom_gelu_backward_args *a)
{
    return map(gpu, a->dx, a->dy, a->x, a->count, gelu_slope_times());
}

/* --- arithmetic --- */

struct sum_of {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

struct axpy_of {
    float alpha;
    __device__ float operator()(float y, float x) const
    {
        return fmaf(alpha, x, y);
    }
};

/* The factor may lie on the device. */
struct scaled {
    float alpha;
    const float *alpha_at;
    __device__ float operator()(float x) const
    {
        return x * (alpha_at ? *alpha_at : alpha);
    }
};

struct filled {
    float *y;
    float value;
    __device__ void one(int64_t i) const
    {
        y[i] = value;
    }
    __device__ void quad(int64_t i) const
    {
        store4(y + i, make_float4(value, value, value, value));
    }
};

int loom_gpu_add(loom_gpu *gpu, const loom_add_args *a)
{
    return map(gpu, a->y, a->a, a->b, a->count, sum_of());
}

int loom_gpu_axpy(loom_gpu *gpu, const loom_axpy_args *a)
{
    return map(gpu, a->y, a->y, a->x, a->count, axpy_of{a->alpha});
}

int loom_gpu_scale(loom_gpu *gpu, const loom_scale_args *a)
{
    return map(gpu, a->y, a->x, a->count, scaled{a->alpha, a->alpha_at});
}

int loom_gpu_fill(loom_gpu *gpu, const loom_fill_args *a)
{
    return each(gpu, a->count, aligned16(a->y), filled{a->y, a->value});
}

/* --- casts, to nearest even --- */

#ifdef __CUDACC__
LOOM_DEVICE unsigned short f16_of(float x)
{
    unsigned short bits;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

LOOM_DEVICE float of_f16(unsigned short bits)
{
    float x;

    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#else
LOOM_DEVICE unsigned short f16_of(float x)
{
    return loom_f16_from_f32(x);
}

LOOM_DEVICE float of_f16(unsigned short bits)
{
    return loom_f32_from_f16(bits);
}
#endif

struct bf16_codec {
    static __device__ unsigned short encode(float x)
    {
        return bf16_of(x);
    }
    static __device__ float decode(unsigned short bits)
    {
        return of_bf16(bits);
    }
};

struct f16_codec {
    static __device__ unsigned short encode(float x)
    {
        return f16_of(x);
    }
    static __device__ float decode(unsigned short bits)
    {
        return of_f16(bits);
    }
};

/* Four halves in eight bytes. */
template <class Codec> struct narrowed {
    unsigned short *y;
    const float *x;
    __device__ void one(int64_t i) const
    {
        y[i] = Codec::encode(x[i]);
    }
    __device__ void quad(int64_t i) const
    {
        float4 v = load4(x + i);
        uint2 bits;
        bits.x = Codec::encode(v.x) | static_cast<unsigned>(Codec::encode(v.y)) << 16;
        bits.y = Codec::encode(v.z) | static_cast<unsigned>(Codec::encode(v.w)) << 16;
        *reinterpret_cast<uint2 *>(y + i) = bits;
    }
};

template <class Codec> struct widened {
    float *y;
    const unsigned short *x;
    __device__ void one(int64_t i) const
    {
        y[i] = Codec::decode(x[i]);
    }
    __device__ void quad(int64_t i) const
    {
        uint2 bits = *reinterpret_cast<const uint2 *>(x + i);
        store4(y + i, make_float4(Codec::decode(static_cast<unsigned short>(bits.x)), Codec::decode(static_cast<unsigned short>(bits.x >> 16)),
                                  Codec::decode(static_cast<unsigned short>(bits.y)), Codec::decode(static_cast<unsigned short>(bits.y >> 16))));
    }
};

template <class T> struct copied {
    T *y;
    const T *x;
    __device__ void one(int64_t i) const
    {
        y[i] = x[i];
    }
    __device__ void quad(int64_t i) const
    {
        for (int k = 0; k < 4; k++)
            y[i + k] = x[i + k];
    }
};

template <class Codec> static int cast_with(const loom_gpu *gpu, const loom_cast_args *a)
{
    bool whole_quads = aligned16(a->y) && aligned16(a->x);

    if (a->x_dtype == LOOM_F32)
        return each(gpu, a->count, whole_quads, narrowed<Codec>{static_cast<unsigned short *>(a->y), static_cast<const float *>(a->x)});
    return each(gpu, a->count, whole_quads, widened<Codec>{static_cast<float *>(a->y), static_cast<const unsigned short *>(a->x)});
}

struct same {
    __device__ float operator()(float x) const
    {
        return x;
    }
};

int loom_gpu_cast(loom_gpu *gpu, const loom_cast_args *a)
{
    if (a->x_dtype == LOOM_F32 && a->y_dtype == LOOM_F32)
        return map(gpu, static_cast<float *>(a->y), static_cast<const float *>(a->x), a->count, same());
    if (a->x_dtype == a->y_dtype)
        return each(gpu, a->count, false,
                    copied<unsigned short>{static_cast<unsigned short *>(a->y), static_cast<const unsigned short *>(a->x)});
    return a->x_dtype == LOOM_BF16 || a->y_dtype == LOOM_BF16 ? cast_with<bf16_codec>(gpu, a) : cast_with<f16_codec>(gpu, a);
}

/* --- AdamW --- */

struct clip_of {
    float *scale;
    const double *squares;
    double divisor, clip;

    __device__ void one(int64_t) const
    {
        double norm = sqrt(*squares) / divisor, kept = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;

        *scale = norm < HUGE_VAL ? static_cast<float>(kept / divisor) : not_a_number();
    }
    __device__ void quad(int64_t i) const
    {
        one(i);
    }
};

int loom_gpu_clip(loom_gpu *gpu, const loom_clip_args *a)
{
    return each(gpu, 1, false, clip_of{a->scale, a->squares, a->divisor, a->clip});
}

struct adamw_update {
    float *p, *m, *v;
    const float *gradient, *gradient_scale;
    float beta1, beta2, rest1, rest2, keep, step, root, eps;

    __device__ bool stays() const
    {
        return gradient_scale && is_nan(*gradient_scale);
    }
    __device__ void update(float &p_i, float &m_i, float &v_i, float g) const
    {
        m_i = fmaf(beta1, m_i, g * rest1);
        v_i = fmaf(beta2, v_i, g * g * rest2);
        p_i = p_i * keep - step * m_i / fmaf(sqrtf(v_i), root, eps);
    }
    __device__ void one(int64_t i) const
    {
        float p_i = p[i], m_i = m[i], v_i = v[i];
        if (stays())
            return;
        update(p_i, m_i, v_i, gradient[i] * (gradient_scale ? *gradient_scale : 1.0f));
        p[i] = p_i, m[i] = m_i, v[i] = v_i;
    }
    __device__ void quad(int64_t i) const
    {
        float4 p_i = load4(p + i), m_i = load4(m + i), v_i = load4(v + i);
        float4 g = load4(gradient + i) * (gradient_scale ? *gradient_scale : 1.0f);
        if (stays())
            return;
        update(p_i.x, m_i.x, v_i.x, g.x);
        update(p_i.y, m_i.y, v_i.y, g.y);
        update(p_i.z, m_i.z, v_i.z, g.z);
        update(p_i.w, m_i.w, v_i.w, g.w);
        store4(p + i, p_i), store4(m + i, m_i), store4(v + i, v_i);
    }
};

int loom_gpu_adamw(loom_gpu *gpu, const loom_adamw_args *a)
{
    adamw_update u = {};

    u.p = a->p, u.m = a->m, u.v = a->v, u.gradient = a->gradient, u.gradient_scale = a->gradient_scale;
    u.beta1 = static_cast<float>(a->beta1), u.beta2 = static_cast<float>(a->beta2);
    u.rest1 = static_cast<float>(1.0 - a->beta1), u.rest2 = static_cast<float>(1.0 - a->beta2);
    u.keep = static_cast<float>(1.0 - a->lr * a->decay), u.step = static_cast<float>(a->lr / a->correction1);
    u.root = static_cast<float>(1.0 / sqrt(a->correction2)), u.eps = static_cast<float>(a->eps);
    return each(gpu, a->count, aligned16(a->p) && aligned16(a->m) && aligned16(a->v) && aligned16(a->gradient), u);
}

/* --- rows with any distance between them --- */

struct swiglu_op {
    float *y;
    const float *gate, *up;
    int64_t ldy, ldg, ldu;
    static __device__ float of(float g, float u)
    {
        return g / (1.0f + expf(-g)) * u;
    }
    __device__ void row_quad(int64_t r, int64_t i, int64_t cols, bool q) const
    {
        float4 g = load_some(gate + r * ldg, i, cols, q, 0), u = load_some(up + r * ldu, i, cols, q, 0);
        store_some(y + r * ldy, i, cols, q, make_float4(of(g.x, u.x), of(g.y, u.y), of(g.z, u.z), of(g.w, u.w)));
    }
};

int loom_gpu_swiglu(loom_gpu *gpu, const loom_swiglu_args *a)
{
    const swiglu_op op = {a->y_TF, a->gate_TF, a->up_TF, or_tight(a->ldy, a->width), or_tight(a->ld_gate, a->width), or_tight(a->ld_up, a->width)};

    return each_row(gpu, a->tokens, a->width, quads(op.y, op.ldy) && quads(op.gate, op.ldg) && quads(op.up, op.ldu), op);
}

struct swiglu_backward_op {
    float *dgate, *dup;
    const float *dy, *gate, *up;
    int64_t lddg, lddu, lddy, ldg, ldu;

    /* 1 - s as exp(-g) s: no cancellation where s is near 1 */
    static __device__ void of(float d, float g, float u, float &dg, float &du)
    {
        float e = expf(-g), s = 1.0f / (1.0f + e), rest = is_nan(e) ? e : fminf(3e38f, e) * s;
        du = d * (g * s);
        dg = d * u * s * fmaf(g, rest, 1.0f);
    }
    __device__ void row_quad(int64_t r, int64_t i, int64_t cols, bool q) const
    {
        float4 d = load_some(dy + r * lddy, i, cols, q, 0), g = load_some(gate + r * ldg, i, cols, q, 0);
        float4 u = load_some(up + r * ldu, i, cols, q, 0), dg, du;
        of(d.x, g.x, u.x, dg.x, du.x);
        of(d.y, g.y, u.y, dg.y, du.y);
        of(d.z, g.z, u.z, dg.z, du.z);
        of(d.w, g.w, u.w, dg.w, du.w);
        store_some(dgate + r * lddg, i, cols, q, dg);
        store_some(dup + r * lddu, i, cols, q, du);
    }
};

int loom_gpu_swiglu_backward(loom_gpu *gpu, const loom_swiglu_backward_args *a)
{
    int64_t w = a->width;
    const swiglu_backward_op op = {a->dgate_TF, a->dup_TF, a->dy_TF, a->gate_TF, a->up_TF, or_tight(a->ld_dgate, w), or_tight(a->ld_dup, w),
                                   or_tight(a->ld_dy, w), or_tight(a->ld_gate, w), or_tight(a->ld_up, w)};
    bool q = quads(op.dgate, op.lddg) && quads(op.dup, op.lddu) && quads(op.dy, op.lddy) && quads(op.gate, op.ldg) && quads(op.up, op.ldu);

    return each_row(gpu, a->tokens, w, q, op);
}

struct bias_op {
    float *y;
    const float *bias;
    int64_t ldy;
    __device__ void row_quad(int64_t r, int64_t i, int64_t cols, bool q) const
    {
        store_some(y + r * ldy, i, cols, q, load_some(y + r * ldy, i, cols, q, 0) + load_some(bias, i, cols, q, 0));
    }
};

int loom_gpu_bias(loom_gpu *gpu, const loom_bias_args *a)
{
    const bias_op op = {a->y_TN, a->bias_N, or_tight(a->ldy, a->width)};

    return each_row(gpu, a->tokens, a->width, quads(op.y, op.ldy) && aligned16(op.bias), op);
}

/* Rows of all planes, one after the other. */
struct copy_op {
    float *y;
    const float *x;
    int64_t rows, y_plane, x_plane, y_row, x_row;
    bool accumulate;
    __device__ void row_quad(int64_t r, int64_t i, int64_t cols, bool q) const
    {
        const float *from = x + r / rows * x_plane + r % rows * x_row;
        float *to = y + r / rows * y_plane + r % rows * y_row;
        float4 v = load_some(from, i, cols, q, 0);
        store_some(to, i, cols, q, accumulate ? load_some(to, i, cols, q, 0) + v : v);
    }
};

int loom_gpu_copy(loom_gpu *gpu, const loom_copy_args *a)
{
    copy_op op = {a->y, a->x, a->rows, 0, 0, or_tight(a->y_row, a->cols), or_tight(a->x_row, a->cols), a->accumulate};

    op.y_plane = or_tight(a->y_plane, a->rows * op.y_row), op.x_plane = or_tight(a->x_plane, a->rows * op.x_row);
    return each_row(gpu, or_tight(a->planes, 1) * a->rows, a->cols,
                    quads(op.y, op.y_row) && op.y_plane % 4 == 0 && quads(op.x, op.x_row) && op.x_plane % 4 == 0, op);
}
