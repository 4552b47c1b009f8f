/* Memory on a memfd that other ranks of the host map too. A memfd has no name, so nothing is left behind whatever kills the ranks, and it
 * does not count against the size of /dev/shm, which containers keep small. */
#ifndef LOOM_DEVICE_SEGMENT_H
#define LOOM_DEVICE_SEGMENT_H

#include <rankloom/status.h>

#include "device/doorbell.h"

enum { LOOM_SEGMENT_HEAD_BYTES = 4096 };

/* First page of every segment. */
typedef struct loom_segment_head {
    uint64_t nonce;              /* tells this segment from one that a later process of the same number made */
    _Atomic int32_t local_users; /* mappings handed out inside the process that made it; the last one unmaps */
    loom_doorbell bell;
} loom_segment_head;

typedef struct loom_segment {
    char *base; /* NULL: none */
    size_t bytes;
    int fd;      /* -1 once attached from elsewhere */
    bool shared; /* base is the owner's own mapping: owner and we are threads of one process */
} loom_segment;

/* What a peer needs to find a segment; sent as it is between ranks of one host. */
typedef struct loom_segment_name {
    uint64_t nonce, base, bytes;
    int32_t pid, fd;
} loom_segment_name;

/* Reserves `bytes` of address space. Pages cost nothing until loom_segment_reserve(). */
loom_status loom_segment_create(const char *label, size_t bytes, loom_segment *segment);
/* Makes sure that pages of [offset, offset + bytes) exist; LOOM_E_MEMORY when the host has none, instead of SIGBUS later. */
loom_status loom_segment_reserve(const loom_segment *segment, size_t offset, size_t bytes);
void loom_segment_get_name(const loom_segment *segment, loom_segment_name *name);
/* Maps a peer's segment. In the process that made it this is its own address: no second mapping, so a thread sanitizer sees both sides. */
loom_status loom_segment_attach(const loom_segment_name *name, loom_segment *segment);
void loom_segment_close(loom_segment *segment); /* of either kind; accepts all zero */

static inline loom_segment_head *loom_segment_get_head(const loom_segment *segment)
{
    return (loom_segment_head *)(void *)segment->base;
}

#endif
