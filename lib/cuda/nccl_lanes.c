/* Lanes: a communicator for each direction between two ranks that loom_comm_connect() names. */
#include "cuda/communicator.h"

#include <limits.h>
#include <stdlib.h>

#include "core/settings.h"
#include "core/try.h"

enum { LANES_MAX = 8 };

/* Of each pair the lower rank makes the ids: of its own direction, then of the other. */
typedef struct lane_card {
    int32_t count, peer[LANES_MAX];
    ncclUniqueId id[LANES_MAX][2];
} lane_card;

static loom_status fill_lane_card(const loom_comm *comm, const int *peers, int count, lane_card *card)
{
    card->count = count;
    for (int i = 0; i < count; i++) {
        card->peer[i] = peers[i];
        for (int direction = 0; direction < 2 && comm->rank < peers[i]; direction++) {
            ncclResult_t result = ncclGetUniqueId(&card->id[i][direction]);
            if (result != ncclSuccess)
                return loom_nccl_describe(comm, NULL, result, "ncclGetUniqueId");
        }
    }
    return LOOM_OK;
}

/* Where `rank` stands in the list of that card, or -1. */
static int find_peer(const lane_card *card, int rank)
{
    for (int i = 0; i < card->count; i++)
        if (card->peer[i] == rank)
            return i;
    return -1;
}

static loom_status begin_lane(const loom_comm *comm, const lane_card *cards, nccl_lane *lane)
{
    bool lower = comm->rank < lane->peer;
    const lane_card *maker = &cards[lower ? comm->rank : lane->peer];
    int at = find_peer(maker, lower ? lane->peer : comm->rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result;
    int64_t most_ctas;
    loom_status status = loom_setting_i64(LOOM_SETTING_LANE_CTAS, &most_ctas);

    if (status < 0)
        return status;
    if (find_peer(&cards[lane->peer], comm->rank) < 0)
        return loom_fail(LOOM_E_MISMATCH, "comm \"%s\": rank %d connects to rank %d, which does not connect to it", comm->name, comm->rank, lane->peer);
    config.blocking = 0;
    if (most_ctas > 0)
        config.maxCTAs = most_ctas < INT_MAX ? (int)most_ctas : INT_MAX;
    result = ncclCommInitRankConfig(&lane->out, 2, maker->id[at][lower ? 0 : 1], 0, &config);
    if (result == ncclSuccess || result == ncclInProgress)
        result = ncclCommInitRankConfig(&lane->in, 2, maker->id[at][lower ? 1 : 0], 1, &config);
    return result == ncclSuccess || result == ncclInProgress ? LOOM_OK : loom_nccl_describe(comm, NULL, result, "making a lane");
}

/* All are begun before the first is waited for: pairs would wait for one another in a ring else. */
static loom_status open_lanes(loom_comm *comm, const lane_card *cards)
{
    nccl_comm *n = nccl_of(comm);
    loom_status status;

    for (int i = 0; i < n->n_lanes; i++)
        LOOM_TRY(begin_lane(comm, cards, &n->lanes[i]));
    for (int i = 0; i < n->n_lanes; i++) {
        LOOM_TRY(loom_nccl_settle(comm, n->lanes[i].out, ncclInProgress, "opening a lane to a neighbour"));
        LOOM_TRY(loom_nccl_settle(comm, n->lanes[i].in, ncclInProgress, "opening a lane from a neighbour"));
    }
    return LOOM_OK;

fail:
    atomic_store(&comm->world->broken, 1); /* what was begun is in progress, and can only be aborted */
    return status;
}

static int by_peer(const void *a, const void *b)
{
    return ((const nccl_lane *)a)->peer - ((const nccl_lane *)b)->peer;
}

loom_status loom_nccl_connect(loom_comm *comm, const int *peers, int count)
{
    nccl_comm *n = nccl_of(comm);
    lane_card mine = {0}, *cards;
    loom_status status;

    if (comm->size == 1 || n->lanes)
        return LOOM_OK;
    if (count > LANES_MAX)
        return loom_fail(LOOM_E_UNSUPPORTED, "comm \"%s\": %d peers to connect; at most %d have lanes of their own", comm->name, count, LANES_MAX);
    cards = calloc((size_t)comm->size, sizeof *cards);
    n->lanes = calloc((size_t)count + 1, sizeof *n->lanes);
    if (!cards || !n->lanes) {
        status = loom_fail(LOOM_E_MEMORY, "comm \"%s\": no memory for lanes", comm->name);
        goto fail;
    }
    n->n_lanes = count;
    for (int i = 0; i < count; i++)
        n->lanes[i].peer = peers[i];
    qsort(n->lanes, (size_t)count, sizeof *n->lanes, by_peer);
    LOOM_TRY(loom_nccl_enter(comm));
    LOOM_TRY(fill_lane_card(comm, peers, count, &mine));
    LOOM_TRY(loom_nccl_exchange(comm, &mine, cards, sizeof mine));
    status = open_lanes(comm, cards);

fail:
    free(cards);
    return status;
}
