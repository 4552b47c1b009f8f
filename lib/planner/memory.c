/* Memory of one rank of a stage, itemised: state, activations in flight, loss, transients, buffers. */
#include "planner/cost.h"

#include <math.h>

typedef struct measure {
    const loom_job *job;
    const loom_model *model;
    const loom_degrees *degrees;
    double tokens; /* of a rank */
    double outer;  /* tokens outside tensor-parallel regions */
} measure;

static measure measure_of(const loom_job *job, const loom_degrees *g)
{
    measure m = {job, &job->model, g, (double)g->micro_batch * job->seq / g->cp, 0};
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
        return fmin(m, (2 * (p - stage - 1) + (v - 1) * p + 1) / v);
    case LOOM_PIPE_ZB_H2:
        return fmin(m, 2 * (p - stage) - 1);
    case LOOM_PIPE_ZB_V:
        return fmin(m, p);
    case LOOM_PIPE_DUAL:
        return fmin(m, p + 1);
    default:
        return fmin(m, p - stage);
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
    return m->model->mlp == LOOM_SWIGLU ? 2 : 1;
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

    return qkv + core_bytes(m, repeat) + 2 * m->tokens * heads * out;
}

static double mlp_bytes(const measure *m, double tokens, double width, int repeat)
{
    double up = 2 * gates(m) * tokens * width, activated = 2 * tokens * width;

    if (repeat & LOOM_REPEAT_MLP)
        return 0;
    return up + (repeat & LOOM_REPEAT_ACT ? 0 : activated);
}

static double experts_bytes(const measure *m, int repeat)
{
    const loom_moe *moe = &m->model->moe;
    const loom_degrees *g = m->degrees;
    double rows = m->tokens / g->tp * moe->top_k * g->etp;
    double routed = 4 * rows * m->model->hidden + 8 * m->outer * moe->experts;
    double shared = moe->shared ? mlp_bytes(m, m->tokens, (double)moe->shared * moe->shared_ffn / g->tp, repeat) : 0;

    return routed + mlp_bytes(m, rows, (double)moe->ffn / g->etp, repeat & ~LOOM_REPEAT_MLP) + shared;
}

static double layer_bytes(const measure *m, loom_layer_kind kind, int repeat)
{
    double h = m->model->hidden;
    double norms = (repeat & LOOM_REPEAT_NORM ? 4 : 8) * m->outer * h; /* inputs of two norms, and what they give */
    double masks = loom_soft(m->job, LOOM_SOFT_DROPOUT) > 0 ? 2 * m->outer * h : 0;
    double body = kind == LOOM_LAYER_DENSE ? mlp_bytes(m, m->tokens, (double)m->model->ffn / m->degrees->tp, repeat) : experts_bytes(m, repeat);

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
    double width = kind == LOOM_LAYER_DENSE ? m->tokens * m->model->ffn / m->degrees->tp : m->tokens / m->degrees->tp * m->model->moe.top_k * m->model->moe.ffn;
    double gradients = 2 * gates(m) * width + 4 * m->outer * m->model->hidden;
    double again = m->degrees->recompute == LOOM_RECOMPUTE_NONE ? 0 : layer_bytes(m, kind, 0) - kept_bytes(m, kind);

    return gradients + fmax(0, again);
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
    return (shares){all, fmax(1, expert)};
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

static double gemm_weights(const measure *m, loom_layer_kind kind)
{
    loom_weights w = loom_layer_weights(m->model, m->degrees, kind);
    return w.dense + w.experts;
}

/* Peak of the last stage while the loss is formed: logits, their gradient, and what the final norm keeps. */
static void add_loss(loom_memory *memory, const measure *m)
{
    double logits = m->tokens * m->model->vocab / m->degrees->tp;
    double bytes = loom_soft(m->job, LOOM_SOFT_LOGIT_BYTES);

    memory->part[LOOM_MEMORY_LOGITS] = fmin(bytes, 4) * logits;
    memory->part[LOOM_MEMORY_LOSS] = fmax(0, bytes - 4) * logits;
    memory->part[LOOM_MEMORY_ACTIVATIONS] += 4 * m->outer * m->model->hidden;
}

static void add_buffers(loom_memory *memory, const measure *m, double widest_layer, double head, bool last)
{
    double scratch = loom_soft(m->job, LOOM_SOFT_WEIGHT_SCRATCH);

    if (m->degrees->sequence_parallel && m->degrees->tp > 1)
        memory->part[LOOM_MEMORY_BUFFERS] += 2 * 2 * m->tokens * m->model->hidden;
    if (m->degrees->zero == 3) /* two layers gathered, one whole gradient */
        memory->part[LOOM_MEMORY_BUFFERS] += (2 * 2 + loom_soft(m->job, LOOM_SOFT_GRADIENT_BYTES)) * widest_layer;
    memory->part[LOOM_MEMORY_WORKSPACE] += scratch * 2 * (widest_layer + (last ? head : 0));
}

static void total_up(loom_memory *memory, const loom_job *job)
{
    /* the loss and the widest layer's gradients are never alive together */
    double loss = memory->part[LOOM_MEMORY_LOGITS] + memory->part[LOOM_MEMORY_LOSS];
    double *transient = &memory->part[LOOM_MEMORY_TRANSIENT];

    *transient = fmax(0, *transient - loss);
    for (int i = 0; i < LOOM_MEMORY_SLACK; i++)
        memory->allocated += memory->part[i];
    memory->part[LOOM_MEMORY_SLACK] = loom_soft(job, LOOM_SOFT_FRAGMENTS) * memory->allocated + loom_soft(job, LOOM_SOFT_CONTEXT_BYTES);
    memory->total = memory->allocated + memory->part[LOOM_MEMORY_SLACK];
}

loom_memory loom_stage_memory_of(const loom_job *job, const loom_degrees *g, const int *chunk_layers, int stage)
{
    measure m = measure_of(job, g);
    loom_memory memory = {0};
    loom_weights weights = {0, 0};
    double kept = 0, widest = 0, transient = 0;
    int layer = 0, last_chunk = g->pp * g->vpp - 1;
    int64_t micro_batches = job->global_batch / ((int64_t)g->micro_batch * g->dp);
    bool first = stage == 0, last = stage == loom_degrees_stage_of_chunk(g, last_chunk);

    for (int chunk = 0; chunk <= last_chunk; layer += chunk_layers[chunk++]) {
        if (loom_degrees_stage_of_chunk(g, chunk) != stage)
            continue;
        for (int i = layer; i < layer + chunk_layers[chunk]; i++) {
            loom_layer_kind kind = loom_layer_kind_of(&job->model, i);
            loom_weights w = loom_layer_weights(&job->model, g, kind);
            weights.dense += w.dense;
            weights.experts += w.experts;
            kept += kept_bytes(&m, kind);
            widest = fmax(widest, gemm_weights(&m, kind));
            transient = fmax(transient, transient_bytes(&m, kind));
            memory.layers++;
        }
    }
    if (first)
        weights.dense += loom_embedding_weights(&job->model, g);
    if (last && !(first && job->model.tied_embeddings))
        weights.dense += loom_head_weights(&job->model, g);
    memory.in_flight = loom_in_flight(g, stage, micro_batches);
    memory.part[LOOM_MEMORY_ACTIVATIONS] = kept * memory.in_flight;
    if (first) /* token numbers, and the embedding's dropout mask */
        memory.part[LOOM_MEMORY_ACTIVATIONS] += (8 * m.tokens + (loom_soft(job, LOOM_SOFT_DROPOUT) > 0 ? m.outer * job->model.hidden : 0)) * memory.in_flight;
    memory.part[LOOM_MEMORY_TRANSIENT] = transient;
    add_state(&memory, job, g, &weights);
    if (last)
        add_loss(&memory, &m);
    add_buffers(&memory, &m, widest, loom_head_weights(&job->model, g), last);
    total_up(&memory, job);
    return memory;
}
