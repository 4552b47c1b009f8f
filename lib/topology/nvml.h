/* The few functions of NVML that we ask, declared here so that no header of NVIDIA's is needed. Names, types and values are NVML's. */
#ifndef LOOM_TOPOLOGY_NVML_H
#define LOOM_TOPOLOGY_NVML_H

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct nvmlPciInfo_st {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct nvmlMemory_st {
    unsigned long long total, free, used;
} nvmlMemory_t;

enum { NVML_SUCCESS = 0, NVML_MAX_LINKS = 18, NVML_REMOTE_GPU = 0, NVML_REMOTE_SWITCH = 2 };

/* nvmlGpuTopologyLevel_t */
enum {
    NVML_LEVEL_INTERNAL = 0,
    NVML_LEVEL_SINGLE = 10,
    NVML_LEVEL_MULTIPLE = 20,
    NVML_LEVEL_HOSTBRIDGE = 30,
    NVML_LEVEL_NODE = 40,
    NVML_LEVEL_SYSTEM = 50
};

#define NVML_FUNCTIONS(X)                                                                                                                  \
    X(nvmlInit_v2, (void))                                                                                                                 \
    X(nvmlShutdown, (void))                                                                                                                \
    X(nvmlSystemGetDriverVersion, (char *text, unsigned int bytes))                                                                        \
    X(nvmlDeviceGetCount_v2, (unsigned int *count))                                                                                        \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device))                                                           \
    X(nvmlDeviceGetName, (nvmlDevice_t device, char *text, unsigned int bytes))                                                            \
    X(nvmlDeviceGetUUID, (nvmlDevice_t device, char *text, unsigned int bytes))                                                            \
    X(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t * pci))                                                                 \
    X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory))                                                               \
    X(nvmlDeviceGetTopologyCommonAncestor, (nvmlDevice_t a, nvmlDevice_t b, int *level))                                                   \
    X(nvmlDeviceGetNvLinkState, (nvmlDevice_t device, unsigned int link, int *active))                                                     \
    X(nvmlDeviceGetNvLinkVersion, (nvmlDevice_t device, unsigned int link, unsigned int *version))                                         \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci))                                   \
    X(nvmlDeviceGetNvLinkRemoteDeviceType, (nvmlDevice_t device, unsigned int link, int *type))                                            \
    X(nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned int *current, unsigned int *pending))                                           \
    X(nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned int *count))                                                          \
    X(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned int index, nvmlDevice_t *partition))

#endif
