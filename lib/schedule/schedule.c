/* A schedule: made, copied, freed, generated; what an action waits for and makes. */
#include "schedule/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/try.h"

loom_status loom_schedule_new(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches, int capacity, loom_schedule **schedule)
{
    loom_layout shape = {.pp = stages, .vpp = chunks_per_stage, .schedule = kind};
    loom_schedule *s = calloc(1, sizeof *s);

    if (!s)
        goto no_memory;
    *s = (loom_schedule){.stages = stages, .chunks_per_stage = chunks_per_stage, .micro_batches = micro_batches};
    s->stage_of_chunk = calloc((size_t)stages * (size_t)chunks_per_stage, sizeof *s->stage_of_chunk);
    s->stage = calloc((size_t)stages, sizeof *s->stage);
    if (!s->stage_of_chunk || !s->stage)
        goto no_memory;
    for (int c = 0; c < stages * chunks_per_stage; c++)
        s->stage_of_chunk[c] = loom_layout_stage_of_chunk(&shape, c);
    for (int i = 0; i < stages; i++) {
        s->stage[i].capacity = capacity;
        if (capacity > 0 && !(s->stage[i].at = calloc((size_t)capacity, sizeof *s->stage[i].at)))
            goto no_memory;
    }
    *schedule = s;
    return LOOM_OK;

no_memory:
    loom_schedule_free(s);
    return loom_fail(LOOM_E_MEMORY, "no memory for a schedule of %d stages with %d actions each", stages, capacity);
}

void loom_schedule_free(loom_schedule *schedule)
{
    if (!schedule)
        return;
    for (int i = 0; schedule->stage && i < schedule->stages; i++)
        free(schedule->stage[i].at);
    free(schedule->stage);
    free(schedule->stage_of_chunk);
    free(schedule);
}

loom_status loom_schedule_copy(const loom_schedule *schedule, loom_schedule **copy)
{
    loom_schedule *c;
    loom_status status = loom_schedule_new(LOOM_SCHEDULE_1F1B, schedule->stages, schedule->chunks_per_stage, schedule->micro_batches, 0, &c);

    if (status < 0)
        return status;
    c->has_comm = schedule->has_comm;
    memcpy(c->stage_of_chunk, schedule->stage_of_chunk, sizeof *c->stage_of_chunk * (size_t)loom_chunk_count(c));
    for (int i = 0; i < c->stages; i++)
        for (int k = 0; k < schedule->stage[i].count; k++)
            LOOM_TRY(loom_stage_append(&c->stage[i], schedule->stage[i].at[k]));
    *copy = c;
    return LOOM_OK;

fail:
    loom_schedule_free(c);
    return status;
}

loom_status loom_stage_append(loom_stage_actions *list, loom_action action)
{
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        loom_action *at = realloc(list->at, (size_t)capacity * sizeof *at);
        if (!at)
            return loom_fail(LOOM_E_MEMORY, "no memory for %d actions of a stage", capacity);
        list->at = at;
        list->capacity = capacity;
    }
    list->at[list->count++] = action;
    return LOOM_OK;
}

void loom_schedule_drop_comm(loom_schedule *schedule)
{
    for (int i = 0; i < schedule->stages; i++) {
        loom_stage_actions *list = &schedule->stage[i];
        int kept = 0;

        for (int k = 0; k < list->count; k++)
            if (!loom_is_send(&list->at[k]) && !loom_is_recv(&list->at[k]))
                list->at[kept++] = list->at[k];
        list->count = kept;
    }
    schedule->has_comm = false;
}

/* The rules of a schedule are rules of the layout; there is one checker. */
static loom_status check_rules(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches)
{
    loom_layout layout;

    if (micro_batches < 1)
        return loom_fail(LOOM_E_INVALID, "a schedule of %d micro-batches; 1 is the least", micro_batches);
    loom_layout_default(NULL, &layout);
    layout.pp = stages;
    layout.vpp = chunks_per_stage;
    layout.schedule = kind;
    layout.global_batch = micro_batches;
    return stages < 1 ? loom_fail(LOOM_E_INVALID, "a schedule of %d stages; 1 is the least", stages) : loom_layout_check(&layout, NULL, 0);
}

loom_status loom_schedule_generate(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches, loom_schedule **schedule)
{
    static void (*const emit[LOOM_SCHEDULE_KINDS])(loom_schedule *, int) = {
        [LOOM_SCHEDULE_GPIPE] = loom_emit_gpipe, [LOOM_SCHEDULE_1F1B] = loom_emit_1f1b, [LOOM_SCHEDULE_INTERLEAVED] = loom_emit_interleaved,
        [LOOM_SCHEDULE_ZB_H1] = loom_emit_zb_h1, [LOOM_SCHEDULE_ZB_V] = loom_emit_zb_v,
    };
    int64_t capacity = (int64_t)LOOM_PASSES * chunks_per_stage * micro_batches;
    loom_schedule *s;
    loom_status status = check_rules(kind, stages, chunks_per_stage, micro_batches);

    if (status < 0)
        return status;
    if (capacity > INT32_MAX / 4)
        return loom_fail(LOOM_E_INVALID, "%d micro-batches on %d chunks a stage are too many actions", micro_batches, chunks_per_stage);
    if ((status = loom_schedule_new(kind, stages, chunks_per_stage, micro_batches, (int)capacity, &s)) < 0)
        return status;
    for (int i = 0; i < stages; i++)
        emit[kind](s, i);
    *schedule = s;
    return LOOM_OK;
}

loom_status loom_schedule_for_layout(const loom_layout *layout, loom_schedule **schedule)
{
    int64_t micro_batches = loom_layout_micro_batches(layout);
    loom_schedule *s;
    loom_status status;

    if (micro_batches < 1 || micro_batches > INT32_MAX)
        return loom_fail(LOOM_E_INVALID, "global_batch=%lld with micro_batch=%lld x dp=%d gives %lld micro-batches; a schedule needs at least 1",
                         (long long)layout->global_batch, (long long)layout->micro_batch, layout->dp, (long long)micro_batches);
    if ((status = loom_schedule_generate(layout->schedule, layout->pp, layout->vpp, (int)micro_batches, &s)) < 0)
        return status;
    if ((status = loom_schedule_add_comm(s)) < 0) {
        loom_schedule_free(s);
        return status;
    }
    *schedule = s;
    return LOOM_OK;
}

/* The chunk whose output a compute action consumes, or -1: chunk - 1 for a forward, chunk + 1 for an input gradient. */
static int feeding_chunk(const loom_schedule *schedule, const loom_action *action)
{
    if (action->kind == LOOM_FORWARD)
        return action->chunk - 1;
    if (action->kind == LOOM_BACKWARD || action->kind == LOOM_BACKWARD_INPUT)
        return action->chunk + 1 < loom_chunk_count(schedule) ? action->chunk + 1 : -1;
    return -1;
}

static int fed_chunk(const loom_schedule *schedule, const loom_action *action)
{
    if (action->kind == LOOM_FORWARD)
        return action->chunk + 1 < loom_chunk_count(schedule) ? action->chunk + 1 : -1;
    if (action->kind == LOOM_BACKWARD || action->kind == LOOM_BACKWARD_INPUT)
        return action->chunk - 1;
    return -1;
}

static int stage_unless_own(const loom_schedule *schedule, int chunk, int own)
{
    int stage = chunk < 0 ? -1 : schedule->stage_of_chunk[chunk];

    return stage == schedule->stage_of_chunk[own] ? -1 : stage;
}

int loom_action_source(const loom_schedule *schedule, const loom_action *action)
{
    return stage_unless_own(schedule, feeding_chunk(schedule, action), action->chunk);
}

int loom_action_target(const loom_schedule *schedule, const loom_action *action)
{
    return stage_unless_own(schedule, fed_chunk(schedule, action), action->chunk);
}

size_t loom_message_in(const loom_schedule *schedule, const loom_action *action)
{
    return loom_message(schedule, action->kind != LOOM_FORWARD, feeding_chunk(schedule, action), action->micro_batch);
}

size_t loom_message_out(const loom_schedule *schedule, const loom_action *action)
{
    bool gradient = action->kind != LOOM_FORWARD && action->kind != LOOM_SEND_F && action->kind != LOOM_RECV_F;

    return loom_message(schedule, gradient, action->chunk, action->micro_batch);
}

char *loom_action_describe(const loom_action *action, char *text, size_t bytes)
{
    static const char *const names[LOOM_ACTION_KINDS] = {
        "F", "B", "I (input gradient)", "W (weight gradient)", "send F", "receive F", "send B", "receive B", "unshard", "reshard", "reduce",
    };

    if (action->kind >= LOOM_ACTION_KINDS)
        snprintf(text, bytes, "unknown action %d", action->kind);
    else if (action->kind >= LOOM_UNSHARD)
        snprintf(text, bytes, "%s of chunk %d", names[action->kind], action->chunk);
    else
        snprintf(text, bytes, "%s of micro-batch %d, chunk %d", names[action->kind], action->micro_batch, action->chunk);
    return text;
}
