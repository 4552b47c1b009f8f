/* No include guard: reduce.c includes this once for each instruction set, with ISA(name) and one of PORTABLE, AVX2, AVX512 defined. */
#if defined(AVX2)
#include <immintrin.h>
#define TARGET __attribute__((target("avx2,f16c")))
#elif defined(AVX512)
#include <immintrin.h>
#if defined(__clang__) /* has no such attribute */
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,f16c")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,f16c,prefer-vector-width=512")))
#endif
#else
#define TARGET
#endif

#define COMBINE(name, type, expression)                                                                                                    \
    TARGET static void ISA(name)(void *out, const void *va, const void *vb, size_t count)                                                  \
    {                                                                                                                                      \
        type *o = out;                                                                                                                     \
        const type *pa = va, *pb = vb;                                                                                                     \
        for (size_t i = 0; i < count; i++) {                                                                                               \
            type a = pa[i], b = pb[i];                                                                                                     \
            o[i] = expression;                                                                                                             \
        }                                                                                                                                  \
    }

COMBINE(sum_f32, float, a + b)
COMBINE(max_f32, float, (b > a || b != b) ? b : a) /* a NaN on either side stays: NaN > b is false */
COMBINE(min_f32, float, (b < a || b != b) ? b : a)
COMBINE(sum_f64, double, a + b)
COMBINE(max_f64, double, (b > a || b != b) ? b : a)
COMBINE(min_f64, double, (b < a || b != b) ? b : a)
COMBINE(sum_i64, int64_t, (int64_t)((uint64_t)a + (uint64_t)b)) /* wraps, as integers do on every device */
COMBINE(max_i64, int64_t, b > a ? b : a)
COMBINE(min_i64, int64_t, b < a ? b : a)
#undef COMBINE

#define DIVIDE(name, type)                                                                                                                 \
    TARGET static void ISA(name)(void *values, size_t count, int by)                                                                       \
    {                                                                                                                                      \
        type *v = values;                                                                                                                  \
        for (size_t i = 0; i < count; i++)                                                                                                 \
            v[i] = v[i] / (type)by;                                                                                                        \
    }

DIVIDE(divide_f32, float)
DIVIDE(divide_f64, double)
DIVIDE(divide_i64, int64_t)
#undef DIVIDE

#define CONVERT(name, to_type, from_type, expression)                                                                                      \
    TARGET static void ISA(name)(void *to, const void *from, size_t count)                                                                 \
    {                                                                                                                                      \
        to_type *restrict t = to;                                                                                                          \
        const from_type *restrict f = from;                                                                                                \
        for (size_t i = 0; i < count; i++) {                                                                                               \
            from_type x = f[i];                                                                                                            \
            t[i] = expression;                                                                                                             \
        }                                                                                                                                  \
    }

CONVERT(widen_i8, int64_t, int8_t, x)
CONVERT(widen_u8, int64_t, uint8_t, x)
CONVERT(widen_u16, int64_t, uint16_t, x)
CONVERT(widen_i32, int64_t, int32_t, x)
CONVERT(narrow_i8, int8_t, int64_t, (int8_t)x)
CONVERT(narrow_u8, uint8_t, int64_t, (uint8_t)x)
CONVERT(narrow_u16, uint16_t, int64_t, (uint16_t)x)
CONVERT(narrow_i32, int32_t, int64_t, (int32_t)x)
CONVERT(widen_bf16, float, uint16_t, float_of((uint32_t)x << 16))
CONVERT(narrow_bf16, uint16_t, float, bf16_of(x))
CONVERT(widen_f8e4m3, float, uint8_t, loom_f32_from_f8e4m3(x))
CONVERT(narrow_f8e4m3, uint8_t, float, loom_f8e4m3_from_f32(x))
CONVERT(widen_f8e5m2, float, uint8_t, loom_f32_from_f8e5m2(x))
CONVERT(narrow_f8e5m2, uint8_t, float, loom_f8e5m2_from_f32(x))

#if defined(PORTABLE)
CONVERT(widen_f16, float, uint16_t, loom_f32_from_f16(x))
CONVERT(narrow_f16, uint16_t, float, loom_f16_from_f32(x))
#else
TARGET static void ISA(widen_f16)(void *to, const void *from, size_t count)
{
    float *t = to;
    const uint16_t *f = from;
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(t + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(f + i))));
    for (; i < count; i++)
        t[i] = loom_f32_from_f16(f[i]);
}

TARGET static void ISA(narrow_f16)(void *to, const void *from, size_t count)
{
    uint16_t *t = to;
    const float *f = from;
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(t + i), _mm256_cvtps_ph(_mm256_loadu_ps(f + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; i++)
        t[i] = loom_f16_from_f32(f[i]);
}
#endif
#undef CONVERT

static const loom_reducer ISA(reducer) = {
#if defined(AVX512)
    .name = "avx512",
#elif defined(AVX2)
    .name = "avx2",
#else
    .name = "portable",
#endif
    .combine =
        {
            [WIDE_F32] = {[LOOM_SUM] = ISA(sum_f32), [LOOM_AVG] = ISA(sum_f32), [LOOM_MAX] = ISA(max_f32), [LOOM_MIN] = ISA(min_f32)},
            [WIDE_F64] = {[LOOM_SUM] = ISA(sum_f64), [LOOM_AVG] = ISA(sum_f64), [LOOM_MAX] = ISA(max_f64), [LOOM_MIN] = ISA(min_f64)},
            [WIDE_I64] = {[LOOM_SUM] = ISA(sum_i64), [LOOM_AVG] = ISA(sum_i64), [LOOM_MAX] = ISA(max_i64), [LOOM_MIN] = ISA(min_i64)},
        },
    .divide = {ISA(divide_f32), ISA(divide_f64), ISA(divide_i64)},
    .widen =
        {
            [LOOM_BF16] = ISA(widen_bf16),
            [LOOM_F16] = ISA(widen_f16),
            [LOOM_F8E4M3] = ISA(widen_f8e4m3),
            [LOOM_F8E5M2] = ISA(widen_f8e5m2),
            [LOOM_I8] = ISA(widen_i8),
            [LOOM_U8] = ISA(widen_u8),
            [LOOM_U16] = ISA(widen_u16),
            [LOOM_I32] = ISA(widen_i32),
        },
    .narrow =
        {
            [LOOM_BF16] = ISA(narrow_bf16),
            [LOOM_F16] = ISA(narrow_f16),
            [LOOM_F8E4M3] = ISA(narrow_f8e4m3),
            [LOOM_F8E5M2] = ISA(narrow_f8e5m2),
            [LOOM_I8] = ISA(narrow_i8),
            [LOOM_U8] = ISA(narrow_u8),
            [LOOM_U16] = ISA(narrow_u16),
            [LOOM_I32] = ISA(narrow_i32),
        },
};
#undef TARGET
