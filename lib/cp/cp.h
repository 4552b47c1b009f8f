/* Inside of context parallelism. An attention is made in two layers, either of which may be trivial:
 *   exchange  all-to-all over `inner`: from some tokens of all heads to more tokens of fewer heads, and back
 *   blocks    what is then on one rank of `outer` meets the keys of the others: by ring, or gathered
 * ring and allgather have an inner of one rank, ulysses an outer of one; a hybrid has both. */
#ifndef LOOM_CP_CP_H
#define LOOM_CP_CP_H

#include <rankloom/cp.h>
#include <rankloom/sizes.h>

struct loom_cp {
    loom_kernels *kernels;
    loom_stream *compute;
    loom_stream *hops;                   /* own: messages of the ring, under the attention of the block at hand */
    loom_event *computed, *kv_arrived, *dkv_arrived;
    loom_cp_config opened;
    int size, rank;
    loom_comm *all, *inner, *outer;      /* of n = inner x outer ranks; inner and outer may be NULL: one rank */
    bool owns_groups;
    int n_inner, n_outer, outer_rank;
    int64_t batch, seq, local_seq;       /* at present */
    int64_t group_seq;                   /* tokens of a sequence on one rank of outer: local_seq * n_inner */
    int64_t group_heads, group_kv_heads; /* on this rank between the exchanges */

    int32_t *positions_S; /* [seq] in rank order: entry r * local_seq + i is token i of rank r */
    int32_t *positions_T; /* [batch * local_seq] of this rank */
    int32_t *host_positions;
    int32_t *document_parts, *documents; /* [rank][batch, local_seq]; [key block][batch, its tokens] */

    float *memory;
    float *sent, *landed, *worked;       /* exchange */
    float *kv[2], *dkv[2], *dkv_part;    /* ring: [batch, group_seq, 2, kv heads, K] */
    float *o_part, *lse_part;
    float *kv_mine, *kv_landed, *kv_all, *dkv_all; /* gathered */
};

/* A row of keys and values side by side, [2, kv heads, K] of group_kv_heads; rows of a block of outer. */
static inline int64_t loom_cp_kv_row(const loom_cp *cp)
{
    return 2 * cp->group_kv_heads * cp->opened.head_dim;
}

static inline int64_t loom_cp_kv_count(const loom_cp *cp)
{
    return cp->batch * cp->group_seq * loom_cp_kv_row(cp);
}

/* Copies rows of `cols` floats of `count` tokens, `from_row` and `to_row` apart. */
loom_status loom_cp_copy_rows(loom_cp *cp, float *to, int64_t to_row, const float *from, int64_t from_row, int64_t cols, int64_t count, bool accumulate);
/* [parts, batch, n] -> [batch, parts, n], n floats each: what the ranks hold of each sequence becomes sequences. And back: parts and batch change places. */
loom_status loom_cp_swap(loom_cp *cp, float *to, const float *from, int64_t parts, int64_t batch, int64_t n);
/* k and v side by side in tight rows, and back. */
loom_status loom_cp_pack_kv(loom_cp *cp, const loom_attention_args *args, float *kv);
loom_status loom_cp_unpack_dkv(loom_cp *cp, const loom_attention_backward_args *args, const float *dkv, bool accumulate);

/* `args` with the keys of block `block` of outer, in tight rows at `kv`; their positions and documents in the mask. */
loom_attention_args loom_cp_with_keys(const loom_cp *cp, const loom_attention_args *args, const float *kv, int block);
/* `args` with the positions and documents of this rank's own block as keys. */
loom_attention_args loom_cp_with_own_keys(const loom_cp *cp, const loom_attention_args *args);

loom_status loom_cp_ring(loom_cp *cp, const loom_attention_args *args);
loom_status loom_cp_ring_backward(loom_cp *cp, const loom_attention_backward_args *args);
loom_status loom_cp_gathered(loom_cp *cp, const loom_attention_args *args);
loom_status loom_cp_gathered_backward(loom_cp *cp, const loom_attention_backward_args *args);

/* Into and out of the exchange. `inside` describes the same attention between the exchanges; its buffers are parts of `saved` and of cp. */
loom_status loom_cp_exchange_in(loom_cp *cp, const loom_attention_args *args, float *saved, loom_attention_args *inside);
loom_status loom_cp_exchange_out(loom_cp *cp, const loom_attention_args *args, const loom_attention_args *inside);
loom_status loom_cp_exchange_backward_in(loom_cp *cp, const loom_attention_backward_args *args, float *saved, loom_attention_backward_args *inside);
loom_status loom_cp_exchange_backward_out(loom_cp *cp, const loom_attention_backward_args *args, const loom_attention_backward_args *inside);

#endif
