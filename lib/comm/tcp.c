/* The TCP transport: for ranks on several hosts, or wherever shared memory does not reach. The calling thread drives all connections. */
#include "comm/tcp.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/text.h"
#include "device/backend.h"

/* --- the world ---------------------------------------------------------------------------------------------------------------- */

static int fill_descriptors(void *context, struct pollfd *fds, int capacity)
{
    tcp_world *w = context;
    int count = 0;

    pthread_mutex_lock(&w->lock);
    for (int r = 0; r < w->size && count < capacity; r++)
        if (w->links[r].fd >= 0)
            fds[count++] = (struct pollfd){.fd = w->links[r].fd, .events = (short)(POLLIN | (w->links[r].out ? POLLOUT : 0))};
    pthread_mutex_unlock(&w->lock);
    return count;
}

static void close_listeners(tcp_world *w)
{
    for (int i = 0; i < w->n_listeners; i++)
        close(w->listeners[i]);
    w->n_listeners = 0;
}

static loom_status open_world(loom_world *world, const char (*cards)[LOOM_CARD_BYTES])
{
    tcp_world *w = world->states[LOOM_TCP];
    loom_status status;

    w->links = calloc((size_t)world->size, sizeof *w->links);
    if (!w->links)
        return loom_fail(LOOM_E_MEMORY, "no memory for %d connections", world->size);
    for (int r = 0; r < world->size; r++) {
        w->links[r].fd = -1;
        w->links[r].out_last = &w->links[r].out;
    }
    if ((status = loom_tcp_connect_all(world, cards)) < 0)
        return status;
    close_listeners(w);
    w->source = (loom_poll_source){.fill = fill_descriptors, .context = w};
    return loom_device_add_source(world->device, &w->source);
}

/* What is still to be written (answers, goodbyes) goes out, if the peers take it within a second. */
static void flush(tcp_world *w)
{
    double until = loom_now_s() + 1;
    bool idle = false;

    while (!idle && loom_now_s() < until) {
        idle = true;
        for (int r = 0; r < w->size; r++)
            idle &= loom_tcp_is_idle(&w->links[r]);
        if (!idle && !loom_tcp_drive(w)) {
            struct pollfd fds[64];
            poll(fds, (nfds_t)fill_descriptors(w, fds, 64), 10);
        }
    }
}

static void close_world(loom_world *world)
{
    tcp_world *w = world->states[LOOM_TCP];

    if (!w)
        return;
    close_listeners(w);
    if (w->source.fill)
        loom_device_remove_source(world->device, &w->source);
    for (int r = 0; w->links && r < world->size; r++)
        if (w->links[r].fd >= 0)
            loom_tcp_send_copy(&w->links[r], (loom_parcel){.class = TCP_GOODBYE}, NULL, 0);
    if (w->links)
        flush(w);
    for (int r = 0; w->links && r < world->size; r++)
        loom_tcp_free_link(&w->links[r]);
    free(w->links);
    pthread_mutex_destroy(&w->lock);
    free(w);
    world->states[LOOM_TCP] = NULL;
}

/* --- comms ------------------------------------------------------------------------------------------------------------------------ */

/* A number that no other comm of the world has: its first member's rank and count of comms. */
static loom_status prepare(loom_comm *comm, uint64_t *address)
{
    tcp_comm *c = calloc(1, sizeof *c);

    if (!c)
        return loom_fail(LOOM_E_MEMORY, "no memory for comm \"%s\"", comm->name);
    comm->state = c;
    *address = (uint64_t)comm->world->rank << 32 | ++tcp_world_of(comm)->comms;
    return LOOM_OK;
}

static loom_status join(loom_comm *comm, const uint64_t *addresses)
{
    ((tcp_comm *)comm->state)->id = addresses[0];
    return LOOM_OK;
}

static void leave(loom_comm *comm)
{
    tcp_world *w = tcp_world_of(comm);

    if (!comm->state)
        return;
    pthread_mutex_lock(&w->lock);
    for (int r = 0; r < comm->size && tcp_id(comm); r++)
        loom_tcp_purge(tcp_link_to(comm, r), tcp_id(comm));
    pthread_mutex_unlock(&w->lock);
    free(comm->state);
    comm->state = NULL;
}

static void tell_all(const loom_comm *comm, loom_parcel what, const char *text)
{
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            loom_tcp_send_copy(tcp_link_to(comm, r), what, text, strlen(text));
}

static void give_up(loom_comm *comm, loom_status status)
{
    tcp_world *w = tcp_world_of(comm);

    if (!comm->state || !tcp_id(comm))
        return;
    pthread_mutex_lock(&w->lock);
    tell_all(comm, (loom_parcel){.class = TCP_GAVE_UP, .comm = tcp_id(comm), .number = (uint64_t)(int64_t)status}, comm->message);
    pthread_mutex_unlock(&w->lock);
}

/* --- collectives' parcels --------------------------------------------------------------------------------------------------------------
 */

static void mail_send(loom_comm *comm, int rank, loom_parcel *parcel)
{
    parcel->comm = tcp_id(comm);
    loom_tcp_send(tcp_link_to(comm, rank), parcel);
}

static void mail_expect(loom_comm *comm, int rank, loom_parcel *parcel)
{
    parcel->comm = tcp_id(comm);
    loom_tcp_expect(tcp_link_to(comm, rank), parcel);
}

static void mail_forget(loom_comm *comm, int rank, loom_parcel *parcel)
{
    loom_tcp_forget(tcp_link_to(comm, rank), parcel);
}

const loom_mail loom_tcp_mail = {.send = mail_send, .expect = mail_expect, .forget = mail_forget};

/* --- calls
 * -------------------------------------------------------------------------------------------------------------------------------- */

static void take_notice_back(loom_call *call)
{
    tcp_call *s = loom_call_scratch(call);

    if (s->noticed)
        tell_all(call->comm, (loom_parcel){.class = TCP_WAITS_IN}, "");
    s->noticed = false;
}

static loom_step step(loom_call *call)
{
    tcp_world *w = tcp_world_of(call->comm);
    loom_step step, again;
    bool moved;

    pthread_mutex_lock(&w->lock);
    moved = loom_tcp_drive(w);
    step = loom_call_is_p2p(call->kind) ? loom_tcp_message_step(call) : loom_ordered_step(call, &loom_tcp_mail);
    if (step == LOOM_STEP_OVER)
        take_notice_back(call);
    pthread_mutex_unlock(&w->lock);
    again = moved ? LOOM_STEP_AGAIN : LOOM_STEP_WAIT;
    return step == LOOM_STEP_WAIT ? again : step;
}

static void drop(loom_call *call)
{
    tcp_world *w = tcp_world_of(call->comm);

    pthread_mutex_lock(&w->lock);
    if (loom_call_is_p2p(call->kind))
        loom_tcp_message_drop(call);
    else
        loom_ordered_drop(call);
    pthread_mutex_unlock(&w->lock);
}

static bool is_missing(const loom_call *call, int rank)
{
    return loom_call_is_p2p(call->kind) ? rank == call->peer : loom_ordered_is_missing(call, rank);
}

static loom_status check_failed(const loom_call *call)
{
    const loom_comm *comm = call->comm;
    char who[LOOM_RANK_TEXT], what[LOOM_CALL_TEXT];

    for (int r = 0; r < comm->size; r++)
        for (const loom_parcel *p = tcp_link_to(comm, r)->arrived; p; p = p->next)
            if (p->class == TCP_GAVE_UP && p->comm == tcp_id(comm))
                return loom_fail((int64_t)p->number == LOOM_E_MISMATCH ? LOOM_E_MISMATCH : LOOM_E_PEER, "%s ended because %s gave up: %.*s",
                                 loom_call_describe(call, what), loom_rank_describe(comm, r, who), (int)p->bytes, p->data);
    return LOOM_OK;
}

static loom_status check_gone(const loom_call *call)
{
    char who[LOOM_RANK_TEXT], what[LOOM_CALL_TEXT];

    for (int r = 0; r < call->comm->size; r++) {
        const tcp_link *link = tcp_link_to(call->comm, r);
        if (link->dead && is_missing(call, r))
            return loom_fail(LOOM_E_PEER, "%s: %s %s: %s", loom_call_describe(call, what), loom_rank_describe(call->comm, r, who),
                             link->goodbye ? "has left" : "died or cannot be reached", link->why);
    }
    return LOOM_OK;
}

static loom_status expire(const loom_call *call)
{
    const loom_comm *comm = call->comm;
    char who[LOOM_RANK_TEXT], what[LOOM_CALL_TEXT];
    loom_text missing = {0}, whereabouts = {0};
    loom_status status;

    for (int r = 0; r < comm->size; r++) {
        const char *waits_in = tcp_link_to(comm, r)->waits_in;
        if (r == comm->rank || !is_missing(call, r))
            continue;
        loom_text_add(&missing, "%s%s", missing.length ? ", " : "", loom_rank_describe(comm, r, who));
        loom_text_add(&whereabouts, "; %s waits %s%s", loom_rank_describe(comm, r, who), *waits_in ? "in " : "for nobody", waits_in);
    }
    status = loom_fail(LOOM_E_PEER, "%s of %d ranks: %s %s within %g s%s", loom_call_describe(call, what), comm->size,
                       loom_text_so_far(&missing), loom_missed_verb(call->kind), comm->world->deadline_s, loom_text_so_far(&whereabouts));
    loom_text_drop(&missing);
    loom_text_drop(&whereabouts);
    return status;
}

/* Long before the deadline, so that the others know by then where we are. */
static void give_notice(loom_call *call, double stalled_s)
{
    tcp_call *s = loom_call_scratch(call);
    double after_s = call->comm->world->deadline_s / 3 < 0.5 ? call->comm->world->deadline_s / 3 : 0.5;
    char what[LOOM_CALL_TEXT];

    if (s->noticed || stalled_s < after_s)
        return;
    s->noticed = true;
    tell_all(call->comm, (loom_parcel){.class = TCP_WAITS_IN}, loom_call_describe(call, what));
}

static loom_status check(loom_call *call, double stalled_s)
{
    tcp_world *w = tcp_world_of(call->comm);
    bool expired = stalled_s >= call->comm->world->deadline_s;
    loom_status status;

    pthread_mutex_lock(&w->lock);
    status = check_failed(call);
    if (status >= 0)
        status = check_gone(call);
    if (status >= 0 && expired)
        status = expire(call);
    if (status >= 0)
        give_notice(call, stalled_s);
    pthread_mutex_unlock(&w->lock);
    if (status < 0 && expired)
        loom_world_dump_once(call->comm->world);
    return status;
}

const loom_transport loom_transport_tcp = {
    .name = "tcp",
    .call_bytes = sizeof(tcp_call),
    .present = loom_tcp_present,
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
