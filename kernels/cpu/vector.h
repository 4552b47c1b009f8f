/* A vector of floats as wide as the instruction set this file is compiled for; the kernels are written once on top of it.
 *
 * Compiled several times: with LOOM_ISA set to portable, avx2 or avx512, and the flags to go with it. Everything here is static, so the
 * copies never meet. Lanes at the end of a row are handled by the _n forms, which touch only the first n elements of memory. */
#ifndef LOOM_KERNELS_VECTOR_H
#define LOOM_KERNELS_VECTOR_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { VECTOR_BYTES = LANES * 4 };

typedef float vf __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(VECTOR_BYTES))); /* integers, and masks: all bits of a lane or none */
typedef float vf_memory __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t vi_memory __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));

#define LOOM_INLINE static inline __attribute__((always_inline))

LOOM_INLINE vf vf_load(const float *from)
{
    return *(const vf_memory *)from;
}

LOOM_INLINE void vf_store(float *to, vf x)
{
    *(vf_memory *)to = x;
}

LOOM_INLINE vf vf_set(float x)
{
    return x - (vf){0};
}

LOOM_INLINE vi vi_set(int32_t x)
{
    return x - (vi){0};
}

LOOM_INLINE vi vi_load(const int32_t *from)
{
    return *(const vi_memory *)from;
}

/* 0, 1, 2, … */
LOOM_INLINE vi vi_ramp(void)
{
    vi ramp;

    for (int i = 0; i < LANES; i++)
        ramp[i] = i;
    return ramp;
}

LOOM_INLINE vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

#if defined(__AVX512F__)
LOOM_INLINE __mmask16 first_lanes(int n)
{
    return (__mmask16)((1u << n) - 1);
}

LOOM_INLINE vf vf_load_n(const float *from, int n)
{
    return (vf)_mm512_maskz_loadu_ps(first_lanes(n), from);
}

LOOM_INLINE void vf_store_n(float *to, vf x, int n)
{
    _mm512_mask_storeu_ps(to, first_lanes(n), (__m512)x);
}

LOOM_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

/* The larger; b if either is not a number, so the operand that may be one goes second. */
LOOM_INLINE vf vf_max(vf a, vf b)
{
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}

LOOM_INLINE vf vf_min(vf a, vf b)
{
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}

LOOM_INLINE vf vf_sqrt(vf x)
{
    return (vf)_mm512_sqrt_ps((__m512)x);
}

LOOM_INLINE vf vf_round(vf x)
{
    return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
}

/* x 2^n for integral n, rounded once, subnormal results included. */
LOOM_INLINE vf vf_scale_by_power(vf x, vf n)
{
    return (vf)_mm512_scalef_ps((__m512)x, (__m512)n);
}

#else /* AVX2 and portable */

#if defined(__AVX2__)
LOOM_INLINE vi first_lanes(int n)
{
    return vi_ramp() < vi_set(n);
}

LOOM_INLINE vf vf_load_n(const float *from, int n)
{
    return (vf)_mm256_maskload_ps(from, (__m256i)first_lanes(n));
}

LOOM_INLINE void vf_store_n(float *to, vf x, int n)
{
    _mm256_maskstore_ps(to, (__m256i)first_lanes(n), (__m256)x);
}

LOOM_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

LOOM_INLINE vf vf_max(vf a, vf b)
{
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}

LOOM_INLINE vf vf_min(vf a, vf b)
{
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
}

LOOM_INLINE vf vf_sqrt(vf x)
{
    return (vf)_mm256_sqrt_ps((__m256)x);
}

LOOM_INLINE vf vf_round(vf x)
{
    return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#else
LOOM_INLINE vf vf_load_n(const float *from, int n)
{
    vf x = {0};

    memcpy(&x, from, (size_t)n * sizeof *from);
    return x;
}

LOOM_INLINE void vf_store_n(float *to, vf x, int n)
{
    memcpy(to, &x, (size_t)n * sizeof *to);
}

LOOM_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

LOOM_INLINE vf vf_max(vf a, vf b)
{
    return vf_select(a > b, a, b);
}

LOOM_INLINE vf vf_min(vf a, vf b)
{
    return vf_select(a < b, a, b);
}

LOOM_INLINE vf vf_sqrt(vf x)
{
    for (int i = 0; i < LANES; i++)
        x[i] = sqrtf(x[i]);
    return x;
}

/* For |x| < 2^22, which is all that exp needs: adding 1.5 * 2^23 leaves no bits for a fraction. */
LOOM_INLINE vf vf_round(vf x)
{
    return (x + 12582912.0f) - 12582912.0f;
}
#endif

/* x 2^n for integral n in [-252, 254]: two factors, since one float cannot hold 2^-140 or 2^128. */
LOOM_INLINE vf vf_scale_by_power(vf x, vf n)
{
    vi whole = __builtin_convertvector(n, vi), half = whole >> 1, rest = whole - half;

    return x * (vf)((half + 127) << 23) * (vf)((rest + 127) << 23);
}
#endif

/* The first n lanes. Where n is the constant LANES the test folds away: a kernel is written once for whole vectors and for the tail. */
LOOM_INLINE vf vf_get(const float *from, int n)
{
    return n == LANES ? vf_load(from) : vf_load_n(from, n);
}

LOOM_INLINE void vf_put(float *to, vf x, int n)
{
    if (n == LANES)
        vf_store(to, x);
    else
        vf_store_n(to, x, n);
}

/* The first n lanes, or zeros: memory is touched only if wanted. */
LOOM_INLINE vf vf_get_if(bool wanted, const float *from, int n)
{
#if defined(__AVX512F__)
    return vf_load_n(from, wanted ? n : 0);
#else
    return wanted ? vf_get(from, n) : vf_set(0);
#endif
}

/* Calls step(…, i, n) for n = LANES elements at a time from `from`, then once for the rest up to `to`. */
#define EACH_LANES(from, to, step, ...)                                                                                                    \
    do {                                                                                                                                   \
        int64_t lane_ = (from);                                                                                                            \
        for (; lane_ + LANES <= (to); lane_ += LANES)                                                                                      \
            step(__VA_ARGS__, lane_, LANES);                                                                                               \
        if (lane_ < (to))                                                                                                                  \
            step(__VA_ARGS__, lane_, (int)((to)-lane_));                                                                                   \
    } while (0)

/* Sum of the lanes, the upper half onto the lower until one is left. */
LOOM_INLINE float vf_sum(vf x)
{
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#elif defined(__AVX2__)
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

LOOM_INLINE float vf_largest(vf x)
{
    float lanes[LANES], largest;

    vf_store(lanes, x);
    largest = lanes[0];
    for (int i = 1; i < LANES; i++)
        largest = largest > lanes[i] ? largest : lanes[i];
    return largest;
}

/* Row i becomes column i of LANES vectors: pairs, then pairs of pairs, until whole rows have changed places. */
LOOM_INLINE void vf_transpose(vf x[LANES])
{
#if defined(__AVX512F__)
    __m512 t[16];

    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps((__m512)x[i], (__m512)x[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps((__m512)x[i], (__m512)x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int half = 0; half < 2; half++) { /* column 4 l + c of each quarter l */
            __m512d low = _mm512_castps_pd(t[i + half]), high = _mm512_castps_pd(t[i + 2 + half]);
            x[i + 2 * half] = (vf)_mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            x[i + 2 * half + 1] = (vf)_mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_f32x4((__m512)x[c], (__m512)x[4 + c], 0x44);          /* quarters 0 1 of rows 0-3, 0 1 of rows 4-7 */
        t[4 + c] = _mm512_shuffle_f32x4((__m512)x[c], (__m512)x[4 + c], 0xee);      /* quarters 2 3 */
        t[8 + c] = _mm512_shuffle_f32x4((__m512)x[8 + c], (__m512)x[12 + c], 0x44); /* the same of rows 8-15 */
        t[12 + c] = _mm512_shuffle_f32x4((__m512)x[8 + c], (__m512)x[12 + c], 0xee);
    }
    for (int c = 0; c < 4; c++) {
        x[c] = (vf)_mm512_shuffle_f32x4(t[c], t[8 + c], 0x88);
        x[4 + c] = (vf)_mm512_shuffle_f32x4(t[c], t[8 + c], 0xdd);
        x[8 + c] = (vf)_mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0x88);
        x[12 + c] = (vf)_mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0xdd);
    }
#elif defined(__AVX2__)
    __m256 t[8];

    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps((__m256)x[i], (__m256)x[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps((__m256)x[i], (__m256)x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; half++) {
            x[i + 2 * half] = (vf)_mm256_shuffle_ps(t[i + half], t[i + 2 + half], 0x44);
            x[i + 2 * half + 1] = (vf)_mm256_shuffle_ps(t[i + half], t[i + 2 + half], 0xee);
        }
    for (int c = 0; c < 4; c++) {
        __m256 low = (__m256)x[c], high = (__m256)x[4 + c];
        x[c] = (vf)_mm256_permute2f128_ps(low, high, 0x20);
        x[4 + c] = (vf)_mm256_permute2f128_ps(low, high, 0x31);
    }
#else
    for (int i = 0; i < LANES; i++)
        for (int j = i + 1; j < LANES; j++) {
            float other = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = other;
        }
#endif
}

/* e^x to 1 ulp over the whole range: 2^n times a polynomial of the rest, |rest| <= ln(2)/2. Below -104 it is 0, above 88.73 infinite, and
 * a NaN stays one. */
LOOM_INLINE vf vf_exp(vf x)
{
    const vf low = vf_set(-104.0f), high = vf_set(89.0f);
    vf clamped = vf_min(high, vf_max(low, x));
    vf n = vf_round(clamped * 1.44269504088896341f);
    vf rest = vf_fma(n, vf_set(-0.693359375f), clamped); /* ln 2 in two parts: the first has few bits, so n times it is exact */
    vf p;

    rest = vf_fma(n, vf_set(2.12194440e-4f), rest);
    p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, rest, vf_set(1.3981999507e-3f));
    p = vf_fma(p, rest, vf_set(8.3334519073e-3f));
    p = vf_fma(p, rest, vf_set(4.1665795894e-2f));
    p = vf_fma(p, rest, vf_set(1.6666665459e-1f));
    p = vf_fma(p, rest, vf_set(5.0000001201e-1f));
    p = vf_fma(p, rest * rest, rest) + 1.0f;
    return vf_scale_by_power(p, n);
}

#endif
