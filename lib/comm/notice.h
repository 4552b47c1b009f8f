/* A sentence in shared memory that its owner rewrites and peers read at any time. */
#ifndef LOOM_COMM_NOTICE_H
#define LOOM_COMM_NOTICE_H

#include <stdatomic.h>
#include <stdint.h>

enum { LOOM_NOTICE_BYTES = 512 };

typedef struct loom_notice {
    _Atomic uint64_t version; /* odd while it is rewritten */
    _Atomic uint64_t words[LOOM_NOTICE_BYTES / 8];
} loom_notice;

void loom_notice_write(loom_notice *notice, const char *text); /* one writer at a time; cut to fit */
/* Returns text: "" when there is none, or when the owner rewrites it just now. */
const char *loom_notice_read(const loom_notice *notice, char text[LOOM_NOTICE_BYTES]);

#endif
