/* Shared memory: how ranks find each other's heaps, and how they notice that one is late, gone or dead. */
#include "comm/shm.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/text.h"
#include "core/try.h"
#include "device/backend.h"

typedef struct shm_card {
    loom_segment_name segment;
    uint64_t desk;
} shm_card;
_Static_assert(sizeof(shm_card) <= LOOM_CARD_BYTES, "a card fits");

/* --- the world ---------------------------------------------------------------------------------------------------------- */

static loom_status present(loom_world *world, const char *hint, char card[LOOM_CARD_BYTES])
{
    const loom_segment *heap = loom_device_segment(world->device);
    shm_card mine = {0};
    shm_world *w = calloc(1, sizeof *w);
    loom_status status;

    (void)hint;
    if (!w)
        return loom_fail(LOOM_E_MEMORY, "no memory for the shared-memory transport");
    world->states[LOOM_SHM] = w;
    w->size = world->size;
    if (!world->device->desk && (status = loom_device_take(world->device, sizeof *w->desk, true, &world->device->desk)) < 0)
        return status;
    w->desk = world->device->desk;
    loom_segment_get_name(heap, &mine.segment);
    mine.desk = (uint64_t)((char *)w->desk - heap->base);
    memcpy(card, &mine, sizeof mine);
    return LOOM_OK;
}

/* The descriptor comes first: if the heap of the card is then found in that process, both are the rank's. */
static loom_status meet_peer(shm_peer *peer, const shm_card *card)
{
    loom_status status;

    peer->pid = card->segment.pid;
    peer->pidfd = peer->pid == (int)getpid() ? -1 : (int)syscall(SYS_pidfd_open, peer->pid, 0);
    if ((status = loom_segment_attach(&card->segment, &peer->segment)) < 0)
        return status;
    peer->desk = (const shm_desk *)(const void *)(peer->segment.base + card->desk);
    return LOOM_OK;
}

static loom_status open_world(loom_world *world, const char (*cards)[LOOM_CARD_BYTES])
{
    shm_world *w = world->states[LOOM_SHM];

    world->device->rung_by_peers = world->size > 1;
    loom_remains_visit(world->device, false); /* all ranks are here, so they have left what they had before */
    w->peers = calloc((size_t)world->size, sizeof *w->peers);
    if (!w->peers)
        return loom_fail(LOOM_E_MEMORY, "no memory for %d peers", world->size);
    for (int r = 0; r < world->size; r++) {
        shm_card card;
        loom_status status;
        w->peers[r].pidfd = -1;
        memcpy(&card, cards[r], sizeof card);
        if ((status = meet_peer(&w->peers[r], &card)) < 0)
            return status;
    }
    return LOOM_OK;
}

static bool is_gone(const shm_peer *peer)
{
    struct pollfd poll_one = {.fd = peer->pidfd, .events = POLLIN};

    if (peer->pid == (int)getpid())
        return false; /* a thread of this process */
    if (peer->pidfd >= 0)
        return poll(&poll_one, 1, 0) > 0;             /* a process descriptor is readable once its process has ended, reaped or not */
    return kill(peer->pid, 0) != 0 && errno == ESRCH; /* Linux before 5.3 */
}

/* Frees a comm's end. `give_back`: what it has in the heap too, because no peer looks there any more. */
static void destroy(loom_device *device, shm_comm *c, bool give_back)
{
    if (give_back) {
        loom_shm_p2p_give_back(device, c);
        loom_device_give(device, c->staging);
        loom_device_give(device, c->box);
    }
    for (int r = 0; c->lanes && r < c->size; r++) {
        free(c->lanes[r].older);
        free(c->lanes[r].arrived);
    }
    pthread_mutex_destroy(&c->lock);
    free(c->lanes);
    free(c->inputs);
    free(c->bells);
    free(c->bases);
    free(c->boxes);
    free(c->world_ranks);
    free(c);
}

/* Comms that this rank has left: the heap gets their memory back once every peer has said that it looks there no more. */
static void visit_graves(shm_world *w, loom_device *device)
{
    for (shm_comm **link = &w->graves; *link;) {
        shm_comm *c = *link;
        int r = 0;
        while (r < c->size && (r == c->rank || atomic_load(shm_departed(c->box, c->size, r)) || is_gone(&w->peers[c->world_ranks[r]])))
            r++;
        if (r < c->size) {
            link = &c->next_grave;
            continue;
        }
        *link = c->next_grave;
        destroy(device, c, true);
    }
}

static void free_world(shm_world *w)
{
    for (int r = 0; w->peers && r < w->size; r++)
        if (w->peers[r].pidfd >= 0)
            close(w->peers[r].pidfd);
    free(w->peers);
    free(w);
}

static bool visit_remains(loom_remains *remains, loom_device *device, bool closing)
{
    shm_world *w = (shm_world *)remains;

    visit_graves(w, device);
    while (closing && w->graves) {
        shm_comm *c = w->graves;
        w->graves = c->next_grave;
        destroy(device, c, false);
    }
    if (w->graves)
        return false;
    free_world(w);
    return true;
}

/* Boxes of comms that others have not left yet stay in the heap until they have, or the device is closed. */
static void close_world(loom_world *world)
{
    shm_world *w = world->states[LOOM_SHM];

    if (!w)
        return;
    world->states[LOOM_SHM] = NULL;
    for (int r = 0; w->peers && r < w->size; r++)
        loom_segment_close(&w->peers[r].segment);
    w->remains.visit = visit_remains;
    if (!visit_remains(&w->remains, world->device, false))
        loom_remains_add(world->device, &w->remains);
}

/* --- comms ---------------------------------------------------------------------------------------------------------------- */

static loom_status prepare(loom_comm *comm, uint64_t *address)
{
    const loom_segment *heap = loom_device_segment(comm->world->device);
    size_t n = (size_t)comm->size, bytes = sizeof(shm_box) + 8 * n * sizeof(uint64_t);
    shm_comm *c = calloc(1, sizeof *c);
    loom_status status;

    if (!c)
        return loom_fail(LOOM_E_MEMORY, "no memory for comm \"%s\"", comm->name);
    visit_graves(comm->world->states[LOOM_SHM], comm->world->device);
    pthread_mutex_init(&c->lock, NULL);
    comm->state = c;
    c->size = comm->size;
    c->rank = comm->rank;
    c->boxes = calloc(n, sizeof(shm_box *));
    c->bases = calloc(n, sizeof *c->bases);
    c->bells = calloc(n, sizeof *c->bells);
    c->inputs = calloc(n, sizeof *c->inputs);
    c->lanes = calloc(n, sizeof *c->lanes);
    c->world_ranks = malloc(n * sizeof *c->world_ranks);
    if (!c->world_ranks || !c->boxes || !c->bases || !c->bells || !c->inputs || !c->lanes)
        return loom_fail(LOOM_E_MEMORY, "no memory for comm \"%s\" of %d ranks", comm->name, comm->size);
    memcpy(c->world_ranks, comm->members, n * sizeof *c->world_ranks);
    if ((status = loom_device_take(comm->world->device, bytes, true, (void **)&c->box)) < 0)
        return status;
    *address = (uint64_t)((char *)c->box - heap->base);
    return LOOM_OK;
}

static loom_status join(loom_comm *comm, const uint64_t *addresses)
{
    const shm_world *w = comm->world->states[LOOM_SHM];
    shm_comm *c = shm_of(comm);

    for (int r = 0; r < comm->size; r++) {
        const loom_segment *segment = &w->peers[comm->members[r]].segment;
        c->bases[r] = segment->base;
        c->bells[r] = &loom_segment_get_head(segment)->bell;
        c->boxes[r] = (shm_box *)(void *)(segment->base + addresses[r]);
    }
    return LOOM_OK;
}

static void ring_all(const loom_comm *comm)
{
    const shm_comm *c = shm_of(comm);

    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            loom_doorbell_ring(c->bells[r]);
}

static void leave(loom_comm *comm)
{
    shm_comm *c = comm->state;
    shm_world *w = comm->world->states[LOOM_SHM];

    if (!c)
        return;
    if (!c->boxes || !c->boxes[comm->rank]) { /* not joined, but others may have been told where the box is: the heap keeps it */
        destroy(comm->world->device, c, false);
        comm->state = NULL;
        return;
    }
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) { /* from here on the peer may free what it has, so the bell comes last and is not in it */
            atomic_store(shm_departed(c->boxes[r], c->size, c->rank), 1);
            loom_doorbell_ring(c->bells[r]);
        }
    comm->state = NULL;
    c->next_grave = w->graves;
    w->graves = c;
    visit_graves(w, comm->world->device);
}

static void give_up(loom_comm *comm, loom_status status)
{
    shm_comm *c = shm_of(comm);

    if (!c || !c->boxes[comm->rank])
        return;
    loom_notice_write(&c->box->reason, comm->message);
    atomic_store(&c->box->failed, (int32_t)status);
    loom_shm_p2p_withdraw(comm);
    ring_all(comm);
}

/* --- calls ------------------------------------------------------------------------------------------------------------------ */

static loom_step step(loom_call *call)
{
    switch (call->kind) {
    case LOOM_CALL_SEND:
        return loom_shm_send_step(call);
    case LOOM_CALL_RECV:
        return loom_shm_recv_step(call);
    default:
        return loom_shm_collective_step(call);
    }
}

static void drop(loom_call *call)
{
    shm_call *s = loom_call_scratch(call);

    loom_device_give(call->comm->world->device, s->staging);
    s->staging = NULL;
    if (call->kind == LOOM_CALL_RECV && !s->message)
        loom_shm_p2p_forget(call);
}

static bool is_missing(const loom_call *call, int rank)
{
    return loom_call_is_p2p(call->kind) ? rank == call->peer : loom_shm_is_absent(call, rank);
}

/* A peer that gave up has said why; that is the news, and it carries on. */
static loom_status check_failed(const loom_call *call)
{
    const loom_comm *comm = call->comm;
    const shm_comm *c = shm_of(comm);
    char reason[LOOM_NOTICE_BYTES], who[LOOM_RANK_TEXT], what[LOOM_CALL_TEXT];

    for (int r = 0; r < comm->size; r++) {
        int32_t failed = atomic_load(&c->boxes[r]->failed);
        if (r == comm->rank || failed >= 0)
            continue;
        loom_notice_read(&c->boxes[r]->reason, reason);
        return loom_fail(failed == LOOM_E_MISMATCH ? LOOM_E_MISMATCH : LOOM_E_PEER, "%s ended because %s gave up: %s",
                         loom_call_describe(call, what), loom_rank_describe(comm, r, who),
                         reason[0] ? reason : loom_status_name((loom_status)failed));
    }
    return LOOM_OK;
}

/* A missing rank that is dead or has left. The first sighting is only noted: what it did last may not have been looked at yet. */
static loom_status check_gone(const loom_call *call)
{
    const loom_comm *comm = call->comm;
    const shm_world *w = comm->world->states[LOOM_SHM];
    shm_call *s = loom_call_scratch((loom_call *)call);
    char who[LOOM_RANK_TEXT], what[LOOM_CALL_TEXT];

    for (int r = 0; r < comm->size; r++) {
        const shm_peer *peer = &w->peers[comm->members[r]];
        bool left, dead;
        if (r == comm->rank || !is_missing(call, r))
            continue;
        left = atomic_load(shm_departed(shm_of(comm)->box, comm->size, r));
        dead = !left && is_gone(peer);
        if (!left && !dead)
            continue;
        if (!s->gone) {
            s->gone = true;
            return LOOM_OK;
        }
        return left ? loom_fail(LOOM_E_PEER, "%s: %s has left the comm", loom_call_describe(call, what), loom_rank_describe(comm, r, who))
                    : loom_fail(LOOM_E_PEER, "%s: %s (process %d) died", loom_call_describe(call, what), loom_rank_describe(comm, r, who),
                                peer->pid);
    }
    return LOOM_OK;
}

static void add_missing(const loom_call *call, loom_text *text)
{
    const loom_comm *comm = call->comm;
    char who[LOOM_RANK_TEXT];
    const char *separator = "";

    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && is_missing(call, r)) {
            loom_text_add(text, "%s%s", separator, loom_rank_describe(comm, r, who));
            separator = ", ";
        }
}

static void add_whereabouts(const loom_call *call, loom_text *text)
{
    const loom_comm *comm = call->comm;
    const shm_world *w = comm->world->states[LOOM_SHM];
    char waits_in[LOOM_NOTICE_BYTES], who[LOOM_RANK_TEXT];

    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank || !is_missing(call, r))
            continue;
        loom_notice_read(&w->peers[comm->members[r]].desk->waits_in, waits_in);
        if (waits_in[0])
            loom_text_add(text, "; %s waits in %s", loom_rank_describe(comm, r, who), waits_in);
        else
            loom_text_add(text, "; %s waits for nobody", loom_rank_describe(comm, r, who));
    }
}

static loom_status expire(const loom_call *call)
{
    loom_text text = {0};
    char what[LOOM_CALL_TEXT];
    loom_status status;

    loom_text_add(&text, "%s of %d ranks: ", loom_call_describe(call, what), call->comm->size);
    add_missing(call, &text);
    loom_text_add(&text, " %s within %g s", loom_missed_verb(call->kind), call->comm->world->deadline_s);
    add_whereabouts(call, &text);
    status = loom_fail(LOOM_E_PEER, "%s", loom_text_so_far(&text));
    loom_text_drop(&text);
    loom_world_dump_once(call->comm->world);
    return status;
}

static loom_status check(loom_call *call, double stalled_s)
{
    static const double POST_AFTER_S = 0.02;
    const shm_world *w = call->comm->world->states[LOOM_SHM];
    char what[LOOM_CALL_TEXT];
    loom_status status;

    if ((status = check_failed(call)) < 0 || (status = check_gone(call)) < 0)
        return status;
    if (stalled_s >= call->comm->world->deadline_s)
        return expire(call);
    if (stalled_s >= POST_AFTER_S)
        loom_notice_write(&w->desk->waits_in, loom_call_describe(call, what));
    return LOOM_OK;
}

const loom_transport loom_transport_shm = {
    .name = "shm",
    .call_bytes = sizeof(shm_call),
    .present = present,
    .open = open_world,
    .close = close_world,
    .prepare = prepare,
    .join = join,
    .leave = leave,
    .step = step,
    .check = check,
    .drop = drop,
    .give_up = give_up,
};
