/* The training software the planner knows. A constant that is left out is as in defaults.c. */
#include "planner/constants/kinds.h"

#define AT(name, value, text) [LOOM_SOFT_##name] = LOOM_STEPS(value, text)
#define SAY(name, value, text) [LOOM_SOFT_##name] = LOOM_HABIT(value, text)

static const loom_framework frameworks[] = {
    {
        .names = {"rankloom"},
        .at =
            {
                SAY(P2P_EXPOSED, 0.35, "asynchronous sends"),
                SAY(GRADIENT_BYTES, 4, "gradients in fp32"),
            },
    },
    /* NeMo recipes on Megatron-Core and Transformer Engine, until 2025 */
    {
        .names = {"nemo", "megatron-core", "megatron"},
        .at =
            {
                AT(TP_HIDDEN, 0.364, "fitted to 104 published steps: dgxc-benchmarking, Megatron-Core README"),
                SAY(P2P_EXPOSED, 0.35, "overlapped p2p"),
                SAY(GRADIENT_BYTES, 2, "recipes reduce in bf16"),
                SAY(GRADIENT_STORE, 2, "recipes accumulate in bf16"),
                SAY(LOGIT_BYTES, 6, "fused cross-entropy"),
                AT(FIXED, 0.0475, "fitted to 127 published steps: llm-foundry, dgxc-benchmarking, torchtitan, Megatron-Bridge and others"),
                AT(KERNELS_DENSE, 18, "fitted to 117 published steps: dgxc-benchmarking, Megatron-Core README"),
                AT(ELEMENTWISE, 1, "fitted to 117 published steps: dgxc-benchmarking, Megatron-Core README"),
                AT(EP_HIDDEN, 0, "fitted to 25 published steps: dgxc-benchmarking"),
                AT(PERMUTE, 0.3, "fitted to 26 published steps: dgxc-benchmarking"),
            },
    },
    /* Megatron-Bridge recipes; experts exchange through DeepEP or HybridEP */
    {
        .names = {"megatron-bridge", "megatron-core-dev"},
        .at =
            {
                SAY(EXCHANGE_ONCE, 1, "DeepEP, HybridEP"),
                AT(TP_HIDDEN, 0.748, "fitted to 53 published steps: Megatron-Bridge, Megatron MoE model zoo"),
                SAY(P2P_EXPOSED, 0.35, "overlapped p2p"),
                SAY(GRADIENT_BYTES, 2, "recipes reduce in bf16"),
                SAY(GRADIENT_STORE, 2, "recipes accumulate in bf16"),
                SAY(LOGIT_BYTES, 6, "fused cross-entropy"),
                AT(FIXED, 0.0475, "fitted to 127 published steps: llm-foundry, dgxc-benchmarking, torchtitan, Megatron-Bridge and others"),
                AT(KERNELS_DENSE, 17.6, "fitted to 132 published steps: Megatron-Bridge, Megatron MoE model zoo"),
                AT(KERNELS_MOE, 60, "fitted to 91 published steps: Megatron-Bridge, Megatron MoE model zoo"),
                AT(ELEMENTWISE, 0.825, "fitted to 136 published steps: Megatron-Bridge, Megatron MoE model zoo"),
                AT(EP_HIDDEN, 0.349, "fitted to 75 published steps: Megatron-Bridge, Megatron MoE model zoo"),
                AT(PERMUTE, 0.933, "fitted to 82 published steps: Megatron-Bridge, Megatron MoE model zoo"),
            },
    },
    /* Since the summer of 2026 experts run without waiting for the host, in captured graphs */
    {
        .names = {"megatron-bridge-26.06", "megatron-bridge-26.08"},
        .at =
            {
                SAY(EXCHANGE_ONCE, 1, "HybridEP"),
                AT(TP_HIDDEN, 0.6, "fitted to 6 published steps: Megatron-Bridge"),
                SAY(P2P_EXPOSED, 0.35, "overlapped p2p"),
                SAY(GRADIENT_BYTES, 2, "recipes reduce in bf16"),
                SAY(GRADIENT_STORE, 2, "recipes accumulate in bf16"),
                SAY(LOGIT_BYTES, 6, "fused cross-entropy"),
                AT(KERNELS_MOE, 11.9, "fitted to 19 published steps: Megatron-Bridge"),
                SAY(KERNELS_EXPERT, 0, "in captured graphs"),
                AT(EP_HIDDEN, 0.7, "fitted to 9 published steps: Megatron-Bridge"),
                AT(FIXED, 0.0475, "fitted to 127 published steps: llm-foundry, dgxc-benchmarking, torchtitan, Megatron-Bridge and others"),
                AT(KERNELS_DENSE, 18, "fitted to 25 published steps: Megatron-Bridge"),
                AT(ELEMENTWISE, 0.991, "fitted to 27 published steps: Megatron-Bridge"),
                AT(PERMUTE, 0.3, "fitted to 19 published steps: Megatron-Bridge"),
            },
    },
    /* Megatron-Core as a library, its overlaps off unless named */
    {
        .names = {"megatron-lm-core"},
        .at =
            {
                SAY(GRADIENT_BYTES, 4, "default of Megatron-LM"),
                SAY(DP_WINDOW, 0, "off by default"),
                SAY(GATHER_WINDOW, 0, "off by default"),
                AT(WEIGHT_SCRATCH, 1.5, "SimuMax, 13 layouts: Transformer Engine keeps one or two per GEMM shape"),
                AT(HEAD_SCRATCH, 0.5, "SimuMax, 13 layouts"),
                AT(TRANSIENT, 0, "SimuMax, 13 layouts: it lies where activations were"),
                AT(LOGIT_BYTES, 3.5, "SimuMax, 13 layouts: fused cross-entropy"),
            },
    },
    /* Megatron-LM until 2022, and forks of it */
    {
        .names = {"megatron-lm"},
        .at =
            {
                SAY(FLASH, 0, "fused softmax, scores in memory"),
                SAY(DROPOUT, 1, "GPT of its time"),
                SAY(LOGIT_BYTES, 14, "fp16, two fp32 copies, both gradients"),
                SAY(GRADIENT_BYTES, 4, "fp32 main gradients"),
                SAY(DP_WINDOW, 0, "none before 2023"),
                SAY(GATHER_WINDOW, 0, "none before 2023"),
                AT(KERNELS_DENSE, 33.8,
                   "fitted to 117 published steps: Zero Bubble, SimuMax B200, Narayanan 2021, Megatron-LM README 2020 and others"),
                AT(ELEMENTWISE, 1.05,
                   "fitted to 122 published steps: Zero Bubble, SimuMax B200, Narayanan 2021, Megatron-LM README 2020 and others"),
            },
    },
    {
        .names = {"megatron-lm-fork"},
        .at =
            {
                SAY(FLASH, 0, "scores in memory: published memory says so"),
                SAY(DROPOUT, 1, "published memory says so"),
                SAY(GRADIENT_BYTES, 4, "fp32 main gradients"),
                SAY(DP_WINDOW, 0, "none"),
                SAY(GATHER_WINDOW, 0, "none"),
            },
    },
    {
        .names = {"megatron-deepspeed", "gpt-neox"},
        .at =
            {
                SAY(FLASH, 0, "fused softmax, scores in memory"),
                SAY(DROPOUT, 1, "GPT of its time"),
                SAY(LOGIT_BYTES, 14, "fp16, two fp32 copies, both gradients"),
                SAY(GRADIENT_BYTES, 2, "fp16"),
                SAY(DP_WINDOW, 0, "pipeline engine reduces at the end"),
                SAY(GATHER_WINDOW, 0, "none"),
                AT(KERNELS_DENSE, 29, "fitted to 219 published steps: vTrain single-node, vTrain multi-node, AMP 2022, GLM-130B"),
                AT(HOST_FACTOR, 1.87, "fitted to 71 published steps: vTrain single-node"),
                AT(ELEMENTWISE, 0.728, "fitted to 153 published steps: vTrain multi-node, vTrain single-node, GLM-130B"),
                AT(KERNELS_TP, 6.25, "fitted to 134 published steps: vTrain multi-node, vTrain single-node, AMP 2022, GLM-130B"),
            },
    },
    {
        .names = {"megatron-deepspeed-v1"},
        .at =
            {
                SAY(FLASH, 0, "scores in memory"),
                SAY(DROPOUT, 1, "GPT of its time"),
                SAY(LOGIT_BYTES, 14, "fp16, two fp32 copies, both gradients"),
                SAY(GRADIENT_BYTES, 4, "fp32"),
                SAY(DP_WINDOW, 0, "pipeline engine reduces at the end"),
                SAY(GATHER_WINDOW, 0, "none"),
                AT(ELEMENTWISE, 1.5, "fitted to 47 published steps: AMP 2022"),
                SAY(KERNELS_DENSE, 40, "unfused"),
            },
    },
    {
        .names = {"deepspeed-zero3"},
        .at =
            {
                SAY(FLASH, 0, "scores in memory"),
                SAY(GRADIENT_BYTES, 2, "fp16"),
                AT(SHARDED_RATE, 0.126, "fitted to 6 published steps: Narayanan 2021"),
                SAY(KERNELS_DENSE, 28, "before kernel fusion"),
            },
    },
    {
        .names = {"composer-fsdp", "composer"},
        .at =
            {
                SAY(FLASH, 1, "flash attention 1 and 2"),
                AT(SHARDED_EXPOSED, 0.29, "fitted to 115 published steps: llm-foundry"),
                AT(ELEMENTWISE, 1.63, "fitted to 155 published steps: llm-foundry"),
                SAY(KERNELS_DENSE, 34, "eager PyTorch"),
                SAY(GRADIENT_BYTES, 4, "fp32 reduction"),
                AT(FIXED, 0.0475, "fitted to 127 published steps: llm-foundry, dgxc-benchmarking, torchtitan, Megatron-Bridge and others"),
            },
    },
    {
        .names = {"torchtitan"},
        .at =
            {
                SAY(FLASH, 1, "SDPA"),
                AT(ELEMENTWISE, 2.17, "fitted to 9 published steps: torchtitan"),
                SAY(KERNELS_DENSE, 34, "eager PyTorch"),
                SAY(GRADIENT_BYTES, 4, "fp32 reduction"),
                AT(FIXED, 0.0475, "fitted to 127 published steps: llm-foundry, dgxc-benchmarking, torchtitan, Megatron-Bridge and others"),
                AT(SHARDED_EXPOSED, 0.00286, "fitted to 27 published steps: torchtitan"),
            },
    },
    {
        .names = {"internevo"},
        .at =
            {
                SAY(FLASH, 1, "flash attention 2"),
                AT(ELEMENTWISE, 2.4, "fitted to 35 published steps: InternEvo"),
                SAY(KERNELS_DENSE, 28, "eager PyTorch"),
                SAY(GRADIENT_BYTES, 2, "bf16"),
                AT(OWNER_TURN, 0.003, "fitted to 16 published steps: InternEvo"),
            },
    },
    {
        .names = {"maxtext", "paxml", "jax", "t5x", "levanter", "gspmd"},
        .at =
            {
                AT(ELEMENTWISE, 0.56, "fitted to 79 published steps: MaxText, dgxc-benchmarking, tpu-recipes, PaLM 540B"),
                SAY(HOST_FACTOR, 0, "one program a step"),
                SAY(GRADIENT_BYTES, 2, "bf16"),
                AT(TP_HIDDEN, 0.742, "fitted to 21 published steps: MaxText, tpu-recipes, PaLM 540B"),
                AT(SHARDED_EXPOSED, 0.8, "fitted to 73 published steps: MaxText, dgxc-benchmarking, tpu-recipes, PaLM 540B"),
            },
    },
    /* Eager PyTorch around FSDP or ZeRO that no table of ours has steps of */
    {
        .names = {"deepspeed", "pytorch", "fsdp", "hugging-face", "transformers", "accelerate", "lightning", "colossal-ai"},
        .at =
            {
                SAY(FLASH, 1, "SDPA, flash attention 2"),
                SAY(ELEMENTWISE, 2, "composer, torchtitan and InternEvo: 1.6 to 2.4"),
                SAY(KERNELS_DENSE, 34, "eager PyTorch"),
                SAY(SHARDED_EXPOSED, 0.3, "as composer"),
                SAY(GRADIENT_BYTES, 2, "16-bit"),
                SAY(FIXED, 0.0475, "as composer and torchtitan"),
            },
    },
    /* The same before flash attention */
    {
        .names = {"sagemaker", "metaseq", "fairscale", "fairseq"},
        .at =
            {
                SAY(FLASH, 0, "2022: scores in memory"),
                SAY(ELEMENTWISE, 2, "composer, torchtitan and InternEvo: 1.6 to 2.4"),
                SAY(KERNELS_DENSE, 34, "eager PyTorch"),
                SAY(SHARDED_EXPOSED, 0.3, "as composer"),
                SAY(GRADIENT_BYTES, 2, "16-bit"),
                SAY(FIXED, 0.0475, "as composer and torchtitan"),
            },
    },
    /* Megatron-Core underneath */
    {
        .names = {"primus", "nanotron", "megascale"},
        .at =
            {
                SAY(P2P_EXPOSED, 0.35, "overlapped p2p"),
                SAY(TP_HIDDEN, 0.3, "as NeMo, a little less"),
                SAY(LOGIT_BYTES, 6, "fused cross-entropy"),
                SAY(KERNELS_DENSE, 18, "as NeMo"),
            },
    },
    {
        .names = {"llm.c"},
        .at =
            {
                SAY(ELEMENTWISE, 1, "hand-written kernels"),
                SAY(HOST_FACTOR, 0.3, "C, no framework"),
                SAY(GRADIENT_BYTES, 2, "bf16"),
            },
    },
    {
        .names = {"meta"}, /* Llama 3 */
        .at =
            {
                SAY(P2P_EXPOSED, 0.35, "asynchronous sends"),
                SAY(GRADIENT_BYTES, 4, "fp32 reduce-scatter"),
                SAY(LOGIT_BYTES, 6, "memory of the head is cut down, says the report"),
                SAY(KERNELS_DENSE, 20, "in-house"),
            },
    },
    {
        .names = {"hai-llm"},
        .at =
            {
                SAY(EP_HIDDEN, 0.95, "DualPipe hides the exchange"),
                SAY(P2P_EXPOSED, 0.1, "DualPipe"),
                SAY(DISPATCH_BYTES, 1, "fp8 dispatch"),
                SAY(GRADIENT_BYTES, 2, "bf16"),
                SAY(HOST_FACTOR, 0.5, "in-house"),
                SAY(NARROW_KEPT, 1, "the report: inputs of Linear and SwiGLU cached in fp8"),
                SAY(OPTIMIZER_STORE, 8, "the report: fp32 master weight, bf16 moments"),
                SAY(LOGIT_BYTES, 6, "fused cross-entropy"),
            },
    },
};

enum { COUNT = sizeof frameworks / sizeof frameworks[0] };

int loom_framework_count(void)
{
    return COUNT;
}

const loom_framework *loom_framework_at(int index)
{
    return index >= 0 && index < COUNT ? &frameworks[index] : NULL;
}
