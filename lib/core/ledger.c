/* Names of what memory and messages are counted as. */
#include <rankloom/ledger.h>

const char *loom_memory_use_name(loom_memory_use use)
{
    static const char *const names[LOOM_MEM_USES] = {
        [LOOM_MEM_WEIGHTS] = "weights",         [LOOM_MEM_GRADIENTS] = "gradients", [LOOM_MEM_OPTIMIZER] = "optimizer",
        [LOOM_MEM_ACTIVATIONS] = "activations", [LOOM_MEM_LOGITS] = "logits",       [LOOM_MEM_COMM] = "comm",
        [LOOM_MEM_WORKSPACE] = "workspace",     [LOOM_MEM_KERNELS] = "kernels",     [LOOM_MEM_OTHER] = "other",
    };

    return (unsigned)use < LOOM_MEM_USES ? names[use] : "?";
}

const char *loom_call_kind_name(loom_call_kind kind)
{
    static const char *const names[LOOM_CALL_KINDS] = {
        [LOOM_CALL_ALL_REDUCE] = "all_reduce",
        [LOOM_CALL_REDUCE_SCATTER] = "reduce_scatter",
        [LOOM_CALL_ALL_GATHER] = "all_gather",
        [LOOM_CALL_ALL_TO_ALL] = "all_to_all",
        [LOOM_CALL_ALL_TO_ALL_V] = "all_to_all_v",
        [LOOM_CALL_BROADCAST] = "broadcast",
        [LOOM_CALL_SEND] = "send",
        [LOOM_CALL_RECV] = "recv",
        [LOOM_CALL_BARRIER] = "barrier",
        [LOOM_CALL_SPLIT] = "split",
    };

    return (unsigned)kind < LOOM_CALL_KINDS ? names[kind] : "?";
}
