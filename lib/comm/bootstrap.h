/* What ranks need to find each other: a small table that all can write and read. The store of lib/launch is one; tests bring another. */
#ifndef LOOM_COMM_BOOTSTRAP_H
#define LOOM_COMM_BOOTSTRAP_H

#include <rankloom/comm.h>

typedef struct loom_bootstrap {
    void *context;
    int rank, size;
    const char *hint; /* a name or address that all ranks can reach, or NULL */
    loom_status (*set)(void *context, const char *key, const void *value, size_t bytes);
    /* Waits for the key; LOOM_E_PEER at the deadline. */
    loom_status (*get)(void *context, const char *key, void *value, size_t capacity, size_t *bytes, double deadline_s);
    loom_status (*add)(void *context, const char *key, int64_t delta, int64_t *result);
    loom_status (*remove)(void *context, const char *key); /* one that is not there is removed already */
} loom_bootstrap;

/* loom_comm_open_world() over any table. */
loom_status loom_comm_open_bootstrap(const loom_bootstrap *bootstrap, loom_device *device, const loom_comm_config *config,
                                     loom_comm **world);

#endif
