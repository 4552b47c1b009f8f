/* The numbers that describe one kind of device and one kind of training software. Each carries where it comes from. */
#ifndef LOOM_PLANNER_CONSTANTS_H
#define LOOM_PLANNER_CONSTANTS_H

#include <rankloom/status.h>

/* How much a constant deserves to be believed, best last. */
typedef enum loom_basis {
    LOOM_BASIS_DEFAULT,  /* a habit of the field, or taken over from a device like it */
    LOOM_BASIS_STEPS,    /* fitted to published training steps of several models or layouts */
    LOOM_BASIS_SWEEP,    /* fitted to published measurements of that very thing */
    LOOM_BASIS_SHEET,    /* the maker's data sheet */
    LOOM_BASIS_GIVEN,    /* the user's file */
    LOOM_BASIS_MEASURED, /* the user's machine */
} loom_basis;

typedef struct loom_constant {
    double value;
    loom_basis basis;
    const char *origin; /* one line: what it was read from or fitted to */
} loom_constant;

/* One line a constant: name, unit, meaning. Rates are per device; a share is of the peak named before it. */
#define LOOM_DEVICE_CONSTANTS(X)                                                                                                           \
    X(PEAK_16, "flop/s", "dense 16-bit peak")                                                                                              \
    X(PEAK_8, "flop/s", "dense 8-bit peak")                                                                                                \
    X(PEAK_4, "flop/s", "dense 4-bit peak")                                                                                                \
    X(MEMORY_RATE, "B/s", "memory bandwidth")                                                                                              \
    X(MEMORY_BYTES, "B", "memory a program sees")                                                                                          \
    X(MEMORY_SHARE, "", "share of the memory bandwidth that streaming kernels reach")                                                      \
    X(GEMM_SHARE, "", "share of the 16-bit peak that a large isolated GEMM reaches")                                                       \
    X(GEMM_M0, "rows", "a GEMM takes m0/m longer")                                                                                         \
    X(GEMM_N0, "columns", "a GEMM takes n0/n longer")                                                                                      \
    X(GEMM_K0, "depth", "a GEMM takes k0/k longer")                                                                                        \
    X(GEMM_K0_WEIGHT, "depth", "the same for a weight gradient that is accumulated in fp32")                                               \
    X(GEMM_START, "s", "start of a GEMM")                                                                                                  \
    X(SUSTAINED, "", "share of isolated GEMM and attention rates left in training: power-limited clocks, cold caches")                     \
    X(GROUPED_SHARE, "", "share of the GEMM law that grouped (expert) GEMMs reach")                                                        \
    X(GROUPED_0, "elements", "a grouped GEMM takes g0 (1/m + 1/n + 1/k) longer still, m rows an expert")                                   \
    X(SHARE_8, "", "share of the 8-bit peak that a large GEMM reaches, quantisation passes not counted")                                   \
    X(SHARE_4, "", "share of the 4-bit peak, likewise")                                                                                    \
    X(ATTENTION_FORWARD, "", "share of the 16-bit peak of the best fused attention, forward, causal flop")                                 \
    X(ATTENTION_BACKWARD, "", "the same, backward")                                                                                        \
    X(FLASH2_FORWARD, "", "the same of the portable kernel (flash attention 2), forward")                                                  \
    X(FLASH2_BACKWARD, "", "the same, backward")                                                                                           \
    X(ATTENTION_NARROW, "", "rate of fused attention at head size 64, over that at 128")                                                   \
    X(ATTENTION_TAIL, "s", "last tile of a fused attention call at 4096 tokens")                                                           \
    X(ATTENTION_TILE, "tokens", "tile of attention that is computed whole wherever context parallelism cuts a sequence")                \
    X(KERNEL_GAP, "s", "device time lost between two kernels")                                                                             \
    X(HOST_KERNEL, "s", "host time of one kernel launch in a plain eager framework")                                                       \
    X(LINK_REDUCE_2, "B/s", "all-reduce bus bandwidth inside the scale-up domain, 2 ranks")                                                \
    X(LINK_REDUCE_4, "B/s", "4 ranks")                                                                                                     \
    X(LINK_REDUCE_8, "B/s", "8 ranks and more")                                                                                            \
    X(LINK_GATHER_2, "B/s", "all-gather and reduce-scatter bus bandwidth, 2 ranks")                                                        \
    X(LINK_GATHER_4, "B/s", "4 ranks")                                                                                                     \
    X(LINK_GATHER_8, "B/s", "8 ranks and more")                                                                                            \
    X(LINK_EXCHANGE_2, "B/s", "all-to-all bus bandwidth, 2 ranks")                                                                         \
    X(LINK_EXCHANGE_4, "B/s", "4 ranks")                                                                                                   \
    X(LINK_EXCHANGE_8, "B/s", "8 ranks and more")                                                                                          \
    X(LINK_START, "s", "start of a collective inside the domain")                                                                          \
    X(LINK_HOP, "s", "what each further rank adds")                                                                                        \
    X(LINK_TURN, "s", "what a meeting costs for each doubling of its ranks, for each rank more than one that shares a core")              \
    X(NET_RATE, "B/s", "network port of a device")                                                                                         \
    X(NET_SHARE, "", "share of the port rate that a collective carries")                                                                   \
    X(NET_START, "s", "start of a collective over the network")                                                                            \
    X(NET_HOP, "s", "what each further node adds")                                                                                         \
    X(NET_CROWD, "", "bandwidth lost for each doubling of the nodes beyond two")                                                           \
    X(OVERLAP_TAX, "", "share of hidden communication that comes back as slower compute")                                                  \
    X(HOST_MEMORY_RATE, "B/s", "copies between device and host")

typedef enum loom_device_constant {
#define X(name, unit, text) LOOM_DEV_##name,
    LOOM_DEVICE_CONSTANTS(X)
#undef X
        LOOM_DEV_COUNT
} loom_device_constant;

/* One line a constant: name, meaning. */
#define LOOM_SOFTWARE_CONSTANTS(X)                                                                                                         \
    X(FLASH, "attention: 0 writes its scores; 1 portable fused kernel; 2 the device's best")                                               \
    X(ELEMENTWISE, "memory traffic of norms, residuals, activations, over that of fused kernels")                                          \
    X(KERNELS_DENSE, "kernels of a dense layer, forward")                                                                                  \
    X(KERNELS_MOE, "kernels that experts add to a layer, forward")                                                                         \
    X(KERNELS_EXPERT, "kernels that each expert of a rank adds, forward, in 16 bits")                                                      \
    X(HOST_FACTOR, "host time of a launch, over that of the device's HOST_KERNEL")                                                         \
    X(TP_HIDDEN, "share of tensor-parallel collectives hidden under chunked GEMMs")                                                        \
    X(PERMUTE, "memory traffic of moving tokens to their experts and back, over 16 bytes an element")                                      \
    X(EP_HIDDEN, "share of the expert exchange hidden under other work")                                                                   \
    X(P2P_EXPOSED, "share of a pipeline hop that the stage waits for")                                                                     \
    X(DP_WINDOW, "share of the last backward that hides gradient reduction; 0: no overlap")                                                \
    X(GATHER_WINDOW, "share of the first forward that hides parameter gathers; 0: no overlap")                                             \
    X(SHARDED_HIDDEN, "share of a layer's compute under which fully sharded weights can travel")                                           \
    X(SHARDED_EXPOSED, "share of that traffic which sticks out even so: gathers start late")                                               \
    X(SHARDED_RATE, "share of the collective bandwidth that gathers of sharded weights reach")                                             \
    X(KERNELS_TP, "kernels that tensor parallelism adds to a layer, forward")                                                              \
    X(EXCHANGE_ONCE, "1: a token goes to a domain once, however many of its experts are there")                                            \
    X(GRADIENT_BYTES, "bytes of a gradient on the wire")                                                                                   \
    X(GATHER_BYTES, "bytes of a weight on the wire, fully sharded")                                                                        \
    X(OWNER_TURN, "seconds for each rank of a ZeRO-1 group to send the weights it owns, in turn")                                          \
    X(QUANTISE, "share of the quantisation passes that no neighbouring kernel takes over")                                                 \
    X(JITTER, "share of the step lost to ranks that wait for one another, per doubling of ranks")                                          \
    X(FIXED, "seconds of a step that depend on nothing")                                                                                   \
    X(OPTIMIZER_BYTES, "bytes that the optimizer moves for a parameter it owns")                                                           \
    X(DISPATCH_BYTES, "bytes of an element on the way to the experts")                                                                     \
    X(WEIGHT_STORE, "bytes of a weight in memory, copies for gathers not counted")                                                         \
    X(GRADIENT_STORE, "bytes of a gradient in memory")                                                                                     \
    X(OPTIMIZER_STORE, "bytes of optimizer state of a parameter: master weight and moments")                                               \
    X(LOGIT_BYTES, "bytes of a logit at the peak of the loss")                                                                             \
    X(WEIGHT_SCRATCH, "weight-shaped 16-bit buffers that stay, over the dense weights of a layer")                                         \
    X(HEAD_SCRATCH, "the same of the output layer, over its weights")                                                                      \
    X(TRANSIENT, "share of the widest layer's gradients that finds no freed memory to lie in")                                             \
    X(NARROW_KEPT, "1: with 8-bit GEMMs their kept inputs are 8-bit too, and experts' outputs are not kept")                               \
    X(DROPOUT, "1: dropout masks are kept")                                                                                                \
    X(FRAGMENTS, "share of the allocated memory lost between blocks")                                                                      \
    X(CONTEXT_BYTES, "memory outside the framework: driver context, communicators, workspaces")

typedef enum loom_software_constant {
#define X(name, text) LOOM_SOFT_##name,
    LOOM_SOFTWARE_CONSTANTS(X)
#undef X
        LOOM_SOFT_COUNT
} loom_software_constant;

/* A kind of device: its names, and all its constants. One file each in constants/. */
typedef struct loom_device_kind {
    const char *names[8]; /* as topologies and tables call it; compared without case and punctuation, by prefix */
    loom_constant at[LOOM_DEV_COUNT];
} loom_device_kind;

typedef struct loom_framework {
    const char *names[8];
    loom_constant at[LOOM_SOFT_COUNT];
} loom_framework;

/* The kind (framework) one of whose names is the longest prefix of `name` once both lose case and punctuation; NULL: none. */
const loom_device_kind *loom_device_kind_find(const char *name);
const loom_framework *loom_framework_find(const char *name);
int loom_device_kind_count(void);
const loom_device_kind *loom_device_kind_at(int index);
int loom_framework_count(void);
const loom_framework *loom_framework_at(int index);

/* All constants of a kind, holes filled from the defaults. `kind` may be NULL. */
void loom_device_constants(const loom_device_kind *kind, loom_constant at[LOOM_DEV_COUNT]);
void loom_software_constants(const loom_framework *framework, loom_constant at[LOOM_SOFT_COUNT]);

/* Index of the constant called `name` ("sustained", "SUSTAINED"), -1: none. */
int loom_device_constant_find(const char *name);
int loom_software_constant_find(const char *name);
const char *loom_device_constant_name(int which);
const char *loom_software_constant_name(int which);

#endif
