/* Cores, NUMA nodes and their ranks; what the kernel does not tell stays unknown. */
#include "topology_test.h"

#include <rankloom/host.h>

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

static loom_host *host_of(const char *what)
{
    loom_host *host = NULL;
    assert_ok(loom_host_read(what, &host));
    return host;
}

static void numa_nodes_are_counted_by_type(void **state) /* D04 */
{
    loom_host *two = host_of(test_data("topology/D04-numa-not-in-main-tree.xml")),
              *one = host_of(test_data("topology/D04-numa-not-in-main-tree-one.xml"));

    (void)state;
    assert_int_equal(two->levels, 4);
    assert_int_equal(two->n_numas, 2);
    assert_int_equal(two->n_cores, 8);
    assert_int_equal(two->n_threads, 16);
    assert_int_equal(two->numas[0].cores, 4);
    assert_int_equal(two->numas[1].cores, 4);
    assert_int_equal(one->n_numas, 1);
    assert_int_equal(one->n_cores, 4);
    assert_int_equal(one->n_threads, 4);
    loom_host_free(two);
    loom_host_free(one);
}

static void cores_and_memory_are_counted_apart(void **state) /* D02 */
{
    loom_host *host = host_of(test_data("topology/D02-numa-without-memory.xml"));
    int with_cores = 0, with_memory = 0;

    (void)state;
    assert_int_equal(host->n_cores, 8);
    for (int i = 0; i < host->n_numas; i++) {
        with_cores |= (host->numas[i].cores > 0) << host->numas[i].os_index;
        with_memory |= (host->numas[i].memory_bytes > 0) << host->numas[i].os_index;
    }
    assert_int_equal(with_cores, 1 << 0 | 1 << 1);
    assert_int_equal(with_memory, 1 << 0 | 1 << 2);
    for (int i = 0; i < host->n_numas; i++)
        assert_true(host->numas[host->numas[i].memory_from].memory_bytes > 0);
    for (int rank = 0; rank < 8; rank++) {
        loom_core_share share;
        assert_ok(loom_host_share_cores(host, 8, rank, NULL, &share));
        assert_int_equal(share.n_pinned, 1);
        assert_int_equal(share.pinned[0], rank);
        loom_core_share_clear(&share);
    }
    loom_host_free(host);
}

static void forbidden_cores_are_neither_counted_nor_used(void **state) /* D05 */
{
    loom_host *host = host_of(test_data("topology/D05-container-cpuset.xml"));
    int notices = 0;

    (void)state;
    assert_int_equal(host->n_threads, 2);
    assert_int_equal(host->thread_os[0], 1);
    assert_int_equal(host->thread_os[1], 3);
    assert_int_equal(host->all_threads, 16);
    assert_int_equal(host->highest_thread, 15);
    for (int rank = 0; rank < 4; rank++) {
        loom_core_share share;
        assert_ok(loom_host_share_cores(host, 4, rank, NULL, &share));
        assert_int_equal(share.threads, 1);
        assert_true(share.n_pinned > 0);
        for (int i = 0; i < share.n_pinned; i++)
            assert_true(share.pinned[i] == 1 || share.pinned[i] == 3);
        if (rank == 0)
            notices += share.notice[0] != '\0';
        loom_core_share_clear(&share);
    }
    assert_int_equal(notices, 1);
    loom_host_free(host);
}

static void ranks_share_cores_evenly_and_apart(void **state) /* D17 */
{
    static const int ranks[] = {1, 2, 4, 8, 16}, threads[] = {8, 4, 2, 1, 1};
    loom_host *host = host_of("synthetic:core:8 pu:2");

    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        bool taken[16] = {false};
        for (int rank = 0; rank < ranks[i]; rank++) {
            loom_core_share share;
            assert_ok(loom_host_share_cores(host, ranks[i], rank, "", &share));
            assert_int_equal(share.threads, threads[i]);
            for (int t = 0; t < share.n_pinned; t++) {
                assert_false(taken[share.pinned[t]]);
                taken[share.pinned[t]] = true;
            }
            loom_core_share_clear(&share);
        }
        for (int t = 0; t < 16; t++)
            assert_true(taken[t]);
    }
    loom_host_free(host);
}

static void a_thread_count_of_the_launcher_is_used_and_told(void **state) /* D17 */
{
    loom_host *host = host_of("synthetic:core:8 pu:2");
    loom_core_share share;

    (void)state;
    assert_ok(loom_host_share_cores(host, 2, 0, "1", &share));
    assert_int_equal(share.threads, 1);
    assert_non_null(strstr(share.notice, "OMP_NUM_THREADS=1"));
    assert_non_null(strstr(share.notice, "4 threads each"));
    loom_core_share_clear(&share);
    assert_ok(loom_host_share_cores(host, 2, 0, "4", &share));
    assert_string_equal(share.notice, "");
    loom_core_share_clear(&share);
    assert_refused(loom_host_share_cores(host, 2, 0, "many", &share), LOOM_E_INVALID, "OMP_NUM_THREADS", "many");
    assert_refused(loom_host_share_cores(host, 2, 2, NULL, &share), LOOM_E_INVALID, "local rank 2 of 2");
    loom_host_free(host);
}

static void a_quota_counts_like_fewer_cores(void **state)
{
    loom_host *host = host_of("synthetic:core:8 pu:1");
    loom_core_share share;

    (void)state;
    host->cpu_quota = (loom_figure){2.5, LOOM_ORIGIN_READ};
    assert_ok(loom_host_share_cores(host, 1, 0, NULL, &share));
    assert_int_equal(share.threads, 2);
    loom_core_share_clear(&share);
    loom_host_free(host);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void texts_of_the_kernel_are_read(void **state)
{
    char folder[] = "/tmp/loom_host_XXXXXX", path[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_false(loom_known(loom_cpu_quota_of(folder)));
    write_file(folder, "cpu.max", "max 100000\n");
    assert_false(loom_known(loom_cpu_quota_of(folder)));
    write_file(folder, "cpu.max", "150000 100000\n");
    assert_figure(loom_cpu_quota_of(folder), 1.5);

    assert_int_equal(loom_numa_of_text("-1\n"), -1);
    assert_int_equal(loom_numa_of_text(""), -1);
    assert_int_equal(loom_numa_of_text(NULL), -1);
    assert_int_equal(loom_numa_of_text("1\n"), 1);
    assert_int_equal(loom_numa_of_text("0x1"), -1);
    assert_int_equal(loom_numa_of_text("99999999999999999999"), -1);

    snprintf(path, sizeof path, "%s/0000:04:00.0", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file(path, "numa_node", "-1\n");
    assert_int_equal(loom_numa_of_pci(folder, "0000:04:00.0"), -1);
    write_file(path, "numa_node", "3\n");
    assert_int_equal(loom_numa_of_pci(folder, "0000:04:00.0"), 3);
    assert_int_equal(loom_numa_of_pci(folder, "0000:05:00.0"), -1); /* no such file */
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void devices_of_unknown_locality_are_one_place_and_told_once(void **state) /* D01 */
{
    static const char *const hosts[] = {"synthetic:core:4 pu:1", "synthetic:numa:2 core:4 pu:1"};
    loom_gpu gpu[2] = {
        {.index = 0, .pci = "0000:04:00.0", .uuid = "GPU-a", .name = "NVIDIA L40S", .numa = loom_numa_of_text("-1"), .parent = -1},
        {.index = 1, .pci = "0000:05:00.0", .uuid = "GPU-b", .name = "NVIDIA L40S", .numa = loom_numa_of_text("-1"), .parent = -1}};
    loom_gpus gpus = {.count = 2, .gpus = gpu};

    (void)state;
    for (int h = 0; h < 2; h++) {
        loom_host *host = host_of(hosts[h]);
        loom_topology *t = NULL;
        loom_core_share share;

        free(host->pcis);
        host->pcis = calloc(1, sizeof *host->pcis);
        host->pcis[host->n_pcis++] = (loom_host_pci){.address = "0000:06:00.0", .class_id = 0x0200, .numa = loom_numa_of_text("-1")};
        assert_ok(loom_topology_of_host(host, &gpus, NULL, 0, &t));
        assert_int_equal(t->n_devices, 2);
        assert_int_equal(t->devices[0].numa, -1);
        assert_int_equal(t->devices[1].numa, -1);
        assert_int_equal(t->nics[0].numa, -1);
        assert_int_equal(t->n_notices, 1);
        assert_non_null(strstr(t->notices[0], "3 devices"));
        assert_ok(loom_host_cores_near(host, gpu[0].numa, 1, &share));
        assert_int_equal(share.n_pinned, 0);
        assert_ok(loom_host_bind(host, &share)); /* binds to nothing, so it does nothing */
        loom_core_share_clear(&share);
        loom_topology_free(t);
        loom_host_free(host);
    }
}

static void this_host_is_read_and_its_ranks_bound(void **state)
{
    loom_host *host = host_of(NULL);
    loom_topology *t = NULL;
    loom_core_share share;
    cpu_set_t before, after;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(host->n_threads, CPU_COUNT(&before));
    assert_true(host->memory_bytes > 0);
    assert_ok(loom_topology_of_host(host, NULL, NULL, 2, &t));
    assert_int_equal(loom_topology_ranks(t), 2);
    assert_int_equal(loom_topology_axis(t, 2, 1).level, LOOM_LEVEL_DOMAIN);
    assert_false(loom_known(t->chips[0].peak[LOOM_MATH_F32])); /* nobody measured it yet */
    loom_topology_free(t);

    assert_ok(loom_host_share_cores(host, 2, 1, NULL, &share));
    assert_ok(loom_host_bind(host, &share));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_int_equal(CPU_COUNT(&after), share.n_pinned);
    assert_true(CPU_ISSET(share.pinned[0], &after));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    loom_core_share_clear(&share);
    loom_host_free(host);
}

static void what_is_no_host_is_refused(void **state)
{
    loom_host *host = NULL;

    (void)state;
    assert_refused(loom_host_read("synthetic:nonsense", &host), LOOM_E_INVALID, "nonsense");
    assert_refused(loom_host_read("/nowhere/host.xml", &host), LOOM_E_IO, "/nowhere/host.xml");
    assert_refused(loom_host_parse_xml("x.xml", "<topology>", 10, &host), LOOM_E_INVALID, "x.xml");
    assert_null(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numa_nodes_are_counted_by_type),
        cmocka_unit_test(cores_and_memory_are_counted_apart),
        cmocka_unit_test(forbidden_cores_are_neither_counted_nor_used),
        cmocka_unit_test(ranks_share_cores_evenly_and_apart),
        cmocka_unit_test(a_thread_count_of_the_launcher_is_used_and_told),
        cmocka_unit_test(a_quota_counts_like_fewer_cores),
        cmocka_unit_test(texts_of_the_kernel_are_read),
        cmocka_unit_test(devices_of_unknown_locality_are_one_place_and_told_once),
        cmocka_unit_test(this_host_is_read_and_its_ranks_bound),
        cmocka_unit_test(what_is_no_host_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
