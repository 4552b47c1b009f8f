/* TCP with deadlines: resolving, connecting, listening, and moving a known number of bytes. Deadlines are times of loom_now_s(). */
#ifndef LAUNCH_SOCKET_H
#define LAUNCH_SOCKET_H

#include <rankloom/status.h>
#include <sys/socket.h>

enum { LOOM_MOST_ADDRESSES = 16, LOOM_ADDRESS_TEXT = 80 };

typedef struct loom_address {
    struct sockaddr_storage storage;
    socklen_t size;
} loom_address;

typedef struct loom_addresses { /* all that a name stands for, in the resolver's order */
    loom_address at[LOOM_MOST_ADDRESSES];
    int count;
} loom_addresses;

/* LOOM_E_PEER when the name is not known (the resolver's words are in the message). The resolver keeps its own time limits. */
loom_status loom_resolve(const char *host, int port, loom_addresses *addresses);
void loom_address_text(const loom_address *address, char text[LOOM_ADDRESS_TEXT]); /* "127.0.0.1:29500", "[::1]:29500" */
bool loom_address_is_of_this_host(const loom_address *address);

/* A connected socket (non-blocking, no delay, keep-alive so that a cut link shows after about 11 s), or -1 with errno; ETIMEDOUT at the
 * deadline. */
int loom_socket_connect(const loom_address *address, double deadline);

typedef enum loom_io { LOOM_IO_OK, LOOM_IO_TIMEOUT, LOOM_IO_CLOSED, LOOM_IO_FAILED /* errno */ } loom_io;

loom_io loom_socket_send(int fd, const void *data, size_t size, double deadline);
loom_io loom_socket_receive(int fd, void *data, size_t size, double deadline);
loom_io loom_socket_wait_readable(int fd, double deadline); /* OK also at the end of the stream */

/* Listening sockets for the clients of `host`:`port`: "localhost" and loopback literals listen on loopback only (nobody else can mean
 * them), every other name on all addresses of both families. Port 0 takes a free one. LOOM_E_PEER when the port
 * is taken (with its holder if known), LOOM_E_IO with the reason otherwise. */
loom_status loom_listen(const char *host, int port, int listeners[2], int *n_listeners, int *bound_port);

/* Who listens on `port` of this host, such as "process 4711 (python3)"; false when /proc does not tell. */
bool loom_port_holder(int port, char *text, size_t capacity);

#endif
