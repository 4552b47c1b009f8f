/* Every global tensor, whole, on world rank 0: who holds which piece is exchanged first, then the pieces travel one by one. */
#include "checkpoint/gather.h"

#include "core/try.h"

#include <stdlib.h>
#include <string.h>

/* A piece of a global tensor on some rank: of its shard what it keeps. */
typedef struct piece {
    loom_shard shard;
    int64_t first, count; /* local elements */
    int rank;             /* of the world */
    int param;            /* index in that rank's list */
} piece;

struct loom_gathering {
    loom_mesh *mesh;
    const loom_param_list *params;
    loom_weights_what what;
    loom_stream *stream;
    piece *pieces; /* of all ranks, by (name, rank) */
    int count;
    float *landing; /* of a piece from another rank, on the device */
    float *piece, *tensor; /* on the host */
    int64_t landing_count, tensor_count;
};

static loom_part kept(const loom_gathering *g, const loom_param *param)
{
    return g->what == LOOM_WEIGHTS_VALUES ? loom_param_kept_value(param) : loom_param_kept_gradient(param);
}

/* One copy of everything: of what is not cut over them the first data- and context-parallel rank of each (tp, pp); the first holder, the tied owner. Experts:
 * the first of edp. */
static bool gives(const loom_gathering *g, const loom_param *param)
{
    const loom_shard *shard = &param->shard;
    const int *at = g->mesh->here.at;
    bool first = shard->expert ? at[LOOM_AXIS_EDP] == 0 : at[LOOM_AXIS_DP] == 0 && at[LOOM_AXIS_CP] == 0;
    bool cut = g->what == LOOM_WEIGHTS_VALUES ? param->value_cut : param->gradient_cut;

    return (cut ? kept(g, param).count > 0 : first) && shard->holder == 0 && (!shard->tied || shard->tied_owner);
}

static int compare_pieces(const void *left, const void *right)
{
    const piece *a = left, *b = right;
    int order = strcmp(a->shard.name, b->shard.name);

    return order ? order : a->rank - b->rank;
}

/* Every rank tells all its pieces; all then have the same sorted list. */
static loom_status exchange_pieces(loom_gathering *g)
{
    loom_comm *world = g->mesh->world;
    int ranks = loom_comm_size(world);
    int64_t *counts = calloc((size_t)ranks, sizeof *counts), mine = 0, most = 0;
    piece *own = NULL, *all = NULL;
    loom_status status;

    for (int i = 0; i < g->params->count; i++)
        mine += gives(g, g->params->at[i]);
    if (!counts) {
        status = loom_fail(LOOM_E_MEMORY, "no memory to count the tensor pieces of %d ranks", ranks);
        goto fail;
    }
    LOOM_TRY(loom_comm_gather_host(world, &mine, counts, sizeof mine));
    for (int r = 0; r < ranks; r++)
        most = counts[r] > most ? counts[r] : most;

    own = calloc((size_t)most + 1, sizeof *own);
    all = calloc((size_t)ranks * (size_t)most + 1, sizeof *all);
    if (!own || !all) {
        status = loom_fail(LOOM_E_MEMORY, "no memory for the list of %lld tensor pieces", (long long)ranks * (long long)most);
        goto fail;
    }
    mine = 0;
    for (int i = 0; i < g->params->count; i++) {
        const loom_param *param = g->params->at[i];
        loom_part part = kept(g, param);

        if (gives(g, param))
            own[mine++] = (piece){param->shard, part.first, part.count, loom_comm_rank(world), i};
    }
    LOOM_TRY(loom_comm_gather_host(world, own, all, (size_t)most * sizeof *all));

    g->pieces = malloc(((size_t)ranks * (size_t)most + 1) * sizeof *g->pieces);
    if (!g->pieces) {
        status = loom_fail(LOOM_E_MEMORY, "no memory for the list of %lld tensor pieces", (long long)ranks * (long long)most);
        goto fail;
    }
    for (int r = 0; r < ranks; r++)
        for (int64_t i = 0; i < counts[r]; i++)
            g->pieces[g->count++] = all[r * most + i];
    qsort(g->pieces, (size_t)g->count, sizeof *g->pieces, compare_pieces);

fail:
    free(own);
    free(all);
    free(counts);
    return status < 0 ? status : LOOM_OK;
}

static loom_status allocate(loom_gathering *g)
{
    loom_device *device = loom_comm_device(g->mesh->world);
    loom_status status;

    for (int i = 0; i < g->count; i++) {
        int64_t global = loom_shard_global_count(&g->pieces[i].shard);

        g->landing_count = g->pieces[i].count > g->landing_count ? g->pieces[i].count : g->landing_count;
        g->tensor_count = global > g->tensor_count ? global : g->tensor_count;
    }
    if (loom_comm_rank(g->mesh->world) != 0)
        return LOOM_OK;
    LOOM_TRY(loom_alloc(device, (size_t)g->landing_count * sizeof(float), LOOM_MEM_OTHER, (void **)&g->landing));
    LOOM_TRY(loom_alloc_host(device, (size_t)g->landing_count * sizeof(float), (void **)&g->piece));
    LOOM_TRY(loom_alloc_host(device, (size_t)g->tensor_count * sizeof(float), (void **)&g->tensor));
    return LOOM_OK;

fail:
    return status;
}

typedef struct placing {
    const float *from; /* local elements [first, end) */
    int64_t first, end;
    float *to;
} placing;

static loom_status place_run(void *context, int64_t local, int64_t global, int64_t count)
{
    placing *p = context;
    int64_t begin = local > p->first ? local : p->first, end = local + count < p->end ? local + count : p->end;

    if (begin < end)
        memcpy(p->to + global + (begin - local), p->from + (begin - p->first), (size_t)(end - begin) * sizeof(float));
    return LOOM_OK;
}

/* The piece reaches rank 0's tensor: over the wire, or from its own memory. */
static loom_status move_piece(loom_gathering *g, const piece *from)
{
    loom_comm *world = g->mesh->world;
    size_t count = (size_t)from->count;
    bool mine = from->rank == loom_comm_rank(world);
    const float *data = g->landing;
    loom_status status;

    if (mine) {
        data = kept(g, g->params->at[from->param]).data;
        if (loom_comm_rank(world) != 0)
            LOOM_TRY(loom_send(world, data, count, LOOM_F32, 0, 0, g->stream));
    } else if (loom_comm_rank(world) == 0) {
        LOOM_TRY(loom_recv(world, g->landing, count, LOOM_F32, from->rank, 0, g->stream));
    }
    if (loom_comm_rank(world) != 0)
        return LOOM_OK;
    LOOM_TRY(loom_stream_copy(g->stream, g->piece, data, count * sizeof *data));
    LOOM_TRY(loom_stream_wait(g->stream));
    return loom_shard_visit(&from->shard, place_run, &(placing){g->piece, from->first, from->first + from->count, g->tensor});

fail:
    return status;
}

/* The first piece of the tensor after the one that begins at `i`. */
static int next_tensor(const loom_gathering *g, int i)
{
    int next = i + 1;

    while (next < g->count && strcmp(g->pieces[next].shard.name, g->pieces[i].shard.name) == 0)
        next++;
    return next;
}

loom_status loom_gathering_open(loom_mesh *mesh, const loom_param_list *params, loom_weights_what what, loom_gathering **gathering)
{
    loom_gathering *g = calloc(1, sizeof *g);
    loom_status status;

    if (!g)
        return loom_fail(LOOM_E_MEMORY, "no memory to gather weights");
    *g = (loom_gathering){.mesh = mesh, .params = params, .what = what};
    LOOM_TRY(loom_stream_open(loom_comm_device(mesh->world), LOOM_STREAM_INLINE, "weights", &g->stream));
    LOOM_TRY(exchange_pieces(g));
    LOOM_TRY(allocate(g));
    *gathering = g;
    return LOOM_OK;

fail:
    loom_gathering_close(g);
    return status;
}

void loom_gathering_close(loom_gathering *g)
{
    if (!g)
        return;
    loom_stream_close(g->stream); /* before the memory that what it has left may use */
    loom_free_host(loom_comm_device(g->mesh->world), g->tensor);
    loom_free_host(loom_comm_device(g->mesh->world), g->piece);
    loom_free(loom_comm_device(g->mesh->world), g->landing);
    free(g->pieces);
    free(g);
}

int loom_gathering_tensors(const loom_gathering *g, const loom_shard **specs)
{
    int count = 0;

    for (int i = 0; i < g->count; i = next_tensor(g, i)) {
        if (specs)
            specs[count] = &g->pieces[i].shard;
        count++;
    }
    return count;
}

/* What world rank 0 made of it, for all. The others were never told why: it is in rank 0's message. */
static loom_status share_result(loom_gathering *g, loom_status visited)
{
    int32_t result = visited;
    loom_status status;

    LOOM_TRY(loom_comm_broadcast_host(g->mesh->world, &result, sizeof result, 0));
    if (result < 0 && loom_comm_rank(g->mesh->world) != 0)
        return loom_fail((loom_status)result, "world rank 0 could not take the weights: see its message");
    return (loom_status)result;

fail:
    return status;
}

loom_status loom_gathering_run(loom_gathering *g, loom_weights_visit_fn *visit, void *context)
{
    bool root = loom_comm_rank(g->mesh->world) == 0;
    loom_status status, visited = LOOM_OK;

    for (int i = 0; i < g->count; i = next_tensor(g, i)) {
        for (int p = i; p < next_tensor(g, i); p++)
            LOOM_TRY(move_piece(g, &g->pieces[p]));
        if (root && visited == LOOM_OK) /* after a failure the rest is still taken, or the senders would wait */
            visited = visit(context, &g->pieces[i].shard, g->tensor);
    }
    LOOM_TRY(loom_stream_wait(g->stream));
    return share_result(g, visited);

fail:
    return status;
}

loom_status loom_weights_gather(loom_mesh *mesh, const loom_param_list *params, loom_weights_what what, loom_weights_visit_fn *visit,
                                void *context)
{
    loom_gathering *g;
    loom_status status = loom_gathering_open(mesh, params, what, &g);

    if (status < 0)
        return status;
    status = loom_gathering_run(g, visit, context);
    loom_gathering_close(g);
    return status;
}
