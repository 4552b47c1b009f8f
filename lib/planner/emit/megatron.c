/* Layouts in Megatron's words, whatever the spelling. */
#include "planner/emit/megatron.h"

#include <stdio.h>
#include <string.h>

enum { STAGES_BYTES = 16 * 1024 };

/* --- out ---------------------------------------------------------------------------------------------------------------- */

/* "Ett|ttt|t*4L": E the embedding, t a layer, L the loss; stages of all chunks in model order. */
static void write_stages(const loom_layout *l, char *stages, size_t bytes)
{
    size_t used = 0;

    for (int c = 0; c < l->n_chunks && used < bytes; c++) {
        int64_t n = l->chunk_layers[c];
        used += (size_t)snprintf(stages + used, bytes - used, "%s%s", c ? "|" : "", c == 0 ? "E" : "");
        if (n > 0 && used < bytes)
            used += (size_t)snprintf(stages + used, bytes - used, n > 1 ? "t*%lld" : "t", (long long)n);
        if (c == l->n_chunks - 1 && used < bytes)
            used += (size_t)snprintf(stages + used, bytes - used, "L");
    }
}

static void say_schedule(loom_emission *e, loom_megatron *m)
{
    const loom_layout *l = e->layout;

    if (l->schedule != LOOM_SCHEDULE_1F1B && l->schedule != LOOM_SCHEDULE_INTERLEAVED && l->pp > 1)
        loom_emit_cannot(e, "schedule=%s: only 1f1b and interleaved run", loom_schedule_kind_name(l->schedule));
    if (l->vpp > 1 && l->pp == 1)
        loom_emit_cannot(e, "vpp=%d with pp=1: interleaving wants pp 2 or more", l->vpp);
    m->vpp = l->vpp > 1 && e->even ? l->vpp : 0; /* the stages' text has it otherwise */
}

static void say_sharding(const loom_layout *l, loom_megatron *m)
{
    m->distributed_optimizer = l->zero == 1;
    m->fsdp = l->zero >= 2;
    m->sharding = l->zero == 2 ? "optim_grads" : l->zero == 3 ? "optim_grads_params" : NULL;
}

/* The most ranks of a cp group that can split the heads further, below cp itself. */
static int inner_cp(const loom_layout *l, const loom_model *m)
{
    for (int u = l->cp - 1; u > 1; u--) {
        int64_t ways = (int64_t)u * l->tp;
        if (l->cp % u == 0 && m->heads % ways == 0 && (m->kv_heads % ways == 0 || ways % m->kv_heads == 0))
            return u;
    }
    return 0;
}

static void say_context(const loom_layout *l, const loom_model *model, loom_megatron *m)
{
    static const char *const words[] = {[LOOM_CP_RING] = "p2p", [LOOM_CP_ALLGATHER] = "allgather", [LOOM_CP_ULYSSES] = "a2a", [LOOM_CP_HYBRID] = "a2a+p2p"};

    m->cp_comm = l->cp > 1 ? words[l->cp_kind] : NULL;
    m->inner_cp = l->cp > 1 && l->cp_kind == LOOM_CP_HYBRID ? inner_cp(l, model) : 0;
}

static void say_order(loom_emission *e, loom_megatron *m)
{
    const loom_axis *order = e->layout->order;

    m->pp_before_dp = order[0] == LOOM_AXIS_TP && order[1] == LOOM_AXIS_CP && order[2] == LOOM_AXIS_PP && order[3] == LOOM_AXIS_DP;
    if (!m->pp_before_dp && !loom_emit_usual_order(e->layout))
        loom_emit_cannot(e, "order=[%s, %s, %s, %s]: ranks are numbered [tp, cp, dp, pp] or [tp, cp, pp, dp]", loom_axis_name(order[0]), loom_axis_name(order[1]),
                         loom_axis_name(order[2]), loom_axis_name(order[3]));
}

void loom_megatron_of_layout(loom_emission *e, loom_megatron *m, char *stages, size_t bytes)
{
    const loom_layout *l = e->layout;

    *m = (loom_megatron){.layers = e->model->layers, .tp = l->tp, .pp = l->pp, .cp = l->cp, .ep = l->ep, .first_layers = -1, .last_layers = -1,
                         .micro_batch = l->micro_batch, .global_batch = l->global_batch, .seq = l->seq};
    m->etp = e->model->moe.experts > 0 ? l->etp : 0;
    m->sequence_parallel = l->sequence_parallel && l->tp > 1; /* dropped without a word at tp 1 */
    if (!e->even) {
        write_stages(l, stages, bytes);
        m->stages = stages;
    }
    say_schedule(e, m);
    say_sharding(l, m);
    say_context(l, e->model, m);
    say_order(e, m);
    m->recompute = l->recompute == LOOM_RECOMPUTE_FULL ? "full" : l->recompute == LOOM_RECOMPUTE_SELECTIVE ? "selective" : NULL;
    m->method = l->recompute == LOOM_RECOMPUTE_FULL ? "uniform" : NULL;
}

static void add_model_flags(loom_text *out, const loom_model *m)
{
    loom_text_add(out, "--num-layers %lld\n--hidden-size %lld\n--ffn-hidden-size %lld\n--num-attention-heads %lld\n", (long long)m->layers, (long long)m->hidden,
                  (long long)m->ffn, (long long)m->heads);
    if (m->kv_heads != m->heads && m->kv_heads > 0)
        loom_text_add(out, "--group-query-attention\n--num-query-groups %lld\n", (long long)m->kv_heads);
    if (m->head_dim * m->heads != m->hidden)
        loom_text_add(out, "--kv-channels %lld\n", (long long)m->head_dim);
    if (m->mlp == LOOM_SWIGLU)
        loom_text_add(out, "--swiglu\n");
    if (m->norm == LOOM_RMSNORM)
        loom_text_add(out, "--normalization RMSNorm\n");
    if (m->positions == LOOM_ROPE)
        loom_text_add(out, "--position-embedding-type rope\n");
    if (!m->tied_embeddings)
        loom_text_add(out, "--untie-embeddings-and-output-weights\n");
    if (!m->attention_bias && !m->output_bias && !m->mlp_bias)
        loom_text_add(out, "--disable-bias-linear\n");
    if (m->moe.experts > 0)
        loom_text_add(out, "--num-experts %lld\n--moe-router-topk %lld\n--moe-ffn-hidden-size %lld\n--moe-token-dispatcher-type alltoall\n",
                      (long long)m->moe.experts, (long long)m->moe.top_k, (long long)m->moe.ffn);
}

static void add_sharding_flags(loom_text *out, const loom_megatron *m)
{
    if (m->distributed_optimizer)
        loom_text_add(out, "--use-distributed-optimizer\n--overlap-grad-reduce\n--overlap-param-gather\n");
    if (m->fsdp)
        loom_text_add(out, "--use-megatron-fsdp\n--data-parallel-sharding-strategy %s\n--ckpt-format fsdp_dtensor\n", m->sharding);
}

static void add_pipeline_flags(loom_text *out, const loom_megatron *m)
{
    loom_text_add(out, "--pipeline-model-parallel-size %d\n", m->pp);
    if (m->stages)
        loom_text_add(out, "--pipeline-model-parallel-layout '%s'\n", m->stages);
    if (m->vpp > 1)
        loom_text_add(out, "--num-virtual-stages-per-pipeline-rank %d\n", m->vpp);
}

static void add_context_flags(loom_text *out, const loom_megatron *m)
{
    loom_text_add(out, "--context-parallel-size %d\n", m->cp);
    if (m->cp_comm)
        loom_text_add(out, "--cp-comm-type %s\n", m->cp_comm);
    if (m->inner_cp > 0)
        loom_text_add(out, "--hierarchical-context-parallel-sizes %d %d\n", m->inner_cp, m->cp / m->inner_cp);
}

/* One flag a line, quoted for a shell or xargs. Comments would reach the parser, so there are none. */
void loom_emit_megatron(loom_emission *e)
{
    char stages[STAGES_BYTES];
    loom_megatron m;
    loom_text *out = &e->out;

    loom_megatron_of_layout(e, &m, stages, sizeof stages);
    add_model_flags(out, e->model);
    loom_text_add(out, "--tensor-model-parallel-size %d\n%s", m.tp, m.sequence_parallel ? "--sequence-parallel\n" : "");
    add_pipeline_flags(out, &m);
    add_context_flags(out, &m);
    if (m.etp > 0)
        loom_text_add(out, "--expert-model-parallel-size %d\n--expert-tensor-parallel-size %d\n", m.ep, m.etp);
    if (m.pp_before_dp)
        loom_text_add(out, "--use-tp-pp-dp-mapping\n");
    loom_text_add(out, "--micro-batch-size %lld\n--global-batch-size %lld\n--seq-length %lld\n--max-position-embeddings %lld\n", (long long)m.micro_batch,
                  (long long)m.global_batch, (long long)m.seq, (long long)(e->model->seq > m.seq ? e->model->seq : m.seq));
    add_sharding_flags(out, &m);
    if (m.recompute)
        loom_text_add(out, "--recompute-granularity %s\n", m.recompute);
    if (m.method)
        loom_text_add(out, "--recompute-method %s\n--recompute-num-layers 1\n", m.method);
    else if (m.recompute)
        loom_text_add(out, "--recompute-modules core_attn\n");
    loom_text_add(out, "--bf16\n");
}

static void add_bridge_model(loom_text *out, const loom_megatron *m)
{
    loom_text_add(out, "model:\n  num_layers: %lld\n  tensor_model_parallel_size: %d\n  sequence_parallel: %s\n  pipeline_model_parallel_size: %d\n", (long long)m->layers, m->tp,
                  m->sequence_parallel ? "true" : "false", m->pp);
    if (m->vpp > 1)
        loom_text_add(out, "  virtual_pipeline_model_parallel_size: %d\n", m->vpp);
    if (m->stages)
        loom_text_add(out, "  pipeline_model_parallel_layout: \"%s\"\n", m->stages);
    loom_text_add(out, "  context_parallel_size: %d\n", m->cp);
    if (m->cp_comm)
        loom_text_add(out, "  cp_comm_type: %s\n", m->cp_comm);
    if (m->inner_cp > 0)
        loom_text_add(out, "  hierarchical_context_parallel_sizes: [%d, %d]\n", m->inner_cp, m->cp / m->inner_cp);
    if (m->etp > 0)
        loom_text_add(out, "  expert_model_parallel_size: %d\n  expert_tensor_parallel_size: %d\n", m->ep, m->etp);
    if (m->recompute)
        loom_text_add(out, "  recompute_granularity: %s\n", m->recompute);
    if (m->method)
        loom_text_add(out, "  recompute_method: %s\n  recompute_num_layers: 1\n", m->method);
    else if (m->recompute)
        loom_text_add(out, "  recompute_modules: [core_attn]\n");
    loom_text_add(out, "  seq_length: %lld\n", (long long)m->seq);
}

void loom_emit_nemo(loom_emission *e)
{
    char stages[STAGES_BYTES];
    loom_megatron m;
    loom_text *out = &e->out;

    loom_megatron_of_layout(e, &m, stages, sizeof stages);
    if (m.fsdp && m.pp_before_dp)
        loom_emit_cannot(e, "order with pp before dp at zero=%d: its FSDP does not take use_tp_pp_dp_mapping", e->layout->zero);
    bool distributed = m.distributed_optimizer || m.fsdp; /* its FSDP insists on it */
    loom_text_add(out, "# %s, for %d GPUs\n", loom_dialect_version(LOOM_DIALECT_NEMO), e->world);
    add_bridge_model(out, &m);
    loom_text_add(out, "dataset:\n  seq_length: %lld\ntrain:\n  micro_batch_size: %lld\n  global_batch_size: %lld\n", (long long)m.seq, (long long)m.micro_batch,
                  (long long)m.global_batch);
    loom_text_add(out, "ddp:\n  use_distributed_optimizer: %s\n", distributed ? "true" : "false");
    if (m.fsdp)
        loom_text_add(out, "  data_parallel_sharding_strategy: %s\n", m.sharding);
    loom_text_add(out, "optimizer:\n  use_distributed_optimizer: %s\n", distributed ? "true" : "false");
    loom_text_add(out, "dist:\n  use_megatron_fsdp: %s\n  use_tp_pp_dp_mapping: %s\nmixed_precision: bf16_mixed\n", m.fsdp ? "true" : "false", m.pp_before_dp ? "true" : "false");
}

void loom_emit_verl(loom_emission *e)
{
    static const char prefix[] = "actor_rollout_ref.actor.megatron";
    char stages[STAGES_BYTES];
    loom_megatron m;
    loom_text *out = &e->out;

    loom_megatron_of_layout(e, &m, stages, sizeof stages);
    loom_emit_even_only(e, "a number of layers that pp * vpp divides has");
    loom_emit_usual_order_only(e);
    if (e->layout->zero > 1)
        loom_emit_cannot(e, "zero=%d: use_distributed_optimizer is zero 1", e->layout->zero);
    if (m.cp_comm && e->layout->cp_kind != LOOM_CP_RING)
        loom_emit_cannot(e, "cp_kind=%s: only the ring, Megatron's default, has a key", loom_cp_kind_name(e->layout->cp_kind));
    loom_text_add(out, "%s.tensor_model_parallel_size=%d\n%s.sequence_parallel=%s\n%s.pipeline_model_parallel_size=%d\n", prefix, m.tp, prefix, m.sequence_parallel ? "true" : "false",
                  prefix, m.pp);
    if (m.vpp > 1)
        loom_text_add(out, "%s.virtual_pipeline_model_parallel_size=%d\n", prefix, m.vpp);
    loom_text_add(out, "%s.context_parallel_size=%d\n", prefix, m.cp);
    if (m.etp > 0)
        loom_text_add(out, "%s.expert_model_parallel_size=%d\n%s.expert_tensor_parallel_size=%d\n", prefix, m.ep, prefix, m.etp);
    loom_text_add(out, "%s.use_distributed_optimizer=%s\n", prefix, m.distributed_optimizer ? "true" : "false");
    if (m.recompute)
        loom_text_add(out, "+%s.override_transformer_config.recompute_granularity=%s\n", prefix, m.recompute);
    if (m.method)
        loom_text_add(out, "+%s.override_transformer_config.recompute_method=%s\n+%s.override_transformer_config.recompute_num_layers=1\n", prefix, m.method, prefix);
    loom_text_add(out, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=%lld\n", (long long)m.micro_batch);
}

/* --- in ------------------------------------------------------------------------------------------------------------------ */

/* One stage of the text: counts its layers. Elements are E t m L or a group in parentheses, each maybe with *n. */
typedef struct stage_reader {
    const char *at;
    int64_t layers[LOOM_MAX_STAGES];
    int stages;
    bool bad;
} stage_reader;

static int64_t read_times(stage_reader *r)
{
    int64_t n = 0;

    if (*r->at != '*')
        return 1;
    for (r->at++; *r->at >= '0' && *r->at <= '9' && n < 10000; r->at++)
        n = 10 * n + (*r->at - '0');
    r->bad |= n == 0;
    return n;
}

static void end_stage(stage_reader *r)
{
    r->bad |= r->stages + 1 >= LOOM_MAX_STAGES;
    if (!r->bad)
        r->layers[++r->stages] = 0;
}

static void read_elements(stage_reader *r, int depth);

static void read_group(stage_reader *r, int depth)
{
    const char *begin = ++r->at, *after;

    read_elements(r, depth + 1);
    r->bad |= *r->at != ')';
    if (r->bad)
        return;
    r->at++;
    int64_t times = read_times(r);
    after = r->at;
    for (int64_t i = 1; i < times && !r->bad; i++) {
        r->at = begin;
        read_elements(r, depth + 1);
    }
    r->at = after;
}

static void read_elements(stage_reader *r, int depth)
{
    r->bad |= depth > 4;
    while (!r->bad && *r->at && *r->at != ')') {
        char c = *r->at;
        if (c == '(') {
            read_group(r, depth);
        } else if (c == '|') {
            r->at++;
            int64_t times = read_times(r);
            for (int64_t i = 0; i < times && !r->bad; i++)
                end_stage(r);
        } else if (c == 't') {
            r->at++;
            r->layers[r->stages] += read_times(r);
        } else if (c == 'E' || c == 'L' || c == 'm' || c == ',') {
            r->at++;
            read_times(r);
        } else {
            r->bad = true;
        }
    }
}

static loom_status take_stages(loom_importing *in, const loom_megatron *m)
{
    stage_reader r = {.at = m->stages};
    loom_layout *l = in->layout;

    read_elements(&r, 0);
    if (r.bad || *r.at)
        return loom_fail(LOOM_E_INVALID, "%s: the pipeline layout \"%s\" is not understood; it looks like \"Et*3|(tt|)*29,m|L\"", in->source, m->stages);
    r.stages++;
    if (m->pp < 1 || r.stages % m->pp != 0)
        return loom_fail(LOOM_E_INVALID, "%s: the pipeline layout has %d stages, which pp=%d does not divide", in->source, r.stages, m->pp);
    l->vpp = r.stages / m->pp;
    l->n_chunks = r.stages;
    memcpy(l->chunk_layers, r.layers, sizeof *r.layers * (size_t)r.stages);
    return LOOM_OK;
}

/* Layers of first and last stage are said; the others share the rest evenly. What counts embedding or loss as a layer has one less. */
static loom_status take_ends(loom_importing *in, const loom_megatron *m, int64_t layers)
{
    loom_layout *l = in->layout;
    int64_t total = layers + m->count_embedding + m->count_loss, first = m->first_layers, last = m->last_layers;
    int middle = m->pp - (first >= 0) - (last >= 0);
    int64_t rest = total - (first >= 0 ? first : 0) - (last >= 0 ? last : 0), each = middle > 0 ? rest / middle : 0;

    if (rest < 0 || (middle > 0 && rest % middle != 0) || (middle <= 0 && rest != 0))
        return loom_fail(LOOM_E_INVALID, "%s: %lld layers%s leave %lld for the %d stages between, which does not divide", in->source, (long long)layers,
                         total > layers ? " (embedding or loss counted)" : "", (long long)rest, middle);
    l->n_chunks = m->pp;
    for (int s = 0; s < m->pp; s++)
        l->chunk_layers[s] = s == 0 && first >= 0 ? first : s == m->pp - 1 && last >= 0 ? last : each;
    l->chunk_layers[0] -= m->count_embedding;
    l->chunk_layers[m->pp - 1] -= m->count_loss;
    return LOOM_OK;
}

static loom_status take_split(loom_importing *in, const loom_megatron *m)
{
    int64_t layers = m->layers > 0 ? m->layers : in->model ? in->model->layers : 0;
    loom_layout *l = in->layout;

    if (in->model && m->layers > 0 && m->layers != in->model->layers)
        return loom_fail(LOOM_E_INVALID, "%s: says %lld layers, the model has %lld", in->source, (long long)m->layers, (long long)in->model->layers);
    if ((m->stages != NULL) + (m->vpp > 1) + (m->layers_per_virtual > 0) > 1)
        return loom_fail(LOOM_E_INVALID, "%s: of virtual stages, layers of a virtual stage and a pipeline layout at most one can be said", in->source);
    l->vpp = m->vpp > 1 ? m->vpp : 1;
    l->n_chunks = 0;
    if (m->stages)
        return take_stages(in, m);
    bool ends = m->first_layers >= 0 || m->last_layers >= 0 || m->count_embedding || m->count_loss;
    if ((ends || m->layers_per_virtual > 0) && layers == 0)
        return loom_fail(LOOM_E_INVALID, "%s: how stages are split depends on the number of layers, which it does not say; name the model", in->source);
    if (m->layers_per_virtual > 0) {
        int64_t of_stage = layers / m->pp;
        if (layers % m->pp != 0 || of_stage % m->layers_per_virtual != 0)
            return loom_fail(LOOM_E_INVALID, "%s: %lld layers over pp=%d in virtual stages of %d do not divide", in->source, (long long)layers, m->pp, m->layers_per_virtual);
        l->vpp = (int)(of_stage / m->layers_per_virtual);
    }
    if (ends && m->pp > LOOM_MAX_STAGES)
        return loom_fail(LOOM_E_INVALID, "%s: pp=%d; %d is the most", in->source, m->pp, LOOM_MAX_STAGES);
    return ends ? take_ends(in, m, layers) : LOOM_OK;
}

static loom_status take_words(loom_importing *in, const loom_megatron *m)
{
    static const char *const comm[] = {"p2p", "allgather", "a2a", "a2a+p2p", NULL};
    static const char *const sharding[] = {"no_shard", "optim", "optim_grads", "optim_grads_params", NULL};
    loom_layout *l = in->layout;
    int word = 0;

    if (m->cp_comm) {
        while (comm[word] && strcmp(comm[word], m->cp_comm) != 0)
            word++;
        if (!comm[word])
            return loom_fail(LOOM_E_INVALID, "%s: cp comm type %s is not known; p2p, a2a, allgather and a2a+p2p are", in->source, m->cp_comm);
    }
    l->cp_kind = (loom_cp_kind)word;
    l->zero = m->distributed_optimizer ? 1 : 0;
    if (m->fsdp) {
        for (word = 0; m->sharding && sharding[word] && strcmp(sharding[word], m->sharding) != 0; word++)
            continue;
        if (!m->sharding)
            loom_import_note(in, "no data-parallel-sharding-strategy: its default is no_shard, zero 0");
        else if (!sharding[word])
            return loom_fail(LOOM_E_INVALID, "%s: sharding strategy %s is not known; no_shard, optim, optim_grads and optim_grads_params are", in->source, m->sharding);
        l->zero = m->sharding ? word : 0;
    }
    if (m->recompute && strcmp(m->recompute, "full") != 0 && strcmp(m->recompute, "selective") != 0)
        return loom_fail(LOOM_E_INVALID, "%s: recompute granularity %s is not known; full and selective are", in->source, m->recompute);
    l->recompute = !m->recompute ? LOOM_RECOMPUTE_NONE : *m->recompute == 'f' ? LOOM_RECOMPUTE_FULL : LOOM_RECOMPUTE_SELECTIVE;
    return LOOM_OK;
}

static void take_expert_degrees(loom_importing *in, const loom_megatron *m)
{
    loom_layout *l = in->layout;

    l->ep = m->ep;
    l->etp = m->etp > 0 ? m->etp : 1;
    if (m->etp == 0 && (m->ep > 1 || (in->model && in->model->moe.experts > 0))) {
        l->etp = m->tp;
        loom_import_note(in, "expert tensor parallel size is not said: Megatron takes tp, %d", m->tp);
    }
}

loom_status loom_megatron_to_layout(loom_importing *in, const loom_megatron *m)
{
    static const loom_axis usual[4] = {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}, other[4] = {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_PP, LOOM_AXIS_DP};
    loom_layout *l = in->layout;
    int64_t rest = (int64_t)m->tp * m->pp * m->cp;

    if (in->world < 1)
        return loom_fail(LOOM_E_INVALID, "%s: leaves dp open: the number of ranks is needed (--world N, or torchrun's --nnodes and --nproc-per-node)", in->source);
    if (in->world % rest != 0)
        return loom_fail(LOOM_E_INVALID, "%s: tp=%d x pp=%d x cp=%d = %lld does not divide %d ranks", in->source, m->tp, m->pp, m->cp, (long long)rest, in->world);
    l->tp = m->tp, l->pp = m->pp, l->cp = m->cp;
    l->dp = (int)(in->world / rest);
    take_expert_degrees(in, m);
    l->sequence_parallel = m->sequence_parallel && m->tp > 1;
    if (m->sequence_parallel && m->tp == 1)
        loom_import_note(in, "sequence parallelism at tp 1 is dropped, as Megatron does");
    memcpy(l->order, m->pp_before_dp ? other : usual, sizeof usual);
    l->micro_batch = m->micro_batch;
    l->global_batch = m->global_batch > 0 ? m->global_batch : m->micro_batch * l->dp;
    if (m->global_batch == 0)
        loom_import_note(in, "global batch size is not said: Megatron takes micro batch x dp, %lld", (long long)l->global_batch);
    l->seq = m->seq > 0 ? m->seq : l->seq;
    loom_status status = take_split(in, m);
    l->schedule = l->vpp > 1 ? LOOM_SCHEDULE_INTERLEAVED : LOOM_SCHEDULE_1F1B;
    return status < 0 ? status : take_words(in, m);
}
