/* Making groups out of a comm. */
#include <stdlib.h>
#include <string.h>

#include "comm/transport.h"
#include "core/random.h"
#include "core/try.h"
#include "device/graph.h"

/* What every rank of the parent says about the group it makes. */
typedef struct group_card {
    uint64_t list; /* hash of members and name */
    uint64_t address;
    int32_t count, first;
    int32_t member; /* whether the sender is in its own list */
    char name[LOOM_COMM_NAME_BYTES];
} group_card;

static loom_status check_list(const loom_comm *parent, const int *members, int count, const char *name)
{
    if (!name || strlen(name) >= LOOM_COMM_NAME_BYTES)
        return loom_fail(LOOM_E_INVALID, "a comm's name \"%s\" has %zu bytes; it needs a name of at most %d", name ? name : "",
                         name ? strlen(name) : 0, LOOM_COMM_NAME_BYTES - 1);
    if (count < 0 || count > parent->size)
        return loom_fail(LOOM_E_INVALID, "comm \"%s\" of %d ranks out of comm \"%s\" of %d", name, count, parent->name, parent->size);
    for (int i = 0; i < count; i++) {
        if (members[i] < 0 || members[i] >= parent->size)
            return loom_fail(LOOM_E_INVALID, "comm \"%s\": member %d is rank %d, comm \"%s\" has ranks 0 to %d", name, i, members[i],
                             parent->name, parent->size - 1);
        for (int j = 0; j < i; j++)
            if (members[j] == members[i])
                return loom_fail(LOOM_E_INVALID, "comm \"%s\": rank %d is member %d and member %d", name, members[i], j, i);
    }
    return LOOM_OK;
}

static int find(const int *members, int count, int rank)
{
    for (int i = 0; i < count; i++)
        if (members[i] == rank)
            return i;
    return -1;
}

static uint64_t hash_list(const int *members, int count, const char *name)
{
    return loom_fnv1a64(members, (size_t)count * sizeof *members) * 31 + loom_fnv1a64(name, strlen(name));
}

/* Every rank judges all cards, so that all of them fail or none: as many ranks gave a list as are in it, for every list. */
static loom_status check_cards(const loom_comm *parent, const group_card *cards)
{
    char a[LOOM_RANK_TEXT];

    for (int r = 0; r < parent->size; r++) {
        int agree = 0;
        if (!cards[r].member)
            continue;
        for (int s = 0; s < parent->size; s++)
            agree += cards[s].member && cards[s].list == cards[r].list && cards[s].count == cards[r].count;
        if (agree != cards[r].count)
            return loom_fail(LOOM_E_MISMATCH,
                             "making comm \"%.*s\" out of comm \"%s\": %s gave a list of %d members that %d of them gave too; all members "
                             "give the same list and name",
                             LOOM_COMM_NAME_BYTES - 1, cards[r].name, parent->name, loom_rank_describe(parent, r, a), cards[r].count,
                             agree);
    }
    return LOOM_OK;
}

static loom_status make_group(loom_comm *parent, const int *members, int count, int rank, const char *name, loom_comm **comm)
{
    int *world_ranks = malloc((size_t)count * sizeof *world_ranks);
    loom_status status;

    if (!world_ranks)
        return loom_fail(LOOM_E_MEMORY, "no memory for comm \"%s\"", name);
    for (int i = 0; i < count; i++)
        world_ranks[i] = parent->members[members[i]];
    status = loom_comm_make(parent->world, world_ranks, count, rank, name, comm);
    free(world_ranks);
    return status;
}

static loom_status join_group(loom_comm *parent, const int *members, int count, const group_card *cards, loom_comm *comm)
{
    uint64_t *addresses = malloc((size_t)count * sizeof *addresses);
    loom_status status;

    if (!addresses)
        return loom_fail(LOOM_E_MEMORY, "no memory for comm \"%s\"", comm->name);
    for (int i = 0; i < count; i++)
        addresses[i] = cards[members[i]].address;
    status = parent->world->transport->join(comm, addresses);
    free(addresses);
    return status;
}

static bool is_dry(const loom_comm *comm)
{
    return comm->world->transport == &loom_transport_dry;
}

loom_status loom_comm_create(loom_comm *parent, const int *members, int count, const char *name, loom_comm **comm)
{
    const loom_transport *transport = parent->world->transport;
    group_card mine = {0}, *cards = NULL;
    loom_comm *made = NULL;
    int rank;
    loom_status status = check_list(parent, members, count, name);

    if (status < 0 || (status = loom_graph_refuse(parent->world->device, "loom_comm_create")) < 0)
        return status;
    rank = find(members, count, parent->rank);
    cards = calloc((size_t)parent->size, sizeof *cards);
    if (!cards)
        return loom_fail(LOOM_E_MEMORY, "no memory to make comm \"%s\"", name);
    mine = (group_card){.list = hash_list(members, count, name), .count = count, .first = count ? members[0] : -1, .member = rank >= 0};
    memcpy(mine.name, name, strlen(name));
    if (rank >= 0) {
        LOOM_TRY(make_group(parent, members, count, rank, name, &made));
        LOOM_TRY(transport->prepare(made, &mine.address));
    }
    LOOM_TRY(loom_comm_exchange(parent, &mine, cards, sizeof mine));
    if (!is_dry(parent))
        LOOM_TRY(check_cards(parent, cards));
    if (transport->split)
        LOOM_TRY(transport->split(parent, made, mine.first));
    if (made)
        LOOM_TRY(join_group(parent, members, count, cards, made));
    free(cards);
    *comm = made;
    return LOOM_OK;

fail:
    free(cards);
    loom_comm_free(made);
    return status;
}

/* --- split ------------------------------------------------------------------------------------------------------------------ */

typedef struct seat {
    int32_t color, key, rank;
} seat;

static int by_key_then_rank(const void *a, const void *b)
{
    const seat *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

loom_status loom_comm_split(loom_comm *parent, int color, int key, const char *name, loom_comm **comm)
{
    seat mine = {color, key, parent->rank}, *seats;
    int *members, count = 0;
    loom_status status;

    if (is_dry(parent))
        return loom_fail(
            LOOM_E_UNSUPPORTED,
            "loom_comm_split() on a dry world: the other ranks cannot be asked for their color; use loom_comm_create() with the members");
    if ((status = loom_graph_refuse(parent->world->device, "loom_comm_split")) < 0)
        return status;
    seats = malloc((size_t)parent->size * sizeof *seats);
    members = malloc((size_t)parent->size * sizeof *members);
    if (!seats || !members) {
        status = loom_fail(LOOM_E_MEMORY, "no memory to split comm \"%s\"", parent->name);
        goto fail;
    }
    LOOM_TRY(loom_comm_exchange(parent, &mine, seats, sizeof mine));
    qsort(seats, (size_t)parent->size, sizeof *seats, by_key_then_rank);
    for (int i = 0; i < parent->size; i++)
        if (color >= 0 && seats[i].color == color)
            members[count++] = seats[i].rank;
    status = loom_comm_create(parent, members, count, name, comm);

fail:
    free(seats);
    free(members);
    return status;
}
