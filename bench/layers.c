/* Attention over long sequences and a layer of experts, forward and backward, on as many ranks as were launched: one JSON object a size, from rank 0.
 *
 *   layers attention [--tokens 1024,4096,16384] [--cp-kind ring] [--heads 8] [--kv-heads 8] [--head-dim 64] [--seconds 2]
 *   layers experts   [--tokens 1024,4096] [--dispatch alltoall] [--hidden 512] [--ffn 1024] [--experts 8] [--top-k 2] [--seconds 2]
 *
 * Ranks share the sequences (cp) or the experts (ep). Tokens are those of a whole sequence, and of the experts' those of all ranks. `ms` is the median
 * over runs of the slowest rank's time; `ledger_mb` what the library has allocated on rank 0 at its peak, inputs and gradients included. */
#include "measure.h"

#include <rankloom/rankloom.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    const char *layer, *variant; /* of the kind: cp_kind or dispatcher */
    const char *tokens;
    int64_t heads, kv_heads, head_dim, hidden, ffn, experts, top_k;
    double seconds;
    loom_launch launch;
    loom_store *store;
    loom_device *device;
    loom_comm *world;
    loom_mesh *mesh;
    loom_kernels *kernels;
    loom_stream *stream;
} bench;

/* One size: what is repeated, and what it works on. */
typedef struct job {
    bench *b;
    loom_status (*forward)(struct job *job), (*backward)(struct job *job);
    int64_t tokens, local;
    float *buffer[8];
    loom_cp *cp;
    loom_attention_backward_args attention;
    loom_ep *ep;
    loom_moe moe;
    loom_moe_layer *experts;
    loom_moe_record *record;
    loom_param_list params;
    loom_dp *dp;
} job;

static void must(loom_status status)
{
    if (status < 0) {
        fprintf(stderr, "bench: %s\n", loom_last_error());
        exit(loom_exit_code(status));
    }
}

_Noreturn static void refuse(const char *word)
{
    fprintf(stderr, "bench: what is %s?\n", word);
    exit(2);
}

static float *floats(bench *b, int64_t count, uint32_t seed)
{
    void *memory;
    uint32_t state = seed + 977u * (uint32_t)b->launch.rank;

    must(loom_alloc(b->device, (size_t)count * sizeof(float), LOOM_MEM_OTHER, &memory));
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        ((float *)memory)[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    return memory;
}

/* --- attention ------------------------------------------------------------------------------------------------------------------------------ */

static loom_status attention_forward(job *j)
{
    return loom_cp_attention(j->cp, &j->attention.forward, j->buffer[6]);
}

static loom_status attention_backward(job *j)
{
    return loom_cp_attention_backward(j->cp, &j->attention, j->buffer[6]);
}

static loom_cp_kind kind_of(const char *name)
{
    for (int kind = LOOM_CP_RING; kind <= LOOM_CP_HYBRID; kind++)
        if (strcmp(name, loom_cp_kind_name((loom_cp_kind)kind)) == 0)
            return (loom_cp_kind)kind;
    refuse(name);
}

static void open_attention(job *j)
{
    bench *b = j->b;
    loom_cp_config config = {.kind = kind_of(b->variant), .batch = 1, .seq = j->tokens, .heads = b->heads, .kv_heads = b->kv_heads, .head_dim = b->head_dim};
    int64_t q, row = (b->heads + 2 * b->kv_heads) * b->head_dim;
    loom_bshk at = {.token = row};

    must(loom_cp_open(b->mesh, b->kernels, b->stream, &config, &j->cp));
    j->local = loom_cp_local_seq(j->cp);
    q = b->heads * b->head_dim;
    j->buffer[0] = floats(b, j->local * row, 1);       /* q, k, v */
    j->buffer[1] = floats(b, j->local * row, 2);       /* their gradients */
    j->buffer[2] = floats(b, j->local * q, 3);         /* o */
    j->buffer[3] = floats(b, j->local * q, 4);         /* do */
    j->buffer[4] = floats(b, j->local * b->heads, 5);  /* lse */
    j->buffer[6] = floats(b, loom_cp_saved(j->cp), 6);
    j->attention = (loom_attention_backward_args){
        .forward = {.o_BSHK = j->buffer[2], .lse_BHS = j->buffer[4], .q_BSHK = j->buffer[0], .k_BSGK = j->buffer[0] + q,
                    .v_BSGK = j->buffer[0] + q + b->kv_heads * b->head_dim, .q_at = at, .k_at = at, .v_at = at, .batch = 1, .heads = b->heads,
                    .kv_heads = b->kv_heads, .q_seq = j->local, .k_seq = j->local, .head_dim = b->head_dim, .mask = {.causal = true}},
        .do_BSHK = j->buffer[3], .dq_BSHK = j->buffer[1], .dk_BSGK = j->buffer[1] + q, .dv_BSGK = j->buffer[1] + q + b->kv_heads * b->head_dim,
        .dq_at = at, .dk_at = at, .dv_at = at};
    j->forward = attention_forward;
    j->backward = attention_backward;
}

/* --- experts --------------------------------------------------------------------------------------------------------------------------------- */

static loom_status experts_forward(job *j)
{
    loom_status status = loom_moe_dispatch(j->experts, j->record, j->buffer[0], j->local, 0);

    if (status == LOOM_OK)
        status = loom_moe_compute(j->experts, j->record);
    return status == LOOM_OK ? loom_moe_combine(j->experts, j->record, j->buffer[2], false) : status;
}

static loom_status experts_backward(job *j)
{
    loom_status status = loom_moe_dispatch_backward(j->experts, j->record, j->buffer[0], j->buffer[3]);

    if (status == LOOM_OK)
        status = loom_moe_compute_backward(j->experts, j->record);
    return status == LOOM_OK ? loom_moe_combine_backward(j->experts, j->record, j->buffer[1], false) : status;
}

static loom_ep_dispatcher dispatcher_of(const char *name)
{
    for (int i = 0; i < LOOM_EP_DISPATCHERS; i++)
        if (strcmp(name, loom_ep_dispatcher_name((loom_ep_dispatcher)i)) == 0)
            return (loom_ep_dispatcher)i;
    refuse(name);
}

static void open_experts(job *j)
{
    bench *b = j->b;
    loom_ep_config config = {.dispatcher = dispatcher_of(b->variant)};

    j->moe = (loom_moe){.experts = b->experts, .top_k = b->top_k, .ffn = b->ffn, .normalise_top_k = true, .groups = 1, .groups_kept = 1, .route_scale = 1};
    j->local = j->tokens / b->launch.size;
    must(loom_ep_open(b->mesh, b->kernels, b->stream, &config, &j->ep));
    must(loom_ep_reshape(j->ep, &(loom_ep_shape){.sequences = 1, .seq = j->local}));
    must(loom_moe_layer_open(j->ep,
                             &(loom_moe_layer_config){.moe = &j->moe, .hidden = b->hidden, .router = "router", .experts = "e", .gate = "gate", .up = "up",
                                                      .down = "down", .init_std = 0.05, .init_std_down = 0.05},
                             &j->params, &j->experts));
    must(loom_moe_record_open(j->experts, j->local, &j->record));
    must(loom_dp_open(b->mesh, &j->params, &(loom_dp_config){.adamw = {0.9, 0.95, 1e-8, 0, 0}}, b->stream, &j->dp));
    must(loom_dp_init(j->dp, 1));
    must(loom_dp_begin(j->dp));
    for (int i = 0; i < 4; i++)
        j->buffer[i] = floats(b, j->local * b->hidden, (uint32_t)i + 1); /* x, dx, y, dy */
    j->forward = experts_forward;
    j->backward = experts_backward;
}

/* --- one size ---------------------------------------------------------------------------------------------------------------------------------- */

static void close_job(job *j)
{
    loom_cp_close(j->cp);
    loom_dp_close(j->dp);
    loom_moe_record_close(j->record);
    loom_moe_layer_close(j->experts);
    loom_ep_close(j->ep);
    loom_param_list_free(&j->params);
    for (int i = 0; i < 8; i++)
        loom_free(j->b->device, j->buffer[i]);
}

static double slowest(bench *b, double value)
{
    must(loom_all_reduce(b->world, &value, &value, 1, LOOM_F64, LOOM_MAX, b->stream));
    must(loom_stream_wait(b->stream));
    return value;
}

/* Times of forward and of both, of the slowest rank. */
static void run_once(job *j, double *forward, double *both)
{
    double start;

    slowest(j->b, 0); /* together */
    start = bench_now_s();
    must(j->forward(j));
    must(loom_stream_wait(j->b->stream));
    *forward = bench_now_s() - start;
    must(j->backward(j));
    must(loom_stream_wait(j->b->stream));
    *both = slowest(j->b, bench_now_s() - start);
    *forward = slowest(j->b, *forward);
}

static void run_size(bench *b, int64_t tokens)
{
    enum { MOST = 200, LEAST = 3 };
    double forward[MOST], both[MOST], spent = 0;
    job j = {.b = b, .tokens = tokens};
    loom_ledger ledger;
    int runs = 0;

    if (strcmp(b->layer, "attention") == 0)
        open_attention(&j);
    else
        open_experts(&j);
    run_once(&j, &forward[0], &both[0]); /* shapes are prepared, memory is touched */
    while (runs < MOST && (runs < LEAST || spent < b->seconds)) {
        run_once(&j, &forward[runs], &both[runs]);
        spent += both[runs++];
    }
    loom_device_ledger(b->device, &ledger);
    close_job(&j);
    if (b->launch.rank == 0)
        printf("{\"layer\":\"%s\",\"who\":\"rankloom%s%s\",\"ranks\":%d,\"tokens\":%lld,\"ms\":%.3f,\"forward_ms\":%.3f,\"runs\":%d,\"ledger_mb\":%.1f}\n",
               b->layer, b->launch.size > 1 ? " " : "", b->launch.size > 1 ? b->variant : "", b->launch.size, (long long)tokens,
               1e3 * bench_median(both, runs), 1e3 * bench_median(forward, runs), runs, (double)ledger.peak_total / 1e6);
}

/* --- the program --------------------------------------------------------------------------------------------------------------------------------- */

static void parse(int argc, char **argv, bench *b)
{
    struct {
        const char *name;
        int64_t *value;
    } numbers[] = {{"--heads", &b->heads}, {"--kv-heads", &b->kv_heads}, {"--head-dim", &b->head_dim}, {"--hidden", &b->hidden}, {"--ffn", &b->ffn},
                   {"--experts", &b->experts}, {"--top-k", &b->top_k}};

    for (int i = 2; i + 1 < argc; i += 2) {
        bool known = false;

        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
            if (strcmp(argv[i], numbers[n].name) == 0) {
                *numbers[n].value = atoll(argv[i + 1]);
                known = true;
            }
        if (strcmp(argv[i], "--tokens") == 0)
            b->tokens = argv[i + 1];
        else if (strcmp(argv[i], "--cp-kind") == 0 || strcmp(argv[i], "--dispatch") == 0)
            b->variant = argv[i + 1];
        else if (strcmp(argv[i], "--seconds") == 0)
            b->seconds = atof(argv[i + 1]);
        else if (!known)
            refuse(argv[i]);
    }
}

static void open_ranks(bench *b)
{
    bool attention = strcmp(b->layer, "attention") == 0;
    loom_layout layout;

    must(loom_launch_from_env(&b->launch));
    must(loom_store_open(&b->launch, 60, &b->store));
    must(loom_device_open(LOOM_CPU, &(loom_device_config){.index = b->launch.local_rank}, &b->device));
    must(loom_comm_open_world(&b->launch, b->store, b->device, NULL, &b->world));
    loom_layout_default(NULL, &layout);
    layout.seq = 2 * b->launch.size;
    layout.global_batch = b->launch.size;
    layout.cp = attention ? b->launch.size : 1;
    layout.dp = attention ? 1 : b->launch.size;
    layout.ep = attention ? 1 : b->launch.size;
    must(loom_layout_check(&layout, NULL, b->launch.size));
    must(loom_mesh_open(b->world, &layout, NULL, &b->mesh));
    must(loom_kernels_open(b->device, NULL, &b->kernels));
    must(loom_stream_open(b->device, LOOM_STREAM_INLINE, "bench", &b->stream));
}

static void close_ranks(bench *b)
{
    loom_stream_close(b->stream);
    loom_kernels_close(b->kernels);
    loom_mesh_close(b->mesh);
    loom_comm_free(b->world);
    loom_device_close(b->device);
    loom_store_close(b->store);
}

int main(int argc, char **argv)
{
    bench b = {.layer = argc > 1 ? argv[1] : "", .tokens = "1024,4096", .heads = 8, .kv_heads = 8, .head_dim = 64, .hidden = 512, .ffn = 1024,
               .experts = 8, .top_k = 2, .seconds = 2};

    if (strcmp(b.layer, "attention") != 0 && strcmp(b.layer, "experts") != 0) {
        fprintf(stderr, "usage: layers attention|experts [--tokens N,…] [--cp-kind KIND] [--dispatch KIND] …: see the top of bench/layers.c\n");
        return 2;
    }
    b.variant = strcmp(b.layer, "attention") == 0 ? "ring" : "alltoall";
    parse(argc, argv, &b);
    loom_launch_prepare_process();
    open_ranks(&b);
    for (const char *at = b.tokens; *at; at += strcspn(at, ","), at += *at == ',')
        run_size(&b, atoll(at));
    close_ranks(&b);
    return 0;
}
