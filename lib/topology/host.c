/* A host as hwloc tells it: this machine, an XML file, or a synthetic description. The one file that knows hwloc. */
#include <rankloom/host.h>

#include "core/file.h"
#include "core/try.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_XML_BYTES = 64 << 20 };

/* --- loading ------------------------------------------------------------------------------------------------------------ */

/* Back ends that open drivers or displays: slow, and nothing here wants what they add. An absent one is no error. */
static void leave_out_plugins(hwloc_topology_t tree)
{
    static const char *const names[] = {"pci", "opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        hwloc_topology_set_components(tree, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, names[i]);
}

/* What may not be used is loaded too: masks are sized by it, and counts use the allowed set. */
static loom_status open_tree(const char *source, hwloc_topology_t *tree)
{
    if (hwloc_topology_init(tree) != 0)
        return loom_fail(LOOM_E_MEMORY, "%s: hwloc cannot start", source);
    leave_out_plugins(*tree);
    hwloc_topology_set_flags(*tree, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    hwloc_topology_set_io_types_filter(*tree, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    return LOOM_OK;
}

static loom_status fill_host(hwloc_topology_t tree, bool this_machine, loom_host *host);

static loom_status finish_load(const char *source, hwloc_topology_t tree, bool this_machine, loom_host **host)
{
    loom_status status = LOOM_OK;
    loom_host *made = calloc(1, sizeof *made);

    if (!made)
        status = loom_fail(LOOM_E_MEMORY, "%s: no memory for a host", source);
    else if (hwloc_topology_load(tree) != 0)
        status = loom_fail(LOOM_E_INVALID, "%s: hwloc cannot read it", source);
    else {
        snprintf(made->source, sizeof made->source, "%s", source);
        status = fill_host(tree, this_machine, made);
    }
    hwloc_topology_destroy(tree);
    if (status < 0)
        loom_host_free(made);
    else
        *host = made;
    return status;
}

loom_status loom_host_parse_xml(const char *source, const char *text, size_t bytes, loom_host **host)
{
    hwloc_topology_t tree;
    loom_status status = open_tree(source, &tree);

    if (status < 0)
        return status;
    /* hwloc wants the terminating zero counted. */
    char *copy = malloc(bytes + 1);
    if (!copy) {
        hwloc_topology_destroy(tree);
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for its %zu bytes", source, bytes);
    }
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    int refused = bytes < INT32_MAX ? hwloc_topology_set_xmlbuffer(tree, copy, (int)bytes + 1) : -1;
    if (refused) {
        hwloc_topology_destroy(tree);
        status = loom_fail(LOOM_E_INVALID, "%s: no XML of hwloc", source);
    } else {
        status = finish_load(source, tree, false, host);
    }
    free(copy);
    return status;
}

static loom_status read_synthetic(const char *what, loom_host **host)
{
    hwloc_topology_t tree;
    loom_status status = open_tree(what, &tree);

    if (status < 0)
        return status;
    if (hwloc_topology_set_synthetic(tree, what + strlen("synthetic:")) != 0) {
        hwloc_topology_destroy(tree);
        return loom_fail(LOOM_E_INVALID, "\"%s\" is no hwloc description; \"synthetic:numa:2 core:4 pu:2\" is one", what);
    }
    return finish_load(what, tree, false, host);
}

loom_status loom_host_read(const char *what, loom_host **host)
{
    hwloc_topology_t tree;
    loom_status status;
    char *text;
    size_t bytes;

    if (!what) {
        status = open_tree("this host", &tree);
        return status < 0 ? status : finish_load("this host", tree, true, host);
    }
    if (strncmp(what, "synthetic:", strlen("synthetic:")) == 0)
        return read_synthetic(what, host);
    if ((status = loom_file_read(what, MAX_XML_BYTES, &text, &bytes)) < 0)
        return status;
    status = loom_host_parse_xml(what, text, bytes, host);
    free(text);
    return status;
}

void loom_host_free(loom_host *host)
{
    if (!host)
        return;
    free(host->thread_os);
    free(host->cores);
    free(host->numas);
    free(host->pcis);
    free(host);
}

/* --- cores and NUMA nodes ----------------------------------------------------------------------------------------------- */

/* What this process may run on: the allowed set, and on this machine its affinity too. The caller frees it. */
static hwloc_bitmap_t usable_threads(hwloc_topology_t tree, bool this_machine)
{
    hwloc_bitmap_t set = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(tree));
    hwloc_bitmap_t bound = this_machine && set ? hwloc_bitmap_alloc() : NULL;

    if (bound && hwloc_get_cpubind(tree, bound, HWLOC_CPUBIND_PROCESS) == 0 && hwloc_bitmap_intersects(set, bound))
        hwloc_bitmap_and(set, set, bound);
    hwloc_bitmap_free(bound);
    return set;
}

/* NUMA nodes hang beside the tree, at a special depth: they are counted by type, never by walking levels. */
static hwloc_obj_t numa_at(hwloc_topology_t tree, int index)
{
    return hwloc_get_obj_by_type(tree, HWLOC_OBJ_NUMANODE, (unsigned)index);
}

static int numa_of_set(hwloc_topology_t tree, int n_numas, hwloc_const_cpuset_t set)
{
    for (int i = 0; i < n_numas; i++)
        if (hwloc_bitmap_intersects(numa_at(tree, i)->cpuset, set))
            return i;
    return -1;
}

/* A core of the tree, or a bare thread where the machine tells of no cores. */
static loom_status add_core(hwloc_topology_t tree, hwloc_const_cpuset_t core_set, hwloc_const_cpuset_t usable, loom_host *host)
{
    loom_host_core core = {.numa = numa_of_set(tree, host->n_numas, core_set), .first_thread = host->n_threads};
    int thread;

    hwloc_bitmap_foreach_begin(thread, core_set)
    {
        if (hwloc_bitmap_isset(usable, (unsigned)thread)) {
            host->thread_os[host->n_threads++] = thread;
            core.threads++;
        }
    }
    hwloc_bitmap_foreach_end();
    if (core.threads == 0)
        return LOOM_OK;
    host->cores[host->n_cores++] = core;
    if (core.numa >= 0) {
        host->numas[core.numa].cores++;
        host->numas[core.numa].threads += core.threads;
    }
    return LOOM_OK;
}

static loom_status add_cores(hwloc_topology_t tree, bool this_machine, loom_host *host)
{
    hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    hwloc_bitmap_t usable = usable_threads(tree, this_machine);
    int count = hwloc_get_nbobjs_by_type(tree, type);
    loom_status status = LOOM_OK;

    host->all_threads = hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_PU);
    host->highest_thread = hwloc_bitmap_last(hwloc_topology_get_complete_cpuset(tree));
    host->thread_os = calloc((size_t)host->all_threads + 1, sizeof *host->thread_os);
    host->cores = calloc((size_t)count + 1, sizeof *host->cores);
    if (!usable || !host->thread_os || !host->cores)
        status = loom_fail(LOOM_E_MEMORY, "%s: no memory for %d cores", host->source, count);
    for (int i = 0; i < count && status == LOOM_OK; i++)
        status = add_core(tree, hwloc_get_obj_by_type(tree, type, (unsigned)i)->cpuset, usable, host);
    hwloc_bitmap_free(usable);
    if (status == LOOM_OK && host->n_threads == 0)
        status = loom_fail(LOOM_E_INVALID, "%s: no core of it may be used", host->source);
    return status;
}

/* The node with memory at the least distance from node `from`; distances absent: the first. */
static int nearest_memory(hwloc_topology_t tree, const loom_host *host, int from)
{
    struct hwloc_distances_s *distances = NULL;
    unsigned found = 1;
    int best = -1;
    hwloc_uint64_t best_distance = 0;

    if (host->numas[from].memory_bytes > 0)
        return from;
    if (hwloc_distances_get_by_type(tree, HWLOC_OBJ_NUMANODE, &found, &distances, HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 || found < 1)
        distances = NULL;
    if (distances && distances->nbobjs != (unsigned)host->n_numas) {
        hwloc_distances_release(tree, distances);
        distances = NULL;
    }
    for (int i = 0; i < host->n_numas; i++) {
        hwloc_uint64_t distance = distances ? distances->values[from * host->n_numas + i] : 0;
        if (host->numas[i].memory_bytes > 0 && (best < 0 || distance < best_distance)) {
            best = i;
            best_distance = distance;
        }
    }
    if (distances)
        hwloc_distances_release(tree, distances);
    return best;
}

static loom_status add_numas(hwloc_topology_t tree, loom_host *host)
{
    int count = hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_NUMANODE);

    host->numas = calloc((size_t)count + 1, sizeof *host->numas);
    if (!host->numas)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for %d NUMA nodes", host->source, count);
    host->n_numas = count;
    for (int i = 0; i < count; i++) {
        hwloc_obj_t node = numa_at(tree, i);
        host->numas[i].os_index = (int)node->os_index;
        host->numas[i].memory_bytes = node->attr->numanode.local_memory;
        host->memory_bytes += host->numas[i].memory_bytes;
    }
    for (int i = 0; i < count; i++)
        host->numas[i].memory_from = nearest_memory(tree, host, i);
    return LOOM_OK;
}

/* --- PCI ------------------------------------------------------------------------------------------------------------------- */

static bool is_gpu_or_network(int class_id)
{
    return class_id >> 8 == 0x03 || class_id >> 8 == 0x12 || class_id == 0x0200 || class_id == 0x0207;
}

static int index_of_numa(const loom_host *host, int os_index)
{
    for (int i = 0; i < host->n_numas; i++)
        if (os_index >= 0 && host->numas[i].os_index == os_index)
            return i;
    return -1;
}

/* A device that hangs on the whole machine has no known locality; one below a package or NUMA node has that one. */
static int numa_of_parent(hwloc_topology_t tree, const loom_host *host, hwloc_obj_t device)
{
    hwloc_obj_t parent = hwloc_get_non_io_ancestor_obj(tree, device);

    if (!parent || !parent->parent || !parent->nodeset || hwloc_bitmap_weight(parent->nodeset) != 1)
        return -1;
    return index_of_numa(host, hwloc_bitmap_first(parent->nodeset));
}

static loom_status add_pcis(hwloc_topology_t tree, bool this_machine, loom_host *host)
{
    int room = 0;

    for (hwloc_obj_t device = NULL; (device = hwloc_get_next_pcidev(tree, device));)
        room++;
    host->pcis = calloc((size_t)room + 1, sizeof *host->pcis);
    if (!host->pcis)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for %d devices", host->source, room);
    for (hwloc_obj_t device = NULL; (device = hwloc_get_next_pcidev(tree, device));) {
        const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
        if (!is_gpu_or_network(pci->class_id))
            continue;
        loom_host_pci *entry = &host->pcis[host->n_pcis++];
        snprintf(entry->address, sizeof entry->address, "%04x:%02x:%02x.%01x", (unsigned)pci->domain, pci->bus, pci->dev, pci->func);
        snprintf(entry->name, sizeof entry->name, "%s", device->name ? device->name : "");
        entry->class_id = pci->class_id;
        entry->numa = this_machine ? index_of_numa(host, loom_numa_of_pci(NULL, entry->address)) : numa_of_parent(tree, host, device);
    }
    return LOOM_OK;
}

/* --- the whole ------------------------------------------------------------------------------------------------------------- */

static void note_cpu_name(hwloc_topology_t tree, loom_host *host)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(tree, HWLOC_OBJ_PACKAGE, 0);
    const char *name = hwloc_obj_get_info_by_name(package ? package : hwloc_get_root_obj(tree), "CPUModel");

    snprintf(host->cpu, sizeof host->cpu, "%s", name ? name : "");
}

/* Our own cgroup's quota, or that of the one a container shows as root: the smaller. */
static loom_figure own_cpu_quota(void)
{
    char folder[4096 + 16], path[4096];
    loom_figure quota = loom_cpu_quota_of("/sys/fs/cgroup");
    FILE *file = fopen("/proc/self/cgroup", "re");

    while (file && fgets(path, sizeof path, file)) {
        path[strcspn(path, "\n")] = '\0';
        if (strncmp(path, "0::", 3) != 0)
            continue;
        snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", path + 3);
        loom_figure own = loom_cpu_quota_of(folder);
        if (loom_known(own) && (!loom_known(quota) || own.value < quota.value))
            quota = own;
    }
    if (file)
        fclose(file);
    return quota;
}

static loom_status fill_host(hwloc_topology_t tree, bool this_machine, loom_host *host)
{
    loom_status status;

    host->levels = hwloc_topology_get_depth(tree);
    host->packages = hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_PACKAGE);
    host->cpu_quota = this_machine ? own_cpu_quota() : loom_unknown();
    note_cpu_name(tree, host);
    LOOM_TRY(add_numas(tree, host));
    LOOM_TRY(add_cores(tree, this_machine, host));
    LOOM_TRY(add_pcis(tree, this_machine, host));
    return LOOM_OK;

fail:
    return status;
}
