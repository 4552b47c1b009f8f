/* How the ranks of a host share its cores. */
#include <rankloom/host.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cores that this host's ranks can keep busy: the allowed ones, or fewer when the cgroup grants less time. */
static int busy_cores(const loom_host *host)
{
    int granted = loom_known(host->cpu_quota) && host->cpu_quota.value < host->n_cores ? (int)host->cpu_quota.value : host->n_cores;
    return granted > 0 ? granted : 1;
}

/* The threads [begin, end) of host->thread_os. */
static loom_status pin(const loom_host *host, int begin, int end, loom_core_share *share)
{
    share->pinned = malloc((size_t)(end - begin) * sizeof *share->pinned);
    if (!share->pinned)
        return loom_fail(LOOM_E_MEMORY, "no memory for a list of %d threads", end - begin);
    memcpy(share->pinned, host->thread_os + begin, (size_t)(end - begin) * sizeof *share->pinned);
    share->n_pinned = end - begin;
    return LOOM_OK;
}

static int core_of_thread(const loom_host *host, int position)
{
    int core = 0;
    while (host->cores[core].first_thread + host->cores[core].threads <= position)
        core++;
    return core;
}

/* Whole cores of its own for each rank; when there are fewer cores than ranks, threads of its own; when there are fewer threads, one in
 * turn. */
static loom_status pin_rank(const loom_host *host, int ranks, int rank, loom_core_share *share)
{
    int begin, end;

    if (ranks <= host->n_cores) {
        const loom_host_core *first = &host->cores[(int64_t)host->n_cores * rank / ranks];
        const loom_host_core *last = &host->cores[(int64_t)host->n_cores * (rank + 1) / ranks - 1];
        begin = first->first_thread;
        end = last->first_thread + last->threads;
    } else if (ranks <= host->n_threads) {
        begin = (int)((int64_t)host->n_threads * rank / ranks);
        end = (int)((int64_t)host->n_threads * (rank + 1) / ranks);
    } else {
        begin = rank % host->n_threads;
        end = begin + 1;
    }
    share->numa = host->cores[core_of_thread(host, begin)].numa;
    return pin(host, begin, end, share);
}

static loom_status read_omp(const char *text, int *threads)
{
    char *end;

    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || (*end != '\0' && *end != ',') || errno || value < 1 || value > 65536) /* "4,2": the outer level counts */
        return loom_fail(LOOM_E_INVALID, "OMP_NUM_THREADS=\"%s\" is no number of threads from 1", text);
    *threads = (int)value;
    return LOOM_OK;
}

loom_status loom_host_share_cores(const loom_host *host, int local_ranks, int local_rank, const char *omp, loom_core_share *share)
{
    loom_core_share made = {.numa = -1};
    loom_status status;

    if (local_ranks < 1 || local_rank < 0 || local_rank >= local_ranks)
        return loom_fail(LOOM_E_INVALID, "local rank %d of %d: ranks are 0 to size - 1", local_rank, local_ranks);
    int cores = busy_cores(host), fair = cores / local_ranks > 1 ? cores / local_ranks : 1;
    made.threads = fair;
    if (omp && *omp && (status = read_omp(omp, &made.threads)) < 0)
        return status;
    if (local_ranks > cores)
        snprintf(made.notice, sizeof made.notice, "%d ranks share %d usable core%s of %.64s: one thread each, in turns", local_ranks, cores,
                 cores == 1 ? "" : "s", host->source);
    else if (made.threads != fair)
        snprintf(made.notice, sizeof made.notice, "OMP_NUM_THREADS=%d is used; %d core%s by %d rank%s would be %d thread%s each",
                 made.threads, cores, cores == 1 ? "" : "s", local_ranks, local_ranks == 1 ? "" : "s", fair, fair == 1 ? "" : "s");
    if ((status = pin_rank(host, local_ranks, local_rank, &made)) < 0)
        return status;
    *share = made;
    return LOOM_OK;
}

loom_status loom_host_cores_near(const loom_host *host, int numa_os, int sharers, loom_core_share *share)
{
    loom_core_share made = {.numa = -1, .threads = 1};

    for (int i = 0; i < host->n_numas && numa_os >= 0; i++)
        if (host->numas[i].os_index == numa_os && host->numas[i].cores > 0)
            made.numa = i;
    if (made.numa < 0) {
        snprintf(made.notice, sizeof made.notice, "locality of a device is unknown: it is pinned to no core");
        *share = made;
        return LOOM_OK;
    }
    made.pinned = malloc((size_t)host->n_threads * sizeof *made.pinned);
    if (!made.pinned)
        return loom_fail(LOOM_E_MEMORY, "no memory for a list of %d threads", host->n_threads);
    for (int c = 0; c < host->n_cores; c++)
        for (int i = 0; host->cores[c].numa == made.numa && i < host->cores[c].threads; i++)
            made.pinned[made.n_pinned++] = host->thread_os[host->cores[c].first_thread + i];
    int cores = host->numas[made.numa].cores;
    made.threads = sharers > 0 && cores / sharers > 1 ? cores / sharers : 1;
    *share = made;
    return LOOM_OK;
}

void loom_core_share_clear(loom_core_share *share)
{
    free(share->pinned);
    *share = (loom_core_share){.numa = -1};
}

loom_status loom_host_bind(const loom_host *host, const loom_core_share *share)
{
    if (share->n_pinned == 0)
        return LOOM_OK;
    /* The mask is sized by what exists: cpu_set_t alone ends at 1024. */
    size_t bytes = CPU_ALLOC_SIZE((size_t)host->highest_thread + 1);
    cpu_set_t *set = CPU_ALLOC((size_t)host->highest_thread + 1);
    if (!set)
        return loom_fail(LOOM_E_MEMORY, "no memory for a mask of %d threads", host->highest_thread + 1);
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < share->n_pinned; i++)
        CPU_SET_S((size_t)share->pinned[i], bytes, set);
    int refused = sched_setaffinity(0, bytes, set);
    int reason = errno;
    CPU_FREE(set);
    return refused ? loom_fail(LOOM_E_IO, "cannot bind to %d threads from %d on: %s", share->n_pinned, share->pinned[0], strerror(reason))
                   : LOOM_OK;
}
