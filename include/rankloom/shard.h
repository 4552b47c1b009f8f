/* The shard spec of a parameter: what it is globally, which part this rank holds, and how its gradient is formed. Made by the layer
 * that owns the parameter; read by initialiser, gradient reduction, norm, optimizer, checkpoint and memory model. */
#ifndef RANKLOOM_SHARD_H
#define RANKLOOM_SHARD_H

#include <rankloom/layout.h>
LOOM_BEGIN

/* How the ranks of the splitting axis that hold the same element got their gradient of it. */
typedef enum loom_gradient_form {
    LOOM_GRADIENT_WHOLE,   /* each already has the whole of it: nothing to add over that axis */
    LOOM_GRADIENT_PARTIAL, /* each has a part (sequence parallelism, shared kv heads): add over the holders */
} loom_gradient_form;

/* The starting value of an element, a pure function of (seed, name, index in the global shape): see loom_init_fill(). */
typedef struct loom_init {
    enum { LOOM_INIT_NORMAL, LOOM_INIT_ONES, LOOM_INIT_ZEROS } kind;
    double std; /* NORMAL: sigma. ONES and ZEROS: jitter added as std * z */
} loom_init;

enum { LOOM_SHARD_DIMS = 3, LOOM_SHARD_RANGES = 4 };

typedef struct loom_shard {
    char name[128]; /* global name, as on disk */
    int dims;
    int64_t shape[LOOM_SHARD_DIMS]; /* global; true sizes, never padded, never rebuilt as local x ranks */
    /* Which part: along split_dim this rank holds `ranges` one after another (several: fused q,k,v), then `padding` more indices that exist
     * in no file, start as 0, get no gradient and count in no norm. split_dim -1: all of it. */
    int split_dim;
    loom_axis split_axis; /* TP or ETP, or EP for whole experts */
    int n_ranges;
    loom_range ranges[LOOM_SHARD_RANGES];
    int64_t padding;
    int holders;     /* ranks of split_axis that hold these very elements: 1 split, tp replicated, tp/kv_heads shared kv heads */
    int holder;      /* my index among them; only holder 0 counts in norms and writes to files */
    loom_gradient_form gradient;
    bool expert;     /* its gradient is reduced over edp, not over dp x cp */
    bool decay;      /* weight decay applies */
    int tied;        /* 0: no; 1: also lives on another stage (tied embedding): gradients added over mesh->tied */
    bool tied_owner; /* of a tied one: this copy counts in norms and files */
    loom_init init;
} loom_shard;

/* What of a tensor a rank keeps between its uses: local elements [first, first + count), at `data`. */
typedef struct loom_part {
    float *data;
    int64_t first, count;
} loom_part;

/* A parameter of this rank: its spec and, once dp has laid it out, where value and gradient are (f32, local shape, row-major). Where dp cuts them over the
 * ranks that share a gradient (ZeRO-3, ZeRO-2) they are there only while their unit is in use (dp.h), and else the part that this rank keeps. */
typedef struct loom_param {
    loom_shard shard;
    int unit; /* parameters of one number are used together: a block's, say */
    float *value, *gradient;
    bool value_cut, gradient_cut;
    loom_part value_part, gradient_part; /* where they are cut; loom_param_kept_value() is for both */
} loom_param;
/* What this rank keeps: all of it where nothing is cut. */
LOOM_API loom_part loom_param_kept_value(const loom_param *param);
LOOM_API loom_part loom_param_kept_gradient(const loom_param *param);

/* Parameters in the order of the forward pass. Grows; owns only the array: each loom_param belongs to its layer and stays put. */
typedef struct loom_param_list {
    loom_param **at;
    int count, capacity;
} loom_param_list;
LOOM_API loom_status loom_param_list_add(loom_param_list *list, loom_param *param);
LOOM_API void loom_param_list_free(loom_param_list *list);

LOOM_API int64_t loom_shard_local_extent(const loom_shard *shard, int dim); /* with padding */
LOOM_API int64_t loom_shard_local_count(const loom_shard *shard);           /* with padding */
LOOM_API int64_t loom_shard_global_count(const loom_shard *shard);
/* Global row-major index of local element `local`, or -1 for padding. */
LOOM_API int64_t loom_shard_global_index(const loom_shard *shard, int64_t local);

/* A runs iterator: consecutive local elements whose global indices are consecutive too. Calls visit(context, local, global, count)
 * for every run in local order; padding is skipped. The one walk that init, load, save and resharding use. */
typedef loom_status loom_shard_visit_fn(void *context, int64_t local, int64_t global, int64_t count);
LOOM_API loom_status loom_shard_visit(const loom_shard *shard, loom_shard_visit_fn *visit, void *context);

/* Fills `value` (f32, local shape) from the seed: Philox4x32-10 keyed by the seed, counter (global index, FNV-1a-64 of the name), the sum of
 * eight 16-bit halves as a near-normal z. Equal on every layout, no communication. Padding is 0. */
LOOM_API void loom_init_fill(const loom_shard *shard, uint64_t seed, float *value);

LOOM_END
#endif
