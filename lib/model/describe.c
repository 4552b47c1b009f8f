/* A model in words. */
#include "core/text.h"

#include <rankloom/model.h>

#include <string.h>

static const struct {
    uint32_t bit;
    const char *name;
} unmodelled[] = {
    {LOOM_UNMODELLED_FAMILY, "formulas of the family's own"},
    {LOOM_UNMODELLED_ROPE_SCALING, "scaling of rotary positions"},
    {LOOM_UNMODELLED_PARTIAL_ROTARY, "rotation of part of a head"},
    {LOOM_UNMODELLED_ACTIVATION, "another activation than the nearest one we have"},
    {LOOM_UNMODELLED_DROPOUT, "dropout"},
    {LOOM_UNMODELLED_MTP, "multi-token-prediction layers"},
    {LOOM_UNMODELLED_SOFTCAP, "soft caps on logits"},
    {LOOM_UNMODELLED_WINDOWS, "sliding windows on irregular layers"},
};

const char *loom_model_unmodelled_name(uint32_t bit)
{
    for (size_t i = 0; i < sizeof unmodelled / sizeof unmodelled[0]; i++)
        if (unmodelled[i].bit == bit)
            return unmodelled[i].name;
    return NULL;
}

static void add_experts(loom_text *t, const loom_model *m)
{
    const loom_moe *moe = &m->moe;

    if (!moe->experts)
        return;
    loom_text_add(t, ", %lld experts of width %lld, top-%lld, on %lld layers", (long long)moe->experts, (long long)moe->ffn, (long long)moe->top_k,
                  (long long)loom_model_expert_layers(m));
    if (moe->shared)
        loom_text_add(t, ", %lld shared of width %lld", (long long)moe->shared, (long long)moe->shared_ffn);
}

static void add_defaults(loom_text *t, const loom_model *m)
{
    static const char *const family_names[] = {"llama", "gpt2", "mixtral", "deepseek"};
    const char *family = *m->hf_type ? m->hf_type : family_names[m->names], *before = "\ndefaulted: ";

    if (m->defaulted & LOOM_DEFAULTED_KV_HEADS) {
        loom_text_add(t, "%skv_heads %lld (as many as heads)", before, (long long)m->kv_heads);
        before = ", ";
    }
    if (m->defaulted & LOOM_DEFAULTED_HEAD_DIM) {
        bool quotient = m->heads * m->head_dim == m->hidden;
        loom_text_add(t, "%shead_dim %lld (%s%s)", before, (long long)m->head_dim, quotient ? "hidden / heads" : "of ", quotient ? "" : family);
        before = ", ";
    }
    if (m->defaulted & LOOM_DEFAULTED_FFN) {
        loom_text_add(t, "%sffn %lld (4 * hidden)", before, (long long)m->ffn);
        before = ", ";
    }
    if (m->defaulted & LOOM_DEFAULTED_SEQ) {
        loom_text_add(t, "%sseq %lld (of %s)", before, (long long)m->seq, family);
        before = ", ";
    }
    if (m->defaulted & LOOM_DEFAULTED_TIED)
        loom_text_add(t, "%stied_embeddings %s (of %s)", before, m->tied_embeddings ? "true" : "false", family);
}

static void add_unmodelled(loom_text *t, const loom_model *m)
{
    const char *before = "\nnot modelled: ";

    for (size_t i = 0; i < sizeof unmodelled / sizeof unmodelled[0]; i++)
        if (m->unmodelled & unmodelled[i].bit) {
            loom_text_add(t, "%s%s", before, unmodelled[i].name);
            before = ", ";
        }
}

loom_status loom_model_describe(const loom_model *m, char **text)
{
    static const char *const mlps[] = {"SwiGLU", "GELU", "GeGLU", "squared ReLU"};
    loom_param_counts counts;
    loom_text t = {0};

    loom_model_count(m, &counts);
    loom_text_add(&t, "%s: %lld layers, hidden %lld, %lld heads over %lld kv heads of %lld%s, ", m->name, (long long)m->layers, (long long)m->hidden,
                  (long long)m->heads, (long long)m->kv_heads, (long long)m->head_dim, m->mla.kv_rank ? " (latent)" : "");
    loom_text_add(&t, "%s %lld, vocabulary %lld%s, sequences of %lld", mlps[m->mlp], (long long)m->ffn, (long long)m->vocab, m->tied_embeddings ? " tied" : "",
                  (long long)m->seq);
    add_experts(&t, m);
    loom_text_add(&t, "\n%lld parameters", (long long)counts.total);
    if (m->moe.experts)
        loom_text_add(&t, ", %lld active for a token", (long long)counts.active);
    add_defaults(&t, m);
    add_unmodelled(&t, m);
    return loom_text_take(&t, text);
}
