/* The proof that a schedule runs: complete, causal, stages consistent, channels first in first out, free of deadlock. Each step may
 * rely on those before it:
 *   (1) every action names a chunk, a micro-batch and a pass that exist, on the stage that holds the chunk;
 *   (2) every (micro-batch, chunk) has one F, and one B or one I and one W;
 *   (3) on a stage, F comes before B or I, I before W, and a chunk that feeds another of the same stage before it;
 *   (4) every message is sent once behind its producer and received once before its consumer, each channel in one order;
 *   (5) run in order with bounded channels, no stage waits for ever (deadlock.c). */
#include "schedule/verify.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/lower.h"

static loom_status on_stage(int stage, const loom_action *action, const char *what)
{
    char text[64];

    return loom_fail(LOOM_E_INVALID, "stage %d: %s %s", stage, loom_action_describe(action, text, sizeof text), what);
}

/* --- (1) --- */

static loom_status check_action(const loom_schedule *s, int stage, const loom_action *a)
{
    char text[64];

    if (a->kind >= LOOM_ACTION_KINDS)
        return on_stage(stage, a, "is unknown");
    if (a->chunk < 0 || a->chunk >= loom_chunk_count(s))
        return loom_fail(LOOM_E_INVALID, "stage %d: %s: there are %d chunks", stage, loom_action_describe(a, text, sizeof text), loom_chunk_count(s));
    if (a->kind < LOOM_UNSHARD && (a->micro_batch < 0 || a->micro_batch >= s->micro_batches))
        return loom_fail(LOOM_E_INVALID, "stage %d: %s: there are %d micro-batches", stage, loom_action_describe(a, text, sizeof text),
                         s->micro_batches);
    if (!loom_is_recv(a) && s->stage_of_chunk[a->chunk] != stage)
        return loom_fail(LOOM_E_INVALID, "stage %d: %s: that chunk is on stage %d", stage, loom_action_describe(a, text, sizeof text),
                         s->stage_of_chunk[a->chunk]);
    return LOOM_OK;
}

/* --- (2) --- */

static loom_pass pass_of(const loom_action *a)
{
    return a->kind == LOOM_FORWARD ? LOOM_PASS_FORWARD : a->kind == LOOM_BACKWARD_WEIGHT ? LOOM_PASS_WEIGHT : LOOM_PASS_INPUT;
}

static int *place(const loom_places *p, loom_pass pass, int chunk, int micro_batch)
{
    return &p->at[((size_t)pass * (size_t)p->chunks + (size_t)chunk) * (size_t)p->micro_batches + (size_t)micro_batch];
}

static loom_status note_place(const loom_places *p, int stage, int index, const loom_action *a)
{
    int *at = place(p, pass_of(a), a->chunk, a->micro_batch);

    if (*at >= 0)
        return on_stage(stage, a, "is there twice");
    *at = index;
    if (a->kind == LOOM_BACKWARD) { /* stands for I and W */
        at = place(p, LOOM_PASS_WEIGHT, a->chunk, a->micro_batch);
        if (*at >= 0)
            return on_stage(stage, a, "has a W too, which is part of it");
        *at = index;
    }
    return LOOM_OK;
}

static loom_status check_complete(const loom_schedule *s, const loom_places *p)
{
    static const char *const names[LOOM_PASSES] = {"F", "B or I", "B or W"};

    for (int chunk = 0; chunk < p->chunks; chunk++)
        for (int b = 0; b < p->micro_batches; b++)
            for (int pass = 0; pass < LOOM_PASSES; pass++)
                if (*place(p, (loom_pass)pass, chunk, b) < 0)
                    return loom_fail(LOOM_E_INVALID, "stage %d: %s of micro-batch %d, chunk %d is missing", s->stage_of_chunk[chunk], names[pass], b,
                                     chunk);
    return LOOM_OK;
}

/* --- (3) --- */

static loom_status check_causal(const loom_schedule *s, const loom_places *p)
{
    for (int chunk = 0; chunk < p->chunks; chunk++)
        for (int b = 0; b < p->micro_batches; b++) {
            int stage = s->stage_of_chunk[chunk], f = *place(p, LOOM_PASS_FORWARD, chunk, b), i = *place(p, LOOM_PASS_INPUT, chunk, b);
            bool neighbour = chunk > 0 && s->stage_of_chunk[chunk - 1] == stage;

            if (i < f)
                return on_stage(stage, &s->stage[stage].at[i], "comes before its F");
            if (*place(p, LOOM_PASS_WEIGHT, chunk, b) < i)
                return on_stage(stage, &s->stage[stage].at[*place(p, LOOM_PASS_WEIGHT, chunk, b)], "comes before its I");
            if (neighbour && f < *place(p, LOOM_PASS_FORWARD, chunk - 1, b))
                return on_stage(stage, &s->stage[stage].at[f], "comes before the F of the chunk that feeds it");
            if (neighbour && *place(p, LOOM_PASS_INPUT, chunk - 1, b) < i)
                return on_stage(stage, &s->stage[stage].at[*place(p, LOOM_PASS_INPUT, chunk - 1, b)], "comes before the B or I of the chunk that feeds it");
        }
    return LOOM_OK;
}

loom_status loom_find_places(const loom_schedule *s, loom_places *p)
{
    size_t count = (size_t)LOOM_PASSES * (size_t)loom_chunk_count(s) * (size_t)s->micro_batches;
    loom_status status;

    *p = (loom_places){loom_chunk_count(s), s->micro_batches, malloc(count * sizeof *p->at)};
    if (!p->at)
        return loom_fail(LOOM_E_MEMORY, "no memory to verify %zu actions", count);
    memset(p->at, -1, count * sizeof *p->at);
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->stage[stage].count; i++) {
            const loom_action *a = &s->stage[stage].at[i];
            if ((status = check_action(s, stage, a)) < 0 || (loom_is_compute(a) && (status = note_place(p, stage, i, a)) < 0))
                return status;
        }
    if ((status = check_complete(s, p)) < 0)
        return status;
    return check_causal(s, p);
}

/* --- (4) --- */

/* Where the messages are sent and received: index in the list of the stage, -1 for not at all. */
typedef struct comm_places {
    int *send, *recv;
} comm_places;

/* The compute action of a send or recv: the F, B or I that made the message. */
static int producer_place(const loom_places *p, const loom_action *a)
{
    return *place(p, a->kind == LOOM_SEND_F || a->kind == LOOM_RECV_F ? LOOM_PASS_FORWARD : LOOM_PASS_INPUT, a->chunk, a->micro_batch);
}

static bool is_gradient(const loom_action *a)
{
    return a->kind == LOOM_SEND_B || a->kind == LOOM_RECV_B;
}

/* The chunk that a message goes to, or -1 when there is none on another stage. */
static int receiving_chunk(const loom_schedule *s, const loom_action *a)
{
    int to = is_gradient(a) ? a->chunk - 1 : a->chunk + 1;

    return to < 0 || to >= loom_chunk_count(s) || s->stage_of_chunk[to] == s->stage_of_chunk[a->chunk] ? -1 : to;
}

static loom_status note_send(const loom_schedule *s, const loom_places *p, int stage, int index, const loom_action *a, int *send)
{
    int to = receiving_chunk(s, a), *at = &send[loom_message_out(s, a)];

    if (to < 0)
        return on_stage(stage, a, "goes to no other stage");
    if (a->peer != s->stage_of_chunk[to])
        return loom_fail(LOOM_E_INVALID, "stage %d: a message of chunk %d goes to stage %d, the action says %d", stage, a->chunk,
                         s->stage_of_chunk[to], a->peer);
    if (*at >= 0)
        return on_stage(stage, a, "is there twice");
    if (index < producer_place(p, a))
        return on_stage(stage, a, "comes before what it sends is made");
    *at = index;
    return LOOM_OK;
}

static loom_status note_recv(const loom_schedule *s, const loom_places *p, int stage, int index, const loom_action *a, int *recv)
{
    int to = receiving_chunk(s, a), *at = &recv[loom_message_out(s, a)];

    if (to < 0 || s->stage_of_chunk[to] != stage)
        return on_stage(stage, a, "has no chunk on this stage that uses it");
    if (a->peer != s->stage_of_chunk[a->chunk])
        return loom_fail(LOOM_E_INVALID, "stage %d: a message of chunk %d comes from stage %d, the action says %d", stage, a->chunk,
                         s->stage_of_chunk[a->chunk], a->peer);
    if (*at >= 0)
        return on_stage(stage, a, "is there twice");
    if (index > *place(p, is_gradient(a) ? LOOM_PASS_INPUT : LOOM_PASS_FORWARD, to, a->micro_batch))
        return on_stage(stage, a, "comes after the action that uses it");
    *at = index;
    return LOOM_OK;
}

static loom_status check_moved(const loom_schedule *s, int stage, const loom_action *a, const comm_places *c)
{
    size_t m = loom_message_out(s, a);

    if (c->send[m] < 0)
        return on_stage(stage, a, "makes a message that is never sent");
    if (c->recv[m] < 0)
        return on_stage(stage, a, "makes a message that is never received");
    return LOOM_OK;
}

/* Sends of a channel and receives of it are in one order: walks the sends of each stage and remembers the last receive of each peer. */
static loom_status check_order(const loom_schedule *s, const comm_places *c)
{
    int *last = malloc(sizeof *last * (size_t)s->stages);
    loom_status status = last ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory to verify %d stages", s->stages);

    for (int stage = 0; stage < s->stages && status == LOOM_OK; stage++) {
        memset(last, -1, sizeof *last * (size_t)s->stages);
        for (int i = 0; i < s->stage[stage].count && status == LOOM_OK; i++) {
            const loom_action *a = &s->stage[stage].at[i];
            char text[64];
            int at;

            if (!loom_is_send(a))
                continue;
            at = c->recv[loom_message_out(s, a)];
            if (at < last[a->peer])
                status = loom_fail(LOOM_E_INVALID, "stage %d: %s stands behind a message that stage %d receives later", stage,
                                   loom_action_describe(a, text, sizeof text), a->peer);
            last[a->peer] = at;
        }
    }
    free(last);
    return status;
}

static loom_status check_messages(const loom_schedule *s, const loom_places *p, const comm_places *c)
{
    loom_status status = LOOM_OK;

    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->stage[stage].count && status == LOOM_OK; i++) {
            const loom_action *a = &s->stage[stage].at[i];
            if (loom_is_send(a))
                status = note_send(s, p, stage, i, a, c->send);
            else if (loom_is_recv(a))
                status = note_recv(s, p, stage, i, a, c->recv);
        }
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->stage[stage].count && status == LOOM_OK; i++)
            if (loom_action_target(s, &s->stage[stage].at[i]) >= 0)
                status = check_moved(s, stage, &s->stage[stage].at[i], c);
    return status == LOOM_OK ? check_order(s, c) : status;
}

static loom_status check_comm(const loom_schedule *s, const loom_places *p)
{
    size_t count = loom_message_count(s);
    comm_places c = {malloc(count * sizeof *c.send), malloc(count * sizeof *c.recv)};
    loom_status status;

    if (c.send && c.recv) {
        memset(c.send, -1, count * sizeof *c.send);
        memset(c.recv, -1, count * sizeof *c.recv);
        status = check_messages(s, p, &c);
    } else {
        status = loom_fail(LOOM_E_MEMORY, "no memory to verify %zu messages", count);
    }
    free(c.send);
    free(c.recv);
    return status;
}

/* --- what a sound schedule needs --- */

typedef struct in_flight {
    int now, peak;
} in_flight;

static void count(in_flight *f, int change)
{
    f->now += change;
    if (f->now > f->peak)
        f->peak = f->now;
}

static void count_stage(const loom_schedule *s, int stage, in_flight *chunk, loom_schedule_facts *facts)
{
    in_flight whole = {0}, before_input = {0}, receives = {0};

    for (int i = 0; i < s->stage[stage].count; i++) {
        const loom_action *a = &s->stage[stage].at[i];
        int change = a->kind == LOOM_FORWARD ? 1 : a->kind == LOOM_BACKWARD || a->kind == LOOM_BACKWARD_WEIGHT ? -1 : 0;

        count(&receives, loom_is_recv(a));
        if (!loom_is_compute(a))
            continue;
        count(&receives, s->has_comm && loom_action_source(s, a) >= 0 ? -1 : 0);
        count(&whole, change);
        count(&chunk[a->chunk], change);
        count(&before_input, a->kind == LOOM_FORWARD ? 1 : a->kind == LOOM_BACKWARD || a->kind == LOOM_BACKWARD_INPUT ? -1 : 0);
    }
    facts->peak_in_flight[stage] = whole.peak;
    facts->peak_before_input[stage] = before_input.peak;
    facts->peak_receives[stage] = receives.peak;
}

static loom_status gather_facts(const loom_schedule *s, loom_schedule_facts *facts)
{
    int chunks = loom_chunk_count(s);
    in_flight *chunk = calloc((size_t)chunks, sizeof *chunk);

    facts->peak_in_flight = calloc((size_t)s->stages, sizeof(int));
    facts->peak_before_input = calloc((size_t)s->stages, sizeof(int));
    facts->peak_chunk_slots = calloc((size_t)chunks, sizeof(int));
    facts->peak_receives = calloc((size_t)s->stages, sizeof(int));
    if (!chunk || !facts->peak_in_flight || !facts->peak_before_input || !facts->peak_chunk_slots || !facts->peak_receives) {
        free(chunk);
        loom_schedule_facts_free(facts);
        return loom_fail(LOOM_E_MEMORY, "no memory for the facts of %d chunks", chunks);
    }
    for (int stage = 0; stage < s->stages; stage++)
        count_stage(s, stage, chunk, facts);
    for (int c = 0; c < chunks; c++)
        facts->peak_chunk_slots[c] = chunk[c].peak;
    free(chunk);
    return LOOM_OK;
}

void loom_schedule_facts_free(loom_schedule_facts *facts)
{
    free(facts->peak_in_flight);
    free(facts->peak_before_input);
    free(facts->peak_chunk_slots);
    free(facts->peak_receives);
    *facts = (loom_schedule_facts){0};
}

/* (5) for a schedule without comm: as a program runs it that receives where it uses. */
static loom_status check_lowered(const loom_schedule *schedule, int buffers)
{
    loom_schedule *lowered;
    loom_status status = loom_schedule_copy(schedule, &lowered);

    if (status < 0)
        return status;
    status = loom_lower_at_use(lowered);
    if (status == LOOM_OK)
        status = loom_check_deadlock(lowered, buffers);
    loom_schedule_free(lowered);
    return status;
}

loom_status loom_schedule_verify(const loom_schedule *schedule, int buffers, loom_schedule_facts *facts)
{
    loom_places places;
    loom_status status = loom_find_places(schedule, &places);

    if (status == LOOM_OK && schedule->has_comm)
        status = check_comm(schedule, &places);
    free(places.at);
    if (status == LOOM_OK)
        status = schedule->has_comm ? loom_check_deadlock(schedule, buffers) : check_lowered(schedule, buffers);
    return status == LOOM_OK && facts ? gather_facts(schedule, facts) : status;
}
