/* 1F1B (PipeDream-Flush, Narayanan et al. 2021): after as many forwards as there are stages below, one forward and one backward in turn, so
 * stage i never holds more than stages - i micro-batches. */
#include "schedule/schedule.h"

void loom_emit_1f1b(loom_schedule *s, int stage)
{
    int warm_up = s->stages - 1 - stage, forwards = 0;

    while (forwards < warm_up && forwards < s->micro_batches)
        loom_emit(s, stage, LOOM_FORWARD, stage, forwards++);
    for (int b = 0; b < s->micro_batches; b++) {
        if (forwards < s->micro_batches)
            loom_emit(s, stage, LOOM_FORWARD, stage, forwards++);
        loom_emit(s, stage, LOOM_BACKWARD, stage, b);
    }
}
