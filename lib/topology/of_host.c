/* The topology of one host, from what hwloc and NVML say. */
#include <rankloom/host.h>

#include "core/settings.h"
#include "core/try.h"
#include "topology/build.h"
#include "topology/catalogue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void loom_gpus_free(loom_gpus *gpus)
{
    if (!gpus)
        return;
    free(gpus->gpus);
    free(gpus->wires);
    free(gpus);
}

static bool is_network(const loom_host_pci *pci)
{
    return pci->class_id == 0x0200 || pci->class_id == 0x0207;
}

/* Cores, memory, NUMA nodes and cards of the host. */
static void shape_host(const loom_host *host, loom_host_shape *shape)
{
    shape->cores = host->n_cores;
    shape->threads = host->n_threads;
    shape->memory_bytes = (loom_figure){(double)host->memory_bytes, LOOM_ORIGIN_READ};
    shape->numas = host->n_numas < LOOM_MAX_NODE_DEVICES ? host->n_numas : LOOM_MAX_NODE_DEVICES;
    for (int i = 0; i < shape->numas; i++)
        shape->numa[i] = (loom_numa){.os_index = host->numas[i].os_index,
                                     .cores = host->numas[i].cores,
                                     .threads = host->numas[i].threads,
                                     .memory_bytes = {(double)host->numas[i].memory_bytes, LOOM_ORIGIN_READ}};
    for (int i = 0; i < host->n_pcis && shape->nics < LOOM_MAX_NODE_DEVICES; i++)
        if (is_network(&host->pcis[i]))
            shape->nic_numa[shape->nics++] = host->pcis[i].numa;
}

static int numa_index(const loom_host_shape *shape, int os_index)
{
    for (int i = 0; i < shape->numas; i++)
        if (os_index >= 0 && shape->numa[i].os_index == os_index)
            return i;
    return -1;
}

/* --- ranks on cores --------------------------------------------------------------------------------------------------------- */

static int numas_with_cores(const loom_host *host)
{
    int count = 0;
    for (int i = 0; i < host->n_numas; i++)
        count += host->numas[i].cores > 0;
    return count > 0 ? count : 1;
}

static loom_status shape_cpu_ranks(loom_builder *builder, const loom_host *host, int ranks, loom_host_shape *shape)
{
    loom_chip chip;

    if (ranks == 0)
        ranks = numas_with_cores(host);
    if (ranks > LOOM_MAX_NODE_DEVICES)
        return loom_fail(LOOM_E_INVALID, "%d ranks on one host, at most %d", ranks, LOOM_MAX_NODE_DEVICES);
    loom_chip_blank("cpu", LOOM_CHIP_CPU, &chip);
    snprintf(chip.label, sizeof chip.label, "%.47s", host->cpu[0] ? host->cpu : "cpu");
    chip.link_domain = ranks;
    chip.memory_bytes = (loom_figure){(double)(host->memory_bytes / (uint64_t)ranks), LOOM_ORIGIN_READ};
    int index;
    loom_status status = loom_build_chip(builder, &chip, &index);
    if (status < 0)
        return status;
    shape->devices = ranks;
    for (int rank = 0; rank < ranks; rank++) {
        loom_core_share share;
        status = loom_host_share_cores(host, ranks, rank, NULL, &share);
        if (status < 0)
            return status;
        shape->chip[rank] = index;
        shape->group[rank] = 0; /* shared memory joins them all */
        shape->device_numa[rank] = share.numa;
        if (rank == 0 && share.notice[0])
            status = loom_build_notice(builder, "%s", share.notice);
        loom_core_share_clear(&share);
        if (status < 0)
            return status;
    }
    return LOOM_OK;
}

/* --- GPUs ---------------------------------------------------------------------------------------------------------------------- */

/* The catalogue's entry with what NVML read; a card the catalogue does not know has its memory and links only. */
static void chip_of_gpu(const loom_gpu *gpu, loom_chip *chip)
{
    char label[80];

    if (loom_chip_find(gpu->name, chip) != LOOM_OK) {
        snprintf(label, sizeof label, "%s %.0fGB", gpu->name[0] ? gpu->name : "GPU", (double)gpu->memory_bytes / 1e9 + 1);
        if (loom_chip_find(label, chip) != LOOM_OK)
            loom_chip_blank(LOOM_NAMELESS_CHIP, LOOM_CHIP_GPU, chip);
    }
    snprintf(chip->label, sizeof chip->label, "%.47s", gpu->name);
    if (gpu->memory_bytes > 0)
        chip->memory_bytes = (loom_figure){(double)gpu->memory_bytes, LOOM_ORIGIN_READ};
    if (gpu->nvlink_bandwidth > 0) {
        chip->link_bandwidth = (loom_figure){gpu->nvlink_bandwidth, LOOM_ORIGIN_READ};
        chip->peer_bandwidth =
            loom_known(chip->peer_bandwidth) ? loom_figure_min(chip->peer_bandwidth, chip->link_bandwidth) : chip->link_bandwidth;
    }
    if (gpu->parent >= 0)
        chip->link_bandwidth = chip->peer_bandwidth = loom_unknown(); /* a partition has no link of its own */
}

static loom_status shape_gpus(loom_builder *builder, const loom_gpus *gpus, const loom_visible *visible, loom_host_shape *shape,
                              loom_wire *wires)
{
    int count = visible->count;

    shape->devices = count;
    shape->wires = wires;
    for (int i = 0; i < count; i++) {
        const loom_gpu *gpu = &gpus->gpus[visible->gpu[i]];
        loom_chip chip;

        chip_of_gpu(gpu, &chip);
        loom_status status = loom_build_chip(builder, &chip, &shape->chip[i]);
        if (status < 0)
            return status;
        shape->device_numa[i] = numa_index(shape, gpu->numa);
        for (int j = 0; j < count; j++)
            wires[i * count + j] =
                gpus->wires ? gpus->wires[visible->gpu[i] * gpus->count + visible->gpu[j]] : (loom_wire){LOOM_PATH_UNKNOWN, 0};
    }
    loom_group_by_nvlink(wires, count, shape->group);
    loom_build_topology(builder)->peer_access = !visible->partitioned;
    return visible->notice[0] ? loom_build_notice(builder, "%s", visible->notice) : LOOM_OK;
}

/* Said once for all devices: unknown locality is no index and pins nothing. */
static loom_status note_locality(loom_builder *builder, const loom_host_shape *shape)
{
    int unknown = 0;

    for (int i = 0; i < shape->devices; i++)
        unknown += shape->device_numa[i] < 0;
    for (int i = 0; i < shape->nics; i++)
        unknown += shape->nic_numa[i] < 0;
    if (unknown == 0)
        return LOOM_OK;
    return loom_build_notice(builder,
                             "locality of %d device%s is unknown (NUMA node -1): the host counts as one place, nothing is pinned for it",
                             unknown, unknown == 1 ? "" : "s");
}

/* --- the whole --------------------------------------------------------------------------------------------------------------------- */

static loom_status fill(loom_builder *builder, const loom_host *host, const loom_gpus *gpus, const loom_visible *visible, int cpu_ranks,
                        loom_host_shape *shape)
{
    loom_wire *wires = calloc((size_t)visible->count * (size_t)visible->count + 1, sizeof *wires);
    loom_status status = LOOM_OK;

    if (!wires)
        return loom_fail(LOOM_E_MEMORY, "no memory for the links of %d GPUs", visible->count);
    shape_host(host, shape);
    if (visible->count > 0)
        LOOM_TRY(shape_gpus(builder, gpus, visible, shape, wires));
    else
        LOOM_TRY(shape_cpu_ranks(builder, host, cpu_ranks, shape));
    LOOM_TRY(note_locality(builder, shape));
    loom_choose_nics(shape->devices, shape->device_numa, shape->nics, shape->nic_numa, shape->device_nic);
    LOOM_TRY(loom_build_host(builder, shape, 0, false));

fail:
    free(wires);
    return status;
}

loom_status loom_topology_of_host(const loom_host *host, const loom_gpus *gpus, const char *visible_devices, int cpu_ranks,
                                  loom_topology **topology)
{
    loom_host_shape *shape = NULL;
    loom_builder *builder = NULL;
    loom_visible visible = {0};
    loom_status status;

    LOOM_TRY(loom_visible_devices(visible_devices, gpus ? gpus->gpus : NULL, gpus ? gpus->count : 0, &visible));
    if (visible.count > 0 && visible.gpu[0] < 0) {
        status = loom_fail(LOOM_E_INVALID, "CUDA_VISIBLE_DEVICES=%s names a GPU partition that NVML does not list here", visible_devices);
        goto fail;
    }
    LOOM_TRY(loom_build_open(host->source, &builder));
    if (!(shape = loom_host_shape_new())) {
        status = loom_fail(LOOM_E_MEMORY, "no memory for a host");
        goto fail;
    }
    LOOM_TRY(fill(builder, host, gpus, &visible, cpu_ranks, shape));
    status = loom_build_finish(builder, topology);
    builder = NULL;

fail:
    loom_build_close(builder);
    loom_visible_clear(&visible);
    free(shape);
    return status;
}

loom_status loom_topology_this_host(int cpu_ranks, loom_topology **topology)
{
    loom_host *host = NULL;
    loom_gpus *gpus = NULL;
    loom_status status;

    LOOM_TRY(loom_host_read(NULL, &host));
    LOOM_TRY(loom_gpus_read(NULL, &gpus));
    LOOM_TRY(loom_topology_of_host(host, gpus, loom_setting_visible_devices(), cpu_ranks, topology));

fail:
    loom_gpus_free(gpus);
    loom_host_free(host);
    return status;
}
