/* GPUs: visible lists, partitions, link matrices, and NVML as a fake library tells it. */
#include "topology_test.h"

#include <rankloom/host.h>

/* --- visible devices ------------------------------------------------------------------------------------------------------ */

static loom_gpu eight[8];

static void make_eight(void)
{
    for (int i = 0; i < 8; i++) {
        eight[i] = (loom_gpu){.index = i, .numa = i / 4, .parent = -1, .name = "NVIDIA A100-SXM4-80GB"};
        snprintf(eight[i].pci, sizeof eight[i].pci, "0000:%02x:00.0", 0x10 + i);
        snprintf(eight[i].uuid, sizeof eight[i].uuid, "GPU-11111111-aaaa-bbbb-cccc-%012d", i);
    }
}

static void visible(const char *list, int count, const int *expected)
{
    loom_visible seen;

    make_eight();
    assert_ok(loom_visible_devices(list, eight, 8, &seen));
    assert_int_equal(seen.count, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(seen.gpu[i], expected[i]);
    loom_visible_clear(&seen);
}

static void lists_are_read_as_the_runtime_reads_them(void **state) /* D07 */
{
    (void)state;
    visible("4,6", 2, (int[]){4, 6});
    visible("GPU-11111111-aaaa-bbbb-cccc-000000000004", 1, (int[]){4});
    visible("0,99,1", 1, (int[]){0});
    visible(NULL, 8, (int[]){0, 1, 2, 3, 4, 5, 6, 7});
    visible("", 0, NULL);
    visible("-1", 0, NULL);
    visible(" 3 , 1 ", 2, (int[]){3, 1});
    visible("2,2,3", 1, (int[]){2});
    visible("gpu-11111111-AAAA-bbbb-cccc-00000000000", 0, NULL); /* fits eight */
    visible("7,NoDevFiles,1", 1, (int[]){7});
    visible("0,1,2,3,4,5,6,7,0", 8, (int[]){0, 1, 2, 3, 4, 5, 6, 7});
}

static void cores_follow_the_physical_device(void **state) /* D07 */
{
    loom_host *host = NULL;
    loom_visible seen;

    (void)state;
    make_eight();
    assert_ok(loom_host_read("synthetic:numa:2 core:20 pu:1", &host));
    assert_ok(loom_visible_devices("4,6", eight, 8, &seen));
    for (int local_rank = 0; local_rank < 2; local_rank++) {
        loom_core_share share;
        assert_ok(loom_host_cores_near(host, eight[seen.gpu[local_rank]].numa, 2, &share));
        assert_int_equal(share.n_pinned, 20);
        assert_int_equal(share.pinned[0], 20);
        assert_int_equal(share.pinned[19], 39);
        assert_int_equal(share.threads, 10);
        loom_core_share_clear(&share);
    }
    loom_visible_clear(&seen);
    loom_host_free(host);
}

static void a_process_has_one_partition(void **state) /* D09 */
{
    static const char *list = "MIG-aaaa0000-0000-0000-0000-000000000001,MIG-aaaa0000-0000-0000-0000-000000000002";
    loom_gpu gpu[3] = {{.index = 0, .uuid = "GPU-x", .name = "NVIDIA H100 80GB HBM3", .memory_bytes = 80ull << 30, .parent = -1, .numa = 0},
                       {.index = 0,
                        .uuid = "MIG-aaaa0000-0000-0000-0000-000000000001",
                        .name = "NVIDIA H100 80GB HBM3",
                        .memory_bytes = 20ull << 30,
                        .numa = 0},
                       {.index = 0,
                        .uuid = "MIG-aaaa0000-0000-0000-0000-000000000002",
                        .name = "NVIDIA H100 80GB HBM3",
                        .memory_bytes = 20ull << 30,
                        .numa = 0}};
    loom_gpus gpus = {.count = 3, .gpus = gpu};
    loom_host *host = NULL;
    loom_topology *t = NULL;

    (void)state;
    assert_ok(loom_host_read("synthetic:core:8 pu:1", &host));
    assert_ok(loom_topology_of_host(host, &gpus, list, 0, &t));
    assert_int_equal(t->n_devices, 1);
    assert_figure(t->chips[0].memory_bytes, (double)(20ull << 30));
    assert_false(t->peer_access);
    assert_false(loom_known(t->chips[0].link_bandwidth));
    assert_int_equal(t->n_notices, 1);
    assert_non_null(strstr(t->notices[0], "process environment"));
    loom_topology_free(t);
    t = NULL;
    assert_refused(loom_topology_of_host(host, &gpus, "MIG-unheard-of", 0, &t), LOOM_E_INVALID, "MIG-unheard-of");
    loom_host_free(host);
}

/* --- link matrices ---------------------------------------------------------------------------------------------------------- */

static void groups_follow_the_matrix(void **state) /* D11 */
{
    static const char *const files[] = {"topology/D11-bridged-pairs-a.txt", "topology/D11-bridged-pairs-b.txt"};
    static const int order[2][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}};

    (void)state;
    for (int f = 0; f < 2; f++) {
        loom_topology *t = topology_file(files[f]);
        assert_int_equal(t->n_domains, 2);
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(loom_topology_device_of(t, rank), order[f][rank]); /* pairs of neighbours are the bridged ones */
        loom_group_link tp2 = loom_topology_axis(t, 2, 1), tp4 = loom_topology_axis(t, 4, 1);
        assert_int_equal(tp2.path, LOOM_PATH_NVLINK);
        assert_int_equal(tp2.level, LOOM_LEVEL_DOMAIN);
        assert_figure(tp2.bandwidth, 4 * 25e9); /* NV4 */
        assert_int_equal(tp4.path, LOOM_PATH_SYS);
        assert_int_equal(tp4.level, LOOM_LEVEL_NODE);
        assert_false(loom_known(tp4.bandwidth));               /* the cards are not named, so their bus is not known */
        assert_int_equal(t->devices[3].numa, f == 0 ? 1 : -1); /* "N/A" is unknown */
        loom_topology_free(t);
    }
}

static void a_matrix_stands_in_a_cluster_file(void **state)
{
    loom_topology *t = topology_of("cluster:\n  nodes: 2\n  gpus_per_node: 4\n  gpu: a100-pcie-80g\n  nic_gbps_per_gpu: 100\n  links: |\n"
                                   "    GPU0 GPU1 GPU2 GPU3\n"
                                   "    GPU0 X SYS NV12 SYS\n    GPU1 SYS X SYS NV12\n    GPU2 NV12 SYS X SYS\n    GPU3 SYS NV12 SYS X\n");

    (void)state;
    assert_int_equal(t->n_domains, 4);
    assert_int_equal(loom_topology_device_of(t, 1), 2);
    assert_figure(loom_topology_axis(t, 2, 1).bandwidth, 300e9);
    assert_figure(loom_topology_axis(t, 4, 1).bandwidth, 32e9);       /* over the sockets */
    assert_figure(loom_topology_axis(t, 4, 2).bandwidth, 2 * 12.5e9); /* two in each node: their two cards are slower than the bus */
    loom_topology_free(t);
    REFUSED("cluster: {nodes: 1, gpus_per_node: 4, gpu: h100, links: \"GPU0 GPU1\\nGPU0 X NV4\\nGPU1 NV4 X\\n\"}", "2 devices", "4");
    REFUSED("cluster: {gpus_per_node: [2, 1], gpu: h100, links: \"GPU0 GPU1\\nGPU0 X NV4\\nGPU1 NV4 X\\n\"}", "2 and 1 devices", "groups");
}

static void a_terminal_s_underlining_is_not_part_of_the_matrix(void **state)
{
    static const char text[] = "\t\033[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n"
                               "GPU0\t X \tNV18\tPIX\t0-31\t0\t\tN/A\n"
                               "GPU1\tNV18\t X \tSYS\t32-63\t1\t\tN/A\n"
                               "NIC0\tPIX\tSYS\t X \n\nLegend:\n\n  X    = Self\n";
    loom_topology *t = topology_of(text);

    (void)state;
    assert_int_equal(t->n_devices, 2);
    assert_int_equal(t->n_nics, 1);
    assert_int_equal(t->n_domains, 1);
    assert_int_equal(t->numas[t->devices[1].numa].os_index, 1);
    loom_topology_free(t);
}

static void a_broken_matrix_is_refused(void **state)
{
    (void)state;
    REFUSED("GPU0 GPU1\nGPU0 X NV4\nGPU1 SYS X\n", "symmetric", "GPU0", "GPU1");
    REFUSED("GPU0 GPU1\nGPU0 X NV4\n", "1 rows for 2 devices");
    REFUSED("GPU0 GPU1\nGPU0 X FAST\nGPU1 FAST X\n", "FAST");
    REFUSED("GPU0 GPU1\nGPU0 X\nGPU1 NV4 X\n", "1 entries, expected 2");
}

/* --- NCCL's files -------------------------------------------------------------------------------------------------------------- */

static void a_cloud_that_hides_speeds_gives_unknown_or_assumed(void **state) /* D13 */
{
    loom_topology *t = topology_file("topology/D13-cloud-without-links.xml");

    (void)state;
    assert_int_equal(t->n_devices, 2);
    assert_false(loom_known(t->chips[0].host_bandwidth)); /* nothing was read */
    assert_false(loom_known(loom_topology_link(t, 0, 1).bandwidth));
    assert_int_equal(t->devices[0].numa, -1);
    assert_ok(loom_topology_name_chips(t, "h100-80g"));
    assert_int_equal(loom_topology_link(t, 0, 1).bandwidth.origin, LOOM_ORIGIN_ASSUMED);
    assert_figure(loom_topology_link(t, 0, 1).bandwidth, 64e9);
    assert_refused(loom_topology_name_chips(t, "h100-80g"), LOOM_E_INVALID, "names its devices");
    loom_topology_free(t);

    t = topology_of("cluster: {nodes: 1, gpus_per_node: 2, gpu: h100-80g, nvlink_domain: 0, pcie_gb_s: 20}"); /* a user's file wins */
    assert_int_equal(loom_topology_link(t, 0, 1).bandwidth.origin, LOOM_ORIGIN_GIVEN);
    assert_figure(loom_topology_link(t, 0, 1).bandwidth, 20e9);
    loom_topology_free(t);
}

static void speeds_that_are_told_are_read(void **state)
{
    static const char text[] =
        "<?xml version=\"1.0\"?>\n<!-- two cards under one switch, bridged -->\n<system version='1'>\n"
        " <cpu numaid=\"1\" affinity=\"ff\">\n  <pci busid=\"0000:10:00.0\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
        "   <pci busid=\"0000:11:00.0\" link_speed=\"32 GT/s\" link_width=\"16\"><gpu dev=\"0\"><nvlink target=\"0000:12:00.0\" "
        "count=\"4\" tclass=\"0x030200\"/></gpu></pci>\n"
        "   <pci busid=\"0000:12:00.0\" link_speed=\"8 GT/s\" link_width=\"8\"><gpu dev=\"1\"></gpu></pci>\n"
        "  </pci>\n  <nic><net name=\"mlx5_0\" speed=\"200000\"/></nic>\n </cpu>\n</system>\n";
    loom_topology *t = topology_of(text);

    (void)state;
    assert_figure(t->chips[t->devices[0].chip].host_bandwidth, 16e9 * 16 / 8 * 128 / 130); /* the switch above is the slower link */
    assert_figure(t->chips[t->devices[1].chip].host_bandwidth, 8e9 * 8 / 8 * 128 / 130);
    assert_int_equal(t->chips[0].host_bandwidth.origin, LOOM_ORIGIN_READ);
    assert_int_equal(t->n_domains, 1);
    assert_figure(loom_topology_link(t, 0, 1).bandwidth, 100e9);
    assert_figure(loom_topology_nic_bandwidth(t, 0), 12.5e9);
    assert_int_equal(t->numas[t->devices[0].numa].os_index, 1);
    loom_topology_free(t);
}

static void a_broken_file_of_nccl_is_refused_with_its_line(void **state)
{
    (void)state;
    REFUSED("<system version=\"1\">\n<cpu>\n</system>", "test.yaml:3", "match");
    REFUSED("<system>\n<cpu numaid=1/></system>", "test.yaml:2", "quoted");
    REFUSED("<system><cpu numaid=\"0\"/></system>", "no <gpu>");
    REFUSED("<system><pci><gpu/>", "ends inside");
}

static void hwloc_xml_is_a_topology_too(void **state)
{
    loom_topology *t = topology_file("topology/D04-numa-not-in-main-tree.xml");

    (void)state;
    assert_int_equal(t->n_devices, 2); /* a rank for each NUMA node */
    assert_int_equal(t->nodes[0].cores, 8);
    loom_topology_free(t);
}

/* --- NVML ------------------------------------------------------------------------------------------------------------------------ */

static void nvml_is_asked_at_run_time(void **state)
{
    loom_gpus *gpus = NULL;
    loom_host *host = NULL;
    loom_topology *t = NULL;

    (void)state;
    assert_ok(loom_gpus_read(getenv("LOOM_FAKE_NVML"), &gpus));
    assert_string_equal(gpus->note, "");
    assert_string_equal(gpus->driver, "999.1");
    assert_int_equal(gpus->count, 6); /* four GPUs, the last in two partitions */
    assert_string_equal(gpus->gpus[1].pci, "0000:3b:00.0");
    assert_int_equal(gpus->gpus[5].parent, 3);
    assert_int_equal(gpus->gpus[5].memory_bytes, 20ull << 30);

    /* 0 and 1 are bridged by four links of the fourth generation, found by address; the others meet on PCI. */
    assert_int_equal(gpus->wires[0 * 6 + 1].path, LOOM_PATH_NVLINK);
    assert_int_equal(gpus->wires[0 * 6 + 1].links, 4);
    assert_int_equal(gpus->wires[1 * 6 + 0].links, 4);
    assert_int_equal(gpus->wires[0 * 6 + 2].path, LOOM_PATH_SYS);
    assert_int_equal(gpus->wires[4 * 6 + 5].path, LOOM_PATH_UNKNOWN);

    assert_ok(loom_host_read("synthetic:numa:2 core:4 pu:1", &host));
    assert_ok(loom_topology_of_host(host, gpus, "1,0,2", 0, &t));
    assert_int_equal(t->n_devices, 3);
    assert_int_equal(t->n_domains, 2);
    assert_string_equal(t->chips[0].name, "H100-SXM5-80GB");
    assert_int_equal(t->chips[0].memory_bytes.origin, LOOM_ORIGIN_READ);
    assert_figure(loom_topology_link(t, 0, 1).bandwidth, 100e9);
    loom_topology_free(t);
    loom_host_free(host);
    loom_gpus_free(gpus);
}

static void a_machine_without_nvml_has_no_gpus_and_says_why(void **state)
{
    loom_gpus *gpus = NULL;

    (void)state;
    assert_ok(loom_gpus_read("libloom-no-such-nvml.so", &gpus));
    assert_int_equal(gpus->count, 0);
    assert_non_null(strstr(gpus->note, "libloom-no-such-nvml.so"));
    loom_gpus_free(gpus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_as_the_runtime_reads_them),
        cmocka_unit_test(cores_follow_the_physical_device),
        cmocka_unit_test(a_process_has_one_partition),
        cmocka_unit_test(groups_follow_the_matrix),
        cmocka_unit_test(a_matrix_stands_in_a_cluster_file),
        cmocka_unit_test(a_terminal_s_underlining_is_not_part_of_the_matrix),
        cmocka_unit_test(a_broken_matrix_is_refused),
        cmocka_unit_test(a_cloud_that_hides_speeds_gives_unknown_or_assumed),
        cmocka_unit_test(speeds_that_are_told_are_read),
        cmocka_unit_test(a_broken_file_of_nccl_is_refused_with_its_line),
        cmocka_unit_test(hwloc_xml_is_a_topology_too),
        cmocka_unit_test(nvml_is_asked_at_run_time),
        cmocka_unit_test(a_machine_without_nvml_has_no_gpus_and_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
