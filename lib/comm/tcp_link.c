/* Parcels on a connection. Whoever calls drives it: there is no thread, and nothing here blocks. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "comm/tcp.h"

static const uint32_t FRAME_MAGIC = 0x4d4f4f4c; /* "LOOM" */

static void lose(tcp_link *link, const char *why)
{
    if (link->dead)
        return;
    link->dead = true;
    snprintf(link->why, sizeof link->why, "%s", why);
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}

static tcp_frame frame_of(const loom_parcel *p)
{
    return (tcp_frame){.magic = FRAME_MAGIC,
                       .class = p->class,
                       .dtype = p->dtype,
                       .flags = p->flags,
                       .comm = p->comm,
                       .number = p->number,
                       .count = p->count,
                       .bytes = p->bytes,
                       .part = p->part};
}

/* --- what arrives --------------------------------------------------------------------------------------------------------------- */

/* An announcement is asked for by tag alone; its part is the sender's. */
static bool is_meant(const loom_parcel *expected, const tcp_frame *frame)
{
    return expected->class == frame->class && expected->comm == frame->comm && expected->number == frame->number &&
           (frame->class == TCP_ANNOUNCE || expected->part == frame->part);
}

static void note_frame(loom_parcel *parcel, const tcp_frame *frame)
{
    parcel->part = frame->part;
    parcel->flags = frame->flags;
    parcel->count = frame->count;
    parcel->dtype = frame->dtype;
}

/* The first parcel that `frame` is meant for, out of the list. */
static loom_parcel *take_expected(tcp_link *link, const tcp_frame *frame)
{
    for (loom_parcel **at = &link->expected; *at; at = &(*at)->next)
        if (is_meant(*at, frame)) {
            loom_parcel *parcel = *at;
            *at = parcel->next;
            return parcel;
        }
    return NULL;
}

/* A parcel of our own that keeps what nobody has asked for yet. */
static loom_parcel *make_arrived(const tcp_frame *frame)
{
    loom_parcel *parcel = malloc(sizeof *parcel + frame->bytes);

    if (!parcel)
        return NULL;
    *parcel = (loom_parcel){.class = frame->class,
                            .dtype = frame->dtype,
                            .flags = frame->flags,
                            .part = frame->part,
                            .comm = frame->comm,
                            .number = frame->number,
                            .count = frame->count,
                            .data = (char *)(parcel + 1),
                            .bytes = frame->bytes,
                            .own = true};
    return parcel;
}

/* Whether the data of `frame` may go where the parcel says. An announcement of something else is reported without its data. */
static bool fits(loom_parcel *parcel, const tcp_frame *frame)
{
    if (frame->class == TCP_ANNOUNCE && (parcel->count != frame->count || parcel->dtype != frame->dtype))
        return false;
    return frame->bytes <= parcel->bytes;
}

/* A whole frame has been read: decides where its data goes. */
static void begin_data(tcp_link *link)
{
    const tcp_frame *frame = &link->in_frame;
    loom_parcel *parcel;

    if (frame->magic != FRAME_MAGIC || frame->bytes > (uint64_t)PTRDIFF_MAX / 2) {
        lose(link, "it sent something that is no frame");
        return;
    }
    parcel = take_expected(link, frame);
    if (!parcel) {
        if (!(link->into = make_arrived(frame)))
            lose(link, "there was no memory for what it sent");
        return;
    }
    if (fits(parcel, frame)) {
        note_frame(parcel, frame);
        link->into = parcel;
        parcel->bytes = frame->bytes;
        return;
    }
    if (frame->class != TCP_ANNOUNCE) {
        lose(link, "it sent more than was asked for");
        return;
    }
    note_frame(parcel, frame);
    parcel->done = true;
    link->into = NULL;
}

/* Gives `parcel` what arrived without being asked for. */
static void hand_over(loom_parcel *parcel, loom_parcel *arrived)
{
    tcp_frame frame = frame_of(arrived);
    bool fitting = fits(parcel, &frame);

    if (fitting && arrived->bytes)
        memcpy(parcel->data, arrived->data, arrived->bytes);
    if (fitting)
        parcel->bytes = arrived->bytes;
    note_frame(parcel, &frame);
    parcel->done = true;
    free(arrived);
}

/* A parcel that nobody had asked for when it began to come is complete: somebody may have meanwhile. */
static void keep_or_hand_over(tcp_link *link, loom_parcel *arrived)
{
    tcp_frame frame = frame_of(arrived);
    loom_parcel *parcel = take_expected(link, &frame), **at = &link->arrived;

    if (parcel) {
        hand_over(parcel, arrived);
        return;
    }
    while (*at)
        at = &(*at)->next;
    arrived->next = NULL;
    *at = arrived;
}

static void end_data(tcp_link *link)
{
    loom_parcel *parcel = link->into;

    link->into = NULL;
    link->in_done = 0;
    if (!parcel)
        return;
    if (parcel->class == TCP_WAITS_IN) {
        snprintf(link->waits_in, sizeof link->waits_in, "%.*s", (int)parcel->bytes, parcel->data);
        free(parcel);
    } else if (parcel->class == TCP_GOODBYE) {
        link->goodbye = true;
        free(parcel);
    } else if (parcel->own) {
        keep_or_hand_over(link, parcel);
    } else {
        parcel->done = true;
    }
}

void loom_tcp_expect(tcp_link *link, loom_parcel *parcel)
{
    loom_parcel **at;

    for (at = &link->arrived; *at; at = &(*at)->next) {
        loom_parcel *arrived = *at;
        tcp_frame frame = frame_of(arrived);
        if (!is_meant(parcel, &frame))
            continue;
        *at = arrived->next;
        hand_over(parcel, arrived);
        return;
    }
    for (at = &link->expected; *at; at = &(*at)->next)
        ;
    parcel->next = NULL;
    *at = parcel;
}

/* --- reading -------------------------------------------------------------------------------------------------------------------------- */

/* Up to `bytes` into `to`: what was read ahead, else from the connection. 0: nothing there now, or dead. */
static size_t pull(tcp_link *link, char *to, size_t bytes)
{
    ssize_t got;

    if (link->begin == link->end && bytes < TCP_BUFFER / 4) {
        got = recv(link->fd, link->buffer, TCP_BUFFER, 0);
        link->begin = 0;
        link->end = got > 0 ? (size_t)got : 0;
    } else if (link->begin == link->end) {
        got = recv(link->fd, to, bytes, 0);
        if (got > 0)
            return (size_t)got;
    } else {
        got = 1;
    }
    if (got == 0)
        lose(link, "it closed the connection");
    else if (got < 0 && errno != EAGAIN && errno != EINTR)
        lose(link, strerror(errno));
    if (bytes > link->end - link->begin)
        bytes = link->end - link->begin;
    memcpy(to, link->buffer + link->begin, bytes);
    link->begin += bytes;
    return bytes;
}

/* Reads some of the frame, or of its data. Returns how much. */
static size_t read_some(tcp_link *link)
{
    char waste[4096];
    size_t got, at;

    if (link->in_done < sizeof link->in_frame) {
        got = pull(link, (char *)&link->in_frame + link->in_done, sizeof link->in_frame - link->in_done);
        link->in_done += got;
        if (link->in_done == sizeof link->in_frame)
            begin_data(link);
    } else {
        at = link->in_done - sizeof link->in_frame;
        got = link->into ? pull(link, link->into->data + at, link->in_frame.bytes - at)
                         : pull(link, waste, link->in_frame.bytes - at < sizeof waste ? link->in_frame.bytes - at : sizeof waste);
        link->in_done += got;
    }
    if (!link->dead && link->in_done >= sizeof link->in_frame && link->in_done - sizeof link->in_frame == link->in_frame.bytes)
        end_data(link);
    return got;
}

static bool read_link(tcp_link *link)
{
    enum { TURN_BYTES = 2 << 20 }; /* then others have theirs */
    size_t total = 0, got = 1;

    while (got && !link->dead && total < TURN_BYTES)
        total += got = read_some(link);
    return total > 0;
}

/* --- writing ----------------------------------------------------------------------------------------------------------------------------
 */

static void end_parcel(tcp_link *link)
{
    loom_parcel *parcel = link->out;

    link->out = parcel->next;
    if (!link->out)
        link->out_last = &link->out;
    link->out_done = 0;
    if (parcel->own)
        free(parcel);
    else
        parcel->done = true;
}

static bool write_link(tcp_link *link)
{
    bool moved = false;

    while (link->out && !link->dead) {
        size_t head = link->out_done < sizeof link->out_frame ? sizeof link->out_frame - link->out_done : 0;
        size_t data_done = head ? 0 : link->out_done - sizeof link->out_frame;
        struct iovec parts[2];
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent;

        if (link->out_done == 0)
            link->out_frame = frame_of(link->out);
        parts[0] = (struct iovec){(char *)&link->out_frame + link->out_done * (head > 0), head};
        parts[1] = (struct iovec){link->out->bytes ? link->out->data + data_done : NULL, link->out->bytes - data_done};
        sent = sendmsg(link->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (sent < 0) {
            lose(link, strerror(errno));
            break;
        }
        moved = true;
        link->out_done += (size_t)sent;
        if (link->out_done == sizeof link->out_frame + link->out->bytes)
            end_parcel(link);
    }
    return moved;
}

/* To this rank itself: the parcel has arrived. */
static void deliver_to_self(tcp_link *link, loom_parcel *parcel)
{
    link->in_frame = frame_of(parcel);
    begin_data(link);
    if (link->into && parcel->bytes)
        memmove(link->into->data, parcel->data, parcel->bytes);
    end_data(link);
    if (parcel->own)
        free(parcel);
    else
        parcel->done = true;
}

void loom_tcp_send(tcp_link *link, loom_parcel *parcel)
{
    if (link->fd < 0 && !link->dead) {
        deliver_to_self(link, parcel);
        return;
    }
    if (link->dead) { /* stays undone: the check of the call finds out why */
        if (parcel->own)
            free(parcel);
        return;
    }
    parcel->next = NULL;
    *link->out_last = parcel;
    link->out_last = &parcel->next;
    if (link->out == parcel)
        write_link(link);
}

bool loom_tcp_send_copy(tcp_link *link, loom_parcel what, const void *data, size_t bytes)
{
    loom_parcel *parcel = malloc(sizeof *parcel + bytes);

    if (!parcel)
        return false;
    *parcel = what;
    parcel->data = (char *)(parcel + 1);
    parcel->bytes = bytes;
    parcel->own = true;
    if (bytes)
        memcpy(parcel->data, data, bytes);
    loom_tcp_send(link, parcel);
    return true;
}

/* --- leaving
 * ------------------------------------------------------------------------------------------------------------------------------ */

static bool unlink_from(loom_parcel **list, const loom_parcel *parcel)
{
    for (; *list; list = &(*list)->next)
        if (*list == parcel) {
            *list = parcel->next;
            return true;
        }
    return false;
}

static void mend_out_last(tcp_link *link)
{
    link->out_last = &link->out;
    while (*link->out_last)
        link->out_last = &(*link->out_last)->next;
}

/* A parcel half of which is written must be written to its end, or the peer reads nonsense: the rest goes on from a copy. */
static void send_rest_from_copy(tcp_link *link)
{
    loom_parcel *parcel = link->out, *copy = malloc(sizeof *copy + parcel->bytes);

    if (!copy) {
        lose(link, "there was no memory to finish what was begun to be sent");
        return;
    }
    *copy = *parcel;
    copy->data = (char *)(copy + 1);
    copy->own = true;
    memcpy(copy->data, parcel->data, parcel->bytes);
    link->out = copy;
    mend_out_last(link);
}

void loom_tcp_forget(tcp_link *link, loom_parcel *parcel)
{
    if (unlink_from(&link->expected, parcel))
        return;
    if (link->into == parcel) { /* the rest of its data is thrown away */
        link->into = NULL;
        return;
    }
    if (link->out == parcel && link->out_done > 0 && !link->dead)
        send_rest_from_copy(link);
    else if (unlink_from(&link->out, parcel))
        mend_out_last(link);
}

void loom_tcp_purge(tcp_link *link, uint64_t comm)
{
    for (loom_parcel **at = &link->arrived; *at;) {
        loom_parcel *parcel = *at;
        if (parcel->comm != comm) {
            at = &parcel->next;
            continue;
        }
        *at = parcel->next;
        free(parcel);
    }
}

bool loom_tcp_is_idle(const tcp_link *link)
{
    return !link->out || link->dead;
}

void loom_tcp_free_link(tcp_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    while (link->arrived) {
        loom_parcel *parcel = link->arrived;
        link->arrived = parcel->next;
        free(parcel);
    }
    while (link->out) { /* calls took theirs out before */
        loom_parcel *parcel = link->out;
        link->out = parcel->next;
        if (parcel->own)
            free(parcel);
    }
    if (link->into && link->into->own)
        free(link->into);
    free(link->buffer);
}

bool loom_tcp_drive(tcp_world *w)
{
    bool moved = false;

    for (int r = 0; r < w->size; r++) {
        tcp_link *link = &w->links[r];
        if (link->fd < 0)
            continue;
        if (link->out)
            moved |= write_link(link);
        if (link->fd >= 0)
            moved |= read_link(link);
    }
    return moved;
}
