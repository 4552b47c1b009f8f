/* What Megatron-LM's flags, Megatron-Bridge's keys and veRL's overrides all say, in one struct: they differ in spelling only. */
#ifndef LOOM_PLANNER_EMIT_MEGATRON_H
#define LOOM_PLANNER_EMIT_MEGATRON_H

#include "planner/emit/emit.h"

typedef struct loom_megatron {
    int64_t layers; /* 0: not said */
    int tp, pp, cp, ep;
    int etp;                        /* 0: not said, which means tp */
    int vpp, layers_per_virtual;    /* 0: not said */
    int64_t first_layers, last_layers; /* -1: not said */
    bool count_embedding, count_loss;  /* as a layer in the split */
    const char *stages;             /* "Et*3|ttt|ttL", or NULL */
    bool sequence_parallel, distributed_optimizer, fsdp, pp_before_dp;
    const char *sharding; /* of its FSDP: no_shard, optim, optim_grads, optim_grads_params; or NULL */
    const char *cp_comm;  /* p2p, a2a, allgather, a2a+p2p; NULL: p2p */
    int inner_cp;         /* first of the hierarchical sizes; 0: none */
    const char *recompute, *method; /* granularity: full, selective, or NULL */
    int64_t micro_batch, global_batch, seq;
} loom_megatron;

/* The layout in those words; what has none becomes a reason. `stages` [bytes] holds the text that m->stages points to. */
void loom_megatron_of_layout(loom_emission *e, loom_megatron *m, char *stages, size_t bytes);
/* And back, into in->layout. */
loom_status loom_megatron_to_layout(loom_importing *in, const loom_megatron *m);

#endif
