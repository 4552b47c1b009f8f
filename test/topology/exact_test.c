/* The exact form: what is written reads back equal, and what is wrong is refused. */
#include "topology_test.h"

#include <rankloom/host.h>
#include <rankloom/text.h>

#include <unistd.h>

static void reads_back_equal(loom_topology *t)
{
    char *text = NULL, *again = NULL;
    loom_topology *back = NULL;

    assert_ok(loom_topology_write(t, &text));
    assert_ok(loom_topology_parse("written.yaml", text, strlen(text), &back));
    assert_true(loom_topology_equal(t, back));
    assert_int_equal(t->period, back->period);
    assert_ok(loom_topology_write(back, &again));
    assert_string_equal(text, again);
    loom_text_free(text);
    loom_text_free(again);
    loom_topology_free(back);
    loom_topology_free(t);
}

static void files_of_every_kind_are_saved_whole(void **state)
{
    static const char *const files[] = {
        "clusters/a100-1x6.yaml",     "clusters/a100-4x4.yaml",           "clusters/h100-1x8.yaml",
        "clusters/h100-2x8.yaml",     "clusters/nvl72-1rack.yaml",        "clusters/single-3x24g.yaml",
        "clusters/uneven-2-3-3.yaml", "topology/D11-bridged-pairs-a.txt", "topology/D11-bridged-pairs-b.txt"};
    static const char *const clusters[] = {
        "cluster: {nodes: 40, gpus_per_node: 4, gpu: gb200, nodes_per_rack: 18, oversubscription: {cluster: 2.5}, latency_us: {rack: 3.3}}",
        "cluster: {nodes: 4, gpus_per_node: 8, gpu: a100-40g, nvlink_domain: 2, nics_per_node: 3, nic_gbps: 100, rails: true}",
        "cluster: {nodes: 2, gpus_per_node: 3, gpu: [rtx-4090, rtx-4090, l40s], nic_gbps_per_gpu: 25, price_per_gpu_hour: 0.37}",
        "cluster: {name: \"odd: # \\\" name\", nodes: 2, cpu_ranks_per_node: 4, cores_per_node: 16, memory_gib_per_node: 64}",
        "cluster: {nodes: 1, gpus_per_node: 4, gpu: a100, gpu_numa: [3, 3, 1, 1], nics_per_node: 2, nic_gbps: 400, nic_numa: [1, 3]}",
        "cluster: {groups: [{nodes: 3, instance: p5.48xlarge}, {nodes: 2, instance: p4d.24xlarge}]}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        reads_back_equal(topology_file(files[i]));
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters; i++)
        reads_back_equal(topology_of(clusters[i]));
}

static void hosts_are_saved_whole(void **state)
{
    static const char *const hosts[] = {NULL, "synthetic:numa:2 core:4 pu:2"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        loom_host *host = NULL;
        loom_topology *t = NULL;
        assert_ok(loom_host_read(hosts[i], &host));
        assert_ok(loom_topology_of_host(host, NULL, NULL, 3, &t));
        reads_back_equal(t);
        loom_host_free(host);
    }
}

static void hosts_are_joined_to_a_cluster(void **state)
{
    loom_topology *a = topology_of("cluster: {nodes: 1, gpus_per_node: 8, gpu: h100-80g, nic_gbps_per_gpu: 400}");
    loom_topology *b = topology_of("cluster: {nodes: 1, gpus_per_node: 4, gpu: a100-40g, gpu_numa: [0, 0, 1, 1]}"), *t = NULL, *whole;
    const loom_topology *hosts[] = {a, a, b};

    (void)state;
    assert_ok(loom_topology_join(hosts, 2, &t));
    whole = topology_file("clusters/h100-2x8.yaml");
    assert_true(loom_topology_equal(t, whole));
    loom_topology_free(whole);
    loom_topology_free(t);
    assert_ok(loom_topology_join(hosts, 3, &t));
    assert_int_equal(t->n_chips, 2);
    assert_int_equal(t->n_domains, 3);
    assert_int_equal(t->numas[t->devices[19].numa].os_index, 1);
    reads_back_equal(t);
    loom_topology_free(a);
    loom_topology_free(b);
}

static void measured_figures_survive_to_the_last_bit(void **state)
{
    loom_topology *t = topology_file("clusters/h100-2x8.yaml");

    (void)state;
    snprintf(t->measured, sizeof t->measured, "2026-01-02 by rankloom probe");
    t->n_gemms = 2;
    t->gemms = calloc(2, sizeof *t->gemms);
    t->gemms[0] = (loom_gemm_point){0, LOOM_MATH_16, 4096, 4096, 1, 1.0 / 3};
    t->gemms[1] = (loom_gemm_point){0, LOOM_MATH_F32, 1, 7, 123456789, 5e-324 + 1e-7};
    t->n_points = 1;
    t->points = calloc(1, sizeof *t->points);
    t->points[0] = (loom_pattern_point){LOOM_PATTERN_ALL_TO_ALL, LOOM_LEVEL_RACK, 16, 8, 1048576, 0.1 + 0.2};
    t->n_laws = 1;
    t->laws = calloc(1, sizeof *t->laws);
    t->laws[0] = (loom_pattern_law){
        LOOM_PATTERN_SEND, LOOM_LEVEL_NODE, 2, 1, {1e-6 / 3, LOOM_ORIGIN_MEASURED}, loom_unknown(), {1e9 / 7, LOOM_ORIGIN_MEASURED}};
    t->chips[0].memory_reach = (loom_figure){0.1, LOOM_ORIGIN_MEASURED};
    reads_back_equal(t);
}

static void a_saved_file_replaces_whole(void **state)
{
    char path[] = "/tmp/loom_topology_XXXXXX";
    loom_topology *t = topology_file("clusters/nvl72-1rack.yaml"), *back = NULL;
    int file = mkstemp(path);

    (void)state;
    assert_true(file >= 0);
    close(file);
    assert_ok(loom_topology_save(t, path));
    assert_ok(loom_topology_load(path, &back));
    assert_true(loom_topology_equal(t, back));
    back->devices[71].numa = 0;
    assert_false(loom_topology_equal(t, back));
    loom_topology_free(t);
    loom_topology_free(back);
    unlink(path);
}

/* The least that a person has to write. */
#define SMALL "topology:\n  chips: [{name: x}]\n  kinds: [{chip: [0, 0], group: [0, 0]}]\n  nodes: [{kind: 0, count: 2}]\n"

static void a_bare_number_is_given_and_silence_is_unknown(void **state)
{
    loom_topology *t = topology_of("topology:\n  chips: [{name: x, link_bandwidth: 1e11, peer_bandwidth: unknown, power_w: [70, read]}]\n"
                                   "  kinds: [{chip: [0, 0], group: [0, 0]}]\n  nodes: [{kind: 0, count: 2}]\n");

    (void)state;
    assert_int_equal(t->chips[0].link_bandwidth.origin, LOOM_ORIGIN_GIVEN);
    assert_figure(t->chips[0].link_bandwidth, 1e11);
    assert_int_equal(t->chips[0].power_w.origin, LOOM_ORIGIN_READ);
    assert_false(loom_known(t->chips[0].peer_bandwidth));
    assert_false(loom_known(t->chips[0].memory_bandwidth));
    assert_int_equal(t->n_domains, 2);
    loom_topology_free(t);
}

static void problems_come_all_at_once(void **state)
{
    (void)state;
    loom_topology_free(topology_of(SMALL));
    REFUSED("topology:\n  chips: [{nam: x, power_w: [70, guessed]}]\n  kinds: [{chip: [0, 1], nic: [0, 0]}]\n  nodes: [{kind: 3}]\n",
            "name", "power_w: expected", "assumed, read, given or measured", ":2:", ":3:", "chip", "nic", ":4:", "kind");
    REFUSED("topology: {}\n", "chips", "kinds", "nodes");
    REFUSED("topology: {chips: [{name: x}], kinds: [{chip: [0]}], nodes: [{kind: 0, rack: 1}]}", "rack 1 follows rack -1");
    REFUSED("topology: {chips: [{name: x}], kinds: [{chip: []}], nodes: [{kind: 0}]}", "no devices");
    REFUSED("topology: {chips: [{name: x}], kinds: [{chip: [0]}], nodes: [{kind: 0, count: 100000}, {kind: 0, count: 100000}]}",
            "131072 nodes");
    REFUSED("topology: {chips: [{name: x}], kinds: [{chip: [0], wires: [\"X NV4\"]}], nodes: [{kind: 0}]}", "NV4", "too many");
    REFUSED("topology: {levels: {rack: {oversubscription: 0.5}}, chips: [{name: x}], kinds: [{chip: [0]}], nodes: [{kind: 0}]}",
            "oversubscription");
    REFUSED("topology: {chips: [{name: x}], kinds: [{chip: [0]}], nodes: [{kind: 0}], gemms: [[0, bf16, 1, 1, 1, 0]], points: [[sum, "
            "domain, 2, 2, 8, 1]]}",
            "gemms", "points");
    REFUSED(SMALL "cluster: {nodes: 1, gpus_per_node: 1, gpu: h100}\n", "two forms");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_every_kind_are_saved_whole), cmocka_unit_test(hosts_are_saved_whole),
        cmocka_unit_test(hosts_are_joined_to_a_cluster),       cmocka_unit_test(measured_figures_survive_to_the_last_bit),
        cmocka_unit_test(a_saved_file_replaces_whole),         cmocka_unit_test(a_bare_number_is_given_and_silence_is_unknown),
        cmocka_unit_test(problems_come_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
