/* Stands in for nccl.c where the build found no NCCL. */
#include "cuda/transport.h"

#include "comm/transport.h"

static loom_status present(loom_world *world, const char *hint, char card[LOOM_CARD_BYTES])
{
    (void)world, (void)hint, (void)card;
    return loom_fail(LOOM_E_UNSUPPORTED, "the CUDA module of this build has no NCCL: nccl.h was not found when it was built");
}

static void close_world(loom_world *world)
{
    (void)world;
}

const loom_transport loom_transport_nccl = {.name = "nccl", .present = present, .close = close_world};
