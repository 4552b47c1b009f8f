/* Megatron's order as text: signed chunk numbers, a line a stage. */
#include "schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"

/* --- writing --------------------------------------------------------------------------------------------------------- */

/* next[row][backward]: the micro-batch that comes next; an order by number has no other way to say which one is meant. */
static loom_status add_action(const loom_schedule *s, int stage, const loom_action *a, int (*next)[2], loom_text *text)
{
    int row = a->chunk / s->stages;
    bool backward = a->kind == LOOM_BACKWARD;
    char words[64];

    if (!backward && a->kind != LOOM_FORWARD)
        return loom_fail(LOOM_E_UNSUPPORTED, "Megatron's order has no %s", loom_action_describe(a, words, sizeof words));
    if (a->chunk % s->stages != stage)
        return loom_fail(LOOM_E_UNSUPPORTED, "Megatron's order has chunk %d on stage %d, the schedule on %d", a->chunk, a->chunk % s->stages, stage);
    if (a->micro_batch != next[row][backward]++)
        return loom_fail(LOOM_E_UNSUPPORTED, "Megatron's order takes micro-batches of a chunk as they come; %s is out of turn on stage %d",
                         loom_action_describe(a, words, sizeof words), stage);
    loom_text_add(text, "%s%d", text->length && text->at[text->length - 1] != '\n' ? " " : "", backward ? -(row + 1) : row + 1);
    return LOOM_OK;
}

loom_status loom_schedule_order_text(const loom_schedule *schedule, char **text)
{
    size_t bytes = sizeof(int[2]) * (size_t)schedule->chunks_per_stage;
    int(*next)[2] = malloc(bytes);
    loom_text out = {0};
    loom_status status = next ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for %d chunks a stage", schedule->chunks_per_stage);

    for (int stage = 0; stage < schedule->stages && status == LOOM_OK; stage++) {
        memset(next, 0, bytes);
        for (int i = 0; i < schedule->stage[stage].count && status == LOOM_OK; i++) {
            const loom_action *a = &schedule->stage[stage].at[i];
            if (!loom_is_send(a) && !loom_is_recv(a))
                status = add_action(schedule, stage, a, next, &out);
        }
        loom_text_add(&out, "\n");
    }
    free(next);
    if (status < 0) {
        loom_text_drop(&out);
        return status;
    }
    return loom_text_take(&out, text);
}

/* --- reading --------------------------------------------------------------------------------------------------------- */

typedef struct reading {
    const char *source;
    loom_stage_actions row[LOOM_MAX_STAGES]; /* chunk is the row of the stage until the number of stages is known */
    int rows, chunks_per_stage, micro_batches;
} reading;

static loom_status read_number(reading *r, const char **at, const char *end, int (*next)[2])
{
    bool backward = **at == '-';
    const char *begin = *at;
    long k = 0;
    loom_action action = {backward ? LOOM_BACKWARD : LOOM_FORWARD, -1, 0, 0};

    for (*at += backward; *at < end && **at >= '0' && **at <= '9' && k <= LOOM_MAX_STAGES; ++*at)
        k = 10 * k + (**at - '0');
    if (k < 1 || k > LOOM_MAX_STAGES || (*at < end && !strchr(" \t\r,", **at)))
        return loom_fail(LOOM_E_INVALID, "%s: line of stage %d: '%.*s' is no action; a chunk's number from 1 is, negative for its backward", r->source,
                         r->rows, (int)(end - begin < 20 ? end - begin : 20), begin);
    action.chunk = (int32_t)k - 1;
    action.micro_batch = next[k - 1][backward]++;
    r->chunks_per_stage = (int)k > r->chunks_per_stage ? (int)k : r->chunks_per_stage;
    r->micro_batches = action.micro_batch >= r->micro_batches ? action.micro_batch + 1 : r->micro_batches;
    return loom_stage_append(&r->row[r->rows], action);
}

static loom_status read_line(reading *r, const char *at, const char *end)
{
    int next[LOOM_MAX_STAGES][2] = {{0}};
    const char *comment = memchr(at, '#', (size_t)(end - at));
    loom_status status;

    end = comment ? comment : end;
    while (at < end) {
        if (strchr(" \t\r,", *at)) {
            at++;
            continue;
        }
        if (r->rows == LOOM_MAX_STAGES)
            return loom_fail(LOOM_E_INVALID, "%s: more than %d lines; a line is a stage", r->source, LOOM_MAX_STAGES);
        if ((status = read_number(r, &at, end, next)) < 0)
            return status;
    }
    r->rows += r->rows < LOOM_MAX_STAGES && r->row[r->rows].count > 0; /* lines without a number are no stages */
    return LOOM_OK;
}

static loom_status build(reading *r, loom_schedule **schedule)
{
    loom_schedule *s;
    loom_status status;

    if (r->rows == 0)
        return loom_fail(LOOM_E_INVALID, "%s: there is no action in it", r->source);
    if (r->rows * r->chunks_per_stage > LOOM_MAX_STAGES)
        return loom_fail(LOOM_E_INVALID, "%s: %d stages x %d chunks; at most %d chunks are supported", r->source, r->rows, r->chunks_per_stage, LOOM_MAX_STAGES);
    status = loom_schedule_new(LOOM_SCHEDULE_INTERLEAVED, r->rows, r->chunks_per_stage, r->micro_batches, 0, &s);
    if (status < 0)
        return status;
    for (int stage = 0; stage < r->rows; stage++) {
        s->stage[stage] = r->row[stage];
        r->row[stage] = (loom_stage_actions){0};
        for (int i = 0; i < s->stage[stage].count; i++)
            s->stage[stage].at[i].chunk = s->stage[stage].at[i].chunk * r->rows + stage;
    }
    *schedule = s;
    return LOOM_OK;
}

loom_status loom_schedule_parse_order(const char *source, const char *text, size_t bytes, loom_schedule **schedule)
{
    reading r = {.source = source};
    loom_status status = LOOM_OK;

    for (const char *at = text, *end = text + bytes; at < end && status == LOOM_OK;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        status = read_line(&r, at, stop ? stop : end);
        at = stop ? stop + 1 : end;
    }
    if (status == LOOM_OK)
        status = build(&r, schedule);
    for (int i = 0; i < LOOM_MAX_STAGES; i++)
        free(r.row[i].at);
    return status;
}

loom_status loom_schedule_load_order(const char *path, loom_schedule **schedule)
{
    char *text;
    size_t bytes;
    loom_status status = loom_file_read(path, LOOM_MOST_SCHEDULE_BYTES, &text, &bytes);

    if (status < 0)
        return status;
    status = loom_schedule_parse_order(path, text, bytes, schedule);
    free(text);
    return status;
}
