/* Runs a schedule without time to see whether every list comes to its end. Lists are fixed and an action waits for at most one other stage, so
 * the outcome does not depend on the order of running, and the stages that are stuck wait for one another in cycles. */
#include "schedule/verify.h"

#include <stdlib.h>

#include "core/text.h"

typedef struct run {
    const loom_schedule *schedule;
    int buffers;
    int *at;              /* [stages] the next action of each list */
    bool *sent;           /* [message] */
    int *n_sent, *n_posted; /* [from][to] messages sent and receives posted on each channel */
    int *ready, n_ready;  /* stages that may be able to go on; a stage is at most once in it */
    bool *is_ready;
} run;

static int *channel(int *table, const run *r, int from, int to)
{
    return &table[(size_t)from * (size_t)r->schedule->stages + (size_t)to];
}

static void wake(run *r, int stage)
{
    if (r->is_ready[stage])
        return;
    r->is_ready[stage] = true;
    r->ready[r->n_ready++] = stage;
}

/* Runs the next action of a stage. False: it has to wait, for the stage that waits_for() tells. */
static bool step(run *r, int stage)
{
    const loom_action *a = &r->schedule->stage[stage].at[r->at[stage]];

    if (loom_is_send(a)) {
        int *n_sent = channel(r->n_sent, r, stage, a->peer), posted = *channel(r->n_posted, r, stage, a->peer);
        if (r->buffers >= 0 && *n_sent - posted >= r->buffers)
            return false;
        ++*n_sent;
        r->sent[loom_message_out(r->schedule, a)] = true;
        wake(r, a->peer);
    } else if (loom_is_recv(a)) {
        ++*channel(r->n_posted, r, a->peer, stage);
        wake(r, a->peer);
    } else if (loom_action_source(r->schedule, a) >= 0 && !r->sent[loom_message_in(r->schedule, a)]) {
        return false;
    }
    r->at[stage]++;
    return true;
}

static bool done(const run *r, int stage)
{
    return r->at[stage] == r->schedule->stage[stage].count;
}

static int waits_for(const run *r, int stage)
{
    const loom_action *a = &r->schedule->stage[stage].at[r->at[stage]];

    return loom_is_send(a) ? a->peer : loom_action_source(r->schedule, a);
}

/* Length of the cycle that `stage` lies on, or 0. */
static int cycle_length(const run *r, int stage)
{
    int at = stage, length = 0;

    do {
        at = waits_for(r, at);
        length++;
    } while (at != stage && length <= r->schedule->stages);
    return at == stage ? length : 0;
}

static loom_status describe_cycle(const run *r)
{
    int best = 0, first = -1;
    loom_text words = {0};
    loom_status status;

    for (int stage = 0; stage < r->schedule->stages; stage++)
        if (!done(r, stage)) {
            int length = cycle_length(r, stage);
            if (length > 0 && (best == 0 || length < best)) {
                best = length;
                first = stage;
            }
        }
    assert(first >= 0); /* steps (1) to (4) hold: whoever is waited for has not come to its end, so it waits too */
    for (int i = 0, stage = first; i < best; i++, stage = waits_for(r, stage)) {
        char action[64];

        loom_action_describe(&r->schedule->stage[stage].at[r->at[stage]], action, sizeof action);
        if (i == 0)
            loom_text_add(&words, "stage %d waits in %s for stage %d", stage, action, waits_for(r, stage));
        else
            loom_text_add(&words, ", which waits in %s for stage %d", action, waits_for(r, stage));
    }
    if (r->buffers < 0)
        status = loom_fail(LOOM_E_INVALID, "deadlock, however many buffers a channel has: %s", loom_text_so_far(&words));
    else
        status = loom_fail(LOOM_E_INVALID, "deadlock with %d buffer%s a channel: %s", r->buffers, r->buffers == 1 ? "" : "s", loom_text_so_far(&words));
    loom_text_drop(&words);
    return status;
}

static loom_status run_lists(run *r)
{
    int stages = r->schedule->stages;

    for (int stage = stages - 1; stage >= 0; stage--)
        wake(r, stage);
    while (r->n_ready > 0) {
        int stage = r->ready[--r->n_ready];
        r->is_ready[stage] = false;
        while (!done(r, stage) && step(r, stage))
            ;
    }
    for (int stage = 0; stage < stages; stage++)
        if (!done(r, stage))
            return describe_cycle(r);
    return LOOM_OK;
}

loom_status loom_check_deadlock(const loom_schedule *schedule, int buffers)
{
    size_t stages = (size_t)schedule->stages;
    run r = {.schedule = schedule, .buffers = buffers};
    loom_status status;

    r.at = calloc(stages, sizeof *r.at);
    r.sent = calloc(loom_message_count(schedule), sizeof *r.sent);
    r.n_sent = calloc(stages * stages, sizeof *r.n_sent);
    r.n_posted = calloc(stages * stages, sizeof *r.n_posted);
    r.ready = calloc(stages, sizeof *r.ready);
    r.is_ready = calloc(stages, sizeof *r.is_ready);
    if (r.at && r.sent && r.n_sent && r.n_posted && r.ready && r.is_ready)
        status = run_lists(&r);
    else
        status = loom_fail(LOOM_E_MEMORY, "no memory to run a schedule of %d stages", schedule->stages);
    free(r.at);
    free(r.sent);
    free(r.n_sent);
    free(r.n_posted);
    free(r.ready);
    free(r.is_ready);
    return status;
}
