/* Listening sockets for the clients of a host name, and who holds a port that is taken. */
#include "launch/socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static loom_address address_v4(struct in_addr in4, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = in4, .sin_port = htons((uint16_t)port)};
    loom_address result = {.size = sizeof address};

    memcpy(&result.storage, &address, sizeof address);
    return result;
}

static loom_address address_v6(struct in6_addr in6, int port)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = in6, .sin6_port = htons((uint16_t)port)};
    loom_address result = {.size = sizeof address};

    memcpy(&result.storage, &address, sizeof address);
    return result;
}

static int port_of(int fd)
{
    struct sockaddr_storage here = {0};
    socklen_t size = sizeof here;

    if (getsockname(fd, (struct sockaddr *)&here, &size) != 0)
        return 0;
    return ntohs(here.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&here)->sin6_port : ((struct sockaddr_in *)&here)->sin_port);
}

/* A listening socket, or -1 with errno. Address reuse lets a restarted job take its port again while old connections linger. */
static int listen_at(const loom_address *address, bool both_families)
{
    int fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, only_v6 = !both_families;

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->storage.ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
    if (bind(fd, (const struct sockaddr *)&address->storage, address->size) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* This host has no IPv6, or not this address: no fault, the other family serves alone. */
static bool family_is_absent(int error)
{
    return error == EAFNOSUPPORT || error == EADDRNOTAVAIL || error == EPROTONOSUPPORT;
}

/* "localhost" may be either loopback address, depending on the client's resolver: both. */
static bool listen_on_loopback(int port, int listeners[2], int *n_listeners)
{
    loom_address v4 = address_v4((struct in_addr){htonl(INADDR_LOOPBACK)}, port);
    int first = listen_at(&v4, false);

    if (first < 0 && !family_is_absent(errno))
        return false;
    if (first >= 0)
        listeners[(*n_listeners)++] = first;
    loom_address v6 = address_v6(in6addr_loopback, first >= 0 ? port_of(first) : port);
    int second = listen_at(&v6, false);
    if (second >= 0)
        listeners[(*n_listeners)++] = second;
    return second >= 0 || (first >= 0 && family_is_absent(errno));
}

static bool listen_on_all(int port, int listeners[2], int *n_listeners)
{
    loom_address any_v6 = address_v6(in6addr_any, port), any_v4 = address_v4((struct in_addr){htonl(INADDR_ANY)}, port);
    int fd = listen_at(&any_v6, true);

    if (fd < 0 && family_is_absent(errno))
        fd = listen_at(&any_v4, false);
    if (fd < 0)
        return false;
    listeners[(*n_listeners)++] = fd;
    return true;
}

static bool listen_on_one(const loom_address *address, int listeners[2], int *n_listeners)
{
    int fd = listen_at(address, false);

    if (fd < 0)
        return false;
    listeners[(*n_listeners)++] = fd;
    return true;
}

/* 127.x.x.x or ::1, written as digits. */
static bool is_loopback_literal(const char *host, int port, loom_address *address)
{
    struct in_addr in4;
    struct in6_addr in6;

    if (inet_pton(AF_INET, host, &in4) == 1 && ntohl(in4.s_addr) >> 24 == 127) {
        *address = address_v4(in4, port);
        return true;
    }
    if (inet_pton(AF_INET6, host, &in6) == 1 && IN6_IS_ADDR_LOOPBACK(&in6)) {
        *address = address_v6(in6, port);
        return true;
    }
    return false;
}

loom_status loom_listen(const char *host, int port, int listeners[2], int *n_listeners, int *bound_port)
{
    loom_address literal;
    char holder[128];
    bool listens;

    *n_listeners = 0;
    if (strcmp(host, "localhost") == 0)
        listens = listen_on_loopback(port, listeners, n_listeners);
    else if (is_loopback_literal(host, port, &literal))
        listens = listen_on_one(&literal, listeners, n_listeners);
    else
        listens = listen_on_all(port, listeners, n_listeners);
    if (listens) {
        *bound_port = port_of(listeners[0]);
        return LOOM_OK;
    }

    int error = errno;
    while (*n_listeners > 0)
        close(listeners[--*n_listeners]);
    if (error != EADDRINUSE)
        return loom_fail(LOOM_E_IO, "port %d of %s: cannot listen: %s", port, host, strerror(error));
    bool known = loom_port_holder(port, holder, sizeof holder);
    return loom_fail(LOOM_E_PEER, "port %d of %s is in use%s%s; another MASTER_PORT is needed, or the end of that process", port, host,
                     known ? " by " : "", known ? holder : "");
}

/* --- the holder, from /proc ------------------------------------------------------------------------------------------ */

/* The inode of the socket that listens on `port`, from a table such as /proc/net/tcp; 0: none. */
static uint64_t listening_inode(const char *table, int port)
{
    FILE *file = fopen(table, "re");
    char line[512];
    uint64_t found = 0;

    if (!file)
        return 0;
    while (!found && fgets(line, sizeof line, file)) {
        unsigned local_port, state;
        uint64_t inode;
        if (sscanf(line, " %*[0-9]: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %" SCNu64, &local_port, &state, &inode) == 3 &&
            (int)local_port == port && state == 0x0a /* TCP_LISTEN */)
            found = inode;
    }
    fclose(file);
    return found;
}

static bool process_has_socket(const char *process, uint64_t inode)
{
    char path[300], wanted[64], link[64];
    bool found = false;

    snprintf(wanted, sizeof wanted, "socket:[%" PRIu64 "]", inode);
    snprintf(path, sizeof path, "/proc/%s/fd", process);
    DIR *files = opendir(path);
    if (!files)
        return false; /* somebody else's process */
    for (const struct dirent *entry; !found && (entry = readdir(files));) {
        ssize_t size = readlinkat(dirfd(files), entry->d_name, link, sizeof link - 1);
        if (size < 0)
            continue;
        link[size] = '\0';
        found = strcmp(link, wanted) == 0;
    }
    closedir(files);
    return found;
}

static void describe_process(const char *process, char *text, size_t capacity)
{
    char path[300], name[64] = "";

    snprintf(path, sizeof path, "/proc/%s/comm", process);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fgets(name, sizeof name, file))
            name[strcspn(name, "\n")] = '\0';
        fclose(file);
    }
    snprintf(text, capacity, "process %s (%s)", process, name[0] ? name : "?");
}

bool loom_port_holder(int port, char *text, size_t capacity)
{
    uint64_t inode = listening_inode("/proc/net/tcp", port);
    bool found = false;

    if (!inode)
        inode = listening_inode("/proc/net/tcp6", port);
    DIR *processes = inode ? opendir("/proc") : NULL;
    if (!processes)
        return false;
    for (const struct dirent *entry; !found && (entry = readdir(processes));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !process_has_socket(entry->d_name, inode))
            continue;
        describe_process(entry->d_name, text, capacity);
        found = true;
    }
    closedir(processes);
    return found;
}
