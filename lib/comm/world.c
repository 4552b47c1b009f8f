/* Opening a world: who is where, which transport, and the comm of everyone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/graph.h"
#include "comm/meeting.h"
#include "comm/transport.h"
#include "core/log.h"
#include "core/settings.h"
#include "device/backend.h"
#include "device/cuda_module.h"
#include "device/host.h"
#include "core/try.h"

/* --- cards ----------------------------------------------------------------------------------------------------------------- */

/* What a world on `device` may choose from; NULL: not that. */
static const loom_transport *candidate(const loom_device *device, int transport)
{
    bool on_host = loom_device_get_kind(device) != LOOM_CUDA;

    switch (transport) {
    case LOOM_SHM:
        return on_host ? &loom_transport_shm : NULL;
    case LOOM_TCP:
        return on_host ? &loom_transport_tcp : NULL;
    default:
        return on_host ? NULL : device->cuda->nccl;
    }
}

typedef struct card {
    char version[24];
    uint64_t host; /* equal where ranks can map each other's memory */
    loom_core_set cores;
    uint8_t ready[LOOM_TRANSPORTS]; /* the rank could open its end */
    char parts[LOOM_TRANSPORTS][LOOM_CARD_BYTES];
} card;

static loom_status check_versions(const card *cards, int size)
{
    for (int r = 1; r < size; r++)
        if (strncmp(cards[r].version, cards[0].version, sizeof cards[0].version) != 0)
            return loom_fail(LOOM_E_MISMATCH, "rank 0 runs rankloom %.24s, rank %d runs %.24s; all ranks need one version",
                             cards[0].version, r, cards[r].version);
    return LOOM_OK;
}

static int rank_elsewhere(const card *cards, int size)
{
    for (int r = 1; r < size; r++)
        if (cards[r].host != cards[0].host)
            return r;
    return -1;
}

static loom_status check_ready(const loom_device *device, const card *cards, int size, int choice)
{
    for (int r = 0; r < size; r++)
        if (!cards[r].ready[choice])
            return loom_fail(LOOM_E_UNSUPPORTED, "rank %d could not open its end of transport %s; with RANKLOOM_LOG=info it says why", r,
                             candidate(device, choice)->name);
    return LOOM_OK;
}

static loom_status choose_named(const loom_device *device, const card *cards, int size, const char *wanted, int *choice)
{
    int elsewhere = rank_elsewhere(cards, size);

    for (int t = 0; t < LOOM_TRANSPORTS; t++) {
        const loom_transport *transport = candidate(device, t);
        if (!transport || strcmp(wanted, transport->name) != 0)
            continue;
        if (t == LOOM_SHM && elsewhere >= 0)
            return loom_fail(LOOM_E_UNSUPPORTED,
                             "transport shm: ranks 0 and %d are on different hosts (or do not see each other's processes); tcp reaches there",
                             elsewhere);
        *choice = t;
        return check_ready(device, cards, size, t);
    }
    if (loom_device_get_kind(device) == LOOM_CUDA)
        return loom_fail(LOOM_E_UNSUPPORTED, "transport %s does not reach GPU memory; auto and nccl do", wanted);
    return loom_fail(LOOM_E_UNSUPPORTED, "transport %s is not for CPU ranks; auto, shm and tcp are", wanted);
}

/* All ranks see the same cards, so all choose alike. */
static loom_status choose_transport(const loom_device *device, const card *cards, int size, const char *wanted, int *choice)
{
    if (strcmp(wanted, "auto") != 0)
        return choose_named(device, cards, size, wanted, choice);
    if (loom_device_get_kind(device) == LOOM_CUDA)
        *choice = LOOM_NCCL;
    else
        *choice = rank_elsewhere(cards, size) < 0 ? LOOM_SHM : LOOM_TCP;
    return check_ready(device, cards, size, *choice);
}

/* Whether ranks of this host have to share cores, so that a waiter that spins would keep another from working. */
static bool is_crowded(const card *cards, int size, int rank)
{
    loom_core_set *sets = malloc((size_t)size * sizeof *sets);
    int count = 0, mine = 0;
    bool crowded;

    if (!sets)
        return true;
    for (int r = 0; r < size; r++)
        if (cards[r].host == cards[rank].host) {
            if (r == rank)
                mine = count;
            sets[count++] = cards[r].cores;
        }
    crowded = !loom_host_fits(sets, count, mine);
    free(sets);
    return crowded;
}

/* --- worlds and comms -------------------------------------------------------------------------------------------------------- */

/* Those that were not chosen had presented themselves. `kept`: NULL for none. */
static void close_transports(loom_world *world, const loom_transport *kept)
{
    for (int t = 0; t < LOOM_TRANSPORTS; t++) {
        const loom_transport *transport = candidate(world->device, t);
        if (transport && transport != kept)
            transport->close(world);
    }
}

static void drop_world(loom_world *world)
{
    if (atomic_fetch_sub(&world->users, 1) > 1)
        return;
    loom_stream_close(world->setup);
    close_transports(world, NULL);
    pthread_mutex_destroy(&world->lock);
    free(world);
}

static loom_status make_world(int rank, int size, loom_device *device, double deadline_s, loom_world **world)
{
    loom_world *w = calloc(1, sizeof *w);
    loom_status status;

    if (!w)
        return loom_fail(LOOM_E_MEMORY, "no memory for the world");
    atomic_store(&w->users, 1);
    pthread_mutex_init(&w->lock, NULL);
    w->device = device;
    w->rank = rank;
    w->size = size;
    w->deadline_s = deadline_s;
    LOOM_TRY(loom_reducer_choose(&w->reducer));
    LOOM_TRY(loom_stream_open(device, LOOM_STREAM_INLINE, "comm setup", &w->setup));
    *world = w;
    return LOOM_OK;

fail:
    drop_world(w);
    return status;
}

loom_status loom_comm_make(loom_world *world, const int *members, int count, int rank, const char *name, loom_comm **comm)
{
    loom_comm *c = calloc(1, sizeof *c);
    int *copy = malloc((size_t)count * sizeof *copy);

    if (!c || !copy) {
        free(c);
        free(copy);
        return loom_fail(LOOM_E_MEMORY, "no memory for comm \"%s\"", name);
    }
    memcpy(copy, members, (size_t)count * sizeof *copy);
    c->members = copy;
    c->world = world;
    c->rank = rank;
    c->size = count;
    snprintf(c->name, sizeof c->name, "%s", name);
    atomic_fetch_add(&world->users, 1);
    pthread_mutex_lock(&world->lock);
    c->next = world->comms;
    world->comms = c;
    world->made++;
    pthread_mutex_unlock(&world->lock);
    *comm = c;
    return LOOM_OK;
}

void loom_comm_free(loom_comm *comm)
{
    loom_world *world;

    if (!comm)
        return;
    world = comm->world;
    pthread_mutex_lock(&world->lock);
    for (loom_comm **link = &world->comms; *link; link = &(*link)->next)
        if (*link == comm) {
            *link = comm->next;
            break;
        }
    pthread_mutex_unlock(&world->lock);
    loom_comm_leave_graphs(comm);
    world->transport->leave(comm);
    while (comm->spare) {
        loom_call *call = comm->spare;
        comm->spare = call->next;
        free(call);
    }
    free(comm->members);
    free(comm);
    drop_world(world);
}

static loom_status make_everyone(loom_world *world, loom_comm **comm)
{
    int *members = malloc((size_t)world->size * sizeof *members);
    loom_status status;

    if (!members)
        return loom_fail(LOOM_E_MEMORY, "no memory for a world of %d ranks", world->size);
    for (int r = 0; r < world->size; r++)
        members[r] = r;
    status = loom_comm_make(world, members, world->size, world->rank, "world", comm);
    free(members);
    return status;
}

/* Everyone's card, in *all (the caller frees it). */
static loom_status exchange_cards(loom_meeting *m, loom_world *world, card **all)
{
    card *cards = calloc((size_t)world->size, sizeof *cards), *mine = calloc(1, sizeof *mine);
    loom_status status;

    if (!cards || !mine) {
        status = loom_fail(LOOM_E_MEMORY, "no memory for the cards of %d ranks", world->size);
        goto fail;
    }
    snprintf(mine->version, sizeof mine->version, "%s", RANKLOOM_VERSION);
    mine->host = loom_host_identity(true);
    loom_host_core_set(&mine->cores);
    for (int t = 0; t < LOOM_TRANSPORTS; t++) {
        const loom_transport *transport = candidate(world->device, t);
        mine->ready[t] = transport && transport->present(world, m->table->hint, mine->parts[t]) >= 0;
        if (transport && !mine->ready[t]) /* matters only if it is chosen: a sandbox without sockets can still share memory */
            loom_log(LOOM_LOG_INFO, world->rank, "transport %s: %s", transport->name, loom_last_error());
    }
    LOOM_TRY(loom_meeting_come(m, mine, cards, sizeof *mine));
    LOOM_TRY(check_versions(cards, world->size));
    free(mine);
    *all = cards;
    return LOOM_OK;

fail:
    free(cards);
    free(mine);
    return status;
}

static loom_status open_transport(loom_world *world, const card *cards, int choice)
{
    char(*parts)[LOOM_CARD_BYTES] = malloc((size_t)world->size * LOOM_CARD_BYTES);
    loom_status status;

    if (!parts)
        return loom_fail(LOOM_E_MEMORY, "no memory for the cards of %d ranks", world->size);
    for (int r = 0; r < world->size; r++)
        memcpy(parts[r], cards[r].parts[choice], LOOM_CARD_BYTES);
    world->transport = candidate(world->device, choice);
    close_transports(world, world->transport);
    status = world->transport->open(world, (const char(*)[LOOM_CARD_BYTES])parts);
    free(parts);
    return status;
}

typedef struct place {
    uint64_t address;
    char invitation[LOOM_INVITATION_BYTES]; /* of rank 0 */
} place;

/* addresses[size] of all ranks' ends of the comm of everyone. */
static loom_status exchange_addresses(loom_meeting *m, loom_world *world, uint64_t mine, uint64_t *addresses)
{
    place here = {.address = mine}, *places = malloc((size_t)world->size * sizeof *places);
    loom_status status;

    if (!places)
        return loom_fail(LOOM_E_MEMORY, "no memory for a world of %d ranks", world->size);
    if (world->rank == 0 && world->transport->invite)
        LOOM_TRY(world->transport->invite(world, here.invitation));
    LOOM_TRY(loom_meeting_exchange(m, &here, places, sizeof here));
    memcpy(world->invitation, places[0].invitation, sizeof world->invitation);
    for (int r = 0; r < world->size; r++)
        addresses[r] = places[r].address;

fail:
    free(places);
    return status;
}

/* The comm of everyone, and a first barrier: after it no rank needs another one's table or descriptors any more. */
static loom_status join_everyone(loom_meeting *m, loom_world *world, loom_comm **comm)
{
    uint64_t mine, *addresses = malloc((size_t)world->size * sizeof *addresses);
    loom_comm *everyone = NULL;
    loom_status status;

    if (!addresses)
        return loom_fail(LOOM_E_MEMORY, "no memory for a world of %d ranks", world->size);
    LOOM_TRY(make_everyone(world, &everyone));
    LOOM_TRY(world->transport->prepare(everyone, &mine));
    LOOM_TRY(exchange_addresses(m, world, mine, addresses));
    LOOM_TRY(world->transport->join(everyone, addresses));
    LOOM_TRY(loom_barrier(everyone, "open", world->setup));
    LOOM_TRY(loom_stream_wait(world->setup));
    free(addresses);
    loom_comm_reset_traffic(everyone);
    *comm = everyone;
    return LOOM_OK;

fail:
    free(addresses);
    loom_comm_free(everyone);
    return status;
}

static loom_status read_config(const loom_comm_config *config, double *deadline_s, const char **transport)
{
    loom_status status;

    *deadline_s = config ? config->deadline_s : 0;
    *transport = config ? config->transport : NULL;
    if (*deadline_s < 0)
        return loom_fail(LOOM_E_INVALID, "a deadline of %g s: it must be positive, or 0 for RANKLOOM_TIMEOUT_S", *deadline_s);
    if (*deadline_s == 0 && (status = loom_setting_f64(LOOM_SETTING_TIMEOUT_S, deadline_s)) < 0)
        return status;
    if (!*transport && (status = loom_setting_text(LOOM_SETTING_TRANSPORT, transport)) < 0)
        return status;
    if (!*transport)
        *transport = "auto";
    return LOOM_OK;
}

loom_status loom_comm_open_bootstrap(const loom_bootstrap *table, loom_device *device, const loom_comm_config *config, loom_comm **comm)
{
    loom_meeting m = {.table = table};
    loom_world *world = NULL;
    card *cards = NULL;
    const char *wanted;
    int choice = LOOM_SHM;
    loom_status status;

    if (table->size < 1 || table->rank < 0 || table->rank >= table->size)
        return loom_fail(LOOM_E_INVALID, "rank %d of a world of %d ranks", table->rank, table->size);
    if (loom_device_get_kind(device) == LOOM_DRY)
        return loom_fail(LOOM_E_UNSUPPORTED, "nothing travels between dry devices; they take loom_comm_open_dry()");
    LOOM_TRY(read_config(config, &m.deadline_s, &wanted));
    LOOM_TRY(make_world(table->rank, table->size, device, m.deadline_s, &world));
    LOOM_TRY(exchange_cards(&m, world, &cards));
    LOOM_TRY(choose_transport(device, cards, table->size, wanted, &choice));
    loom_device_set_crowded(device, is_crowded(cards, table->size, table->rank));
    LOOM_TRY(open_transport(world, cards, choice));
    LOOM_TRY(join_everyone(&m, world, comm));

fail:
    loom_meeting_leave(&m);
    free(cards);
    if (world)
        drop_world(world); /* our own hold: the comm has its own */
    return status;
}

/* --- the store as the table ------------------------------------------------------------------------------------------------------ */

static loom_status store_set(void *store, const char *key, const void *value, size_t bytes)
{
    return loom_store_set(store, key, value, bytes);
}

static loom_status store_get(void *store, const char *key, void *value, size_t capacity, size_t *bytes, double deadline_s)
{
    return loom_store_get(store, key, value, capacity, bytes, deadline_s);
}

static loom_status store_add(void *store, const char *key, int64_t delta, int64_t *result)
{
    return loom_store_add(store, key, delta, result);
}

static loom_status store_remove(void *store, const char *key)
{
    return loom_store_delete(store, key);
}

loom_status loom_comm_open_world(const loom_launch *launch, loom_store *store, loom_device *device, const loom_comm_config *config,
                                 loom_comm **world)
{
    loom_bootstrap table = {.context = store,
                            .rank = launch->rank,
                            .size = launch->size,
                            .hint = launch->master_addr,
                            .set = store_set,
                            .get = store_get,
                            .add = store_add,
                            .remove = store_remove};

    return loom_comm_open_bootstrap(&table, device, config, world);
}

loom_status loom_comm_open_dry(int rank, int size, loom_device *device, loom_comm **comm)
{
    loom_world *world;
    loom_status status;

    if (size < 1 || rank < 0 || rank >= size)
        return loom_fail(LOOM_E_INVALID, "rank %d of a dry world of %d ranks", rank, size);
    if ((status = make_world(rank, size, device, 1, &world)) < 0)
        return status;
    world->transport = &loom_transport_dry;
    status = make_everyone(world, comm);
    drop_world(world);
    return status;
}

/* --- who and where ------------------------------------------------------------------------------------------------------------------ */

int loom_comm_rank(const loom_comm *comm)
{
    return comm->rank;
}

int loom_comm_size(const loom_comm *comm)
{
    return comm->size;
}

int loom_comm_world_rank(const loom_comm *comm, int rank)
{
    return rank >= 0 && rank < comm->size ? comm->members[rank] : -1;
}

int loom_comm_made(const loom_comm *comm)
{
    int made;

    pthread_mutex_lock(&comm->world->lock);
    made = comm->world->made;
    pthread_mutex_unlock(&comm->world->lock);
    return made;
}

const char *loom_comm_name(const loom_comm *comm)
{
    return comm->name;
}

const char *loom_comm_transport(const loom_comm *comm)
{
    return comm->world->transport->name;
}

loom_device *loom_comm_device(const loom_comm *comm)
{
    return comm->world->device;
}
