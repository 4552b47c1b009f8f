/* bf16 to and from f32 where the compiler can see it: loops over these vectorise. loom_bf16_from_f32() and its inverse are the same code. */
#ifndef LOOM_CORE_BF16_H
#define LOOM_CORE_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint16_t loom_bf16_round(float value)
{
    uint32_t bits, rounded;

    memcpy(&bits, &value, sizeof bits);
    rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    /* a NaN stays one: quiet, and never an infinity by losing its low bits */
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40 : rounded);
}

static inline float loom_bf16_widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
