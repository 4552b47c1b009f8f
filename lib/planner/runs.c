/* From a row of published figures to a job and a layout. Only what a user would know is read: model, machine, layout, software. */
#include "planner/runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "planner/job.h"

typedef struct reading {
    const loom_csv *csv;
    int row;
    loom_run *run;
} reading;

static const char *text(const reading *r, const char *column)
{
    return loom_csv_at(r->csv, r->row, column);
}

static double number(const reading *r, const char *column, double otherwise)
{
    const char *field = text(r, column);
    char *end;
    double value = strtod(field, &end);
    return end == field ? otherwise : value;
}

static int whole(const reading *r, const char *column, int otherwise)
{
    return (int)number(r, column, otherwise);
}

static void skip(const reading *r, const char *why)
{
    if (!r->run->skipped[0])
        snprintf(r->run->skipped, sizeof r->run->skipped, "%s", why);
}

/* --- model --------------------------------------------------------------------------------------------------------------------------- */

/* What the columns cannot say of well-known models: latent attention, windows, tied embeddings. */
static const struct known {
    const char *name;
    loom_mla mla;
    int window, window_every; /* layers n, 2n, … see everything */
    int experts_every;
} known_models[] = {
    {"DeepSeek-V3", {1536, 512, 64, 128, 128}, 0, 0, 1},
    {"DeepSeek-V2-Lite", {0, 512, 64, 128, 128}, 0, 0, 1},
    {"DeepSeek-V2", {1536, 512, 64, 128, 128}, 0, 0, 1},
    {"Kimi K2", {1536, 512, 64, 128, 128}, 0, 0, 1},
    {"gpt-oss", {0, 0, 0, 0, 0}, 128, 2, 1},
    {"Llama-4 Maverick", {0, 0, 0, 0, 0}, 0, 0, 2},
};

static const struct known *find_known(const char *name)
{
    for (size_t i = 0; i < sizeof known_models / sizeof known_models[0]; i++)
        if (strncmp(name, known_models[i].name, strlen(known_models[i].name)) == 0)
            return &known_models[i];
    return NULL;
}

static void read_experts(const reading *r, loom_model *m, const struct known *known)
{
    m->moe.experts = whole(r, "experts", 0);
    m->moe.top_k = whole(r, "topk", 0);
    m->moe.ffn = whole(r, "expert_ffn", 0);
    m->moe.shared = whole(r, "shared_experts", 0);
    m->moe.shared_ffn = m->moe.ffn;
    m->moe.every = known ? known->experts_every : 1;
    m->moe.dense_layers = m->moe.every == 2 ? 0 : whole(r, "dense_layers", 0);
    m->moe.groups = m->moe.groups_kept = 1;
}

static void read_model(const reading *r, loom_job *job)
{
    loom_model *m = &job->model;
    const struct known *known = find_known(text(r, "model"));

    snprintf(m->name, sizeof m->name, "%s", text(r, "model"));
    m->layers = whole(r, "layers", 0);
    m->hidden = whole(r, "hidden", 0);
    m->heads = whole(r, "heads", 0);
    m->kv_heads = whole(r, "kv_heads", (int)m->heads);
    m->head_dim = whole(r, "head_dim", m->heads ? (int)(m->hidden / m->heads) : 0);
    m->ffn = whole(r, "ffn_hidden", 0);
    m->vocab = whole(r, "vocab", 50257);
    m->seq = job->seq = whole(r, "seq_len", 0);
    m->mlp = whole(r, "ffn_mats", 2) == 3 ? LOOM_SWIGLU : LOOM_GELU_TANH;
    m->norm = m->mlp == LOOM_SWIGLU ? LOOM_RMSNORM : LOOM_LAYERNORM;
    m->positions = m->mlp == LOOM_SWIGLU ? LOOM_ROPE : LOOM_LEARNED;
    m->tied_embeddings = m->mlp == LOOM_GELU_TANH;
    if (strncmp(text(r, "arch"), "moe", 3) == 0)
        read_experts(r, m, known);
    if (known && strcmp(text(r, "arch"), "moe-mla") == 0)
        m->mla = known->mla;
    if (known && known->window) {
        m->sliding_window = known->window;
        m->attention_sinks = true;
        m->full_attention_every = known->window_every;
    }
    if (!m->layers || !m->hidden || !m->heads || !m->ffn)
        skip(r, "model shape not given");
    if (!job->seq)
        skip(r, "sequence length not given");
}

/* --- machine -------------------------------------------------------------------------------------------------------------------------- */

/* What words for a rate are worth in B/s, once a number stands before them. */
static const struct rate_unit {
    const char *word;
    double bytes;
} rate_units[] = {{"Gb/s", 1e9 / 8}, {"Gbps", 1e9 / 8}, {"Gbit", 1e9 / 8},  {"GbE", 1e9 / 8},
                  {"GB/s", 1e9},     {"GBps", 1e9},     {"Tb/s", 1e12 / 8}, {"Tbps", 1e12 / 8}};

/* Generations of InfiniBand that people name in place of a rate; a port a device unless they say "per node". */
static const struct rate_unit generations[] = {{"EDR", 100e9 / 8}, {"HDR", 200e9 / 8}, {"NDR", 400e9 / 8}, {"XDR", 800e9 / 8}};

static double generation_rate(const char *words, int per_node)
{
    for (size_t i = 0; i < sizeof generations / sizeof generations[0]; i++)
        if (strstr(words, generations[i].word))
            return strstr(words, "per node") ? generations[i].bytes / per_node : generations[i].bytes;
    return 0;
}

/* Network of one device in B/s, from words such as "8x400Gb/s IB per node", "400 Gbps RDMA per GPU" or "NDR"; 0: they do not say. */
static double network_rate(const char *words, int per_node)
{
    const char *unit = NULL;
    double worth = 0, times = 1;
    bool ports = false;

    for (size_t i = 0; i < sizeof rate_units / sizeof rate_units[0]; i++) {
        const char *at = strstr(words, rate_units[i].word);
        if (at && (!unit || at < unit)) {
            unit = at;
            worth = rate_units[i].bytes;
        }
    }
    if (!unit)
        return generation_rate(words, per_node);
    const char *start = unit;
    while (start > words && strchr(" 0123456789.", start[-1]))
        start--;
    double rate = atof(start) * worth;
    while (start > words && strchr("x ", start[-1]))
        ports |= *--start == 'x';
    const char *factor = start;
    while (factor > words && strchr("0123456789", factor[-1]))
        factor--;
    if (ports && factor < start)
        times = atof(factor);
    if (strstr(words, "per GPU") || strstr(words, "per device") || strstr(words, "a GPU"))
        return rate;
    return times * rate / per_node;
}

/* Devices of one slice of a torus: "4 slice(s) of 256" or the whole run. */
static int slice_of(const char *words, int gpus)
{
    const char *of = strstr(words, " of ");
    return of && strstr(words, "DCN") ? atoi(of + 4) : gpus;
}

/* A device without measurements: what its maker says. */
static void read_catalogue(const reading *r, const char *gpu, loom_machine *machine)
{
    loom_chip chip;

    if (loom_chip_find(gpu, &chip) == LOOM_OK && loom_known(chip.peak[LOOM_MATH_16]))
        loom_machine_read_chip(machine, &chip);
    else
        skip(r, "device kind not known");
}

static void read_machine(const reading *r, loom_machine *machine)
{
    const char *gpu = text(r, "gpu"), *between = text(r, "inter_node");
    const loom_device_kind *kind = loom_device_kind_find(gpu);
    double rate;

    loom_device_constants(kind, machine->dev);
    if (!kind)
        read_catalogue(r, gpu, machine);
    machine->ranks = r->run->gpus;
    machine->node = whole(r, "gpus_per_node", 8);
    machine->domain = strstr(gpu, "NVL72") ? 72 : machine->node;
    if (strncmp(gpu, "TPU", 3) == 0)
        machine->domain = slice_of(between, machine->ranks);
    if (strcmp(gpu, "T4-16GB") == 0)
        machine->domain = machine->node;
    rate = network_rate(between, machine->node);
    if (rate > 0)
        machine->dev[LOOM_DEV_NET_RATE] = (loom_constant){rate, LOOM_BASIS_GIVEN, "the row's network"};
}

/* --- software ---------------------------------------------------------------------------------------------------------------- */

static void set(loom_job *job, loom_software_constant which, double value)
{
    job->soft[which] = (loom_constant){value, LOOM_BASIS_GIVEN, "the row's settings"};
}

static void scale(loom_job *job, loom_software_constant which, double factor)
{
    set(job, which, job->soft[which].value * factor);
}

/* What the row's words switch on or off, beside the framework's habits. */
static void read_switches(const reading *r, loom_job *job)
{
    const char *overlap = text(r, "overlap"), *notes = text(r, "notes");

    if (strncmp(overlap, "no dp-overlap", 13) == 0 || strncmp(overlap, "no DP", 5) == 0 || strncmp(overlap, "none", 4) == 0) {
        set(job, LOOM_SOFT_DP_WINDOW, 0);
        set(job, LOOM_SOFT_GATHER_WINDOW, 0);
    }
    if (strncmp(overlap, "none (tp", 8) == 0 || strcmp(overlap, "none") == 0)
        set(job, LOOM_SOFT_P2P_EXPOSED, 1);
    if (strstr(overlap, "ep-a2a") || strstr(notes, "A2A overlap"))
        set(job, LOOM_SOFT_EP_HIDDEN, 0.7);
    if (strstr(overlap, "async-tp") || strstr(notes, "AsyncTP"))
        set(job, LOOM_SOFT_TP_HIDDEN, 0.6);
    if (strstr(overlap, "full_iteration"))
        set(job, LOOM_SOFT_HOST_FACTOR, 0);
    if (strstr(notes, "torch.compile") || strstr(notes, "Float8")) {
        set(job, LOOM_SOFT_ELEMENTWISE, 1);
        set(job, LOOM_SOFT_KERNELS_DENSE, 20);
    }
    if (strstr(notes, "tokendrop") || strstr(notes, "token-drop")) /* fixed shapes: no wait for the host */
        scale(job, LOOM_SOFT_KERNELS_MOE, 0.4), scale(job, LOOM_SOFT_KERNELS_EXPERT, 0.4);
    if (strstr(notes, "Float8"))
        set(job, LOOM_SOFT_GATHER_BYTES, 1);
    if (strstr(notes, "(PURE)"))
        set(job, LOOM_SOFT_GRADIENT_BYTES, 2);
    if (strstr(overlap, "'attn'"))
        set(job, LOOM_SOFT_KERNELS_DENSE, 6);
    if (strstr(overlap, "moe_router"))
        scale(job, LOOM_SOFT_KERNELS_MOE, 0.5);
}

static int repeat_of(const char *words)
{
    int repeat = 0;

    if (strstr(words, "attention core"))
        repeat |= LOOM_REPEAT_CORE;
    if (strstr(words, "selective-op") || strstr(words, "selective-layer")) /* torchtitan: every second product, or layer */
        repeat |= LOOM_REPEAT_HALF | LOOM_REPEAT_NORM | LOOM_REPEAT_ACT;
    if (strstr(words, "norm") || strstr(words, "RMSNorm"))
        repeat |= LOOM_REPEAT_NORM;
    if (strstr(words, "act"))
        repeat |= LOOM_REPEAT_ACT;
    if (strstr(words, "mlp"))
        repeat |= LOOM_REPEAT_MLP;
    if (strstr(words, "mla") || strstr(words, "MLA"))
        repeat |= LOOM_REPEAT_LATENT;
    return repeat ? repeat : LOOM_REPEAT_CORE;
}

static const loom_framework *framework_of(const reading *r)
{
    const loom_framework *found = loom_framework_find(strstr(text(r, "shard"), "(DeepSpeed)") ? "deepspeed-zero3" : text(r, "framework"));

    if (found && strcmp(found->names[0], "megatron-lm") == 0 && number(r, "year", 0) >= 2023)
        return loom_framework_find("megatron-lm-core"); /* fused attention came with Megatron-Core */
    return found;
}

static void read_software(const reading *r, loom_job *job)
{
    const char *precision = text(r, "precision_class");

    loom_software_constants(framework_of(r), job->soft);
    job->bits = strcmp(precision, "fp8") == 0 || strcmp(precision, "int8") == 0 ? 8 : strcmp(precision, "fp4") == 0 ? 4 : 16;
    job->element = 2;
    job->imbalance = 1;
    job->repeat = repeat_of(text(r, "recompute"));
}

static void apply(const reading *r, loom_job *job, const loom_override *o)
{
    const loom_device_kind *kind = loom_device_kind_find(text(r, "gpu"));
    const loom_framework *framework = framework_of(r);

    if (o->device >= 0 && loom_override_owns(o, kind ? kind->names : NULL) && job->machine.dev[o->device].basis != LOOM_BASIS_GIVEN)
        job->machine.dev[o->device] = o->value;
    if (o->software >= 0 && loom_override_owns(o, framework ? framework->names : NULL))
        job->soft[o->software] = o->value;
}

/* --- layout ------------------------------------------------------------------------------------------------------------------ */

static loom_pipeline pipeline_of(const char *words, int vpp)
{
    if (strncmp(words, "zb-1p", 5) == 0)
        return LOOM_PIPE_ZB_H1;
    if (strncmp(words, "zb-2p", 5) == 0)
        return LOOM_PIPE_ZB_H2;
    if (strncmp(words, "zb-v", 4) == 0 || strcmp(words, "zbv") == 0)
        return LOOM_PIPE_ZB_V;
    if (strcmp(words, "dualpipe") == 0)
        return LOOM_PIPE_DUAL;
    return vpp > 1 ? LOOM_PIPE_INTERLEAVED : LOOM_PIPE_1F1B;
}

static loom_recompute recompute_of(const char *words, bool sharded)
{
    if (strcmp(words, "full") == 0)
        return LOOM_RECOMPUTE_FULL;
    if (strcmp(words, "selective") == 0)
        return LOOM_RECOMPUTE_SELECTIVE;
    if (strcmp(words, "offload") == 0)
        return LOOM_RECOMPUTE_SELECTIVE;
    (void)sharded;
    return LOOM_RECOMPUTE_NONE;
}

static void read_layout(const reading *r, loom_run *run)
{
    loom_degrees *g = &run->degrees;

    if (!text(r, "tp")[0] || !text(r, "pp")[0] || !text(r, "dp")[0])
        skip(r, "tp, pp or dp not given");
    g->tp = whole(r, "tp", 1);
    g->pp = whole(r, "pp", 1);
    g->cp = whole(r, "cp", 1);
    g->dp = whole(r, "dp", 1);
    g->vpp = whole(r, "vpp", 1);
    run->vpp_open = !text(r, "vpp")[0] && g->pp > 1;
    g->ep = whole(r, "ep", 1);
    g->etp = whole(r, "etp", 1);
    if (g->ep < 1)
        g->ep = 1;
    if (g->etp < 1)
        g->etp = 1;
    g->zero = whole(r, "zero_stage", 1);
    g->shard_group = whole(r, "shard_group", g->dp * g->cp);
    g->sequence_parallel = strcmp(text(r, "seq_par"), "yes") == 0;
    g->micro_batch = whole(r, "mbs", 1);
    run->micro_batch_open = !text(r, "mbs")[0];
    if (run->micro_batch_open && g->pp > 1 && strncmp(run->framework, "torchtitan", 10) == 0) {
        int stages = g->pp * (run->vpp_open ? 2 : g->vpp); /* its default: as many micro-batches as there are stages */
        g->micro_batch = whole(r, "gbs", 0) / g->dp / stages;
        run->micro_batch_open = g->micro_batch < 1;
        if (run->vpp_open && g->micro_batch >= 1) {
            g->vpp = 2;
            run->vpp_open = false;
        }
    }
    g->pipeline = pipeline_of(text(r, "schedule"), g->vpp);
    g->recompute = recompute_of(text(r, "recompute_class"), g->zero == 3);
    for (int i = 0; i < 4; i++)
        g->order[i] = i;
    if (g->zero == 0)
        g->shard_group = 0;
    g->cp_kind = strstr(text(r, "notes"), "a2a CP") ? LOOM_CP_ULYSSES : LOOM_CP_RING;
    if (g->pp * g->vpp > LOOM_MAX_STAGES || g->pp > run->job.model.layers + 2)
        skip(r, "more stages than layers");
    run->job.global_batch = whole(r, "gbs", 0);
    if (!run->job.global_batch)
        skip(r, "global batch not given");
}

void loom_run_read(const loom_csv *csv, int row, const loom_override *overrides, int n_overrides, loom_run *run)
{
    reading r = {csv, row, run};

    memset(run, 0, sizeof *run);
    run->id = text(&r, "id");
    run->source = text(&r, "source");
    run->gpu = text(&r, "gpu");
    run->framework = text(&r, "framework");
    run->software = framework_of(&r);
    run->model_name = text(&r, "model");
    run->precision = text(&r, "precision");
    run->gpus = whole(&r, "gpus", 1);
    run->measured_s = number(&r, "step_time_s", NAN);
    run->measured_gib = number(&r, "mem_gib", NAN);
    run->measures_allocated = strstr(text(&r, "mem_kind"), "allocated") != NULL;
    run->failed = strncmp(text(&r, "outcome"), "failed", 6) == 0;
    read_model(&r, &run->job);
    read_machine(&r, &run->job.machine);
    read_software(&r, &run->job);
    for (int i = 0; i < n_overrides; i++)
        apply(&r, &run->job, &overrides[i]);
    read_switches(&r, &run->job);
    read_layout(&r, run);
}

/* --- prediction -------------------------------------------------------------------------------------------------------------- */

/* How frameworks cut layers that do not divide: embedding and loss stand for a layer each where that makes it even, else the first
 * chunks take one more. */
static void split_layers(const loom_run *run, const loom_degrees *g, int *chunk_layers)
{
    int chunks = g->pp * g->vpp, layers = (int)run->job.model.layers;

    if (layers % chunks && (layers + 2) % chunks == 0) {
        for (int i = 0; i < chunks; i++)
            chunk_layers[i] = (layers + 2) / chunks - (i == 0) - (i == chunks - 1);
        return;
    }
    for (int i = 0; i < chunks; i++)
        chunk_layers[i] = layers / chunks + (i < layers % chunks);
}

static bool legal(const loom_run *run, const loom_degrees *g)
{
    int64_t per_pass = (int64_t)g->micro_batch * g->dp;

    if (run->job.global_batch % per_pass)
        return false;
    if (g->pipeline != LOOM_PIPE_INTERLEAVED) /* only there chunks take turns in rounds of pp micro-batches */
        return true;
    return run->job.model.layers + 2 >= (int64_t)g->pp * g->vpp && run->job.global_batch / per_pass % g->pp == 0;
}

/* Tries what the row leaves open (vpp, micro-batch) and keeps the fastest. */
loom_status loom_run_predict(loom_run *run, loom_step_cost *best)
{
    static const int open_micro_batches[] = {1, 2, 4, 8, 16};
    loom_degrees g = run->degrees;
    bool found = false;

    for (int i = 0; i < (run->micro_batch_open ? 5 : 1); i++) {
        for (int v = run->vpp_open ? 1 : g.vpp; v <= (run->vpp_open ? 16 : g.vpp); v++) {
            loom_degrees try = g;
            loom_step_cost cost;
            try.vpp = v;
            if (run->micro_batch_open)
                try.micro_batch = open_micro_batches[i];
            if (run->vpp_open && v > 1)
                try.pipeline = LOOM_PIPE_INTERLEAVED;
            if ((run->vpp_open || run->micro_batch_open) && !legal(run, &try))
                continue;
            split_layers(run, &try, run->chunk_layers);
            loom_degrees_place(&try, &run->job.machine);
            loom_step_predict(&run->job, &try, run->chunk_layers, &cost);
            if (!found || cost.seconds < best->seconds) {
                *best = cost;
                run->degrees = try;
                found = true;
            }
        }
    }
    if (!found)
        return loom_fail(LOOM_E_INVALID, "%s: no micro-batch or interleaving that fits its batch", run->id);
    split_layers(run, &run->degrees, run->chunk_layers);
    return LOOM_OK;
}
