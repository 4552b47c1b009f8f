/* Cluster files: the short form, its defaults, and what is refused. */
#include "topology_test.h"

static void nodes_of_different_size_keep_their_own_local_ranks(void **state) /* C24 */
{
    static const int node[8] = {0, 0, 1, 1, 1, 2, 2, 2}, local[8] = {0, 1, 0, 1, 2, 0, 1, 2};
    loom_topology *t = topology_file("clusters/uneven-2-3-3.yaml");

    (void)state;
    assert_int_equal(loom_topology_ranks(t), 8);
    for (int rank = 0; rank < 8; rank++) {
        assert_int_equal(loom_topology_node_of(t, rank), node[rank]);
        assert_int_equal(loom_topology_local_rank(t, rank), local[rank]);
    }
    assert_int_equal(loom_topology_ranks_in_nodes(t, 2), 6);
    assert_int_equal(loom_topology_ranks_in_nodes(t, 1), 8);
    assert_figure(loom_topology_nic_bandwidth(t, 7), 25e9 / 8);
    loom_topology_free(t);
}

static void a_domain_may_be_larger_than_a_host(void **state) /* C26 */
{
    loom_topology *t = topology_file("clusters/nvl72-1rack.yaml");

    (void)state;
    assert_int_equal(t->n_nodes, 18);
    assert_int_equal(t->n_devices, 72);
    assert_int_equal(t->n_domains, 1);
    loom_group_link tp8 = loom_topology_axis(t, 8, 1);
    assert_int_equal(tp8.nodes, 2);
    assert_int_equal(tp8.in_domain, 8);
    assert_int_equal(tp8.level, LOOM_LEVEL_DOMAIN);
    assert_figure(tp8.bandwidth, 900e9);
    assert_int_equal(loom_topology_ranks_in_domains(t, 64), 64);
    assert_int_equal(loom_topology_axis(t, 64, 1).level, LOOM_LEVEL_DOMAIN);
    assert_int_equal(loom_topology_axis(t, 9, 8).level, LOOM_LEVEL_DOMAIN);
    loom_topology_free(t);
}

static void several_racks_are_several_domains(void **state)
{
    loom_topology *t = topology_of("cluster: {nodes: 40, gpus_per_node: 4, gpu: gb200-186g, nvlink_domain: 72, nic_gbps_per_gpu: 400}");

    (void)state;
    assert_int_equal(t->n_domains, 3);
    assert_int_equal(loom_topology_domain_of(t, 71), 0);
    assert_int_equal(loom_topology_domain_of(t, 72), 1);
    assert_int_equal(loom_topology_domain_of(t, 159), 2);
    assert_int_equal(loom_topology_ranks_in_domains(t, 8), 160);
    loom_topology_free(t);

    t = topology_of("cluster: {nodes: 6, gpus_per_node: 4, gpu: gb200, domains: [4, 2]}");
    assert_int_equal(t->n_domains, 2);
    assert_int_equal(loom_topology_domain_of(t, 15), 0);
    assert_int_equal(loom_topology_domain_of(t, 16), 1);
    loom_topology_free(t);
}

static void a_domain_of_zero_leaves_every_card_alone(void **state)
{
    loom_topology *t = topology_file("clusters/single-3x24g.yaml");

    (void)state;
    assert_int_equal(t->n_domains, 3);
    assert_int_equal(t->n_nics, 0);
    loom_link link = loom_topology_link(t, 0, 2);
    assert_int_equal(link.level, LOOM_LEVEL_NODE);
    assert_false(loom_known(link.bandwidth)); /* nobody knows the bus of a generic card: not zero */
    loom_topology_free(t);
}

static void defaults_of_the_catalogue_are_marked_assumed(void **state)
{
    loom_topology *t = topology_of("cluster: {nodes: 2, gpus_per_node: 8, gpu: h100-80g}");

    (void)state;
    assert_int_equal(t->n_domains, 2);
    assert_figure(t->chips[0].link_bandwidth, 450e9);
    assert_int_equal(t->chips[0].link_bandwidth.origin, LOOM_ORIGIN_ASSUMED);
    assert_int_equal(loom_topology_nic_bandwidth(t, 0).origin, LOOM_ORIGIN_ASSUMED);
    assert_figure(loom_topology_nic_bandwidth(t, 0), 50e9);
    loom_topology_free(t);

    t = topology_of(
        "cluster: {nodes: 2, gpus_per_node: 4, gpu: h100-80g, link_gb_s: 300, price_per_gpu_hour: 2.5, peak_tflops: {fp8: 1500}}");
    assert_int_equal(t->n_domains, 2); /* eight usually share a switch, but a host has four */
    assert_figure(t->chips[0].link_bandwidth, 300e9);
    assert_int_equal(t->chips[0].link_bandwidth.origin, LOOM_ORIGIN_GIVEN);
    assert_figure(t->chips[0].price_per_hour, 2.5);
    assert_figure(t->chips[0].peak[LOOM_MATH_8], 1500e12);
    assert_figure(t->chips[0].peak[LOOM_MATH_16], 989e12);
    loom_topology_free(t);
}

static void machine_types_bring_their_network(void **state)
{
    loom_topology *t = topology_of("cluster: {nodes: 4, instance: p4d.24xlarge}");

    (void)state;
    assert_int_equal(t->n_devices, 32);
    assert_int_equal(t->n_nics, 16);
    assert_figure(loom_topology_nic_bandwidth(t, 0), 100e9 / 8 / 2); /* four cards of 100 Gbit/s for eight GPUs */
    loom_topology_free(t);

    t = topology_of("cluster: {nodes: 2, instance: p5.48xlarge}"); /* four cards of 100 Gbit/s each GPU */
    assert_figure(loom_topology_nic_bandwidth(t, 3), 400e9 / 8);
    loom_topology_free(t);
}

static void cards_are_chosen_by_locality_and_shared(void **state) /* D15 */
{
    static const int card_of_rank[4] = {1, 1, 0, 0};
    loom_topology *t = topology_of("cluster: {nodes: 1, gpus_per_node: 4, gpu: a100-80g, gpu_numa: [3, 3, 1, 1],"
                                   " nics_per_node: 2, nic_gbps: 400, nic_numa: [1, 3]}");

    (void)state;
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(t->devices[loom_topology_device_of(t, rank)].nic, card_of_rank[rank]);
        assert_figure(loom_topology_nic_bandwidth(t, rank), 200e9 / 8);
    }
    assert_int_equal(t->numas[t->devices[0].numa].os_index, 3);
    loom_topology_free(t);
}

static void hosts_with_cpus_only_are_a_cluster_too(void **state)
{
    loom_topology *t =
        topology_of("cluster: {nodes: 2, cpu_ranks_per_node: 4, cores_per_node: 16, memory_gib_per_node: 64, nic_gbps_per_gpu: 10}");

    (void)state;
    assert_int_equal(t->n_devices, 8);
    assert_int_equal(t->chips[0].kind, LOOM_CHIP_CPU);
    assert_figure(t->chips[0].memory_bytes, 16 * 1073741824.0);
    assert_false(loom_known(t->chips[0].peak[LOOM_MATH_F32]));
    assert_int_equal(loom_topology_axis(t, 4, 1).level, LOOM_LEVEL_DOMAIN);
    loom_topology_free(t);
}

static void groups_of_unlike_nodes_stand_in_one_file(void **state)
{
    loom_topology *t = topology_of("cluster:\n"
                                   "  nodes_per_rack: 2\n"
                                   "  oversubscription: {cluster: 4}\n"
                                   "  latency_us: {rack: 3}\n"
                                   "  groups:\n"
                                   "  - {nodes: 2, gpus_per_node: 8, gpu: h100-80g, nic_gbps_per_gpu: 400}\n"
                                   "  - {nodes: 1, gpus_per_node: 4, gpu: a100-40g, nic_gbps_per_gpu: 200}\n");

    (void)state;
    assert_int_equal(t->n_devices, 20);
    assert_int_equal(t->n_racks, 2);
    assert_string_equal(loom_topology_chip_of(t, 19)->name, "A100-SXM4-40GB");
    assert_figure(loom_topology_link(t, 0, 8).bandwidth, 50e9);
    assert_figure(loom_topology_link(t, 0, 8).latency_s, 3e-6);
    assert_int_equal(loom_topology_link(t, 0, 16).level, LOOM_LEVEL_CLUSTER);
    assert_figure(loom_topology_link(t, 0, 16).bandwidth, 25e9 / 4); /* the slower card, through the spine */
    loom_topology_free(t);
}

static void all_problems_of_a_file_come_at_once(void **state)
{
    (void)state;
    REFUSED("cluster:\n  nodes: 0\n  gpus_per_nod: 8\n  gpu: h1000\n  nic_gbps_per_gpu: fast\n", ":2:", "nodes", ":3:", "gpus_per_node",
            ":4:", "h100", ":5:", "nic_gbps_per_gpu");
    REFUSED("cluster: {nodes: 2, gpus_per_node: [2, 3, 3], gpu: generic-24g}", "lists 3 nodes", "nodes is 2");
    REFUSED("cluster: {nodes: 1, gpus_per_node: 8, gpu: h100, nvlink_domain: 6}", "nvlink_domain=6", "4 and 8 do");
    REFUSED("cluster: {nodes: 3, gpus_per_node: 4, gpu: gb200, domains: [1, 1]}", "2 nodes in all", "3");
    REFUSED("cluster: {nodes: 1, gpus_per_node: 4, gpu: [h100, a100]}", "lists 2 cards", "has 4");
    REFUSED("cluster: {instance: p5.48xlagre}", "p5.48xlarge");
    REFUSED("cluster: {nodes: 1, gpus_per_node: 2, gpu: h100, nic_gbps_per_gpu: 400, nics_per_node: 2}", "nic_gbps_per_gpu");
    REFUSED("model: {}", "cluster");
    REFUSED("", "cluster");
    REFUSED("cluster: {nodes: 100000, gpus_per_node: 256, gpu: h100}", "1048576");
}

static void cards_may_differ_by_slot(void **state)
{
    loom_topology *t = topology_of("cluster: {nodes: 2, gpus_per_node: 3, gpu: [rtx-4090, rtx-4090, l40s], nic_gbps_per_gpu: 25}");

    (void)state;
    assert_int_equal(t->n_chips, 2);
    assert_string_equal(loom_topology_chip_of(t, 5)->name, "L40S");
    assert_string_equal(loom_topology_chip_of(t, 3)->name, "RTX 4090");
    loom_topology_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_of_different_size_keep_their_own_local_ranks),
        cmocka_unit_test(a_domain_may_be_larger_than_a_host),
        cmocka_unit_test(several_racks_are_several_domains),
        cmocka_unit_test(a_domain_of_zero_leaves_every_card_alone),
        cmocka_unit_test(defaults_of_the_catalogue_are_marked_assumed),
        cmocka_unit_test(machine_types_bring_their_network),
        cmocka_unit_test(cards_are_chosen_by_locality_and_shared),
        cmocka_unit_test(hosts_with_cpus_only_are_a_cluster_too),
        cmocka_unit_test(groups_of_unlike_nodes_stand_in_one_file),
        cmocka_unit_test(all_problems_of_a_file_come_at_once),
        cmocka_unit_test(cards_may_differ_by_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
