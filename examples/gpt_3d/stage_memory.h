/* The device memory of a stage: what chunks keep of their micro-batches in flight, workspace, logits. */
#ifndef GPT_3D_STAGE_MEMORY_H
#define GPT_3D_STAGE_MEMORY_H

#include "stage.h"

/* After the parameters and the shape of experts are known. gpt_stage_close() frees, also what a failure left. */
loom_status gpt_stage_allocate_buffers(gpt_stage *stage);

/* A place for what a backward leaves of blocks that it runs again, until its weights' half: taken for the slot where its chunk has such places (and as
 * many as the schedule can want), else nothing is done. */
void gpt_rerun_take(gpt_chunk *chunk, gpt_slot *slot);
void gpt_rerun_give_back(gpt_slot *slot);

#endif
