#include "names.h"

#include <stdio.h>

/* Prefix before the layer's number (nothing for parts outside the layers) and what follows it. */
typedef struct part_name {
    const char *before, *after;
} part_name;

static const part_name llama[GPT_PARTS] = {
    [GPT_EMBEDDING] = {"model.embed_tokens", NULL},
    [GPT_FINAL_NORM] = {"model.norm", NULL},
    [GPT_HEAD] = {"lm_head", NULL},
    [GPT_NORM1] = {"model.layers.", ".input_layernorm"},
    [GPT_Q] = {"model.layers.", ".self_attn.q_proj"},
    [GPT_K] = {"model.layers.", ".self_attn.k_proj"},
    [GPT_V] = {"model.layers.", ".self_attn.v_proj"},
    [GPT_PROJECTION] = {"model.layers.", ".self_attn.o_proj"},
    [GPT_NORM2] = {"model.layers.", ".post_attention_layernorm"},
    [GPT_GATE] = {"model.layers.", ".mlp.gate_proj"},
    [GPT_UP] = {"model.layers.", ".mlp.up_proj"},
    [GPT_NARROW] = {"model.layers.", ".mlp.down_proj"},
};

static const part_name gpt2[GPT_PARTS] = {
    [GPT_EMBEDDING] = {"transformer.wte", NULL},
    [GPT_POSITIONS] = {"transformer.wpe", NULL},
    [GPT_FINAL_NORM] = {"transformer.ln_f", NULL},
    [GPT_HEAD] = {"lm_head", NULL},
    [GPT_NORM1] = {"transformer.h.", ".ln_1"},
    [GPT_QKV] = {"transformer.h.", ".attn.c_attn"},
    [GPT_PROJECTION] = {"transformer.h.", ".attn.c_proj"},
    [GPT_NORM2] = {"transformer.h.", ".ln_2"},
    [GPT_WIDE] = {"transformer.h.", ".mlp.c_fc"},
    [GPT_NARROW] = {"transformer.h.", ".mlp.c_proj"},
};

char *gpt_name(const loom_model *model, gpt_part part, int64_t layer, char name[GPT_NAME_BYTES])
{
    const part_name *form = &(model->names == LOOM_NAMES_GPT2 ? gpt2 : llama)[part];

    if (form->after)
        snprintf(name, GPT_NAME_BYTES, "%s%lld%s", form->before, (long long)layer, form->after);
    else
        snprintf(name, GPT_NAME_BYTES, "%s", form->before ? form->before : "");
    return name;
}
