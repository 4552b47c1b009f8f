/* GPipe (Huang et al. 2019): all forwards, then all backwards; with several chunks, chunk by chunk. Holds every micro-batch at once.
 * Backwards ascend, so that gradients are summed in the same order as in the other schedules. */
#include "schedule/schedule.h"

void loom_emit_gpipe(loom_schedule *s, int stage)
{
    for (int row = 0; row < s->chunks_per_stage; row++)
        for (int b = 0; b < s->micro_batches; b++)
            loom_emit(s, stage, LOOM_FORWARD, row * s->stages + stage, b);
    for (int row = s->chunks_per_stage - 1; row >= 0; row--)
        for (int b = 0; b < s->micro_batches; b++)
            loom_emit(s, stage, LOOM_BACKWARD, row * s->stages + stage, b);
}
