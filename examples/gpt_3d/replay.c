#include "replay.h"
#include "trainer.h"
#include "try.h"

const char *gpt_replay_obstacle(const gpt_trainer *t)
{
    if (t->run->train.eager)
        return "train.graphs is false";
    if (!loom_device_captures(t->device))
        return "this device has none";
    if (t->stage->ep)
        return "the counts of tokens for each expert are read in the middle of a step";
    return NULL;
}

static loom_status enqueue(gpt_trainer *t)
{
    bool plain = !t->run->data.packed && loom_layout_padded_seq(&t->run->layout, t->run->layout.seq) == t->run->layout.seq;
    gpt_batch batch = {.tokens = t->ids[GPT_TOKENS],
                       .targets = t->ids[GPT_TARGETS],
                       .positions = plain ? NULL : t->ids[GPT_ROWS],
                       .documents = t->run->data.packed ? t->ids[GPT_DOCUMENTS] : NULL,
                       .counted = t->counted};

    TRY(gpt_stage_begin(t->stage, &batch));
    TRY(loom_dp_begin(t->dp));
    return loom_pipeline_enqueue(t->pipeline);
}

/* What is captured does not run: the launch that follows is the step. The memory that it names is the trainer's for good; what is in it is of the batch at hand. */
static loom_status capture(gpt_trainer *t)
{
    loom_status status = loom_graph_begin(t->compute);

    if (status < 0)
        return status;
    status = enqueue(t);
    if (status < 0)
        loom_graph_end(t->compute, NULL);
    return status < 0 ? status : loom_graph_end(t->compute, &t->replay.graph);
}

static loom_status capture_and_launch(gpt_trainer *t)
{
    loom_status status = capture(t);

    if (status < 0)
        return loom_fail(status, "forward and backward cannot be captured as a graph: %s; train.graphs=false enqueues each step anew", loom_last_error());
    return loom_graph_launch(t->replay.graph, t->compute);
}

static loom_status replay(gpt_trainer *t)
{
    TRY(loom_dp_replayed(t->dp));
    return loom_graph_launch(t->replay.graph, t->compute);
}

loom_status gpt_replay_run(gpt_trainer *t)
{
    gpt_replay *r = &t->replay;
    bool as_graph = r->ready && !gpt_replay_obstacle(t);

    r->ready = true;
    r->replayed = as_graph && r->graph;
    if (!as_graph)
        return enqueue(t);
    return r->graph ? replay(t) : capture_and_launch(t);
}
