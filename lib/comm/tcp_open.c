/* Connecting every rank with every other.
 *
 * A card has the addresses and the port at which its rank listens, and of rank 0's card everyone takes a secret. Ranks connect to those
 * below them and accept those above; both sides show a half of the secret. A stranger who connects does not know it, and only loses its
 * connection. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "comm/tcp.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "device/host.h"
#include "launch/socket.h"

enum { MOST_PLACES = 16 };

/* An address in a card: 4 bytes of IPv4 or 16 of IPv6. */
typedef struct place {
    uint8_t family; /* 4 or 6 */
    uint8_t bytes[16];
} place;

typedef struct tcp_card {
    unsigned char token[32];
    uint64_t host; /* equal: loopback reaches */
    uint16_t port;
    uint8_t count;
    place places[MOST_PLACES]; /* best first */
} tcp_card;
_Static_assert(sizeof(tcp_card) <= LOOM_CARD_BYTES, "a card fits");

static const uint64_t GREETING = 0x316d6f6f6c6b6e72; /* reads "rnkloom1" where the byte order is the same */

typedef struct greeting {
    uint64_t magic;
    unsigned char half[16];
    int32_t from, to;
} greeting;

/* --- where this rank can be reached ------------------------------------------------------------------------------------------ */

static bool place_of(const struct sockaddr *address, place *p)
{
    *p = (place){0};
    if (address->sa_family == AF_INET) {
        p->family = 4;
        memcpy(p->bytes, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
        return true;
    }
    if (address->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr)) {
        p->family = 6;
        memcpy(p->bytes, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
        return true;
    }
    return false;
}

static void add_place(tcp_card *card, const struct sockaddr *address)
{
    place p;

    if (card->count == MOST_PLACES || !place_of(address, &p))
        return;
    for (int i = 0; i < card->count; i++)
        if (memcmp(&card->places[i], &p, sizeof p) == 0)
            return;
    card->places[card->count++] = p;
}

/* The address from which packets to `hint` would leave: the network that the ranks' meeting point is on. No packet is sent. */
static void add_route_to(tcp_card *card, const char *hint)
{
    loom_addresses addresses;

    if (!hint || !*hint || loom_resolve(hint, 9, &addresses) < 0)
        return;
    for (int i = 0; i < addresses.count; i++) {
        struct sockaddr_storage here;
        socklen_t size = sizeof here;
        int fd = socket(addresses.at[i].storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        if (connect(fd, (const struct sockaddr *)&addresses.at[i].storage, addresses.at[i].size) == 0 &&
            getsockname(fd, (struct sockaddr *)&here, &size) == 0)
            add_place(card, (const struct sockaddr *)&here);
        close(fd);
    }
}

static void add_interfaces(tcp_card *card, bool loopback)
{
    struct ifaddrs *all;

    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *one = all; one; one = one->ifa_next)
        if (one->ifa_addr && (one->ifa_flags & IFF_UP) && !!(one->ifa_flags & IFF_LOOPBACK) == loopback)
            add_place(card, one->ifa_addr);
    freeifaddrs(all);
}

loom_status loom_tcp_present(loom_world *world, const char *hint, char out[LOOM_CARD_BYTES])
{
    tcp_world *w = calloc(1, sizeof *w);
    tcp_card card = {.host = loom_host_identity(false)};
    int port;
    loom_status status;

    if (!w)
        return loom_fail(LOOM_E_MEMORY, "no memory for the TCP transport");
    world->states[LOOM_TCP] = w;
    w->size = world->size;
    pthread_mutex_init(&w->lock, NULL);
    if (getrandom(card.token, sizeof card.token, 0) != sizeof card.token)
        return loom_fail(LOOM_E_IO, "getrandom: %s", strerror(errno));
    if ((status = loom_listen(hint && *hint ? hint : "localhost", 0, w->listeners, &w->n_listeners, &port)) < 0)
        return status;
    card.port = (uint16_t)port;
    add_route_to(&card, hint);
    add_interfaces(&card, false);
    add_interfaces(&card, true);
    memcpy(out, &card, sizeof card);
    return LOOM_OK;
}

/* --- connecting ------------------------------------------------------------------------------------------------------------------ */

static loom_address address_of(const place *p, int port)
{
    loom_address address = {.size = p->family == 4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};

    memcpy(&v4.sin_addr, p->bytes, 4);
    memcpy(&v6.sin6_addr, p->bytes, 16);
    if (p->family == 4)
        memcpy(&address.storage, &v4, sizeof v4);
    else
        memcpy(&address.storage, &v6, sizeof v6);
    return address;
}

static bool is_loopback(const place *p)
{
    static const uint8_t v6_loopback[16] = {[15] = 1};

    return p->family == 4 ? p->bytes[0] == 127 : memcmp(p->bytes, v6_loopback, 16) == 0;
}

static void set_options(int fd, double deadline_s)
{
    int on = 1;
    unsigned timeout_ms = deadline_s < 3600 ? (unsigned)(deadline_s * 1e3) : 3600000;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms); /* a host that vanished with data under way */
}

static loom_status adopt(loom_world *world, int rank, int fd)
{
    tcp_world *w = world->states[LOOM_TCP];
    tcp_link *link = &w->links[rank];

    set_options(fd, world->deadline_s);
    link->fd = fd;
    link->buffer = malloc(TCP_BUFFER);
    return link->buffer ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for the connection with rank %d", rank);
}

/* Both halves of the secret of rank 0: who connects shows the first, who accepts answers with the second. */
static greeting make_greeting(const tcp_world *w, int half, int from, int to)
{
    greeting g = {.magic = GREETING, .from = from, .to = to};

    memcpy(g.half, w->token + 16 * half, sizeof g.half);
    return g;
}

/* Compares without telling by its time where the difference is. */
static bool is_right(const tcp_world *w, const greeting *g, int half)
{
    unsigned char difference = 0;

    for (size_t i = 0; i < sizeof g->half; i++)
        difference |= (unsigned char)(g->half[i] ^ w->token[16 * (size_t)half + i]);
    return g->magic == GREETING && difference == 0;
}

static loom_status connect_to(loom_world *world, int rank, const tcp_card *card, uint64_t here, double deadline)
{
    tcp_world *w = world->states[LOOM_TCP];
    greeting hello = make_greeting(w, 0, world->rank, rank);
    char tried[512] = "", text[LOOM_ADDRESS_TEXT];

    for (int i = 0; i < card->count; i++) {
        loom_address address = address_of(&card->places[i], card->port);
        double until = loom_now_s() + 3 < deadline ? loom_now_s() + 3 : deadline;
        int fd;
        if (is_loopback(&card->places[i]) && card->host != here)
            continue;
        fd = loom_socket_connect(&address, until);
        if (fd >= 0 && loom_socket_send(fd, &hello, sizeof hello, until) == LOOM_IO_OK)
            return adopt(world, rank, fd);
        loom_address_text(&address, text);
        snprintf(tried + strlen(tried), sizeof tried - strlen(tried), "%s%s (%s)", *tried ? ", " : "", text, strerror(errno));
        if (fd >= 0)
            close(fd);
    }
    return loom_fail(LOOM_E_PEER, "rank %d cannot connect to rank %d at %s", world->rank, rank,
                     *tried ? tried : "any address: it has none");
}

/* Whoever answers at the address has to be the rank, too. */
static loom_status read_welcome(loom_world *world, int rank, double deadline)
{
    tcp_world *w = world->states[LOOM_TCP];
    greeting g;

    if (loom_socket_receive(w->links[rank].fd, &g, sizeof g, deadline) == LOOM_IO_OK && is_right(w, &g, 1) && g.from == rank &&
        g.to == world->rank)
        return LOOM_OK;
    return loom_fail(LOOM_E_PEER, "rank %d did not welcome rank %d within the deadline, or something else listens at its address", rank,
                     world->rank);
}

/* One connection from the listeners, or -1 at the deadline. */
static int accept_one(const tcp_world *w, double deadline)
{
    struct pollfd fds[2];

    for (;;) {
        double left_s = deadline - loom_now_s();
        for (int i = 0; i < w->n_listeners; i++)
            fds[i] = (struct pollfd){.fd = w->listeners[i], .events = POLLIN};
        if (left_s <= 0 || (poll(fds, (nfds_t)w->n_listeners, (int)(left_s * 1e3) + 1) < 0 && errno != EINTR))
            return -1;
        for (int i = 0; i < w->n_listeners; i++) {
            int fd = accept4(w->listeners[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd >= 0)
                return fd;
        }
    }
}

/* Accepts until a rank above has come; strangers are shut out. */
static loom_status accept_rank(loom_world *world, double deadline)
{
    tcp_world *w = world->states[LOOM_TCP];
    int fd;

    while ((fd = accept_one(w, deadline)) >= 0) {
        double until = loom_now_s() + 2 < deadline ? loom_now_s() + 2 : deadline;
        greeting g, welcome;
        if (loom_socket_receive(fd, &g, sizeof g, until) == LOOM_IO_OK && is_right(w, &g, 0) && g.to == world->rank &&
            g.from > world->rank && g.from < world->size && w->links[g.from].fd < 0) {
            welcome = make_greeting(w, 1, world->rank, g.from);
            if (loom_socket_send(fd, &welcome, sizeof welcome, deadline) == LOOM_IO_OK)
                return adopt(world, g.from, fd);
        }
        loom_log(LOOM_LOG_WARNING, world->rank, "a connection that is not from a rank of this world was closed");
        close(fd);
    }
    for (int r = world->rank + 1; r < world->size; r++)
        if (w->links[r].fd < 0)
            return loom_fail(LOOM_E_PEER, "rank %d did not connect to rank %d within %g s", r, world->rank, world->deadline_s);
    return LOOM_OK;
}

loom_status loom_tcp_connect_all(loom_world *world, const char (*parts)[LOOM_CARD_BYTES])
{
    tcp_world *w = world->states[LOOM_TCP];
    double deadline = loom_now_s() + world->deadline_s;
    tcp_card mine, card;
    loom_status status;

    memcpy(&card, parts[0], sizeof card);
    memcpy(w->token, card.token, sizeof w->token);
    memcpy(&mine, parts[world->rank], sizeof mine);
    for (int r = 0; r < world->rank; r++) {
        memcpy(&card, parts[r], sizeof card);
        LOOM_TRY(connect_to(world, r, &card, mine.host, deadline));
    }
    for (int r = world->rank + 1; r < world->size; r++)
        LOOM_TRY(accept_rank(world, deadline));
    for (int r = 0; r < world->rank; r++)
        LOOM_TRY(read_welcome(world, r, deadline));
    return LOOM_OK;

fail:
    return status;
}
