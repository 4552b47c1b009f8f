/* rankloom probe [-n RANKS] [-o FILE]: measures this machine, or under a launcher the ranks at hand, and writes a topology file. */
#include "probe.h"

#include "options.h"

#include <rankloom/host.h>
#include <rankloom/text.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HOST_NAME = 64, LEAST_RUNS = 3, MOST_RUNS = 101 };

typedef struct probe_arguments {
    int ranks;
    double budget_s;
    const char *output, *model;
} probe_arguments;

static const loom_option options[] = {
    {"ranks", 'n', LOOM_OPTION_INT, offsetof(probe_arguments, ranks), .low = 1, .high = 256, .takes = "N",
     .help = "ranks to start on this host (1); under a launcher its ranks are taken"},
    {"output", 'o', LOOM_OPTION_TEXT, offsetof(probe_arguments, output), .takes = "FILE",
     .help = "topology file to write (standard output)"},
    {"model", 0, LOOM_OPTION_TEXT, offsetof(probe_arguments, model), .takes = "FILE",
     .help = "time the products of this model's layers too"},
    {"budget", 0, LOOM_OPTION_REAL, offsetof(probe_arguments, budget_s), .low = 0.1, .high = 3600, .takes = "SECONDS",
     .help = "about how long it may take (20)"},
    {0},
};

/* --- times ----------------------------------------------------------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

loom_status probe_agree(probe *p, loom_comm *comm, double *value)
{
    loom_status status;

    *p->cell = *value;
    if ((status = loom_all_reduce(comm, p->cell, p->cell, 1, LOOM_F64, LOOM_MAX, p->stream)) < 0 ||
        (status = loom_stream_wait(p->stream)) < 0)
        return status;
    *value = *p->cell;
    return LOOM_OK;
}

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static loom_status time_once(probe *p, probe_work *work, void *context, double *seconds)
{
    double start = now_s();
    loom_status status = work(p, context);

    *seconds = now_s() - start;
    return status;
}

/* The first run warms up, and tells how many the budget allows; when it took long, the second one does, for a first call may build code. */
loom_status probe_time(probe *p, loom_comm *comm, probe_work *work, void *context, double budget_s, double *seconds)
{
    double times[MOST_RUNS], once;
    loom_status status = time_once(p, work, context, &once);

    if (status == LOOM_OK)
        status = probe_agree(p, comm, &once);
    if (status == LOOM_OK && once * LEAST_RUNS > budget_s)
        status = time_once(p, work, context, &once);
    if (status == LOOM_OK)
        status = probe_agree(p, comm, &once);
    int runs = once > 0 && budget_s / once < MOST_RUNS ? (int)(budget_s / once) : MOST_RUNS;
    runs = runs < LEAST_RUNS ? LEAST_RUNS : runs;
    for (int i = 0; i < runs && status == LOOM_OK; i++)
        status = time_once(p, work, context, &times[i]);
    if (status < 0)
        return status;
    qsort(times, (size_t)runs, sizeof *times, by_size);
    *seconds = times[runs / 2];
    return probe_agree(p, comm, seconds);
}

/* --- which hosts --------------------------------------------------------------------------------------------------------------- */

/* A text that rank `root` has, for everybody. */
static loom_status share_text(probe *p, int root, char **text)
{
    loom_status status;
    void *buffer = NULL;

    *p->cell = loom_comm_rank(p->world) == root ? (double)strlen(*text) : 0;
    if ((status = loom_broadcast(p->world, p->cell, 1, LOOM_F64, root, p->stream)) < 0 || (status = loom_stream_wait(p->stream)) < 0)
        return status;
    size_t bytes = (size_t)*p->cell;
    if ((status = loom_alloc(p->device, bytes + 1, LOOM_MEM_OTHER, &buffer)) < 0)
        return status;
    if (loom_comm_rank(p->world) == root)
        memcpy(buffer, *text, bytes);
    status = loom_broadcast(p->world, buffer, bytes, LOOM_U8, root, p->stream);
    if (status == LOOM_OK)
        status = loom_stream_wait(p->stream);
    if (status == LOOM_OK && loom_comm_rank(p->world) != root) {
        *text = malloc(bytes + 1);
        if (*text)
            memcpy(*text, buffer, bytes + 1); /* allocated memory is zeroed: the text ends */
        else
            status = loom_fail(LOOM_E_MEMORY, "no memory for %zu bytes", bytes);
    }
    loom_free(p->device, buffer);
    return status;
}

/* The topology of one host, told by its first rank. */
static loom_status share_host(probe *p, int leader, int ranks, loom_topology **host)
{
    loom_topology *mine = NULL;
    char *text = NULL;
    loom_status status = LOOM_OK;

    if (loom_comm_rank(p->world) == leader) {
        status = loom_topology_this_host(ranks, &mine);
        if (status == LOOM_OK)
            status = loom_topology_write(mine, &text);
        loom_topology_free(mine);
    }
    if (status == LOOM_OK)
        status = share_text(p, leader, &text);
    if (status == LOOM_OK)
        status = loom_topology_parse("host", text, strlen(text), host);
    loom_text_free(text);
    return status;
}

/* Names of all ranks' hosts, HOST_NAME bytes each. */
static loom_status gather_names(probe *p, void **names)
{
    int size = loom_comm_size(p->world);
    loom_status status = loom_alloc(p->device, (size_t)size * HOST_NAME, LOOM_MEM_OTHER, names);

    if (status < 0)
        return status;
    char *own = (char *)*names + loom_comm_rank(p->world) * HOST_NAME;
    gethostname(own, HOST_NAME - 1);
    if ((status = loom_all_gather(p->world, own, *names, HOST_NAME, LOOM_U8, p->stream)) < 0)
        return status;
    return loom_stream_wait(p->stream);
}

static loom_status find_topology(probe *p)
{
    int size = loom_comm_size(p->world), hosts = 0;
    loom_topology **host = calloc((size_t)size, sizeof *host);
    void *gathered = NULL;
    loom_status status = host ? gather_names(p, &gathered) : loom_fail(LOOM_E_MEMORY, "no memory for %d hosts", size);

    for (int first = 0, end; first < size && status == LOOM_OK; first = end) {
        const char *names = gathered;
        for (end = first + 1; end < size && strncmp(names + end * HOST_NAME, names + first * HOST_NAME, HOST_NAME) == 0;)
            end++;
        status = share_host(p, first, end - first, &host[hosts++]);
    }
    if (status == LOOM_OK)
        status = loom_topology_join((const loom_topology *const *)host, hosts, &p->topology);
    if (status == LOOM_OK && loom_topology_ranks(p->topology) != size)
        status = loom_fail(LOOM_E_UNSUPPORTED, "the hosts of these %d ranks have %d devices: start one rank for each", size,
                           loom_topology_ranks(p->topology));
    for (int i = 0; host && i < hosts; i++)
        loom_topology_free(host[i]);
    free(host);
    loom_free(p->device, gathered);
    return status;
}

/* --- one rank -------------------------------------------------------------------------------------------------------------------- */

static loom_status open_probe(probe *p)
{
    loom_device_config config = {0};
    void *cell;
    loom_status status;

    if ((status = loom_store_open(&p->launch, 60, &p->store)) < 0 || (status = loom_device_open(LOOM_CPU, &config, &p->device)) < 0 ||
        (status = loom_stream_open(p->device, LOOM_STREAM_INLINE, "probe", &p->stream)) < 0 ||
        (status = loom_kernels_open(p->device, NULL, &p->kernels)) < 0 ||
        (status = loom_comm_open_world(&p->launch, p->store, p->device, NULL, &p->world)) < 0 ||
        (status = loom_alloc(p->device, sizeof *p->cell, LOOM_MEM_OTHER, &cell)) < 0)
        return status;
    p->cell = cell;
    return find_topology(p);
}

static void close_probe(probe *p)
{
    loom_topology_free(p->topology);
    loom_comm_free(p->world);
    loom_kernels_close(p->kernels);
    if (p->device)
        loom_free(p->device, p->cell);
    loom_stream_close(p->stream);
    loom_device_close(p->device);
    loom_store_close(p->store);
}

/* "2026-03-01 12:00 UTC on HOST: 4 ranks, 1 thread each, avx512, onednn, shm; median of 3 to 101 runs, slowest rank, f32". */
static void say_how(probe *p)
{
    char host[HOST_NAME] = "", when[32];
    time_t now = time(NULL);
    struct tm utc;

    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &utc));
    snprintf(p->topology->measured, sizeof p->topology->measured,
             "%s on %s by rankloom probe: ranks %d, threads of each %d, kernels %s, products %s, transport %s; f32, median of 3 to %d "
             "runs, slowest rank",
             when, host, loom_comm_size(p->world), loom_device_threads(p->device), p->kernels->isa, p->kernels->gemm_library,
             loom_comm_transport(p->world), MOST_RUNS);
}

static loom_status measure(probe *p, const probe_arguments *arguments)
{
    loom_model model;
    loom_train_shape train = {0};
    double share = loom_comm_size(p->world) > 1 ? 0.45 : 0.9;
    loom_status status = LOOM_OK;

    if (arguments->model)
        status = loom_model_load(arguments->model, &model, &train);
    if (status == LOOM_OK)
        status = probe_memory(p, 0.1 * arguments->budget_s);
    if (status == LOOM_OK)
        status = probe_gemms(p, arguments->model ? &model : NULL, &train, share * arguments->budget_s);
    if (status == LOOM_OK && loom_comm_size(p->world) > 1)
        status = probe_collectives(p, share * arguments->budget_s);
    if (status == LOOM_OK)
        status = loom_topology_fit(p->topology);
    if (status == LOOM_OK)
        say_how(p);
    return status;
}

static void print_summary(const loom_topology *t, const char *path)
{
    const loom_chip *chip = &t->chips[0];
    const loom_gemm_law *law = &chip->gemm[LOOM_MATH_F32];

    printf("a rank: %.1f Gflop/s at best, memory copies %.1f GB/s\n", chip->peak[LOOM_MATH_F32].value / 1e9,
           chip->memory_bandwidth.value / 1e9);
    if (loom_known(law->share))
        printf("products: %.0f %% of that in the limit; m0 %.0f, n0 %.0f, k0 %.0f, start %.1f us\n", 100 * law->share.value, law->m0.value,
               law->n0.value, law->k0.value, law->start_s.value * 1e6);
    for (int i = 0; i < t->n_laws; i++)
        printf("%-14s %-7s %3d ranks: start %8.1f us, %7.2f GB/s\n", loom_pattern_name(t->laws[i].pattern),
               loom_level_name(t->laws[i].level), t->laws[i].ranks,
               (t->laws[i].fixed_s.value + t->laws[i].step_s.value * (t->laws[i].ranks - 1)) * 1e6,
               loom_figure_or(t->laws[i].bandwidth, 0) / 1e9);
    printf("written to %s\n", path);
}

static loom_status write_out(const loom_topology *t, const char *path)
{
    char *text = NULL;
    loom_status status;

    if (path) {
        status = loom_topology_save(t, path);
        if (status == LOOM_OK)
            print_summary(t, path);
        return status;
    }
    status = loom_topology_write(t, &text);
    if (status == LOOM_OK)
        fputs(text, stdout);
    loom_text_free(text);
    return status;
}

static int run_rank(const loom_command *self, const loom_launch *launch, const probe_arguments *arguments)
{
    probe p = {.launch = *launch};
    loom_status status = open_probe(&p);

    if (status == LOOM_OK)
        status = measure(&p, arguments);
    if (status == LOOM_OK && launch->rank == 0)
        status = write_out(p.topology, arguments->output);
    int exit_status = status == LOOM_OK ? 0 : loom_command_fail(self, status);
    if (status < 0)
        loom_launch_report_error(launch, loom_last_error());
    close_probe(&p);
    return exit_status;
}

/* --- the command ------------------------------------------------------------------------------------------------------------------- */

/* Starts this very command again, so many times, with a store around it. */
static int run_many(const loom_command *self, const probe_arguments *arguments)
{
    char program[4096], budget[32];
    const char *again[10] = {program, self->name, "--budget", budget};
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    int exit_status = 1, count = 4;

    if (length < 0)
        return loom_command_fail(self, loom_fail(LOOM_E_IO, "cannot find the program to start"));
    program[length] = '\0';
    snprintf(budget, sizeof budget, "%g", arguments->budget_s);
    if (arguments->output) {
        again[count++] = "--output";
        again[count++] = arguments->output;
    }
    if (arguments->model) {
        again[count++] = "--model";
        again[count++] = arguments->model;
    }
    loom_spawn_config config = {.ranks = arguments->ranks, .argv = again};
    loom_status status = loom_spawn(&config, &exit_status);
    return status == LOOM_OK ? exit_status : loom_command_fail(self, status);
}

static int run(const loom_command *self, int argc, char **argv)
{
    probe_arguments arguments = {.ranks = 1, .budget_s = 20};
    loom_operands operands;
    loom_launch launch;
    int exit_status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    loom_status status = loom_launch_from_env(&launch);
    if (status < 0)
        return loom_command_fail(self, status);
    if (launch.launcher == LOOM_LAUNCH_ALONE && arguments.ranks > 1)
        return run_many(self, &arguments);
    if (launch.launcher != LOOM_LAUNCH_ALONE)
        loom_launch_prepare_process();
    return run_rank(self, &launch, &arguments);
}

const loom_command loom_command_probe = {
    .name = "probe",
    .summary = "measure this machine or the ranks at hand, and write a topology file with the figures",
    .operands = "",
    .least = 0,
    .most = 0,
    .about = "Times f32 products by shape, memory copies, and every collective by size of group and bytes, all ranks at once as in\n"
             "training, and fits the laws a planner extrapolates with. Under torchrun, Slurm, mpirun or rankloom run the ranks at hand\n"
             "are measured, over their hosts; alone, -n starts so many on this host. Measure on a machine that does nothing else.",
    .options = options,
    .run = run,
};
