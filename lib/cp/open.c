/* Opening: what the kind can split, its groups, and all memory. */
#include "cp/cp.h"

#include "core/try.h"

#include <stdlib.h>

/* --- what can be split --------------------------------------------------------------------------------------------------------------- */

static loom_status check_seq(int size, int64_t batch, int64_t seq)
{
    int64_t unit = size > 1 ? 2 * (int64_t)size : 1, below = seq / unit * unit;

    if (batch < 1 || seq < 1)
        return loom_fail(LOOM_E_INVALID, "cp: %lld sequences of %lld tokens: both are at least 1", (long long)batch, (long long)seq);
    if (seq > INT32_MAX)
        return loom_fail(LOOM_E_INVALID, "cp: seq=%lld; positions are at most %d", (long long)seq, INT32_MAX);
    if (seq % unit != 0 && below == 0)
        return loom_fail(LOOM_E_INVALID, "cp: seq=%lld is not a multiple of 2 x cp=%d = %lld; %lld is", (long long)seq, size, (long long)unit,
                         (long long)unit);
    if (seq % unit != 0)
        return loom_fail(LOOM_E_INVALID, "cp: seq=%lld is not a multiple of 2 x cp=%d = %lld; %lld and %lld are", (long long)seq, size,
                         (long long)unit, (long long)below, (long long)(below + unit));
    return LOOM_OK;
}

static loom_status choose_inner(loom_cp *cp)
{
    loom_cp_config *config = &cp->opened;

    cp->n_inner = loom_cp_inner(config->kind, cp->size, config->heads, config->kv_heads);
    if (config->kind == LOOM_CP_HYBRID && cp->size > 1) {
        cp->n_inner = config->inner > 0 ? config->inner : cp->n_inner;
        if (cp->n_inner < 2 || cp->n_inner >= cp->size || cp->size % cp->n_inner != 0)
            return loom_fail(LOOM_E_INVALID, "cp: a hybrid over cp=%d needs an all-to-all of more than 1 and fewer than %d ranks that divides it and splits "
                             "%lld heads over %lld kv heads; %d does not", cp->size, cp->size, (long long)config->heads, (long long)config->kv_heads,
                             cp->n_inner);
    }
    if (!loom_cp_heads_split(config->heads, config->kv_heads, cp->n_inner))
        return loom_fail(LOOM_E_INVALID, "cp: an all-to-all over %d ranks cannot split %lld heads over %lld kv heads; ring and allgather split none",
                         cp->n_inner, (long long)config->heads, (long long)config->kv_heads);
    return LOOM_OK;
}

static loom_status check(loom_cp *cp)
{
    const loom_cp_config *c = &cp->opened;

    if (c->heads < 1 || c->kv_heads < 1 || c->head_dim < 1 || c->heads % c->kv_heads != 0)
        return loom_fail(LOOM_E_INVALID, "cp: %lld heads over %lld kv heads of %lld: all are at least 1, and the second divides the first",
                         (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim);
    loom_status status = check_seq(cp->size, c->batch, c->seq);
    return status < 0 ? status : choose_inner(cp);
}

/* --- groups ---------------------------------------------------------------------------------------------------------------------------- */

static loom_status make_group(loom_cp *cp, int first, int step, int count, const char *name, loom_comm **comm)
{
    int *members = malloc((size_t)count * sizeof *members);
    loom_status status;

    if (!members)
        return loom_fail(LOOM_E_MEMORY, "cp: no memory for a list of %d ranks", count);
    for (int i = 0; i < count; i++)
        members[i] = first + i * step;
    status = loom_comm_create(cp->all, members, count, name, comm);
    free(members);
    return status;
}

/* Neighbours in cp are near each other (the axis order says so): they have the all-to-all, which moves more. */
static loom_status make_groups(loom_cp *cp)
{
    int u = cp->n_inner;
    loom_status status;

    cp->n_outer = cp->size / u;
    cp->outer_rank = cp->rank / u;
    cp->inner = u > 1 ? cp->all : NULL;
    cp->outer = u == 1 ? cp->all : NULL;
    cp->owns_groups = u > 1 && cp->n_outer > 1;
    if (!cp->owns_groups)
        return LOOM_OK;
    cp->inner = NULL;
    LOOM_TRY(make_group(cp, cp->outer_rank * u, 1, u, "cp inner", &cp->inner));
    return make_group(cp, cp->rank % u, u, cp->n_outer, "cp outer", &cp->outer);

fail:
    return status;
}

/* --- shape and memory ------------------------------------------------------------------------------------------------------------------ */

static loom_cp_shape shape_of(const loom_cp *cp, int64_t batch, int64_t seq)
{
    const loom_cp_config *c = &cp->opened;
    loom_cp_shape shape;

    loom_cp_shape_of(c->kind, cp->size, cp->n_inner, batch, seq, c->heads, c->kv_heads, c->head_dim, &shape);
    return shape;
}

static void set_shape(loom_cp *cp, int64_t batch, int64_t seq)
{
    loom_cp_shape shape = shape_of(cp, batch, seq);

    cp->batch = batch;
    cp->seq = seq;
    cp->local_seq = shape.local_seq;
    cp->group_seq = shape.group_seq;
    cp->group_heads = shape.group_heads;
    cp->group_kv_heads = shape.group_kv_heads;
}

static loom_status fill_positions(loom_cp *cp)
{
    int32_t *host = cp->host_positions;
    size_t bytes = (size_t)cp->local_seq * sizeof *host;
    loom_status status;

    for (int r = 0; r < cp->size; r++)
        loom_cp_split(cp->seq, cp->size, r, host + r * cp->local_seq);
    LOOM_TRY(loom_stream_copy(cp->compute, cp->positions_S, host, bytes * (size_t)cp->size));
    for (int64_t b = 0; b < cp->batch; b++)
        LOOM_TRY(loom_stream_copy(cp->compute, cp->positions_T + b * cp->local_seq, host + cp->rank * cp->local_seq, bytes));
    return loom_stream_wait(cp->compute);

fail:
    return status;
}

static loom_status allocate_indices(loom_cp *cp)
{
    loom_device *device = loom_stream_device(cp->compute);
    size_t row = (size_t)cp->seq * sizeof(int32_t), all = (size_t)cp->batch * row;
    loom_status status;

    cp->host_positions = malloc(row);
    if (!cp->host_positions)
        return loom_fail(LOOM_E_MEMORY, "cp: no memory for %lld positions", (long long)cp->seq);
    LOOM_TRY(loom_alloc(device, row, LOOM_MEM_OTHER, (void **)&cp->positions_S));
    LOOM_TRY(loom_alloc(device, all / (size_t)cp->size, LOOM_MEM_OTHER, (void **)&cp->positions_T));
    if (!cp->opened.documents || cp->size == 1)
        return LOOM_OK;
    LOOM_TRY(loom_alloc(device, all, LOOM_MEM_COMM, (void **)&cp->document_parts));
    return loom_alloc(device, all, LOOM_MEM_COMM, (void **)&cp->documents);

fail:
    return status;
}

static void set_buffers(loom_cp *cp, const int64_t offset[LOOM_CP_BUFFERS])
{
    float **const buffer[LOOM_CP_BUFFERS] = {
        [LOOM_CP_SENT] = &cp->sent,           [LOOM_CP_LANDED] = &cp->landed,       [LOOM_CP_WORKED] = &cp->worked,
        [LOOM_CP_KV_MINE] = &cp->kv_mine,     [LOOM_CP_KV_LANDED] = &cp->kv_landed, [LOOM_CP_DKV_ALL] = &cp->dkv_all,
        [LOOM_CP_KV_ALL] = &cp->kv_all,       [LOOM_CP_KV_EVEN] = &cp->kv[0],       [LOOM_CP_KV_ODD] = &cp->kv[1],
        [LOOM_CP_O_PART] = &cp->o_part,       [LOOM_CP_LSE_PART] = &cp->lse_part,   [LOOM_CP_DKV_EVEN] = &cp->dkv[0],
        [LOOM_CP_DKV_ODD] = &cp->dkv[1],      [LOOM_CP_DKV_PART] = &cp->dkv_part,
    };

    for (int i = 0; i < LOOM_CP_BUFFERS; i++)
        *buffer[i] = offset[i] < 0 ? NULL : cp->memory + offset[i];
    if (!cp->kv_all)
        cp->kv_all = cp->kv_landed; /* one sequence comes in as it is wanted */
}

static loom_status allocate(loom_cp *cp)
{
    loom_cp_shape shape = shape_of(cp, cp->opened.batch, cp->opened.seq);
    int64_t offset[LOOM_CP_BUFFERS], used = loom_cp_place(&shape, offset);
    loom_status status;

    set_shape(cp, cp->opened.batch, cp->opened.seq);
    LOOM_TRY(allocate_indices(cp));
    LOOM_TRY(loom_alloc(loom_stream_device(cp->compute), (size_t)used * sizeof(float), LOOM_MEM_COMM, (void **)&cp->memory));
    set_buffers(cp, offset);
    return fill_positions(cp);

fail:
    return status;
}

/* --- public ------------------------------------------------------------------------------------------------------------------------------ */

loom_status loom_cp_open(loom_mesh *mesh, loom_kernels *kernels, loom_stream *compute, const loom_cp_config *config, loom_cp **cp)
{
    loom_device *device = loom_stream_device(compute);
    loom_status status;
    loom_cp *c = calloc(1, sizeof *c);

    if (!c)
        return loom_fail(LOOM_E_MEMORY, "no memory for a context-parallel context");
    c->kernels = kernels;
    c->compute = compute;
    c->opened = *config;
    c->all = mesh->axis[LOOM_AXIS_CP];
    c->size = loom_comm_size(c->all);
    c->rank = loom_comm_rank(c->all);
    LOOM_TRY(check(c));
    LOOM_TRY(make_groups(c));
    LOOM_TRY(loom_stream_open(device, LOOM_STREAM_INLINE, "cp", &c->hops));
    LOOM_TRY(loom_event_open(device, &c->computed));
    LOOM_TRY(loom_event_open(device, &c->kv_arrived));
    LOOM_TRY(loom_event_open(device, &c->dkv_arrived));
    LOOM_TRY(allocate(c));
    *cp = c;
    return LOOM_OK;

fail:
    loom_cp_close(c);
    return status;
}

void loom_cp_close(loom_cp *cp)
{
    loom_device *device;

    if (!cp)
        return;
    device = loom_stream_device(cp->compute);
    loom_stream_close(cp->hops);
    loom_event_close(cp->computed);
    loom_event_close(cp->kv_arrived);
    loom_event_close(cp->dkv_arrived);
    if (cp->owns_groups) {
        loom_comm_free(cp->inner);
        loom_comm_free(cp->outer);
    }
    loom_free(device, cp->positions_S);
    loom_free(device, cp->positions_T);
    loom_free(device, cp->document_parts);
    loom_free(device, cp->documents);
    loom_free(device, cp->memory);
    free(cp->host_positions);
    free(cp);
}

loom_status loom_cp_reshape(loom_cp *cp, int64_t batch, int64_t seq)
{
    loom_status status;

    if (batch > cp->opened.batch || seq > cp->opened.seq)
        return loom_fail(LOOM_E_INVALID, "cp: %lld sequences of %lld tokens; it was opened for at most %lld of %lld", (long long)batch,
                         (long long)seq, (long long)cp->opened.batch, (long long)cp->opened.seq);
    LOOM_TRY(check_seq(cp->size, batch, seq));
    LOOM_TRY(loom_stream_wait(cp->compute));
    set_shape(cp, batch, seq);
    return fill_positions(cp);

fail:
    return status;
}

int64_t loom_cp_local_seq(const loom_cp *cp)
{
    return cp->local_seq;
}

const int32_t *loom_cp_positions(const loom_cp *cp)
{
    return cp->positions_T;
}

const int32_t *loom_cp_host_positions(const loom_cp *cp)
{
    return cp->host_positions + cp->rank * cp->local_seq;
}

int64_t loom_cp_saved(const loom_cp *cp)
{
    loom_cp_shape shape = shape_of(cp, cp->opened.batch, cp->opened.seq);

    return loom_cp_kept(&shape);
}

int loom_cp_groups(const loom_cp *cp, const loom_comm *groups[2])
{
    if (!cp->owns_groups)
        return 0;
    groups[0] = cp->inner;
    groups[1] = cp->outer;
    return 2;
}

void loom_cp_traffic(const loom_cp *cp, loom_traffic *traffic)
{
    const loom_comm *groups[2];
    loom_traffic one;

    loom_comm_traffic(cp->all, traffic);
    for (int i = loom_cp_groups(cp, groups) - 1; i >= 0; i--) {
        loom_comm_traffic(groups[i], &one);
        for (int kind = 0; kind < LOOM_CALL_KINDS; kind++) {
            traffic->calls[kind] += one.calls[kind];
            traffic->bytes[kind] += one.bytes[kind];
        }
    }
}
