/* Agreeing on a fresh generation: a name for this attempt that no earlier attempt used, because the launcher's store keeps the keys of dead
 * attempts, and because nodes of one round may count restarts differently. */
#ifndef LAUNCH_GENERATION_H
#define LAUNCH_GENERATION_H

#include "launch/store_client.h"

enum { LOOM_UID_HEX = 33 }; /* 128 random bits as hexadecimal text, with the terminating zero */

typedef struct loom_generation {
    char name[LOOM_UID_HEX];
    int64_t n_arrivals; /* processes that came to this store so far, dead ones of earlier attempts included */
} loom_generation;

/* Every rank calls; `base` is the part of the keys before hello/ and g/. All ranks get the same generation. On failure (LOOM_E_PEER) the
 * message names the ranks that are missing. */
loom_status loom_generation_agree(loom_store_client *client, const char *base, int rank, int size, double deadline, loom_generation *generation);

/* A process came after the generation began: some rank was started anew, so one of ours is dead, and the generation is over. Launchers that restart
 * one node alone (torchrun with static rendezvous) tell the other nodes in no other way. */
loom_status loom_generation_check(loom_store_client *client, const char *base, const loom_generation *generation);

/* Rank 0 could not serve its own store, because somebody holds the port. If that somebody is a store too (another job's), the other
 * ranks of this job wait there in vain: for a moment, tell those that were started together with us that it is over. */
void loom_generation_refuse(loom_store_client *client, const char *base, int size, const char *why);

#endif
