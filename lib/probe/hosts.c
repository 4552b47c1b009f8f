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
    bool tells = loom_comm_rank(p->world) == root;
    uint64_t bytes = tells ? strlen(*text) + 1 : 0;
    loom_status status = loom_comm_broadcast_host(p->world, &bytes, sizeof bytes, root);

    if (status < 0)
        return status;
    if (!tells && !(*text = malloc(bytes)))
        return loom_fail(LOOM_E_MEMORY, "no memory for %zu bytes", (size_t)bytes);
    return loom_comm_broadcast_host(p->world, *text, bytes, root);
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

loom_status loom_probe_hosts(loom_prober *p)
{
    int size = loom_comm_size(p->world), hosts = 0;
    loom_topology **host = calloc((size_t)size, sizeof *host);
    char *names = calloc((size_t)size, LOOM_PROBE_HOST_NAME), own[LOOM_PROBE_HOST_NAME] = ""; /* of all ranks' hosts, and of this one */
    loom_status status;

    gethostname(own, sizeof own - 1);
    status = host && names ? loom_comm_gather_host(p->world, own, names, sizeof own) : loom_fail(LOOM_E_MEMORY, "no memory for %d hosts", size);

    for (int first = 0, end; first < size && status == LOOM_OK; first = end) {
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
    free(names);
    return status;
}
