/* Who am I: the environment variables of torchrun, of plain RANK/WORLD_SIZE launchers, of MPI launchers and of Slurm.
 *
 * Batch systems leave their variables in every process below them, so the innermost launcher has to win: torchrun inside srun is torchrun.
 * One function a launcher; each notes what is wrong and goes on, so that one message names all of it. */
#include "core/random.h"
#include "launch/slurm.h"
#include "launch/variables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1 << 20, FIRST_DERIVED_PORT = 20000, N_DERIVED_PORTS = 12000 };

/* Rank and size of the world, required. The rank is held against the size only when the size is known. */
static void read_world(loom_variables *v, const char *rank_name, const char *size_name, loom_launch *launch)
{
    int most_rank = MOST_RANKS - 1;

    loom_variable_require(v, rank_name);
    loom_variable_require(v, size_name);
    if (loom_variable_int(v, size_name, 1, MOST_RANKS, &launch->size))
        most_rank = launch->size - 1;
    loom_variable_int(v, rank_name, 0, most_rank, &launch->rank);
}

/* Index and count on this node, or of nodes: what is not set stays unknown. */
static void read_place(loom_variables *v, const char *index_name, const char *count_name, int most, int *index, int *count)
{
    int most_index = MOST_RANKS - 1;

    if (loom_variable_int(v, count_name, 1, most, count))
        most_index = *count - 1;
    loom_variable_int(v, index_name, 0, most_index, index);
}

/* Splits "[::1]:29500", "[::1]" and "host:29500", as people write them, in place; *port is "" when there is none. */
static bool split_address(char *address, const char **port)
{
    char *colon;

    *port = "";
    if (address[0] == '[') {
        char *bracket = strchr(address, ']');
        if (!bracket || (bracket[1] != '\0' && bracket[1] != ':'))
            return false;
        if (bracket[1] == ':')
            *port = bracket + 2;
        *bracket = '\0';
        memmove(address, address + 1, (size_t)(bracket - address)); /* the port behind the bracket stays where it is */
    } else if ((colon = strchr(address, ':')) && colon == strrchr(address, ':')) { /* two colons: an IPv6 address without brackets */
        *colon = '\0';
        *port = colon + 1;
    }
    return address[0] != '\0' && strlen(*port) < 6 && (*port)[strspn(*port, "0123456789")] == '\0';
}

static void read_master(loom_variables *v, loom_launch *launch)
{
    char address[sizeof launch->master_addr];
    const char *port;

    loom_variable_int(v, "MASTER_PORT", 0, 65535, &launch->master_port);
    if (!loom_variable_copy(v, "MASTER_ADDR", address, sizeof address))
        return;
    if (!split_address(address, &port) || atoi(port) > 65535) {
        loom_variable_problem(v, "MASTER_ADDR=\"%s\" is not a host name or an address", loom_variable_text(v, "MASTER_ADDR"));
        return;
    }
    strcpy(launch->master_addr, address);
    if (!*port)
        return;
    if (!loom_variable_is_set(v, "MASTER_PORT"))
        launch->master_port = atoi(port);
    else if (atoi(port) != launch->master_port)
        loom_variable_problem(v, "MASTER_ADDR names port %s and MASTER_PORT %d", port, launch->master_port);
}

/* All four of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or none: a default for one of them would be right by luck only. */
static void read_rank_variables(loom_variables *v, loom_launch *launch)
{
    read_world(v, "RANK", "WORLD_SIZE", launch);
    loom_variable_require(v, "MASTER_ADDR");
    read_master(v, launch);
    if (launch->master_port == 0)
        loom_variable_require(v, "MASTER_PORT");
}

static void read_torchrun(loom_variables *v, loom_launch *launch)
{
    int most_restarts = 0;

    loom_variable_copy(v, "TORCHELASTIC_RUN_ID", launch->run_id, sizeof launch->run_id);
    loom_variable_bool(v, "TORCHELASTIC_USE_AGENT_STORE", &launch->agent_store);
    read_rank_variables(v, launch);
    if (launch->agent_store && loom_variable_is_set(v, "MASTER_PORT") && launch->master_port == 0)
        loom_variable_problem(v, "MASTER_PORT=0, but TORCHELASTIC_USE_AGENT_STORE says that a launcher serves that port");
    read_place(v, "LOCAL_RANK", "LOCAL_WORLD_SIZE", launch->size, &launch->local_rank, &launch->local_size);
    read_place(v, "GROUP_RANK", "GROUP_WORLD_SIZE", MOST_RANKS, &launch->node_rank, &launch->nodes);
    loom_variable_int(v, "TORCHELASTIC_RESTART_COUNT", 0, 1 << 30, &launch->restart);
    loom_variable_int(v, "TORCHELASTIC_MAX_RESTARTS", 0, 1 << 30, &most_restarts);

    const char *error_file = loom_variable_text(v, "TORCHELASTIC_ERROR_FILE");
    if (error_file && *error_file) /* torchrun leaves it empty when its log directory is /dev/null */
        loom_variable_copy(v, "TORCHELASTIC_ERROR_FILE", launch->error_file, sizeof launch->error_file);
}

/* PyTorchJob (training operator v1) numbers pods, not processes: with several processes a pod, RANK is not the rank. */
static void refuse_pod_numbering(loom_variables *v)
{
    int processes = 1;
    const char *text = loom_variable_text(v, "PET_NPROC_PER_NODE");

    if (loom_variable_is_set(v, "LOCAL_RANK") || !text || text[strspn(text, "0123456789")])
        return; /* "auto", "gpu": counted by torchrun itself */
    if (loom_variable_int(v, "PET_NPROC_PER_NODE", 1, MOST_RANKS, &processes) && processes > 1)
        loom_variable_problem(v,
                              "PET_NPROC_PER_NODE=%d without LOCAL_RANK: RANK counts pods here, not processes; start the program with "
                              "torchrun --no-python in each pod",
                              processes);
}

static void read_env(loom_variables *v, loom_launch *launch)
{
    read_rank_variables(v, launch);
    loom_variable_bool(v, "TORCHELASTIC_USE_AGENT_STORE", &launch->agent_store);
    read_place(v, "LOCAL_RANK", loom_variable_is_set(v, "LOCAL_WORLD_SIZE") ? "LOCAL_WORLD_SIZE" : "LOCAL_SIZE", launch->size,
               &launch->local_rank, &launch->local_size); /* LOCAL_SIZE, CROSS_*: DeepSpeed */
    if (loom_variable_is_set(v, "GROUP_RANK"))
        read_place(v, "GROUP_RANK", "GROUP_WORLD_SIZE", MOST_RANKS, &launch->node_rank, &launch->nodes);
    else
        read_place(v, "CROSS_RANK", "CROSS_SIZE", MOST_RANKS, &launch->node_rank, &launch->nodes);
    refuse_pod_numbering(v);
}

/* Launchers that tell no port: the same on all ranks of a run, another one for most other runs. */
static int derived_port(const char *run_id)
{
    return FIRST_DERIVED_PORT + (int)(loom_fnv1a64(run_id, strlen(run_id)) % N_DERIVED_PORTS);
}

/* MPI launchers tell no address. On one host it does not matter; else the user has to name rank 0's host. */
static void read_master_of_mpi(loom_variables *v, const char *launcher, loom_launch *launch)
{
    read_master(v, launch);
    if (!launch->master_addr[0] && launch->local_size == launch->size)
        strcpy(launch->master_addr, "127.0.0.1");
    if (!launch->master_addr[0] && !loom_variable_is_set(v, "MASTER_ADDR") && launch->size > 1)
        loom_variable_problem(v,
                              "MASTER_ADDR is missing: %s does not tell where rank 0 runs, and only %d of %d ranks are on this host; pass "
                              "MASTER_ADDR=<host of rank 0> and MASTER_PORT to all ranks",
                              launcher, launch->local_size, launch->size);
    if (!launch->master_port)
        launch->master_port = derived_port(launch->run_id);
}

static void read_openmpi(loom_variables *v, loom_launch *launch)
{
    const char *id = loom_variable_is_set(v, "PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_orte_ess_jobid";

    loom_variable_copy(v, id, launch->run_id, sizeof launch->run_id);
    read_world(v, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", launch);
    read_place(v, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", launch->size, &launch->local_rank, &launch->local_size);
    read_master_of_mpi(v, "Open MPI", launch);
}

static void read_mpich(loom_variables *v, loom_launch *launch)
{
    read_world(v, "PMI_RANK", "PMI_SIZE", launch);
    read_place(v, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", launch->size, &launch->local_rank, &launch->local_size);
    read_master_of_mpi(v, "MPICH", launch);
}

static void read_mvapich(loom_variables *v, loom_launch *launch)
{
    read_world(v, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", launch);
    read_place(v, "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", launch->size, &launch->local_rank, &launch->local_size);
    read_master_of_mpi(v, "MVAPICH2", launch);
}

static void read_slurm_tasks(loom_variables *v, loom_launch *launch)
{
    const char *tasks = loom_variable_text(v, "SLURM_STEP_TASKS_PER_NODE");

    if (tasks && launch->node_rank >= 0 && !loom_slurm_tasks_on_node(tasks, launch->node_rank, &launch->local_size))
        loom_variable_problem(v, "SLURM_STEP_TASKS_PER_NODE=\"%.64s\" says nothing about node %d; a list such as 2(x3),1 is needed", tasks,
                              launch->node_rank);
    loom_variable_int(v, "SLURM_LOCALID", 0, (launch->local_size ? launch->local_size : MOST_RANKS) - 1, &launch->local_rank);
}

/* The step's figures, not the job's: several steps run in one job. SLURM_LAUNCH_NODE_IPADDR is where srun ran, not where rank 0 runs. */
static void read_slurm(loom_variables *v, loom_launch *launch)
{
    const char *job = loom_variable_text(v, "SLURM_JOB_ID"), *step = loom_variable_text(v, "SLURM_STEP_ID");
    const char *hosts = loom_variable_text(v, "SLURM_STEP_NODELIST");

    if (job)
        snprintf(launch->run_id, sizeof launch->run_id, "%s.%s", job, step ? step : "batch");
    read_world(v, "SLURM_PROCID", loom_variable_is_set(v, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", launch);
    read_place(v, "SLURM_NODEID", "SLURM_STEP_NUM_NODES", MOST_RANKS, &launch->node_rank, &launch->nodes);
    read_slurm_tasks(v, launch);
    read_master(v, launch);
    if (!launch->master_addr[0] && hosts && !loom_slurm_first_host(hosts, launch->master_addr, sizeof launch->master_addr))
        loom_variable_problem(v, "SLURM_STEP_NODELIST=\"%.128s\" is not a node list such as gpu[01-04],login", hosts);
    else if (!launch->master_addr[0] && !hosts && launch->size > 1 && !loom_variable_is_set(v, "MASTER_ADDR"))
        loom_variable_problem(v, "SLURM_STEP_NODELIST is missing (is this a step started by srun?), and so is MASTER_ADDR");
    if (!launch->master_port)
        launch->master_port = derived_port(launch->run_id);
}

static void read_alone(loom_variables *v, loom_launch *launch)
{
    launch->size = launch->local_size = launch->nodes = 1;
    launch->local_rank = launch->node_rank = 0;
}

static bool is_torchrun(loom_variables *v)
{
    return loom_variable_is_set(v, "TORCHELASTIC_RUN_ID");
}

static bool is_env(loom_variables *v)
{
    return loom_variable_is_set(v, "RANK") && loom_variable_is_set(v, "WORLD_SIZE");
}

static bool is_openmpi(loom_variables *v)
{
    return loom_variable_is_set(v, "OMPI_COMM_WORLD_RANK");
}

static bool is_mpich(loom_variables *v)
{
    return loom_variable_is_set(v, "PMI_RANK") && loom_variable_is_set(v, "MPI_LOCALRANKID");
}

static bool is_mvapich(loom_variables *v)
{
    return loom_variable_is_set(v, "MV2_COMM_WORLD_RANK");
}

/* An sbatch script and whatever runs in it has SLURM_PROCID=0 too: only a step, or a job of several tasks, makes it a rank. */
static bool is_slurm(loom_variables *v)
{
    const char *tasks = loom_variable_text(v, "SLURM_NTASKS");

    return loom_variable_is_set(v, "SLURM_PROCID") && (loom_variable_is_set(v, "SLURM_STEP_ID") || (tasks && atoi(tasks) > 1));
}

/* One of the two alone: not a world, and not nothing either. */
static bool is_half_env(loom_variables *v)
{
    return loom_variable_is_set(v, "RANK") || loom_variable_is_set(v, "WORLD_SIZE");
}

static bool is_anything(loom_variables *v)
{
    return true;
}

/* In order of detection. */
static const struct launcher {
    bool (*is_there)(loom_variables *v);
    void (*read)(loom_variables *v, loom_launch *launch);
    loom_launcher launcher;
    const char *environment;
} launchers[] = {
    {is_torchrun, read_torchrun, LOOM_LAUNCH_TORCHRUN, "environment of torchrun"},
    {is_env, read_env, LOOM_LAUNCH_ENV, "environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"},
    {is_openmpi, read_openmpi, LOOM_LAUNCH_OPENMPI, "environment of Open MPI"},
    {is_mpich, read_mpich, LOOM_LAUNCH_MPICH, "environment of MPICH"},
    {is_mvapich, read_mvapich, LOOM_LAUNCH_MVAPICH, "environment of MVAPICH2"},
    {is_slurm, read_slurm, LOOM_LAUNCH_SLURM, "environment of Slurm"},
    {is_half_env, read_env, LOOM_LAUNCH_ENV, "environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"},
    {is_anything, read_alone, LOOM_LAUNCH_ALONE, "environment"},
};

loom_status loom_launch_from(loom_getenv_fn *get, void *context, loom_launch *launch)
{
    loom_variables v = {.get = get, .context = context};
    loom_launch found = {.size = 1, .local_rank = -1, .node_rank = -1, .run_id = "none"};
    const struct launcher *launcher = launchers;

    while (!launcher->is_there(&v))
        launcher++;
    found.launcher = launcher->launcher;
    launcher->read(&v, &found);

    loom_status status = loom_variables_finish(&v, launcher->environment);
    if (status == LOOM_OK)
        *launch = found;
    return status;
}

static const char *get_from_environment(void *context, const char *name)
{
    return getenv(name);
}

loom_status loom_launch_from_env(loom_launch *launch)
{
    return loom_launch_from(get_from_environment, NULL, launch);
}
