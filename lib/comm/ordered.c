/* Collectives over point to point.
 *
 * Every call begins with a post from everyone to everyone: what is called, the counts of all_to_all_v, and up to ORDERED_SMALL bytes of
 * data, with which a small call is over after one hop. All ranks hold all posts, so all find the same mismatch. Data of a large call leaves
 * a rank only when that rank has found all posts alike; so it may be received straight into the caller's buffer, and a mismatch leaves that
 * as it was.
 *
 * Large reductions: rank r gets everyone's slice r, adds them in rank order and hands the sum to everyone, round after round of slices, two
 * rounds under way. Each rank sends 2(n-1)/n of the buffer, which is the least there is. */
#include "comm/ordered.h"

#include <stdlib.h>
#include <string.h>

#include "comm/resume.h"
#include "comm/signature.h"

enum { ORDERED_SMALL = 4096, SLICE_BYTES = 256 << 10 };

typedef struct ordered_post {
    uint64_t count;
    uint32_t what;
    int32_t root;
    char name[LOOM_COMM_NAME_BYTES];
    /* data of a small call, or counts [3][size] of all_to_all_v: send counts, send offsets, recv counts */
} ordered_post;

/* Parcels by what they carry; each kind has two generations (rounds under way) of one a rank. */
typedef enum parcel_kind { POST_OUT, POST_IN, DATA_OUT, DATA_IN, RESULT_OUT, RESULT_IN, PARCEL_KINDS } parcel_kind;

struct ordered_memory {
    loom_parcel *parcels; /* [PARCEL_KINDS][2][size] */
    const void **inputs;  /* [size] */
    char *posts;          /* [size][post_bytes] */
    char *room;           /* [2][size][SLICE_BYTES] of a reduction; NULL until the call turns out to be large */
    size_t post_bytes;
};

static ordered_call *scratch(const loom_call *call)
{
    return loom_call_scratch((loom_call *)call);
}

static size_t element_bytes(const loom_call *call)
{
    return loom_dtype_bytes(call->dtype);
}

static size_t send_bytes(const loom_call *call)
{
    size_t bytes = call->count * element_bytes(call);

    return call->kind == LOOM_CALL_REDUCE_SCATTER || call->kind == LOOM_CALL_ALL_TO_ALL ? bytes * (size_t)call->comm->size : bytes;
}

static bool is_small(const loom_call *call)
{
    return call->kind != LOOM_CALL_ALL_TO_ALL_V && send_bytes(call) <= ORDERED_SMALL;
}

static bool is_reduction(const loom_call *call)
{
    return call->kind == LOOM_CALL_ALL_REDUCE || call->kind == LOOM_CALL_REDUCE_SCATTER;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* --- parcels ------------------------------------------------------------------------------------------------------------------ */

static loom_parcel *parcel_of(const loom_call *call, parcel_kind kind, size_t round, int rank)
{
    return &scratch(call)->memory->parcels[((size_t)kind * 2 + (round & 1)) * (size_t)call->comm->size + (size_t)rank];
}

static void fill_parcel(loom_call *call, loom_parcel *p, parcel_kind kind, size_t round, char *data, size_t bytes)
{
    bool is_post = kind == POST_OUT || kind == POST_IN, is_result = kind == RESULT_OUT || kind == RESULT_IN;

    *p = (loom_parcel){.class = is_post ? LOOM_PARCEL_POST : LOOM_PARCEL_SLICE, .number = call->sequence, .data = data, .bytes = bytes};
    p->part = is_post ? 0 : (uint32_t)(2 * round + is_result);
}

static void send_to(loom_call *call, parcel_kind kind, size_t round, int rank, const char *data, size_t bytes)
{
    loom_parcel *p = parcel_of(call, kind, round, rank);

    if (rank == call->comm->rank || (!bytes && kind != POST_OUT))
        return;
    fill_parcel(call, p, kind, round, (char *)data, bytes);
    scratch(call)->mail->send(call->comm, rank, p);
}

static void expect_from(loom_call *call, parcel_kind kind, size_t round, int rank, char *data, size_t bytes)
{
    loom_parcel *p = parcel_of(call, kind, round, rank);

    if (rank == call->comm->rank || !bytes)
        return;
    fill_parcel(call, p, kind, round, data, bytes);
    scratch(call)->mail->expect(call->comm, rank, p);
}

/* A parcel that was never sent or expected counts as done. */
static bool is_done(const loom_parcel *p)
{
    return p->done || !p->class;
}

static bool all_done(loom_call *call, parcel_kind kind, size_t round)
{
    for (int r = 0; r < call->comm->size; r++)
        if (!is_done(parcel_of(call, kind, round, r)))
            return false;
    return true;
}

bool loom_ordered_is_missing(const loom_call *call, int rank)
{
    if (!scratch(call)->memory)
        return false;
    for (int kind = 0; kind < PARCEL_KINDS; kind++)
        for (size_t round = 0; round < 2; round++)
            if (!is_done(parcel_of(call, (parcel_kind)kind, round, rank)))
                return true;
    return false;
}

static loom_status open_memory(loom_call *call)
{
    size_t n = (size_t)call->comm->size, data = 3 * n * sizeof(uint64_t);
    ordered_memory *m = calloc(1, sizeof *m);

    if (!m)
        return loom_fail(LOOM_E_MEMORY, "no memory for a call on comm \"%s\"", call->comm->name);
    scratch(call)->memory = m;
    m->post_bytes = sizeof(ordered_post) + (data > ORDERED_SMALL ? data : ORDERED_SMALL);
    m->parcels = calloc(PARCEL_KINDS * 2 * n, sizeof *m->parcels);
    m->inputs = malloc(n * sizeof *m->inputs);
    m->posts = malloc(n * m->post_bytes);
    if (is_reduction(call) && !is_small(call))
        m->room = malloc(2 * n * SLICE_BYTES);
    if (!m->parcels || !m->inputs || !m->posts || (is_reduction(call) && !is_small(call) && !m->room))
        return loom_fail(LOOM_E_MEMORY, "no memory for a call on comm \"%s\" of %d ranks", call->comm->name, call->comm->size);
    return LOOM_OK;
}

void loom_ordered_drop(loom_call *call)
{
    ordered_call *s = scratch(call);
    ordered_memory *m = s->memory;

    if (!m)
        return;
    for (int kind = 0; m->parcels && kind < PARCEL_KINDS; kind++)
        for (size_t round = 0; round < 2; round++)
            for (int r = 0; r < call->comm->size; r++)
                if (!is_done(parcel_of(call, (parcel_kind)kind, round, r)))
                    s->mail->forget(call->comm, r, parcel_of(call, (parcel_kind)kind, round, r));
    free(m->parcels);
    free(m->inputs);
    free(m->posts);
    free(m->room);
    free(m);
    s->memory = NULL;
}

/* --- posts ------------------------------------------------------------------------------------------------------------------------ */

static ordered_post *post_of(const loom_call *call, int rank)
{
    const ordered_memory *m = scratch(call)->memory;

    return (ordered_post *)(void *)(m->posts + (size_t)rank * m->post_bytes);
}

static char *post_data(const loom_call *call, int rank)
{
    return (char *)(post_of(call, rank) + 1);
}

/* Row 0 send counts, 1 send offsets, 2 recv counts of `rank`. */
static size_t read_row(const loom_call *call, int rank, int row, int of)
{
    const uint64_t *rows = (const uint64_t *)(const void *)post_data(call, rank);

    return (size_t)rows[(size_t)row * (size_t)call->comm->size + (size_t)of];
}

static void post(loom_call *call)
{
    const loom_comm *comm = call->comm;
    ordered_post *mine = post_of(call, comm->rank);
    loom_signature signature = loom_signature_of(call);
    size_t data = call->kind == LOOM_CALL_ALL_TO_ALL_V ? 3 * (size_t)comm->size * sizeof(uint64_t) : is_small(call) ? send_bytes(call) : 0;

    *mine = (ordered_post){.count = signature.count, .what = signature.what, .root = signature.root};
    memcpy(mine->name, call->name, sizeof mine->name);
    if (data)
        memcpy(post_data(call, comm->rank), call->kind == LOOM_CALL_ALL_TO_ALL_V ? (const void *)call->counts : call->send, data);
    for (int i = 1; i < comm->size; i++) {
        int r = (comm->rank + i) % comm->size;
        expect_from(call, POST_IN, 0, r, (char *)post_of(call, r), scratch(call)->memory->post_bytes);
        send_to(call, POST_OUT, 0, r, (const char *)mine, sizeof *mine + data);
    }
}

static loom_signature signature_of(const loom_call *call, int rank)
{
    const ordered_post *p = post_of(call, rank);

    return (loom_signature){p->count, p->what, p->root, p->name};
}

static loom_status compare(const loom_call *call)
{
    loom_signature zero = signature_of(call, 0);
    loom_status status = LOOM_OK;

    for (int r = 1; r < call->comm->size && status >= 0; r++) {
        loom_signature other = signature_of(call, r);
        status = loom_signature_compare(call, &zero, &other, r);
    }
    for (int a = 0; call->kind == LOOM_CALL_ALL_TO_ALL_V && a < call->comm->size && status >= 0; a++)
        for (int b = 0; b < call->comm->size && status >= 0; b++)
            status = loom_signature_compare_counts(call, a, b, read_row(call, a, 0, b), read_row(call, b, 2, a));
    return status;
}

/* --- small ------------------------------------------------------------------------------------------------------------------------ */

static void reduce_posts(loom_call *call, size_t offset)
{
    const void **inputs = scratch(call)->memory->inputs;

    for (int r = 0; r < call->comm->size; r++)
        inputs[r] = post_data(call, r) + offset;
    loom_reduce(call->comm->world->reducer, call->recv, inputs, call->comm->size, call->count, call->dtype, call->op);
}

static void copy_posts(loom_call *call, size_t offset)
{
    size_t bytes = call->count * element_bytes(call);

    for (int r = 0; r < call->comm->size; r++)
        memcpy((char *)call->recv + (size_t)r * bytes, post_data(call, r) + offset, bytes);
}

static void finish_small(loom_call *call)
{
    size_t bytes = call->count * element_bytes(call), mine = bytes * (size_t)call->comm->rank;

    if (!bytes)
        return;
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
        memcpy(call->recv, post_data(call, call->peer), bytes);
        break;
    default:
        break;
    }
}

/* --- large reductions --------------------------------------------------------------------------------------------------------------------
 */

/* Elements of one rank's slice in one round, and where the slice of `rank` begins in round `round`, as an element of the buffer that is
 * summed. */
static size_t slice_count(const loom_call *call)
{
    return SLICE_BYTES / element_bytes(call);
}

static size_t round_count(const loom_call *call)
{
    size_t whole = call->kind == LOOM_CALL_ALL_REDUCE ? slice_count(call) * (size_t)call->comm->size : slice_count(call);

    return (call->count + whole - 1) / whole;
}

static void slice_of(const loom_call *call, size_t round, int rank, size_t *begin, size_t *count)
{
    size_t slice = slice_count(call), n = (size_t)call->comm->size, first, left;

    if (call->kind == LOOM_CALL_REDUCE_SCATTER) {
        first = round * slice;
        *begin = (size_t)rank * call->count + first;
        *count = least(slice, call->count - first);
        return;
    }
    first = round * n * slice; /* the round's part is shared out evenly, also when it is the short last one */
    left = least(n * slice, call->count - first);
    slice = (left + n - 1) / n;
    *begin = first + least(slice * (size_t)rank, left);
    *count = least(slice, left - least(slice * (size_t)rank, left));
}

static char *room_for(const loom_call *call, size_t round, int rank)
{
    return scratch(call)->memory->room + ((round & 1) * (size_t)call->comm->size + (size_t)rank) * SLICE_BYTES;
}

static void begin_round(loom_call *call, size_t round)
{
    const loom_comm *comm = call->comm;
    size_t element = element_bytes(call), begin, count, mine_begin, mine_count;

    slice_of(call, round, comm->rank, &mine_begin, &mine_count);
    for (int i = 1; i < comm->size; i++) {
        int r = (comm->rank + i) % comm->size;
        slice_of(call, round, r, &begin, &count);
        expect_from(call, DATA_IN, round, r, room_for(call, round, r), mine_count * element);
        if (call->kind == LOOM_CALL_ALL_REDUCE)
            expect_from(call, RESULT_IN, round, r, (char *)call->recv + begin * element, count * element);
        send_to(call, DATA_OUT, round, r, (const char *)call->send + begin * element, count * element);
    }
}

/* Everyone's slice for this rank has come: adds them, and sends the sum out. */
static void reduce_round(loom_call *call, size_t round)
{
    const loom_comm *comm = call->comm;
    const void **inputs = scratch(call)->memory->inputs;
    size_t element = element_bytes(call), begin, count;
    char *to;

    slice_of(call, round, comm->rank, &begin, &count);
    for (int r = 0; r < comm->size; r++)
        inputs[r] = r == comm->rank ? (const char *)call->send + begin * element : room_for(call, round, r);
    to = (char *)call->recv + (call->kind == LOOM_CALL_ALL_REDUCE ? begin : round * slice_count(call)) * element;
    loom_reduce(comm->world->reducer, to, inputs, comm->size, count, call->dtype, call->op);
    for (int i = 1; i < comm->size && call->kind == LOOM_CALL_ALL_REDUCE; i++)
        send_to(call, RESULT_OUT, round, (comm->rank + i) % comm->size, to, count * element);
}

static bool round_is_over(loom_call *call, size_t round)
{
    return all_done(call, RESULT_IN, round) && all_done(call, DATA_OUT, round) && all_done(call, RESULT_OUT, round);
}

static loom_step reduction_body(loom_call *call)
{
    ordered_call *s = scratch(call);

    LOOM_RESUME(&s->resume);
    s->rounds = round_count(call);
    for (s->round = 0; s->round <= s->rounds; s->round++) {
        if (s->round < s->rounds)
            begin_round(call, s->round);
        if (s->round > 0)
            LOOM_AWAIT(&s->resume, round_is_over(call, s->round - 1));
        if (s->round < s->rounds) {
            LOOM_AWAIT(&s->resume, all_done(call, DATA_IN, s->round));
            reduce_round(call, s->round);
            LOOM_YIELD(&s->resume);
        }
    }
    LOOM_RESUME_END;
    call->task.status = LOOM_OK;
    return LOOM_STEP_OVER;
}

/* --- large movements
 * ---------------------------------------------------------------------------------------------------------------------- */

typedef struct piece {
    char *data;
    size_t bytes;
} piece;

/* What goes to and comes from `rank` in all_gather and all_to_all. */
static piece piece_to(const loom_call *call, int rank)
{
    size_t element = element_bytes(call), bytes = call->count * element, n = (size_t)call->comm->size;
    char *send = (char *)call->send;

    if (call->kind == LOOM_CALL_ALL_TO_ALL)
        return (piece){send + (size_t)rank * bytes, bytes};
    if (call->kind == LOOM_CALL_ALL_TO_ALL_V)
        return (piece){call->counts[rank] ? send + call->counts[n + (size_t)rank] * element : NULL, call->counts[rank] * element};
    return (piece){send, bytes};
}

static piece piece_from(const loom_call *call, int rank)
{
    size_t element = element_bytes(call), bytes = call->count * element, n = (size_t)call->comm->size, r = (size_t)rank;
    char *recv = call->recv;

    if (call->kind == LOOM_CALL_ALL_TO_ALL_V)
        return (piece){call->counts[2 * n + r] ? recv + call->counts[3 * n + r] * element : NULL, call->counts[2 * n + r] * element};
    return (piece){recv + r * bytes, bytes};
}

/* Broadcast in two hops: the root hands each of the others its slice, and they hand it on to each other; so the root sends the buffer once.
 */
static piece broadcast_slice(const loom_call *call, int rank)
{
    size_t bytes = call->count * element_bytes(call), others = call->comm->size > 1 ? (size_t)call->comm->size - 1 : 1,
           each = (bytes / others + 63) / 64 * 64;
    size_t index = (size_t)((rank - call->peer - 1 + call->comm->size) % call->comm->size), begin = least(index * each, bytes);

    return (piece){(char *)call->recv + begin, index + 1 == others ? bytes - begin : least(each, bytes - begin)};
}

static void expect_movement(loom_call *call)
{
    const loom_comm *comm = call->comm;

    for (int r = 0; r < comm->size; r++) {
        piece p = call->kind == LOOM_CALL_BROADCAST ? broadcast_slice(call, r == call->peer ? comm->rank : r) : piece_from(call, r);
        if (call->kind != LOOM_CALL_BROADCAST)
            expect_from(call, DATA_IN, 0, r, p.data, p.bytes);
        else if (comm->rank != call->peer)
            expect_from(call, r == call->peer ? DATA_IN : RESULT_IN, 0, r, p.data, p.bytes);
    }
}

static void send_movement(loom_call *call)
{
    const loom_comm *comm = call->comm;

    for (int i = 1; i < comm->size; i++) {
        int r = (comm->rank + i) % comm->size;
        piece p = call->kind == LOOM_CALL_BROADCAST ? broadcast_slice(call, r) : piece_to(call, r);
        if (call->kind != LOOM_CALL_BROADCAST || comm->rank == call->peer)
            send_to(call, DATA_OUT, 0, r, p.data, p.bytes);
    }
}

static void keep_own_piece(loom_call *call)
{
    piece from = piece_to(call, call->comm->rank), to = piece_from(call, call->comm->rank);

    if (from.bytes && from.data != to.data)
        memmove(to.data, from.data, from.bytes);
}

static void hand_slice_on(loom_call *call)
{
    const loom_comm *comm = call->comm;
    piece mine = broadcast_slice(call, comm->rank);

    for (int r = 0; r < comm->size; r++)
        if (r != call->peer)
            send_to(call, RESULT_OUT, 0, r, mine.data, mine.bytes);
}

static loom_step movement_body(loom_call *call)
{
    ordered_call *s = scratch(call);

    LOOM_RESUME(&s->resume);
    send_movement(call);
    if (call->kind != LOOM_CALL_BROADCAST)
        keep_own_piece(call);
    LOOM_AWAIT(&s->resume, all_done(call, DATA_IN, 0));
    if (call->kind == LOOM_CALL_BROADCAST && call->comm->rank != call->peer)
        hand_slice_on(call);
    LOOM_AWAIT(&s->resume, all_done(call, RESULT_IN, 0) && all_done(call, DATA_OUT, 0) && all_done(call, RESULT_OUT, 0));
    LOOM_RESUME_END;
    call->task.status = LOOM_OK;
    return LOOM_STEP_OVER;
}

/* --- the whole call
 * ---------------------------------------------------------------------------------------------------------------------------- */

static loom_step over(loom_call *call, loom_status status)
{
    call->task.status = status;
    return LOOM_STEP_OVER;
}

static loom_step meet(loom_call *call)
{
    ordered_call *s = scratch(call);
    loom_status status;

    LOOM_RESUME(&s->resume);
    if ((status = open_memory(call)) < 0)
        return over(call, status);
    if (!is_small(call) && !is_reduction(call))
        expect_movement(call);
    post(call);
    LOOM_AWAIT(&s->resume, all_done(call, POST_IN, 0) && all_done(call, POST_OUT, 0));
    LOOM_RESUME_END;
    if ((status = compare(call)) < 0)
        return over(call, status);
    if (is_small(call)) {
        finish_small(call);
        return over(call, LOOM_OK);
    }
    s->met = true;
    s->resume = 0;
    s->body = is_reduction(call) ? reduction_body : movement_body;
    return LOOM_STEP_AGAIN;
}

loom_step loom_ordered_step(loom_call *call, const loom_mail *mail)
{
    ordered_call *s = scratch(call);

    s->mail = mail;
    return s->met ? s->body(call) : meet(call);
}
