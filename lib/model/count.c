/* Exact parameter counts and the flop of a step, from the shape alone. */
#include <rankloom/model.h>

int loom_model_mlp_matrices(const loom_model *model)
{
    return model->mlp == LOOM_SWIGLU || model->mlp == LOOM_GEGLU_TANH ? 3 : 2;
}

bool loom_model_layer_has_experts(const loom_model *model, int64_t layer)
{
    const loom_moe *moe = &model->moe;
    int64_t every = moe->every > 0 ? moe->every : 1;

    return moe->experts > 0 && layer >= moe->dense_layers && (layer - moe->dense_layers + 1) % every == 0;
}

bool loom_moe_has_balance(const loom_moe *moe)
{
    return moe->balance != LOOM_BALANCE_NONE && moe->balance_coefficient != 0;
}

int64_t loom_model_expert_layers(const loom_model *model)
{
    const loom_moe *moe = &model->moe;

    return moe->experts > 0 && model->layers > moe->dense_layers ? (model->layers - moe->dense_layers) / (moe->every > 0 ? moe->every : 1) : 0;
}

static int64_t norm_width(const loom_model *m)
{
    return m->norm == LOOM_LAYERNORM ? 2 * m->hidden : m->hidden;
}

/* Weights of the attention matrices: what a token multiplies with. */
static int64_t attention_matrices(const loom_model *m)
{
    int64_t h = m->hidden, a = m->heads;
    const loom_mla *l = &m->mla;

    if (l->kv_rank) {
        int64_t qk = l->nope_dim + l->rope_dim, query = l->q_rank ? h * l->q_rank + l->q_rank * a * qk : h * a * qk;
        return query + h * (l->kv_rank + l->rope_dim) + l->kv_rank * a * (l->nope_dim + l->value_dim) + a * l->value_dim * h;
    }
    return h * (a + 2 * m->kv_heads) * m->head_dim + a * m->head_dim * h;
}

static int64_t attention_biases(const loom_model *m)
{
    int64_t inputs = m->mla.kv_rank ? m->mla.q_rank + m->mla.kv_rank + m->mla.rope_dim : (m->heads + 2 * m->kv_heads) * m->head_dim;

    return (m->attention_bias ? inputs : 0) + (m->output_bias ? m->hidden : 0) + (m->attention_sinks ? m->heads : 0);
}

/* One MLP of width `ffn`, a bias on each matrix if the model has them. */
static int64_t mlp_parameters(const loom_model *m, int64_t ffn)
{
    int matrices = loom_model_mlp_matrices(m);

    return matrices * m->hidden * ffn + (m->mlp_bias ? (matrices - 1) * ffn + m->hidden : 0);
}

static int64_t norms_of_layer(const loom_model *m)
{
    return (m->post_norms ? 4 : 2) * norm_width(m) + (m->qk_norm ? 2 * m->head_dim : 0) + (m->mla.kv_rank ? m->mla.q_rank + m->mla.kv_rank : 0);
}

void loom_model_count(const loom_model *model, loom_param_counts *counts)
{
    const loom_moe *moe = &model->moe;
    int64_t expert_layers = loom_model_expert_layers(model);
    loom_param_counts c = {
        .embedding = model->vocab * model->hidden,
        .positions = model->positions == LOOM_LEARNED ? model->seq * model->hidden : 0,
        .head = model->tied_embeddings ? 0 : model->vocab * model->hidden,
        .final_norm = norm_width(model),
        .attention_per_layer = attention_matrices(model) + attention_biases(model),
        .dense_mlp_per_layer = mlp_parameters(model, model->ffn),
        .norms_per_layer = norms_of_layer(model),
    };

    if (moe->experts) {
        c.expert_per_layer = moe->experts * mlp_parameters(model, moe->ffn);
        c.router_per_layer = moe->experts * model->hidden + (model->mlp_bias ? moe->experts : 0) + (moe->selection_bias ? moe->experts : 0);
        c.shared_per_layer = moe->shared * mlp_parameters(model, moe->shared_ffn) + (moe->shared_gate ? model->hidden : 0);
    }
    c.total = c.embedding + c.positions + c.head + c.final_norm + model->layers * (c.attention_per_layer + c.norms_per_layer) +
              (model->layers - expert_layers) * c.dense_mlp_per_layer +
              expert_layers * (c.expert_per_layer + c.router_per_layer + c.shared_per_layer);
    c.active = c.total - (moe->experts ? expert_layers * (moe->experts - moe->top_k) * mlp_parameters(model, moe->ffn) : 0);
    *counts = c;
}

/* Weights of the matrices that one token passes in layer `layer`. */
static double weights_of_layer(const loom_model *m, bool experts)
{
    double matrix = (double)loom_model_mlp_matrices(m) * (double)m->hidden;
    const loom_moe *moe = &m->moe;

    if (!experts)
        return (double)attention_matrices(m) + matrix * (double)m->ffn;
    return (double)attention_matrices(m) + matrix * (double)(moe->top_k * moe->ffn + moe->shared * moe->shared_ffn) +
           (double)m->hidden * (double)(moe->experts + moe->shared_gate);
}

/* Keys that one query of a layer meets, averaged over a sequence of `seq`: seq/2 under a causal mask, less inside a window. */
static double mean_span(const loom_model *m, int64_t layer, int64_t seq)
{
    double s = (double)seq, w = (double)m->sliding_window;
    bool full = m->full_attention_every && (layer + 1) % m->full_attention_every == 0;

    return !m->sliding_window || full || w >= s ? s / 2 : w * (1 - w / (2 * s));
}

double loom_model_flop(const loom_model *model, int64_t sequences, int64_t seq, bool causal)
{
    const loom_mla *l = &model->mla;
    double head_width = (double)(l->kv_rank ? l->nope_dim + l->rope_dim + l->value_dim : 2 * model->head_dim);
    double per_token = (double)model->hidden * (double)model->vocab;

    for (int64_t layer = 0; layer < model->layers; layer++)
        per_token += weights_of_layer(model, loom_model_layer_has_experts(model, layer)) +
                     (causal ? 1 : 2) * mean_span(model, layer, seq) * (double)model->heads * head_width;
    return 3 * 2 * (double)sequences * (double)seq * per_token; /* 2 flop a weight forward, twice that backward */
}
