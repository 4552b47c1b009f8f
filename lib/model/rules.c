/* What the numbers of a model have to say together. */
#include "model/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct check {
    const loom_model *model;
    loom_model_note *note;
    void *context;
} check;

static void breach(const check *c, const char *path, const char *format, ...) LOOM_PRINTF(3, 4);
static void breach(const check *c, const char *path, const char *format, ...)
{
    char text[384];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    c->note(c->context, path, text);
}

void loom_model_derive(loom_model *m)
{
    loom_moe *moe = &m->moe;

    if (!m->kv_heads) {
        m->kv_heads = m->heads;
        m->defaulted |= LOOM_DEFAULTED_KV_HEADS;
    }
    if (m->mla.kv_rank)
        m->head_dim = m->mla.nope_dim + m->mla.rope_dim;
    if (!m->head_dim && m->heads && m->hidden % m->heads == 0) {
        m->head_dim = m->hidden / m->heads;
        m->defaulted |= LOOM_DEFAULTED_HEAD_DIM;
    }
    if (moe->experts && !moe->shared_ffn)
        moe->shared_ffn = moe->ffn;
    if (moe->experts && !moe->groups_kept)
        moe->groups_kept = moe->groups;
}

/* The divisors of n next to d, for "…; 4 and 6 do". */
static void nearest_divisors(int64_t n, int64_t d, int64_t *below, int64_t *above)
{
    *below = *above = 0;
    for (int64_t k = 1; k <= n && k <= 1000000; k++)
        if (n % k == 0) {
            if (k < d)
                *below = k;
            else if (!*above)
                *above = k;
        }
}

/* d must divide n. Names are what the message calls them; `also` is added to it. */
static void divides(const check *c, const char *path, const char *d_name, int64_t d, const char *n_name, int64_t n, const char *also)
{
    int64_t below, above;
    char nearest[64];

    if (!d || !n || n % d == 0)
        return;
    nearest_divisors(n, d, &below, &above);
    if (above)
        snprintf(nearest, sizeof nearest, "%lld and %lld do", (long long)below, (long long)above);
    else
        snprintf(nearest, sizeof nearest, "%lld does", (long long)below);
    breach(c, path, "%s=%lld does not divide %s=%lld; %s%s", d_name, (long long)d, n_name, (long long)n, nearest, also);
}

static void at_most(const check *c, const char *path, const char *name, int64_t value, const char *limit_name, int64_t limit)
{
    if (value && limit && value > limit)
        breach(c, path, "%s=%lld is more than %s=%lld", name, (long long)value, limit_name, (long long)limit);
}

static void check_attention(const check *c)
{
    const loom_model *m = c->model;

    if (!m->head_dim && !m->mla.kv_rank)
        divides(c, "heads", "heads", m->heads, "hidden", m->hidden, ". Or give head_dim, which is hidden / heads when it is absent");
    divides(c, "kv_heads", "kv_heads", m->kv_heads, "heads", m->heads, "");
    if (m->positions == LOOM_ROPE && !m->mla.kv_rank && m->head_dim % 2)
        breach(c, "head_dim", "head_dim=%lld is odd, and rotary positions turn pairs; %lld is even", (long long)m->head_dim, (long long)m->head_dim + 1);
    if (m->mla.kv_rank && m->mla.rope_dim % 2)
        breach(c, "mla.rope_dim", "rope_dim=%lld is odd, and rotary positions turn pairs; %lld is even", (long long)m->mla.rope_dim, (long long)m->mla.rope_dim + 1);
    if (m->full_attention_every && !m->sliding_window)
        breach(c, "full_attention_every", "full_attention_every=%lld without a sliding_window", (long long)m->full_attention_every);
}

static void check_experts(const check *c)
{
    const loom_moe *moe = &c->model->moe;

    if (!moe->experts)
        return;
    at_most(c, "experts.top_k", "top_k", moe->top_k, "count", moe->experts);
    at_most(c, "experts.dense_layers", "dense_layers", moe->dense_layers, "layers", c->model->layers);
    divides(c, "experts.groups", "groups", moe->groups, "count", moe->experts, "");
    at_most(c, "experts.groups_kept", "groups_kept", moe->groups_kept, "groups", moe->groups);
    if (moe->groups && moe->top_k <= moe->experts && moe->experts % moe->groups == 0)
        at_most(c, "experts.top_k", "top_k", moe->top_k, "the experts of the groups that are kept", moe->groups_kept * (moe->experts / moe->groups));
    if (moe->balance == LOOM_BALANCE_NONE && moe->balance_coefficient != 0)
        breach(c, "experts.balance_coefficient", "balance_coefficient=%g with balance none; name the loss: switch or sequence", moe->balance_coefficient);
    if (moe->bias_speed != 0 && !moe->selection_bias)
        breach(c, "experts.bias_speed", "bias_speed=%g without selection_bias", moe->bias_speed);
}

/* Whether every count of the model fits: sums and products of int64 must not overflow in loom_model_count(). */
static void check_size(const check *c)
{
    const loom_model *m = c->model;
    const loom_moe *moe = &m->moe;
    double h = (double)m->hidden, layer = 4 * h * (double)(m->heads + 2 * m->kv_heads) * (double)m->head_dim + 3 * (h + 1) * (double)m->ffn;

    layer += 3 * (h + 1) * ((double)moe->experts * (double)moe->ffn + (double)moe->shared * (double)moe->shared_ffn);
    layer += (h + (double)m->heads * (double)(m->mla.nope_dim + m->mla.rope_dim + m->mla.value_dim)) * (double)(m->mla.q_rank + m->mla.kv_rank + m->mla.rope_dim);
    double total = (double)m->layers * layer + h * (2 * (double)m->vocab + (m->positions == LOOM_LEARNED ? (double)m->seq : 0));
    if (total > 1e17)
        breach(c, "hidden", "about %.1g parameters; the most that is counted is 1e17", total);
}

void loom_model_rules(const loom_model *model, loom_model_note *note, void *context)
{
    const check c = {model, note, context};

    check_attention(&c);
    check_experts(&c);
    check_size(&c);
}
