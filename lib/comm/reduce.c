/* Reduction over ranks, a tile at a time so that the running sum stays in the first-level cache. */
#include "comm/reduce.h"

#include <string.h>

#include "core/settings.h"

enum { TILE = 1024 };

typedef void combine_fn(void *out, const void *a, const void *b, size_t count); /* out may be a or b */
typedef void divide_fn(void *values, size_t count, int by);
typedef void convert_fn(void *to, const void *from, size_t count);

typedef enum wide { WIDE_F32, WIDE_F64, WIDE_I64, WIDES } wide; /* what a sum is kept in */

struct loom_reducer {
    const char *name;
    combine_fn *combine[WIDES][LOOM_REDUCE_OPS];
    divide_fn *divide[WIDES];
    convert_fn *widen[LOOM_DTYPE_COUNT], *narrow[LOOM_DTYPE_COUNT]; /* NULL: the element is what sums are kept in */
};

static wide wide_of(loom_dtype dtype)
{
    switch (dtype) {
    case LOOM_F64:
        return WIDE_F64;
    case LOOM_I8:
    case LOOM_U8:
    case LOOM_U16:
    case LOOM_I32:
    case LOOM_I64:
        return WIDE_I64;
    default:
        return WIDE_F32;
    }
}

static inline float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* loom_bf16_from_f32() in a form that vectorises: nearest even, NaN stays NaN and quiet. */
static inline uint16_t bf16_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* The same text compiled for each instruction set: loops that the compiler vectorises. */
#define PORTABLE
#define ISA(name) name##_portable
#include "comm/reduce_loops.h"
#undef ISA
#undef PORTABLE

#if defined(__x86_64__)
#define AVX2
#define ISA(name) name##_avx2
#include "comm/reduce_loops.h"
#undef ISA
#undef AVX2

#define AVX512
#define ISA(name) name##_avx512
#include "comm/reduce_loops.h"
#undef ISA
#undef AVX512
#endif

int loom_reducer_all(const loom_reducer *reducers[], int capacity)
{
    int count = 0;

    if (count < capacity)
        reducers[count++] = &reducer_portable;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (count < capacity && __builtin_cpu_supports("avx2")) /* and with it f16c, of which clang 14 has no name */
        reducers[count++] = &reducer_avx2;
    if (count < capacity && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        reducers[count++] = &reducer_avx512;
#endif
    return count;
}

const char *loom_reducer_name(const loom_reducer *reducer)
{
    return reducer->name;
}

loom_status loom_reducer_choose(const loom_reducer **reducer)
{
    const loom_reducer *all[8];
    int count = loom_reducer_all(all, 8), wanted = -1;
    loom_status status = loom_setting_choice(LOOM_SETTING_ISA, &wanted);

    if (status < 0)
        return status;
    if (wanted >= count)
        return loom_fail(LOOM_E_UNSUPPORTED, "RANKLOOM_ISA asks for an instruction set that this processor lacks; its best is %s",
                         all[count - 1]->name);
    *reducer = all[wanted >= 0 ? wanted : count - 1];
    return LOOM_OK;
}

typedef union tile {
    _Alignas(64) float f32[TILE];
    double f64[TILE];
    int64_t i64[TILE];
} tile;

/* One rank's piece as what sums are kept in: where it lies, or widened into `room`. */
static const void *widened(const loom_reducer *reducer, loom_dtype dtype, const void *from, tile *room, size_t count)
{
    if (!reducer->widen[dtype])
        return from;
    reducer->widen[dtype](room, from, count);
    return room;
}

static void reduce_tile(const loom_reducer *reducer, char *out, const void *const *in, size_t offset, int ranks, size_t count,
                        loom_dtype dtype, loom_reduce_op op)
{
    combine_fn *combine = reducer->combine[wide_of(dtype)][op];
    convert_fn *narrow = reducer->narrow[dtype];
    tile sum, first, next;
    const void *so_far = widened(reducer, dtype, (const char *)in[0] + offset, &first, count);

    for (int r = 1; r < ranks; r++) {
        bool last = r == ranks - 1 && !narrow; /* `out` may be an input, so it is written last */
        void *to = last ? (void *)out : &sum;
        combine(to, so_far, widened(reducer, dtype, (const char *)in[r] + offset, &next, count), count);
        so_far = to;
    }
    if (op == LOOM_AVG && narrow)
        reducer->divide[wide_of(dtype)](&sum, count, ranks);
    if (narrow)
        narrow(out, so_far, count);
    else if (op == LOOM_AVG)
        reducer->divide[wide_of(dtype)](out, count, ranks);
}

void loom_reduce(const loom_reducer *reducer, void *out, const void *const *in, int ranks, size_t count, loom_dtype dtype,
                 loom_reduce_op op)
{
    size_t element = loom_dtype_bytes(dtype);

    if (ranks == 1) {
        if (out != in[0])
            memmove(out, in[0], count * element);
        return;
    }
    for (size_t done = 0; done < count; done += TILE) {
        size_t now = count - done < TILE ? count - done : TILE;
        reduce_tile(reducer, (char *)out + done * element, in, done * element, ranks, now, dtype, op);
    }
}
