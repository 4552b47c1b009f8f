/* What memory and messages are counted as: the words that allocator, communicators, trainer and planner share. */
#ifndef RANKLOOM_LEDGER_H
#define RANKLOOM_LEDGER_H

#include <rankloom/api.h>

#include <stdint.h>
LOOM_BEGIN

/* What an allocation is for. The ledger keeps live and peak bytes for each, and the planner predicts the same rows. */
typedef enum loom_memory_use {
    LOOM_MEM_WEIGHTS,
    LOOM_MEM_GRADIENTS,
    LOOM_MEM_OPTIMIZER,
    LOOM_MEM_ACTIVATIONS,
    LOOM_MEM_LOGITS,
    LOOM_MEM_COMM,
    LOOM_MEM_WORKSPACE,
    LOOM_MEM_KERNELS, /* scratch of single operations: what it takes is up to instruction set, GEMM library and threads */
    LOOM_MEM_OTHER,
    LOOM_MEM_USES,
} loom_memory_use;
LOOM_API const char *loom_memory_use_name(loom_memory_use use);

typedef enum loom_call_kind {
    LOOM_CALL_ALL_REDUCE,
    LOOM_CALL_REDUCE_SCATTER,
    LOOM_CALL_ALL_GATHER,
    LOOM_CALL_ALL_TO_ALL,
    LOOM_CALL_ALL_TO_ALL_V,
    LOOM_CALL_BROADCAST,
    LOOM_CALL_SEND,
    LOOM_CALL_RECV,
    LOOM_CALL_BARRIER,
    LOOM_CALL_SPLIT,
    LOOM_CALL_KINDS,
} loom_call_kind;
LOOM_API const char *loom_call_kind_name(loom_call_kind kind);

/* What a rank handed to others over one group: see loom_comm_traffic() for the law of each call. */
typedef struct loom_traffic {
    uint64_t calls[LOOM_CALL_KINDS];
    uint64_t bytes[LOOM_CALL_KINDS];
} loom_traffic;

/* Bytes that an all-reduce of `bytes` makes each of `size` ranks hand on: 2(n-1)/n of the buffer, rounded down. */
static inline uint64_t loom_all_reduce_traffic(uint64_t bytes, int size)
{
    return bytes * 2 * (uint64_t)(size - 1) / (uint64_t)size;
}

LOOM_END
#endif
