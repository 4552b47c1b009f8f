#include "comm/values.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

double value_of(int rank, size_t index)
{
    return (double)((rank * 5 + (int)(index % 1021) * 3 + (int)(index / 1021)) % 4);
}

static float f32_at(const void *memory, size_t index)
{
    float value;

    memcpy(&value, (const char *)memory + index * 4, 4);
    return value;
}

#define AT(type) (((const type *)memory)[index])

double value_get(const void *memory, size_t index, loom_dtype dtype)
{
    switch (dtype) {
    case LOOM_F32:
        return f32_at(memory, index);
    case LOOM_F64:
        return AT(double);
    case LOOM_BF16:
        return loom_f32_from_bf16(AT(uint16_t));
    case LOOM_F16:
        return loom_f32_from_f16(AT(uint16_t));
    case LOOM_F8E4M3:
        return loom_f32_from_f8e4m3(AT(uint8_t));
    case LOOM_F8E5M2:
        return loom_f32_from_f8e5m2(AT(uint8_t));
    case LOOM_I8:
        return AT(int8_t);
    case LOOM_U8:
        return AT(uint8_t);
    case LOOM_U16:
        return AT(uint16_t);
    case LOOM_I32:
        return AT(int32_t);
    case LOOM_I64:
        return (double)AT(int64_t);
    case LOOM_DTYPE_COUNT:
        break;
    }
    return -1;
}
#undef AT

#define PUT(type, value) (((type *)memory)[index] = (value))

void value_set(void *memory, size_t index, loom_dtype dtype, double value)
{
    switch (dtype) {
    case LOOM_F32:
        PUT(float, (float)value);
        break;
    case LOOM_F64:
        PUT(double, value);
        break;
    case LOOM_BF16:
        PUT(uint16_t, loom_bf16_from_f32((float)value));
        break;
    case LOOM_F16:
        PUT(uint16_t, loom_f16_from_f32((float)value));
        break;
    case LOOM_F8E4M3:
        PUT(uint8_t, loom_f8e4m3_from_f32((float)value));
        break;
    case LOOM_F8E5M2:
        PUT(uint8_t, loom_f8e5m2_from_f32((float)value));
        break;
    case LOOM_I8:
        PUT(int8_t, (int8_t)value);
        break;
    case LOOM_U8:
        PUT(uint8_t, (uint8_t)value);
        break;
    case LOOM_U16:
        PUT(uint16_t, (uint16_t)value);
        break;
    case LOOM_I32:
        PUT(int32_t, (int32_t)value);
        break;
    case LOOM_I64:
        PUT(int64_t, (int64_t)value);
        break;
    case LOOM_DTYPE_COUNT:
        break;
    }
}
#undef PUT

void value_fill(void *memory, int rank, size_t first, size_t count, loom_dtype dtype)
{
    for (size_t i = 0; i < count; i++)
        value_set(memory, i, dtype, value_of(rank, first + i));
}

void value_expect(const void *memory, int rank, size_t first, size_t count, loom_dtype dtype)
{
    for (size_t i = 0; i < count; i++) {
        double got = value_get(memory, i, dtype);
        if (!(got == value_of(rank, first + i)))
            fail_msg("%s: element %zu of %zu from rank %d is %g, not %g", loom_dtype_name(dtype), i, count, rank, got,
                     value_of(rank, first + i));
    }
}

static bool is_integer(loom_dtype dtype)
{
    return dtype >= LOOM_I8 && dtype <= LOOM_I64;
}

double value_reduced(int size, size_t index, loom_dtype dtype, loom_reduce_op op)
{
    double result = value_of(0, index), rounded;
    char room[8];

    for (int r = 1; r < size; r++) {
        double value = value_of(r, index);
        if (op == LOOM_SUM || op == LOOM_AVG)
            result += value;
        else if ((op == LOOM_MAX) == (value > result))
            result = value;
    }
    if (op == LOOM_AVG)
        result = is_integer(dtype)   ? (double)((long)result / size)
                 : dtype == LOOM_F64 ? result / size
                                     : (double)((float)result / (float)size);
    value_set(room, 0, dtype, result); /* an average may need rounding */
    rounded = value_get(room, 0, dtype);
    return rounded;
}
