/* The reduction loops: every instruction set gives the bits of the plain definition, in rank order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/reduce.h"
#include "comm/values.h"

enum { MOST_RANKS = 5, MOST_COUNT = 2500 };

static uint64_t state_of_random = 1;

static uint64_t next_random(void)
{
    return (state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u) >> 16;
}

/* Any bits at all: subnormals, infinities and NaNs included. Floats of 32 and 64 bits mostly of one scale, so that order matters. */
static void fill_with_anything(unsigned char *memory, size_t count, loom_dtype dtype)
{
    for (size_t i = 0; i < count * loom_dtype_bytes(dtype); i++)
        memory[i] = (unsigned char)next_random();
    for (size_t i = 0; i < count; i++)
        if ((dtype == LOOM_F32 || dtype == LOOM_F64) && i % 7)
            value_set(memory, i, dtype, ((double)(next_random() % 2000001) - 1e6) * 1e-3);
}

static bool is_float(loom_dtype dtype)
{
    return dtype < LOOM_I8;
}

static int64_t int_of(const void *memory, size_t i, loom_dtype dtype)
{
    return dtype == LOOM_I64 ? ((const int64_t *)memory)[i] : (int64_t)value_get(memory, i, dtype);
}

/* What the header says, an element at a time. */
static double reduce_float(const void *const *in, int ranks, size_t i, loom_dtype dtype, loom_reduce_op op)
{
    double so_far = value_get(in[0], i, dtype);

    for (int r = 1; r < ranks; r++) {
        double x = value_get(in[r], i, dtype);
        if (op == LOOM_SUM || op == LOOM_AVG)
            so_far = dtype == LOOM_F64 ? so_far + x : (double)((float)so_far + (float)x);
        else if (isnan(so_far) || isnan(x))
            so_far = (double)NAN;
        else
            so_far = (op == LOOM_MAX ? x > so_far : x < so_far) ? x : so_far;
    }
    if (op == LOOM_AVG)
        so_far = dtype == LOOM_F64 ? so_far / ranks : (double)((float)so_far / (float)ranks);
    return so_far;
}

static int64_t reduce_int(const void *const *in, int ranks, size_t i, loom_dtype dtype, loom_reduce_op op)
{
    int64_t so_far = int_of(in[0], i, dtype);

    for (int r = 1; r < ranks; r++) {
        int64_t x = int_of(in[r], i, dtype);
        if (op == LOOM_SUM || op == LOOM_AVG)
            so_far = (int64_t)((uint64_t)so_far + (uint64_t)x);
        else if (op == LOOM_MAX ? x > so_far : x < so_far)
            so_far = x;
    }
    return op == LOOM_AVG ? so_far / ranks : so_far;
}

static void put_int(void *memory, size_t i, loom_dtype dtype, int64_t value)
{
    memcpy((char *)memory + i * loom_dtype_bytes(dtype), &value, loom_dtype_bytes(dtype)); /* the low bytes: wraps as the header says */
}

static void expect_equal(const void *got, const void *expected, size_t i, loom_dtype dtype, const char *what)
{
    size_t bytes = loom_dtype_bytes(dtype);
    bool both_nan = is_float(dtype) && isnan(value_get(got, i, dtype)) &&
                    isnan(value_get(expected, i, dtype)); /* which NaN is the processor's choice */

    if (!both_nan && memcmp((const char *)got + i * bytes, (const char *)expected + i * bytes, bytes) != 0)
        fail_msg("%s: element %zu is %g, not %g", what, i, value_get(got, i, dtype), value_get(expected, i, dtype));
}

static void check_one(const loom_reducer *reducer, int ranks, size_t count, loom_dtype dtype, loom_reduce_op op, int alias)
{
    static _Alignas(64) unsigned char memory[MOST_RANKS][MOST_COUNT * 8], out[MOST_COUNT * 8], expected[MOST_COUNT * 8];
    const void *in[MOST_RANKS];
    char what[128];
    void *to = alias < 0 ? out : memory[alias];

    for (int r = 0; r < ranks; r++) {
        fill_with_anything(memory[r], count, dtype);
        in[r] = memory[r];
    }
    for (size_t i = 0; i < count; i++) {
        if (is_float(dtype))
            value_set(expected, i, dtype, reduce_float(in, ranks, i, dtype, op));
        else
            put_int(expected, i, dtype, reduce_int(in, ranks, i, dtype, op));
    }
    loom_reduce(reducer, to, in, ranks, count, dtype, op);
    snprintf(what, sizeof what, "%s, %d ranks, %zu %s, %s, out is %d", loom_reducer_name(reducer), ranks, count, loom_dtype_name(dtype),
             loom_reduce_op_name(op), alias);
    for (size_t i = 0; i < count; i++)
        expect_equal(to, expected, i, dtype, what);
}

static void every_instruction_set_follows_the_definition(void **state)
{
    const loom_reducer *reducers[8];
    int n = loom_reducer_all(reducers, 8);

    (void)state;
    assert_true(n >= 1);
    for (int k = 0; k < n; k++)
        for (int dtype = 0; dtype < LOOM_DTYPE_COUNT; dtype++)
            for (int op = 0; op < LOOM_REDUCE_OPS; op++)
                for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
                    for (int alias = -1; alias<ranks; alias += ranks - 1> 1 ? ranks - 1 : 1) {
                        check_one(reducers[k], ranks, 77, (loom_dtype)dtype, (loom_reduce_op)op, alias);
                        check_one(reducers[k], ranks, ranks == 3 ? MOST_COUNT : 8, (loom_dtype)dtype, (loom_reduce_op)op, alias);
                    }
}

static void order_of_ranks_decides_the_bits(void **state)
{
    const loom_reducer *reducers[8];
    int n = loom_reducer_all(reducers, 8);
    float big = 1e8f, small = 3.0f, minus = -1e8f, out;
    const void *in[3] = {&big, &small, &minus};

    (void)state;
    for (int k = 0; k < n; k++) { /* (1e8 + 3) - 1e8: not 3, and not what another order gives */
        loom_reduce(reducers[k], &out, in, 3, 1, LOOM_F32, LOOM_SUM);
        assert_true(out == (1e8f + 3.0f) - 1e8f);
        assert_true(out != 3.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_instruction_set_follows_the_definition),
                                       cmocka_unit_test(order_of_ranks_decides_the_bits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
