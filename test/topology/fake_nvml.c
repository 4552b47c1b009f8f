/* A stand-in for NVIDIA's library: four GPUs, two of them bridged, one cut in two partitions. */
#include "topology/nvml.h"

#include <stdio.h>
#include <string.h>

enum { GPUS = 4, PARTITIONS = 2, BRIDGED_LINKS = 4 };
static const char *const addresses[GPUS] = {"00000000:1A:00.0", "00000000:3B:00.0", "00000000:5C:00.0", "00000001:7D:00.0"};

/* Handles are 1 to GPUS, and from 101 on for partitions. */
static int number(nvmlDevice_t device)
{
    return (int)(long)device - 1;
}

#define DECLARE(name, arguments) int name arguments;
NVML_FUNCTIONS(DECLARE)

int nvmlInit_v2(void)
{
    return NVML_SUCCESS;
}

int nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned int bytes)
{
    snprintf(text, bytes, "999.1");
    return NVML_SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = GPUS;
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    *device = (nvmlDevice_t)(long)(index + 1);
    return NVML_SUCCESS;
}

int nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int bytes)
{
    (void)device;
    snprintf(text, bytes, "NVIDIA H100 80GB HBM3");
    return NVML_SUCCESS;
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int bytes)
{
    snprintf(text, bytes, "%s-0000-%d", number(device) >= 100 ? "MIG" : "GPU", number(device));
    return NVML_SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    if (number(device) >= GPUS)
        return 1;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "%s", addresses[number(device)]);
    return NVML_SUCCESS;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    memory->total = (number(device) >= 100 ? 20ull : 80ull) << 30;
    return NVML_SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level)
{
    (void)a;
    (void)b;
    *level = NVML_LEVEL_SYSTEM;
    return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *active)
{
    *active = number(device) < 2 && link < BRIDGED_LINKS;
    return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    (void)device;
    (void)link;
    *version = 4;
    return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    (void)link;
    return nvmlDeviceGetPciInfo_v3((nvmlDevice_t)(long)(2 - number(device)), pci);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, int *type)
{
    (void)device;
    (void)link;
    *type = NVML_REMOTE_GPU;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    *current = *pending = number(device) == GPUS - 1;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    (void)device;
    *count = 7;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *partition)
{
    (void)device;
    *partition = (nvmlDevice_t)(long)(101 + index);
    return index < PARTITIONS ? NVML_SUCCESS : 1;
}
