/* The parameters of a rank, by how their gradients are reduced. */
#include "planner/forecast.h"

typedef struct tally {
    loom_rank_view *view;
    uint64_t parameters;
    int64_t unit[LOOM_CLASSES]; /* elements of the unit at hand */
} tally;

static void add(tally *t, loom_param_class param_class, int64_t elements)
{
    t->unit[param_class] += loom_aligned(elements);
    t->parameters += (uint64_t)elements;
}

/* What is used together ends here. In a micro-batch its gradients are made in `backwards` parts, its weights are needed `uses` times. */
static void end_unit(tally *t, int backwards, int uses)
{
    loom_rank_view *v = t->view;

    for (int c = 0; c < LOOM_CLASSES; c++) {
        bool cut = loom_class_cuts(v->layout, (loom_param_class)c, LOOM_ZERO_GRADIENTS);
        int64_t elements = cut ? loom_flat_elements(t->unit[c], loom_class_parts(v->layout, (loom_param_class)c)) : t->unit[c];

        v->elements[c] += elements;
        v->scattered[c] += backwards * elements;
        v->gathered[c] += uses * elements;
        v->largest[c] = elements > v->largest[c] ? elements : v->largest[c];
        t->unit[c] = 0;
    }
}

/* Used between the regions by every tp rank: under sequence parallelism each has seen its own tokens only. */
static loom_param_class between(const loom_rank_view *v)
{
    return v->shape.sequence_parallel ? LOOM_CLASS_TP : LOOM_CLASS_PLAIN;
}

static void add_norm(tally *t)
{
    const loom_rank_view *v = t->view;

    for (int i = 0; i < (v->model->norm == LOOM_LAYERNORM ? 2 : 1); i++)
        add(t, between(v), v->shape.hidden);
}

/* kv heads that tp ranks share: a part of the gradient each. */
static loom_param_class kv_class(const loom_rank_view *v)
{
    int tp = v->layout->tp, holders = loom_cut_holders(v->model->kv_heads, 1, tp);

    return holders == 1 ? LOOM_CLASS_PLAIN : holders == tp ? LOOM_CLASS_TP : LOOM_CLASS_KV;
}

static void add_linear(tally *t, loom_param_class param_class, int64_t weight, int64_t bias)
{
    add(t, param_class, weight);
    if (bias > 0)
        add(t, param_class, bias);
}

static void add_attention(tally *t)
{
    const loom_rank_view *v = t->view;
    const loom_rank_shape *s = &v->shape;
    const loom_model *m = v->model;

    if (m->names == LOOM_NAMES_GPT2) { /* one fused matrix */
        add_linear(t, LOOM_CLASS_PLAIN, s->hidden * s->qkv_width, m->attention_bias ? s->qkv_width : 0);
    } else {
        add_linear(t, LOOM_CLASS_PLAIN, s->hidden * s->q_width, m->attention_bias ? s->q_width : 0);
        for (int i = 0; i < 2; i++)
            add_linear(t, kv_class(v), s->hidden * s->kv_width, m->attention_bias ? s->kv_width : 0);
    }
    add(t, LOOM_CLASS_PLAIN, s->q_width * s->hidden);
    if (m->output_bias)
        add(t, between(v), s->hidden);
}

static void add_mlp(tally *t, int64_t columns)
{
    const loom_rank_view *v = t->view;
    bool bias = v->model->mlp_bias;

    for (int i = 0; i < loom_model_mlp_matrices(v->model) - 1; i++)
        add_linear(t, LOOM_CLASS_PLAIN, v->shape.hidden * columns, bias ? columns : 0);
    add(t, LOOM_CLASS_PLAIN, columns * v->shape.hidden);
    if (bias)
        add(t, between(v), v->shape.hidden);
}

/* Each tp rank routes other tokens, so its gradient of the router is a part. The selection bias has none. */
static void add_experts(tally *t)
{
    const loom_rank_view *v = t->view;
    const loom_moe *moe = &v->model->moe;

    add(t, v->layout->tp > 1 ? LOOM_CLASS_TP : LOOM_CLASS_PLAIN, moe->experts * v->shape.hidden);
    if (moe->selection_bias)
        add(t, LOOM_CLASS_PLAIN, moe->experts);
    for (int64_t i = 0; i < 3 * v->experts.here; i++)
        add(t, LOOM_CLASS_EXPERT, v->shape.expert_ffn * v->shape.hidden);
    if (moe->shared > 0)
        add_mlp(t, v->shape.shared_ffn);
}

static void add_layer(tally *t, bool experts)
{
    add_norm(t);
    add_attention(t);
    add_norm(t);
    if (experts)
        add_experts(t);
    else
        add_mlp(t, t->view->shape.ffn);
    end_unit(t, loom_schedule_kind_splits(t->view->layout->schedule) ? 2 : 1, 2); /* once forwards, once back */
}

/* The head's backward follows its forward at once, and the embedding's needs no weights; a matrix of both is used by both. */
static void add_ends(tally *t)
{
    const loom_rank_view *v = t->view;
    loom_param_class matrix = v->tied_across ? LOOM_CLASS_TIED : LOOM_CLASS_PLAIN;
    bool shared = v->embedding && v->head && v->model->tied_embeddings && !v->tied_across;

    if (v->embedding) {
        add(t, matrix, v->shape.vocab_rows * v->shape.hidden);
        if (v->model->positions == LOOM_LEARNED)
            add(t, between(v), v->model->seq * v->shape.hidden);
        if (!shared)
            end_unit(t, 1, 1);
    }
    if (!v->head)
        return;
    add_norm(t);
    if (!shared)
        add(t, matrix, v->shape.vocab_rows * v->shape.hidden);
    end_unit(t, shared ? 2 : 1, shared ? 2 : 1);
}

int loom_class_parts(const loom_layout *layout, loom_param_class param_class)
{
    return param_class == LOOM_CLASS_EXPERT ? loom_layout_edp(layout) : layout->dp * layout->cp;
}

bool loom_class_cuts(const loom_layout *layout, loom_param_class param_class, int what)
{
    bool alone = param_class == LOOM_CLASS_PLAIN || param_class == LOOM_CLASS_EXPERT;

    return loom_zero_cuts(layout->zero, what, loom_class_parts(layout, param_class), alone);
}

uint64_t loom_view_params(loom_rank_view *view)
{
    tally t = {.view = view};

    for (int64_t i = 0; i < view->dense_layers; i++)
        add_layer(&t, false);
    for (int64_t i = 0; i < view->expert_layers; i++)
        add_layer(&t, true);
    add_ends(&t);
    for (int c = 0; c < LOOM_CLASSES; c++)
        view->elements[c] = loom_flat_elements(view->elements[c], loom_class_parts(view->layout, (loom_param_class)c));
    return t.parameters;
}
