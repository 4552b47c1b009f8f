/* What each Hugging Face model_type means by its keys, and by their absence. */
#ifndef LOOM_MODEL_HF_FAMILY_H
#define LOOM_MODEL_HF_FAMILY_H

#include <rankloom/model.h>

typedef enum loom_hf_experts { LOOM_HF_DENSE, LOOM_HF_MIXTRAL, LOOM_HF_QWEN, LOOM_HF_DEEPSEEK, LOOM_HF_OSS, LOOM_HF_LLAMA4 } loom_hf_experts;
typedef enum loom_hf_window { LOOM_HF_NO_WINDOW, LOOM_HF_WINDOW, LOOM_HF_WINDOW_IF_USED, LOOM_HF_WINDOW_EVERY_2, LOOM_HF_WINDOW_EVERY_6 } loom_hf_window;
/* What attention_bias stands for: q, k, v alone, or the output too. */
typedef enum loom_hf_bias { LOOM_HF_BIAS_QKVO, LOOM_HF_BIAS_QKV } loom_hf_bias;

typedef struct loom_hf_family {
    const char *type;
    loom_model_names names;
    loom_hf_experts experts;
    loom_hf_window window;
    loom_hf_bias bias;
    bool gpt2;               /* n_embd keys, LayerNorm, learned positions, plain MLP, biases */
    bool tied, biased;       /* when the file does not say: tied embeddings; attention_bias */
    bool qk_norm, post_norms; /* always; or, with use_qk_norm in the file, what that says */
    bool gated;
    int head_dim;            /* when the file does not say; 0: hidden / heads */
    double norm_eps, theta;
    int64_t seq, dense_layers; /* likewise: longest sequence, dense layers before the first with experts */
    uint32_t unmodelled; /* always */
} loom_hf_family;

/* NULL: not known. */
const loom_hf_family *loom_hf_family_of(const char *model_type);
/* Whatever is not known is read by Llama's conventions, with LOOM_UNMODELLED_FAMILY. */
extern const loom_hf_family loom_hf_unknown;

#endif
