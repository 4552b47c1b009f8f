/* gpt_3d RUN.yaml [key=value …]: trains a GPT-2, Llama, Mixtral or DeepSeek-like model over tensor, pipeline, context, expert and data parallel ranks. */
#include "generate.h"
#include "plan.h"
#include "report.h"
#include "try.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct arguments {
    const char *path;
    const char *const *assignments;
    int n_assignments;
    bool dry_run, help, version;
    int ranks; /* of a dry run; 0: the launcher's, or what the layout says */
} arguments;

static const char usage[] =
    "usage: gpt_3d RUN.yaml [--dry-run [--ranks N]] [key=value …]\n"
    "\n"
    "  RUN.yaml    model, init, data, train, layout, output: see docs/gpt_3d.md\n"
    "  key=value   replaces a value of the file, such as train.steps=20 or layout.tp=2\n"
    "  --dry-run   print layout, memory and traffic of every stage; nothing is trained, nothing is read or written\n"
    "  --ranks N   size of the world to rehearse\n"
    "\n"
    "Starts under torchrun --no-python, rankloom run, srun, mpirun, or alone as one rank.\n";

static loom_status parse(int argc, char **argv, arguments *a)
{
    const char **assignments = calloc((size_t)argc, sizeof *assignments);

    *a = (arguments){.assignments = assignments};
    if (!assignments)
        return loom_fail(LOOM_E_MEMORY, "no memory for the arguments");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dry-run") == 0)
            a->dry_run = true;
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            a->help = true;
        else if (strcmp(argv[i], "--version") == 0)
            a->version = true;
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
            a->ranks = atoi(argv[++i]);
        else if (argv[i][0] == '-')
            return loom_fail(LOOM_E_INVALID, "unknown option %s; gpt_3d takes --dry-run, --ranks N, --help and --version", argv[i]);
        else if (strchr(argv[i], '=') && a->path)
            assignments[a->n_assignments++] = argv[i];
        else if (!a->path)
            a->path = argv[i];
        else
            return loom_fail(LOOM_E_INVALID, "two run files: %s and %s; assignments look like train.steps=20", a->path, argv[i]);
    }
    if (!a->path && !a->help && !a->version)
        return loom_fail(LOOM_E_INVALID, "no run file. %s", usage);
    if (a->ranks < 0)
        return loom_fail(LOOM_E_INVALID, "--ranks %d: a world has at least one rank", a->ranks);
    return LOOM_OK;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static loom_status make_folder(const char *path)
{
    if (path[0] && mkdir(path, 0777) != 0 && errno != EEXIST)
        return loom_fail(LOOM_E_IO, "output.dir %s: %s", path, strerror(errno));
    return LOOM_OK;
}

static loom_status save(gpt_trainer *t)
{
    const gpt_run *run = t->run;
    char path[GPT_PATH_BYTES + 32];

    if (!run->output.dir[0] || !run->output.save)
        return LOOM_OK;
    snprintf(path, sizeof path, "%s/model.safetensors", run->output.dir);
    TRY(loom_weights_save(t->mesh, &t->stage->params, LOOM_WEIGHTS_VALUES, LOOM_F32, path));
    if (loom_comm_rank(t->world) != 0)
        return LOOM_OK;
    printf("saved    %s\n", path);
    snprintf(path, sizeof path, "%s/config.json", run->output.dir);
    return loom_model_save_hf(&run->model, path);
}

static void write_metrics(gpt_trainer *t, int64_t step, const gpt_step *r)
{
    char extra[256];
    loom_ledger ledger;
    int length;
    loom_step_metrics metrics = {.step = step,
                                 .tokens = r->tokens,
                                 .loss = r->loss,
                                 .grad_norm = r->grad_norm,
                                 .lr = r->lr,
                                 .step_time_s = r->seconds,
                                 .extra = extra};

    loom_device_ledger(t->device, &ledger);
    length = snprintf(extra, sizeof extra, "\"memory_bytes\":%llu,\"kernels_bytes\":%llu",
                      (unsigned long long)(ledger.peak_total - ledger.peak[LOOM_MEM_KERNELS]), (unsigned long long)ledger.peak[LOOM_MEM_KERNELS]);
    memcpy(metrics.seconds, r->breakdown, sizeof metrics.seconds);
    if (t->run->model.moe.experts > 0)
        snprintf(extra + length, sizeof extra - (size_t)length, ",\"expert_load_most\":%.4f,\"expert_idle\":%.4f,\"expert_dropped\":%.6f", r->load.most,
                 r->load.idle, r->load.dropped);
    if (loom_monitor_write(t->monitor, &metrics) < 0)
        fprintf(stderr, "gpt_3d: metrics: %s\n", loom_last_error());
}

static loom_status plot(const gpt_trainer *t, const double *x, const double *loss)
{
    const gpt_run *run = t->run;
    loom_curve curve = {run->model.name, x, loss, (int)run->train.steps};

    if (!run->output.plot[0] || loom_comm_rank(t->world) != 0)
        return LOOM_OK;
    return loom_plot_save(&(loom_plot){run->model.name, "step", "loss, nats a token", &curve, 1}, run->output.plot);
}

/* x and loss have room for a number a step: what the plot shows. */
static loom_status run_steps(gpt_trainer *t, double *x, double *loss)
{
    const gpt_run *run = t->run;
    double begin = now();
    gpt_step step = {0};

    for (int64_t i = 0; i < run->train.steps; i++) {
        TRY(gpt_trainer_step(t, i, &step));
        write_metrics(t, i, &step);
        gpt_report_step(t, i, &step);
        x[i] = (double)i;
        loss[i] = step.loss;
    }
    if (run->train.steps > 0)
        gpt_report_end(t, &step, now() - begin);
    return plot(t, x, loss);
}

static loom_status train(gpt_trainer *t)
{
    const gpt_run *run = t->run;
    double *curve = calloc(2 * (size_t)run->train.steps + 1, sizeof *curve);
    loom_status status = curve ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for the curve of %lld steps", (long long)run->train.steps);

    gpt_report_start(t);
    if (status == LOOM_OK)
        status = run_steps(t, curve, curve + run->train.steps);
    free(curve);
    TRY(status);
    TRY(loom_monitor_finish(t->monitor));
    TRY(save(t));
    return run->output.sample > 0 ? gpt_generate(t, run->output.sample) : LOOM_OK;
}

/* Under device: auto a machine without a GPU of its own for each rank trains on its processors, and says why. */
static loom_status open_device(gpt_run *run, const loom_launch *launch, loom_device **device)
{
    loom_device_config config = {.index = launch->local_rank, .or_only = true};
    loom_status status = loom_device_open(run->device, &config, device);

    if (status != LOOM_E_UNSUPPORTED || !run->device_auto)
        return status;
    if (launch->rank == 0)
        printf("device   cpu; %s\n", loom_last_error());
    run->device = LOOM_CPU;
    return loom_device_open(LOOM_CPU, NULL, device);
}

static loom_status train_on(gpt_run *run, const loom_launch *launch)
{
    loom_store *store = NULL;
    loom_device *device = NULL;
    loom_comm *world = NULL;
    gpt_trainer *trainer = NULL;
    loom_status status = launch->rank == 0 ? make_folder(run->output.dir) : LOOM_OK;

    if (status == LOOM_OK)
        status = loom_store_open(launch, 300, &store);
    if (status == LOOM_OK)
        status = open_device(run, launch, &device);
    if (status == LOOM_OK)
        status = loom_comm_open_world(launch, store, device, NULL, &world);
    if (status == LOOM_OK && run->planned)
        status = gpt_plan(run, world);
    if (status == LOOM_OK)
        status = gpt_trainer_open(run, world, &trainer);
    if (status == LOOM_OK)
        status = train(trainer);
    if (status < 0)
        loom_comm_abandon(world);
    gpt_trainer_close(trainer);
    loom_comm_free(world);
    loom_device_close(device);
    loom_store_close(store);
    return status;
}

/* A dry run needs no launcher: the world is what --ranks or the layout says. */
static loom_status dry_run(const arguments *a, const loom_launch *launch, gpt_run *run)
{
    int world = a->ranks > 0 ? a->ranks : launch->size > 1 ? launch->size : 0;

    TRY(gpt_run_load(a->path, a->assignments, a->n_assignments, world, 0, run));
    if (launch->rank != 0)
        return LOOM_OK;
    if (run->planned)
        TRY(gpt_plan_dry(run, world));
    return gpt_dry_run(run);
}

static loom_status run_rank(const arguments *a, loom_launch *launch, gpt_run *run)
{
    TRY(loom_launch_from_env(launch));
    if (a->dry_run)
        return dry_run(a, launch, run);
    TRY(gpt_run_load(a->path, a->assignments, a->n_assignments, launch->size, launch->local_size, run));
    return train_on(run, launch);
}

/* Bad input is the same on every rank: the first of a node says it for all. */
static void complain(const loom_launch *launch, loom_status status)
{
    if (launch->local_rank == 0 || status != LOOM_E_INVALID)
        fprintf(stderr, "gpt_3d: %s%s\n", launch->size > 1 && status != LOOM_E_INVALID ? "this rank: " : "", loom_last_error());
    if (status != LOOM_E_PEER)
        loom_launch_report_error(launch, loom_last_error());
}

int main(int argc, char **argv)
{
    arguments a = {0};
    loom_launch launch = {0};
    gpt_run *run = calloc(1, sizeof *run);
    loom_status status = run ? parse(argc, argv, &a) : loom_fail(LOOM_E_MEMORY, "no memory to start");

    loom_launch_prepare_process();
    if (status == LOOM_OK && (a.help || a.version))
        printf("%s", a.help ? usage : "gpt_3d " RANKLOOM_VERSION "\n");
    else if (status == LOOM_OK)
        status = run_rank(&a, &launch, run);
    if (status < 0)
        complain(&launch, status);
    free((void *)a.assignments);
    free(run);
    return loom_exit_code(status);
}
