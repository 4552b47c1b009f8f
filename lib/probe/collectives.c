/* Collectives and messages, by size of group and bytes. */
#include "probe/probe.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_BYTES = 16 << 20, SIZES = 7, MOST_AXES = 32 };
static const size_t sizes[SIZES] = {64, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, MOST_BYTES};

/* Ranks b + i + stride * (0 … n-1), as an axis of a layout has them. */
typedef struct axis {
    int n, stride;
} axis;

typedef struct call {
    loom_comm *comm;
    loom_pattern pattern;
    void *send, *recv;
    size_t bytes; /* as nccl-tests counts: the larger buffer of a rank */
    const loom_gemm_args *work; /* what each rank computes before it calls; NULL: nothing */
} call;

/* A message there and one back; the time is halved afterwards. */
static loom_status ping_pong(loom_prober *p, const call *c)
{
    int rank = loom_comm_rank(c->comm), peer = 1 - rank;
    loom_status status = LOOM_OK;

    for (int turn = 0; turn < 2 && status == LOOM_OK; turn++)
        status = rank == turn ? loom_send(c->comm, c->send, c->bytes, LOOM_U8, peer, 0, p->stream)
                              : loom_recv(c->comm, c->recv, c->bytes, LOOM_U8, peer, 0, p->stream);
    return status;
}

/* Both at once, as neighbours in a ring do. */
static loom_status swap(loom_prober *p, const call *c)
{
    int peer = 1 - loom_comm_rank(c->comm);
    loom_status status = loom_group_begin(c->comm), ended;

    if (status < 0)
        return status;
    status = loom_send(c->comm, c->send, c->bytes, LOOM_U8, peer, 0, p->stream);
    if (status == LOOM_OK)
        status = loom_recv(c->comm, c->recv, c->bytes, LOOM_U8, peer, 0, p->stream);
    ended = loom_group_end(c->comm, p->stream);
    return status < 0 ? status : ended;
}

static loom_status run_call(loom_prober *p, void *context)
{
    const call *c = context;
    size_t count = c->bytes / sizeof(float), part = count / (size_t)loom_comm_size(c->comm);
    loom_status status = c->work ? p->kernels->gemm(p->kernels, c->work, p->stream) : LOOM_OK;

    if (status < 0)
        return status;
    switch (c->pattern) {
    case LOOM_PATTERN_ALL_REDUCE:
        status = loom_all_reduce(c->comm, c->send, c->recv, count, LOOM_F32, LOOM_SUM, p->stream);
        break;
    case LOOM_PATTERN_REDUCE_SCATTER:
        status = loom_reduce_scatter(c->comm, c->send, c->recv, part, LOOM_F32, LOOM_SUM, p->stream);
        break;
    case LOOM_PATTERN_ALL_GATHER:
        status = loom_all_gather(c->comm, c->send, c->recv, part, LOOM_F32, p->stream);
        break;
    case LOOM_PATTERN_ALL_TO_ALL:
        status = loom_all_to_all(c->comm, c->send, c->recv, part, LOOM_F32, p->stream);
        break;
    case LOOM_PATTERN_BROADCAST:
        status = loom_broadcast(c->comm, c->recv, count, LOOM_F32, 0, p->stream);
        break;
    default:
        status = c->work ? swap(p, c) : ping_pong(p, c);
    }
    return status < 0 ? status : loom_stream_wait(p->stream);
}

/* --- axes ---------------------------------------------------------------------------------------------------------------------- */

static void add_axis(axis *axes, int *count, int n, int stride)
{
    for (int i = 0; i < *count; i++)
        if (axes[i].n == n && axes[i].stride == stride)
            return;
    if (n > 1 && *count < MOST_AXES)
        axes[(*count)++] = (axis){n, stride};
}

/* Neighbours: powers of two, a host, all. Across hosts, when each has as many ranks: one rank of each. */
static int choose_axes(const loom_prober *p, axis *axes)
{
    const loom_topology *t = p->topology;
    int size = loom_comm_size(p->world), host = t->nodes[0].devices, count = 0;
    bool even = true;

    for (int n = 2; n <= size; n *= 2)
        add_axis(axes, &count, n, 1);
    for (int i = 0; i < t->n_nodes; i++)
        even = even && t->nodes[i].devices == host;
    if (even && t->n_nodes > 1) {
        add_axis(axes, &count, host, 1);
        for (int n = 2; n <= t->n_nodes; n *= 2)
            add_axis(axes, &count, n, host);
        add_axis(axes, &count, t->n_nodes, host);
    }
    add_axis(axes, &count, size, 1);
    return count;
}

/* This rank's group of the axis, none (*comm NULL) when the last block is not whole. Collective over the world. */
static loom_status open_group(loom_prober *p, axis a, int *members, loom_comm **comm)
{
    int rank = loom_comm_rank(p->world), block = a.n * a.stride, base = rank / block * block;

    if (base + block > loom_comm_size(p->world))
        return loom_comm_create(p->world, members, 0, "probe", comm);
    for (int i = 0; i < a.n; i++)
        members[i] = base + rank % a.stride + i * a.stride;
    return loom_comm_create(p->world, members, a.n, "probe", comm);
}

/* --- turns on a core -------------------------------------------------------------------------------------------------------------- */

enum { WORK = 384 }; /* a product of about a millisecond, as lies between two calls in training */

/* Where ranks take turns on a core, a call costs what it takes to get everybody there and back to work: that shows only with work between calls. What the
 * work alone takes, to be taken off: on a core of its own, and so many times that as ranks share one. */
static loom_status time_work(loom_prober *p, loom_gemm_args *work, double budget_s, double *seconds)
{
    loom_status status;

    *seconds = 0;
    if (!p->crowded)
        return LOOM_OK;
    p->sole = true;
    p->waits = loom_probe_lacks_core(p);
    status = loom_probe_time(p, p->world, loom_probe_gemm, work, budget_s, seconds);
    p->sole = p->waits = false;
    *seconds *= loom_probe_crowd(p);
    return status;
}

/* --- measuring ------------------------------------------------------------------------------------------------------------------- */

/* All groups run at once; the slowest counts, and those who sat out learn the time. */
static loom_status time_call(loom_prober *p, call *c, const loom_group_link *link, double work_s, double budget_s)
{
    double seconds = 0;
    loom_status status = c->comm ? loom_probe_time(p, c->comm, run_call, c, budget_s, &seconds) : LOOM_OK;

    if (status == LOOM_OK)
        status = loom_probe_agree(p, p->world, &seconds);
    if (status < 0)
        return status;
    if (c->work) /* a difference of two unsteady times: no less than a copy of the bytes */
        seconds = fmax(seconds - work_s, 1e-6 + (double)c->bytes / loom_figure_or(p->topology->chips[0].memory_bandwidth, 1e11));
    else if (c->pattern == LOOM_PATTERN_SEND)
        seconds /= 2; /* there and back */
    loom_pattern_point point = {c->pattern,      link->level,      link->ranks,
                                link->in_domain, (double)c->bytes, seconds};
    return loom_topology_add_points(p->topology, &point, 1);
}

static loom_status measure_axis(loom_prober *p, axis a, void *send, void *recv, int *members, double budget_s)
{
    loom_group_link link = loom_topology_axis(p->topology, a.n, a.stride);
    loom_gemm_args work = {.c_MN = recv, .a_MK = send, .b_KN = (float *)send + WORK * WORK, .m = WORK, .n = WORK, .k = WORK};
    call c = {.send = send, .recv = recv, .work = p->crowded ? &work : NULL};
    double work_s, each_s = budget_s / (LOOM_PATTERNS * SIZES);
    loom_status status = open_group(p, a, members, &c.comm);

    if (status == LOOM_OK)
        status = time_work(p, &work, 4 * each_s, &work_s);

    for (int pattern = 0; pattern < LOOM_PATTERNS && status == LOOM_OK; pattern++)
        for (int i = 0; i < SIZES && status == LOOM_OK; i++) {
            size_t unit = (size_t)a.n * sizeof(float);
            c.pattern = (loom_pattern)pattern;
            c.bytes = (sizes[i] + unit - 1) / unit * unit;
            if (c.pattern != LOOM_PATTERN_SEND || a.n == 2)
                status = time_call(p, &c, &link, work_s, each_s);
        }
    loom_comm_free(c.comm);
    return status;
}

/* What a level gives, from its messages: the smallest tells the latency, the largest the bandwidth. */
static void set_levels(loom_topology *t)
{
    for (int i = 0; i < t->n_points; i++) {
        const loom_pattern_point *point = &t->points[i];
        loom_level_figures *level = &t->levels[point->level];
        if (point->pattern != LOOM_PATTERN_SEND)
            continue;
        if (i == 0 || t->points[i - 1].pattern != LOOM_PATTERN_SEND || t->points[i - 1].level != point->level)
            level->latency_s = (loom_figure){point->seconds, LOOM_ORIGIN_MEASURED};
        level->bandwidth = (loom_figure){point->bytes / point->seconds, LOOM_ORIGIN_MEASURED};
    }
}

loom_status loom_probe_collectives(loom_prober *p, double budget_s)
{
    axis axes[MOST_AXES];
    int count = choose_axes(p, axes), size = loom_comm_size(p->world);
    size_t room = MOST_BYTES + (size_t)size * sizeof(float);
    int *members = malloc((size_t)size * sizeof *members);
    void *send = NULL, *recv = NULL;
    loom_status status = members ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for %d ranks", size);

    if (status == LOOM_OK)
        status = loom_alloc(p->device, room, LOOM_MEM_COMM, &send);
    if (status == LOOM_OK)
        status = loom_alloc(p->device, room, LOOM_MEM_COMM, &recv);
    for (int i = 0; i < count && status == LOOM_OK; i++)
        status = measure_axis(p, axes[i], send, recv, members, budget_s / count);
    if (status == LOOM_OK)
        set_levels(p->topology);
    loom_free(p->device, send);
    loom_free(p->device, recv);
    free(members);
    return status;
}
