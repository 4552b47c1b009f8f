/* Collectives in shared memory. Each begins alike (meet), and then one of three bodies does the work: small (data came with the posts),
 * direct (peers' buffers are read and written in their heaps), staged (through chunks). */
#include "comm/shm.h"
#include "comm/signature.h"

#include <stdlib.h>
#include <string.h>

#include "comm/resume.h"
#include "device/backend.h"

/* --- helpers ------------------------------------------------------------------------------------------------------------- */

static size_t element_bytes(const loom_call *call)
{
    return loom_dtype_bytes(call->dtype);
}

/* Bytes of the buffers that `send` and `recv` point to. */
static size_t send_bytes(const loom_call *call)
{
    size_t bytes = call->count * element_bytes(call);

    return call->kind == LOOM_CALL_REDUCE_SCATTER || call->kind == LOOM_CALL_ALL_TO_ALL ? bytes * (size_t)call->comm->size : bytes;
}

static bool is_small(const loom_call *call)
{
    return call->kind != LOOM_CALL_ALL_TO_ALL_V && send_bytes(call) <= SHM_SMALL;
}

static shm_post *post_of(const loom_call *call, int rank)
{
    return &shm_of(call->comm)->boxes[rank]->posts[call->sequence & 1];
}

/* Row of `rank`'s counts for all_to_all_v: 0 send counts, 1 send offsets, 2 recv counts. */
static _Atomic uint64_t *row_of(const loom_call *call, int rank, int row)
{
    size_t n = (size_t)call->comm->size;

    return shm_of(call->comm)->boxes[rank]->words + 2 * n + ((call->sequence & 1) * 3 + (size_t)row) * n;
}

static size_t read_row(const loom_call *call, int rank, int row, int of)
{
    return (size_t)atomic_load_explicit(&row_of(call, rank, row)[of], memory_order_relaxed);
}

/* Where `rank`'s buffer is mapped here; only where all have said that theirs is in a heap. */
static char *peer_send(const loom_call *call, int rank)
{
    return shm_of(call->comm)->bases[rank] + post_of(call, rank)->send;
}

static char *peer_recv(const loom_call *call, int rank)
{
    return shm_of(call->comm)->bases[rank] + post_of(call, rank)->recv;
}

static void ring_peers(const loom_comm *comm)
{
    shm_comm *c = shm_of(comm);

    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            loom_doorbell_ring(c->bells[r]);
}

/* This rank is through with a part of the call; `target` is the tick at which all are. */
static void count_tick(loom_call *call)
{
    shm_comm *c = shm_of(call->comm);
    shm_call *s = loom_call_scratch(call);

    s->target = ++c->ticks;
    s->scan = 0;
    atomic_store(&c->box->tick, c->ticks);
    ring_peers(call->comm);
}

static bool all_ticked(const loom_call *call)
{
    const shm_comm *c = shm_of(call->comm);
    shm_call *s = loom_call_scratch((loom_call *)call);

    while (s->scan < call->comm->size && atomic_load_explicit(&c->boxes[s->scan]->tick, memory_order_acquire) >= s->target)
        s->scan++;
    return s->scan == call->comm->size;
}

/* --- meeting -------------------------------------------------------------------------------------------------------------- */

static void post(loom_call *call)
{
    const loom_comm *comm = call->comm;
    shm_post *mine = post_of(call, comm->rank);
    bool v = call->kind == LOOM_CALL_ALL_TO_ALL_V;
    loom_signature signature = loom_signature_of(call);

    mine->count = signature.count;
    mine->what = signature.what;
    mine->root = signature.root;
    if (call->kind == LOOM_CALL_BARRIER) {
        memcpy(mine->data, call->name, sizeof call->name);
    } else if (!is_small(call)) {
        mine->send = shm_offset(comm, call->send, v ? call->send != NULL : send_bytes(call));
        mine->recv = shm_offset(comm, call->recv, v ? 0 : call->count);
    } else if (call->count) {
        memcpy(mine->data, call->send, send_bytes(call));
    }
    for (size_t i = 0; v && i < 3 * (size_t)comm->size; i++)
        atomic_store_explicit(&row_of(call, comm->rank, 0)[i], call->counts[i], memory_order_relaxed);
    atomic_store(&mine->sequence, call->sequence + 1);
    ring_peers(comm);
}

static bool has_posted(const loom_call *call, int rank)
{
    return atomic_load_explicit(&post_of(call, rank)->sequence, memory_order_acquire) == call->sequence + 1;
}

static bool all_posted(const loom_call *call)
{
    shm_call *s = loom_call_scratch((loom_call *)call);

    while (s->scan < call->comm->size && has_posted(call, s->scan))
        s->scan++;
    return s->scan == call->comm->size;
}

bool loom_shm_is_absent(const loom_call *call, int rank)
{
    const shm_call *s = loom_call_scratch((loom_call *)call);

    return s->met ? atomic_load(&shm_of(call->comm)->boxes[rank]->tick) < s->target : !has_posted(call, rank);
}

static loom_signature signature_of(const loom_call *call, int rank)
{
    const shm_post *p = post_of(call, rank);

    return (loom_signature){p->count, p->what, p->root, p->data};
}

static loom_status compare_counts(const loom_call *call)
{
    for (int a = 0; a < call->comm->size; a++)
        for (int b = 0; b < call->comm->size; b++) {
            loom_status status = loom_signature_compare_counts(call, a, b, read_row(call, a, 0, b), read_row(call, b, 2, a));
            if (status < 0)
                return status;
        }
    return LOOM_OK;
}

/* Every rank compares all posts with rank 0's, so all ranks find the same and say the same. */
static loom_status compare(const loom_call *call)
{
    loom_signature zero = signature_of(call, 0);

    for (int r = 1; r < call->comm->size; r++) {
        loom_signature other = signature_of(call, r);
        loom_status status = loom_signature_compare(call, &zero, &other, r);
        if (status < 0)
            return status;
    }
    return call->kind == LOOM_CALL_ALL_TO_ALL_V ? compare_counts(call) : LOOM_OK;
}

static bool can_be_direct(const loom_call *call)
{
    if (call->kind == LOOM_CALL_BROADCAST)
        return post_of(call, call->peer)->send != SHM_NOWHERE;
    for (int r = 0; r < call->comm->size; r++)
        if (post_of(call, r)->send == SHM_NOWHERE || (call->kind == LOOM_CALL_ALL_REDUCE && post_of(call, r)->recv == SHM_NOWHERE))
            return false;
    return true;
}

/* --- small: the data came with the posts -------------------------------------------------------------------------------------- */

/* This rank's own data comes from its buffer: a core that reads its own post again would only slow the peer's reading of it down. */
static void reduce_posts(loom_call *call, size_t offset)
{
    const void **inputs = shm_of(call->comm)->inputs;

    for (int r = 0; r < call->comm->size; r++)
        inputs[r] = (r == call->comm->rank ? (const char *)call->send : post_of(call, r)->data) + offset;
    loom_reduce(call->comm->world->reducer, call->recv, inputs, call->comm->size, call->count, call->dtype, call->op);
}

static void copy_posts(loom_call *call, size_t offset)
{
    size_t bytes = call->count * element_bytes(call);

    for (int r = 0; r < call->comm->size; r++)
        memmove((char *)call->recv + (size_t)r * bytes,
                (r == call->comm->rank ? (const char *)call->send : post_of(call, r)->data) + offset, bytes);
}

/* The lines behind the one that is polled: frees the peer's for it, and fetches those of this rank's next post. All are done with that
 * slot: they have posted what came after it. */
static void prepare_next_post(loom_call *call)
{
    const loom_comm *comm = call->comm;
    size_t bytes = send_bytes(call);

    if (bytes <= SHM_INLINE)
        return;
    if (comm->size == 2)
        shm_claim(post_of(call, 1 - comm->rank)->data + SHM_INLINE, bytes - SHM_INLINE);
    shm_prefetch_for_write(shm_of(comm)->box->posts[(call->sequence + 1) & 1].data + SHM_INLINE, bytes - SHM_INLINE);
}

static loom_step small_body(loom_call *call)
{
    size_t bytes = call->count * element_bytes(call), mine = bytes * (size_t)call->comm->rank;

    if (!call->count)
        return shm_over(call, LOOM_OK);
    switch (call->kind) {
    case LOOM_CALL_ALL_REDUCE:
        reduce_posts(call, 0);
        break;
    case LOOM_CALL_REDUCE_SCATTER:
        reduce_posts(call, mine);
        break;
    case LOOM_CALL_ALL_GATHER:
    case LOOM_CALL_SPLIT:
        copy_posts(call, 0);
        break;
    case LOOM_CALL_ALL_TO_ALL:
        copy_posts(call, mine);
        break;
    case LOOM_CALL_BROADCAST:
        if (call->comm->rank != call->peer)
            memcpy(call->recv, post_of(call, call->peer)->data, bytes);
        break;
    default: /* a barrier: all have met */
        break;
    }
    prepare_next_post(call);
    return shm_over(call, LOOM_OK);
}

/* --- direct ---------------------------------------------------------------------------------------------------------------------- */

/* Elements [begin, end) of `count` that `rank` of `size` works on: whole cache lines, so that no two ranks write one. */
static void divide(size_t count, size_t element, int size, int rank, size_t *begin, size_t *end)
{
    size_t unit = 64 / element, units = (count + unit - 1) / unit;
    size_t each = (units + (size_t)size - 1) / (size_t)size * unit;

    *begin = each * (size_t)rank < count ? each * (size_t)rank : count;
    *end = *begin + each < count ? *begin + each : count;
}

/* Sums a piece of this rank's block out of all send buffers and hands the result to all recv buffers while it is in the cache. In place is
 * safe: nobody else reads or writes this block, of anybody's buffer. */
static void reduce_and_hand_out(loom_call *call, size_t begin, size_t end)
{
    enum { TILE_BYTES = 16 << 10 };
    const loom_comm *comm = call->comm;
    const void **inputs = shm_of(comm)->inputs;
    size_t element = element_bytes(call), tile = TILE_BYTES / element;

    for (size_t at = begin; at < end; at += tile) {
        size_t now = end - at < tile ? end - at : tile;
        char *mine = (char *)call->recv + at * element;
        for (int r = 0; r < comm->size; r++)
            inputs[r] = peer_send(call, r) + at * element;
        loom_reduce(comm->world->reducer, mine, inputs, comm->size, now, call->dtype, call->op);
        for (int i = 1; i < comm->size; i++) {
            int r = (comm->rank + i) % comm->size;
            memcpy(peer_recv(call, r) + at * element, mine, now * element);
        }
    }
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static loom_step direct_all_reduce(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    size_t begin, end, piece = SHM_PIECE / element_bytes(call);

    divide(call->count, element_bytes(call), call->comm->size, call->comm->rank, &begin, &end);
    LOOM_RESUME(&s->resume);
    while (begin + s->done < end) {
        size_t at = begin + s->done;
        reduce_and_hand_out(call, at, least(at + piece, end));
        s->done += piece;
        LOOM_YIELD(&s->resume);
    }
    count_tick(call);
    LOOM_AWAIT(&s->resume, all_ticked(call)); /* all have summed: what is in recv is complete, and nobody reads send any more */
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

static loom_step direct_reduce_scatter(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    const loom_comm *comm = call->comm;
    const void **inputs = shm_of(comm)->inputs;
    size_t element = element_bytes(call), piece = SHM_PIECE / element;

    LOOM_RESUME(&s->resume);
    while (s->done < call->count) {
        for (int r = 0; r < comm->size; r++)
            inputs[r] = peer_send(call, r) + ((size_t)comm->rank * call->count + s->done) * element;
        loom_reduce(comm->world->reducer, (char *)call->recv + s->done * element, inputs, comm->size, least(piece, call->count - s->done),
                    call->dtype, call->op);
        s->done += piece;
        LOOM_YIELD(&s->resume);
    }
    count_tick(call);
    LOOM_AWAIT(&s->resume, all_ticked(call));
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

/* Copies the next piece of `bytes`; s->done counts. */
static void copy_piece(shm_call *s, char *to, const char *from, size_t bytes)
{
    size_t now = least(SHM_PIECE, bytes - s->done);

    if (to != from) /* in place */
        memcpy(to + s->done, from + s->done, now);
    s->done += now;
}

static loom_step direct_all_gather(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    size_t bytes = call->count * element_bytes(call);

    LOOM_RESUME(&s->resume);
    for (; s->block < call->comm->size; s->block++) {
        for (s->done = 0; s->done < bytes;) {
            int r = (call->comm->rank + s->block) % call->comm->size; /* not all at one rank's memory at a time */
            copy_piece(s, (char *)call->recv + (size_t)r * bytes, peer_send(call, r), bytes);
            LOOM_YIELD(&s->resume);
        }
    }
    count_tick(call);
    LOOM_AWAIT(&s->resume, all_ticked(call));
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

/* Elements that `from` sends to `to`, and where they begin in its send buffer. */
static size_t exchanged(const loom_call *call, int from, int to)
{
    return call->kind == LOOM_CALL_ALL_TO_ALL ? call->count : read_row(call, from, 0, to);
}

static size_t send_offset(const loom_call *call, int from, int to)
{
    return call->kind == LOOM_CALL_ALL_TO_ALL ? call->count * (size_t)to : read_row(call, from, 1, to);
}

static size_t recv_offset(const loom_call *call, int from)
{
    return call->kind == LOOM_CALL_ALL_TO_ALL ? call->count * (size_t)from : call->counts[3 * (size_t)call->comm->size + (size_t)from];
}

static loom_step direct_exchange(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    int me = call->comm->rank;
    size_t element = element_bytes(call);

    LOOM_RESUME(&s->resume);
    for (; s->block < call->comm->size; s->block++) {
        s->length = exchanged(call, (me + s->block) % call->comm->size, me) * element;
        for (s->done = 0; s->done < s->length;) {
            int r = (me + s->block) % call->comm->size;
            copy_piece(s, (char *)call->recv + recv_offset(call, r) * element, peer_send(call, r) + send_offset(call, r, me) * element,
                       s->length);
            LOOM_YIELD(&s->resume);
        }
    }
    count_tick(call);
    LOOM_AWAIT(&s->resume, all_ticked(call));
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

/* The others copy, the root waits until they have. A root that gave up meanwhile may have changed its buffer under the copy. */
static loom_step direct_broadcast(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    bool is_root = call->comm->rank == call->peer;
    size_t bytes = call->count * element_bytes(call);

    LOOM_RESUME(&s->resume);
    while (!is_root && s->done < bytes) {
        copy_piece(s, call->recv, peer_send(call, call->peer), bytes);
        LOOM_YIELD(&s->resume);
    }
    count_tick(call);
    LOOM_AWAIT(&s->resume, all_ticked(call) || (!is_root && atomic_load(&shm_of(call->comm)->boxes[call->peer]->failed) >= 0));
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

/* --- staged: any buffer, through chunks in every rank's heap ------------------------------------------------------------------------
 * Two chunks of each kind are enough: a rank that writes chunk c+2 has seen all ranks tick in chunk c+1, which they did after they were
 * done with chunk c. Between calls the posts keep ranks as far apart. */

static loom_status open_staging(loom_call *call)
{
    shm_comm *c = shm_of(call->comm);
    void *staging;
    loom_status status;

    if (c->staging)
        return LOOM_OK;
    if ((status = loom_device_take(call->comm->world->device, 4 * SHM_CHUNK, false, &staging)) < 0)
        return status;
    c->staging = staging;
    atomic_store(&c->box->staging, shm_offset(call->comm, staging, 1)); /* peers look after our next tick */
    return LOOM_OK;
}

static char *staged_in(const loom_call *call, int rank)
{
    const shm_comm *c = shm_of(call->comm);
    const shm_call *s = loom_call_scratch((loom_call *)call);

    return c->bases[rank] + atomic_load_explicit(&c->boxes[rank]->staging, memory_order_relaxed) + (size_t)(s->chunk & 1) * SHM_CHUNK;
}

static char *staged_out(const loom_call *call, int rank)
{
    return staged_in(call, rank) + 2 * SHM_CHUNK;
}

/* Elements in a chunk, and in a slice of it for each rank. */
static size_t chunk_count(const loom_call *call)
{
    return SHM_CHUNK / element_bytes(call);
}

static size_t slice_count(const loom_call *call)
{
    return SHM_CHUNK / (size_t)call->comm->size / 64 * 64 / element_bytes(call);
}

/* What this rank alone read in its peers' staging. */
static void claim_inputs(loom_call *call, size_t bytes)
{
    const loom_comm *comm = call->comm;

    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            shm_claim((char *)shm_of(comm)->inputs[r], bytes);
}

/* All ranks read what lies in `rank`'s staging; that is one reader only between two. */
static void claim_if_alone(const loom_call *call, int rank, char *piece, size_t bytes)
{
    if (call->comm->size == 2 && rank != call->comm->rank)
        shm_claim(piece, bytes);
}

/* Sums this rank's block of the chunk into recv, and lays it out for the others. */
static void reduce_chunk(loom_call *call, char *to, size_t count)
{
    const loom_comm *comm = call->comm;
    const void **inputs = shm_of(comm)->inputs;
    size_t begin, end, element = element_bytes(call);

    divide(count, element, comm->size, comm->rank, &begin, &end);
    for (int r = 0; r < comm->size; r++)
        inputs[r] = staged_in(call, r) + begin * element;
    loom_reduce(comm->world->reducer, to + begin * element, inputs, comm->size, end - begin, call->dtype, call->op);
    memcpy(staged_out(call, comm->rank) + begin * element, to + begin * element, (end - begin) * element);
    claim_inputs(call, (end - begin) * element);
}

static void collect_chunk(loom_call *call, char *to, size_t count)
{
    size_t begin, end, element = element_bytes(call);

    for (int r = 0; r < call->comm->size; r++) {
        if (r == call->comm->rank)
            continue;
        divide(count, element, call->comm->size, r, &begin, &end);
        memcpy(to + begin * element, staged_out(call, r) + begin * element, (end - begin) * element);
        claim_if_alone(call, r, staged_out(call, r) + begin * element, (end - begin) * element);
    }
}

static loom_step staged_all_reduce(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    size_t element = element_bytes(call), count = least(chunk_count(call), call->count - s->done);
    loom_status status;

    LOOM_RESUME(&s->resume);
    if ((status = open_staging(call)) < 0)
        return shm_over(call, status);
    while (s->done < call->count) {
        memcpy(staged_in(call, call->comm->rank), (const char *)call->send + s->done * element, count * element);
        count_tick(call);
        LOOM_AWAIT(&s->resume, all_ticked(call));
        reduce_chunk(call, (char *)call->recv + s->done * element, count);
        count_tick(call);
        LOOM_AWAIT(&s->resume, all_ticked(call));
        collect_chunk(call, (char *)call->recv + s->done * element, count);
        s->done += count;
        s->chunk++;
        LOOM_YIELD(&s->resume); /* and `count` is computed anew */
    }
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

static loom_step staged_reduce_scatter(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    const loom_comm *comm = call->comm;
    size_t element = element_bytes(call), slice = slice_count(call), count = least(slice, call->count - s->done);
    loom_status status;

    LOOM_RESUME(&s->resume);
    if ((status = open_staging(call)) < 0)
        return shm_over(call, status);
    while (s->done < call->count) {
        for (int r = 0; r < comm->size; r++)
            memcpy(staged_in(call, comm->rank) + (size_t)r * slice * element,
                   (const char *)call->send + ((size_t)r * call->count + s->done) * element, count * element);
        count_tick(call);
        LOOM_AWAIT(&s->resume, all_ticked(call));
        for (int r = 0; r < comm->size; r++)
            shm_of(comm)->inputs[r] = staged_in(call, r) + (size_t)comm->rank * slice * element;
        loom_reduce(comm->world->reducer, (char *)call->recv + s->done * element, shm_of(comm)->inputs, comm->size, count, call->dtype,
                    call->op);
        claim_inputs(call, count * element);
        s->done += count;
        s->chunk++;
        LOOM_YIELD(&s->resume);
    }
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

static loom_step staged_all_gather(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    size_t element = element_bytes(call), count = least(chunk_count(call), call->count - s->done);
    loom_status status;

    LOOM_RESUME(&s->resume);
    if ((status = open_staging(call)) < 0)
        return shm_over(call, status);
    while (s->done < call->count) {
        memcpy(staged_in(call, call->comm->rank), (const char *)call->send + s->done * element, count * element);
        count_tick(call);
        LOOM_AWAIT(&s->resume, all_ticked(call));
        for (int r = 0; r < call->comm->size; r++) {
            const char *from = r == call->comm->rank ? (const char *)call->send + s->done * element : staged_in(call, r);
            memmove((char *)call->recv + ((size_t)r * call->count + s->done) * element, from, count * element);
            claim_if_alone(call, r, staged_in(call, r), count * element);
        }
        s->done += count;
        s->chunk++;
        LOOM_YIELD(&s->resume);
    }
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

/* The most that any rank sends to any: how long the exchange goes on. */
static size_t longest_exchange(const loom_call *call)
{
    size_t most = 0;

    for (int a = 0; a < call->comm->size; a++)
        for (int b = 0; b < call->comm->size; b++)
            if (exchanged(call, a, b) > most)
                most = exchanged(call, a, b);
    return most;
}

static size_t left_of(size_t count, size_t done, size_t slice)
{
    return done < count ? least(slice, count - done) : 0;
}

static void stage_slices(loom_call *call, size_t slice)
{
    const shm_call *s = loom_call_scratch(call);
    int me = call->comm->rank;
    size_t element = element_bytes(call);

    for (int r = 0; r < call->comm->size; r++) {
        size_t bytes = left_of(exchanged(call, me, r), s->done, slice) * element;
        if (bytes)
            memcpy(staged_in(call, me) + (size_t)r * slice * element,
                   (const char *)call->send + (send_offset(call, me, r) + s->done) * element, bytes);
    }
}

static void collect_slices(loom_call *call, size_t slice)
{
    const shm_call *s = loom_call_scratch(call);
    int me = call->comm->rank;
    size_t element = element_bytes(call);

    for (int r = 0; r < call->comm->size; r++) {
        size_t bytes = left_of(exchanged(call, r, me), s->done, slice) * element;
        char *piece = staged_in(call, r) + (size_t)me * slice * element;
        if (!bytes)
            continue;
        memcpy((char *)call->recv + (recv_offset(call, r) + s->done) * element, piece, bytes);
        if (r != me)
            shm_claim(piece, bytes);
    }
}

static loom_step staged_exchange(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    size_t slice = slice_count(call);
    loom_status status;

    LOOM_RESUME(&s->resume);
    if ((status = open_staging(call)) < 0)
        return shm_over(call, status);
    s->length = longest_exchange(call);
    while (s->done < s->length) {
        stage_slices(call, slice);
        count_tick(call);
        LOOM_AWAIT(&s->resume, all_ticked(call));
        collect_slices(call, slice);
        s->done += slice;
        s->chunk++;
        LOOM_YIELD(&s->resume);
    }
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

static loom_step staged_broadcast(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    bool is_root = call->comm->rank == call->peer;
    size_t element = element_bytes(call), count = least(chunk_count(call), call->count - s->done);
    loom_status status;

    LOOM_RESUME(&s->resume);
    if ((status = open_staging(call)) < 0)
        return shm_over(call, status);
    while (s->done < call->count) {
        if (is_root)
            memcpy(staged_in(call, call->peer), (const char *)call->send + s->done * element, count * element);
        count_tick(call);
        LOOM_AWAIT(&s->resume, all_ticked(call));
        if (!is_root) {
            memcpy((char *)call->recv + s->done * element, staged_in(call, call->peer), count * element);
            claim_if_alone(call, call->peer, staged_in(call, call->peer), count * element);
        }
        s->done += count;
        s->chunk++;
        LOOM_YIELD(&s->resume);
    }
    LOOM_RESUME_END;
    return shm_over(call, LOOM_OK);
}

/* --- the whole call ------------------------------------------------------------------------------------------------------------------- */

static loom_step (*const direct_bodies[LOOM_CALL_KINDS])(loom_call *) = {
    [LOOM_CALL_ALL_REDUCE] = direct_all_reduce, [LOOM_CALL_REDUCE_SCATTER] = direct_reduce_scatter,
    [LOOM_CALL_ALL_GATHER] = direct_all_gather, [LOOM_CALL_ALL_TO_ALL] = direct_exchange,
    [LOOM_CALL_ALL_TO_ALL_V] = direct_exchange, [LOOM_CALL_BROADCAST] = direct_broadcast,
    [LOOM_CALL_SPLIT] = direct_all_gather,
};

static loom_step (*const staged_bodies[LOOM_CALL_KINDS])(loom_call *) = {
    [LOOM_CALL_ALL_REDUCE] = staged_all_reduce, [LOOM_CALL_REDUCE_SCATTER] = staged_reduce_scatter,
    [LOOM_CALL_ALL_GATHER] = staged_all_gather, [LOOM_CALL_ALL_TO_ALL] = staged_exchange,
    [LOOM_CALL_ALL_TO_ALL_V] = staged_exchange, [LOOM_CALL_BROADCAST] = staged_broadcast,
    [LOOM_CALL_SPLIT] = staged_all_gather,
};

static loom_step meet(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    loom_status status;

    LOOM_RESUME(&s->resume);
    post(call);
    LOOM_AWAIT(&s->resume, all_posted(call));
    LOOM_RESUME_END;
    if ((status = compare(call)) < 0)
        return shm_over(call, status);
    s->resume = 0;
    s->met = true;
    s->gone = false;
    s->body = is_small(call) ? small_body : can_be_direct(call) ? direct_bodies[call->kind] : staged_bodies[call->kind];
    return LOOM_STEP_AGAIN;
}

loom_step loom_shm_collective_step(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);

    if (!s->met) {
        loom_step step = meet(call);
        if (step != LOOM_STEP_AGAIN || s->body != small_body)
            return step;
    }
    return s->body(call);
}
