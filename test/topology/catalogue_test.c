/* Names of accelerators as people, clouds and drivers write them; figures as published. */
#include "topology_test.h"

#include "topology/catalogue.h"

static void finds(const char *label, const char *name, double peak_16, double nominal_gb)
{
    loom_chip chip;

    if (loom_chip_find(label, &chip) != LOOM_OK)
        fail_msg("%s", loom_last_error());
    assert_string_equal(chip.name, name);
    assert_string_equal(chip.label, label);
    assert_figure(chip.peak[LOOM_MATH_16], peak_16 * 1e12);
    assert_figure(chip.memory_nominal_bytes, nominal_gb * 1e9);
}

static void labels_are_read_leniently(void **state)
{
    (void)state;
    finds("h100-80g", "H100-SXM5-80GB", 989, 80);
    finds("H100", "H100-SXM5-80GB", 989, 80);
    finds("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB", 989, 80);
    finds("a100-40g", "A100-SXM4-40GB", 312, 40);
    finds("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", 312, 80);
    finds("A100 80GB PCIe", "A100-PCIe-80GB", 312, 80);
    finds("a100", "A100-SXM4-80GB", 312, 80);
    finds("gb200-186g", "GB200 NVL72", 2500, 186);
    finds("GB200 NVL72 186GB", "GB200 NVL72", 2500, 186);
    finds("T4-16GB", "T4", 65, 16);
    finds("Tesla T4", "T4", 65, 16);
    finds("v100-16g", "V100-SXM2-16GB", 125, 16);
    finds("V100-SXM3-32GB", "V100-SXM2/3-32GB", 125, 32);
    finds("NVIDIA GeForce RTX 4090", "RTX 4090", 165, 24);
    finds("MI300X-192GB", "MI300X", 1307, 192);
    finds("AMD Instinct MI355X", "MI355X", 2500, 288);
    finds("TPU v5p", "TPU v5p", 459, 95);
    finds("TPU v6e (Trillium)", "TPU v6e (Trillium)", 918, 32);
}

static void memory_in_a_label_overrides_the_part(void **state)
{
    loom_chip chip;

    (void)state;
    finds("a100-64g", "A100-SXM4-80GB", 312, 64);
    finds("H100-SXM5-96GB-HBM2e (500 W)", "H100-SXM5-80GB", 989, 96);
    assert_int_equal(loom_chip_find("a100-64g", &chip), LOOM_OK);
    assert_figure(chip.memory_bytes, 79.2 / 80 * 64 * 1073741824.0);
    assert_int_equal(chip.memory_nominal_bytes.origin, LOOM_ORIGIN_GIVEN);
    assert_int_equal(chip.peak[LOOM_MATH_16].origin, LOOM_ORIGIN_ASSUMED);
}

static void a_chip_nobody_knows_has_memory_and_nothing_else(void **state)
{
    loom_chip chip;

    (void)state;
    assert_int_equal(loom_chip_find("generic-24g", &chip), LOOM_OK);
    assert_figure(chip.memory_bytes, 24e9);
    assert_false(loom_known(chip.peak[LOOM_MATH_16]));
    assert_true(chip.peak[LOOM_MATH_16].value != chip.peak[LOOM_MATH_16].value); /* NaN: nobody divides by it unnoticed */
    assert_false(loom_known(chip.link_bandwidth));
    assert_false(loom_known(chip.price_per_hour));
}

static void a_wrong_name_is_refused_with_the_nearest(void **state)
{
    loom_chip chip;

    (void)state;
    assert_int_equal(loom_chip_find("h1000", &chip), LOOM_E_INVALID);
    assert_non_null(strstr(loom_last_error(), "h100"));
    assert_int_equal(loom_chip_find("", &chip), LOOM_E_INVALID);
}

static void every_name_of_the_catalogue_finds_itself(void **state)
{
    loom_chip chip, found;

    (void)state;
    assert_int_equal(loom_catalogue_chip_count, 27);
    for (int i = 0; loom_chip_at(i, &chip); i++) {
        assert_int_equal(loom_chip_find(chip.name, &found), LOOM_OK);
        assert_string_equal(found.name, chip.name);
        assert_true(chip.memory_bytes.value > 0.9 * chip.memory_nominal_bytes.value);
    }
    for (int i = 0; i < loom_catalogue_instance_count; i++) {
        const loom_catalogue_instance *row = &loom_catalogue_instances[i];
        assert_ptr_equal(loom_catalogue_instance_find(row->name), row);
        assert_int_equal(loom_chip_find(row->chip, &found), LOOM_OK);
        assert_string_equal(found.name, row->chip);
    }
    assert_null(loom_catalogue_instance_find("p5.48xlagre"));
    assert_non_null(strstr(loom_last_error(), "p5.48xlarge"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_read_leniently),
        cmocka_unit_test(memory_in_a_label_overrides_the_part),
        cmocka_unit_test(a_chip_nobody_knows_has_memory_and_nothing_else),
        cmocka_unit_test(a_wrong_name_is_refused_with_the_nearest),
        cmocka_unit_test(every_name_of_the_catalogue_finds_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
