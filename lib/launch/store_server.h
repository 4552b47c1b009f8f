/* Serves a store on sockets, in a thread of its own: on the rank that has no launcher to do it, and in `rankloom run`. */
#ifndef LAUNCH_STORE_SERVER_H
#define LAUNCH_STORE_SERVER_H

#include "launch/store_service.h"

typedef struct loom_store_server loom_store_server;

enum { LOOM_STORE_LISTENERS = 2 };

/* Serves on listening, non-blocking sockets, which become the server's, also on failure. */
loom_status loom_store_server_open(const int *listeners, int n_listeners, loom_store_server **server);
void loom_store_server_close(loom_store_server *server);            /* at once; accepts NULL */
int loom_store_server_connections(const loom_store_server *server); /* open now */

#endif
