/* The one rule for numbers. */
#include "check.h"
#include "core/number.h"

#include <math.h>

static void whole_numbers_are_read_in_every_form(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"0", 0},          {"4096", 4096},       {"-17", -17},         {"+3", 3},
        {"4_096", 4096},   {"1e3", 1000},        {"1E3", 1000},        {"1.28e2", 128},
        {"4096.0", 4096},  {"4096.", 4096},      {"1.50e1", 15},       {"3_000_000_000", 3000000000},
        {"-0", 0},         {"0e5", 0},           {"120e-1", 12},       {"9223372036854775807", INT64_MAX},
        {"0.5e1", 5},      {".5e1", 5},          {"0.0", 0},           {"-9223372036854775808", INT64_MIN},
        {"9.223372036854775807e18", INT64_MAX}, {"1e18", 1000000000000000000},
    };

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t value = 99;
        if (loom_number_i64(good[i].text, &value) != LOOM_NUMBER_OK || value != good[i].value)
            fail_msg("%s was read as %lld", good[i].text, (long long)value);
    }
}

static void what_is_no_whole_number_says_why(void **state)
{
    static const struct {
        const char *text;
        loom_number_fault fault;
    } bad[] = {
        {"", LOOM_NUMBER_NONE},         {"-", LOOM_NUMBER_NONE},           {".", LOOM_NUMBER_NONE},
        {"e5", LOOM_NUMBER_NONE},       {"1e", LOOM_NUMBER_UNIT},          {"1e+", LOOM_NUMBER_NONE},
        {"4k", LOOM_NUMBER_UNIT},       {"16 GB", LOOM_NUMBER_UNIT},       {"1,000", LOOM_NUMBER_GROUPED},
        {"0x10", LOOM_NUMBER_NONE},     {"0o17", LOOM_NUMBER_NONE},        {"010", LOOM_NUMBER_LEADING_ZERO},
        {"00", LOOM_NUMBER_LEADING_ZERO}, {"1:30", LOOM_NUMBER_NONE},      {"1__0", LOOM_NUMBER_NONE},
        {"_1", LOOM_NUMBER_NONE},       {"1_", LOOM_NUMBER_NONE},          {"4096.5", LOOM_NUMBER_NOT_WHOLE},
        {"1e-1", LOOM_NUMBER_NOT_WHOLE}, {"1e19", LOOM_NUMBER_TOO_LARGE},  {"9223372036854775808", LOOM_NUMBER_TOO_LARGE},
        {"1e999999999999", LOOM_NUMBER_TOO_LARGE}, {"-9223372036854775809", LOOM_NUMBER_TOO_LARGE}, {"1 2", LOOM_NUMBER_NONE},
        {"nan", LOOM_NUMBER_NONE},      {"inf", LOOM_NUMBER_NONE},         {" 1", LOOM_NUMBER_NONE},
        {"1 ", LOOM_NUMBER_NONE},       {"true", LOOM_NUMBER_NONE},        {"--1", LOOM_NUMBER_NONE},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t value = 99;
        int fault = loom_number_i64(bad[i].text, &value);
        if (fault != (int)bad[i].fault || value != 99)
            fail_msg("%s: fault %d, expected %d, value %lld", bad[i].text, fault, bad[i].fault, (long long)value);
    }
}

static void reals_are_read_in_every_form(void **state)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {
        {"1e-5", 1e-5}, {"1E-5", 1e-5}, {"+1e-5", 1e-5}, {".5e-3", 0.0005}, {"5.e-3", 0.005}, {"1.0e-5", 1e-5}, {"0.1", 0.1},
        {"3", 3},       {"-2.5", -2.5}, {"1_000.5", 1000.5}, {"0", 0}, {"1e-400", 0}, {"5e-324", 5e-324}, {"1.7976931348623157e308", 1.7976931348623157e308},
        {"0.30000000000000004", 0.1 + 0.2}, {".inf", INFINITY}, {"-.inf", -INFINITY},
    };
    double value;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (loom_number_f64(good[i].text, &value) != LOOM_NUMBER_OK || value != good[i].value)
            fail_msg("%s was read as %.17g", good[i].text, value);
    assert_int_equal(loom_number_f64(".nan", &value), LOOM_NUMBER_OK);
    assert_true(isnan(value));
    assert_int_equal(loom_number_f64("1e400", &value), LOOM_NUMBER_TOO_LARGE);
    assert_int_equal(loom_number_f64("0x1p3", &value), LOOM_NUMBER_NONE);
    assert_int_equal(loom_number_f64("1.5.2", &value), LOOM_NUMBER_NONE);
}

static void formatted_numbers_read_back(void **state)
{
    uint64_t bits = 88172645463325252u;
    char text[LOOM_NUMBER_BYTES];

    (void)state;
    for (int i = 0; i < 100000; i++) {
        double value, back;
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17; /* xorshift: any bit pattern */
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        loom_number_format(value, text);
        assert_int_equal(loom_number_f64(text, &back), LOOM_NUMBER_OK);
        assert_true(back == value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers_are_read_in_every_form),
        cmocka_unit_test(what_is_no_whole_number_says_why),
        cmocka_unit_test(reals_are_read_in_every_form),
        cmocka_unit_test(formatted_numbers_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
