#include <rankloom/engine.h>

#include <stdio.h>

#include "core/text.h"

/* Values of a layout's fields that the engine has no code for: field, value, the condition, and what there is instead. All others it runs: every
 * schedule, recompute none and full, ZeRO 0 to 3, every kind of context parallelism. */
#define MISSING(X)                                                                                                                         \
    X(recompute, LOOM_RECOMPUTE_SELECTIVE, "recompute=selective", "it saves nothing, attention keeps no square matrix; none and full work")

const char *const *loom_engine_excluded(void)
{
#define CONDITION(field, value, condition, instead) condition,
    static const char *const conditions[] = {MISSING(CONDITION) NULL};
#undef CONDITION

    return conditions;
}

static loom_status refuse(loom_text *problems, const char *before, const char *after)
{
    char *list;

    if (problems->length == 0)
        return LOOM_OK;
    loom_status status = loom_text_take(problems, &list);
    if (status == LOOM_OK)
        status = loom_fail(LOOM_E_UNSUPPORTED, "%s%s%s", before, list, after);
    loom_text_free(list);
    return status;
}

loom_status loom_engine_check_layout(const loom_layout *layout)
{
    loom_text problems = {0};

#define CHECK(field, value, condition, instead)                                                                                            \
    if (layout->field == value)                                                                                                            \
        loom_text_add(&problems, "%s%s: %s", problems.length ? "\n" : "", condition, instead);
    MISSING(CHECK)
#undef CHECK
    return refuse(&problems, "", "");
}

/* --- models ----------------------------------------------------------------------------------------------------------------------- */

static void note(loom_text *problems, bool asked, const char *what)
{
    if (asked)
        loom_text_add(problems, "%s%s", problems->length ? ", " : "", what);
}

/* Arithmetic that the model asks for and no block here has: training it would give another model. Dropout alone changes the training, not the model. */
loom_status loom_engine_check_model(const loom_model *m)
{
    loom_text problems = {0};
    char before[256];

    note(&problems, m->qk_norm, "norms on queries and keys");
    note(&problems, m->post_norms, "norms behind attention and MLP");
    note(&problems, m->attention_sinks, "attention sinks");
    note(&problems, m->moe.shared_gate, "a gate on its shared experts");
    for (uint32_t bit = 1; bit <= LOOM_UNMODELLED_WINDOWS; bit <<= 1)
        if (bit != LOOM_UNMODELLED_DROPOUT)
            note(&problems, m->unmodelled & bit, loom_model_unmodelled_name(bit));
    note(&problems, m->full_attention_every > 0, "sliding windows on some layers only");
    note(&problems, m->mla.kv_rank > 0, "latent attention");
    note(&problems, m->mlp != LOOM_SWIGLU && m->mlp != LOOM_GELU_TANH, "another activation than SwiGLU and the tanh form of GELU");
    note(&problems, m->moe.experts > 0 && (m->mlp != LOOM_SWIGLU || m->mlp_bias), "experts that are not SwiGLU without biases");
    snprintf(before, sizeof before, "this engine cannot train %s: its file asks for ", m->name);
    return refuse(&problems, before, "; plain GPT-2, Llama, Mixtral and DeepSeek kinds work");
}
