#include "names.h"

#include <stdio.h>

/* Prefix before the layer's number (nothing for parts outside the layers) and what follows it. */
typedef struct part_name {
    const char *before, *after;
} part_name;

#define LLAMA_PARTS \
    [GPT_EMBEDDING] = {"model.embed_tokens", NULL}, \
    [GPT_FINAL_NORM] = {"model.norm", NULL}, \
    [GPT_HEAD] = {"lm_head", NULL}, \
    [GPT_NORM1] = {"model.layers.", ".input_layernorm"}, \
    [GPT_Q] = {"model.layers.", ".self_attn.q_proj"}, \
    [GPT_K] = {"model.layers.", ".self_attn.k_proj"}, \
    [GPT_V] = {"model.layers.", ".self_attn.v_proj"}, \
    [GPT_PROJECTION] = {"model.layers.", ".self_attn.o_proj"}, \
    [GPT_NORM2] = {"model.layers.", ".post_attention_layernorm"}

static const part_name llama[GPT_PARTS] = {
    LLAMA_PARTS,
    [GPT_GATE] = {"model.layers.", ".mlp.gate_proj"},
    [GPT_UP] = {"model.layers.", ".mlp.up_proj"},
    [GPT_NARROW] = {"model.layers.", ".mlp.down_proj"},
};

static const part_name mixtral[GPT_PARTS] = {
    LLAMA_PARTS,
    [GPT_ROUTER] = {"model.layers.", ".block_sparse_moe.gate"},
    [GPT_EXPERTS] = {"model.layers.", ".block_sparse_moe.experts"},
};

/* The first layers may be dense. */
static const part_name deepseek[GPT_PARTS] = {
    LLAMA_PARTS,
    [GPT_GATE] = {"model.layers.", ".mlp.gate_proj"},
    [GPT_UP] = {"model.layers.", ".mlp.up_proj"},
    [GPT_NARROW] = {"model.layers.", ".mlp.down_proj"},
    [GPT_ROUTER] = {"model.layers.", ".mlp.gate"},
    [GPT_ROUTER_BIAS] = {"model.layers.", ".mlp.gate.e_score_correction_bias"},
    [GPT_EXPERTS] = {"model.layers.", ".mlp.experts"},
    [GPT_SHARED_GATE] = {"model.layers.", ".mlp.shared_experts.gate_proj"},
    [GPT_SHARED_UP] = {"model.layers.", ".mlp.shared_experts.up_proj"},
    [GPT_SHARED_NARROW] = {"model.layers.", ".mlp.shared_experts.down_proj"},
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
    static const part_name *const tables[] = {
        [LOOM_NAMES_LLAMA] = llama, [LOOM_NAMES_GPT2] = gpt2, [LOOM_NAMES_MIXTRAL] = mixtral, [LOOM_NAMES_DEEPSEEK] = deepseek};
    const part_name *form = &tables[model->names][part];

    if (form->after)
        snprintf(name, GPT_NAME_BYTES, "%s%lld%s", form->before, (long long)layer, form->after);
    else
        snprintf(name, GPT_NAME_BYTES, "%s", form->before ? form->before : "");
    return name;
}

gpt_expert_names gpt_names_of_expert(const loom_model *model)
{
    return model->names == LOOM_NAMES_MIXTRAL ? (gpt_expert_names){"w1", "w3", "w2"} : (gpt_expert_names){"gate_proj", "up_proj", "down_proj"};
}
