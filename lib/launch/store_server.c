/* Serves a store on sockets: one thread, one poll loop.
 *
 * Fair: in each round every connection that has something is read once, at most READ_BYTES, so neither a flood nor a client that sends
 * byte by byte keeps the others waiting. A client that does not read its replies is not read from either, and is cut off when more than
 * LOOM_STORE_REQUEST_BYTES of replies have come together. */
#include "launch/store_server.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10, REPLIES_BEFORE_PAUSE = 1 << 20, PAUSE_MS = 100 };

typedef struct connection {
    int fd;
    loom_store_session *session;
} connection;

struct loom_store_server {
    pthread_t thread;
    int wake[2]; /* a byte (or the end) of this pipe stops the thread */
    int listeners[LOOM_STORE_LISTENERS];
    int n_listeners;
    loom_store_service service;
    connection *connections; /* [n_connections] */
    struct pollfd *polls;    /* [1 + LOOM_STORE_LISTENERS + n_connections] */
    int capacity;            /* of both */
    atomic_int n_connections;
    bool no_room; /* accept() ran out of descriptors or memory: listeners rest for a while */
    uint8_t buffer[READ_BYTES];
};

/* Room for one more connection in both arrays. */
static bool make_room(loom_store_server *server)
{
    if (server->n_connections < server->capacity)
        return true;

    int capacity = server->capacity ? 2 * server->capacity : 16;
    connection *connections = realloc(server->connections, (size_t)capacity * sizeof *connections);
    if (connections)
        server->connections = connections;
    struct pollfd *polls = realloc(server->polls, ((size_t)capacity + 1 + LOOM_STORE_LISTENERS) * sizeof *polls);
    if (polls)
        server->polls = polls;
    if (!connections || !polls)
        return false;
    server->capacity = capacity;
    return true;
}

static void accept_one(loom_store_server *server, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), on = 1;

    if (fd < 0) {
        server->no_room = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);

    loom_store_session *session = make_room(server) ? loom_store_session_open(&server->service) : NULL;
    if (!session) {
        close(fd);
        return;
    }
    server->connections[server->n_connections++] = (connection){fd, session};
}

/* Reads once and answers. False: the connection is over. */
static bool serve(loom_store_server *server, connection *c)
{
    ssize_t n = recv(c->fd, server->buffer, READ_BYTES, 0);

    if (n > 0)
        return loom_store_session_feed(c->session, server->buffer, (size_t)n);
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* Sends what the kernel takes now. False: the connection is over. */
static bool flush(connection *c)
{
    loom_bytes *replies = loom_store_session_replies(c->session);

    if (replies->failed || replies->size > LOOM_STORE_REQUEST_BYTES + LOOM_STORE_VALUE_BYTES)
        return false;
    if (replies->size == 0)
        return true;
    ssize_t n = send(c->fd, replies->data, replies->size, MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    loom_bytes_drop_front(replies, (size_t)n);
    return true;
}

static void drop(loom_store_server *server, int index)
{
    close(server->connections[index].fd);
    loom_store_session_close(server->connections[index].session);
    server->connections[index] = server->connections[--server->n_connections];
}

/* Fills `polls`: the wake pipe, the listeners, the connections in their order. */
static int prepare_polls(loom_store_server *server)
{
    int n = 0;

    server->polls[n++] = (struct pollfd){.fd = server->wake[0], .events = POLLIN};
    for (int i = 0; i < server->n_listeners; i++)
        server->polls[n++] = (struct pollfd){.fd = server->no_room ? -1 : server->listeners[i], .events = POLLIN};
    for (int i = 0; i < server->n_connections; i++) {
        size_t unsent = loom_store_session_replies(server->connections[i].session)->size;
        short events = (short)((unsent > REPLIES_BEFORE_PAUSE ? 0 : POLLIN) | (unsent ? POLLOUT : 0));
        server->polls[n++] = (struct pollfd){.fd = server->connections[i].fd, .events = events};
    }
    return n;
}

/* One round: backwards over the connections, so that dropping one (the last takes its place) leaves those still to come alone. */
static void serve_round(loom_store_server *server)
{
    const struct pollfd *of_listeners = server->polls + 1, *of_connections = of_listeners + server->n_listeners;

    for (int i = server->n_connections - 1; i >= 0; i--)
        if ((of_connections[i].revents & (POLLIN | POLLHUP | POLLERR)) && !serve(server, &server->connections[i])) {
            flush(&server->connections[i]); /* what was answered before the fault */
            drop(server, i);
        }
    for (int i = server->n_connections - 1; i >= 0; i--) /* all of them: a request may have woken others */
        if (!flush(&server->connections[i]))
            drop(server, i);
    server->no_room = false;
    for (int i = 0; i < server->n_listeners; i++)
        if (of_listeners[i].revents)
            accept_one(server, server->listeners[i]);
}

static void *run(void *argument)
{
    loom_store_server *server = argument;

    for (;;) {
        int n = prepare_polls(server);
        if (poll(server->polls, (nfds_t)n, server->no_room ? PAUSE_MS : -1) < 0)
            continue; /* interrupted, or short of kernel memory for a moment: what is in revents says nothing */
        if (server->polls[0].revents)
            break;
        serve_round(server);
    }
    return NULL;
}

static void free_server(loom_store_server *server)
{
    for (int i = server->n_connections - 1; i >= 0; i--)
        drop(server, i);
    loom_store_service_free(&server->service);
    for (int i = 0; i < server->n_listeners; i++)
        close(server->listeners[i]);
    for (int i = 0; i < 2; i++)
        if (server->wake[i] >= 0)
            close(server->wake[i]);
    free(server->connections);
    free(server->polls);
    free(server);
}

/* The program's signals are for the program's threads. */
static int start_thread(loom_store_server *server)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&server->thread, NULL, run, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

loom_status loom_store_server_open(const int *listeners, int n_listeners, loom_store_server **server)
{
    loom_store_server *s = calloc(1, sizeof *s);
    int error = ENOMEM;

    if (!s) {
        for (int i = 0; i < n_listeners; i++)
            close(listeners[i]);
        return loom_fail(LOOM_E_MEMORY, "store: no memory for the server");
    }
    s->n_listeners = n_listeners;
    memcpy(s->listeners, listeners, (size_t)n_listeners * sizeof *listeners);
    s->wake[0] = s->wake[1] = -1;
    if (pipe2(s->wake, O_CLOEXEC) != 0)
        error = errno;
    else if (make_room(s))
        error = start_thread(s);
    if (error) {
        free_server(s);
        return loom_fail(LOOM_E_IO, "store: the serving thread cannot start: %s", strerror(error));
    }
    *server = s;
    return LOOM_OK;
}

void loom_store_server_close(loom_store_server *server)
{
    if (!server)
        return;
    close(server->wake[1]); /* the thread sees the end of the pipe */
    server->wake[1] = -1;
    pthread_join(server->thread, NULL);
    free_server(server);
}

int loom_store_server_connections(const loom_store_server *server)
{
    return server->n_connections;
}
