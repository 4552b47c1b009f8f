/* Element types: sizes, names, and rounding between f32 and the narrow floats. */
#include <rankloom/dtype.h>

#include "core/bf16.h"

#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    size_t bytes;
} types[LOOM_DTYPE_COUNT] = {
    [LOOM_F32] = {"f32", 4},       [LOOM_F64] = {"f64", 8},       [LOOM_BF16] = {"bf16", 2}, [LOOM_F16] = {"f16", 2},
    [LOOM_F8E4M3] = {"f8e4m3", 1}, [LOOM_F8E5M2] = {"f8e5m2", 1}, [LOOM_I8] = {"i8", 1},     [LOOM_U8] = {"u8", 1},
    [LOOM_U16] = {"u16", 2},       [LOOM_I32] = {"i32", 4},       [LOOM_I64] = {"i64", 8},
};

/* What other tools call them. */
static const struct {
    const char *name;
    loom_dtype dtype;
} aliases[] = {
    {"fp32", LOOM_F32},         {"float32", LOOM_F32},     {"float", LOOM_F32},    {"fp64", LOOM_F64},         {"float64", LOOM_F64},
    {"double", LOOM_F64},       {"bfloat16", LOOM_BF16},   {"fp16", LOOM_F16},     {"float16", LOOM_F16},      {"half", LOOM_F16},
    {"f8_e4m3", LOOM_F8E4M3},   {"fp8", LOOM_F8E4M3},      {"fp8_e4m3", LOOM_F8E4M3}, {"float8_e4m3fn", LOOM_F8E4M3}, {"f8_e5m2", LOOM_F8E5M2},
    {"fp8_e5m2", LOOM_F8E5M2},  {"float8_e5m2", LOOM_F8E5M2}, {"int8", LOOM_I8},   {"uint8", LOOM_U8},         {"uint16", LOOM_U16},
    {"int32", LOOM_I32},        {"int64", LOOM_I64},
};

static bool known(loom_dtype dtype)
{
    return (unsigned)dtype < LOOM_DTYPE_COUNT;
}

size_t loom_dtype_bytes(loom_dtype dtype)
{
    return known(dtype) ? types[dtype].bytes : 0;
}

const char *loom_dtype_name(loom_dtype dtype)
{
    return known(dtype) ? types[dtype].name : "?";
}

bool loom_dtype_from_name(const char *name, loom_dtype *dtype)
{
    for (int i = 0; i < LOOM_DTYPE_COUNT; i++)
        if (!strcasecmp(name, types[i].name)) {
            *dtype = (loom_dtype)i;
            return true;
        }
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (!strcasecmp(name, aliases[i].name)) {
            *dtype = aliases[i].dtype;
            return true;
        }
    return false;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

enum { F32_MANTISSA = 23, F32_BIAS = 127 };
#define F32_INFINITY 0x7f800000u

/* A float narrower than f32: sign, `exponent` bits, `mantissa` bits. */
typedef struct narrow_format {
    int exponent, mantissa;
    uint32_t overflow; /* code of what is too large: infinity, or NaN where there is none */
    uint32_t nan;
} narrow_format;

static const narrow_format f16_format = {5, 10, 0x7c00, 0x7e00};
static const narrow_format e4m3_format = {4, 3, 0x7f, 0x7f};
static const narrow_format e5m2_format = {5, 2, 0x7c, 0x7e};

/* Drops the low `shift` bits, to nearest, ties to even. A carry out of the mantissa correctly becomes the next exponent. */
static uint32_t round_off(uint32_t bits, int shift)
{
    uint32_t half_less_one = (1u << (shift - 1)) - 1;

    return (bits + half_less_one + ((bits >> shift) & 1)) >> shift;
}

static uint32_t narrow(float value, const narrow_format *format)
{
    uint32_t magnitude = bits_of(value) & 0x7fffffffu;
    uint32_t sign = (bits_of(value) >> 31) << (format->exponent + format->mantissa);
    int bias = (1 << (format->exponent - 1)) - 1;
    int exponent = (int)(magnitude >> F32_MANTISSA) - F32_BIAS + bias;
    int shift = F32_MANTISSA - format->mantissa;
    uint32_t code;

    if (magnitude > F32_INFINITY)
        return sign | format->nan;
    if (exponent >= 1) {
        code = round_off(((uint32_t)exponent << F32_MANTISSA) | (magnitude & 0x7fffffu), shift);
    } else { /* below the smallest normal number: the leading one becomes visible and moves right */
        shift += 1 - exponent;
        code = shift > F32_MANTISSA + 2 ? 0 : round_off((magnitude & 0x7fffffu) | (1u << F32_MANTISSA), shift);
    }
    return sign | (code > format->overflow ? format->overflow : code);
}

static float widen(uint32_t bits, const narrow_format *format)
{
    int width = format->exponent + format->mantissa;
    uint32_t sign = (bits >> width) << 31, magnitude = bits & ((1u << width) - 1);
    int bias = (1 << (format->exponent - 1)) - 1;
    uint32_t exponent = magnitude >> format->mantissa, mantissa = magnitude & ((1u << format->mantissa) - 1);

    if (magnitude == format->overflow || magnitude > format->overflow)
        return float_of(sign | (magnitude == format->overflow && format->overflow != format->nan ? F32_INFINITY : 0x7fc00000u));
    if (exponent == 0) { /* mantissa * 2^(1 - bias - bits): exact in f32 */
        float scale = float_of((uint32_t)(1 - bias - format->mantissa + F32_BIAS) << F32_MANTISSA);
        return float_of(sign | bits_of((float)mantissa * scale));
    }
    return float_of(sign | ((exponent + (uint32_t)(F32_BIAS - bias)) << F32_MANTISSA) | (mantissa << (F32_MANTISSA - format->mantissa)));
}

uint16_t loom_bf16_from_f32(float value)
{
    return loom_bf16_round(value);
}

float loom_f32_from_bf16(uint16_t bits)
{
    return loom_bf16_widen(bits);
}

uint16_t loom_f16_from_f32(float value)
{
    return (uint16_t)narrow(value, &f16_format);
}

float loom_f32_from_f16(uint16_t bits)
{
    return widen(bits, &f16_format);
}

uint8_t loom_f8e4m3_from_f32(float value)
{
    return (uint8_t)narrow(value, &e4m3_format);
}

float loom_f32_from_f8e4m3(uint8_t bits)
{
    return widen(bits, &e4m3_format);
}

uint8_t loom_f8e5m2_from_f32(float value)
{
    return (uint8_t)narrow(value, &e5m2_format);
}

float loom_f32_from_f8e5m2(uint8_t bits)
{
    return widen(bits, &e5m2_format);
}
