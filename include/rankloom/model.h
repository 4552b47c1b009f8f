/* What a model is, as plain data: shapes, kinds of layer, exact parameter counts. Read by planner, rules, engine and examples. */
#ifndef RANKLOOM_MODEL_H
#define RANKLOOM_MODEL_H

#include <rankloom/config.h>
#include <rankloom/dtype.h>
#include <rankloom/text.h>
LOOM_BEGIN

typedef enum loom_norm { LOOM_RMSNORM, LOOM_LAYERNORM } loom_norm;
typedef enum loom_positions { LOOM_ROPE, LOOM_LEARNED, LOOM_NO_POSITIONS } loom_positions;
/* Gated ones have 3 matrices, plain ones 2. */
typedef enum loom_mlp_kind { LOOM_SWIGLU, LOOM_GELU_TANH, LOOM_GEGLU_TANH, LOOM_RELU2 } loom_mlp_kind;
typedef enum loom_router_kind { LOOM_ROUTER_SOFTMAX, LOOM_ROUTER_SIGMOID } loom_router_kind;
typedef enum loom_balance_kind { LOOM_BALANCE_NONE, LOOM_BALANCE_SWITCH, LOOM_BALANCE_SEQUENCE } loom_balance_kind;
typedef enum loom_model_names { /* how tensors are called on disk (Hugging Face) */
    LOOM_NAMES_LLAMA,
    LOOM_NAMES_GPT2,
    LOOM_NAMES_MIXTRAL,
    LOOM_NAMES_DEEPSEEK,
} loom_model_names;

/* Mixture of experts. experts == 0: none. */
typedef struct loom_moe {
    int64_t experts, top_k, ffn; /* ffn: width of one expert */
    int64_t shared;              /* shared experts of width shared_ffn each */
    int64_t shared_ffn;
    int64_t dense_layers; /* the first so many layers are dense */
    int64_t every;        /* 1: all layers after those, 2: every second one (the second, fourth, …) */
    loom_router_kind router;
    bool normalise_top_k;
    int64_t groups, groups_kept; /* group-limited routing; 1, 1: none */
    double route_scale;
    loom_balance_kind balance;
    double balance_coefficient, z_coefficient, bias_speed;
    bool selection_bias; /* a bias per expert, added to the scores for the choice only; steered, not trained, but it is a tensor and counts */
    bool shared_gate;    /* a sigmoid gate of width hidden on the shared experts (Qwen2) */
} loom_moe;

/* Latent attention (DeepSeek). kv_rank == 0: ordinary attention. */
typedef struct loom_mla {
    int64_t q_rank, kv_rank, rope_dim, nope_dim, value_dim;
} loom_mla;

typedef struct loom_model {
    char name[96];
    int64_t layers, hidden, heads, kv_heads, head_dim;
    int64_t ffn; /* width of the dense MLP */
    int64_t vocab; /* true size, never padded */
    int64_t seq;   /* tokens of a sequence: the longest the model takes */
    loom_norm norm;
    double norm_eps;
    loom_positions positions;
    double rope_theta;
    loom_mlp_kind mlp;
    bool attention_bias, output_bias, mlp_bias; /* qkv; attention output; MLP */
    bool tied_embeddings;
    int64_t sliding_window; /* 0: none */
    double init_std, init_jitter;
    loom_moe moe;
    loom_mla mla;
    loom_model_names names;
    uint32_t defaulted; /* bit set of LOOM_DEFAULTED_*: what the file did not say */
    bool qk_norm;                 /* RMSNorm of width head_dim on queries and keys */
    bool post_norms;              /* two more norms a layer, behind attention and MLP */
    bool attention_sinks;         /* one trained number a head in the softmax */
    int64_t full_attention_every; /* with a window: layers n, 2n, … see everything all the same; 0: none does */
    uint32_t unmodelled;          /* bit set of LOOM_UNMODELLED_*: arithmetic that the file asks for and this description does not carry */
    char hf_type[24];             /* model_type of the Hugging Face file that it came from; "" for our own */
} loom_model;

enum {
    LOOM_DEFAULTED_KV_HEADS = 1,
    LOOM_DEFAULTED_HEAD_DIM = 2,
    LOOM_DEFAULTED_TIED = 4,
    LOOM_DEFAULTED_SEQ = 8,
    LOOM_DEFAULTED_FFN = 16,
};

/* Shapes, counts and flop are right all the same; a trainer of such a model would compute something else than its author did. */
enum {
    LOOM_UNMODELLED_FAMILY = 1,         /* the family is not known (taken as Llama's), or has formulas of its own */
    LOOM_UNMODELLED_ROPE_SCALING = 2,   /* positions beyond the trained ones are squeezed */
    LOOM_UNMODELLED_PARTIAL_ROTARY = 4, /* only part of a head is rotated */
    LOOM_UNMODELLED_ACTIVATION = 8,     /* another activation than the nearest of loom_mlp_kind, such as the exact GELU */
    LOOM_UNMODELLED_DROPOUT = 16,
    LOOM_UNMODELLED_MTP = 32,     /* multi-token-prediction layers; not counted */
    LOOM_UNMODELLED_SOFTCAP = 64, /* logits or scores are squeezed by tanh */
    LOOM_UNMODELLED_WINDOWS = 128, /* sliding windows on layers that are not every n-th: counted as if all saw everything */
};
/* What one of these bits means, as words; NULL for another number. */
LOOM_API const char *loom_model_unmodelled_name(uint32_t bit);

/* The `train:` section of a model file: what a plan is for. Zero or negative: not given. */
typedef struct loom_train_shape {
    int64_t global_batch, micro_batch, seq; /* sequences, sequences, tokens */
    loom_dtype precision;      /* bf16 unless the file says otherwise */
    char optimizer[16];        /* "adamw" unless the file says otherwise */
    double learning_rate;
} loom_train_shape;

/* A model YAML (`model:` and `train:`, see docs/model-files.md) or a Hugging Face config.json (recognised by its model_type or
 * architectures). All problems of the file come in one message. `train` may be NULL. */
LOOM_API loom_status loom_model_load(const char *path, loom_model *model, loom_train_shape *train);
/* The same from a node: the value of `model:` in our YAML, or the top of a Hugging Face file. `reader` collects problems. */
LOOM_API void loom_model_read(loom_reader *reader, const loom_node *node, loom_model *model);
LOOM_API void loom_train_shape_read(loom_reader *reader, const loom_node *node, loom_train_shape *train);
/* Writes a Hugging Face config.json that loads back to the same model. */
LOOM_API loom_status loom_model_save_hf(const loom_model *model, const char *path);

/* The description in words: shape, exact count, what was defaulted and why, what is not modelled. Free *text with loom_text_free(). */
LOOM_API loom_status loom_model_describe(const loom_model *model, char **text);
/* 3 for a gated MLP, else 2. */
LOOM_API int loom_model_mlp_matrices(const loom_model *model);
/* Whether layer `layer` (from 0) holds experts, and how many layers do. */
LOOM_API bool loom_model_layer_has_experts(const loom_model *model, int64_t layer);
LOOM_API bool loom_moe_has_balance(const loom_moe *moe); /* whether a loss balances its experts: a kind of it and a coefficient */
LOOM_API int64_t loom_model_expert_layers(const loom_model *model);

/* Exact counts, no padding; tied embeddings count once. */
typedef struct loom_param_counts {
    int64_t embedding, positions, head, final_norm;
    int64_t attention_per_layer, dense_mlp_per_layer, norms_per_layer;
    int64_t expert_per_layer, router_per_layer, shared_per_layer; /* of a layer with experts; expert: all of them */
    int64_t total, active;                                        /* active: what one token multiplies with, embedding included once */
} loom_param_counts;
LOOM_API void loom_model_count(const loom_model *model, loom_param_counts *counts);

/* flop of one training step over `sequences` x `seq` tokens, forward and backward, no recompute, matrix products only (the head included, the
 * embedding not). causal: count half of the attention square (Llama 3, Megatron-Bridge) or all of it (PaLM, Narayanan 2021); under a sliding window
 * half is what a token really sees and all of it twice that. */
LOOM_API double loom_model_flop(const loom_model *model, int64_t sequences, int64_t seq, bool causal);

LOOM_END
#endif
