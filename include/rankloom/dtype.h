/* Element types of tensors and messages. */
#ifndef RANKLOOM_DTYPE_H
#define RANKLOOM_DTYPE_H

#include <rankloom/api.h>
LOOM_BEGIN

typedef enum loom_dtype {
    LOOM_F32,
    LOOM_F64,
    LOOM_BF16,
    LOOM_F16,
    LOOM_F8E4M3,
    LOOM_F8E5M2,
    LOOM_I8,
    LOOM_U8,
    LOOM_U16,
    LOOM_I32,
    LOOM_I64,
    LOOM_DTYPE_COUNT,
} loom_dtype;

/* Bytes of one element, and the name people write ("f32", "bf16", …). A value out of range gives 0 and "?". */
LOOM_API size_t loom_dtype_bytes(loom_dtype dtype);
LOOM_API const char *loom_dtype_name(loom_dtype dtype);
/* The type that people call `name`: our own names, "fp32", "float32", "BF16", "bfloat16", …; case does not matter. */
LOOM_API bool loom_dtype_from_name(const char *name, loom_dtype *dtype);

/* Round to nearest even; NaN stays NaN (quiet), overflow becomes infinity (E4M3: NaN, it has no infinity). */
LOOM_API uint16_t loom_bf16_from_f32(float value);
LOOM_API float loom_f32_from_bf16(uint16_t bits);
LOOM_API uint16_t loom_f16_from_f32(float value);
LOOM_API float loom_f32_from_f16(uint16_t bits);
LOOM_API uint8_t loom_f8e4m3_from_f32(float value);
LOOM_API float loom_f32_from_f8e4m3(uint8_t bits);
LOOM_API uint8_t loom_f8e5m2_from_f32(float value);
LOOM_API float loom_f32_from_f8e5m2(uint8_t bits);

LOOM_END
#endif
