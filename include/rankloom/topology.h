/* The topology: which devices there are, where they sit, and what joins them. Plain data, read by planner, mesh and transports.
 *
 * A device stands in a node (one host), in a fast domain (devices that NVLink, xGMI or shared memory joins: may be smaller than a node,
 * a node, or span many nodes, as in an NVL72 rack), and its node stands in a rack (nodes under one leaf switch). Two devices talk over
 * the first of domain, node, rack, cluster that holds both. */
#ifndef RANKLOOM_TOPOLOGY_H
#define RANKLOOM_TOPOLOGY_H

#include <rankloom/dtype.h>
#include <rankloom/status.h>
LOOM_BEGIN

/* --- figures ---------------------------------------------------------------------------------------------------------
 * Every number carries where it comes from. Unknown is a value of its own: `value` is then NaN, printed as "unknown", and whoever needs
 * a number has to decide (loom_figure_or), so that nobody divides by a zero that only meant "not told". */
typedef enum loom_origin {
    LOOM_ORIGIN_UNKNOWN,
    LOOM_ORIGIN_ASSUMED,  /* the catalogue's default for such a device */
    LOOM_ORIGIN_READ,     /* the machine says so: hwloc, NVML, a link matrix */
    LOOM_ORIGIN_GIVEN,    /* a person's file says so */
    LOOM_ORIGIN_MEASURED, /* `rankloom probe` timed it */
    LOOM_ORIGINS,
} loom_origin;
LOOM_API const char *loom_origin_name(loom_origin origin); /* "unknown", "assumed", "read", "given", "measured" */

typedef struct loom_figure {
    double value; /* NaN when unknown */
    loom_origin origin;
} loom_figure;
LOOM_API loom_figure loom_unknown(void);
LOOM_API loom_figure loom_assumed(double value);
LOOM_API loom_figure loom_given(double value);
LOOM_API bool loom_known(loom_figure figure);
LOOM_API double loom_figure_or(loom_figure figure, double fallback);
LOOM_API loom_figure loom_figure_min(loom_figure a, loom_figure b); /* unknown if either is; else the smaller, with its origin */

/* --- chips: what one kind of device can do ------------------------------------------------------------------------------ */
typedef enum loom_math { LOOM_MATH_F32, LOOM_MATH_TF32, LOOM_MATH_16, LOOM_MATH_8, LOOM_MATH_4, LOOM_MATHS } loom_math;
LOOM_API const char *loom_math_name(loom_math math); /* "f32", "tf32", "bf16", "fp8", "fp4" */
LOOM_API loom_math loom_math_of(loom_dtype dtype);   /* the unit that multiplies such elements */

typedef enum loom_chip_class { LOOM_CHIP_GPU, LOOM_CHIP_TPU, LOOM_CHIP_CPU, LOOM_CHIP_CLASSES } loom_chip_class;

/* Time of a GEMM m x k by k x n: max(2mnk (1 + m0/m + n0/n + k0/k) / (share * peak), bytes / (reach * memory bandwidth)) + start_s.
 * m0, n0, k0 are elements. */
typedef struct loom_gemm_law {
    loom_figure share, m0, n0, k0, start_s;
} loom_gemm_law;

typedef struct loom_chip {
    char name[48];  /* the catalogue's name, or the label when the catalogue has none like it */
    char label[48]; /* as the file or the machine called it */
    loom_chip_class kind;
    loom_figure peak[LOOM_MATHS];     /* dense flop/s */
    loom_figure memory_bytes;         /* what a program sees; from the label when that is all we know */
    loom_figure memory_nominal_bytes; /* what the label says, 1e9 a GB */
    loom_figure memory_bandwidth;     /* B/s */
    loom_figure memory_reach;         /* share of it that a copy reaches */
    char link[32];                    /* "NVLink4", "PCIe", "xGMI full mesh", "shared memory" */
    loom_figure link_bandwidth;       /* scale-up link, B/s, one direction, all links of a device together */
    loom_figure peer_bandwidth;       /* what one pair of devices gets of it: less than all on a full mesh or torus */
    int link_domain;                  /* devices that usually reach each other at that speed; 1: none */
    loom_figure host_bandwidth;       /* PCIe or C2C, B/s, one direction */
    loom_figure nic_bandwidth;        /* usual network share, B/s, one direction */
    loom_figure power_w;
    loom_figure price_per_hour; /* of one device; unknown unless given */
    char origin[160];           /* where the assumed figures come from */
    loom_gemm_law gemm[LOOM_MATHS];
} loom_chip;

/* The catalogue entry for `name`, leniently: case, punctuation and order of parts do not matter; "H100", "h100-80g", "NVIDIA H100 80GB
 * HBM3", "gb200-186g" work. A label whose last part is a memory size overrides the entry's ("a100-64g"). An unknown name with a memory size
 * ("generic-24g") gives a chip that only has memory: all else unknown. Anything else is LOOM_E_INVALID with the nearest names. */
LOOM_API loom_status loom_chip_find(const char *name, loom_chip *chip);
/* Entry `index` of the catalogue, false past its end. */
LOOM_API bool loom_chip_at(int index, loom_chip *chip);

/* --- the tree -------------------------------------------------------------------------------------------------------------- */
typedef enum loom_level {
    LOOM_LEVEL_SELF,    /* the same device */
    LOOM_LEVEL_DOMAIN,  /* scale-up links */
    LOOM_LEVEL_NODE,    /* inside a host, without them: PCIe and the socket link */
    LOOM_LEVEL_RACK,    /* network, one switch */
    LOOM_LEVEL_CLUSTER, /* network, through the spine */
    LOOM_LEVELS,
} loom_level;
LOOM_API const char *loom_level_name(loom_level level);

/* What holds of a whole level. The bandwidth of domain, rack and cluster comes from chips and NICs; a figure here replaces it. */
typedef struct loom_level_figures {
    loom_figure bandwidth;        /* B/s a device, one direction; unknown: from chips and NICs */
    loom_figure latency_s;        /* of one message, end to end */
    loom_figure oversubscription; /* >= 1; divides the bandwidth of rack and cluster */
} loom_level_figures;

typedef struct loom_numa {
    int node; /* host */
    int os_index;
    int cores, threads;       /* that we may use; a memory-only NUMA node has 0 */
    loom_figure memory_bytes; /* a node with cores only has 0, which is not unknown */
} loom_numa;

typedef struct loom_nic {
    int node;
    int numa;              /* index into numas, -1: unknown */
    int rail;              /* the leaf switch it hangs on when the network has rails, else 0 */
    loom_figure bandwidth; /* B/s, one direction */
    int devices;           /* that share it */
} loom_nic;

typedef struct loom_topo_device {
    int chip;   /* index into chips */
    int node;   /* host */
    int local;  /* index among the devices of its node: CUDA ordinal, local rank before any reordering */
    int domain; /* devices with the same number share scale-up links; a device without such links has a domain of its own */
    int numa;   /* -1: unknown */
    int nic;    /* -1: none, or unknown */
} loom_topo_device;

typedef struct loom_topo_node {
    char name[64]; /* "" : just a number */
    int rack;
    int first_device, devices; /* devices[first_device ...], local 0, 1, ... */
    int first_numa, numas;
    int first_nic, nics;
    int first_wire;     /* into wires, when there are any */
    int cores, threads; /* that ranks may use, all NUMA nodes; 0: unknown */
    loom_figure memory_bytes;
} loom_topo_node;

/* How two devices of a node are joined, as `nvidia-smi topo -m` calls it. */
typedef enum loom_path {
    LOOM_PATH_SELF,
    LOOM_PATH_NVLINK,
    LOOM_PATH_PIX,
    LOOM_PATH_PXB,
    LOOM_PATH_PHB,
    LOOM_PATH_NODE,
    LOOM_PATH_SYS,
    LOOM_PATH_UNKNOWN
} loom_path;
typedef struct loom_wire {
    uint8_t path;  /* loom_path */
    uint8_t links; /* NVLink bricks of this pair, else 0 */
} loom_wire;

/* --- what was measured -------------------------------------------------------------------------------------------------------- */
typedef enum loom_pattern {
    LOOM_PATTERN_ALL_REDUCE,
    LOOM_PATTERN_REDUCE_SCATTER,
    LOOM_PATTERN_ALL_GATHER,
    LOOM_PATTERN_ALL_TO_ALL,
    LOOM_PATTERN_BROADCAST,
    LOOM_PATTERN_SEND,
    LOOM_PATTERNS,
} loom_pattern;
LOOM_API const char *loom_pattern_name(loom_pattern pattern); /* "all_reduce" … */

typedef struct loom_gemm_point {
    int chip;
    loom_math math;
    int64_t m, n, k;
    double seconds;
} loom_gemm_point;

/* bytes: as nccl-tests counts, the larger of send and receive buffer of one rank. */
typedef struct loom_pattern_point {
    loom_pattern pattern;
    loom_level level;     /* the slowest level that the group crosses */
    int ranks, in_domain; /* size; how many members share a fast domain */
    double bytes, seconds;
} loom_pattern_point;

/* Fitted to the points of one pattern and kind of group: seconds = fixed_s + step_s * (ranks - 1) + volume / bandwidth, where volume is the
 * bytes that a rank hands on (2(n-1)/n of the buffer for all_reduce, (n-1)/n for its halves and all_to_all, all of it for send). */
typedef struct loom_pattern_law {
    loom_pattern pattern;
    loom_level level;
    int ranks, in_domain;
    loom_figure fixed_s, step_s, bandwidth;
} loom_pattern_law;

typedef struct loom_topology {
    char name[64];
    char source[128];   /* the file, "this host", … */
    char measured[256]; /* when and how the measured figures were taken; "" if none were */
    int n_chips, n_devices, n_nodes, n_racks, n_domains, n_numas, n_nics;
    loom_chip *chips;
    loom_topo_device *devices; /* by node, then local */
    loom_topo_node *nodes;
    loom_numa *numas;
    loom_nic *nics;
    loom_wire *wires; /* NULL, or a square matrix for each node, node after node: see loom_topology_wire() */
    int *rank_device; /* [n_devices] rank r runs on devices[rank_device[r]]: node after node, domain after domain in a node */
    int period;       /* ranks r and r + period stand alike (a regular cluster); n_devices when nothing repeats */
    bool rails;       /* network rails: in a rack, NICs of equal rail share a switch, others meet in the spine */
    bool peer_access; /* false for GPU partitions (MIG): no two devices reach each other's memory */
    loom_level_figures levels[LOOM_LEVELS];
    int n_gemms, n_points, n_laws;
    loom_gemm_point *gemms;     /* by chip, math, m, n, k */
    loom_pattern_point *points; /* measured */
    loom_pattern_law *laws;     /* fitted to points, or the catalogue's (assumed) */
    int n_notices;
    char (*notices)[160]; /* what a person should be told once: "locality of 3 devices unknown: nothing is pinned" */
} loom_topology;

/* Reads a cluster file: the short `cluster:` form or the exact `topology:` form of docs/topology-files.md (YAML or JSON), hwloc XML,
 * NCCL's topology XML, or the matrix of `nvidia-smi topo -m`. All problems of a YAML file come in one message. */
LOOM_API loom_status loom_topology_load(const char *path, loom_topology **topology);
LOOM_API loom_status loom_topology_parse(const char *source, const char *text, size_t bytes, loom_topology **topology);
LOOM_API void loom_topology_free(loom_topology *topology); /* accepts NULL */
/* Says what the devices of a source without names are (a link matrix, NCCL's XML): the catalogue's figures of `gpu`, marked assumed, where
 * nothing was read. LOOM_E_INVALID when the name means nothing, or when no device lacks one. */
LOOM_API loom_status loom_topology_name_chips(loom_topology *topology, const char *gpu);
/* One cluster of the hosts of `hosts`, in order, in one rack; chips that are equal become one. Levels, measurements left out. */
LOOM_API loom_status loom_topology_join(const loom_topology *const *hosts, int count, loom_topology **topology);
/* The exact form as text; the caller frees it with loom_text_free() of <rankloom/text.h>. */
LOOM_API loom_status loom_topology_write(const loom_topology *topology, char **text);
/* Writes the exact form, which loads back equal (loom_topology_equal: everything but `source`). */
LOOM_API loom_status loom_topology_save(const loom_topology *topology, const char *path);
LOOM_API bool loom_topology_equal(const loom_topology *a, const loom_topology *b);

/* --- asking ------------------------------------------------------------------------------------------------------------------
 * Ranks are 0 … n_devices - 1 in the order of rank_device. */
LOOM_API int loom_topology_ranks(const loom_topology *topology);
LOOM_API int loom_topology_device_of(const loom_topology *topology, int rank);
LOOM_API int loom_topology_node_of(const loom_topology *topology, int rank);
LOOM_API int loom_topology_domain_of(const loom_topology *topology, int rank);
LOOM_API int loom_topology_local_rank(const loom_topology *topology, int rank); /* 0 … devices - 1 on every node */
LOOM_API const loom_chip *loom_topology_chip_of(const loom_topology *topology, int rank);
LOOM_API loom_wire loom_topology_wire(const loom_topology *topology, int device_a, int device_b); /* of one node, else LOOM_PATH_UNKNOWN */
/* Network share of a rank: its NIC divided by the devices that use it. */
LOOM_API loom_figure loom_topology_nic_bandwidth(const loom_topology *topology, int rank);

/* What one message between two ranks meets. */
typedef struct loom_link {
    loom_level level;
    loom_figure bandwidth; /* B/s, one direction */
    loom_figure latency_s;
} loom_link;
LOOM_API loom_link loom_topology_link(const loom_topology *topology, int rank_a, int rank_b);

/* What a collective over a group meets. */
typedef struct loom_group_link {
    int ranks;
    int in_domain, in_node; /* the fewest members that share a member's domain, node */
    int domains, nodes;     /* how many the group touches */
    loom_path path;         /* the slowest wire between neighbours when the group stays in a node and its wires are known */
    loom_level level;       /* the slowest that the ring crosses */
    loom_figure bandwidth;  /* B/s that each rank of the ring can hand on: min(scale-up, in_domain * network share) */
    loom_figure latency_s;  /* of the slowest step */
} loom_group_link;
LOOM_API loom_group_link loom_topology_group(const loom_topology *topology, const int *ranks, int count);
/* The worst of the groups { b + i + stride * 0 … n-1 } for i < stride and b a multiple of n * stride: what an axis of `n` ranks at `stride`
 * meets. Groups that would pass the last rank are left out. n * stride must not exceed the number of ranks. */
LOOM_API loom_group_link loom_topology_axis(const loom_topology *topology, int n, int stride);
/* How many ranks groups of `n` neighbours use when none may cross a node (nodes of 2, 3, 3 and n = 2: 6). Same for a domain. */
LOOM_API int loom_topology_ranks_in_nodes(const loom_topology *topology, int n);
LOOM_API int loom_topology_ranks_in_domains(const loom_topology *topology, int n);

/* Seconds of one GEMM on a chip: the measured shape itself; near measured shapes (each of m, n, k within a factor of 4) the law, corrected
 * by what they took; else the law alone. Unknown when there is neither. */
LOOM_API loom_figure loom_topology_gemm_s(const loom_topology *topology, int chip, loom_math math, int64_t m, int64_t n, int64_t k);
/* The law alone; unknown unless share and peak are known. The memory term counts only where memory bandwidth is known. */
LOOM_API loom_figure loom_gemm_law_s(const loom_chip *chip, loom_math math, int64_t m, int64_t n, int64_t k);
/* Seconds of one collective of `bytes` (as nccl-tests counts): measured points of such a group, interpolated; else the law of the nearest
 * size of group at that level; else latency of the steps and the ring's bandwidth, unknown where the link is. */
LOOM_API loom_figure loom_topology_pattern_s(const loom_topology *topology, loom_pattern pattern, const loom_group_link *group,
                                             double bytes);
/* Bytes that a rank hands on: 2(n-1)/n of the buffer for all_reduce, (n-1)/n for its halves and all_to_all, all of it for broadcast and
 * send. */
LOOM_API double loom_pattern_volume(loom_pattern pattern, int ranks, double bytes);

/* --- taking in what was measured ---------------------------------------------------------------------------------------------
 * Points are copied and sorted; a shape or size that was there before is replaced. loom_topology_fit() then sets the laws: of each chip's
 * GEMMs (and its peak, where unknown: the best rate seen), and of each pattern and kind of group. */
LOOM_API loom_status loom_topology_add_gemms(loom_topology *topology, const loom_gemm_point *points, int count);
LOOM_API loom_status loom_topology_add_points(loom_topology *topology, const loom_pattern_point *points, int count);
LOOM_API loom_status loom_topology_fit(loom_topology *topology);

/* --- telling --------------------------------------------------------------------------------------------------------------------
 * The caller frees *text with loom_text_free() of <rankloom/text.h>. */
LOOM_API loom_status loom_topology_tree(const loom_topology *topology, char **text);
LOOM_API loom_status loom_topology_matrix(const loom_topology *topology, char **text); /* of the devices of one node, or of all when few */
LOOM_API loom_status loom_topology_svg(const loom_topology *topology, char **text);
/* One line for tests and logs: "2 nodes x 8 H100-SXM5-80GB, domains of 8, 50 GB/s network a device". */
LOOM_API loom_status loom_topology_line(const loom_topology *topology, char **text);

LOOM_END
#endif
