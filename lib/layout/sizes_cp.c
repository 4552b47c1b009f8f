/* Sizes of context parallelism's buffers. */
#include <rankloom/sizes.h>

bool loom_cp_heads_split(int64_t heads, int64_t kv_heads, int64_t parts)
{
    return heads % parts == 0 && (kv_heads % parts == 0 || parts % kv_heads == 0);
}

int loom_cp_inner(loom_cp_kind kind, int size, int64_t heads, int64_t kv_heads)
{
    int inner = size - 1;

    if (kind == LOOM_CP_ULYSSES)
        return size;
    if (kind != LOOM_CP_HYBRID || size == 1)
        return 1;
    while (inner > 1 && !(size % inner == 0 && loom_cp_heads_split(heads, kv_heads, inner)))
        inner--;
    return inner;
}

void loom_cp_shape_of(loom_cp_kind kind, int size, int inner, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim,
                      loom_cp_shape *s)
{
    *s = (loom_cp_shape){.kind = kind,
                         .size = size,
                         .inner = inner,
                         .outer = size / inner,
                         .batch = batch,
                         .local_seq = seq / size,
                         .group_seq = seq / size * inner,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .group_heads = heads / inner,
                         .group_kv_heads = kv_heads > inner ? kv_heads / inner : 1,
                         .head_dim = head_dim};
}

int64_t loom_cp_kv_elements(const loom_cp_shape *s)
{
    return s->batch * s->group_seq * 2 * s->group_kv_heads * s->head_dim;
}

int64_t loom_cp_kept(const loom_cp_shape *s)
{
    return s->inner == 1 ? 0 : s->batch * s->group_seq * 2 * (s->group_heads + s->group_kv_heads) * s->head_dim;
}

/* Counts, 0 where the kind has no such buffer. */
static void count_buffers(const loom_cp_shape *s, int64_t count[LOOM_CP_BUFFERS])
{
    int64_t kv = loom_cp_kv_elements(s), rows = s->batch * s->group_seq;
    int64_t exchanged = rows * (s->group_heads + 2 * s->group_kv_heads) * s->head_dim;
    bool gathers = s->kind == LOOM_CP_ALLGATHER, rings = !gathers && s->outer > 1;

    for (int i = LOOM_CP_SENT; i <= LOOM_CP_WORKED; i++)
        count[i] = s->inner > 1 ? exchanged : 0;
    count[LOOM_CP_KV_MINE] = gathers ? kv : 0;
    count[LOOM_CP_KV_LANDED] = count[LOOM_CP_DKV_ALL] = gathers ? kv * s->size : 0;
    count[LOOM_CP_KV_ALL] = gathers && s->batch > 1 ? kv * s->size : 0; /* one sequence comes in as it is wanted */
    for (int i = LOOM_CP_KV_EVEN; i < LOOM_CP_BUFFERS; i++)
        count[i] = rings ? kv : 0;
    count[LOOM_CP_O_PART] = rings ? rows * s->group_heads * s->head_dim : 0;
    count[LOOM_CP_LSE_PART] = rings ? rows * s->group_heads : 0;
}

int64_t loom_cp_place(const loom_cp_shape *s, int64_t offset[LOOM_CP_BUFFERS])
{
    int64_t count[LOOM_CP_BUFFERS], shared, forward, backward;

    if (s->size == 1) {
        for (int i = 0; i < LOOM_CP_BUFFERS; i++)
            offset[i] = -1;
        return 0;
    }
    count_buffers(s, count);
    shared = loom_carve(count, LOOM_CP_O_PART, offset);
    forward = loom_carve(count + LOOM_CP_O_PART, LOOM_CP_DKV_EVEN - LOOM_CP_O_PART, offset + LOOM_CP_O_PART);
    backward = loom_carve(count + LOOM_CP_DKV_EVEN, LOOM_CP_BUFFERS - LOOM_CP_DKV_EVEN, offset + LOOM_CP_DKV_EVEN);
    for (int i = LOOM_CP_O_PART; i < LOOM_CP_BUFFERS; i++)
        offset[i] += shared;
    for (int i = 0; i < LOOM_CP_BUFFERS; i++)
        if (count[i] == 0)
            offset[i] = -1;
    return shared + (forward > backward ? forward : backward);
}
