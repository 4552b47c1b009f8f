/* What the files of lib/dp share: how the parameters of this rank lie in memory, and who adds up which part of their gradients. */
#ifndef LOOM_DP_DP_H
#define LOOM_DP_DP_H

#include <rankloom/dp.h>
#include <rankloom/sizes.h>

/* Consecutive parameters of a class that are reduced together. The buckets of a class tile it. */
typedef struct loom_dp_bucket {
    int64_t begin, count; /* elements of the class; count is a multiple of LOOM_ALIGN_F32 * parts */
    int first, last;      /* its parameters: [first, last) of the class */
    int waiting;          /* how many of them are not complete yet, in this step */
    bool launched;
    bool early;   /* launched in the backward of the last step that was begun */
} loom_dp_bucket;

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

    loom_param **param;
    int64_t *offset; /* [params] of each in the class, in elements */
    bool *complete;  /* [params] said to be, in this step */
    int params;
    int64_t count;   /* of the whole class, gaps and padding included */

    float *value, *gradient; /* [count] */
    float *m, *v;            /* [count], under ZeRO [count / parts]: the slices of the buckets, one after another */

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
    bool overlap, zero1;

    loom_stream *compute;
    loom_stream *reduce;      /* carries the gradient reductions and weight gathers */
    loom_event *gradients_at; /* the compute that a reduction or a gather has to come after */

    loom_dp_class *class_;
    int classes;
    loom_dp_place *place;
    int places;

    double *sums;  /* device: LOOM_REDUCTION_SUMS for norms and for loom_dp_sum */
    float *scale;  /* device: what AdamW multiplies the gradient sums with */
    bool in_step;
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
/* The part of `bucket` that this rank keeps under ZeRO, and that it counts in the norm. */
int64_t loom_dp_slice_begin(const loom_dp_class *c, const loom_dp_bucket *bucket);
int64_t loom_dp_slice_count(const loom_dp_class *c, const loom_dp_bucket *bucket);
/* Index into m and v of element `element` of the class, which is this rank's. */
int64_t loom_dp_state_index(const loom_dp *dp, const loom_dp_class *c, const loom_dp_bucket *bucket, int64_t element);

/* reduce.c: starts what is not on its way yet, and waits for all of it. */
loom_status loom_dp_reduce_rest(loom_dp *dp);
/* Under ZeRO: the slices of a bucket (in `buffer`: all values or all gradients of the class) to all ranks that share it. Does not wait. */
loom_status loom_dp_gather_bucket(loom_dp *dp, const loom_dp_class *c, const loom_dp_bucket *bucket, float *buffer);

#endif
