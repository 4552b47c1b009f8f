/* GPUs and their links from NVML, opened at run time: no link dependency, and a machine without it simply has no GPUs. */
#include <rankloom/host.h>

#include "topology/nvml.h"

#include <dlfcn.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GPUS = 256 };

/* The library's functions; one that an old driver lacks is NULL, and what it would tell stays unknown. */
typedef struct nvml {
    void *library;
#define FIELD(name, arguments) int(*name) arguments;
    NVML_FUNCTIONS(FIELD)
#undef FIELD
} nvml;

static void find_functions(nvml *n)
{
    /* ISO C has no conversion from object to function pointers; POSIX promises that the bits fit. */
#define FIND(name, arguments) *(void **)&n->name = dlsym(n->library, #name);
    NVML_FUNCTIONS(FIND)
#undef FIND
}

/* "00000000:3B:00.0" and "0000:3b:00.0" are one address: four digits of domain, lower case. */
static void copy_address(const char *from, char to[20])
{
    const char *colon = strchr(from, ':');
    size_t domain = colon ? (size_t)(colon - from) : 0;

    snprintf(to, 20, "%.19s", domain > 4 ? from + domain - 4 : from);
    for (; *to; to++)
        *to = (char)tolower((unsigned char)*to);
}

/* --- one GPU ---------------------------------------------------------------------------------------------------------------- */

static void describe(const nvml *n, nvmlDevice_t device, loom_gpu *gpu)
{
    nvmlPciInfo_t pci = {0};
    nvmlMemory_t memory = {0};

    if (n->nvmlDeviceGetName)
        n->nvmlDeviceGetName(device, gpu->name, sizeof gpu->name);
    if (n->nvmlDeviceGetUUID)
        n->nvmlDeviceGetUUID(device, gpu->uuid, sizeof gpu->uuid);
    if (n->nvmlDeviceGetMemoryInfo && n->nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS)
        gpu->memory_bytes = memory.total;
    if (n->nvmlDeviceGetPciInfo_v3 && n->nvmlDeviceGetPciInfo_v3(device, &pci) == NVML_SUCCESS) {
        copy_address(pci.busId, gpu->pci);
        gpu->numa = loom_numa_of_pci(NULL, gpu->pci);
    }
}

/* B/s of one link, one direction, by its generation. */
static double link_bandwidth(unsigned int version)
{
    return version >= 5 ? 50e9 : version >= 2 ? 25e9 : 20e9;
}

/* Counts active links; those to a switch reach every GPU that has some too, those to a GPU only that one. */
static void count_links(const nvml *n, nvmlDevice_t device, const loom_gpu *gpus, int count, loom_gpu *gpu, int *to_switch, int *to_gpu)
{
    for (unsigned int link = 0; link < NVML_MAX_LINKS; link++) {
        nvmlPciInfo_t remote = {0};
        unsigned int version = 0;
        int active = 0, type = NVML_REMOTE_SWITCH;
        char address[20];

        if (n->nvmlDeviceGetNvLinkState(device, link, &active) != NVML_SUCCESS || !active)
            continue;
        gpu->nvlinks++;
        if (n->nvmlDeviceGetNvLinkVersion && n->nvmlDeviceGetNvLinkVersion(device, link, &version) == NVML_SUCCESS)
            gpu->nvlink_bandwidth += link_bandwidth(version);
        if (n->nvmlDeviceGetNvLinkRemoteDeviceType)
            n->nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &type);
        bool told = n->nvmlDeviceGetNvLinkRemotePciInfo_v2 && n->nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &remote) == NVML_SUCCESS;
        if (type != NVML_REMOTE_GPU || !told) {
            ++*to_switch;
            continue;
        }
        copy_address(remote.busId, address);
        for (int i = 0; i < count; i++) /* joined by address, never by position */
            to_gpu[i] += strcmp(gpus[i].pci, address) == 0;
    }
}

/* --- how they are joined ------------------------------------------------------------------------------------------------------- */

static loom_wire common_path(const nvml *n, nvmlDevice_t a, nvmlDevice_t b)
{
    static const struct {
        int level;
        loom_path path;
    } levels[] = {{NVML_LEVEL_INTERNAL, LOOM_PATH_PIX},   {NVML_LEVEL_SINGLE, LOOM_PATH_PIX}, {NVML_LEVEL_MULTIPLE, LOOM_PATH_PXB},
                  {NVML_LEVEL_HOSTBRIDGE, LOOM_PATH_PHB}, {NVML_LEVEL_NODE, LOOM_PATH_NODE},  {NVML_LEVEL_SYSTEM, LOOM_PATH_SYS}};
    int level;

    if (n->nvmlDeviceGetTopologyCommonAncestor && n->nvmlDeviceGetTopologyCommonAncestor(a, b, &level) == NVML_SUCCESS)
        for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
            if (levels[i].level == level)
                return (loom_wire){(uint8_t)levels[i].path, 0};
    return (loom_wire){LOOM_PATH_UNKNOWN, 0};
}

static loom_status join(const nvml *n, const nvmlDevice_t *devices, loom_gpus *found)
{
    int count = found->count, to_switch[MAX_GPUS] = {0};
    int *to_gpu = calloc((size_t)count * (size_t)count + 1, sizeof *to_gpu);

    found->wires = calloc((size_t)count * (size_t)count + 1, sizeof *found->wires);
    if (!to_gpu || !found->wires) {
        free(to_gpu);
        return loom_fail(LOOM_E_MEMORY, "no memory for the links of %d GPUs", count);
    }
    for (int i = 0; i < count && n->nvmlDeviceGetNvLinkState; i++)
        if (found->gpus[i].parent < 0)
            count_links(n, devices[i], found->gpus, count, &found->gpus[i], &to_switch[i], to_gpu + i * count);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            int switched = to_switch[i] < to_switch[j] ? to_switch[i] : to_switch[j];
            int links = to_gpu[i * count + j] + switched;
            bool partitions = found->gpus[i].parent >= 0 || found->gpus[j].parent >= 0;
            found->wires[i * count + j] = i == j       ? (loom_wire){LOOM_PATH_SELF, 0}
                                          : partitions ? (loom_wire){LOOM_PATH_UNKNOWN, 0}
                                          : links > 0  ? (loom_wire){LOOM_PATH_NVLINK, (uint8_t)links}
                                                       : common_path(n, devices[i], devices[j]);
        }
    free(to_gpu);
    return LOOM_OK;
}

/* --- the list -------------------------------------------------------------------------------------------------------------------- */

static void add_partitions(const nvml *n, nvmlDevice_t device, int parent, loom_gpus *found, nvmlDevice_t *devices)
{
    unsigned int current = 0, pending = 0, most = 0;
    nvmlDevice_t partition;

    if (!n->nvmlDeviceGetMigMode || n->nvmlDeviceGetMigMode(device, &current, &pending) != NVML_SUCCESS || !current ||
        n->nvmlDeviceGetMaxMigDeviceCount(device, &most) != NVML_SUCCESS)
        return;
    for (unsigned int i = 0; i < most && found->count < MAX_GPUS; i++) {
        if (n->nvmlDeviceGetMigDeviceHandleByIndex(device, i, &partition) != NVML_SUCCESS)
            continue;
        loom_gpu *gpu = &found->gpus[found->count];
        *gpu = (loom_gpu){.index = found->gpus[parent].index, .numa = found->gpus[parent].numa, .parent = parent};
        memcpy(gpu->pci, found->gpus[parent].pci, sizeof gpu->pci);
        describe(n, partition, gpu);
        gpu->numa = found->gpus[parent].numa;
        devices[found->count++] = partition;
    }
}

static loom_status list_gpus(const nvml *n, loom_gpus *found)
{
    nvmlDevice_t devices[MAX_GPUS];
    unsigned int count = 0;

    if (n->nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS)
        count = 0;
    found->gpus = calloc(MAX_GPUS, sizeof *found->gpus);
    if (!found->gpus)
        return loom_fail(LOOM_E_MEMORY, "no memory for a list of GPUs");
    for (unsigned int i = 0; i < count && found->count < MAX_GPUS; i++) {
        nvmlDevice_t device;
        if (n->nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_SUCCESS)
            continue; /* fallen off the bus, or not ours */
        int position = found->count++;
        found->gpus[position] = (loom_gpu){.index = (int)i, .numa = -1, .parent = -1};
        describe(n, device, &found->gpus[position]);
        devices[position] = device;
        add_partitions(n, device, position, found, devices);
    }
    if (n->nvmlSystemGetDriverVersion)
        n->nvmlSystemGetDriverVersion(found->driver, sizeof found->driver);
    if (found->count == 0)
        snprintf(found->note, sizeof found->note, "NVML finds no GPU");
    return join(n, devices, found);
}

loom_status loom_gpus_read(const char *library, loom_gpus **gpus)
{
    nvml n = {0};
    loom_status status = LOOM_OK;
    loom_gpus *found = calloc(1, sizeof *found);

    if (!found)
        return loom_fail(LOOM_E_MEMORY, "no memory for a list of GPUs");
    n.library = dlopen(library ? library : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n.library)
        find_functions(&n);
    if (!n.library)
        snprintf(found->note, sizeof found->note, "no NVML: %s", dlerror());
    else if (!n.nvmlInit_v2 || !n.nvmlShutdown || !n.nvmlDeviceGetCount_v2 || !n.nvmlDeviceGetHandleByIndex_v2)
        snprintf(found->note, sizeof found->note, "NVML of this driver is too old");
    else if (n.nvmlInit_v2() != NVML_SUCCESS)
        snprintf(found->note, sizeof found->note, "NVML is there, but does not start: no driver, or no permission");
    else {
        status = list_gpus(&n, found);
        n.nvmlShutdown();
    }
    if (n.library)
        dlclose(n.library);
    if (status < 0)
        loom_gpus_free(found);
    else
        *gpus = found;
    return status;
}
