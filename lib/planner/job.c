/* From a request to a job: device constants, software habits, what the user set and measured. */
#include "planner/job.h"

#include <stdlib.h>
#include <string.h>

#include "planner/overrides.h"

static int common_divisor(int a, int b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* What divides all scale-up domains; devices without links of their own share their host. */
static void read_groups(const loom_topology *t, loom_machine *machine)
{
    int domain = 0, node = 0, linked = 1;

    for (int first = 0, n; first < t->n_devices; first += n) {
        for (n = 1; first + n < t->n_devices && loom_topology_domain_of(t, first + n) == loom_topology_domain_of(t, first);)
            n++;
        domain = common_divisor(domain, n);
        linked = linked > n ? linked : n;
    }
    for (int i = 0; i < t->n_nodes; i++)
        node = common_divisor(node, t->nodes[i].devices);
    machine->ranks = t->n_devices;
    machine->node = node;
    machine->domain = linked > 1 ? domain : node;
}

static loom_constant constant_of(loom_figure figure, const char *what)
{
    loom_basis basis = figure.origin == LOOM_ORIGIN_MEASURED                                     ? LOOM_BASIS_MEASURED
                       : figure.origin == LOOM_ORIGIN_GIVEN || figure.origin == LOOM_ORIGIN_READ ? LOOM_BASIS_GIVEN
                                                                                                 : LOOM_BASIS_SHEET;
    return (loom_constant){figure.value, basis, what};
}

/* A figure of the topology replaces the table's when the table has none or somebody said or timed it. */
static void prefer(loom_constant *at, loom_figure figure, const char *what)
{
    bool stronger = figure.origin == LOOM_ORIGIN_MEASURED || figure.origin == LOOM_ORIGIN_GIVEN || figure.origin == LOOM_ORIGIN_READ;

    if (loom_known(figure) && figure.value > 0 && (stronger || at->basis == LOOM_BASIS_DEFAULT))
        *at = constant_of(figure, what);
}

/* Scale-up links of a chip that no sweep covers. */
static void read_links(const loom_chip *chip, loom_machine *machine)
{
    static const double reached = 0.75; /* of the maker's figure; NCCL on NVLink reaches 0.7 to 0.8 */

    if (chip->link_domain < 2 || !loom_known(chip->link_bandwidth))
        return;
    for (int at = LOOM_DEV_LINK_REDUCE_2; at <= LOOM_DEV_LINK_EXCHANGE_8; at++)
        if (machine->dev[at].basis == LOOM_BASIS_DEFAULT)
            machine->dev[at] = (loom_constant){reached * chip->link_bandwidth.value, LOOM_BASIS_DEFAULT, "0.75 of the maker's link rate"};
}

void loom_machine_read_chip(loom_machine *machine, const loom_chip *chip)
{
    loom_constant *dev = machine->dev;

    prefer(&dev[LOOM_DEV_PEAK_16], chip->peak[LOOM_MATH_16], "topology");
    prefer(&dev[LOOM_DEV_PEAK_8], chip->peak[LOOM_MATH_8], "topology");
    prefer(&dev[LOOM_DEV_PEAK_4], chip->peak[LOOM_MATH_4], "topology");
    prefer(&dev[LOOM_DEV_MEMORY_RATE], chip->memory_bandwidth, "topology");
    if (loom_known(chip->memory_bytes)) /* the label decides: there are cards of one kind with other sizes */
        dev[LOOM_DEV_MEMORY_BYTES] = constant_of(chip->memory_bytes, "topology");
    prefer(&dev[LOOM_DEV_HOST_MEMORY_RATE], chip->host_bandwidth, "topology");
    prefer(&dev[LOOM_DEV_NET_RATE], chip->nic_bandwidth, "topology");
    if (!loom_device_kind_find(chip->name))
        read_links(chip, machine);
    if (chip->memory_reach.origin == LOOM_ORIGIN_MEASURED)
        prefer(&dev[LOOM_DEV_MEMORY_SHARE], chip->memory_reach, "topology");
}

/* A GEMM law that was timed on this machine. */
static void read_gemm_law(const loom_chip *chip, loom_math math, loom_machine *machine)
{
    const loom_gemm_law *law = &chip->gemm[math];
    loom_constant *dev = machine->dev;

    if (law->share.origin != LOOM_ORIGIN_MEASURED)
        return;
    prefer(&dev[LOOM_DEV_GEMM_SHARE], law->share, "probe");
    prefer(&dev[LOOM_DEV_GEMM_M0], law->m0, "probe");
    prefer(&dev[LOOM_DEV_GEMM_N0], law->n0, "probe");
    prefer(&dev[LOOM_DEV_GEMM_K0], law->k0, "probe");
    prefer(&dev[LOOM_DEV_GEMM_K0_WEIGHT], law->k0, "probe");
    prefer(&dev[LOOM_DEV_GEMM_START], law->start_s, "probe");
}

/* Collectives that were timed inside a domain or host, by group size. */
static void read_laws(const loom_topology *t, loom_machine *machine)
{
    for (int i = 0; i < t->n_laws; i++) {
        const loom_pattern_law *law = &t->laws[i];
        loom_device_constant first = law->pattern == LOOM_PATTERN_ALL_REDUCE   ? LOOM_DEV_LINK_REDUCE_2
                                     : law->pattern == LOOM_PATTERN_ALL_TO_ALL ? LOOM_DEV_LINK_EXCHANGE_2
                                                                               : LOOM_DEV_LINK_GATHER_2;
        if (law->bandwidth.origin != LOOM_ORIGIN_MEASURED || law->level > LOOM_LEVEL_NODE ||
            (law->pattern != LOOM_PATTERN_ALL_REDUCE && law->pattern != LOOM_PATTERN_ALL_TO_ALL && law->pattern != LOOM_PATTERN_ALL_GATHER))
            continue;
        int at = law->ranks <= 2 ? 0 : law->ranks <= 5 ? 1 : 2;
        for (int size = at; size < 3; size++) /* larger groups until a law of their own follows */
            machine->dev[first + size] = constant_of(law->bandwidth, "probe");
        if (law->pattern == LOOM_PATTERN_ALL_REDUCE && loom_known(law->fixed_s)) {
            machine->dev[LOOM_DEV_LINK_START] = constant_of(law->fixed_s, "probe");
            machine->dev[LOOM_DEV_LINK_HOP] = constant_of(law->step_s, "probe");
        }
    }
}

/* Where no scale-up links join the devices of a host, PCIe and host memory do. */
static void read_host_links(const loom_topology *t, const loom_chip *chip, loom_machine *machine)
{
    loom_figure host = t->levels[LOOM_LEVEL_NODE].bandwidth;

    for (int i = 0; i < t->n_devices; i++)
        if (i && loom_topology_domain_of(t, i) == loom_topology_domain_of(t, i - 1))
            return; /* there are links */
    if (machine->dev[LOOM_DEV_LINK_REDUCE_2].basis == LOOM_BASIS_SWEEP && strncmp(chip->link, "PCIe", 4) == 0)
        return; /* the table is of such a machine */
    double whole = loom_figure_or(host, 0.5 * loom_figure_or(chip->host_bandwidth, 16e9));
    static const double left[3] = {1, 0.8, 0.6}; /* what 2, 4 and 8 ranks get of it each: they share bridges and host memory */
    for (int size = 0; size < 3; size++)
        for (int kind = 0; kind < 3; kind++)
            machine->dev[LOOM_DEV_LINK_REDUCE_2 + 3 * kind + size] =
                (loom_constant){whole * left[size], LOOM_BASIS_DEFAULT, "PCIe through the host"};
}

static const loom_chip *weakest(const loom_topology *t)
{
    const loom_chip *weak = loom_topology_chip_of(t, 0);

    for (int i = 1; i < t->n_devices; i++) {
        const loom_chip *chip = loom_topology_chip_of(t, i);
        if (loom_figure_or(chip->peak[LOOM_MATH_16], 0) < loom_figure_or(weak->peak[LOOM_MATH_16], 0))
            weak = chip;
    }
    return weak;
}

/* Ranks on CPUs: what was timed there is used as it is, and more ranks than cores take turns. */
static void read_cpu(const loom_topology *t, loom_machine *machine)
{
    const loom_topo_node *node = &t->nodes[0];

    machine->measured = t->n_gemms > 0 ? t : NULL;
    if (node->cores <= 0 || node->devices <= node->cores)
        return;
    machine->crowd = (double)node->devices / node->cores;
    machine->dev[LOOM_DEV_MEMORY_RATE].value /= machine->crowd; /* figures are those of a core */
}

loom_status loom_machine_of(const loom_topology *t, loom_machine *machine)
{
    if (!t || t->n_devices < 1)
        return loom_fail(LOOM_E_INVALID, "the topology has no devices to plan for");
    const loom_chip *chip = weakest(t);

    memset(machine, 0, sizeof *machine);
    loom_device_constants(loom_device_kind_find(chip->name), machine->dev);
    machine->crowd = 1;
    read_groups(t, machine);
    loom_machine_read_chip(machine, chip);
    if (chip->kind == LOOM_CHIP_CPU)
        read_cpu(t, machine);
    read_gemm_law(chip, chip->kind == LOOM_CHIP_CPU ? LOOM_MATH_F32 : LOOM_MATH_16, machine);
    loom_figure nic = loom_topology_nic_bandwidth(t, 0);
    prefer(&machine->dev[LOOM_DEV_NET_RATE], nic, "topology");
    double crowded = loom_figure_or(t->levels[LOOM_LEVEL_CLUSTER].oversubscription, 1);
    machine->dev[LOOM_DEV_NET_RATE].value /= crowded;
    read_host_links(t, chip, machine);
    read_laws(t, machine);
    for (int i = 1; i < t->n_devices; i++) { /* memory: the smallest card decides */
        double bytes = loom_figure_or(loom_topology_chip_of(t, i)->memory_bytes, machine->dev[LOOM_DEV_MEMORY_BYTES].value);
        if (bytes < machine->dev[LOOM_DEV_MEMORY_BYTES].value)
            machine->dev[LOOM_DEV_MEMORY_BYTES].value = bytes;
    }
    return LOOM_OK;
}

/* --- the job --------------------------------------------------------------------------------------------------------------------- */

static int bits_of(loom_dtype precision)
{
    switch (precision) {
    case LOOM_F8E4M3:
    case LOOM_F8E5M2:
        return 8;
    case LOOM_F32:
        return 32;
    default:
        return 16;
    }
}

static loom_status apply_overrides(const loom_plan_request *request, const loom_framework *framework, loom_job *job)
{
    loom_override *overrides = NULL;
    int count = 0;
    const loom_device_kind *kind = loom_device_kind_find(loom_topology_chip_of(request->topology, 0)->name);
    loom_status status = loom_overrides_read(request->set, &overrides, &count);

    for (int i = 0; status >= 0 && i < count; i++) {
        const loom_override *o = &overrides[i];
        if (o->device >= 0 && loom_override_owns(o, kind ? kind->names : NULL))
            job->machine.dev[o->device] = o->value;
        if (o->software >= 0 && loom_override_owns(o, framework ? framework->names : NULL))
            job->soft[o->software] = o->value;
    }
    free(overrides);
    return status;
}

/* The core that computes is the core that copies: nothing hides, and nothing is launched from elsewhere. */
static void read_host_habits(loom_job *job)
{
    static const struct {
        loom_software_constant which;
        double value;
    } habits[] = {{LOOM_SOFT_P2P_EXPOSED, 1}, {LOOM_SOFT_DP_WINDOW, 0}, {LOOM_SOFT_GATHER_WINDOW, 0}, {LOOM_SOFT_TP_HIDDEN, 0},
                  {LOOM_SOFT_EP_HIDDEN, 0},   {LOOM_SOFT_FIXED, 2e-4},  {LOOM_SOFT_OPTIMIZER_BYTES, 36},
                  {LOOM_SOFT_FRAGMENTS, 0},   {LOOM_SOFT_CONTEXT_BYTES, 64e6}};

    for (size_t i = 0; i < sizeof habits / sizeof *habits; i++)
        job->soft[habits[i].which] = (loom_constant){habits[i].value, LOOM_BASIS_DEFAULT, "ranks on cores"};
}

/* Training in f32: activations of 4 bytes, no master copy, the f32 unit's peak. */
static void read_precision(const loom_plan_request *request, loom_job *job)
{
    const loom_chip *chip = loom_topology_chip_of(request->topology, 0);

    job->bits = bits_of(request->train.precision);
    job->element = job->bits == 32 ? 4 : 2;
    if (job->bits != 32)
        return;
    if (loom_known(chip->peak[LOOM_MATH_F32]))
        job->machine.dev[LOOM_DEV_PEAK_16] = constant_of(chip->peak[LOOM_MATH_F32], "topology");
    job->machine.dev[LOOM_DEV_PEAK_16].value /= job->machine.crowd;
    job->soft[LOOM_SOFT_GRADIENT_BYTES].value = job->soft[LOOM_SOFT_GATHER_BYTES].value = job->soft[LOOM_SOFT_DISPATCH_BYTES].value = 4;
    job->soft[LOOM_SOFT_WEIGHT_STORE].value = 4;
    job->soft[LOOM_SOFT_OPTIMIZER_STORE].value = 8;
    if (chip->kind == LOOM_CHIP_CPU)
        read_host_habits(job);
}

loom_status loom_job_make(const loom_plan_request *request, loom_job *job)
{
    const loom_framework *framework = loom_framework_find(request->framework ? request->framework : "rankloom");

    memset(job, 0, sizeof *job);
    if (!framework)
        return loom_fail(LOOM_E_INVALID,
                         "no framework is called %s; rankloom, nemo, megatron-bridge, megatron-lm, megatron-deepspeed, torchtitan, "
                         "composer-fsdp, maxtext and llm.c are",
                         request->framework);
    if (request->train.global_batch < 1)
        return loom_fail(LOOM_E_INVALID, "a plan needs the global batch (train.global_batch, or --global-batch), in sequences");
    loom_status status = loom_machine_of(request->topology, &job->machine);
    if (status < 0)
        return status;
    job->model = *request->model;
    job->seq = request->train.seq > 0 ? request->train.seq : request->model->seq;
    if (job->seq < 1)
        return loom_fail(LOOM_E_INVALID, "a plan needs the sequence length (model.seq or train.seq)");
    job->global_batch = request->train.global_batch;
    loom_software_constants(framework, job->soft);
    read_precision(request, job);
    job->own = framework == loom_framework_find("rankloom") && job->bits == 32;
    job->forecast = job->own && loom_forecast_check(&request->run) == LOOM_OK;
    job->repeat = loom_soft(job, LOOM_SOFT_FLASH) > 0 ? LOOM_REPEAT_NORM | LOOM_REPEAT_ACT | LOOM_REPEAT_LATENT : LOOM_REPEAT_CORE;
    job->imbalance = 1;
    return apply_overrides(request, framework, job);
}

double loom_job_memory_limit(const loom_plan_request *request, const loom_job *job)
{
    double margin = request->memory_margin > 0 ? request->memory_margin : 0.05;
    return loom_dev(&job->machine, LOOM_DEV_MEMORY_BYTES) * (1 - margin);
}

/* --- layouts ------------------------------------------------------------------------------------------------------------------------ */

loom_pipeline loom_pipeline_of(loom_schedule_kind kind)
{
    switch (kind) {
    case LOOM_SCHEDULE_GPIPE:
        return LOOM_PIPE_GPIPE;
    case LOOM_SCHEDULE_INTERLEAVED:
        return LOOM_PIPE_INTERLEAVED;
    case LOOM_SCHEDULE_ZB_H1:
        return LOOM_PIPE_ZB_H1;
    case LOOM_SCHEDULE_ZB_V:
        return LOOM_PIPE_ZB_V;
    default:
        return LOOM_PIPE_1F1B;
    }
}

loom_schedule_kind loom_schedule_kind_of(loom_pipeline pipeline)
{
    switch (pipeline) {
    case LOOM_PIPE_GPIPE:
        return LOOM_SCHEDULE_GPIPE;
    case LOOM_PIPE_INTERLEAVED:
        return LOOM_SCHEDULE_INTERLEAVED;
    case LOOM_PIPE_ZB_H1:
        return LOOM_SCHEDULE_ZB_H1;
    case LOOM_PIPE_ZB_V:
        return LOOM_SCHEDULE_ZB_V;
    default:
        return LOOM_SCHEDULE_1F1B;
    }
}

void loom_degrees_of_layout(const loom_layout *l, const loom_job *job, loom_degrees *g, int *chunk_layers)
{
    *g = (loom_degrees){.tp = l->tp,
                        .cp = l->cp,
                        .dp = l->dp,
                        .pp = l->pp,
                        .vpp = l->vpp,
                        .ep = l->ep,
                        .etp = l->etp,
                        .zero = l->zero,
                        .micro_batch = (int)l->micro_batch,
                        .sequence_parallel = l->sequence_parallel && l->tp > 1,
                        .pipeline = loom_pipeline_of(l->schedule),
                        .recompute = l->recompute,
                        .cp_kind = l->cp_kind};
    memcpy(g->order, l->order, sizeof g->order);
    loom_degrees_place(g, &job->machine);
    for (int i = 0; i < l->n_chunks; i++)
        chunk_layers[i] = (int)l->chunk_layers[i];
}

void loom_layout_of_degrees(const loom_degrees *g, const loom_job *job, const int *chunk_layers, loom_layout *l)
{
    loom_layout_default(&job->model, l);
    l->tp = g->tp;
    l->cp = g->cp;
    l->dp = g->dp;
    l->pp = g->pp;
    l->vpp = g->vpp;
    l->ep = g->ep;
    l->etp = g->etp;
    l->zero = g->zero;
    l->sequence_parallel = g->sequence_parallel;
    l->schedule = loom_schedule_kind_of(g->pipeline);
    l->recompute = g->recompute;
    l->cp_kind = g->cp_kind;
    l->micro_batch = g->micro_batch;
    l->global_batch = job->global_batch;
    l->seq = job->seq;
    l->n_chunks = g->pp * g->vpp;
    for (int i = 0; i < l->n_chunks; i++)
        l->chunk_layers[i] = chunk_layers[i];
    memcpy(l->order, g->order, sizeof l->order);
}
