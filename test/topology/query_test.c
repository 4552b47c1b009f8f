/* What pairs, rings and axes meet. */
#include "topology_test.h"

static loom_topology *two_nodes_of_eight(void)
{
    return topology_file("clusters/h100-2x8.yaml");
}

static void links_know_their_level(void **state)
{
    loom_topology *t = two_nodes_of_eight();

    (void)state;
    assert_int_equal(loom_topology_link(t, 3, 3).level, LOOM_LEVEL_SELF);
    assert_int_equal(loom_topology_link(t, 0, 7).level, LOOM_LEVEL_DOMAIN);
    assert_figure(loom_topology_link(t, 0, 7).bandwidth, 450e9);
    assert_int_equal(loom_topology_link(t, 7, 8).level, LOOM_LEVEL_RACK);
    assert_figure(loom_topology_link(t, 7, 8).bandwidth, 50e9);
    assert_true(loom_topology_link(t, 7, 8).latency_s.value > loom_topology_link(t, 0, 7).latency_s.value);
    loom_topology_free(t);
}

static void neighbours_beat_strides(void **state) /* C31 */
{
    loom_topology *t = two_nodes_of_eight();
    loom_group_link neighbours = loom_topology_axis(t, 8, 1), strided = loom_topology_axis(t, 8, 2), pairs = loom_topology_axis(t, 2, 8);

    (void)state;
    assert_int_equal(neighbours.level, LOOM_LEVEL_DOMAIN);
    assert_int_equal(neighbours.in_domain, 8);
    assert_int_equal(neighbours.nodes, 1);
    assert_figure(neighbours.bandwidth, 450e9);
    assert_int_equal(strided.level, LOOM_LEVEL_RACK);
    assert_int_equal(strided.in_domain, 4);
    assert_figure(strided.bandwidth, 4 * 50e9); /* a ring uses the cards of its four members of a node */
    assert_int_equal(pairs.in_domain, 1);
    assert_figure(pairs.bandwidth, 50e9);
    loom_topology_free(t);
}

/* cost_model.md, placement: inside when n * stride <= G, else min(W_nv, max(1, G / stride) * W_nic). */
static void axes_follow_the_placement_formula(void **state)
{
    loom_topology *t = topology_of("cluster: {nodes: 16, gpus_per_node: 8, gpu: h100-80g, nvlink_domain: 8, nic_gbps_per_gpu: 400}");

    (void)state;
    for (int stride = 1; stride <= 64; stride *= 2) {
        for (int n = 2; n * stride <= 128; n *= 2) {
            loom_group_link link = loom_topology_axis(t, n, stride);
            int together = stride < 8 ? 8 / stride : 1;
            double expected = n * stride <= 8 ? 450e9 : (together * 50e9 < 450e9 || together == 1 ? together * 50e9 : 450e9);
            assert_figure(link.bandwidth, expected);
            assert_int_equal(link.level, n * stride <= 8 ? LOOM_LEVEL_DOMAIN : LOOM_LEVEL_RACK);
        }
    }
    loom_topology_free(t);
}

/* The definition in its slow form: every group listed and asked. */
static loom_group_link axis_by_lists(const loom_topology *t, int n, int stride)
{
    loom_group_link worst = {0};
    int *ranks = malloc((size_t)n * sizeof *ranks);

    for (int base = 0; base + n * stride <= t->n_devices; base += n * stride)
        for (int i = 0; i < stride; i++) {
            for (int j = 0; j < n; j++)
                ranks[n - 1 - j] = base + i + j * stride; /* backwards: order must not matter */
            loom_group_link link = loom_topology_group(t, ranks, n);
            if (!worst.ranks || link.bandwidth.value < worst.bandwidth.value ||
                (link.bandwidth.value == worst.bandwidth.value && link.level > worst.level))
                worst = link;
        }
    free(ranks);
    return worst;
}

static void axes_agree_with_lists_on_uneven_clusters(void **state)
{
    static const char *const clusters[] = {
        "cluster: {gpus_per_node: [2, 3, 3, 8, 1], gpu: a100-80g, nic_gbps_per_gpu: 100}",
        "cluster: {nodes: 6, gpus_per_node: 4, gpu: gb200, nvlink_domain: 8, nic_gbps_per_gpu: 400, nodes_per_rack: 2, oversubscription: "
        "{cluster: 3}}",
        "cluster: {nodes: 4, gpus_per_node: 8, gpu: a100-40g, nvlink_domain: 2, nics_per_node: 3, nic_gbps: 100, rails: true}",
        "cluster: {nodes: 8, gpus_per_node: 8, gpu: mi300x, nodes_per_rack: 3, oversubscription: {cluster: 2}}",
    };

    (void)state;
    for (size_t c = 0; c < sizeof clusters / sizeof *clusters; c++) {
        loom_topology *t = topology_of(clusters[c]);
        for (int n = 1; n <= t->n_devices; n++)
            for (int stride = 1; n * stride <= t->n_devices; stride++) {
                loom_group_link fast = loom_topology_axis(t, n, stride), slow = axis_by_lists(t, n, stride);
                assert_figure(fast.bandwidth, slow.bandwidth.value);
                assert_int_equal(fast.level, slow.level);
            }
        loom_topology_free(t);
    }
}

static void a_full_mesh_gives_a_pair_one_link_and_a_ring_all(void **state)
{
    loom_topology *t = topology_of("cluster: {nodes: 1, gpus_per_node: 8, gpu: mi300x}");

    (void)state;
    assert_figure(loom_topology_link(t, 0, 1).bandwidth, 64e9);
    assert_figure(loom_topology_axis(t, 2, 1).bandwidth, 64e9);
    assert_figure(loom_topology_axis(t, 8, 1).bandwidth, 448e9);
    loom_topology_free(t);
}

static void rails_join_equal_cards_of_a_rack(void **state)
{
    loom_topology *t =
        topology_of("cluster: {nodes: 4, gpus_per_node: 8, gpu: h100, nic_gbps_per_gpu: 400, rails: true, oversubscription: {cluster: 2}}");

    (void)state;
    assert_int_equal(loom_topology_link(t, 0, 8).level, LOOM_LEVEL_RACK);
    assert_int_equal(loom_topology_link(t, 0, 9).level, LOOM_LEVEL_CLUSTER);
    assert_figure(loom_topology_link(t, 0, 9).bandwidth, 25e9);
    assert_int_equal(loom_topology_axis(t, 4, 8).level, LOOM_LEVEL_RACK);
    assert_int_equal(loom_topology_axis(t, 32, 1).level, LOOM_LEVEL_RACK); /* inside the hosts it changes rails over NVLink */
    loom_topology_free(t);
}

static void large_worlds_are_asked_quickly(void **state)
{
    loom_topology *t = topology_of(
        "cluster: {nodes: 2048, gpus_per_node: 8, gpu: h100, nic_gbps_per_gpu: 400, nodes_per_rack: 192, oversubscription: {cluster: 7}}");

    (void)state;
    assert_int_equal(loom_topology_ranks(t), 16384);
    assert_int_equal(loom_topology_axis(t, 16384, 1).level, LOOM_LEVEL_CLUSTER);
    assert_int_equal(t->period, 192 * 8);
    assert_figure(loom_topology_axis(t, 64, 8).bandwidth, 50e9);      /* three groups of 64 nodes fill a rack of 192 */
    assert_figure(loom_topology_axis(t, 128, 8).bandwidth, 50e9 / 7); /* of 128 nodes, some group crosses racks */
    loom_topology_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_know_their_level),
        cmocka_unit_test(neighbours_beat_strides),
        cmocka_unit_test(axes_follow_the_placement_formula),
        cmocka_unit_test(axes_agree_with_lists_on_uneven_clusters),
        cmocka_unit_test(a_full_mesh_gives_a_pair_one_link_and_a_ring_all),
        cmocka_unit_test(rails_join_equal_cards_of_a_rack),
        cmocka_unit_test(large_worlds_are_asked_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
