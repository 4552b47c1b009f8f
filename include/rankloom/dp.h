/* Data parallelism: flat f32 weights and gradients, bucketed and overlapped gradient reduction, global norm and clip, AdamW, ZeRO 0 to 3. */
#ifndef RANKLOOM_DP_H
#define RANKLOOM_DP_H

#include <rankloom/kernels.h>
#include <rankloom/mesh.h>
#include <rankloom/shard.h>
LOOM_BEGIN

typedef struct loom_adamw_config {
    double beta1, beta2, eps; /* eps is added after the square root */
    double weight_decay;      /* on parameters whose shard says decay: p *= 1 - lr * weight_decay before the update */
    double clip;              /* largest global norm; 0: none. Above it gradients are multiplied by clip / (norm + 1e-6) */
} loom_adamw_config;

typedef struct loom_dp_config {
    size_t bucket_bytes; /* of f32 gradients; 0: RANKLOOM_BUCKET_BYTES, else 25 MiB. A bucket never splits a parameter, and under ZeRO its length
                            divides by the ranks that share it, so it may be larger than asked for */
    bool no_overlap;     /* reduce in loom_dp_finish() what is not cut, gather weights when they are asked for */
    loom_kernels *kernels; /* borrowed; NULL: dp opens its own */
    loom_adamw_config adamw;
} loom_dp_config;

/* Opaque. Owns values, gradients and optimizer state of all parameters of this rank. */
typedef struct loom_dp loom_dp;

/* Lays out the parameters, in their order, in flat buffers of the mesh's device and sets value and gradient of each. Parameters that
 * are neighbours in `params` with the same reduction lie side by side without a gap when the size of the first is a multiple of 16 elements, so
 * that a layer may see q, k and v as one matrix. Gradients start as 0. Parameters of `params` must stay put until loom_dp_close().
 * Classes of reduction, each with buffers of its own: dense over mesh->gradient; experts over the edp axis; of those, with gradient PARTIAL also
 * over the holders (tp, or mesh->kv), tied ones also over mesh->tied. The last two kinds are reduced by loom_dp_finish(), in one piece a class.
 * zero of the mesh's layout: what is cut over the ranks that share a gradient (dp x cp, experts edp). 1: optimizer state; 2: gradients, too; 3: weights, too.
 * Of classes that are summed over a second group only the state is cut. */
LOOM_API loom_status loom_dp_open(loom_mesh *mesh, const loom_param_list *params, const loom_dp_config *config, loom_stream *compute, loom_dp **dp);
LOOM_API void loom_dp_close(loom_dp *dp); /* accepts NULL */

/* Units, the parameters of one loom_param.unit: what ZeRO-3 gathers together and ZeRO-2 and -3 reduce together, a block for instance. Between uses a rank keeps its
 * part alone, and two whole units have a place at a time; so a unit's values hold until weights of the next but one are gathered, and its gradients until those
 * of the next but one are begun. A caller brackets what it does in this way under every stage of ZeRO: where nothing is cut, the calls do nothing. All ranks that share
 * the parameters call for the same units in the same order.
 *
 * The values of the unit are whole for what comes next on the compute stream. In a step, those of the unit that was next in the last step are gathered
 * meanwhile. */
LOOM_API loom_status loom_dp_gather_weights(loom_dp *dp, int unit);
/* Its gradients have a place, zeroed, that backward adds into; then: they go to the ranks that keep them, each the sum over all, and are added to what
 * came before. Once for every use in backward, so in each micro-batch; loom_dp_ready is as without. */
LOOM_API loom_status loom_dp_begin_gradients(loom_dp *dp, int unit);
LOOM_API loom_status loom_dp_scatter_gradients(loom_dp *dp, int unit);

/* Fills values from the seed (loom_init_fill). A caller that loads weights writes what is kept of each parameter instead (loom_param_kept_value). */
LOOM_API loom_status loom_dp_init(loom_dp *dp, uint64_t seed);
/* Call after anyone but the optimizer wrote values (a load): all copies of a parameter (over dp and cp, over tp where it is replicated, on both stages
 * where it is tied) must hold the same bits. Else LOOM_E_MISMATCH on every rank of a group that differs, with the first such parameter. Collective. */
LOOM_API loom_status loom_dp_values_changed(loom_dp *dp);

/* A training step is: begin; backward passes that add into gradients; finish. loom_dp_ready says, during the last micro-batch's backward, that
 * these parameters' gradients are complete on this rank: when a bucket is complete its reduction starts, in the background. The ranks of a
 * gradient group say it in the same order. What was not said is reduced by finish. Padding of a parameter needs no care: its gradient counts as 0. */
LOOM_API loom_status loom_dp_begin(loom_dp *dp); /* zeroes gradients */
LOOM_API loom_status loom_dp_ready(loom_dp *dp, loom_param *const *params, int count);
/* A graph (device.h) that was captured from begin to the last ready, of the same step's backward as the last one here, is launched: what it does again, zeroing and
 * reducing, counts as begun and said. In place of begin and ready; finish follows. */
LOOM_API loom_status loom_dp_replayed(loom_dp *dp);

typedef struct loom_dp_result {
    double grad_norm; /* of the gradient divided by `divisor`, before clipping; every weight counts once, whatever tp, pp, ep, dp do with it */
    double clip_scale;
} loom_dp_result;

/* Completes the reductions; gradients are *sums* over tokens and are divided once by `divisor` (the global token count); norm, clip, AdamW with this
 * learning rate, gather of the weights under ZeRO. step counts from 1. Collective over the mesh. `divisor` 0: no token at all, the weights stay.
 * A norm that is not finite is LOOM_E_INVALID on every rank and the weights stay; the message names a parameter of this rank if one is the cause.
 * `gradient` afterwards holds no defined value. */
LOOM_API loom_status loom_dp_finish(loom_dp *dp, double divisor, double learning_rate, int64_t step, loom_dp_result *result);

/* Only the reductions and the norm, for tests and tools: afterwards every rank's `gradient` holds the reduced sums (gathered under ZeRO-1, too), and where gradients
 * are cut each rank's part of them (loom_param_kept_gradient). */
LOOM_API loom_status loom_dp_reduce_only(loom_dp *dp, double divisor, loom_dp_result *result);

/* Sum of `count` doubles over the ranks that hold different tokens (mesh->gradient), and over the stages (only one contributes): losses and
 * counts for the log. Every rank gets the result. */
LOOM_API loom_status loom_dp_sum(loom_dp *dp, double *values, int count);

/* Optimizer state of one parameter for checkpoints: borrowed, this rank's part of it, local elements [*first, *first + *count). A rank that has
 * none gets count 0. Written by a load, too. */
LOOM_API loom_status loom_dp_state(loom_dp *dp, const loom_param *param, float **m, float **v, int64_t *first, int64_t *count);

/* Learning rate of `step` (from 0): linear warm-up lr*(step+1)/warmup, then cosine to min_lr at `steps`, min_lr after. */
LOOM_API double loom_warmup_cosine(int64_t step, int64_t warmup, int64_t steps, double lr, double min_lr);

LOOM_END
#endif
