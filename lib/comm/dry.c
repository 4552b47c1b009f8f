/* The transport of a rank that is alone and only says what it would do. Calls are counted by comm.c; here they are over. */
#include "comm/transport.h"

static loom_status present(loom_world *world, const char *hint, char card[LOOM_CARD_BYTES])
{
    (void)world, (void)hint, (void)card;
    return LOOM_OK;
}

static loom_status open_world(loom_world *world, const char (*cards)[LOOM_CARD_BYTES])
{
    (void)world, (void)cards;
    return LOOM_OK;
}

static void close_world(loom_world *world)
{
    (void)world;
}

static loom_status prepare(loom_comm *comm, uint64_t *address)
{
    (void)comm;
    *address = 0;
    return LOOM_OK;
}

static loom_status join(loom_comm *comm, const uint64_t *addresses)
{
    (void)comm, (void)addresses;
    return LOOM_OK;
}

static void leave(loom_comm *comm)
{
    (void)comm;
}

static loom_step step(loom_call *call)
{
    (void)call;
    return LOOM_STEP_OVER;
}

static loom_status check(loom_call *call, double stalled_s)
{
    (void)call, (void)stalled_s;
    return LOOM_OK;
}

static void drop(loom_call *call)
{
    (void)call;
}

static void give_up(loom_comm *comm, loom_status status)
{
    (void)comm, (void)status;
}

const loom_transport loom_transport_dry = {
    .name = "dry",
    .present = present,
    .open = open_world,
    .close = close_world,
    .prepare = prepare,
    .join = join,
    .leave = leave,
    .step = step,
    .check = check,
    .drop = drop,
    .give_up = give_up,
};
