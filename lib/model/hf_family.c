/* The families, with the defaults that transformers 5.24 gives them. */
#include "model/hf_family.h"

#include <string.h>

#define LLAMA_LIKE .names = LOOM_NAMES_LLAMA, .gated = true, .norm_eps = 1e-6, .theta = 1e4
#define DEEPSEEK_LIKE .names = LOOM_NAMES_DEEPSEEK, .experts = LOOM_HF_DEEPSEEK, .gated = true, .norm_eps = 1e-6, .theta = 1e4

static const loom_hf_family families[] = {
    {.type = "gpt2", .names = LOOM_NAMES_GPT2, .gpt2 = true, .tied = true, .biased = true, .norm_eps = 1e-5, .theta = 1e4, .seq = 1024},
    {.type = "llama", LLAMA_LIKE, .seq = 2048},
    {.type = "mistral", LLAMA_LIKE, .window = LOOM_HF_WINDOW, .seq = 131072},
    {.type = "qwen2", LLAMA_LIKE, .window = LOOM_HF_WINDOW_IF_USED, .bias = LOOM_HF_BIAS_QKV, .biased = true, .seq = 32768},
    {.type = "qwen3", LLAMA_LIKE, .window = LOOM_HF_WINDOW_IF_USED, .qk_norm = true, .head_dim = 128, .seq = 32768},
    {.type = "gemma", LLAMA_LIKE, .tied = true, .head_dim = 256, .seq = 8192, .unmodelled = LOOM_UNMODELLED_FAMILY},
    {.type = "gemma2", LLAMA_LIKE, .window = LOOM_HF_WINDOW_EVERY_2, .tied = true, .post_norms = true, .head_dim = 256, .seq = 8192,
     .unmodelled = LOOM_UNMODELLED_FAMILY},
    {.type = "gemma3_text", LLAMA_LIKE, .window = LOOM_HF_WINDOW_EVERY_6, .tied = true, .qk_norm = true, .post_norms = true, .head_dim = 256, .seq = 131072,
     .unmodelled = LOOM_UNMODELLED_FAMILY},
    {.type = "mixtral", .names = LOOM_NAMES_MIXTRAL, .experts = LOOM_HF_MIXTRAL, .window = LOOM_HF_WINDOW, .gated = true, .norm_eps = 1e-5, .theta = 1e6,
     .seq = 131072},
    {.type = "qwen2_moe", .names = LOOM_NAMES_DEEPSEEK, .experts = LOOM_HF_QWEN, .window = LOOM_HF_WINDOW_IF_USED, .bias = LOOM_HF_BIAS_QKV, .biased = true,
     .gated = true, .norm_eps = 1e-6, .theta = 1e4, .seq = 32768},
    {.type = "qwen3_moe", .names = LOOM_NAMES_DEEPSEEK, .experts = LOOM_HF_QWEN, .window = LOOM_HF_WINDOW_IF_USED, .qk_norm = true, .gated = true,
     .norm_eps = 1e-6, .theta = 1e4, .seq = 32768},
    {.type = "deepseek_v2", DEEPSEEK_LIKE, .seq = 2048},
    {.type = "deepseek_v3", DEEPSEEK_LIKE, .seq = 4096, .dense_layers = 3},
    {.type = "kimi_k2", DEEPSEEK_LIKE, .seq = 4096, .dense_layers = 3},
    {.type = "glm4_moe", .names = LOOM_NAMES_DEEPSEEK, .experts = LOOM_HF_DEEPSEEK, .bias = LOOM_HF_BIAS_QKV, .gated = true, .norm_eps = 1e-5, .theta = 1e4,
     .seq = 131072, .dense_layers = 1},
    {.type = "gpt_oss", .names = LOOM_NAMES_DEEPSEEK, .experts = LOOM_HF_OSS, .window = LOOM_HF_WINDOW_EVERY_2, .biased = true, .gated = true, .head_dim = 64,
     .norm_eps = 1e-5, .theta = 150000, .seq = 131072, .unmodelled = LOOM_UNMODELLED_FAMILY},
    {.type = "llama4_text", .names = LOOM_NAMES_LLAMA, .experts = LOOM_HF_LLAMA4, .gated = true, .head_dim = 128, .norm_eps = 1e-5, .theta = 500000,
     .seq = 131072, .unmodelled = LOOM_UNMODELLED_FAMILY},
};

const loom_hf_family loom_hf_unknown = {.type = "", LLAMA_LIKE, .seq = 2048, .unmodelled = LOOM_UNMODELLED_FAMILY};

const loom_hf_family *loom_hf_family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (!strcmp(families[i].type, model_type))
            return &families[i];
    return NULL;
}
