/* f32 to and from the 16-bit floats, to nearest even. bf16 by integer arithmetic on vectors; f16 by the instructions for it where the set
 * has them, else element by element. */
#include "kernels/cpu/isa.h"

typedef uint16_t half_memory __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef uint32_t vu __attribute__((vector_size(VECTOR_BYTES)));

LOOM_INLINE halves to_bf16(vf x)
{
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    vu quiet = bits >> 16 | 0x40u; /* rounding could carry a NaN into infinity */

    return __builtin_convertvector((vu)vf_select(x == x, (vf)rounded, (vf)quiet), halves);
}

LOOM_INLINE vf from_bf16(halves bits)
{
    return (vf)(__builtin_convertvector(bits, vu) << 16);
}

#if defined(__AVX512F__)
LOOM_INLINE halves to_f16(vf x)
{
    return (halves)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

LOOM_INLINE vf from_f16(halves bits)
{
    return (vf)_mm512_cvtph_ps((__m256i)bits);
}
#elif defined(__F16C__)
LOOM_INLINE halves to_f16(vf x)
{
    return (halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

LOOM_INLINE vf from_f16(halves bits)
{
    return (vf)_mm256_cvtph_ps((__m128i)bits);
}
#else
LOOM_INLINE halves to_f16(vf x)
{
    halves bits;

    for (int i = 0; i < LANES; i++)
        bits[i] = loom_f16_from_f32(x[i]);
    return bits;
}

LOOM_INLINE vf from_f16(halves bits)
{
    vf x;

    for (int i = 0; i < LANES; i++)
        x[i] = loom_f32_from_f16(bits[i]);
    return x;
}
#endif

LOOM_INLINE halves halves_get(const uint16_t *from, int n)
{
    halves bits = {0};

    if (n == LANES)
        return *(const half_memory *)from;
    memcpy(&bits, from, (size_t)n * sizeof *from);
    return bits;
}

LOOM_INLINE void halves_put(uint16_t *to, halves bits, int n)
{
    if (n == LANES)
        *(half_memory *)to = bits;
    else
        memcpy(to, &bits, (size_t)n * sizeof *to);
}

LOOM_INLINE void to_bf16_step(uint16_t *y, const float *x, int64_t i, int n)
{
    halves_put(y + i, to_bf16(vf_get(x + i, n)), n);
}

LOOM_INLINE void from_bf16_step(float *y, const uint16_t *x, int64_t i, int n)
{
    vf_put(y + i, from_bf16(halves_get(x + i, n)), n);
}

LOOM_INLINE void to_f16_step(uint16_t *y, const float *x, int64_t i, int n)
{
    halves_put(y + i, to_f16(vf_get(x + i, n)), n);
}

LOOM_INLINE void from_f16_step(float *y, const uint16_t *x, int64_t i, int n)
{
    vf_put(y + i, from_f16(halves_get(x + i, n)), n);
}

static void cast_span(const void *context, int64_t from, int64_t to)
{
    const loom_cast_args *a = context;

    if (a->x_dtype == a->y_dtype) {
        size_t size = loom_dtype_bytes(a->x_dtype);
        memcpy((char *)a->y + (size_t)from * size, (const char *)a->x + (size_t)from * size, (size_t)(to - from) * size);
    } else if (a->y_dtype == LOOM_BF16) {
        EACH_LANES(from, to, to_bf16_step, a->y, a->x);
    } else if (a->y_dtype == LOOM_F16) {
        EACH_LANES(from, to, to_f16_step, a->y, a->x);
    } else if (a->x_dtype == LOOM_BF16) {
        EACH_LANES(from, to, from_bf16_step, a->y, a->x);
    } else {
        EACH_LANES(from, to, from_f16_step, a->y, a->x);
    }
}

loom_status ISA(cast)(loom_cpu *cpu, const loom_cast_args *a)
{
    loom_parallel_spans(cpu->threads, a->count, GRAIN_ELEMENTS, cast_span, a);
    return LOOM_OK;
}
