/* The CSV of torch.distributed.pipelining: a row a stage, a cell an action: chunk, kind, micro-batch. */
#include "schedule/schedule.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "core/try.h"

enum { MOST_PROBLEMS = 40, SLACK = 1024 };

/* Longer words first, where one begins with another. Waits have no action of ours: the executor retires its sends by itself. */
static const struct word {
    const char *text;
    int kind; /* -1: dropped */
    bool has_micro_batch;
} words[] = {
    {"WAIT_REDUCE_GRAD", -1, false}, {"WAIT_SEND_F", -1, true}, {"WAIT_SEND_B", -1, true}, {"REDUCE_GRAD", LOOM_REDUCE_GRAD, false},
    {"UNSHARD", LOOM_UNSHARD, false}, {"RESHARD", LOOM_RESHARD, false}, {"SEND_F", LOOM_SEND_F, true}, {"RECV_F", LOOM_RECV_F, true},
    {"SEND_B", LOOM_SEND_B, true}, {"RECV_B", LOOM_RECV_B, true}, {"F", LOOM_FORWARD, true}, {"B", LOOM_BACKWARD, true},
    {"I", LOOM_BACKWARD_INPUT, true}, {"W", LOOM_BACKWARD_WEIGHT, true},
};

static const char *word_of(int kind)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].kind == kind)
            return words[i].text;
    return "";
}

typedef struct reading {
    const char *source;
    loom_stage_actions *row; /* grows by rows; chunk of a receive is still that of the receiver, as in the file */
    int rows, row_capacity;
    int cell;                /* from 1, of the row being read */
    int64_t chunks, micro_batches, actions;
    bool has_comm;
    loom_text problems;
    int n_problems;
} reading;

static LOOM_PRINTF(2, 3) void problem(reading *r, const char *format, ...)
{
    char text[256];
    va_list arguments;

    if (r->n_problems++ >= MOST_PROBLEMS)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    loom_text_add(&r->problems, "%s%s: %s", r->problems.length ? "\n" : "", r->source, text);
}

/* Reads digits. False: there are none, or too many. */
static bool take_number(const char **at, const char *end, int32_t *value)
{
    const char *begin = *at;
    int64_t v = 0;

    while (*at < end && isdigit((unsigned char)**at) && v < INT32_MAX)
        v = 10 * v + (*(*at)++ - '0');
    *value = (int32_t)v;
    return *at > begin && v < INT32_MAX / 2;
}

/* One action, `at` to `end` without blanks around. */
static loom_status read_action(reading *r, const char *at, const char *end)
{
    const char *begin = at;
    loom_action action = {0, -1, 0, 0};
    const struct word *word = NULL;
    bool right = take_number(&at, end, &action.chunk);

    for (size_t i = 0; i < sizeof words / sizeof *words && !word; i++)
        if ((size_t)(end - at) >= strlen(words[i].text) && memcmp(at, words[i].text, strlen(words[i].text)) == 0)
            word = &words[i];
    if (word)
        at += strlen(word->text);
    right = right && word && (at == end ? !word->has_micro_batch : take_number(&at, end, &action.micro_batch) && at == end);
    if (!right || action.chunk >= LOOM_MAX_STAGES) {
        problem(r, "row %d, cell %d: '%.*s' is no action; chunk, kind, micro-batch are, as in 2F0, 1SEND_F3, 0UNSHARD", r->rows, r->cell,
                (int)(end - begin < 40 ? end - begin : 40), begin);
        return LOOM_OK;
    }
    if (word->kind < 0)
        return LOOM_OK;
    action.kind = (uint8_t)word->kind;
    r->actions++;
    r->has_comm |= loom_is_send(&action) || loom_is_recv(&action);
    r->chunks = action.chunk >= r->chunks ? action.chunk + 1 : r->chunks;
    r->micro_batches = action.micro_batch >= r->micro_batches ? action.micro_batch + 1 : r->micro_batches;
    return loom_stage_append(&r->row[r->rows - 1], action);
}

/* "(0F1;1B0)OVERLAP_F_B": its parts, in order. */
static loom_status read_overlap(reading *r, const char *at, const char *end)
{
    static const char name[] = ")OVERLAP_F_B";
    const char *close = end - (sizeof name - 1);

    if (close <= at || memcmp(close, name, sizeof name - 1) != 0) {
        problem(r, "row %d, cell %d: a cell in brackets ends in %s", r->rows, r->cell, name);
        return LOOM_OK;
    }
    for (at++; at < close;) {
        const char *stop = memchr(at, ';', (size_t)(close - at));
        loom_status status = read_action(r, at, stop ? stop : close);
        if (status < 0)
            return status;
        at = stop ? stop + 1 : close;
    }
    return LOOM_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '"';
}

static loom_status read_cell(reading *r, const char *at, const char *end)
{
    while (at < end && is_blank(*at))
        at++;
    while (at < end && is_blank(end[-1]))
        end--;
    if (at == end)
        return LOOM_OK; /* an idle slot */
    return *at == '(' ? read_overlap(r, at, end) : read_action(r, at, end);
}

static loom_status read_row(reading *r, const char *at, const char *end)
{
    if (r->rows == r->row_capacity) {
        int capacity = r->row_capacity ? 2 * r->row_capacity : 16;
        loom_stage_actions *row = realloc(r->row, (size_t)capacity * sizeof *row);
        if (!row)
            return loom_fail(LOOM_E_MEMORY, "%s: no memory for %d rows", r->source, capacity);
        r->row = row;
        r->row_capacity = capacity;
    }
    r->row[r->rows++] = (loom_stage_actions){0};
    for (r->cell = 1; at <= end; r->cell++) {
        const char *stop = memchr(at, ',', (size_t)(end - at));
        loom_status status = read_cell(r, at, stop ? stop : end);
        if (status < 0)
            return status;
        at = (stop ? stop : end) + 1;
    }
    return LOOM_OK;
}

static loom_status read_rows(reading *r, const char *text, size_t bytes)
{
    const char *at = text, *end = text + bytes;

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        loom_status status = read_row(r, at, stop ? stop : end);
        if (status < 0)
            return status;
        if (r->rows > LOOM_MAX_STAGES)
            return loom_fail(LOOM_E_INVALID, "%s: more than %d rows; a row is a stage", r->source, LOOM_MAX_STAGES);
        at = stop ? stop + 1 : end;
    }
    return LOOM_OK;
}

/* Chunks are on the stage whose row computes on them. */
static void place_chunks(reading *r, int *stage_of_chunk)
{
    for (int c = 0; c < r->chunks; c++)
        stage_of_chunk[c] = -1;
    for (int stage = 0; stage < r->rows; stage++)
        for (int i = 0; i < r->row[stage].count; i++) {
            const loom_action *a = &r->row[stage].at[i];
            int *at = &stage_of_chunk[a->chunk];
            if (!loom_is_compute(a) || *at == stage)
                continue;
            if (*at >= 0)
                problem(r, "row %d computes on chunk %d, which row %d has", stage + 1, a->chunk, *at + 1);
            else
                *at = stage;
        }
    for (int c = 0; c < r->chunks; c++)
        if (stage_of_chunk[c] < 0)
            problem(r, "no row computes on chunk %d, but there are %lld chunks", c, (long long)r->chunks);
}

static void check_counts(reading *r, int stages, int chunks_per_stage)
{
    if (r->rows == 0 || r->chunks == 0)
        problem(r, "there is no action in it");
    else if (stages > 0 && r->rows != stages)
        problem(r, "%d rows, %d stages are wanted", r->rows, stages);
    else if (r->chunks % r->rows != 0)
        problem(r, "%lld chunks on %d stages; each stage has as many", (long long)r->chunks, r->rows);
    else if (chunks_per_stage > 0 && r->chunks / r->rows != chunks_per_stage)
        problem(r, "%lld chunks a stage, %d are wanted", (long long)(r->chunks / r->rows), chunks_per_stage);
    else if (r->chunks * r->micro_batches > SLACK * r->actions) /* tables grow with the numbers: a few bytes must not ask for gigabytes */
        problem(r, "%lld micro-batches on %lld chunks, but only %lld actions; each takes two at least", (long long)r->micro_batches, (long long)r->chunks,
                (long long)r->actions);
}

/* The file names the chunk that receives; our actions name the one that made the message. */
static void finish_action(reading *r, const loom_schedule *s, int stage, loom_action *a)
{
    int chunks = loom_chunk_count(s), other;

    if (!loom_is_send(a) && !loom_is_recv(a))
        return;
    other = a->kind == LOOM_SEND_F || a->kind == LOOM_RECV_B ? a->chunk + 1 : a->chunk - 1;
    if (other < 0 || other >= chunks) {
        problem(r, "row %d: %d%s%d: chunk %d of %d has no such neighbour", stage + 1, a->chunk, word_of(a->kind), a->micro_batch, a->chunk, chunks);
        return;
    }
    a->peer = (int16_t)s->stage_of_chunk[other];
    if (loom_is_recv(a))
        a->chunk = other;
}

static loom_status build(reading *r, int stages, int chunks_per_stage, loom_schedule **schedule)
{
    loom_schedule *s = NULL;
    loom_status status = LOOM_OK;

    check_counts(r, stages, chunks_per_stage);
    if (r->n_problems == 0)
        LOOM_TRY(loom_schedule_new(LOOM_SCHEDULE_1F1B, r->rows, (int)r->chunks / r->rows, (int)r->micro_batches, 0, &s));
    if (s) {
        s->has_comm = r->has_comm;
        place_chunks(r, s->stage_of_chunk);
    }
    for (int stage = 0, rows = r->n_problems == 0 ? r->rows : 0; stage < rows; stage++) {
        s->stage[stage] = r->row[stage];
        r->row[stage] = (loom_stage_actions){0};
        for (int i = 0; i < s->stage[stage].count; i++)
            finish_action(r, s, stage, &s->stage[stage].at[i]);
    }
    if (r->n_problems > MOST_PROBLEMS)
        loom_text_add(&r->problems, "\n%s: and %d more", r->source, r->n_problems - MOST_PROBLEMS);
    if (r->n_problems > 0)
        LOOM_TRY(loom_fail(LOOM_E_INVALID, "%s", loom_text_so_far(&r->problems)));
    *schedule = s;
    return LOOM_OK;

fail:
    loom_schedule_free(s);
    return status;
}

loom_status loom_schedule_parse_csv(const char *source, const char *text, size_t bytes, int stages, int chunks_per_stage, loom_schedule **schedule)
{
    reading r = {.source = source};
    loom_status status = read_rows(&r, text, bytes);

    if (status == LOOM_OK)
        status = build(&r, stages, chunks_per_stage, schedule);
    for (int i = 0; i < r.rows; i++)
        free(r.row[i].at);
    free(r.row);
    loom_text_drop(&r.problems);
    return status;
}

loom_status loom_schedule_load_csv(const char *path, int stages, int chunks_per_stage, loom_schedule **schedule)
{
    char *text;
    size_t bytes;
    loom_status status = loom_file_read(path, LOOM_MOST_SCHEDULE_BYTES, &text, &bytes);

    if (status < 0)
        return status;
    status = loom_schedule_parse_csv(path, text, bytes, stages, chunks_per_stage, schedule);
    free(text);
    return status;
}

/* --- writing --------------------------------------------------------------------------------------------------------- */

static void write_cell(loom_text *text, const loom_action *a, const char *word)
{
    int chunk = a->kind == LOOM_RECV_F ? a->chunk + 1 : a->kind == LOOM_RECV_B ? a->chunk - 1 : a->chunk;

    loom_text_add(text, "%s%d%s", text->length && text->at[text->length - 1] != '\n' ? "," : "", chunk, word);
    if (a->kind < LOOM_UNSHARD)
        loom_text_add(text, "%d", a->micro_batch);
}

/* Waits as torch places them by itself: for an activation behind the backward that proves its arrival, for all else at the end. `pending`: sends
 * that nobody waited for yet. */
static void write_row(loom_text *text, const loom_schedule *s, int stage, bool *pending)
{
    const loom_stage_actions *list = &s->stage[stage];

    for (int i = 0; i < list->count; i++) {
        const loom_action *a = &list->at[i];
        bool backward = a->kind == LOOM_BACKWARD || a->kind == LOOM_BACKWARD_INPUT;
        bool *activation = &pending[loom_message(s, 0, a->chunk, a->kind < LOOM_UNSHARD ? a->micro_batch : 0)];

        write_cell(text, a, word_of(a->kind));
        if (loom_is_send(a))
            pending[loom_message_out(s, a)] = true;
        if (backward && *activation) {
            write_cell(text, a, "WAIT_SEND_F");
            *activation = false;
        }
    }
    for (int i = 0; i < list->count; i++)
        if (loom_is_send(&list->at[i]) && pending[loom_message_out(s, &list->at[i])])
            write_cell(text, &list->at[i], list->at[i].kind == LOOM_SEND_F ? "WAIT_SEND_F" : "WAIT_SEND_B");
    loom_text_add(text, "\n");
}

loom_status loom_schedule_save_csv(const loom_schedule *schedule, const char *path)
{
    loom_text text = {0};
    char *whole;
    bool *pending = calloc(loom_message_count(schedule), sizeof *pending);
    loom_status status;

    if (!pending)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory to write a schedule", path);
    for (int stage = 0; stage < schedule->stages; stage++)
        write_row(&text, schedule, stage, pending);
    free(pending);
    if ((status = loom_text_take(&text, &whole)) < 0)
        return status;
    status = loom_file_replace(path, whole, strlen(whole));
    loom_text_free(whole);
    return status;
}
