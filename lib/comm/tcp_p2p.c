/* Point to point over TCP. A send announces itself; the receive that it is for answers. A short message travels with its announcement and
 * is over when the receiver says TAKEN; a long one waits for GO_ON and then travels straight into the receiver's buffer, so nothing is kept
 * for a receive that never comes. */
#include "comm/resume.h"
#include "comm/tcp.h"

static tcp_message *message_of(const loom_call *call)
{
    return &((tcp_call *)loom_call_scratch((loom_call *)call))->message;
}

static loom_step over(loom_call *call, loom_status status)
{
    call->task.status = status;
    return LOOM_STEP_OVER;
}

static loom_parcel address(const loom_call *call, int class, uint64_t number, uint32_t part)
{
    return (loom_parcel){.class = (uint8_t) class,
                         .dtype = (uint8_t)call->dtype,
                         .comm = tcp_id(call->comm),
                         .number = number,
                         .part = part,
                         .count = call->count};
}

static size_t bytes_of(const loom_call *call)
{
    return call->count * loom_dtype_bytes(call->dtype);
}

static void announce(loom_call *call)
{
    tcp_message *m = message_of(call);
    tcp_link *link = tcp_link_to(call->comm, call->peer);

    m->id = link->next_id++;
    m->answer = address(call, TCP_ANSWER, 0, m->id);
    loom_tcp_expect(link, &m->answer);
    m->announce = address(call, TCP_ANNOUNCE, call->tag, m->id);
    m->announce.data = (char *)call->send;
    m->announce.bytes = bytes_of(call) <= TCP_EAGER ? bytes_of(call) : 0;
    loom_tcp_send(link, &m->announce);
}

static void send_data(loom_call *call)
{
    tcp_message *m = message_of(call);

    m->data = address(call, TCP_DATA, 0, m->id);
    m->data.data = (char *)call->send;
    m->data.bytes = bytes_of(call);
    loom_tcp_send(tcp_link_to(call->comm, call->peer), &m->data);
}

static loom_status refused(const loom_call *call)
{
    const loom_parcel *answer = &message_of(call)->answer;
    char what[LOOM_CALL_TEXT], who[LOOM_RANK_TEXT];

    return loom_fail(LOOM_E_MISMATCH, "%s mismatch: this rank calls %s, %s expects %llu %s",
                     answer->count != call->count ? "count" : "dtype", loom_call_describe(call, what),
                     loom_rank_describe(call->comm, call->peer, who), (unsigned long long)answer->count,
                     loom_dtype_name((loom_dtype)answer->dtype));
}

static loom_step send_step(loom_call *call)
{
    tcp_message *m = message_of(call);

    LOOM_RESUME(&m->resume);
    announce(call);
    LOOM_AWAIT(&m->resume, m->announce.done && m->answer.done);
    if (m->answer.flags == TCP_REFUSED)
        return over(call, refused(call));
    if (m->answer.flags == TCP_GO_ON) {
        send_data(call);
        LOOM_AWAIT(&m->resume, m->data.done);
    }
    LOOM_RESUME_END;
    return over(call, LOOM_OK);
}

static loom_status answer(loom_call *call, tcp_answer flags)
{
    loom_parcel parcel = address(call, TCP_ANSWER, 0, message_of(call)->announce.part);

    parcel.flags = (uint16_t)flags;
    return loom_tcp_send_copy(tcp_link_to(call->comm, call->peer), parcel, NULL, 0)
               ? LOOM_OK
               : loom_fail(LOOM_E_MEMORY, "no memory to answer a message");
}

static loom_status refuse(loom_call *call)
{
    const loom_parcel *announced = &message_of(call)->announce;
    char what[LOOM_CALL_TEXT], who[LOOM_RANK_TEXT];

    answer(call, TCP_REFUSED);
    return loom_fail(LOOM_E_MISMATCH, "%s mismatch: this rank calls %s, %s sends %llu %s",
                     announced->count != call->count ? "count" : "dtype", loom_call_describe(call, what),
                     loom_rank_describe(call->comm, call->peer, who), (unsigned long long)announced->count,
                     loom_dtype_name((loom_dtype)announced->dtype));
}

static void expect_announcement(loom_call *call)
{
    tcp_message *m = message_of(call);

    m->announce = address(call, TCP_ANNOUNCE, call->tag, 0);
    m->announce.data = call->recv;
    m->announce.bytes = bytes_of(call);
    loom_tcp_expect(tcp_link_to(call->comm, call->peer), &m->announce);
}

static void expect_data(loom_call *call)
{
    tcp_message *m = message_of(call);

    m->data = address(call, TCP_DATA, 0, m->announce.part);
    m->data.data = call->recv;
    m->data.bytes = bytes_of(call);
    loom_tcp_expect(tcp_link_to(call->comm, call->peer), &m->data);
}

static loom_step recv_step(loom_call *call)
{
    tcp_message *m = message_of(call);
    loom_status status;

    LOOM_RESUME(&m->resume);
    expect_announcement(call);
    LOOM_AWAIT(&m->resume, m->announce.done);
    if (m->announce.count != call->count || m->announce.dtype != call->dtype)
        return over(call, refuse(call));
    if (m->announce.bytes == bytes_of(call)) /* it came along */
        return over(call, answer(call, TCP_TAKEN));
    expect_data(call);
    if ((status = answer(call, TCP_GO_ON)) < 0)
        return over(call, status);
    LOOM_AWAIT(&m->resume, m->data.done);
    LOOM_RESUME_END;
    return over(call, LOOM_OK);
}

loom_step loom_tcp_message_step(loom_call *call)
{
    return call->kind == LOOM_CALL_SEND ? send_step(call) : recv_step(call);
}

void loom_tcp_message_drop(loom_call *call)
{
    tcp_message *m = message_of(call);
    tcp_link *link = tcp_link_to(call->comm, call->peer);
    loom_parcel *parcels[] = {&m->announce, &m->answer, &m->data};

    for (int i = 0; i < 3; i++)
        if (parcels[i]->class && !parcels[i]->done)
            loom_tcp_forget(link, parcels[i]);
}
