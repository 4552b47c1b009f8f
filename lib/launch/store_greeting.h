/* Finding the store: dialling all addresses of a host until one answers as a store, and telling which dialect it speaks. */
#ifndef LAUNCH_STORE_GREETING_H
#define LAUNCH_STORE_GREETING_H

#include "launch/store_client.h"

typedef struct loom_store_connection {
    int fd;
    loom_store_dialect dialect;
    loom_address address;
} loom_store_connection;

/* addresses NULL: the host is resolved anew in each round. */
loom_status loom_store_connect(const loom_store_target *target, const loom_addresses *addresses, double deadline,
                               loom_store_connection *connection);

#endif
