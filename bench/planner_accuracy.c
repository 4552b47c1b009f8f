/* planner_accuracy RUNS.csv [DEVICE.CONSTANT=VALUE …]: how far predictions of published runs are off, how good a choice they would have
 * made, and how long the largest searches take.
 *
 * The three searches are whole spaces: GPT-3 175B on 1,024 A100, Llama 3.1 405B on 16,384 H100, DeepSeek-V3 on 2,048 H800. */
#include <rankloom/planner.h>

#include <stdio.h>
#include <string.h>

typedef struct space {
    const char *name, *cluster;
    loom_model model;
    int64_t global_batch;
    const char *published; /* the layout that was run */
} space;

static const space spaces[] = {
    {"GPT-3 175B on 1,024 A100",
     "cluster:\n  nodes: 128\n  gpus_per_node: 8\n  gpu: a100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 200\n",
     {.name = "GPT-3 175B",
      .layers = 96,
      .hidden = 12288,
      .heads = 96,
      .kv_heads = 96,
      .head_dim = 128,
      .ffn = 49152,
      .vocab = 51200,
      .seq = 2048,
      .mlp = LOOM_GELU_TANH,
      .norm = LOOM_LAYERNORM,
      .positions = LOOM_LEARNED,
      .attention_bias = true,
      .output_bias = true,
      .mlp_bias = true,
      .tied_embeddings = true},
     1536,
     "tp=8,pp=16,recompute=full,zero=0"},
    {"GPT 1T on 3,072 A100",
     "cluster:\n  nodes: 384\n  gpus_per_node: 8\n  gpu: a100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 200\n",
     {.name = "GPT 1T",
      .layers = 128,
      .hidden = 25600,
      .heads = 160,
      .kv_heads = 160,
      .head_dim = 160,
      .ffn = 102400,
      .vocab = 51200,
      .seq = 2048,
      .mlp = LOOM_GELU_TANH,
      .norm = LOOM_LAYERNORM,
      .positions = LOOM_LEARNED,
      .attention_bias = true,
      .output_bias = true,
      .mlp_bias = true,
      .tied_embeddings = true},
     3072,
     "tp=8,pp=64,recompute=full,zero=0"},
    {"Llama 3.1 405B on 8,192 H100",
     "cluster:\n  nodes: 1024\n  gpus_per_node: 8\n  gpu: h100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 400\n",
     {.name = "Llama 3.1 405B",
      .layers = 126,
      .hidden = 16384,
      .heads = 128,
      .kv_heads = 8,
      .head_dim = 128,
      .ffn = 53248,
      .vocab = 128256,
      .seq = 8192},
     2048,
     "tp=8,pp=16,zero=1"},
    {"Llama 3.1 405B on 16,384 H100",
     "cluster:\n  nodes: 2048\n  gpus_per_node: 8\n  gpu: h100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 400\n",
     {.name = "Llama 3.1 405B",
      .layers = 126,
      .hidden = 16384,
      .heads = 128,
      .kv_heads = 8,
      .head_dim = 128,
      .ffn = 53248,
      .vocab = 128256,
      .seq = 8192},
     2048,
     "tp=8,pp=16,zero=1"},
    {"Llama 3.1 405B, 131,072 tokens, on 16,384 H100",
     "cluster:\n  nodes: 2048\n  gpus_per_node: 8\n  gpu: h100-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 400\n",
     {.name = "Llama 3.1 405B",
      .layers = 126,
      .hidden = 16384,
      .heads = 128,
      .kv_heads = 8,
      .head_dim = 128,
      .ffn = 53248,
      .vocab = 128256,
      .seq = 131072},
     128,
     "tp=8,cp=16,pp=16,zero=1,cp_kind=allgather"},
    {"DeepSeek-V3 on 2,048 H800",
     "cluster:\n  nodes: 256\n  gpus_per_node: 8\n  gpu: h800-80g\n  nvlink_domain: 8\n  nic_gbps_per_gpu: 400\n",
     {.name = "DeepSeek-V3",
      .layers = 61,
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
     15360,
     "tp=1,pp=16,ep=64,zero=1,vpp=2,schedule=zb-v,recompute=selective"},
};

static loom_status report_published(const loom_plan_request *request, const char *published, const loom_prediction *best)
{
    static loom_layout layout;
    static loom_prediction prediction;
    loom_status status = loom_plan_layout(request, published, &layout);

    if (status == LOOM_OK)
        status = loom_plan_predict(request, &layout, &prediction);
    if (status == LOOM_OK)
        printf("  published %s: %.2f s, %.1f %% MFU, %.1f of %.1f GiB; %.1f %% slower than our best\n", published, prediction.step_s,
               100 * prediction.mfu_causal, prediction.memory[prediction.fullest].total / 0x1p30, prediction.memory_limit / 0x1p30,
               100 * (prediction.step_s / best->step_s - 1));
    return status;
}

static loom_status search(const space *s)
{
    loom_topology *topology = NULL;
    loom_plan *plan = NULL;
    char line[128];
    loom_plan_request request = {.model = &s->model, .train = {.global_batch = s->global_batch, .precision = LOOM_BF16}, .keep = 1};
    loom_status status = loom_topology_parse(s->name, s->cluster, strlen(s->cluster), &topology);

    request.topology = topology;
    if (status == LOOM_OK)
        status = loom_plan_search(&request, &plan);
    if (status == LOOM_OK && plan->n_best) {
        printf("%s: %.3g legal layouts, %llu worked out, %.3f s, %.1f MiB\n", s->name, (double)plan->legal,
               (unsigned long long)plan->evaluated, plan->seconds, (double)plan->peak_bytes / 0x1p20);
        printf("  best      %s: %.2f s, %.1f %% MFU\n", loom_layout_describe(&plan->best[0].layout, line, sizeof line),
               plan->best[0].step_s, 100 * plan->best[0].mfu_causal);
        if (s->published)
            status = report_published(&request, s->published, &plan->best[0]);
    }
    loom_plan_free(plan);
    loom_topology_free(topology);
    return status;
}

int main(int argc, char **argv)
{
    char *text = NULL;

    if (argc < 2) {
        fprintf(stderr, "usage: planner_accuracy RUNS.csv [DEVICE.CONSTANT=VALUE …]\n");
        return 2;
    }
    loom_status status = loom_plan_score(argv[1], (const char *const *)argv + 2, LOOM_PLAN_AS_TEXT, &text);
    if (status == LOOM_OK)
        printf("%s\n", text);
    for (size_t i = 0; status == LOOM_OK && i < sizeof spaces / sizeof spaces[0]; i++)
        status = search(&spaces[i]);
    if (status != LOOM_OK)
        fprintf(stderr, "planner_accuracy: %s\n", loom_last_error());
    loom_text_free(text);
    return loom_exit_code(status);
}
