/* What a store answers: the state machine of the protocol, without sockets. Clients are sessions that are fed bytes.
 *
 * Behaves as PyTorch 2.15's default server (libuv) in every reply (test/soak/store_against_torch.py compares them), with choices of our own:
 *   - a client that does not begin with a right VALIDATE is cut off (as PyTorch's other server does; libuv leaves it open and mute),
 *     so that a stranger on the port learns at once that he is wrong;
 *   - a request is at most LOOM_STORE_REQUEST_BYTES long;
 *   - a COMPARE_SET that stores nothing wakes nobody, and a WAIT for several keys sees what is queued already (libuv: not so);
 *   - a second WAIT on a connection takes the place of the first. */
#ifndef LAUNCH_STORE_SERVICE_H
#define LAUNCH_STORE_SERVICE_H

#include "launch/protocol.h"
#include "launch/store_table.h"

typedef struct loom_store_session loom_store_session; /* one client */

typedef struct loom_store_service { /* what all clients share; begin with all zero */
    loom_store_table table;
    loom_store_session *sessions;
    uint64_t n_waits; /* so far: who waits longest is served first */
} loom_store_service;

void loom_store_service_free(loom_store_service *service); /* with all its sessions */

loom_store_session *loom_store_session_open(loom_store_service *service); /* NULL: no memory */
void loom_store_session_close(loom_store_session *session);               /* accepts NULL */

/* False: the connection is to be closed. What was answered before that is still in the replies. */
bool loom_store_session_feed(loom_store_session *session, const uint8_t *data, size_t size);

/* Replies not yet sent, this session's and those that another session's request brought it. The caller drops what it sent. */
loom_bytes *loom_store_session_replies(loom_store_session *session);

#endif
