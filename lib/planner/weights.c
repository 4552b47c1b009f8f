/* Parameters that one rank holds of a layer, the embedding, the head. */
#include "planner/cost.h"

static double kv_width_of_rank(const loom_model *m, int tp)
{
    double heads = (double)m->kv_heads / tp;
    return (heads < 1 ? 1 : heads) * m->head_dim;
}

static double attention_weights(const loom_model *m, int tp)
{
    double h = m->hidden, heads = (double)m->heads / tp;

    if (m->mla.kv_rank == 0) {
        double q = heads * m->head_dim, kv = kv_width_of_rank(m, tp);
        return h * (q + 2 * kv) + q * h + (m->attention_bias ? q + 2 * kv : 0) + (m->output_bias ? h : 0);
    }
    double qk = (double)(m->mla.nope_dim + m->mla.rope_dim);
    double q = m->mla.q_rank ? h * m->mla.q_rank + m->mla.q_rank + m->mla.q_rank * heads * qk : h * heads * qk;
    double kv = h * (m->mla.kv_rank + m->mla.rope_dim) + m->mla.kv_rank + m->mla.kv_rank * heads * (m->mla.nope_dim + m->mla.value_dim);
    return q + kv + heads * m->mla.value_dim * h;
}

static double matrices(const loom_model *m)
{
    return loom_model_mlp_matrices(m);
}

loom_weights loom_layer_weights(const loom_model *m, const loom_degrees *g, loom_layer_kind kind)
{
    loom_weights weights = {0, 0};
    double h = m->hidden;

    weights.dense = attention_weights(m, g->tp) + 2 * h * (m->norm == LOOM_LAYERNORM ? 2 : 1);
    if (kind == LOOM_LAYER_DENSE) {
        weights.dense += matrices(m) * h * m->ffn / g->tp + (m->mlp_bias ? (matrices(m) - 1) * m->ffn / g->tp + h : 0);
        return weights;
    }
    weights.dense += h * m->moe.experts + matrices(m) * h * m->moe.shared * m->moe.shared_ffn / g->tp;
    weights.experts = matrices(m) * h * m->moe.ffn / g->etp * m->moe.experts / g->ep;
    return weights;
}

double loom_embedding_weights(const loom_model *m, const loom_degrees *g)
{
    return (double)m->vocab * m->hidden / g->tp + (m->positions == LOOM_LEARNED ? (double)m->seq * m->hidden : 0);
}

double loom_head_weights(const loom_model *m, const loom_degrees *g)
{
    return (double)m->vocab * m->hidden / g->tp + m->hidden * (m->norm == LOOM_LAYERNORM ? 2.0 : 1.0);
}
