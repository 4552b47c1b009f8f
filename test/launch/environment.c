/* Who am I: one test a launcher, and the cases E04, E05 and E11 of test/data/cases/launch. */
#include "check.h"
#include "launch/slurm.h"

#include <rankloom/config.h>
#include <rankloom/launch.h>

/* An environment as text: NAME, value, NAME, value, …, NULL. */
static const char *get_from_list(void *context, const char *name)
{
    for (const char *const *entry = context; *entry; entry += 2)
        if (strcmp(entry[0], name) == 0)
            return entry[1];
    return NULL;
}

#define LAUNCH_FROM(launch, ...) loom_launch_from(get_from_list, (void *)(const char *const[]){__VA_ARGS__, NULL, NULL}, launch)
#define MASTER "MASTER_ADDR", "10.0.0.1", "MASTER_PORT", "29500"

static void nothing_set_is_a_world_of_one(void **state)
{
    loom_launch launch;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "HOME", "/"));
    assert_int_equal(launch.launcher, LOOM_LAUNCH_ALONE);
    assert_true(launch.rank == 0 && launch.size == 1 && launch.local_rank == 0 && launch.local_size == 1);
    assert_ok(LAUNCH_FROM(&launch, MASTER)); /* accelerate with one process sets these two alone */
    assert_int_equal(launch.launcher, LOOM_LAUNCH_ALONE);
}

static void torchrun_is_read_whole(void **state)
{
    loom_launch launch;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "TORCHELASTIC_RUN_ID", "job7", "RANK", "5", "WORLD_SIZE", "8", "LOCAL_RANK", "1", "LOCAL_WORLD_SIZE", "2",
                          "GROUP_RANK", "2", "GROUP_WORLD_SIZE", "3", "MASTER_ADDR", "fd00::7", "MASTER_PORT", "43210",
                          "TORCHELASTIC_RESTART_COUNT", "3", "TORCHELASTIC_MAX_RESTARTS", "9", "TORCHELASTIC_USE_AGENT_STORE", "True",
                          "TORCHELASTIC_ERROR_FILE", "/tmp/x/error.json", "SLURM_PROCID", "0", "SLURM_STEP_ID", "0", "OMPI_COMM_WORLD_RANK", "0"));
    assert_int_equal(launch.launcher, LOOM_LAUNCH_TORCHRUN);
    assert_true(launch.rank == 5 && launch.size == 8 && launch.local_rank == 1 && launch.local_size == 2);
    assert_true(launch.node_rank == 2 && launch.nodes == 3 && launch.restart == 3 && launch.agent_store && launch.master_port == 43210);
    assert_string_equal(launch.master_addr, "fd00::7");
    assert_string_equal(launch.run_id, "job7");
    assert_string_equal(launch.error_file, "/tmp/x/error.json");
}

static void an_empty_error_file_is_none(void **state)
{
    loom_launch launch;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "TORCHELASTIC_RUN_ID", "r", "RANK", "0", "WORLD_SIZE", "1", MASTER, "TORCHELASTIC_USE_AGENT_STORE", "False",
                          "TORCHELASTIC_ERROR_FILE", ""));
    assert_string_equal(launch.error_file, "");
    assert_false(launch.agent_store);
}

static void what_is_not_told_about_the_node_stays_unknown(void **state)
{
    loom_launch launch;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "RANK", "1", "WORLD_SIZE", "4", MASTER));
    assert_int_equal(launch.launcher, LOOM_LAUNCH_ENV);
    assert_true(launch.local_rank == -1 && launch.local_size == 0 && launch.node_rank == -1 && launch.nodes == 0);
    assert_false(launch.agent_store);
}

static void deepspeed_has_names_of_its_own_for_the_node(void **state)
{
    loom_launch launch;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "RANK", "3", "WORLD_SIZE", "4", MASTER, "LOCAL_RANK", "1", "LOCAL_SIZE", "2", "CROSS_RANK", "1", "CROSS_SIZE", "2"));
    assert_true(launch.local_rank == 1 && launch.local_size == 2 && launch.node_rank == 1 && launch.nodes == 2);
}

static void all_problems_are_in_one_message(void **state)
{
    loom_launch launch = {.size = -7};

    (void)state;
    assert_refused(LAUNCH_FROM(&launch, "TORCHELASTIC_RUN_ID", "r", "RANK", "two", "WORLD_SIZE", "", "MASTER_PORT", "70000", "LOCAL_RANK", "-1",
                               "LOCAL_WORLD_SIZE", " 1", "GROUP_RANK", "3", "GROUP_WORLD_SIZE", "3", "TORCHELASTIC_USE_AGENT_STORE", "yes"),
                   LOOM_E_INVALID, "torchrun, 8 problems", "RANK=\"two\" is not a number", "WORLD_SIZE is empty", "MASTER_ADDR is missing",
                   "MASTER_PORT=70000 is out of range", "LOCAL_RANK=\"-1\"", "LOCAL_WORLD_SIZE=\" 1\"", "GROUP_RANK=3 is out of range; 0 to 2",
                   "USE_AGENT_STORE=\"yes\"");
    assert_int_equal(launch.size, -7); /* nothing was changed */
}

static void addresses_are_taken_as_people_write_them(void **state)
{
    const struct {
        const char *text, *address, *port;
        int expected;
    } cases[] = {{"[::1]", "::1", "29500", 29500},      {"[::1]:29500", "::1", "29500", 29500}, {"[fe80::1]:1", "fe80::1", NULL, 1},
                 {"node7:1234", "node7", NULL, 1234}, {"::1", "::1", "5", 5},                  {"10.0.0.1", "10.0.0.1", "65535", 65535}};
    const char *const wrong[] = {"[::1", "[::1]x", ":1", "[]", "host:70000", "host:2x"};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        loom_launch launch;
        assert_ok(LAUNCH_FROM(&launch, "RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", cases[i].text, cases[i].port ? "MASTER_PORT" : "X", cases[i].port));
        assert_string_equal(launch.master_addr, cases[i].address);
        assert_int_equal(launch.master_port, cases[i].expected);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        loom_launch launch;
        assert_refused(LAUNCH_FROM(&launch, "RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", wrong[i]), LOOM_E_INVALID, wrong[i]);
    }
    loom_launch launch;
    assert_refused(LAUNCH_FROM(&launch, "RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "h:1", "MASTER_PORT", "2"), LOOM_E_INVALID, "port 1 and MASTER_PORT 2");
}

static void openmpi_on_one_host_needs_no_address(void **state)
{
    loom_launch launch, other;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "1",
                          "OMPI_COMM_WORLD_LOCAL_SIZE", "4", "OMPI_COMM_WORLD_NODE_RANK", "1", "PMIX_NAMESPACE", "123"));
    assert_int_equal(launch.launcher, LOOM_LAUNCH_OPENMPI);
    assert_true(launch.rank == 1 && launch.size == 4 && launch.local_rank == 1 && launch.local_size == 4 && launch.node_rank == -1);
    assert_string_equal(launch.master_addr, "127.0.0.1");
    assert_in_range(launch.master_port, 20000, 31999);
    assert_ok(LAUNCH_FROM(&other, "OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "0",
                          "OMPI_COMM_WORLD_LOCAL_SIZE", "4", "PMIX_NAMESPACE", "124"));
    assert_int_not_equal(launch.master_port, other.master_port); /* another mpirun */
}

static void mpi_on_several_hosts_has_to_be_told_the_address(void **state)
{
    loom_launch launch;

    (void)state;
    assert_refused(LAUNCH_FROM(&launch, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "1",
                               "OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                   LOOM_E_INVALID, "MASTER_ADDR is missing", "Open MPI", "2 of 4");
    assert_ok(LAUNCH_FROM(&launch, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "1",
                          "OMPI_COMM_WORLD_LOCAL_SIZE", "2", MASTER));
    assert_string_equal(launch.master_addr, "10.0.0.1");
    assert_int_equal(launch.master_port, 29500);
}

static void mpich_and_mvapich_are_known(void **state)
{
    loom_launch launch;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "PMI_RANK", "2", "PMI_SIZE", "3", "MPI_LOCALRANKID", "2", "MPI_LOCALNRANKS", "3"));
    assert_true(launch.launcher == LOOM_LAUNCH_MPICH && launch.rank == 2 && launch.size == 3 && launch.local_size == 3);
    assert_ok(LAUNCH_FROM(&launch, "MV2_COMM_WORLD_RANK", "0", "MV2_COMM_WORLD_SIZE", "2", "MV2_COMM_WORLD_LOCAL_RANK", "0",
                          "MV2_COMM_WORLD_LOCAL_SIZE", "2"));
    assert_true(launch.launcher == LOOM_LAUNCH_MVAPICH && launch.size == 2);
    assert_ok(LAUNCH_FROM(&launch, "PMI_RANK", "2", "PMI_SIZE", "3")); /* Slurm's PMI sets these too, without Hydra's local rank */
    assert_int_equal(launch.launcher, LOOM_LAUNCH_ALONE);
}

static void a_slurm_step_is_read_not_its_job(void **state)
{
    loom_launch launch;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "SLURM_JOB_ID", "77", "SLURM_STEP_ID", "1", "SLURM_PROCID", "6", "SLURM_LOCALID", "0", "SLURM_NODEID", "3",
                          "SLURM_NTASKS", "16", "SLURM_STEP_NUM_TASKS", "7", "SLURM_STEP_NUM_NODES", "4", "SLURM_STEP_TASKS_PER_NODE", "2(x3),1",
                          "SLURM_STEP_NODELIST", "gpu[07-09,12]", "SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"));
    assert_int_equal(launch.launcher, LOOM_LAUNCH_SLURM);
    assert_true(launch.rank == 6 && launch.size == 7 && launch.local_rank == 0 && launch.local_size == 1);
    assert_true(launch.node_rank == 3 && launch.nodes == 4);
    assert_string_equal(launch.master_addr, "gpu07");
    assert_string_equal(launch.run_id, "77.1");
    assert_in_range(launch.master_port, 20000, 31999);
}

static void an_sbatch_script_is_no_rank(void **state)
{
    loom_launch launch;

    (void)state;
    assert_ok(LAUNCH_FROM(&launch, "SLURM_JOB_ID", "77", "SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_JOB_NUM_NODES", "2"));
    assert_int_equal(launch.launcher, LOOM_LAUNCH_ALONE);
}

static void broken_slurm_lists_are_named(void **state)
{
    loom_launch launch;

    (void)state;
    assert_refused(LAUNCH_FROM(&launch, "SLURM_STEP_ID", "1", "SLURM_PROCID", "0", "SLURM_LOCALID", "0", "SLURM_NODEID", "0", "SLURM_STEP_NUM_TASKS", "4",
                               "SLURM_STEP_TASKS_PER_NODE", "two", "SLURM_STEP_NODELIST", "gpu[1-"),
                   LOOM_E_INVALID, "2 problems", "TASKS_PER_NODE=\"two\"", "NODELIST=\"gpu[1-\"");
}

static void slurm_lists_are_understood(void **state)
{
    const struct {
        const char *list;
        int node, tasks;
    } tasks[] = {{"2(x3),1", 0, 2}, {"2(x3),1", 2, 2}, {"2(x3),1", 3, 1}, {"8", 0, 8}, {"1,2,3(x2)", 3, 3}};
    const char *const no_tasks[] = {"", "2(x3", "a", "2(x3),", "2 3", "(x3)"};
    const struct {
        const char *list, *host;
    } hosts[] = {{"gpu07", "gpu07"},           {"gpu[07-09,12],login", "gpu07"}, {"a,b", "a"},
                 {"r[1,3]c[02-05]n", "r1c02n"}, {"gpu[12,07-09]-ib", "gpu12-ib"}};
    const char *const no_hosts[] = {"", ",a", "a[1", "a]1", "a[[1]]"};
    char host[16];
    int n;

    (void)state;
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        assert_true(loom_slurm_tasks_on_node(tasks[i].list, tasks[i].node, &n));
        assert_int_equal(n, tasks[i].tasks);
    }
    for (size_t i = 0; i < sizeof no_tasks / sizeof no_tasks[0]; i++)
        assert_false(loom_slurm_tasks_on_node(no_tasks[i], 3, &n));
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        assert_true(loom_slurm_first_host(hosts[i].list, host, sizeof host));
        assert_string_equal(host, hosts[i].host);
    }
    for (size_t i = 0; i < sizeof no_hosts / sizeof no_hosts[0]; i++)
        assert_false(loom_slurm_first_host(no_hosts[i], host, sizeof host));
    assert_false(loom_slurm_first_host("a-host-name-that-is-too-long", host, sizeof host));
}

static void pods_are_not_taken_for_ranks(void **state)
{
    loom_launch launch;

    (void)state;
    assert_refused(LAUNCH_FROM(&launch, "RANK", "1", "WORLD_SIZE", "8", MASTER, "PET_NPROC_PER_NODE", "4", "PET_NNODES", "2"), LOOM_E_INVALID,
                   "PET_NPROC_PER_NODE=4", "pods", "torchrun");
    assert_ok(LAUNCH_FROM(&launch, "RANK", "1", "WORLD_SIZE", "2", MASTER, "PET_NPROC_PER_NODE", "1"));
}

/* --- cases of real reports ------------------------------------------------------------------------------------------------ */

typedef struct case_environment {
    const loom_node *map;
} case_environment;

static const char *get_from_case(void *context, const char *name)
{
    return loom_node_text(loom_node_get(((case_environment *)context)->map, name));
}

static loom_config *load_case(const char *file)
{
    char path[128];
    loom_config *document = NULL;

    snprintf(path, sizeof path, "cases/launch/%s", file);
    assert_ok(loom_config_load(test_data(path), &document));
    return document;
}

static void case_e04_missing_variables(void **state)
{
    const char *const words[] = {NULL, "WORLD_SIZE is missing", "RANK=4 is out of range", "RANK=\"two\" is not a number", "RANK is empty"};
    loom_config *document = load_case("E04-missing-variables.json");
    const loom_node *cases = loom_node_get(loom_node_get(loom_config_root(document), "facts"), "cases");

    (void)state;
    assert_int_equal(loom_node_count(cases), sizeof words / sizeof words[0]);
    for (size_t i = 0; i < loom_node_count(cases); i++) {
        case_environment environment = {loom_node_get(loom_node_at(cases, i), "env")};
        loom_launch launch;
        if (words[i])
            assert_refused(loom_launch_from(get_from_case, &environment, &launch), LOOM_E_INVALID, words[i], "MASTER_ADDR is missing");
        else
            assert_ok(loom_launch_from(get_from_case, &environment, &launch));
    }
    loom_config_free(document);
}

/* The case gives no address; a launcher that sets RANK does. */
static const char *get_with_master(void *context, const char *name)
{
    const char *text = get_from_case(context, name);

    return text                               ? text
           : strcmp(name, "MASTER_ADDR") == 0 ? "10.0.0.1"
           : strcmp(name, "MASTER_PORT") == 0 ? "29500"
                                              : NULL;
}

static void case_e05_batch_system_variables(void **state)
{
    loom_config *document = load_case("E05-batch-system-variables.json");
    const loom_node *root = loom_config_root(document);
    case_environment environment = {loom_node_get(loom_node_get(root, "given"), "env")};
    loom_launch launch;

    (void)state;
    assert_ok(loom_launch_from(get_with_master, &environment, &launch));
    assert_int_equal(launch.launcher, LOOM_LAUNCH_ENV);
    assert_true(launch.rank == 3 && launch.size == 4 && launch.local_rank == 1);

    assert_ok(LAUNCH_FROM(&launch, "SLURM_PROCID", "2", "SLURM_STEP_ID", "0", "SLURM_NTASKS", "8", "SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_NODELIST", "n1"));
    assert_int_equal(launch.size, 4);
    loom_config_free(document);
}

static void case_e11_local_against_global_rank(void **state)
{
    loom_config *document = load_case("E11-local-against-global-rank.json");
    const loom_node *environments = loom_node_get(loom_node_get(loom_config_root(document), "given"), "env");

    (void)state;
    for (int i = 0; i < 2; i++) {
        case_environment environment = {loom_node_at(environments, (size_t)i)};
        const char *rank = get_from_case(&environment, "RANK"), *local = get_from_case(&environment, "LOCAL_RANK");
        loom_launch launch;
        assert_ok(LAUNCH_FROM(&launch, "RANK", rank, "WORLD_SIZE", "2", "LOCAL_RANK", local, "LOCAL_WORLD_SIZE", "1", MASTER));
        assert_true(launch.rank == i && launch.local_rank == 0);
    }
    loom_config_free(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_set_is_a_world_of_one),
        cmocka_unit_test(torchrun_is_read_whole),
        cmocka_unit_test(an_empty_error_file_is_none),
        cmocka_unit_test(what_is_not_told_about_the_node_stays_unknown),
        cmocka_unit_test(deepspeed_has_names_of_its_own_for_the_node),
        cmocka_unit_test(all_problems_are_in_one_message),
        cmocka_unit_test(addresses_are_taken_as_people_write_them),
        cmocka_unit_test(openmpi_on_one_host_needs_no_address),
        cmocka_unit_test(mpi_on_several_hosts_has_to_be_told_the_address),
        cmocka_unit_test(mpich_and_mvapich_are_known),
        cmocka_unit_test(a_slurm_step_is_read_not_its_job),
        cmocka_unit_test(an_sbatch_script_is_no_rank),
        cmocka_unit_test(broken_slurm_lists_are_named),
        cmocka_unit_test(slurm_lists_are_understood),
        cmocka_unit_test(pods_are_not_taken_for_ranks),
        cmocka_unit_test(case_e04_missing_variables),
        cmocka_unit_test(case_e05_batch_system_variables),
        cmocka_unit_test(case_e11_local_against_global_rank),
    };

    return cmocka_run_group_tests_name("environment", tests, NULL, NULL);
}
