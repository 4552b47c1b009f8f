/* The experts of a block: routed ones, and the shared ones beside them. */
#ifndef GPT_3D_MOE_H
#define GPT_3D_MOE_H

#include "block.h"

/* Router and routed experts of layer `index`; their parameters join `params`. */
loom_status gpt_experts_init(gpt_block *block, const gpt_shape *shape, int64_t index, loom_param_list *params);
/* norm2 -> workspace->branch_TlD. */
loom_status gpt_experts_forward(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved);
/* d [Tl, D], gradient of the branch, -> workspace->branch_TlD, gradient of norm2. */
loom_status gpt_experts_backward(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved, const float *d);
/* What that left out where backward is split, from d as it was given then. */
loom_status gpt_experts_backward_weight(gpt_block *block, const gpt_shape *shape, gpt_workspace *workspace, const gpt_saved *saved, const float *d);

#endif
