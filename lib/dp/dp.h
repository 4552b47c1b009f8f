/* What the files of lib/dp share: how the parameters of this rank lie in memory, and who adds up which part of their gradients. */
#ifndef LOOM_DP_DP_H
#define LOOM_DP_DP_H

#include <rankloom/dp.h>
#include <rankloom/sizes.h>

/* Consecutive parameters of a class that are reduced together: of one unit where gradients are cut. The buckets of a class tile it. */
typedef struct loom_dp_bucket {
    int64_t begin, count; /* elements of the class; count is a multiple of LOOM_ALIGN_F32 * parts */
    int first, last;      /* its parameters: [first, last) of the class */
    int waiting;          /* how many of them are not complete yet, in this step */
    bool launched;
    bool early;   /* launched in the backward of the last step that was begun */
    int unit;
} loom_dp_bucket;

/* Where the whole of a bucket lies while its unit is in use. */
typedef struct loom_dp_slot {
    float *memory;                /* as much as the largest bucket */
    const loom_dp_bucket *bucket; /* what is in it; NULL: nothing */
    loom_event *moved;            /* the gather into it, or the reduction in it, is over */
    bool pending;                 /* weights: gathered, or on their way, for a use to come. Gradients: this rank's part has not been added to what it keeps */
    bool pending_last;            /* gradients: before the end of the last step added it */
} loom_dp_slot;

/* A run of elements that are treated alike: by the optimizer (same decay), or all counted in the norm. */
typedef struct loom_dp_run {
    int64_t begin, count; /* elements of the class */
    bool decay;
} loom_dp_run;

/* Parameters whose gradients are summed over the same groups. */
typedef struct loom_dp_class {
    loom_comm *reduce;  /* the ranks with the same elements and other tokens; also those that share optimizer state under ZeRO */
    loom_comm *holders; /* who also holds a part of the gradient; NULL: nobody */
    loom_comm *tied;    /* who holds the other copy; NULL: nobody */
    int parts, part;    /* size and rank of `reduce` */
    bool cut_state, cut_gradient, cut_value; /* this rank keeps only its slices of the buckets, one after another, of what is cut */

    loom_param **param;
    int64_t *offset; /* [params] of each in the class, in elements */
    bool *complete;  /* [params] said to be, in this step */
    int params;
    int64_t count;   /* of the whole class, gaps and padding included */

    float *value, *gradient, *m, *v; /* what is kept: [count], cut [count / parts] */
    int64_t largest;                 /* bucket, in elements */
    loom_dp_slot weights[LOOM_UNIT_PLACES], sums[LOOM_UNIT_PLACES]; /* of whole weights and whole gradients, where they are cut */
    int next_weights, next_sums;                                    /* slot for the next */

    loom_dp_bucket *bucket;
    int buckets;
    loom_dp_run *update; /* what this rank's optimizer works on; none crosses a bucket */
    int updates;
    loom_dp_run *counted; /* what this rank counts in the norm: over all ranks, each weight once */
    int counteds;
} loom_dp_class;

/* Where a parameter is: sorted by address, to find one that the caller names. */
typedef struct loom_dp_place {
    const loom_param *param;
    int class_, index;
} loom_dp_place;

struct loom_dp {
    loom_mesh *mesh;
    loom_device *device;
    loom_kernels *kernels;
    bool own_kernels;
    loom_adamw_config adamw;
    size_t bucket_elements;
    bool overlap;

    loom_stream *compute;
    loom_stream *reduce;      /* carries the gradient reductions and weight gathers */
    loom_event *gradients_at; /* the compute that a reduction or a gather has to come after */

    loom_dp_class *class_;
    int classes;
    loom_dp_place *place;
    int places;

    double *sums;  /* device: LOOM_REDUCTION_SUMS for norms and for loom_dp_sum */
    float *scale;  /* device: what AdamW multiplies the gradient sums with */
    double *squares; /* host: the sum that the norm is of */
    bool in_step;

    int *use, uses, capacity; /* units whose weights were gathered in a step, in order: the next step's order is the same */
    int used;                 /* of them in this step */
};

/* layout.c: pure. Sorts `params` into classes with offsets, buckets and runs; allocates no tensor memory. */
loom_status loom_dp_lay_out(loom_dp *dp, const loom_param_list *params);
void loom_dp_forget_layout(loom_dp *dp); /* accepts half-made */
/* The group whose every rank holds the same part of this parameter; NULL: only this rank does. */
loom_status loom_dp_holders(const loom_mesh *mesh, const loom_shard *shard, loom_comm **holders);
/* NULL, with a message, when the parameter is not of this dp. */
const loom_dp_place *loom_dp_find(const loom_dp *dp, const loom_param *param);
/* The bucket of parameter `index` of the class. */
loom_dp_bucket *loom_dp_bucket_of(const loom_dp_class *c, int index);
/* The part of `bucket` that this rank keeps of what is cut, and that it counts in the norm. */
int64_t loom_dp_slice_begin(const loom_dp_class *c, const loom_dp_bucket *bucket);
int64_t loom_dp_slice_count(const loom_dp_class *c, const loom_dp_bucket *bucket);
/* Index of element `element` of the class, which is this rank's, in what is kept of values, gradients or state. */
int64_t loom_dp_kept_index(const loom_dp_class *c, const loom_dp_bucket *bucket, int64_t element, bool cut);
/* Elements of the class that it keeps. */
int64_t loom_dp_kept_count(const loom_dp_class *c, bool cut);
/* What this rank keeps of parameter `index`, in `memory`: all values, gradients or state that it keeps of the class. */
loom_part loom_dp_kept_part(const loom_dp_class *c, int index, float *memory, bool cut);

/* LOOM_E_INVALID, in the name of the public call that asks: no step is open. */
loom_status loom_dp_check_in_step(const loom_dp *dp, const char *call);

/* reduce.c: starts what is not on its way yet; what comes next on the compute stream has all of it. */
loom_status loom_dp_reduce_rest(loom_dp *dp);
/* Of a buffer of the whole class the ranks that share it each have their slice of a bucket: to all of them. Does not wait. */
loom_status loom_dp_gather_bucket(loom_dp *dp, const loom_dp_class *c, const loom_dp_bucket *bucket, float *buffer);
/* What is put on the reduce stream next comes after all that is on the compute stream now. */
loom_status loom_dp_follow_compute(loom_dp *dp);
/* Drops what a layer added to the gradient of padding. */
loom_status loom_dp_clear_padding(loom_dp *dp, const loom_dp_class *c, const loom_dp_bucket *bucket);

/* units.c: places for whole units, of a class that cuts weights or gradients. */
loom_status loom_dp_open_slots(loom_dp *dp, loom_dp_class *c);
void loom_dp_close_slots(loom_dp *dp, loom_dp_class *c);
/* A step begins; it was replayed as a graph; it ends: what was reduced is added to what this rank keeps. */
void loom_dp_begin_units(loom_dp *dp);
void loom_dp_replay_units(loom_dp *dp);
loom_status loom_dp_finish_units(loom_dp *dp);

#endif
