/* planner_search: the largest searches, how long they take and what they need, and where published layouts stand in them.
 *
 * Whole spaces: every legal layout, nothing fixed, one thread. For each, the layout that was really run: its prediction beside what was
 * published, its place among all splits into tp, cp, pp, ep and etp, and what separates it from our best: first as the software of its
 * time could have chosen, then with everything that this planner knows. */
#include <rankloom/planner.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct published {
    const char *name, *cluster, *framework;
    loom_model model;
    loom_dtype precision;
    int64_t global_batch;
    const char *layout; /* that was run */
    double seconds;     /* of a step, as published; 0: only MFU is */
    double mfu;         /* as published, causal attention counted as its source does; 0: not told */
    const char *fix[8]; /* what the software of its time could not vary, NULL-terminated */
    const char *exclude[8];
    const char *note;
} published;

#define GPT(l, h, a, d)                                                                                                                    \
    {                                                                                                                                      \
        .layers = l, .hidden = h, .heads = a, .kv_heads = a, .head_dim = d, .ffn = 4 * h, .vocab = 51200, .seq = 2048,                     \
        .mlp = LOOM_GELU_TANH, .norm = LOOM_LAYERNORM, .positions = LOOM_LEARNED, .attention_bias = true, .output_bias = true,             \
        .mlp_bias = true, .tied_embeddings = true                                                                                          \
    }
#define LLAMA_405B(tokens)                                                                                                                 \
    {                                                                                                                                      \
        .layers = 126, .hidden = 16384, .heads = 128, .kv_heads = 8, .head_dim = 128, .ffn = 53248, .vocab = 128256, .seq = tokens         \
    }

static const published cases[] = {
    {
        .name = "GPT-3 175B on 1,024 A100",
        .cluster = "cluster:\n  nodes: 128\n  gpus_per_node: 8\n  gpu: a100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 200\n",
        .framework = "megatron-lm",
        .model = GPT(96, 12288, 96, 128),
        .precision = LOOM_F16,
        .global_batch = 1536,
        .layout = "tp=8,pp=16,vpp=2,schedule=interleaved,recompute=full,zero=0,mbs=1,sp=false",
        .seconds = 32,
        .fix = {"zero=0", "sp=false", "cp=1"},
        .exclude = {"schedule=zb-h1", "schedule=zb-v", "recompute=selective"},
        .note = "Narayanan 2021; interleaving and micro-batch not printed, the fastest assumed",
    },
    {
        .name = "GPT 1T on 3,072 A100",
        .cluster = "cluster:\n  nodes: 384\n  gpus_per_node: 8\n  gpu: a100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 200\n",
        .framework = "megatron-lm",
        .model = GPT(128, 25600, 160, 160),
        .precision = LOOM_F16,
        .global_batch = 3072,
        .layout = "tp=8,pp=64,recompute=full,zero=0,mbs=1,sp=false",
        .seconds = 102.63,
        .fix = {"zero=0", "sp=false", "cp=1"},
        .exclude = {"schedule=zb-h1", "schedule=zb-v", "recompute=selective"},
        .note = "Narayanan 2021",
    },
    {
        .name = "Llama 3.1 405B on 8,192 H100",
        .cluster = "cluster:\n  nodes: 1024\n  gpus_per_node: 8\n  gpu: h100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 400\n",
        .framework = "meta",
        .model = LLAMA_405B(8192),
        .precision = LOOM_BF16,
        .global_batch = 2048,
        .layout = "tp=8,pp=16,vpp=4,schedule=interleaved,zero=1,mbs=1,recompute=selective",
        .mfu = 0.43,
        .fix = {"zero=1", "recompute=selective"},
        .exclude = {"schedule=zb-h1", "schedule=zb-v"},
        .note = "The Llama 3 Herd of Models, table 4; interleaving not printed: two layers a chunk assumed; gradients reduced once a step "
                "are our "
                "zero=1, tensors freed early our selective recompute",
    },
    {
        .name = "Llama 3.1 405B on 16,384 H100",
        .cluster = "cluster:\n  nodes: 2048\n  gpus_per_node: 8\n  gpu: h100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 400\n",
        .framework = "meta",
        .model = LLAMA_405B(8192),
        .precision = LOOM_BF16,
        .global_batch = 2048,
        .layout = "tp=8,pp=16,vpp=4,schedule=interleaved,zero=1,mbs=1,recompute=selective",
        .mfu = 0.41,
        .fix = {"zero=1", "recompute=selective"},
        .exclude = {"schedule=zb-h1", "schedule=zb-v"},
        .note = "The Llama 3 Herd of Models, table 4",
    },
    {
        .name = "Llama 3.1 405B, 131,072 tokens, on 16,384 H100",
        .cluster = "cluster:\n  nodes: 2048\n  gpus_per_node: 8\n  gpu: h100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 400\n",
        .framework = "meta",
        .model = LLAMA_405B(131072),
        .precision = LOOM_BF16,
        .global_batch = 128,
        .layout = "tp=8,cp=16,pp=16,vpp=4,schedule=interleaved,zero=1,mbs=1,cp_kind=allgather,recompute=selective",
        .mfu = 0.38,
        .fix = {"zero=1", "recompute=selective", "cp_kind=allgather"},
        .exclude = {"schedule=zb-h1", "schedule=zb-v"},
        .note = "The Llama 3 Herd of Models, table 4",
    },
    {
        .name = "DeepSeek-V3 on 2,048 H800",
        .cluster = "cluster:\n  nodes: 256\n  gpus_per_node: 8\n  gpu: h800\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 400\n",
        .framework = "hai-llm",
        .model = {.layers = 61,
                  .hidden = 7168,
                  .heads = 128,
                  .kv_heads = 128,
                  .head_dim = 192,
                  .ffn = 18432,
                  .vocab = 129280,
                  .seq = 4096,
                  .mla = {1536, 512, 64, 128, 128},
                  .moe = {.experts = 256,
                          .top_k = 8,
                          .ffn = 2048,
                          .shared = 1,
                          .shared_ffn = 2048,
                          .dense_layers = 3,
                          .every = 1,
                          .groups = 8,
                          .groups_kept = 4}},
        .precision = LOOM_F8E4M3,
        .global_batch = 15360,
        .layout = "tp=1,pp=16,ep=64,zero=1,vpp=2,schedule=zb-v,recompute=selective,mbs=1",
        .seconds = 19.9067,
        .fix = {"tp=1", "cp=1", "zero=1", "recompute=selective"},
        .note = "DeepSeek-V3 report; from GPU-hours per trillion tokens, so every stall is in; zb-v stands for DualPipe, which this space "
                "lacks",
    },
};

/* --- telling --------------------------------------------------------------------------------------------------------------------- */

static bool same_split(const loom_layout *a, const loom_layout *b)
{
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep && a->etp == b->etp;
}

static void tell_prediction(const char *what, const loom_prediction *p)
{
    char line[128];

    printf("  %-22s %8.2f s, MFU %4.1f %%, %5.1f of %.1f GiB%s: %s\n", what, p->step_s, 100 * p->mfu_causal,
           p->memory[p->fullest].total / 0x1p30, p->memory_limit / 0x1p30, p->fits ? "" : " (does not fit)",
           loom_layout_describe(&p->layout, line, sizeof line));
}

/* Where the two differ most, in seconds. */
static void tell_difference(const loom_prediction *slow, const loom_prediction *fast)
{
    double behind = slow->step_s - fast->step_s;
    bool first = true;

    printf("    %.1f %% slower", 100 * behind / fast->step_s);
    for (int i = 0; i < LOOM_TIME_PARTS; i++) {
        double more = slow->part_s[i] - fast->part_s[i];
        if (fabs(more) < 0.1 * fabs(behind) || fabs(more) < 0.01 * fast->step_s)
            continue;
        printf("%s %+.2f s %s", first ? ":" : ",", more, loom_time_part_name(i));
        first = false;
    }
    printf("\n");
}

/* Searches and says where `run` stands. */
static loom_status search(const loom_plan_request *request, const char *space, const loom_prediction *run)
{
    loom_plan *plan = NULL;
    loom_status status = loom_plan_search(request, &plan);
    int faster = 0;

    if (status != LOOM_OK)
        return status;
    printf("  %s: %.3g legal layouts, %llu worked out, %.3f s, %.1f MiB\n", space, (double)plan->legal, (unsigned long long)plan->evaluated,
           plan->seconds, (double)plan->peak_bytes / 0x1p20);
    if (plan->n_best) {
        tell_prediction("  best", &plan->best[0]);
        while (faster < plan->n_best && !same_split(&plan->best[faster].layout, &run->layout) && plan->best[faster].step_s < run->step_s)
            faster++;
        if (request->keep > 1 && faster < plan->n_best && same_split(&plan->best[faster].layout, &run->layout))
            printf("    the published split is number %d of all splits\n", faster + 1);
        else if (request->keep > 1)
            printf("    %d%s splits into tp, cp, pp, ep and etp are faster than the published one\n", faster,
                   faster == plan->n_best ? " or more" : "");
        printf("    the published layout is");
        tell_difference(run, &plan->best[0]);
    } else {
        printf("    %s\n", plan->hopeless);
    }
    loom_plan_free(plan);
    return LOOM_OK;
}

static void tell_run(const published *c, const loom_prediction *run)
{
    tell_prediction("published layout", run);
    if (c->seconds > 0)
        printf("    measured %.2f s: predicted %+.1f %%", c->seconds, 100 * (run->step_s / c->seconds - 1));
    else
        printf("    measured MFU %.0f %%", 100 * c->mfu);
    printf(" (%s)\n", c->note);
}

static loom_status look_at(const published *c)
{
    static loom_layout layout;
    static loom_prediction run;
    loom_topology *topology = NULL;
    loom_plan_request request = {
        .model = &c->model, .train = {.global_batch = c->global_batch, .precision = c->precision}, .framework = c->framework, .keep = 1};
    loom_status status = loom_topology_parse(c->name, c->cluster, strlen(c->cluster), &topology);

    request.topology = topology;
    printf("%s\n", c->name);
    if (status == LOOM_OK)
        status = loom_plan_layout(&request, c->layout, &layout);
    if (status == LOOM_OK)
        status = loom_plan_predict(&request, &layout, &run);
    if (status == LOOM_OK) {
        tell_run(c, &run);
        status = search(&request, "whole space", &run);
    }
    if (status == LOOM_OK) { /* as its authors could have chosen, and by how many it is beaten */
        request.fix = c->fix;
        request.exclude = c->exclude;
        request.keep = 31;
        status = search(&request, "what they could vary", &run);
    }
    printf("\n");
    loom_topology_free(topology);
    return status;
}

int main(int argc, char **argv)
{
    loom_status status = LOOM_OK;

    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "usage: planner_search\n");
        return 2;
    }
    for (size_t i = 0; status == LOOM_OK && i < sizeof cases / sizeof cases[0]; i++)
        status = look_at(&cases[i]);
    if (status != LOOM_OK)
        fprintf(stderr, "planner_search: %s\n", loom_last_error());
    return loom_exit_code(status);
}
