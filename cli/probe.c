/* rankloom probe [-n RANKS] [-o FILE]: measures this machine, or under a launcher the ranks at hand, and writes a topology file. */
#include "options.h"

#include <rankloom/probe.h>
#include <rankloom/text.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* --- one rank -------------------------------------------------------------------------------------------------------------------- */

static loom_status measure(loom_comm *world, const probe_arguments *arguments, loom_topology **topology)
{
    loom_model model;
    loom_probe_config config = {.budget_s = arguments->budget_s};
    loom_status status = LOOM_OK;

    if (arguments->model) {
        status = loom_model_load(arguments->model, &model, &config.train);
        config.model = &model;
    }
    return status < 0 ? status : loom_probe(world, &config, topology);
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

static loom_status probe_ranks(const loom_launch *launch, const probe_arguments *arguments)
{
    loom_store *store = NULL;
    loom_device *device = NULL;
    loom_comm *world = NULL;
    loom_topology *topology = NULL;
    loom_status status = loom_store_open(launch, 60, &store);

    if (status == LOOM_OK)
        status = loom_device_open(LOOM_CPU, NULL, &device);
    if (status == LOOM_OK)
        status = loom_comm_open_world(launch, store, device, NULL, &world);
    if (status == LOOM_OK)
        status = measure(world, arguments, &topology);
    if (status == LOOM_OK && launch->rank == 0)
        status = write_out(topology, arguments->output);
    loom_topology_free(topology);
    loom_comm_free(world);
    loom_device_close(device);
    loom_store_close(store);
    return status;
}

static int run_rank(const loom_command *self, const loom_launch *launch, const probe_arguments *arguments)
{
    loom_status status = probe_ranks(launch, arguments);

    if (status < 0)
        loom_launch_report_error(launch, loom_last_error());
    return status == LOOM_OK ? 0 : loom_command_fail(self, status);
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
    .about = "Times f32 products by shape and memory copies, on as many ranks at once as there are cores, and every collective by size of\n"
             "group and bytes, and fits the laws a planner extrapolates with. Under torchrun, Slurm, mpirun or rankloom run the ranks at hand\n"
             "are measured, over their hosts; alone, -n starts so many on this host. Measure on a machine that does nothing else.",
    .options = options,
    .run = run,
};
