/* Point to point in shared memory.
 *
 * The sender posts a message, one cache line, in a chain of blocks of its own heap; the receiver walks the chain and
 * gives each message to the first receive that waits for its tag, or keeps it for one to come. The receive copies straight out of the
 * sender's heap and says TAKEN in the message, which ends the send. So any number of messages may be under way, and receives may be posted
 * in any order. A buffer that is not in the heap is staged by the sender in two chunks, filled and drained in turn. */
#include <stdlib.h>
#include <string.h>

#include "comm/resume.h"
#include "comm/shm.h"
#include "device/backend.h"

static uint64_t offset_of(const loom_comm *comm, const void *at)
{
    return shm_offset(comm, at, 1);
}

/* --- posting ---------------------------------------------------------------------------------------------------------------- */

static bool is_posted(const shm_message *message)
{
    return atomic_load_explicit(&message->state, memory_order_acquire) == SHM_POSTED;
}

static bool is_spent(const shm_block *block)
{
    if (!atomic_load(&block->left))
        return false;
    for (int i = 0; i < SHM_MESSAGES; i++)
        if (atomic_load(&block->messages[i].state) != SHM_SEEN) /* a send on another stream has yet to read its answer */
            return false;
    return true;
}

static loom_status keep_older(shm_lane *lane)
{
    if (lane->n_older == lane->older_capacity) {
        int capacity = lane->older_capacity ? 2 * lane->older_capacity : 4;
        shm_block **wider = realloc(lane->older, (size_t)capacity * sizeof *wider);
        if (!wider)
            return loom_fail(LOOM_E_MEMORY, "no memory for messages under way");
        lane->older = wider;
        lane->older_capacity = capacity;
    }
    lane->older[lane->n_older++] = lane->out;
    return LOOM_OK;
}

/* A block with 63 empty messages: one that is spent, or a new one. */
static loom_status find_block(loom_device *device, shm_lane *lane, shm_block **block)
{
    for (int i = 0; i < lane->n_older; i++)
        if (is_spent(lane->older[i])) {
            *block = lane->older[i];
            lane->older[i] = lane->older[--lane->n_older];
            memset(*block, 0, sizeof **block);
            return LOOM_OK;
        }
    return loom_device_take(device, sizeof **block, true, (void **)block);
}

/* Links a fresh block behind the one that is full. */
static loom_status extend(const loom_comm *comm, shm_lane *lane, int peer)
{
    shm_comm *c = shm_of(comm);
    shm_block *block;
    loom_status status = find_block(comm->world->device, lane, &block);

    if (status < 0)
        return status;
    if (!lane->out) {
        atomic_store(shm_outbox(c->box, peer), offset_of(comm, block));
    } else {
        if ((status = keep_older(lane)) < 0) {
            loom_device_give(comm->world->device, block);
            return status;
        }
        atomic_store(&lane->out->next, offset_of(comm, block));
    }
    lane->out = block;
    lane->filled = 0;
    return LOOM_OK;
}

static loom_status post_message(loom_call *call)
{
    const loom_comm *comm = call->comm;
    shm_comm *c = shm_of(comm);
    shm_call *s = loom_call_scratch(call);
    shm_lane *lane = &c->lanes[call->peer];
    size_t bytes = call->count * loom_dtype_bytes(call->dtype);
    shm_message *m;
    loom_status status = LOOM_OK;

    pthread_mutex_lock(&c->lock);
    if (!lane->out || lane->filled == SHM_MESSAGES)
        status = extend(comm, lane, call->peer);
    if (status >= 0) {
        m = s->message = &lane->out->messages[lane->filled++];
        m->dtype = (uint32_t)call->dtype;
        m->count = call->count;
        m->tag = call->tag;
        m->at = s->staging ? offset_of(comm, s->staging) : shm_offset(comm, call->send, bytes);
        m->chunk_bytes = s->staging ? SHM_CHUNK : bytes;
        m->staged = s->staging != NULL;
        atomic_store_explicit(&m->filled, s->staging ? 0 : 1, memory_order_relaxed);
        atomic_store(&m->state, SHM_POSTED);
    }
    pthread_mutex_unlock(&c->lock);
    loom_doorbell_ring(c->bells[call->peer]);
    return status;
}

/* --- sending -------------------------------------------------------------------------------------------------------------------- */

static bool is_answered(const loom_call *call)
{
    return !is_posted(((const shm_call *)loom_call_scratch((loom_call *)call))->message);
}

/* Stages the next chunk when there is room for it. */
static bool fill_chunk(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    size_t bytes = call->count * loom_dtype_bytes(call->dtype), now;

    if (s->done == bytes || s->chunks - atomic_load_explicit(&s->message->drained, memory_order_acquire) == 2)
        return false;
    now = bytes - s->done < SHM_CHUNK ? bytes - s->done : SHM_CHUNK;
    memcpy(s->staging + (s->chunks & 1) * (size_t)SHM_CHUNK, (const char *)call->send + s->done, now);
    s->done += now;
    atomic_store(&s->message->filled, ++s->chunks);
    loom_doorbell_ring(shm_of(call->comm)->bells[call->peer]);
    return true;
}

static loom_status judge_answer(const loom_call *call)
{
    const shm_call *s = loom_call_scratch((loom_call *)call);
    char what[LOOM_CALL_TEXT], who[LOOM_RANK_TEXT];

    if (atomic_load(&s->message->state) == SHM_TAKEN) {
        atomic_store(&s->message->state, SHM_SEEN);
        return LOOM_OK;
    }
    return loom_fail(LOOM_E_MISMATCH, "%s mismatch: this rank calls %s, %s expects %llu %s",
                     s->message->reply_count != call->count ? "count" : "dtype", loom_call_describe(call, what),
                     loom_rank_describe(call->comm, call->peer, who), (unsigned long long)s->message->reply_count,
                     loom_dtype_name((loom_dtype)s->message->reply_dtype));
}

loom_step loom_shm_send_step(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    size_t bytes = call->count * loom_dtype_bytes(call->dtype);
    loom_status status;

    LOOM_RESUME(&s->resume);
    if (shm_offset(call->comm, call->send, bytes) == SHM_NOWHERE &&
        (status = loom_device_take(call->comm->world->device, 2 * SHM_CHUNK, false, (void **)&s->staging)) < 0)
        return shm_over(call, status);
    if ((status = post_message(call)) < 0)
        return shm_over(call, status);
    while (s->staging && s->done < bytes) {
        LOOM_AWAIT(&s->resume, is_answered(call) || fill_chunk(call));
        if (is_answered(call))
            break;
        LOOM_YIELD(&s->resume);
    }
    LOOM_AWAIT(&s->resume, is_answered(call));
    LOOM_RESUME_END;
    return shm_over(call, judge_answer(call));
}

/* --- receiving ------------------------------------------------------------------------------------------------------------------ */

/* The next message of the chain, or NULL. */
static shm_message *next_message(const loom_comm *comm, shm_lane *lane, int peer)
{
    shm_comm *c = shm_of(comm);
    uint64_t offset;
    shm_message *m;

    if (!lane->in) {
        if (!(offset = atomic_load(shm_outbox(c->boxes[peer], comm->rank))))
            return NULL;
        lane->in = (shm_block *)(void *)(c->bases[peer] + offset);
    }
    if (lane->next == SHM_MESSAGES) {
        shm_block *full = lane->in;
        if (!(offset = atomic_load(&full->next)))
            return NULL;
        lane->in = (shm_block *)(void *)(c->bases[peer] + offset);
        lane->next = 0;
        atomic_store(&full->left, 1);
    }
    m = &lane->in->messages[lane->next];
    if (atomic_load_explicit(&m->state, memory_order_acquire) == SHM_EMPTY)
        return NULL;
    lane->next++;
    return m;
}

static bool keep_arrived(shm_lane *lane, shm_message *message)
{
    if (lane->n_arrived == lane->arrived_capacity) {
        int capacity = lane->arrived_capacity ? 2 * lane->arrived_capacity : 16;
        shm_message **wider = realloc(lane->arrived, (size_t)capacity * sizeof *wider);
        if (!wider)
            return false;
        lane->arrived = wider;
        lane->arrived_capacity = capacity;
    }
    lane->arrived[lane->n_arrived++] = message;
    return true;
}

static shm_message *take_arrived(shm_lane *lane, uint64_t tag)
{
    for (int i = 0; i < lane->n_arrived; i++) {
        shm_message *m = lane->arrived[i];
        if (m->tag != tag)
            continue;
        memmove(&lane->arrived[i], &lane->arrived[i + 1], (size_t)(lane->n_arrived - i - 1) * sizeof *lane->arrived);
        lane->n_arrived--;
        return m;
    }
    return NULL;
}

/* Gives `message` to the first receive that waits for its tag. */
static bool hand_over(shm_lane *lane, shm_message *message)
{
    for (loom_call **link = &lane->waiting; *link;) {
        loom_call *call = *link;
        shm_call *s = loom_call_scratch(call);
        if (call->tag == message->tag) {
            s->message = message;
            *link = s->next_waiting;
            return true;
        }
        link = &s->next_waiting;
    }
    return false;
}

/* Looks at what has come since. A message that there is no room to keep waits in the chain. */
static void look_for_messages(const loom_comm *comm, shm_lane *lane, int peer)
{
    shm_message *m;

    while (lane->waiting && (m = next_message(comm, lane, peer)))
        if (!hand_over(lane, m) && !keep_arrived(lane, m)) {
            lane->next--;
            return;
        }
}

/* From here on the call has its place among the receives of its tag. */
static void post_receive(loom_call *call)
{
    shm_comm *c = shm_of(call->comm);
    shm_call *s = loom_call_scratch(call);
    shm_lane *lane = &c->lanes[call->peer];

    pthread_mutex_lock(&c->lock);
    s->message = take_arrived(lane, call->tag);
    if (!s->message) {
        loom_call **link = &lane->waiting;
        while (*link)
            link = &((shm_call *)loom_call_scratch(*link))->next_waiting;
        s->next_waiting = NULL;
        *link = call;
    }
    pthread_mutex_unlock(&c->lock);
}

static bool has_message(loom_call *call)
{
    shm_comm *c = shm_of(call->comm);
    shm_call *s = loom_call_scratch(call);
    bool found;

    pthread_mutex_lock(&c->lock);
    if (!s->message)
        look_for_messages(call->comm, &c->lanes[call->peer], call->peer);
    found = s->message;
    pthread_mutex_unlock(&c->lock);
    return found;
}

void loom_shm_p2p_forget(loom_call *call)
{
    shm_comm *c = shm_of(call->comm);

    pthread_mutex_lock(&c->lock);
    for (loom_call **link = &c->lanes[call->peer].waiting; *link; link = &((shm_call *)loom_call_scratch(*link))->next_waiting)
        if (*link == call) {
            *link = ((shm_call *)loom_call_scratch(call))->next_waiting;
            break;
        }
    pthread_mutex_unlock(&c->lock);
}

/* Answers the message; false when the sender withdrew it first. */
static bool answer(loom_call *call, shm_message_state state)
{
    shm_call *s = loom_call_scratch(call);
    uint32_t posted = SHM_POSTED;
    bool answered;

    answered = atomic_compare_exchange_strong(&s->message->state, &posted, (uint32_t)state);
    loom_doorbell_ring(shm_of(call->comm)->bells[call->peer]);
    return answered;
}

static loom_status refuse(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    char what[LOOM_CALL_TEXT], who[LOOM_RANK_TEXT];
    loom_status status = loom_fail(LOOM_E_MISMATCH, "%s mismatch: this rank calls %s, %s sends %llu %s",
                                   s->message->count != call->count ? "count" : "dtype", loom_call_describe(call, what),
                                   loom_rank_describe(call->comm, call->peer, who), (unsigned long long)s->message->count,
                                   loom_dtype_name((loom_dtype)s->message->dtype));

    s->message->reply_count = call->count;
    s->message->reply_dtype = (uint32_t)call->dtype;
    answer(call, SHM_REFUSED);
    return status;
}

/* Copies what can be copied now, at most one piece. False: the sender has not staged the next chunk yet. */
static bool drain_piece(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    shm_message *m = s->message;
    size_t bytes = call->count * loom_dtype_bytes(call->dtype), chunk_end, now;
    char *from;

    if (atomic_load_explicit(&m->filled, memory_order_acquire) == s->chunks)
        return false;
    from = shm_of(call->comm)->bases[call->peer] + m->at + (s->chunks & 1) * m->chunk_bytes + (s->done - s->chunks * m->chunk_bytes);
    chunk_end = (s->chunks + 1) * m->chunk_bytes < bytes ? (s->chunks + 1) * m->chunk_bytes : bytes;
    now = chunk_end - s->done < SHM_PIECE ? chunk_end - s->done : SHM_PIECE;
    memmove((char *)call->recv + s->done, from, now);
    if (m->staged && call->peer != call->comm->rank)
        shm_claim(from, now);
    s->done += now;
    if (s->done == chunk_end) {
        atomic_store(&m->drained, ++s->chunks);
        if (m->chunk_bytes < bytes)
            loom_doorbell_ring(shm_of(call->comm)->bells[call->peer]);
    }
    return true;
}

static loom_status withdrawn(const loom_call *call)
{
    char what[LOOM_CALL_TEXT], who[LOOM_RANK_TEXT];

    return loom_fail(LOOM_E_PEER, "%s: %s gave up before it was done", loom_call_describe(call, what),
                     loom_rank_describe(call->comm, call->peer, who));
}

loom_step loom_shm_recv_step(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);
    size_t bytes = call->count * loom_dtype_bytes(call->dtype);

    LOOM_RESUME(&s->resume);
    post_receive(call);
    LOOM_AWAIT(&s->resume, has_message(call));
    if (s->message->count != call->count || s->message->dtype != (uint32_t)call->dtype)
        return shm_over(call, refuse(call));
    if (bytes > SHM_SMALL)
        LOOM_YIELD(&s->resume);
    while (s->done < bytes) {
        LOOM_AWAIT(&s->resume, drain_piece(call));
        if (s->done < bytes)
            LOOM_YIELD(&s->resume);
    }
    LOOM_RESUME_END;
    return shm_over(call, answer(call, SHM_TAKEN) ? LOOM_OK : withdrawn(call));
}

/* --- the end ----------------------------------------------------------------------------------------------------------------------- */

static void withdraw_block(shm_block *block)
{
    for (int i = 0; i < SHM_MESSAGES; i++) {
        uint32_t posted = SHM_POSTED;
        atomic_compare_exchange_strong(&block->messages[i].state, &posted, SHM_WITHDRAWN);
    }
}

void loom_shm_p2p_withdraw(loom_comm *comm)
{
    shm_comm *c = shm_of(comm);

    pthread_mutex_lock(&c->lock);
    for (int r = 0; r < c->size; r++) {
        shm_lane *lane = &c->lanes[r];
        for (int i = 0; i < lane->n_older; i++)
            withdraw_block(lane->older[i]);
        if (lane->out)
            withdraw_block(lane->out);
    }
    pthread_mutex_unlock(&c->lock);
}

void loom_shm_p2p_give_back(loom_device *device, shm_comm *c)
{
    for (int r = 0; c->lanes && r < c->size; r++) {
        for (int i = 0; i < c->lanes[r].n_older; i++)
            loom_device_give(device, c->lanes[r].older[i]);
        loom_device_give(device, c->lanes[r].out);
    }
}
