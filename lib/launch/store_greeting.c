/* Finding the store.
 *
 * Nobody on the port yet is normal: rank 0 or the launcher may start later, so a refused connection is tried again until the deadline. A
 * stranger on the port is not: he accepts and then is silent, hangs up or says something else. The first message is VALIDATE and PING
 * with a random nonce, which only a store echoes. */
#include "launch/store_greeting.h"

#include "core/clock.h"
#include "launch/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define FIRST_TRY_S 0.25 /* for one address; doubles each round, so that one dead address does not hide a live one */
#define LONGEST_TRY_S 3.0
#define FIRST_PAUSE_S 0.02
#define LONGEST_PAUSE_S 1.0
#define OLD_SILENCE_S 1.0

/* How long a stranger on the port is believed to be one. Our own server answers within milliseconds, and two jobs with one port should end
 * at once; a launcher's store may be busy with a thousand clients. */
#define STRANGER_S 1.2
#define STRANGER_FOR_AGENT_S 15.0
#define AGENT_PING_S 5.0

typedef enum outcome { GREETED, UNREACHABLE, SILENT, HUNG_UP, FOREIGN } outcome;

static outcome outcome_of(loom_io io)
{
    return io == LOOM_IO_OK ? GREETED : io == LOOM_IO_TIMEOUT ? SILENT : HUNG_UP;
}

/* Sends `message` on a fresh connection and reads `size` bytes of reply. The connection is in *fd when GREETED. */
static outcome exchange(const loom_address *address, double connect_deadline, const loom_bytes *message, void *reply, size_t size,
                         double silence_s, int *fd)
{
    *fd = loom_socket_connect(address, connect_deadline);
    if (*fd < 0)
        return UNREACHABLE;

    double deadline = loom_now_s() + silence_s;
    loom_io io = loom_socket_send(*fd, message->data, message->size, deadline);
    if (io == LOOM_IO_OK)
        io = loom_socket_receive(*fd, reply, size, deadline);
    if (io != LOOM_IO_OK)
        close(*fd);
    return outcome_of(io);
}

/* Top byte set: a server of PyTorch 2.1 or older reads magic and nonce as the length of a key, and has to refuse it at once. */
static uint32_t draw_nonce(void)
{
    uint32_t nonce = 0;

    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        nonce = (uint32_t)getpid();
    return nonce | 0x80000000u;
}

/* VALIDATE and PING: PyTorch 2.5 and later, and our own server. */
static outcome greet_modern(const loom_address *address, double connect_deadline, double silence_s, int *fd)
{
    uint32_t nonce = draw_nonce(), echo = 0;
    loom_bytes message = {0};

    loom_bytes_append_u8(&message, LOOM_OP_VALIDATE);
    loom_bytes_append_u32(&message, LOOM_STORE_MAGIC);
    loom_bytes_append_u8(&message, LOOM_OP_PING);
    loom_bytes_append_u32(&message, nonce);
    outcome result = message.failed ? UNREACHABLE : exchange(address, connect_deadline, &message, &echo, sizeof echo, silence_s, fd);
    loom_bytes_free(&message);
    if (result == GREETED && echo != nonce) {
        close(*fd);
        return FOREIGN;
    }
    return result;
}

/* "How many keys": one byte in the dialect up to 2.1, and behind VALIDATE in 2.2 to 2.4, which do not know PING. The old one first: its
 * single thread would wait for the rest of what it takes for an incomplete SET. */
static outcome greet_old(const loom_address *address, double connect_deadline, int *fd, loom_store_dialect *dialect)
{
    uint64_t n_keys;
    loom_bytes message = {0};

    loom_bytes_append_u8(&message, LOOM_OP_GET_NUM_KEYS - 1);
    outcome result = message.failed ? UNREACHABLE : exchange(address, connect_deadline, &message, &n_keys, sizeof n_keys, OLD_SILENCE_S, fd);
    loom_bytes_free(&message);
    *dialect = LOOM_STORE_OLD;
    if (result == GREETED)
        return result;

    loom_bytes_append_u8(&message, LOOM_OP_VALIDATE);
    loom_bytes_append_u32(&message, LOOM_STORE_MAGIC);
    loom_bytes_append_u8(&message, LOOM_OP_GET_NUM_KEYS);
    result = message.failed ? UNREACHABLE : exchange(address, connect_deadline, &message, &n_keys, sizeof n_keys, OLD_SILENCE_S, fd);
    loom_bytes_free(&message);
    *dialect = LOOM_STORE_MODERN;
    return result;
}

static outcome greet(const loom_store_target *target, const loom_address *address, double connect_deadline, loom_store_connection *connection)
{
    outcome result = greet_modern(address, connect_deadline, target->agent ? AGENT_PING_S : STRANGER_S, &connection->fd);

    connection->dialect = LOOM_STORE_MODERN;
    if (result == HUNG_UP && target->probe_old)
        result = greet_old(address, loom_now_s() + LONGEST_TRY_S, &connection->fd, &connection->dialect);
    connection->address = *address;
    return result;
}

/* What the rounds have found so far; the words are for the message of a failure. */
typedef struct dialling {
    double try_s;
    double stranger_since; /* 0: none in the last round */
    char found[512];
} dialling;

static void note(dialling *d, const loom_address *address, outcome result)
{
    char name[LOOM_ADDRESS_TEXT];
    size_t used = strlen(d->found);
    const char *what = result == SILENT    ? "accepts and is silent"
                       : result == HUNG_UP ? "hangs up at the greeting"
                       : result == FOREIGN ? "answers, but not as a store"
                                             : strerror(errno);

    loom_address_text(address, name);
    snprintf(d->found + used, sizeof d->found - used, "%s%s: %s", used ? "; " : "", name, what);
}

/* One try at each address. */
static bool try_all(dialling *d, const loom_store_target *target, const loom_addresses *addresses, double deadline,
                    loom_store_connection *connection)
{
    double stranger_since = d->stranger_since, now = loom_now_s();

    d->found[0] = '\0';
    d->stranger_since = 0;
    for (int i = 0; i < addresses->count && loom_now_s() < deadline; i++) {
        double try_until = loom_now_s() + d->try_s;
        outcome result = greet(target, &addresses->at[i], try_until < deadline ? try_until : deadline, connection);
        if (result == GREETED)
            return true;
        note(d, &addresses->at[i], result);
        if (result != UNREACHABLE)
            d->stranger_since = stranger_since > 0 ? stranger_since : now;
    }
    d->try_s = d->try_s * 2 < LONGEST_TRY_S ? d->try_s * 2 : LONGEST_TRY_S;
    return false;
}

static bool is_stranger(const dialling *d, const loom_store_target *target)
{
    double limit_s = target->agent ? STRANGER_FOR_AGENT_S : STRANGER_S;

    return d->stranger_since > 0 && loom_now_s() - d->stranger_since >= limit_s;
}

static loom_status refuse_stranger(const dialling *d, const loom_store_target *target)
{
    char holder[128];
    bool known = loom_port_holder(target->port, holder, sizeof holder);

    return loom_fail(LOOM_E_PEER, "store at %s:%d: who listens there is no store (%s)%s%s; %s", target->host, target->port, d->found,
                     known ? "; on this host the port is held by " : "", known ? holder : "",
                     target->agent ? "a launcher of PyTorch before 2.5 needs RANKLOOM_STORE_PROBE_OLD=true"
                                   : "does another job use this MASTER_PORT?");
}

static loom_status refuse_late(const dialling *d, const loom_store_target *target, double waited_s)
{
    return loom_fail(LOOM_E_PEER, "store at %s:%d: no store answered within %.1f s (%s); %s", target->host, target->port, waited_s,
                     d->found[0] ? d->found : "no time for a first try",
                     target->agent ? "is that the launcher's address, seen from this host (torchrun --local-addr)?"
                                   : "is rank 0 running, on the host that MASTER_ADDR names?");
}

/* Ranks that were refused together should not all come back together. */
static double with_jitter(double pause_s)
{
    return pause_s * (0.5 + 0.5 * (double)(draw_nonce() & 0xffff) / 0xffff);
}

loom_status loom_store_connect(const loom_store_target *target, const loom_addresses *addresses, double deadline,
                               loom_store_connection *connection)
{
    dialling d = {.try_s = FIRST_TRY_S};
    loom_addresses resolved;
    double began = loom_now_s(), pause_s = FIRST_PAUSE_S;

    do {
        if (!addresses && loom_resolve(target->host, target->port, &resolved) != LOOM_OK)
            snprintf(d.found, sizeof d.found, "%s", loom_last_error()); /* a name server may learn of a new pod late */
        else if (try_all(&d, target, addresses ? addresses : &resolved, deadline, connection))
            return LOOM_OK;
        if (is_stranger(&d, target))
            return refuse_stranger(&d, target);
        double now = loom_now_s(), pause = with_jitter(d.stranger_since > 0 ? FIRST_PAUSE_S : pause_s);
        loom_sleep_s(now + pause < deadline ? pause : deadline - now);
        pause_s = pause_s * 2 < LONGEST_PAUSE_S ? pause_s * 2 : LONGEST_PAUSE_S;
    } while (loom_now_s() < deadline);
    return refuse_late(&d, target, loom_now_s() - began);
}
