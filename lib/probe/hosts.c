/* On which hosts the ranks are: each host's first rank reads it and tells the others. */
#include "probe/probe.h"

#include <rankloom/host.h>
#include <rankloom/text.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A text that rank `root` has, for everybody. */
static loom_status share_text(loom_prober *p, int root, char **text)
{
    loom_status status;
    void *buffer = NULL;

    *p->cell = loom_comm_rank(p->world) == root ? (double)strlen(*text) : 0;
    if ((status = loom_broadcast(p->world, p->cell, 1, LOOM_F64, root, p->stream)) < 0 || (status = loom_stream_wait(p->stream)) < 0)
        return status;
    size_t bytes = (size_t)*p->cell;
    if ((status = loom_alloc(p->device, bytes + 1, LOOM_MEM_OTHER, &buffer)) < 0)
        return status;
    if (loom_comm_rank(p->world) == root)
        memcpy(buffer, *text, bytes);
    status = loom_broadcast(p->world, buffer, bytes, LOOM_U8, root, p->stream);
    if (status == LOOM_OK)
        status = loom_stream_wait(p->stream);
    if (status == LOOM_OK && loom_comm_rank(p->world) != root) {
        *text = malloc(bytes + 1);
        if (*text)
            memcpy(*text, buffer, bytes + 1); /* allocated memory is zeroed: the text ends */
        else
            status = loom_fail(LOOM_E_MEMORY, "no memory for %zu bytes", bytes);
    }
    loom_free(p->device, buffer);
    return status;
}

/* The topology of one host, told by its first rank. */
static loom_status share_host(loom_prober *p, int leader, int ranks, loom_topology **host)
{
    loom_topology *mine = NULL;
    char *text = NULL;
    loom_status status = LOOM_OK;

    if (loom_comm_rank(p->world) == leader) {
        status = loom_topology_this_host(ranks, &mine);
        if (status == LOOM_OK)
            status = loom_topology_write(mine, &text);
        loom_topology_free(mine);
    }
    if (status == LOOM_OK)
        status = share_text(p, leader, &text);
    if (status == LOOM_OK)
        status = loom_topology_parse("host", text, strlen(text), host);
    loom_text_free(text);
    return status;
}

/* Names of all ranks' hosts, LOOM_PROBE_HOST_NAME bytes each. */
static loom_status gather_names(loom_prober *p, void **names)
{
    int size = loom_comm_size(p->world);
    loom_status status = loom_alloc(p->device, (size_t)size * LOOM_PROBE_HOST_NAME, LOOM_MEM_OTHER, names);

    if (status < 0)
        return status;
    char *own = (char *)*names + loom_comm_rank(p->world) * LOOM_PROBE_HOST_NAME;
    gethostname(own, LOOM_PROBE_HOST_NAME - 1);
    if ((status = loom_all_gather(p->world, own, *names, LOOM_PROBE_HOST_NAME, LOOM_U8, p->stream)) < 0)
        return status;
    return loom_stream_wait(p->stream);
}

loom_status loom_probe_hosts(loom_prober *p)
{
    int size = loom_comm_size(p->world), hosts = 0;
    loom_topology **host = calloc((size_t)size, sizeof *host);
    void *gathered = NULL;
    loom_status status = host ? gather_names(p, &gathered) : loom_fail(LOOM_E_MEMORY, "no memory for %d hosts", size);

    for (int first = 0, end; first < size && status == LOOM_OK; first = end) {
        const char *names = gathered;
        for (end = first + 1; end < size && strncmp(names + end * LOOM_PROBE_HOST_NAME, names + first * LOOM_PROBE_HOST_NAME, LOOM_PROBE_HOST_NAME) == 0;)
            end++;
        status = share_host(p, first, end - first, &host[hosts++]);
    }
    if (status == LOOM_OK)
        status = loom_topology_join((const loom_topology *const *)host, hosts, &p->topology);
    if (status == LOOM_OK && loom_topology_ranks(p->topology) != size)
        status = loom_fail(LOOM_E_UNSUPPORTED, "the hosts of these %d ranks have %d devices: start one rank for each", size,
                           loom_topology_ranks(p->topology));
    for (int i = 0; host && i < hosts; i++)
        loom_topology_free(host[i]);
    free(host);
    loom_free(p->device, gathered);
    return status;
}
