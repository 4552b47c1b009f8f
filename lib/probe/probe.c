/* The whole of a probe, and how a time is taken. */
#include "probe/probe.h"

#include "core/clock.h"
#include "core/number.h"
#include "core/try.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEAST_RUNS = 3, MOST_RUNS = 101 };

/* --- times ----------------------------------------------------------------------------------------------------------------- */

loom_status loom_probe_agree(loom_prober *p, loom_comm *comm, double *value)
{
    loom_status status;

    *p->cell = *value;
    if ((status = loom_all_reduce(comm, p->cell, p->cell, 1, LOOM_F64, LOOM_MAX, p->stream)) < 0 ||
        (status = loom_stream_wait(p->stream)) < 0)
        return status;
    *value = *p->cell;
    return LOOM_OK;
}

static loom_status time_once(loom_prober *p, loom_probe_work *work, void *context, double *seconds)
{
    double start = loom_now_s();
    loom_status status = p->waits ? LOOM_OK : work(p, context);

    *seconds = loom_now_s() - start;
    return status;
}

/* The first run warms up, and tells how many the budget allows; when it took long, the second one does, for a first call may build code. */
loom_status loom_probe_time(loom_prober *p, loom_comm *comm, loom_probe_work *work, void *context, double budget_s, double *seconds)
{
    double times[MOST_RUNS], once, sum = 0;
    loom_status status = time_once(p, work, context, &once);

    if (status == LOOM_OK)
        status = loom_probe_agree(p, comm, &once);
    if (status == LOOM_OK && once * LEAST_RUNS > budget_s)
        status = time_once(p, work, context, &once);
    if (status == LOOM_OK)
        status = loom_probe_agree(p, comm, &once);
    int runs = once > 0 && budget_s / once < MOST_RUNS ? (int)(budget_s / once) : MOST_RUNS;
    runs = runs < LEAST_RUNS ? LEAST_RUNS : runs;
    for (int i = 0; i < runs && status == LOOM_OK; i++)
        status = time_once(p, work, context, &times[i]);
    if (status < 0)
        return status;
    for (int i = 0; i < runs; i++)
        sum += times[i];
    qsort(times, (size_t)runs, sizeof *times, loom_by_value);
    *seconds = p->crowded && !p->sole ? sum / runs : times[runs / 2];
    return loom_probe_agree(p, comm, seconds);
}

/* --- the whole ------------------------------------------------------------------------------------------------------------------ */

static const loom_topo_node *node_of(const loom_prober *p)
{
    return &p->topology->nodes[loom_topology_node_of(p->topology, loom_comm_rank(p->world))];
}

static loom_status open_prober(loom_comm *world, loom_prober *p)
{
    void *cell;
    loom_status status;

    p->world = world;
    p->device = loom_comm_device(world);
    if (loom_device_get_kind(p->device) != LOOM_CPU)
        return loom_fail(LOOM_E_UNSUPPORTED, "a probe measures CPU ranks; these are on another device");
    LOOM_TRY(loom_stream_open(p->device, LOOM_STREAM_INLINE, "probe", &p->stream));
    LOOM_TRY(loom_kernels_open(p->device, NULL, &p->kernels));
    LOOM_TRY(loom_alloc(p->device, sizeof *p->cell, LOOM_MEM_OTHER, &cell));
    p->cell = cell;
    LOOM_TRY(loom_probe_hosts(p));
    p->crowded = node_of(p)->cores > 0 && node_of(p)->devices > node_of(p)->cores;
    return LOOM_OK;

fail:
    return status;
}

static void close_prober(loom_prober *p)
{
    loom_topology_free(p->topology);
    loom_kernels_close(p->kernels);
    loom_free(p->device, p->cell);
    loom_stream_close(p->stream);
}

/* "2026-03-01 12:00 UTC on HOST: 4 ranks, 1 thread each, avx512, onednn, shm; median of 3 to 101 runs, slowest rank, f32". */
static void say_how(loom_prober *p)
{
    char host[LOOM_PROBE_HOST_NAME] = "", when[32];
    time_t now = time(NULL);
    struct tm utc;

    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &utc));
    snprintf(p->topology->measured, sizeof p->topology->measured,
             "%s on %s by rankloom probe: ranks %d, threads of each %d, kernels %s, products %s, transport %s; f32, median of 3 to %d "
             "runs, slowest rank",
             when, host, loom_comm_size(p->world), loom_device_threads(p->device), p->kernels->isa, p->kernels->gemm_library,
             loom_comm_transport(p->world), MOST_RUNS);
}

double loom_probe_crowd(const loom_prober *p)
{
    return p->crowded ? (double)node_of(p)->devices / node_of(p)->cores : 1;
}

/* Whether this rank finds no core of its own when one rank after another takes one. A rank that shares a core is timed in the slices that it gets: a
 * short product looks as fast as alone, a long one takes twice as long. So so many ranks work as there are cores. */
bool loom_probe_lacks_core(const loom_prober *p)
{
    return p->crowded && loom_topology_local_rank(p->topology, loom_comm_rank(p->world)) >= node_of(p)->cores;
}

static loom_status measure(loom_prober *p, const loom_probe_config *config)
{
    double budget_s = config->budget_s > 0 ? config->budget_s : 20, share = loom_comm_size(p->world) > 1 ? 0.45 : 0.9;
    loom_status status;

    p->waits = loom_probe_lacks_core(p);
    p->sole = true;
    LOOM_TRY(loom_probe_memory(p, 0.1 * budget_s));
    LOOM_TRY(loom_probe_products(p, config->model, &config->train, share * budget_s));
    p->waits = p->sole = false;
    if (loom_comm_size(p->world) > 1)
        LOOM_TRY(loom_probe_collectives(p, share * budget_s));
    LOOM_TRY(loom_topology_fit(p->topology));
    say_how(p);
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_probe(loom_comm *world, const loom_probe_config *config, loom_topology **topology)
{
    loom_prober p = {0};
    loom_status status = open_prober(world, &p);

    if (status == LOOM_OK)
        status = measure(&p, config);
    if (status == LOOM_OK) {
        *topology = p.topology;
        p.topology = NULL;
    }
    close_prober(&p);
    return status;
}
