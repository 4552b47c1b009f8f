/* Narrow floats against a second method: all codes are listed with their values, and rounding is searched in that list. */
#include "check.h"

#include <rankloom/config.h>
#include <rankloom/dtype.h>

#include <math.h>

typedef struct format {
    const char *name;
    int exponent, mantissa;
    bool has_infinity;
    uint32_t (*encode)(float);
    float (*decode)(uint32_t);
} format;

static uint32_t encode_bf16(float v) { return loom_bf16_from_f32(v); }
static float decode_bf16(uint32_t b) { return loom_f32_from_bf16((uint16_t)b); }
static uint32_t encode_f16(float v) { return loom_f16_from_f32(v); }
static float decode_f16(uint32_t b) { return loom_f32_from_f16((uint16_t)b); }
static uint32_t encode_e4m3(float v) { return loom_f8e4m3_from_f32(v); }
static float decode_e4m3(uint32_t b) { return loom_f32_from_f8e4m3((uint8_t)b); }
static uint32_t encode_e5m2(float v) { return loom_f8e5m2_from_f32(v); }
static float decode_e5m2(uint32_t b) { return loom_f32_from_f8e5m2((uint8_t)b); }

static const format formats[] = {
    {"bf16", 8, 7, true, encode_bf16, decode_bf16},
    {"f16", 5, 10, true, encode_f16, decode_f16},
    {"f8e4m3", 4, 3, false, encode_e4m3, decode_e4m3},
    {"f8e5m2", 5, 2, true, encode_e5m2, decode_e5m2},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* The value of a positive code by the definition of the format; infinity and NaN as the format has them. */
static double meaning(const format *f, uint32_t code)
{
    int bias = (1 << (f->exponent - 1)) - 1;
    int e = (int)(code >> f->mantissa);
    double fraction = (double)(code & ((1u << f->mantissa) - 1)) / (1 << f->mantissa);
    bool last_exponent = e == (1 << f->exponent) - 1;

    if (last_exponent && f->has_infinity)
        return fraction == 0 ? INFINITY : NAN;
    if (last_exponent && code == (1u << (f->exponent + f->mantissa)) - 1)
        return NAN;
    return e == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, e - bias);
}

static void every_code_means_what_its_format_defines(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        uint32_t sign = 1u << (f->exponent + f->mantissa);
        for (uint32_t code = 0; code < sign; code++) {
            double expected = meaning(f, code), got = f->decode(code), negative = f->decode(code | sign);
            if (isnan(expected))
                assert_true(isnan(got) && isnan(negative));
            else
                assert_true(got == expected && negative == -expected && signbit(negative));
        }
    }
}

static void every_code_survives_the_round_trip(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        uint32_t codes = 2u << (f->exponent + f->mantissa);
        for (uint32_t code = 0; code < codes; code++) {
            float value = f->decode(code);
            uint32_t back = f->encode(value);
            if (isnan(value))
                assert_true(isnan(f->decode(back)));
            else
                assert_int_equal(back, code);
        }
    }
}

/* Between neighbouring codes: below the middle goes down, above it up, the middle itself to the even code. */
static void halfway_goes_to_the_even_code(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        uint32_t top = 1u << (f->exponent + f->mantissa);
        for (uint32_t code = 0; code + 1 < top && isfinite(meaning(f, code + 1)); code++) {
            float middle = (float)((meaning(f, code) + meaning(f, code + 1)) / 2);
            if (middle == 0)
                continue; /* bf16: f32 itself cannot hold the middle */
            assert_int_equal(f->encode(middle), code + (code & 1));
            assert_int_equal(f->encode(nextafterf(middle, 0)), code);
            assert_int_equal(f->encode(nextafterf(middle, INFINITY)), code + 1);
            assert_int_equal(f->encode(-middle), (code + (code & 1)) | top);
        }
    }
}

static void what_is_too_large_becomes_infinity_or_nan_where_there_is_none(void **state)
{
    (void)state;
    assert_true(isinf(loom_f32_from_f16(loom_f16_from_f32(65520.0f)))); /* the middle between 65504 and 65536 */
    assert_int_equal(loom_f16_from_f32(65519.996f), 0x7bff);
    assert_true(isnan(loom_f32_from_f8e4m3(loom_f8e4m3_from_f32(480.0f))));
    assert_true(loom_f32_from_f8e4m3(loom_f8e4m3_from_f32(464.0f)) == 448.0f);
    assert_true(isnan(loom_f32_from_f8e4m3(loom_f8e4m3_from_f32(INFINITY))));
    assert_true(isinf(loom_f32_from_f8e5m2(loom_f8e5m2_from_f32(61440.0f))));
    assert_true(isinf(loom_f32_from_bf16(loom_bf16_from_f32(3.4028235e38f))));
    assert_true(isinf(loom_f32_from_f8e5m2(loom_f8e5m2_from_f32(-INFINITY))));
    for (int i = 0; i < FORMATS; i++)
        assert_true(isnan(formats[i].decode(formats[i].encode(NAN))) && isnan(formats[i].decode(formats[i].encode(-NAN))));
}

static void a_nan_with_only_low_payload_bits_stays_a_nan(void **state)
{
    uint32_t bits = 0x7f800001u;
    float value;

    (void)state;
    memcpy(&value, &bits, sizeof value);
    for (int i = 0; i < FORMATS; i++)
        assert_true(isnan(formats[i].decode(formats[i].encode(value))));
}

/* The bit patterns that torch gave; NaN payloads may differ. */
static void bf16_rounds_as_the_fixture_says(void **state)
{
    loom_config *config;

    (void)state;
    assert_ok(loom_config_load(test_data("fixtures/ops.json"), &config));
    const loom_node *table = loom_node_get(loom_config_root(config), "bf16_round");
    const loom_node *from = loom_node_get(table, "f32_bits"), *to = loom_node_get(table, "bf16_bits");
    assert_true(loom_node_count(from) >= 20);
    for (size_t i = 0; i < loom_node_count(from); i++) {
        uint32_t bits = (uint32_t)strtoul(loom_node_text(loom_node_at(from, i)), NULL, 16);
        uint16_t expected = (uint16_t)strtoul(loom_node_text(loom_node_at(to, i)), NULL, 16);
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isnan(value))
            assert_true(isnan(loom_f32_from_bf16(expected)) && isnan(loom_f32_from_bf16(loom_bf16_from_f32(value))));
        else
            assert_int_equal(loom_bf16_from_f32(value), expected);
    }
    loom_config_free(config);
}

static void names_are_read_back(void **state)
{
    loom_dtype read;

    (void)state;
    for (int i = 0; i < LOOM_DTYPE_COUNT; i++) {
        assert_true(loom_dtype_from_name(loom_dtype_name((loom_dtype)i), &read));
        assert_int_equal(read, i);
        assert_true(loom_dtype_bytes((loom_dtype)i) > 0);
    }
    assert_true(loom_dtype_from_name("BFloat16", &read) && read == LOOM_BF16);
    assert_true(loom_dtype_from_name("fp32", &read) && read == LOOM_F32);
    assert_false(loom_dtype_from_name("f31", &read));
    assert_string_equal(loom_dtype_name((loom_dtype)99), "?");
    assert_int_equal(loom_dtype_bytes((loom_dtype)-1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_means_what_its_format_defines),
        cmocka_unit_test(every_code_survives_the_round_trip),
        cmocka_unit_test(halfway_goes_to_the_even_code),
        cmocka_unit_test(what_is_too_large_becomes_infinity_or_nan_where_there_is_none),
        cmocka_unit_test(a_nan_with_only_low_payload_bits_stays_a_nan),
        cmocka_unit_test(bf16_rounds_as_the_fixture_says),
        cmocka_unit_test(names_are_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
