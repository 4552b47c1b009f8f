/* A comm's end in NCCL, and how one of NCCL's results becomes one of ours. */
#ifndef LOOM_CUDA_COMMUNICATOR_H
#define LOOM_CUDA_COMMUNICATOR_H

#include "comm/transport.h"
#include "cuda/device.h"
#include "device/watch.h"

#include <nccl.h>

typedef struct nccl_lane {
    int peer;
    ncclComm_t out, in; /* of two ranks each: the sender is 0, the receiver 1 */
} nccl_lane;

typedef struct nccl_comm {
    ncclComm_t comm; /* NULL: one rank */
    ncclComm_t child; /* what a split under way will make; here, since NCCL may write it when nobody waits any more */
    nccl_lane *lanes; /* by rising peer */
    int n_lanes;
    int *scratch;     /* of barriers, on the device */
    cudaEvent_t done; /* after the last call */
    loom_cuda_account *account; /* of what streams wait for it */
    char last[LOOM_CALL_TEXT];
} nccl_comm;

typedef struct nccl_world {
    loom_watch watch;
} nccl_world;

static inline nccl_comm *nccl_of(const loom_comm *comm)
{
    return comm->state;
}

/* What a failure of NCCL's is, in words; `c` may be NULL. */
loom_status loom_nccl_describe(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what);
/* Waits until what `result` began on `c` is no longer in progress. A failure breaks the world: `c` may be left half-way, and can only be aborted. */
loom_status loom_nccl_settle(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what);
/* The same for ncclCommSplit and ncclCommWindowRegister, which drop the ncclInProgress of the group that they make of themselves: their ncclSuccess says no more
 * than that they have begun, and what they make is there only when `c` is no longer in progress. */
loom_status loom_nccl_settle_begun(const loom_comm *comm, ncclComm_t c, ncclResult_t result, const char *what);
loom_status loom_nccl_check_cuda(const loom_comm *comm, cudaError_t code, const char *what);
loom_status loom_nccl_enter(const loom_comm *comm); /* makes its device the thread's */

/* What `c` knows of registered memory, before it is closed (registered.c). */
void loom_nccl_forget(const loom_comm *comm, ncclComm_t c, bool aborted);

/* Rows of the transport's table. */
loom_status loom_nccl_launch(loom_comm *comm, loom_call **first, loom_stream *stream);         /* nccl_calls.c */
loom_status loom_nccl_watch_call(loom_comm *comm, const char *text, loom_stream *stream);      /* for its deadline; nccl_calls.c */
loom_status loom_nccl_exchange(loom_comm *comm, const void *mine, void *all, size_t bytes);    /* nccl.c */
loom_status loom_nccl_connect(loom_comm *comm, const int *peers, int count);                   /* nccl_lanes.c */
loom_status loom_nccl_enlist(loom_comm *comm, void *memory, bool symmetric);                   /* registered.c */

#endif
