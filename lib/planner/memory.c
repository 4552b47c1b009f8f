/* Memory of one rank of a stage, itemised: state, activations in flight, loss, transients, buffers. */
#include "planner/cost.h"

#include <math.h>

typedef struct measure {
    const loom_job *job;
    const loom_model *model;
    const loom_degrees *degrees;
    double tokens; /* of a rank, times half the bytes of an element: formulas below say 2 for an element */
    double outer;  /* the same outside tensor-parallel regions */
} measure;

static measure measure_of(const loom_job *job, const loom_degrees *g)
{
    measure m = {job, &job->model, g, (double)g->micro_batch * job->seq / g->cp * job->element / 2, 0};
    m.outer = g->sequence_parallel ? m.tokens / g->tp : m.tokens;
    return m;
}

double loom_in_flight(const loom_degrees *g, int stage, int64_t micro_batches)
{
    double m = (double)micro_batches, p = g->pp, v = g->vpp;

    if (g->pp == 1)
        return 1;
    switch (g->pipeline) {
    case LOOM_PIPE_GPIPE:
        return m;
    case LOOM_PIPE_INTERLEAVED: /* warm-up forwards of this stage, in chunks, and the one at work */
        return loom_smaller(m, (2 * (p - stage - 1) + (v - 1) * p + 1) / v);
    case LOOM_PIPE_ZB_H2:
        return loom_smaller(m, 2 * (p - stage));
    case LOOM_PIPE_ZB_H1: /* a late stage puts its weight gradients off, and what they need lives until they are made */
    case LOOM_PIPE_ZB_V:
        return loom_smaller(m, p);
    case LOOM_PIPE_DUAL:
        return loom_smaller(m, p + 1);
    default:
        return loom_smaller(m, p - stage);
    }
}

/* --- activations of a layer, bytes of one micro-batch --------------------------------------------------------------------- */

static double kv_heads(const measure *m)
{
    double heads = (double)m->model->kv_heads / m->degrees->tp;
    return heads < 1 ? 1 : heads;
}

static double gates(const measure *m)
{
    return loom_model_mlp_matrices(m->model) - 1;
}

/* Bytes of a kept element that is read by a GEMM again, and of the inputs of an activation function. */
static double input_bytes(const measure *m)
{
    return loom_soft(m->job, LOOM_SOFT_NARROW_KEPT) > 0 && m->job->bits == 8 ? 1 : 2;
}

static double latent_bytes(const measure *m, int repeat)
{
    const loom_mla *mla = &m->model->mla;
    double heads = (double)m->model->heads / m->degrees->tp;
    double ranks = m->outer * (4.0 * mla->q_rank + 4.0 * mla->kv_rank + 2.0 * mla->rope_dim);
    double wide = 2 * m->tokens * heads * (2.0 * (mla->nope_dim + mla->rope_dim) + mla->value_dim);

    return ranks + (repeat & LOOM_REPEAT_LATENT ? 0 : wide);
}

static double core_bytes(const measure *m, int repeat)
{
    double heads = (double)m->model->heads / m->degrees->tp;

    if (repeat & LOOM_REPEAT_CORE)
        return 0;
    if (loom_soft(m->job, LOOM_SOFT_FLASH) > 0)
        return 4 * m->tokens * heads; /* log-sum-exp */
    return (loom_soft(m->job, LOOM_SOFT_DROPOUT) > 0 ? 5 : 2) * m->tokens * heads * m->job->seq;
}

static double attention_bytes(const measure *m, int repeat)
{
    const loom_model *model = m->model;
    double heads = (double)model->heads / m->degrees->tp;
    double out = model->mla.kv_rank ? (double)model->mla.value_dim : (double)model->head_dim;
    double qkv = model->mla.kv_rank ? latent_bytes(m, repeat) : 2 * m->tokens * (heads + 2 * kv_heads(m)) * model->head_dim;

    if (repeat & LOOM_REPEAT_HALF)
        qkv /= 2;
    return qkv + core_bytes(m, repeat) + input_bytes(m) * m->tokens * heads * out;
}

static double mlp_bytes(const measure *m, double tokens, double width, int repeat)
{
    double up = input_bytes(m) * gates(m) * tokens * width, activated = input_bytes(m) * tokens * width;

    if (repeat & LOOM_REPEAT_MLP)
        return 0;
    return up * (repeat & LOOM_REPEAT_HALF ? 0.5 : 1) + (repeat & LOOM_REPEAT_ACT ? 0 : activated);
}

static double experts_bytes(const measure *m, int repeat)
{
    const loom_moe *moe = &m->model->moe;
    const loom_degrees *g = m->degrees;
    double rows = m->tokens / g->tp * moe->top_k * g->etp;
    double copies =
        input_bytes(m) < 2 ? 1 : 4; /* what goes in, and what comes out to be weighed: unless it is weighed before the last GEMM */
    double routed = copies * rows * m->model->hidden + 8 * m->outer * moe->experts;
    double shared = moe->shared ? mlp_bytes(m, m->tokens, (double)moe->shared * moe->shared_ffn / g->tp, repeat) : 0;

    return routed + mlp_bytes(m, rows, (double)moe->ffn / g->etp, repeat & ~LOOM_REPEAT_MLP) + shared;
}

static double layer_bytes(const measure *m, loom_layer_kind kind, int repeat)
{
    double h = m->model->hidden;
    double norms = (repeat & LOOM_REPEAT_NORM ? 4 : 4 + 2 * input_bytes(m)) * m->outer * h; /* inputs of two norms, and what they give */
    double masks = loom_soft(m->job, LOOM_SOFT_DROPOUT) > 0 ? 2 * m->outer * h : 0;
    double body =
        kind == LOOM_LAYER_DENSE ? mlp_bytes(m, m->tokens, (double)m->model->ffn / m->degrees->tp, repeat) : experts_bytes(m, repeat);

    return norms + masks + attention_bytes(m, repeat) + body;
}

static double kept_bytes(const measure *m, loom_layer_kind kind)
{
    if (m->degrees->recompute == LOOM_RECOMPUTE_FULL)
        return 2 * m->outer * m->model->hidden;
    return layer_bytes(m, kind, m->degrees->recompute == LOOM_RECOMPUTE_SELECTIVE ? m->job->repeat : 0);
}

/* Working set of the widest layer: gradients of its widest activation and, when it is recomputed, what it then keeps. */
static double transient_bytes(const measure *m, loom_layer_kind kind)
{
    double width = kind == LOOM_LAYER_DENSE ? m->tokens * m->model->ffn / m->degrees->tp
                                            : m->tokens / m->degrees->tp * m->model->moe.top_k * m->model->moe.ffn;
    double gradients = loom_soft(m->job, LOOM_SOFT_TRANSIENT) * (2 * gates(m) * width + 4 * m->outer * m->model->hidden);
    double again = m->degrees->recompute == LOOM_RECOMPUTE_NONE ? 0 : layer_bytes(m, kind, 0) - kept_bytes(m, kind);

    return gradients + loom_larger(0, again);
}

/* --- state ---------------------------------------------------------------------------------------------------------------------- */

/* Ranks over which optimizer state (and from stage 2 on gradients, from 3 on weights) is spread. */
typedef struct shares {
    double dense, experts;
} shares;

static shares shares_of(const loom_degrees *g)
{
    double all = (double)g->dp * g->cp, expert = (double)g->tp * g->cp * g->dp / (g->ep * g->etp);

    if (g->shard_group > 0 && g->shard_group < all)
        all = g->shard_group;
    return (shares){all, loom_larger(1, expert)};
}

static double spread(const loom_weights *w, double bytes, bool sharded, shares s)
{
    return bytes * (w->dense / (sharded ? s.dense : 1) + w->experts / (sharded ? s.experts : 1));
}

static void add_state(loom_memory *memory, const loom_job *job, const loom_degrees *g, const loom_weights *w)
{
    shares s = shares_of(g);

    memory->parameters = w->dense + w->experts;
    memory->part[LOOM_MEMORY_WEIGHTS] = spread(w, loom_soft(job, LOOM_SOFT_WEIGHT_STORE), g->zero >= 3, s);
    memory->part[LOOM_MEMORY_GRADIENTS] = spread(w, loom_soft(job, LOOM_SOFT_GRADIENT_STORE), g->zero >= 2, s);
    memory->part[LOOM_MEMORY_OPTIMIZER] = spread(w, loom_soft(job, LOOM_SOFT_OPTIMIZER_STORE), g->zero >= 1, s);
}

/* --- the stage --------------------------------------------------------------------------------------------------------------------- */

loom_memory_table loom_memory_table_of(const loom_job *job, const loom_degrees *g)
{
    measure m = measure_of(job, g);
    loom_memory_table t = {0};

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        if (kind == LOOM_LAYER_EXPERTS && job->model.moe.experts == 0)
            continue;
        t.kept[kind] = kept_bytes(&m, kind);
        t.transient[kind] = transient_bytes(&m, kind);
        t.weights[kind] = loom_layer_weights(&job->model, g, kind);
    }
    t.embedding = loom_embedding_weights(&job->model, g);
    t.head = loom_head_weights(&job->model, g);
    t.embedding_kept = 8 * m.tokens + (loom_soft(job, LOOM_SOFT_DROPOUT) > 0 ? m.outer * job->model.hidden : 0);
    t.logits = m.tokens * job->model.vocab / g->tp;
    t.norm_kept = 4 * m.outer * job->model.hidden;
    return t;
}

/* Peak of the last stage while the loss is formed: logits, their gradient, the working set of the softmax. */
static void add_loss(loom_memory *memory, const loom_job *job, const loom_memory_table *t)
{
    double bytes = loom_soft(job, LOOM_SOFT_LOGIT_BYTES);

    memory->part[LOOM_MEMORY_LOGITS] = loom_smaller(bytes, 4) * t->logits;
    memory->part[LOOM_MEMORY_LOSS] = loom_larger(0, bytes - 4) * t->logits;
    memory->part[LOOM_MEMORY_ACTIVATIONS] += t->norm_kept;
}

static void add_buffers(loom_memory *memory, const loom_job *job, const loom_degrees *g, double widest_layer, double widest_dense,
                        double head)
{
    double tokens = (double)g->micro_batch * job->seq / g->cp;

    if (g->sequence_parallel && g->tp > 1) /* two gathered inputs */
        memory->part[LOOM_MEMORY_BUFFERS] += 2 * job->element * tokens * job->model.hidden;
    if (g->zero == 3) /* two layers gathered, one whole gradient */
        memory->part[LOOM_MEMORY_BUFFERS] +=
            (2 * loom_soft(job, LOOM_SOFT_GATHER_BYTES) + loom_soft(job, LOOM_SOFT_GRADIENT_BYTES)) * widest_layer;
    if (g->zero == 2) /* a layer's whole gradient, until it is scattered */
        memory->part[LOOM_MEMORY_BUFFERS] += loom_soft(job, LOOM_SOFT_GRADIENT_BYTES) * widest_layer;
    memory->part[LOOM_MEMORY_WORKSPACE] +=
        2 * (loom_soft(job, LOOM_SOFT_WEIGHT_SCRATCH) * widest_dense + loom_soft(job, LOOM_SOFT_HEAD_SCRATCH) * head);
}

static void total_up(loom_memory *memory, const loom_job *job)
{
    /* the loss and the widest layer's gradients are never alive together */
    double loss = memory->part[LOOM_MEMORY_LOGITS] + memory->part[LOOM_MEMORY_LOSS];
    double *transient = &memory->part[LOOM_MEMORY_TRANSIENT];

    *transient = loom_larger(0, *transient - loss);
    for (int i = 0; i < LOOM_MEMORY_SLACK; i++)
        memory->allocated += memory->part[i];
    memory->part[LOOM_MEMORY_SLACK] = loom_soft(job, LOOM_SOFT_FRAGMENTS) * memory->allocated + loom_soft(job, LOOM_SOFT_CONTEXT_BYTES);
    memory->total = memory->allocated + memory->part[LOOM_MEMORY_SLACK];
}

loom_memory loom_memory_of(const loom_job *job, const loom_degrees *g, const loom_memory_table *t, const loom_stage_load *load,
                           double in_flight)
{
    loom_memory memory = {.in_flight = in_flight};
    loom_weights weights = {0, 0};
    double kept = 0, widest = 0, dense = 0;

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        int n = load->layers[kind];
        if (n == 0)
            continue;
        kept += n * t->kept[kind];
        weights.dense += n * t->weights[kind].dense;
        weights.experts += n * t->weights[kind].experts;
        widest = loom_larger(widest, t->weights[kind].dense + t->weights[kind].experts);
        dense = loom_larger(dense, t->weights[kind].dense);
        memory.part[LOOM_MEMORY_TRANSIENT] = loom_larger(memory.part[LOOM_MEMORY_TRANSIENT], t->transient[kind]);
        memory.layers += n;
    }
    if (load->first)
        weights.dense += t->embedding;
    if (load->last && !(load->first && job->model.tied_embeddings))
        weights.dense += t->head;
    memory.part[LOOM_MEMORY_ACTIVATIONS] = (kept + (load->first ? t->embedding_kept : 0)) * in_flight;
    add_state(&memory, job, g, &weights);
    if (load->last)
        add_loss(&memory, job, t);
    add_buffers(&memory, job, g, widest, dense, load->last ? t->head : 0);
    total_up(&memory, job);
    return memory;
}

/* The loss and the widest layer, which total_up() weighs against each other, do not depend on the number of layers. */
loom_memory_line loom_memory_line_of(const loom_job *job, const loom_degrees *g, const loom_memory_table *t, loom_layer_kind kind,
                                     bool first, bool last)
{
    double with_slack = 1 + loom_soft(job, LOOM_SOFT_FRAGMENTS);
    loom_stage_load load = {{0}, first, last};
    loom_memory state = {0};
    loom_memory_line line;

    load.layers[kind] = 1;
    add_state(&state, job, g, &t->weights[kind]);
    line.layer = with_slack * (state.part[LOOM_MEMORY_WEIGHTS] + state.part[LOOM_MEMORY_GRADIENTS] + state.part[LOOM_MEMORY_OPTIMIZER]);
    line.whole = loom_memory_of(job, g, t, &load, 0).total - line.layer;
    line.kept = with_slack * t->kept[kind];
    line.ends = first ? with_slack * t->embedding_kept : 0;
    return line;
}

double loom_memory_total(const loom_job *job, const loom_degrees *g, const loom_memory_table *t, const loom_stage_load *load,
                         double in_flight)
{
    return loom_memory_of(job, g, t, load, in_flight).total;
}

loom_memory loom_stage_memory_of(const loom_job *job, const loom_degrees *g, const int *chunk_layers, int stage)
{
    loom_memory_table table = loom_memory_table_of(job, g);
    int layer = 0, last_chunk = g->pp * g->vpp - 1;
    loom_stage_load load = {.first = stage == 0, .last = stage == loom_degrees_stage_of_chunk(g, last_chunk)};
    int64_t micro_batches = loom_micro_batches_of(job, g);

    for (int chunk = 0; chunk <= last_chunk; layer += chunk_layers[chunk++])
        for (int i = layer; loom_degrees_stage_of_chunk(g, chunk) == stage && i < layer + chunk_layers[chunk]; i++)
            load.layers[loom_layer_kind_of(&job->model, i)]++;
    return loom_memory_of(job, g, &table, &load, loom_in_flight(g, stage, micro_batches));
}
