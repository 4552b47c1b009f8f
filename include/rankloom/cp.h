/* Context parallelism: attention over sequences whose tokens lie on several ranks. Everything else of a transformer works token by token and
 * needs to know of the cut only where its tokens sit in the sequence.
 *
 * The cut is a zigzag: a sequence is 2 * cp chunks of equal length, and rank i holds chunks i and 2 * cp - 1 - i, in this order. Early tokens see
 * few keys and late ones many, so every rank has the same causal work. Rows are [B, S/cp]: of each sequence the rank's part, sequence after
 * sequence. Positions, labels and documents are those of the whole sequence, whatever rank looks at them.
 *
 * Four ways to bring queries and keys together (loom_cp_kind), and the bytes that this rank hands to others in one call, with
 *   n = cp,  KV = 4 * B * S/cp * 2 * kv_heads * head_dim,  Q = 4 * B * S/cp * heads * head_dim  (heads of this tp rank),
 *   KV' = KV * max(1, u / kv_heads): with fewer kv heads than ranks each is sent to all that need it:
 *
 *   kind       forward                             backward                                                        buffers
 *   ring       (n - 1) KV                          (n - 1) KV again, (n - 1) KV of gradients                       O(S/cp)
 *   allgather  (n - 1) KV, one all_gather          the same, and as much in one reduce_scatter                     O(S) of keys and values
 *   ulysses    all_to_all: (u - 1)/u (Q + KV')     all_to_all: (u - 1)/u Q of what comes in,                       O(S/cp)
 *     u = n      in, (u - 1)/u Q out                 (u - 1)/u (Q + KV') of gradients out
 *   hybrid     ulysses over u neighbours, and a ring over n/u, in which a hop is KV'                               O(S/cp)
 *
 *   Documents cost (n - 1) * 4 * B * S/cp more in each call.
 *
 * ring: keys and values go round while the block at hand is computed, and partial results are merged by log-sum-exp (Liu et al. 2023, Ring
 * Attention). In backward the gradients of a block travel behind it and gather what every rank adds; its owner adds its own last. ulysses: all
 * tokens and some of the heads (Jacobs et al. 2023). Every sum has a fixed order, so two runs give the same bits. */
#ifndef RANKLOOM_CP_H
#define RANKLOOM_CP_H

#include <rankloom/kernels.h>
#include <rankloom/mesh.h>
LOOM_BEGIN

typedef struct loom_cp loom_cp; /* opaque */

/* positions_S [seq / size]: where in a sequence of `seq` tokens those of rank `rank` of `size` lie, in the order in which it holds them. `seq`
 * must be a multiple of 2 * size, or size 1. The one definition of the cut: data, positions and masks all come from here. */
LOOM_API void loom_cp_split(int64_t seq, int size, int rank, int32_t *positions_S);

typedef struct loom_cp_config {
    loom_cp_kind kind;
    int64_t batch, seq;                /* sequences of a micro-batch, tokens of a whole sequence: the most that will be asked for */
    int64_t heads, kv_heads, head_dim; /* of this tp rank */
    int inner;                         /* hybrid: ranks of an all-to-all, neighbours in cp; 0: the most that the heads allow */
    bool documents;                    /* masks will name documents */
} loom_cp_config;

/* Collective over the cp axis: a hybrid makes its two groups here. All buffers are allocated here (messages as LOOM_MEM_COMM, positions as
 * LOOM_MEM_OTHER); a step allocates nothing. `mesh`, `kernels` and `compute` must outlive it. A sequence or heads that the kind cannot split are LOOM_E_INVALID with what it can. */
LOOM_API loom_status loom_cp_open(loom_mesh *mesh, loom_kernels *kernels, loom_stream *compute, const loom_cp_config *config, loom_cp **cp);
LOOM_API void loom_cp_close(loom_cp *cp); /* accepts NULL */

/* From now on calls are of this many sequences of this length; neither may exceed what it was opened for. Waits for `compute`. */
LOOM_API loom_status loom_cp_reshape(loom_cp *cp, int64_t batch, int64_t seq);

LOOM_API int64_t loom_cp_local_seq(const loom_cp *cp); /* tokens of each sequence on this rank */
/* [batch * local_seq] position in its sequence of each token of this rank: rows of rotary tables and position embeddings. On the device;
 * borrowed, good until the next reshape. */
LOOM_API const int32_t *loom_cp_positions(const loom_cp *cp);
LOOM_API const int32_t *loom_cp_host_positions(const loom_cp *cp); /* [local_seq] of one sequence, in memory of the host */

/* Floats that one attention has to keep from forward to backward besides o and lse, at the shape it was opened for. Where it is 0 (ring,
 * allgather) backward reads q, k and v again; where it is not they may be overwritten: `saved` holds them, and o, for this rank's heads. */
LOOM_API int64_t loom_cp_saved(const loom_cp *cp);

/* Attention of this rank's tokens over whole sequences. `args` as for the kernel, of this rank's tokens: q_seq and k_seq are local_seq, batch and
 * heads as opened; sequences follow each other without a gap. The mask's positions stay unset, they are known here; q_documents_BS has the ids of
 * this rank's tokens and k_documents_BS stays NULL. lse is for backward only: with ulysses and hybrid it is that of other rows.
 * Collective over cp; enqueued on `compute`. */
LOOM_API loom_status loom_cp_attention(loom_cp *cp, const loom_attention_args *args, float *saved);
/* args->forward as it was in forward. o and lse are those that forward wrote. */
LOOM_API loom_status loom_cp_attention_backward(loom_cp *cp, const loom_attention_backward_args *args, float *saved);

/* The groups that a hybrid made, of the all-to-all and of the ring; returns how many: the other kinds have none, they use the cp axis. Borrowed. */
LOOM_API int loom_cp_groups(const loom_cp *cp, const loom_comm *groups[2]);
/* What this rank handed to others over the cp axis and those groups. */
LOOM_API void loom_cp_traffic(const loom_cp *cp, loom_traffic *traffic);

LOOM_END
#endif
