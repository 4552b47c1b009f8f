/* Forward and backward as a graph: the second time they are enqueued they are captured, and from then on replayed with one call. */
#ifndef GPT_3D_REPLAY_H
#define GPT_3D_REPLAY_H

#include <rankloom/rankloom.h>

struct gpt_trainer;

typedef struct gpt_replay {
    loom_graph *graph; /* NULL: not captured, yet or ever */
    bool ready;        /* the work was enqueued before, so that all that is opened on first use is open */
    bool replayed;     /* the last step was: actions have no times of their own */
} gpt_replay;

/* Why this run replays nothing, in words; NULL: it will. */
const char *gpt_replay_obstacle(const struct gpt_trainer *trainer);

/* Forward and backward of the batch at hand, one way or another. Returns when all is enqueued. */
loom_status gpt_replay_run(struct gpt_trainer *trainer);

#endif
