/* Collectives over point to point, with sums in rank order: the same bits as in shared memory. */
#ifndef LOOM_COMM_ORDERED_H
#define LOOM_COMM_ORDERED_H

#include "comm/mail.h"

typedef struct ordered_memory ordered_memory;

/* A collective's scratch memory. */
typedef struct ordered_call {
    int resume;
    bool met;
    const loom_mail *mail;
    ordered_memory *memory; /* parcels, posts and room for what comes in; NULL before the first step */
    loom_step (*body)(loom_call *call);
    size_t round, rounds;
    int scan;
} ordered_call;

/* A transport that uses these has an ordered_call at the beginning of its scratch memory. */
loom_step loom_ordered_step(loom_call *call, const loom_mail *mail);
bool loom_ordered_is_missing(const loom_call *call, int rank); /* what the call waits for from (or on the way to) `rank` is not done */
void loom_ordered_drop(loom_call *call);

#endif
