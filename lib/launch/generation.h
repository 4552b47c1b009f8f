/* Agreeing on a fresh generation: a name for this attempt that no earlier attempt used, because the launcher's store keeps the keys of dead
 * attempts, and because nodes of one round may count restarts differently. */
#ifndef LAUNCH_GENERATION_H
#define LAUNCH_GENERATION_H

#include "launch/store_client.h"

enum { LOOM_UID_HEX = 33 }; /* 128 random bits as hexadecimal text, with the terminating zero */

/* Every rank calls; `base` is the part of the keys before hello/ and g/. All ranks get the same `generation`. On failure (LOOM_E_PEER) the
 * message names the ranks that are missing. */
loom_status loom_generation_agree(loom_store_client *client, const char *base, int rank, int size, double deadline,
                                  char generation[LOOM_UID_HEX]);

/* Rank 0 could not serve its own store, because somebody holds the port. If that somebody is a store too (another job's), the other
 * ranks of this job wait there in vain: for a moment, tell those that were started together with us that it is over. */
void loom_generation_refuse(loom_store_client *client, const char *base, int size, const char *why);

#endif
