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

/* --- against the table of published figures ----------------------------------------------------------------------------- */

enum { COLUMNS = 19 };

/* Cuts a line of CSV in place; quoted cells may hold commas. */
static int cut_row(char *line, char *cell[COLUMNS])
{
    int count = 0;

    for (char *at = line; count < COLUMNS;) {
        bool quoted = *at == '"';
        cell[count++] = at += quoted;
        at += strcspn(at, quoted ? "\"" : ",\n");
        char *end = at;
        if (quoted)
            at += 1;
        char next = *at;
        *end = '\0';
        if (next != ',')
            break;
        at++;
    }
    return count;
}

/* A cell with one number is the figure; an empty one is unknown; "96 or 144" names its first. */
static void same_number(const char *part, const char *column, const char *cell, loom_figure figure, double unit)
{
    double value = strtod(cell, NULL);

    if (value == 0 && loom_known(figure))
        fail_msg("%s: %s is %g, but the table has none", part, column, figure.value / unit);
    if (value != 0 && (!loom_known(figure) || figure.value / unit < value * 0.999999 || figure.value / unit > value * 1.000001))
        fail_msg("%s: %s is %g, the table says %s", part, column, figure.value / unit, cell);
}

static void figures_are_those_that_were_published(void **state)
{
    char line[1024], *cell[COLUMNS];
    FILE *table = fopen(test_data("reference/gpus.csv"), "r");
    int rows = 0;

    (void)state;
    assert_non_null(table);
    assert_non_null(fgets(line, sizeof line, table));
    while (fgets(line, sizeof line, table)) {
        loom_chip chip;
        assert_true(cut_row(line, cell) >= 18);
        assert_ok(loom_chip_find(cell[0], &chip));
        assert_string_equal(chip.name, cell[0]);
        same_number(cell[0], "bf16", cell[3], chip.peak[LOOM_MATH_16], 1e12);
        same_number(cell[0], "fp8", cell[4], chip.peak[LOOM_MATH_8], 1e12);
        same_number(cell[0], "fp4", cell[5], chip.peak[LOOM_MATH_4], 1e12);
        same_number(cell[0], "tf32", cell[6], chip.peak[LOOM_MATH_TF32], 1e12);
        same_number(cell[0], "memory", cell[7], chip.memory_nominal_bytes, 1e9);
        if (*cell[8]) /* where nobody printed what a program sees, we assume a share of the label */
            same_number(cell[0], "visible memory", cell[8], chip.memory_bytes, 1073741824.0);
        same_number(cell[0], "memory bandwidth", cell[9], chip.memory_bandwidth, 1e9);
        if (strcmp(cell[0], "A100-PCIe-80GB") != 0) /* the table has its bus there, we its bridge: see its notes */
            same_number(cell[0], "link", cell[11], chip.link_bandwidth, 1e9);
        same_number(cell[0], "network", cell[14], chip.nic_bandwidth, 1e9 / 8);
        same_number(cell[0], "power", cell[16], chip.power_w, 1);
        rows++;
    }
    fclose(table);
    assert_int_equal(rows, loom_catalogue_chip_count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_read_leniently),
        cmocka_unit_test(memory_in_a_label_overrides_the_part),
        cmocka_unit_test(a_chip_nobody_knows_has_memory_and_nothing_else),
        cmocka_unit_test(a_wrong_name_is_refused_with_the_nearest),
        cmocka_unit_test(figures_are_those_that_were_published),
        cmocka_unit_test(every_name_of_the_catalogue_finds_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
