/* The training software the planner knows. A constant that is left out is as in defaults.c. */
#include "planner/constants/kinds.h"

#define AT(name, value, text) [LOOM_SOFT_##name] = LOOM_STEPS(value, text)
#define SAY(name, value, text) [LOOM_SOFT_##name] = LOOM_HABIT(value, text)

static const loom_framework frameworks[] = {
    {.names = {"rankloom"},
     .at = {SAY(P2P_EXPOSED, 0.35, "asynchronous sends"), SAY(GRADIENT_BYTES, 4, "gradients in fp32")}},
    /* NeMo recipes on Megatron-Core and Transformer Engine, until 2025 */
    {.names = {"nemo", "megatron-core", "megatron"},
     .at = {SAY(TP_HIDDEN, 0.6, "chunked GEMMs (user buffers)"), SAY(P2P_EXPOSED, 0.35, "overlapped p2p"), AT(GRADIENT_BYTES, 2, "recipes reduce in bf16"), SAY(GRADIENT_STORE, 2, "recipes accumulate in bf16"), SAY(LOGIT_BYTES, 6, "fused cross-entropy")}},
    /* Megatron-Bridge recipes; experts exchange through DeepEP or HybridEP */
    {.names = {"megatron-bridge", "megatron-core-dev"},
     .at = {SAY(EXCHANGE_ONCE, 1, "DeepEP, HybridEP"), SAY(TP_HIDDEN, 0.6, "chunked GEMMs (user buffers)"), SAY(P2P_EXPOSED, 0.35, "overlapped p2p"), AT(GRADIENT_BYTES, 2, "recipes reduce in bf16"), SAY(GRADIENT_STORE, 2, "recipes accumulate in bf16"), SAY(LOGIT_BYTES, 6, "fused cross-entropy")}},
    /* Since the summer of 2026 experts run without waiting for the host, in captured graphs */
    {.names = {"megatron-bridge-26.06", "megatron-bridge-26.08"},
     .at = {SAY(EXCHANGE_ONCE, 1, "HybridEP"), SAY(TP_HIDDEN, 0.6, "chunked GEMMs (user buffers)"), SAY(P2P_EXPOSED, 0.35, "overlapped p2p"), AT(GRADIENT_BYTES, 2, "recipes reduce in bf16"), SAY(GRADIENT_STORE, 2, "recipes accumulate in bf16"), SAY(LOGIT_BYTES, 6, "fused cross-entropy"),
            AT(KERNELS_MOE, 12, "host-free experts"), SAY(EP_HIDDEN, 0.7, "recipes overlap the exchange")}},
    /* Megatron-Core as a library, its overlaps off unless named */
    {.names = {"megatron-lm-core"},
     .at = {SAY(GRADIENT_BYTES, 4, "default of Megatron-LM"), SAY(DP_WINDOW, 0, "off by default"), SAY(GATHER_WINDOW, 0, "off by default"), AT(WEIGHT_SCRATCH, 1.5, "SimuMax, 13 layouts: Transformer Engine keeps one or two per GEMM shape"),
            AT(HEAD_SCRATCH, 0.5, "SimuMax, 13 layouts"), AT(TRANSIENT, 0, "SimuMax, 13 layouts: it lies where activations were"), AT(LOGIT_BYTES, 3.5, "SimuMax, 13 layouts: fused cross-entropy")}},
    /* Megatron-LM until 2022, and forks of it */
    {.names = {"megatron-lm"},
     .at = {SAY(FLASH, 0, "fused softmax, scores in memory"), SAY(DROPOUT, 1, "GPT of its time"), SAY(LOGIT_BYTES, 14, "fp16, two fp32 copies, both gradients"), SAY(GRADIENT_BYTES, 4, "fp32 main gradients"), SAY(DP_WINDOW, 0, "none before 2023"), SAY(GATHER_WINDOW, 0, "none before 2023"),
            SAY(KERNELS_DENSE, 24, "before kernel fusion")}},
    {.names = {"megatron-lm-fork"}, .at = {SAY(FLASH, 0, "scores in memory: published memory says so"), SAY(DROPOUT, 1, "published memory says so"), SAY(GRADIENT_BYTES, 4, "fp32 main gradients"), SAY(DP_WINDOW, 0, "none"), SAY(GATHER_WINDOW, 0, "none")}},
    {.names = {"megatron-deepspeed"},
     .at = {SAY(FLASH, 0, "fused softmax, scores in memory"), SAY(DROPOUT, 1, "GPT of its time"), SAY(LOGIT_BYTES, 14, "fp16, two fp32 copies, both gradients"), SAY(GRADIENT_BYTES, 2, "fp16"), SAY(DP_WINDOW, 0, "pipeline engine reduces at the end"), SAY(GATHER_WINDOW, 0, "none"),
            SAY(KERNELS_DENSE, 28, "before kernel fusion")}},
    {.names = {"megatron-deepspeed-v1"},
     .at = {SAY(FLASH, 0, "scores in memory"), SAY(DROPOUT, 1, "GPT of its time"), SAY(LOGIT_BYTES, 14, "fp16, two fp32 copies, both gradients"), SAY(GRADIENT_BYTES, 4, "fp32"), SAY(DP_WINDOW, 0, "pipeline engine reduces at the end"), SAY(GATHER_WINDOW, 0, "none"), SAY(ELEMENTWISE, 1.6, "unfused"),
            SAY(KERNELS_DENSE, 40, "unfused")}},
    {.names = {"deepspeed-zero3"},
     .at = {SAY(FLASH, 0, "scores in memory"), SAY(GRADIENT_BYTES, 2, "fp16"), SAY(SHARDED_RATE, 0.12, "one parameter a message"), SAY(KERNELS_DENSE, 28, "before kernel fusion")}},
    {.names = {"composer-fsdp", "composer"}, .at = {SAY(FLASH, 1, "flash attention 1 and 2"), SAY(SHARDED_EXPOSED, 0.6, "FSDP 1 without forward prefetch"), SAY(ELEMENTWISE, 1.8, "eager PyTorch"), SAY(KERNELS_DENSE, 34, "eager PyTorch"), SAY(GRADIENT_BYTES, 4, "fp32 reduction")}},
    {.names = {"torchtitan"}, .at = {SAY(FLASH, 1, "SDPA"), SAY(ELEMENTWISE, 1.8, "eager PyTorch"), SAY(KERNELS_DENSE, 34, "eager PyTorch"), SAY(GRADIENT_BYTES, 4, "fp32 reduction")}},
    {.names = {"internevo"}, .at = {SAY(FLASH, 1, "flash attention 2"), SAY(ELEMENTWISE, 1.4, "flash-attn kernels"), SAY(KERNELS_DENSE, 28, "eager PyTorch"), SAY(GRADIENT_BYTES, 2, "bf16"), AT(OWNER_TURN, 2.8e-3, "InternEvo, 8 to 1024 ranks: every owner broadcasts")}},
    {.names = {"maxtext", "paxml", "jax"},
     .at = {SAY(ELEMENTWISE, 0.8, "XLA fusion"), SAY(HOST_FACTOR, 0, "one program a step"), SAY(GRADIENT_BYTES, 2, "bf16"), SAY(TP_HIDDEN, 0.5, "collective matmul")}},
    {.names = {"llm.c"}, .at = {SAY(ELEMENTWISE, 1, "hand-written kernels"), SAY(HOST_FACTOR, 0.3, "C, no framework"), SAY(GRADIENT_BYTES, 2, "bf16")}},
    {.names = {"hai-llm"},
     .at = {SAY(EP_HIDDEN, 0.95, "DualPipe hides the exchange"), SAY(P2P_EXPOSED, 0.1, "DualPipe"), SAY(DISPATCH_BYTES, 1, "fp8 dispatch"), SAY(GRADIENT_BYTES, 2, "bf16"), SAY(HOST_FACTOR, 0.5, "in-house")}},
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
