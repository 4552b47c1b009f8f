/* What people are shown. */
#include "topology_test.h"

#include <rankloom/text.h>

static void says(loom_topology *t, const char *expected)
{
    char *line = NULL;
    assert_ok(loom_topology_line(t, &line));
    assert_string_equal(line, expected);
    loom_text_free(line);
    loom_topology_free(t);
}

static void one_line_says_what_it_is(void **state)
{
    (void)state;
    says(topology_file("clusters/h100-2x8.yaml"), "2 nodes x 8 H100-SXM5-80GB, domains of 8, network 50 GB/s a device");
    says(topology_file("clusters/nvl72-1rack.yaml"), "18 nodes x 4 GB200 NVL72, domains of 72, network 50 GB/s a device");
    says(topology_file("clusters/uneven-2-3-3.yaml"),
         "1 node x 2 generic-24g + 2 nodes x 3 generic-24g, no fast links, network 3.125 GB/s a device");
    says(topology_file("clusters/single-3x24g.yaml"), "1 node x 3 generic-24g, no fast links");
    says(topology_file("topology/D11-bridged-pairs-a.txt"), "1 node x 4 GPU, domains of 2");
    says(topology_of("cluster: {nodes: 2, gpus_per_node: 2, gpu: generic-24g, nic_gbps_per_gpu: 0}"),
         "2 nodes x 2 generic-24g, no fast links, network unknown a device");
}

static void the_tree_prints_unknown_as_unknown(void **state)
{
    loom_topology *t = topology_file("clusters/single-3x24g.yaml");
    char *text = NULL;

    (void)state;
    assert_ok(loom_topology_tree(t, &text));
    assert_non_null(strstr(text, "memory 22.35 GiB (given) at unknown"));
    assert_non_null(strstr(text, "peak unknown"));
    assert_null(strstr(text, " 0 GB/s"));
    assert_null(strstr(text, "nan"));
    loom_text_free(text);
    loom_topology_free(t);
}

static void the_tree_names_every_origin(void **state)
{
    loom_topology *t = topology_file("clusters/h100-2x8.yaml");
    char *text = NULL;

    (void)state;
    t->levels[LOOM_LEVEL_RACK].latency_s = (loom_figure){7e-6, LOOM_ORIGIN_MEASURED};
    assert_ok(loom_topology_tree(t, &text));
    assert_non_null(strstr(text, "50 GB/s (given) a device"));
    assert_non_null(strstr(text, "7 us (measured)"));
    assert_non_null(strstr(text, "8 x H100-SXM5-80GB on NVLink4, 450 GB/s (assumed)"));
    loom_text_free(text);
    loom_topology_free(t);
}

static void the_matrix_is_that_of_nvidia_smi(void **state)
{
    loom_topology *t = topology_file("topology/D11-bridged-pairs-b.txt");
    char *text = NULL;

    (void)state;
    assert_ok(loom_topology_matrix(t, &text));
    assert_int_equal(times_in(text, " NV4 "), 4);
    assert_int_equal(times_in(text, " SYS "), 8);
    assert_non_null(strstr(text, "100 GB/s (assumed)"));
    loom_text_free(text);
    loom_topology_free(t);
}

static void large_clusters_are_shown_by_one_of_each(void **state)
{
    loom_topology *t =
        topology_of("cluster: {nodes: 2048, gpus_per_node: 8, gpu: h100, nodes_per_rack: 32, oversubscription: {cluster: 4}}");
    char *text = NULL;

    (void)state;
    assert_ok(loom_topology_matrix(t, &text));
    assert_non_null(strstr(text, "10 of 16384 ranks"));
    assert_non_null(strstr(text, "SPINE"));
    loom_text_free(text);
    text = NULL;
    assert_ok(loom_topology_tree(t, &text));
    assert_int_equal(times_in(text, "alike: "), 64);
    assert_non_null(strstr(text, "oversubscribed 4:1 (given)"));
    loom_text_free(text);
    loom_topology_free(t);
}

static void the_picture_has_every_device_and_is_xml(void **state)
{
    loom_topology *t =
        topology_of("cluster: {name: \"<script> & co\", nodes: 5, gpus_per_node: [8, 8, 4, 2, 9], gpu: h100, nodes_per_rack: 2}");
    char *text = NULL;

    (void)state;
    assert_ok(loom_topology_svg(t, &text));
    assert_int_equal(times_in(text, "<title>rank"), 31);
    assert_int_equal(times_in(text, "<text"), times_in(text, "</text>"));
    assert_int_equal(times_in(text, ">rack "), 3);
    assert_null(strstr(text, "script>"));
    loom_text_free(text);
    loom_topology_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_line_says_what_it_is),
        cmocka_unit_test(the_tree_prints_unknown_as_unknown),
        cmocka_unit_test(the_tree_names_every_origin),
        cmocka_unit_test(the_matrix_is_that_of_nvidia_smi),
        cmocka_unit_test(large_clusters_are_shown_by_one_of_each),
        cmocka_unit_test(the_picture_has_every_device_and_is_xml),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
