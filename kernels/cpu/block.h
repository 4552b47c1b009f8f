/* What attention forward and backward share: which keys of a block a panel of queries sees. Scores are held transposed, S'[key][query], so
 * that a vector holds one key's scores for LANES queries and the softmax over keys needs no sum across lanes. */
#ifndef LOOM_KERNELS_BLOCK_H
#define LOOM_KERNELS_BLOCK_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tile.h"

/* A panel: the queries of one strip of tiles. */
enum { PANEL = TILE_COLS };

/* Position and document of some tokens, and their ranges. */
typedef struct token_tags {
    const int32_t *position, *document; /* document: NULL where there are none */
    int32_t first, last;                /* least and largest position */
    int32_t document_first, document_last;
} token_tags;

static inline token_tags tags_of(const int32_t *position, const int32_t *document, int64_t count)
{
    token_tags tags = {.position = position,
                       .document = document,
                       .first = INT32_MAX,
                       .last = INT32_MIN,
                       .document_first = INT32_MAX,
                       .document_last = INT32_MIN};

    for (int64_t i = 0; i < count; i++) {
        tags.first = position[i] < tags.first ? position[i] : tags.first;
        tags.last = position[i] > tags.last ? position[i] : tags.last;
        if (document) {
            tags.document_first = document[i] < tags.document_first ? document[i] : tags.document_first;
            tags.document_last = document[i] > tags.document_last ? document[i] : tags.document_last;
        }
    }
    return tags;
}

/* Positions of `count` tokens from `index` on, as an array. */
static inline void copy_positions(int32_t *to, const int32_t *positions, int64_t start, int64_t index, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = positions ? positions[index + i] : (int32_t)(start + index + i);
}

typedef enum sight { SEES_NONE, SEES_SOME, SEES_ALL } sight;

/* Whether these queries see none, some or all of these keys. "Some" may turn out to be none or all: it only means that one has to look. */
static inline sight sight_of(const loom_attention_mask *mask, const token_tags *q, const token_tags *k)
{
    bool all = !mask->causal || k->last <= q->first;

    if (mask->causal && k->first > q->last)
        return SEES_NONE;
    if (mask->window > 0) {
        if ((int64_t)k->last <= q->first - mask->window)
            return SEES_NONE;
        all = all && (int64_t)k->first > q->last - mask->window;
    }
    if (q->document) {
        if (k->document_first > q->document_last || k->document_last < q->document_first)
            return SEES_NONE;
        all = all && q->document_first == q->document_last && k->document_first == k->document_last;
    }
    return all ? SEES_ALL : SEES_SOME;
}

/* Keys of the block up to the last one that any of these queries sees by causality: the rest needs no arithmetic. */
static inline int64_t keys_in_reach(const loom_attention_mask *mask, const token_tags *q, const token_tags *k, int64_t keys)
{
    while (mask->causal && keys > 0 && k->position[keys - 1] > q->last)
        keys--;
    return keys;
}

/* Scores of keys that a query does not see become -inf. One vector of queries of S', rows `ld` apart. */
LOOM_INLINE void mask_lanes(const loom_attention_mask *mask, const token_tags *q, const token_tags *k, int lane, float *scores, int64_t ld,
                            int64_t keys)
{
    vi q_position = vi_load(q->position + lane), q_document = q->document ? vi_load(q->document + lane) : vi_set(0);

    for (int64_t j = 0; j < keys; j++) {
        vi seen = vi_set(-1);

        if (mask->causal)
            seen &= vi_set(k->position[j]) <= q_position;
        if (mask->window > 0)
            seen &= vi_set(k->position[j]) > q_position - vi_set((int32_t)mask->window);
        if (q->document)
            seen &= vi_set(k->document[j]) == q_document;
        vf_store(scores + j * ld, vf_select(seen, vf_load(scores + j * ld), vf_set(-INFINITY)));
    }
}

/* Strides with "tight" filled in. */
static inline loom_bshk bshk_of(loom_bshk at, int64_t heads, int64_t head_dim, int64_t seq)
{
    at.token = or_tight(at.token, heads * head_dim);
    at.sequence = or_tight(at.sequence, seq * at.token);
    return at;
}

#endif
