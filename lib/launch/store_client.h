/* A client of a TCPStore server: PyTorch's (2.5 and later; older ones on request) or our own. One request at a time, every wait with a
 * deadline (a time of loom_now_s()). After LOOM_E_PEER the connection is gone, and every later call fails the same way. */
#ifndef LAUNCH_STORE_CLIENT_H
#define LAUNCH_STORE_CLIENT_H

#include "launch/bytes.h"
#include "launch/socket.h"

typedef struct loom_store_client loom_store_client;

/* How far the server's operations agree with ours. PyTorch up to 2.1 numbers them one lower and knows no VALIDATE, and what it calls 7 and
 * up differs between versions. */
typedef enum loom_store_dialect { LOOM_STORE_MODERN, LOOM_STORE_OLD } loom_store_dialect;

typedef struct loom_store_target {
    const char *host;
    int port;
    bool agent;     /* a launcher serves it: may be slow; else it is our own server on rank 0, which answers at once or is not there */
    bool probe_old; /* try the dialects before PyTorch 2.5 too */
} loom_store_target;

/* Tries all addresses of the host in turn, again and again until the deadline: nobody may listen there yet. Gives up early when a
 * stranger listens there, who is silent, hangs up or speaks something else. */
loom_status loom_store_client_open(const loom_store_target *target, double deadline, loom_store_client **client);
/* Same with the addresses already resolved; target->host is for messages. */
loom_status loom_store_client_open_at(const loom_store_target *target, const loom_addresses *addresses, double deadline, loom_store_client **client);
/* A connection whose greeting is done (tests, fuzzing); the socket becomes the client's, also on failure. */
loom_status loom_store_client_adopt(int fd, loom_store_dialect dialect, loom_store_client **client);
void loom_store_client_close(loom_store_client *client); /* accepts NULL */

/* The server takes a SET without a word: an error shows at the next request. */
loom_status loom_store_client_set(loom_store_client *client, loom_span key, loom_span value);
/* Now, without waiting; a key that is missing gives 0 bytes. Copies at most `capacity`, reports the true size. */
loom_status loom_store_client_get(loom_store_client *client, loom_span key, void *value, size_t capacity, size_t *bytes);
loom_status loom_store_client_add(loom_store_client *client, loom_span key, int64_t delta, int64_t *sum);
loom_status loom_store_client_check(loom_store_client *client, const loom_span *keys, int n_keys, bool *all_present);
/* LOOM_PENDING when the deadline passed before all keys were there. */
loom_status loom_store_client_wait(loom_store_client *client, const loom_span *keys, int n_keys, double deadline);
/* Does nothing in the old dialect, whose versions do not agree on the opcode. */
loom_status loom_store_client_delete(loom_store_client *client, loom_span key);

bool loom_store_client_lost(const loom_store_client *client);

#endif
