/* This host (or one described by an hwloc file): the cores that ranks may use and how they share them, and the GPUs they see. */
#ifndef RANKLOOM_HOST_H
#define RANKLOOM_HOST_H

#include <rankloom/topology.h>
LOOM_BEGIN

/* --- cores and memory -------------------------------------------------------------------------------------------------
 * Counts and pinning use what this process is allowed (cgroup, affinity); sizes of masks use everything the machine has. */
typedef struct loom_host_core {
    int numa;                  /* index into numas of the memory next to it; when that node has no memory still that node */
    int first_thread, threads; /* allowed hardware threads: thread_os[first_thread ...] */
} loom_host_core;

typedef struct loom_host_numa {
    int os_index;
    int cores, threads;    /* allowed */
    uint64_t memory_bytes; /* 0: a node with cores only */
    int memory_from;       /* the node whose memory its cores use: itself, or the nearest that has some; -1: no node has */
} loom_host_numa;

typedef struct loom_host_pci {
    char address[20]; /* "0000:04:00.0" */
    char name[64];    /* "" when unknown */
    int class_id;     /* PCI class, 0x0302 a GPU without a screen, 0x0200 Ethernet, 0x0207 InfiniBand */
    int numa;         /* index into numas; -1: unknown */
} loom_host_pci;

typedef struct loom_host {
    char source[128]; /* "this host", or the file */
    char cpu[96];     /* model name, "" unknown */
    int levels;       /* of the tree of caches and cores; NUMA nodes are not among them */
    int packages;
    int all_threads;    /* that exist, allowed or not */
    int highest_thread; /* greatest number of an existing thread: masks need one bit more */
    int n_threads, n_cores, n_numas, n_pcis;
    int *thread_os; /* [n_threads] operating system's numbers of allowed threads, core after core */
    loom_host_core *cores;
    loom_host_numa *numas;
    loom_host_pci *pcis; /* GPUs and network cards */
    uint64_t memory_bytes;
    loom_figure cpu_quota; /* cores' worth of time that the cgroup grants; unknown: no limit, or not this machine */
} loom_host;

/* `what` NULL: this machine; "synthetic:numa:2 core:4 pu:2": an hwloc description; else the path of an hwloc XML file. */
LOOM_API loom_status loom_host_read(const char *what, loom_host **host);
LOOM_API loom_status loom_host_parse_xml(const char *source, const char *text, size_t bytes, loom_host **host);
LOOM_API void loom_host_free(loom_host *host); /* accepts NULL */

/* The CPU quota of a cgroup folder in cores (1.5), or unknown when there is none. */
LOOM_API loom_figure loom_cpu_quota_of(const char *cgroup_folder);

/* What one rank of `local_ranks` on the host computes with. */
typedef struct loom_core_share {
    int threads;  /* of compute: max(1, allowed cores / local ranks), or what OMP_NUM_THREADS asks for */
    int n_pinned; /* operating system's thread numbers it is bound to: whole cores of its own while there are enough */
    int *pinned;
    int numa;         /* index of the NUMA node of its first core, -1 unknown */
    char notice[160]; /* "" or what to tell once, on local rank 0: too many ranks, a thread count that somebody set */
} loom_core_share;

/* `omp_num_threads`: the launcher's or user's OMP_NUM_THREADS, NULL or "" when unset; honoured, and reported in the notice when it
 * differs from the share. LOOM_E_INVALID when it is no positive number. */
LOOM_API loom_status loom_host_share_cores(const loom_host *host, int local_ranks, int local_rank, const char *omp_num_threads,
                                           loom_core_share *share);
/* The allowed threads next to a NUMA node (operating system's number): where a rank that drives a GPU there belongs. Unknown (-1), or a
 * node without cores of ours: n_pinned 0, nothing is pinned, and the notice says so. `threads` is the node's cores by the `sharers` that
 * use it. */
LOOM_API loom_status loom_host_cores_near(const loom_host *host, int numa_os, int sharers, loom_core_share *share);
LOOM_API void loom_core_share_clear(loom_core_share *share);
/* Binds the calling thread (and threads it makes) to the share. LOOM_E_IO when the system refuses. */
LOOM_API loom_status loom_host_bind(const loom_host *host, const loom_core_share *share);

/* --- locality of PCI devices ---------------------------------------------------------------------------------------------- */
/* The text of a sysfs numa_node file: a number, or -1 for "-1", "", NULL and anything else. Never to be used as an index unless >= 0. */
LOOM_API int loom_numa_of_text(const char *text);
/* NUMA node (operating system's number) of a PCI address under `root` ("/sys/bus/pci/devices" when NULL), or -1. */
LOOM_API int loom_numa_of_pci(const char *root, const char *address);

/* --- GPUs ---------------------------------------------------------------------------------------------------------------------- */
typedef struct loom_gpu {
    int index;     /* NVML's, in the order of PCI addresses */
    char pci[20];  /* "0000:10:00.0" */
    char uuid[96]; /* "GPU-…" or, for a partition, "MIG-…" */
    char name[64];
    uint64_t memory_bytes;
    int numa;                /* operating system's number, -1: unknown */
    int parent;              /* a partition's GPU in the same list, -1: a whole GPU */
    int nvlinks;             /* active links */
    double nvlink_bandwidth; /* B/s of all active links, one direction; 0: unknown */
} loom_gpu;

typedef struct loom_gpus {
    int count;
    loom_gpu *gpus;
    loom_wire *wires; /* [count * count] */
    char driver[32];
    char note[160]; /* why there are none: "no NVML: libnvidia-ml.so.1: cannot open shared object file" */
} loom_gpus;

/* Asks NVML, opened at run time (`library` NULL: libnvidia-ml.so.1). No library or no GPU is no failure: count 0 and a note. */
LOOM_API loom_status loom_gpus_read(const char *library, loom_gpus **gpus);
LOOM_API void loom_gpus_free(loom_gpus *gpus); /* accepts NULL */

/* What CUDA_VISIBLE_DEVICES leaves of the GPUs, in the order in which the runtime numbers them. */
typedef struct loom_visible {
    int count;
    int *gpu; /* [count] position in the list of GPUs (a partition's entry when partitions are listed there, else its GPU, else -1) */
    bool partitioned; /* MIG: the runtime opens one partition only; no peer access, no NVLink */
    char notice[200]; /* "" or what to tell: entries that were dropped and why, partitions that need a process environment of their own */
} loom_visible;

/* `list` as in the variable: numbers, "GPU-…" (also a beginning that fits only one), "MIG-…"; NULL: all. An entry that names none ends the
 * list, as in the runtime; so does one that was there before. Devices are found by number in PCI order or by id, never by position in
 * anything else. */
LOOM_API loom_status loom_visible_devices(const char *list, const loom_gpu *gpus, int count, loom_visible *visible);
LOOM_API void loom_visible_clear(loom_visible *visible);

/* --- a topology of it --------------------------------------------------------------------------------------------------------- */
/* One node: the visible GPUs when there are any, else `cpu_ranks` ranks (0: one a NUMA node) on the allowed cores. */
LOOM_API loom_status loom_topology_of_host(const loom_host *host, const loom_gpus *gpus, const char *visible_devices, int cpu_ranks,
                                           loom_topology **topology);
/* The same of this machine: hwloc, NVML and CUDA_VISIBLE_DEVICES. */
LOOM_API loom_status loom_topology_this_host(int cpu_ranks, loom_topology **topology);

LOOM_END
#endif
