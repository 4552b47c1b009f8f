/* TCP with deadlines. */
#include "launch/socket.h"

#include "core/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

loom_status loom_resolve(const char *host, int port, loom_addresses *addresses)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    char service[8];

    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(host, service, &hints, &list);
    if (error)
        return loom_fail(LOOM_E_PEER, "cannot resolve the host name \"%s\": %s", host,
                         error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    addresses->count = 0;
    for (const struct addrinfo *a = list; a && addresses->count < LOOM_MOST_ADDRESSES; a = a->ai_next) {
        if (a->ai_addrlen > sizeof(struct sockaddr_storage))
            continue;
        loom_address *address = &addresses->at[addresses->count++];
        memcpy(&address->storage, a->ai_addr, a->ai_addrlen);
        address->size = a->ai_addrlen;
    }
    freeaddrinfo(list);
    return LOOM_OK;
}

void loom_address_text(const loom_address *address, char text[LOOM_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";

    if (address->storage.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&address->storage;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        snprintf(text, LOOM_ADDRESS_TEXT, "[%s]:%d", host, ntohs(in6->sin6_port));
    } else {
        const struct sockaddr_in *in4 = (const struct sockaddr_in *)&address->storage;
        inet_ntop(AF_INET, &in4->sin_addr, host, sizeof host);
        snprintf(text, LOOM_ADDRESS_TEXT, "%s:%d", host, ntohs(in4->sin_port));
    }
}

/* The kernel binds to its own addresses only: the exact test, for both families and any kind of interface. */
bool loom_address_is_of_this_host(const loom_address *address)
{
    loom_address any_port = *address;
    int fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return false;
    if (any_port.storage.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&any_port.storage)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&any_port.storage)->sin_port = 0;
    bool is_ours = bind(fd, (struct sockaddr *)&any_port.storage, any_port.size) == 0;
    close(fd);
    return is_ours;
}

/* Until the deadline, in whole milliseconds, rounded up so that a short rest is waited for and not spun over. */
static int rest_ms(double deadline)
{
    double rest = ceil((deadline - loom_now_s()) * 1e3);

    return rest <= 0 ? 0 : rest > 1e6 ? 1000000 : (int)rest;
}

static loom_io wait_for(int fd, short events, double deadline)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};

    for (;;) {
        int ms = rest_ms(deadline), n = poll(&poll_fd, 1, ms);
        if (n > 0)
            return LOOM_IO_OK;
        if (n < 0 && errno != EINTR)
            return LOOM_IO_FAILED;
        if (n == 0 && ms == 0)
            return LOOM_IO_TIMEOUT;
    }
}

loom_io loom_socket_wait_readable(int fd, double deadline)
{
    return wait_for(fd, POLLIN, deadline);
}

/* Small requests go at once; a link that was cut, or a host that went away without a word, ends every wait. */
static void set_options(int fd)
{
    const int on = 1, idle_s = 5, interval_s = 2, probes = 3, unacknowledged_ms = 11000;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

/* 0 or the error of a non-blocking connect(). */
static int finish_connect(int fd, double deadline)
{
    int error = 0;
    socklen_t size = sizeof error;

    switch (wait_for(fd, POLLOUT, deadline)) {
    case LOOM_IO_OK:
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        return error;
    case LOOM_IO_TIMEOUT:
        return ETIMEDOUT;
    default:
        return errno;
    }
}

/* A port in the range that Linux gives to clients may be connected to itself when nobody listens on it. */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t size_here = sizeof here, size_there = sizeof there;

    return getsockname(fd, (struct sockaddr *)&here, &size_here) == 0 && getpeername(fd, (struct sockaddr *)&there, &size_there) == 0 &&
           size_here == size_there && memcmp(&here, &there, size_here) == 0;
}

int loom_socket_connect(const loom_address *address, double deadline)
{
    int fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;

    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)&address->storage, address->size) != 0)
        error = errno == EINPROGRESS || errno == EINTR ? finish_connect(fd, deadline) : errno;
    if (!error && is_connected_to_itself(fd))
        error = ECONNREFUSED;
    if (error) {
        close(fd);
        errno = error;
        return -1;
    }
    set_options(fd);
    return fd;
}

loom_io loom_socket_send(int fd, const void *data, size_t size, double deadline)
{
    const char *next = data;

    while (size > 0) {
        ssize_t n = send(fd, next, size, MSG_NOSIGNAL);
        if (n >= 0) {
            next += n;
            size -= (size_t)n;
            continue;
        }
        if (errno == EPIPE || errno == ECONNRESET)
            return LOOM_IO_CLOSED;
        if (errno != EAGAIN && errno != EINTR)
            return LOOM_IO_FAILED;
        loom_io io = errno == EINTR ? LOOM_IO_OK : wait_for(fd, POLLOUT, deadline);
        if (io != LOOM_IO_OK)
            return io;
    }
    return LOOM_IO_OK;
}

loom_io loom_socket_receive(int fd, void *data, size_t size, double deadline)
{
    char *next = data;

    while (size > 0) {
        ssize_t n = recv(fd, next, size, 0);
        if (n > 0) {
            next += n;
            size -= (size_t)n;
            continue;
        }
        if (n == 0 || errno == ECONNRESET)
            return LOOM_IO_CLOSED;
        if (errno != EAGAIN && errno != EINTR)
            return LOOM_IO_FAILED;
        loom_io io = errno == EINTR ? LOOM_IO_OK : wait_for(fd, POLLIN, deadline);
        if (io != LOOM_IO_OK)
            return io;
    }
    return LOOM_IO_OK;
}
