/* What a rank says that it calls, and whether ranks say the same. */
#ifndef LOOM_COMM_SIGNATURE_H
#define LOOM_COMM_SIGNATURE_H

#include "comm/transport.h"

typedef struct loom_signature {
    uint64_t count;
    uint32_t what; /* kind, dtype, op */
    int32_t root;
    const char *name; /* of a barrier: LOOM_COMM_NAME_BYTES; else not looked at */
} loom_signature;

static inline loom_signature loom_signature_of(const loom_call *call)
{
    return (loom_signature){call->count, (uint32_t)call->kind | (uint32_t)call->dtype << 8 | (uint32_t)call->op << 16, call->peer,
                            call->name};
}

/* Compares what rank r says with what rank 0 says; all ranks that hold the same signatures find the same and say the same. LOOM_OK or
 * LOOM_E_MISMATCH. */
loom_status loom_signature_compare(const loom_call *call, const loom_signature *zero, const loom_signature *other, int r);

/* all_to_all_v: what `from` sends to `to` against what `to` expects of it. */
loom_status loom_signature_compare_counts(const loom_call *call, int from, int to, size_t sent, size_t expected);

#endif
